"""FM301: torch.cuda streams and events in device-agnostic code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.devices.platform import Platform, callers_choose_cuda
from fmcheck.lint.model.expressions import dotted
from fmcheck.lint.model.function import functions
from fmcheck.lint.source.globs import lies_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Module, Part

API = frozenset(
    f"torch.cuda.{name}"
    for name in (
        "Event",
        "Stream",
        "current_stream",
        "default_stream",
        "set_stream",
        "stream",
        "synchronize",
    )
)
TYPES = ("Event", "Stream")
#: Of CUDA's allocator and driver, with no equal that works everywhere: who asks them means CUDA.
CUDA_ALONE = frozenset(
    f"torch.cuda.{name}"
    for name in (
        *("CUDAGraph", "cudart", "graph", "make_graphed_callables", "memory_snapshot"),
        *("memory_stats", "reset_peak_memory_stats"),
    )
)


#: What other libraries call the module of whichever device there is.
MODULES = ("get_accelerator", "get_device_module")


class CudaApi(FunctionRule):
    """`torch.cuda.Event` and similar names in device-agnostic code.

    ## What it does
    Looks for `torch.cuda.Event`, `Stream`, `stream`, `current_stream`, `default_stream`,
    `set_stream` and `synchronize`, under any import name, in a function that also reaches the
    device module (`torch.get_device_module`), or in a folder which the contract calls
    device-agnostic. Code outside of any function is taken together: what one statement of it
    reaches, all do. A call is a warning; an annotation, an import or another mention is a note.
    Code behind a test for CUDA (`if x.is_cuda:`, `if device == "cuda":`) is left alone, and so is
    code that replaces the API by another device's, or asks CUDA's own allocator beside it, and,
    outside the contract's folders, a function that the file calls only after
    `torch.cuda.set_device`. An annotation is left alone where what it describes is created after
    such a test and, outside the contract's folders, where the function makes no stream or event by
    the device module: what it was handed may well be CUDA's.

    ## Why is this bad
    On another accelerator the call fails, or worse, it answers about a CUDA stream that nothing
    runs on: the fence that it was meant to be orders nothing. Runners are inherited by those of
    other devices, so one such line breaks them all.

    ## Example
    ```python
    device_module = torch.get_device_module(device)
    ready = torch.cuda.Event()
    ready.record(device_module.current_stream())
    ```

    ## Use instead
    ```python
    device_module = torch.get_device_module(device)
    ready = device_module.Event()
    ready.record(device_module.current_stream())
    ```
    """

    code = "FM301"
    name = "cuda-api"
    severity = Severity.WARNING
    warns_undeclared = False
    words = (
        # On one line, or where a name goes on in the next.
        (
            "cuda*tream",
            "cuda*Event",
            "cuda*synchronize",
            "cuda import",
            "cuda\n",
            "cuda*#",
            "cuda*\\",
        ),
        ("tream", "Event", "synchronize"),
    )
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/25962",
        "https://github.com/vllm-project/vllm/pull/58082",
    )

    judged = (
        Judged("sglang 0.5.23", 16, 15),
        Judged("vllm 0.20.2", 0, 0),
    )
    bad = (
        Example(
            """\
import torch

class Relay:
    def publish(self, device):
        self.module = torch.get_device_module(device)
        self.ready = torch.cuda.Event()
        self.ready.record(torch.cuda.current_stream())
""",
            at=((6, 22), (7, 27)),
        ),
        Example(
            """\
import torch
from torch.cuda import Stream as CudaStream, synchronize

def plan(device) -> CudaStream:
    side = torch.get_device_module(device).Stream()
    synchronize()
    return side
""",
            at=((2, 24), (2, 46), (4, 21), (6, 5)),
            path="sglang/srt/speculative/worker.py",
        ),
        Example(
            """\
import torch

def wait(tensor, event):
    if not tensor.is_cuda:
        event.wait()
    torch.cuda.synchronize()
""",
            at=((6, 5),),
            path="sglang/srt/managers/overlap_utils.py",
        ),
        Example(
            """\
import torch

device_module = torch.get_device_module()
ready = torch.cuda.Event()
""",
            at=((4, 9),),
        ),
        Example(
            """\
import torch

class Loader:
    def __init__(self, device):
        self.module = torch.get_device_module(device)
        self.side: torch.cuda.Stream = self.module.Stream()
        self.ready: torch.cuda.Event = (
            torch.cuda.Event() if device.type == "cuda" else self.module.Event()
        )
""",
            at=((6, 20), (7, 21)),
        ),
        Example(
            """\
import torch

def time_layer(layer, device):
    torch.get_device_module(device).synchronize()
    return torch.cuda.Event(enable_timing=True)

def on_one(layer, device):
    torch.cuda.set_device("cuda:0")
    time_layer(layer, device)

def on_any(layer, device):
    if device.type == "cuda":
        torch.cuda.set_device(device)
    time_layer(layer, device)
""",
            at=((5, 12),),
        ),
    )
    good = (
        Example(
            """\
import torch
from torch.cuda import Event

device_module = torch.get_device_module()

def time_kernel():
    torch.cuda.synchronize()

class Timer:
    done = Event()
"""
        ),
        Example(
            """\
import torch

def peak(run):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.memory_stats()["allocated_bytes.all.peak"]
""",
            path="sglang/srt/speculative/dflash_worker_v2.py",
        ),
        Example(
            """\
import torch

def wait(device):
    torch.get_device_module(device).synchronize()

def time_kernel():
    torch.cuda.synchronize()
"""
        ),
        Example(
            """\
import torch

def time_kernel(device):
    torch.get_device_module(device).synchronize()
    return torch.cuda.Event()
""",
            path="sglang/jit_kernel/benchmark/bench_norm.py",
        ),
        Example(
            """\
import torch

def publish(device):
    return torch.get_device_module(device).Event()
"""
        ),
        Example(
            """\
import torch

def publish():
    return torch.cuda.Event()
"""
        ),
        Example(
            """\
import torch

def wait(tensor, event, device):
    if not tensor.is_cuda:
        return torch.get_device_module(device).synchronize()
    torch.cuda.current_stream().wait_event(event)
"""
        ),
        Example(
            """\
import torch

def sync(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    else:
        torch.get_device_module(device).synchronize()
"""
        ),
        Example(
            """\
import torch

def graph(device):
    torch.get_device_module(device).synchronize()
    return torch.cuda.CUDAGraph()
"""
        ),
        Example(
            """\
import torch

def time_layer(layer, device):
    torch.get_device_module(device).synchronize()
    return torch.cuda.Event(enable_timing=True)

def time_layers(layers, device):
    for layer in layers:
        time_layer(layer, device)

def main(layers, args):
    torch.cuda.set_device("cuda:0")
    time_layers(layers, args.device)
"""
        ),
        Example(
            """\
import torch

def run_on_xpu(device):
    real = torch.cuda.Stream
    torch.cuda.Stream = torch.get_device_module(device).Stream
    return real
"""
        ),
        Example(
            """\
import threading
import torch

def store(values, rows, device, side: torch.cuda.Stream):
    torch.get_device_module(device).current_stream().wait_stream(side)
    return values[rows], threading.Event()
"""
        ),
        Example(
            """\
import torch

def external_event(device_module) -> torch.cuda.Event | None:
    if not is_cuda():
        return None
    return device_module.Event(external=True)

class Worker:
    def __init__(self, device):
        self.ready: torch.cuda.Event | None = torch.cuda.Event() if is_cuda() else None
""",
            path="sglang/srt/managers/utils.py",
        ),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        self._agnostic = [glob for one in contracts for glob in one.device.agnostic]
        self._cuda_only = [glob for one in contracts for glob in one.device.cuda_only]
        named = (name for one in contracts for name in one.device.device_modules)
        self._device_modules = frozenset((*MODULES, *named))
        self._platform = Platform({name for one in contracts for name in one.device.guards})

    def applies(self, file: File) -> bool:
        """Leaves out what is for CUDA alone, and what is neither agnostic nor names its module."""
        if lies_in(file.identity, self._cuda_only):
            return False
        return file.holds(self._device_modules) or lies_in(file.identity, self._agnostic)

    def _is_agnostic(
        self, module: Module, mentioned: Iterable[str], is_within: bool = True
    ) -> bool:
        """Tells whether code that mentions this is for every device; `is_within` a definition."""
        if not CUDA_ALONE.isdisjoint(mentioned):
            return False
        return (
            lies_in(module.identity, self._agnostic)
            or self._reaches_module(mentioned)
            or (not is_within and self._reaches_at_top(module))
        )

    def _makers(self, part: Part) -> Iterator[CSTNode]:
        """Yields the calls that make a stream or an event by the device module."""
        for node in part.nodes():
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                held = node.func.value
                name = dotted(held.func if isinstance(held, cst.Call) else held) or ""
                # What is no call and no import may be the device module by another name.
                is_own = isinstance(held, (cst.Attribute, cst.Name)) and (
                    name.partition(".")[0] not in part.module.imported
                )
                if node.func.attr.value in TYPES and (is_own or self._reaches_module([name])):
                    yield node

    def _reaches_module(self, mentioned: Iterable[str]) -> bool:
        return _reach(mentioned, self._device_modules)

    def _reaches_at_top(self, module: Module) -> bool:
        """Tells whether a module reaches the device module outside of all definitions."""
        known = module.memo.setdefault("reaches_at_top", {})
        if self._device_modules not in known:
            known[self._device_modules] = any(
                self._reaches_module([name for _, name in _uses(part)])
                for part in module.parts_with((tuple(self._device_modules),))
                if not _is_within_definition(part)
            )
        found: bool = known[self._device_modules]
        return found

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each use of the API that no test for CUDA guards."""
        mentions = list(_uses(part))
        names = [name for _, name in mentions]
        if not self._is_agnostic(part.module, names, _is_within_definition(part)):
            return
        uses = [(node, api) for node, api in mentions if api in API]
        is_agnostic = lies_in(part.identity, self._agnostic)
        if not uses or not (
            is_agnostic
            or self._reaches_module(dotted(node) or "" for node, _ in mentions)
            or _names_any(part.module.text, self._device_modules)
        ):
            return
        guarded = self._platform.guarded(part)
        annotations = _below(part, cst.Annotation)
        makers = set(self._makers(part))
        exempt = guarded | _replaced(part)
        if not is_agnostic:
            exempt |= _after_choice(part)
        if not makers and not is_agnostic:
            exempt |= annotations
        elif not makers - guarded:
            exempt |= _true_annotations(part, guarded)
        called = {node.func for node in part.nodes() if isinstance(node, cst.Call)}
        for node, api in uses:
            if node in exempt:
                continue
            name = api.rpartition(".")[2]
            is_call = node in called and node not in annotations
            yield part.finding(
                self,
                node,
                f"`{api}` in device-agnostic code",
                help=f"use `torch.get_device_module(device).{name}`"
                if is_call
                else "use a device-neutral type such as `torch.Event` or `torch.Stream`"
                if name in TYPES
                else f"use `torch.get_device_module(device)` to get `{name}`",
                severity=Severity.WARNING if is_call else Severity.NOTE,
            )


def _reach(names: Iterable[str], device_modules: frozenset[str]) -> bool:
    return any(not device_modules.isdisjoint(name.split(".")) for name in names)


def _names_any(text: str, words: Iterable[str]) -> bool:
    return re.search(rf"\b(?:{'|'.join(map(re.escape, words))})\b", text) is not None


def _is_within_definition(part: Part) -> bool:
    """Tells whether a part is a function or class, a part of one, or an import."""
    node = part.node
    if isinstance(node, cst.SimpleStatementLine):
        return part.is_nested or isinstance(node.body[0], (cst.Import, cst.ImportFrom))
    return part.is_nested or isinstance(node, (cst.FunctionDef, cst.ClassDef))


def _uses(part: Part) -> Iterator[tuple[CSTNode, str]]:
    """Yields each mention of a dotted name with what it stands for, imports included."""
    imported = _below(part, cst.ImportAlias)
    for node in part.nodes():
        if isinstance(node, cst.ImportFrom) and node.module is not None:
            if not isinstance(node.names, cst.ImportStar):
                for alias in node.names:
                    yield alias, f"{dotted(node.module)}.{dotted(alias.name)}"
        elif isinstance(node, (cst.Name, cst.Attribute)) and node not in imported:
            name = dotted(node)
            if name is not None:
                yield node, part.module.resolve(name)


def _after_choice(part: Part) -> set[CSTNode]:
    """Returns what only functions call that have chosen a CUDA device."""
    return {node for one in functions(part) if callers_choose_cuda(one) for node in one.nodes}


def _replaced(part: Part) -> set[CSTNode]:
    """Returns mentions of names that this part assigns to: a shim for another device."""
    targets = [
        target.target
        for node in part.nodes()
        if isinstance(node, cst.Assign)
        for target in node.targets
    ]
    names = {dotted(target) for target in targets if isinstance(target, cst.Attribute)}
    return {node for node in part.nodes() if dotted(node) in names and dotted(node)}


def _true_annotations(part: Part, guarded: set[CSTNode]) -> set[CSTNode]:
    """Returns annotations of what is only made where a test for CUDA held."""
    true: set[CSTNode] = set()
    for node in part.nodes():
        if isinstance(node, cst.AnnAssign) and node.value is not None:
            if not guarded.isdisjoint(part.nodes(node.value)):
                true.update(part.nodes(node.annotation))
        elif isinstance(node, cst.FunctionDef) and node.returns is not None:
            true.update(part.nodes(node.returns) if node.body.body[-1] in guarded else ())
    return true


def _below(part: Part, kind: type[CSTNode]) -> set[CSTNode]:
    return {inner for node in part.nodes() if isinstance(node, kind) for inner in part.nodes(node)}
