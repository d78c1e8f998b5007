"""FM411: the handle of an asynchronous collective is dropped, so that nothing can wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst, dotted, functions, last_name
from fmcheck.lint.model.expressions import is_name, keywords, targets
from fmcheck.lint.model.steps import is_beside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Part

#: Calls that order what comes after them behind a collective, whoever has its handle.
_ORDERS = frozenset(
    {"barrier", "monitored_barrier", "synchronize", "wait", "wait_event", "wait_stream"}
)


class CollectiveUnawaited(FunctionRule):
    """The handle of an asynchronous collective is dropped.

    ## What it does
    Looks for calls of `torch.distributed` with `async_op=True`, and for `irecv`, whose result is
    not used: the call is a statement, or the name that it is bound to is never read. A function
    that waits for a stream, the device or all ranks afterwards is left alone, and so is one that
    calls itself asynchronous, what a coalescing manager gathers, and tests, by their path.

    ## Why is this bad
    The collective runs on a stream of its own. Only `wait()` of its handle orders the current
    stream after it; without one the next kernel reads what the buffer held before, or overwrites
    what is being sent, mostly rightly on an idle device and wrongly under load.

    ## Example
    ```python
    dist.all_reduce(hidden, async_op=True)
    hidden = self.norm(hidden)
    ```

    ## Use instead
    ```python
    work = dist.all_reduce(hidden, async_op=True)
    ...  # what does not need the sum
    work.wait()
    hidden = self.norm(hidden)
    ```
    """

    code = "FM411"
    name = "collective-unawaited"
    severity = Severity.WARNING
    on_by_default = False
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))
    words = (("async_op=True", "irecv("),)
    seen_in = ()
    bad = (
        Example(
            """\
import torch.distributed as dist

def reduce(self, hidden, grads):
    dist.all_reduce(hidden, async_op=True)
    work = dist.all_gather_into_tensor(self.all, grads, group=self.group, async_op=True)
    dist.irecv(self.next, src=1)
    return self.norm(hidden)
""",
            at=((4, 5), (5, 12), (6, 5)),
        ),
    )
    good = (
        Example(
            """\
import torch
import torch.distributed as dist
from torch.distributed import irecv

def reduce(self, hidden, grads):
    work = dist.all_reduce(hidden, async_op=True)
    self.pending.append(dist.all_reduce(grads, async_op=True))
    dist.all_reduce(self.counts)
    irecv(self.next, src=1).wait()
    work.wait()
    with dist._coalescing_manager(self.group, async_ops=True) as gathered:
        dist.all_reduce(grads, async_op=True)
    return self.norm(hidden), gathered

def reduce_async(hidden):
    dist.all_reduce(hidden, async_op=True)

def finish(self, hidden):
    dist.all_reduce(hidden, async_op=True)
    torch.cuda.synchronize()
    return hidden
"""
        ),
    )

    def applies(self, file: File) -> bool:
        """Leaves out tests and tools, by their path."""
        return not is_beside(file.identity)

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each collective that nothing can wait for."""
        for function in functions(part):
            for call in () if "async" in function.name else function.calls:
                if (
                    _is_async(call, part)
                    and _is_dropped(call, function)
                    and not _is_ordered(call, function)
                ):
                    yield part.finding(
                        self,
                        call,
                        "this collective runs on a stream of its own, and nothing waits for it",
                        help="keep the handle and `wait()` for it before the buffer is used again",
                    )


def _is_async(call: cst.Call, part: Part) -> bool:
    """Tells whether a call starts a collective and returns a handle."""
    name = part.module.resolve(dotted(call.func) or "")
    if not name.startswith(("torch.distributed.", "dist.")):
        return False
    flag = keywords(call).get("async_op")
    return name.endswith(".irecv") or (flag is not None and is_name(flag, "True"))


def _is_dropped(call: cst.Call, function: Function) -> bool:
    """Tells whether what a call returns is bound to no name, or to one that is never read."""
    statement = function.parents.get(call)
    if isinstance(statement, cst.Expr):
        return True
    bound = targets(statement) if statement is not None else ()
    if len(bound) != 1 or not isinstance(bound[0], cst.Name):
        return False
    name = bound[0].value
    written = {id(one) for node in function.nodes for one in targets(node)}
    return not any(is_name(one, name) and id(one) not in written for one in function.nodes)


def _is_ordered(call: cst.Call, function: Function) -> bool:
    """Tells whether something later orders the collective, or a coalescing manager gathers it."""
    for later in function.calls:
        if last_name(later.func) in _ORDERS and function.flow.may_follow(call, later):
            return True
    node: cst.CSTNode = call
    while node in function.parents and node is not function.node:
        node = function.parents[node]
        if isinstance(node, cst.With) and any(
            "coalescing" in function.part.code(one.item) for one in node.items
        ):
            return True
    return False
