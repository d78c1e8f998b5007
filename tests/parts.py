"""Source as rules see it, for the tests of the model."""

from __future__ import annotations

import textwrap

from fmcheck.lint.model.function import Function, functions
from fmcheck.lint.source.file import File
from fmcheck.lint.source.module import Module


def module_of(source: str, path: str = "x.py") -> Module:
    """Returns a module of this source."""
    source = textwrap.dedent(source)
    return Module(File(path, source))


def function_of(source: str, path: str = "x.py") -> Function:
    """Returns the only function of some source."""
    (function,) = functions_of(source, path)
    return function


def functions_of(source: str, path: str = "x.py") -> list[Function]:
    """Returns the functions of some source, in order."""
    module = module_of(source, path)
    return [one for part in module.parts_with(()) for one in functions(part)]
