"""FM106: the result of a step is booked to a request that may be gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.declared import DeclaredFunctions
from fmcheck.lint.model.expressions import squeezed
from fmcheck.lint.model.function import functions
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.model.flow import Flow
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Part

PROCESSOR = "sglang/srt/managers/scheduler_components/batch_result_processor.py"


class LateResultUnchecked(FunctionRule):
    """A step's result is applied to a request that may already have finished.

    ## What it does
    Looks, in the functions that the contract says handle late results, for a loop over requests
    that adds to a request's counters without a test, on the way there, of what the contract says
    tells whether the request is still alive.

    ## Why is this bad
    With overlap the result of a step arrives when the next one runs already. In the meantime a
    request may have finished, or was retracted and its cache given away. What is booked to it all
    the same makes its lengths disagree with its cache, and rows of others are read or freed.

    ## Example
    ```python
    for req, length in zip(batch.reqs, accept_lens):
        req.kv_committed_len += length
    ```

    ## Use instead
    ```python
    for req, length in zip(batch.reqs, accept_lens):
        if req.finished() or req.is_retracted:
            continue
        req.kv_committed_len += length
    ```
    """

    code = "FM106"
    name = "late-result-unchecked"
    severity = Severity.WARNING
    seen_in = ("https://github.com/sgl-project/sglang/pull/23456",)

    bad = (
        Example(
            """\
class Processor:
    def _resolve_spec_v2_tokens(self, batch, lens):
        for i, req in enumerate(batch.reqs):
            if batch.counts:
                req.kv.committed_len += lens[i]
            req.steps += 1
""",
            at=((5, 17),),
            path=PROCESSOR,
        ),
        Example(
            """\
class Processor:
    def process_batch_result_decode(self, batch, lens):
        for req, length in zip(batch.reqs, lens):
            req.committed_len += length
            if req.finished():
                continue
""",
            at=((4, 13),),
            path=PROCESSOR,
        ),
    )
    good = (
        Example(
            """\
class Processor:
    def _resolve_spec_v2_tokens(self, batch, lens):
        for i, req in enumerate(batch.reqs):
            if req.is_retracted or req.finished():
                pass
            else:
                req.kv.committed_len += lens[i]
        for i in range(len(lens)):
            self.steps += 1
        for req in (one for one in batch.reqs if not one.finished()):
            req.steps += 1

    def process_batch_result_decode(self, batch, lens):
        total = 0
        for req, length in zip(batch.reqs, lens):
            total += length
            if self.overlap and (req.finished() or req.is_retracted):
                continue
            req.committed_len += length

    def process_prefill(self, batch):
        for req in batch.reqs:
            req.steps += 1
""",
            path=PROCESSOR,
        ),
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
        Judged("sglang 0.5.11", 1, 1),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        late = [one.late_results for one in contracts]
        self._declared = DeclaredFunctions(name for one in late for name in one.functions)
        self._checks = {check for one in late for check in one.checks if one.functions}
        self.words = (self._declared.words(),)

    def applies(self, file: File) -> bool:
        """Leaves out modules of which no function handles late results."""
        return bool(self._declared.of_file(file.identity))

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding at the first counter of each loop that is added to unasked."""
        names = self._declared.of_file(part.identity)
        for function in functions(part):
            if function.name in names:
                flow = function.flow
                for loop in function.of(cst.For):
                    over = squeezed(part.code(loop.iter))
                    # What a test has picked is asked no more.
                    is_picked = any(f".{check}" in over for check in self._checks)
                    if ".reqs" in over and not is_picked:
                        yield from self._in_loop(loop, flow, part)

    def _in_loop(self, loop: cst.For, flow: Flow, part: Part) -> Iterator[Finding]:
        targets = {node.value for node in walk(loop.target) if isinstance(node, cst.Name)}
        for node in walk(loop.body):
            if not isinstance(node, cst.AugAssign) or not flow.contains(node):
                continue
            owner = _owner(node.target)
            if owner not in targets or self._is_asked(owner, node, flow):
                continue
            yield part.finding(
                self,
                node,
                f"`{part.code(node.target)}` grows by a late result: its request may be finished",
                note=f"nothing checks that `{owner}` is still running",
                help="first skip requests for which "
                + " or ".join(f"`{check}`" for check in sorted(self._checks))
                + " holds",
            )
            return

    def _is_asked(self, owner: str, node: CSTNode, flow: Flow) -> bool:
        asked = [one.text for one in flow.known(node)]
        return any(f"{owner}.{check}" in text for text in asked for check in self._checks)


def _owner(target: CSTNode) -> str:
    """Returns the name at the head of an attribute, or "" for anything else."""
    if not isinstance(target, cst.Attribute):
        return ""
    while isinstance(target, cst.Attribute):
        target = target.value
    return target.value if isinstance(target, cst.Name) else ""
