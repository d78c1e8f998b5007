"""FM701: a hook under a name that nobody calls any more."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import dotted, fits
from fmcheck.lint.nodes import walk as all_below
from fmcheck.lint.rule import Example, Judged, Rule, Scope
from fmcheck.lint.words import whole_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import libcst

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts


class OldHookName(Rule):
    """A hook is defined, or called, under a name that has been replaced.

    ## What it does
    Looks for the old names that the contract's `[[renamed]]` lists: for a method of that name in a
    class whose own name or whose base fits `classes`, and for a call of it on a name that fits
    `receivers`. The same name elsewhere is somebody else's, and left alone. Silent without such a
    contract.

    ## Why is this bad
    The base class has an empty default under the new name. A worker that still has the old one
    overrides nothing: no error, the hook is just never called, and what it was to adapt (a number
    of draft steps, say) stays as it was at start.

    ## Example
    ```python
    class TreeWorker(BaseSpecWorker):
        def on_verify_complete(self, counts): ...
    ```

    ## Use instead
    ```python
    class TreeWorker(BaseSpecWorker):
        def on_verify_complete_cpu(self, counts): ...
    ```
    """

    code = "FM701"
    name = "old-hook-name"
    severity = Severity.ERROR
    scope = Scope.CLASS
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
class TreeWorker(BaseSpecWorker):
    def on_verify_complete(self, counts):
        self.controller.on_verify_complete(counts)
""",
            at=((2, 9),),
        ),
        Example(
            """\
class Processor:
    def finish(self, counts):
        self.model_worker.on_verify_complete(counts)
""",
            at=((3, 27),),
        ),
        Example(
            """\
class Mine(Hooks):
    def after(self):
        pass
""",
            at=((2, 9),),
            contract="""\
engine.name = "mine"
[[renamed]]
old = "after"
new = "after_step"
classes = ["Hooks"]
""",
        ),
    )
    good = (
        Example(
            """\
class TreeWorker(BaseSpecWorker):
    def on_verify_complete_cpu(self, counts):
        self.controller.on_verify_complete(counts)
"""
        ),
        Example(
            """\
class AdaptiveController:
    def on_verify_complete(self, counts):
        self.params.on_verify_complete(counts)
"""
        ),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        self._renamed = {part.old: part for one in contracts for part in one.renamed}
        self.needles = (tuple(name.encode() for name in self._renamed),)

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for an old name that is no part of another one."""
        return any(True for name in self._renamed for _ in whole_words(name, text))

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks that neither define nor call an old name."""
        return any(
            getattr(inner, "name", getattr(inner, "attr", "")) in self._renamed
            for inner in all_below(node)
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Attribute))
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each definition and call under an old name."""
        for node in block.nodes():
            if isinstance(node, cst.ClassDef):
                yield from self._defined(node, block)
            elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                renamed = self._renamed.get(node.func.attr.value)
                receiver = (dotted(node.func.value) or "").rpartition(".")[2]
                if renamed is not None and fits(receiver, renamed.receivers):
                    yield self._finding(node.func.attr, "is called", block)

    def _defined(self, node: libcst.ClassDef, block: Block) -> Iterator[Finding]:
        bases = [(dotted(base.value) or "").rpartition(".")[2] for base in node.bases]
        for statement in node.body.body:
            if isinstance(statement, cst.FunctionDef):
                renamed = self._renamed.get(statement.name.value)
                if renamed is not None and any(
                    fits(name, renamed.classes) for name in (node.name.value, *bases)
                ):
                    yield self._finding(statement.name, "is defined", block)

    def _finding(self, name: libcst.Name, verb: str, block: Block) -> Finding:
        new = self._renamed[name.value].new
        return block.finding(
            self,
            name,
            f"`{name.value}` {verb} here, and the hook's name is `{new}`: it is never reached",
            help=f"call it `{new}`",
        )
