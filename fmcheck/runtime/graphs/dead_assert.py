"""FR602, dead assert: an async assert that a compiled function asks for and its graph has not.

AOTAutograd drops an async assert that has no message, for FX does not list it as impure. So the
graph that Dynamo traced is held against the one that AOTAutograd hands to the compiler (the
backends `aot_eager` and `inductor`, and any that is made with `aot_autograd`). Only a graph with an
async assert in it is looked at; what goes wrong in here is a note, and never the user's error.

Relied on in torch 2.11 to 2.13: `torch._dynamo.backends.common.aot_module_simplified` and its
arguments `fw_compiler` and `inference_compiler`.
"""

from __future__ import annotations

import copy
import functools
import os
import re
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from fmcheck.finding import CHECKS, Access, Site, Violation
from fmcheck.runtime.core.containment import broke, contained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from fmcheck.runtime.core.tally import Tally

    Undo = Callable[[], None]

#: The module whose import makes the check take hold.
HOOKED = "torch._dynamo.backends.common"
_ENTRY = "aot_module_simplified"
_COMPILERS = ("fw_compiler", "inference_compiler")
_ASSERT = re.compile(r"_assert_async\b")
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def watch_asserts(common: ModuleType, tally: Tally) -> Undo:
    """Wraps AOTAutograd's entrance; returns what puts it back.

    Raises:
        AttributeError: if this release of torch has no such entrance.
    """
    original = getattr(common, _ENTRY)

    @functools.wraps(original)
    def aot_module_simplified(mod: Any, args: Any, *rest: Any, **options: Any) -> Any:
        asked = _asserts(mod, tally) if tally.active else ()
        if not asked or rest:
            return original(mod, args, *rest, **options)
        heard = options
        with contained(tally, "FR602"):
            heard = _listening(options, asked, tally)
        with _uncached():
            return original(mod, args, **heard)

    setattr(common, _ENTRY, aot_module_simplified)
    return lambda: setattr(common, _ENTRY, original)


def gone(asked: Iterable[Site], left: Iterable[Site]) -> tuple[Site, ...]:
    """Returns the sites of the asserts that were asked for and are not left."""
    missing = Counter(asked)
    missing.subtract(Counter(left))
    return tuple(site for site, count in missing.items() if count > 0)


def _listening(options: dict[str, Any], asked: tuple[Site, ...], tally: Tally) -> dict[str, Any]:
    """Returns the options with compilers that look at the graph before they compile it."""
    made = dict(options)
    for name in _COMPILERS:
        compiler = options.get(name)
        if compiler is None:
            continue
        inner = getattr(compiler, "compiler_fn", None)
        if inner is None:
            made[name] = _looking(compiler, asked, tally)
        else:  # inductor's, which AOTAutograd knows by its class
            made[name] = copy.copy(compiler)
            made[name].compiler_fn = _looking(inner, asked, tally)
    return made


def _looking(compiler: Any, asked: tuple[Site, ...], tally: Tally) -> Any:
    @functools.wraps(compiler)
    def look_and_compile(graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            for site in gone(asked, _asserts(graph, tally)):
                _report(site, tally)
        except Exception as err:
            broke(tally, "FR602", err)
        return compiler(graph, *args, **kwargs)

    return look_and_compile


def _uncached() -> Any:
    """AOTAutograd's cache is passed by: a hit makes no graph that could be looked at.

    Inductor's own cache, the one that saves the seconds, stays on.
    """
    try:
        import torch._functorch.config as config

        return config.patch(enable_autograd_cache=False)
    except Exception:
        return nullcontext()


def _asserts(graph: Any, tally: Tally) -> tuple[Site, ...]:
    """Returns the site of each async assert in a graph, those of inner graphs included."""
    try:
        return tuple(
            _site(node)
            for part in graph.modules()
            if hasattr(part, "graph")
            for node in part.graph.nodes
            if node.op == "call_function" and _ASSERT.search(_name(node.target))
        )
    except Exception as err:
        broke(tally, "FR602", err)
        return ()


def _name(target: Any) -> str:
    return str(getattr(target, "__name__", target))


def _site(node: Any) -> Site:
    """Returns the line of source that the node was traced from, innermost."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return Site("<unknown>", 0, "<unknown>")
    last = frames[-1]
    caller = _made(frames[-2]) if len(frames) > 1 else None
    return Site(last["path"], int(last["line"]), last["function"], caller)


def _made(frame: re.Match[str]) -> Site:
    return Site(frame["path"], int(frame["line"]), frame["function"])


def _report(site: Site, tally: Tally) -> None:
    violation = Violation(
        code="FR602",
        name=CHECKS["FR602"],
        buffer=site.function,
        access=Access("assert", site),
        test=tally.test,
        device="any",
        pid=os.getpid(),
        notes=("the traced graph has this assert but the compiled one does not: it never fires",),
    )
    with tally.lock:
        if violation.key not in tally.all:  # once a function, however often it is compiled again
            tally.report(violation)
