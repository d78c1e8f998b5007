"""FM702: a guard around a call that guards itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Part


class RepeatedGuard(FunctionRule):
    """A guard around a call that guards itself.

    ## What it does
    Looks for an `if` without an `else` that does nothing but call a function which the contract's
    `[[self_guarding]]` lists, and whose test names one of its `guards`. Silent without such a
    contract.

    ## Why is this bad
    The same question is asked in two places. When the callee's answer changes (another algorithm
    relays its lengths too), the copy at the caller stays as it was, and the batches that it turns
    away keep stale values on the host.

    ## Example
    ```python
    if batch.spec_info is not None:
        self.future_map.resolve_seq_lens_cpu(batch)
    ```

    ## Use instead
    ```python
    self.future_map.resolve_seq_lens_cpu(batch)
    ```
    """

    code = "FM702"
    name = "repeated-guard"
    severity = Severity.WARNING
    seen_in = ()
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
    )
    bad = (
        Example(
            """\
class Scheduler:
    def run(self, batch):
        if self.enable_overlap and batch.spec_info is not None:
            self.future_map.resolve_seq_lens_cpu(batch)
""",
            at=((3, 9),),
        ),
    )
    good = (
        Example(
            """\
class Scheduler:
    def run(self, batch):
        if self.enable_overlap:
            self.future_map.resolve_seq_lens_cpu(batch)
"""
        ),
        Example(
            """\
class Scheduler:
    def run(self, batch):
        if batch.spec_info is not None:
            self.future_map.resolve_seq_lens_cpu(batch)
            batch.count += 1
        if batch.spec_info is None:
            batch.plan()
        else:
            self.future_map.resolve_seq_lens_cpu(batch)
"""
        ),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        self._guards = {part.call: part.guards for one in contracts for part in one.self_guarding}
        self.words = (tuple(self._guards),)

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each such `if`."""
        for node in part.nodes():
            if isinstance(node, cst.If) and node.orelse is None:
                call = _only_call(node.body)
                name = (dotted(call.func) or "").rpartition(".")[2] if call is not None else ""
                asked = [one for one in self._guards.get(name, ()) if one in _words(node, part)]
                if call is not None and asked:
                    yield part.finding(
                        self,
                        node,
                        f"this test repeats what `{name}` asks for itself",
                        note=f"it asks for `{asked[0]}`; when that changes, this test stays",
                        help=f"leave `{asked[0]}` to `{name}`",
                    )


def _only_call(body: cst.BaseSuite) -> cst.Call | None:
    if len(body.body) != 1 or not isinstance(body.body[0], cst.SimpleStatementLine):
        return None
    only, *others = body.body[0].body
    if others or not isinstance(only, cst.Expr) or not isinstance(only.value, cst.Call):
        return None
    return only.value


def _words(node: cst.If, part: Part) -> set[str]:
    """Returns the names that the test of an `if` mentions, attributes included."""
    return {one.value for one in part.nodes(node.test) if isinstance(one, cst.Name)}
