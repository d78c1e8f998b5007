"""FM701: a hook under a name that nobody calls any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import ClassRule, Example, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted, last_name
from fmcheck.lint.source.globs import fits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Family, Part


class OldHookName(ClassRule):
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
        self.words = (tuple(self._renamed),)

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding for each definition and call under an old name."""
        for part in family.near(self.words):
            if part.is_nested and isinstance(part.node, cst.FunctionDef):
                yield from self._defined(part.node, [family.name, *family.bases], part)
            for node in part.nodes():
                if isinstance(node, cst.ClassDef):
                    names = [node.name.value, *(last_name(base.value) for base in node.bases)]
                    for statement in node.body.body:
                        yield from self._defined(statement, names, part)
                elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                    renamed = self._renamed.get(node.func.attr.value)
                    receiver = (dotted(node.func.value) or "").rpartition(".")[2]
                    if renamed is not None and fits(receiver, renamed.receivers):
                        yield self._finding(node.func.attr, "is called", part)

    def _defined(
        self, statement: cst.CSTNode, names: Sequence[str], part: Part
    ) -> Iterator[Finding]:
        if isinstance(statement, cst.FunctionDef):
            renamed = self._renamed.get(statement.name.value)
            if renamed is not None and any(fits(name, renamed.classes) for name in names):
                yield self._finding(statement.name, "is defined", part)

    def _finding(self, name: cst.Name, verb: str, part: Part) -> Finding:
        new = self._renamed[name.value].new
        return part.finding(
            self,
            name,
            f"`{name.value}` {verb} here, but the hook's name is `{new}`",
            note="it is never reached",
            help=f"call it `{new}`",
        )
