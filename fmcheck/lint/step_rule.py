"""Rules about functions that run in each step of a model, as their names and files say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint.model.steps import SERVES, STEP, is_beside
from fmcheck.lint.rule import FunctionRule

if TYPE_CHECKING:
    from fmcheck.lint.source.file import File


class StepRule(FunctionRule):
    """A rule about the steps of a model: of no file that prepares data, trains or looks at one."""

    judges = STEP

    def applies(self, file: File) -> bool:
        """Tells whether a file runs a model, by its path."""
        return not is_beside(file.identity)


class ServingRule(StepRule):
    """A rule about steps that are short: a wait is a large part of one where tokens are decoded."""

    def applies(self, file: File) -> bool:
        """Tells whether a file decodes tokens, by words of caches and batches."""
        return file.holds(SERVES) and super().applies(file)
