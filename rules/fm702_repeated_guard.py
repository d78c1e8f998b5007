"""FM702: a guard around a call that guards itself."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import dotted
from fmcheck.lint.nodes import walk as all_below
from fmcheck.lint.rule import Example, Judged, Rule, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import libcst
    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts


class RepeatedGuard(Rule):
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
    scope = Scope.FUNCTION
    # The names are the contracts': see `concerns`.
    needles: tuple[tuple[bytes, ...], ...] = ()
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
        self.needles = (tuple(name.encode() for name in self._guards),)

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks without an `if` of one statement that makes such a call."""
        return any(
            isinstance(inner, ast.If)
            and len(inner.body) == 1
            and isinstance(inner.body[0], ast.Expr)
            and isinstance(inner.body[0].value, ast.Call)
            and getattr(inner.body[0].value.func, "attr", "") in self._guards
            for inner in all_below(node)
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each such `if`."""
        for node in block.nodes():
            if isinstance(node, cst.If) and node.orelse is None:
                call = _only_call(node.body)
                name = (dotted(call.func) or "").rpartition(".")[2] if call is not None else ""
                asked = [one for one in self._guards.get(name, ()) if one in _words(node, block)]
                if call is not None and asked:
                    yield block.finding(
                        self,
                        node,
                        f"`{name}` asks for `{asked[0]}` itself: this test repeats it, and will "
                        "not follow when it changes",
                        help=f"leave `{asked[0]}` to `{name}`",
                    )


def _only_call(body: CSTNode) -> libcst.Call | None:
    statements = list(getattr(body, "body", ()))
    if len(statements) != 1 or not isinstance(statements[0], cst.SimpleStatementLine):
        return None
    only, *others = statements[0].body
    is_call = isinstance(only, cst.Expr) and isinstance(only.value, cst.Call) and not others
    return only.value if is_call else None


def _words(node: libcst.If, block: Block) -> set[str]:
    """Returns the names that the test of an `if` mentions, attributes included."""
    return {one.value for one in block.nodes(node.test) if isinstance(one, cst.Name)}
