"""The guard's kernels as binaries for devices that are not here, with what registers they take.

    make kernels

compiles each kernel, as the watch launches it, for `sm_80`, `sm_90` and `gfx942`, and writes the
table of `docs/gpu.md`. Triton needs no device for that. What a kernel is compiled for comes from
launches: a watched buffer on a CPU is used in each way, and what it would launch is taken down.
Needs Triton, which SGLang's environment has (`python -m tests.sglang_env`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"
#: Name, backend, architecture, threads that run in step.
TARGETS = (
    ("sm_80", "cuda", 80, 32),
    ("sm_90", "cuda", 90, 32),
    ("gfx942", "hip", "gfx942", 64),
)
#: Buffers that are used: name, dtype, columns (0: one value a row) and bound.
BUFFERS = (
    ("tokens", "int64", 0, (">=", 0)),
    ("lengths", "int32", 0, (">", 0)),
    ("hidden states", "bfloat16", 700, None),
    ("odds", "float32", 8, (">=", 0)),
)
_TYPES = {
    "torch.int8": "i8",
    "torch.int16": "i16",
    "torch.int32": "i32",
    "torch.int64": "i64",
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.float32": "fp32",
    "torch.float64": "fp64",
    "torch.bool": "i1",
}


@dataclass(frozen=True)
class Launch:
    """A kernel as it was launched: the type of each argument, and the constants it is made with."""

    kernel: str
    buffer: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[str, ...]

    @property
    def made_with(self) -> str:
        """The constants that are not false, as a table shows them."""
        reported = [key if value is True else f"{key}={value}" for key, value in self.constants]
        return " ".join(one for one in reported if not one.endswith("=False"))


@dataclass(frozen=True)
class Binary:
    """What a compiler made of a launch: registers of a thread, spilt bytes or registers, size."""

    kernel: str
    buffer: str
    made_with: str
    target: str
    registers: int
    spills: int
    size: int


def launches() -> list[Launch]:
    """Uses watched buffers in each way, and returns what would have been launched, each once."""
    import torch

    from fmcheck.runtime.device import clock_kernels, kernels
    from fmcheck.runtime.relay import relay_tensor
    from fmcheck.runtime.session import probes

    probes.load_device("cuda")
    seen: dict[Launch, None] = {}
    with _taken_down(kernels, seen), _taken_down(clock_kernels, seen):
        wants, relay_tensor.wants_guard = relay_tensor.wants_guard, lambda tensor: True
        try:
            for name, dtype, width, bound in BUFFERS:
                with _called(seen, name):
                    _use(getattr(torch, dtype), width, bound)
        finally:
            relay_tensor.wants_guard = wants
    return list(seen)


def kernel_names() -> set[str]:
    """Returns the kernels of fmcheck that the host launches."""
    from fmcheck.runtime.device import clock_kernels, kernels

    return {name for module in (kernels, clock_kernels) for name in _kernels_of(module)}


def _kernels_of(module: Any) -> dict[str, Any]:
    from triton.runtime.jit import JITFunction

    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, JITFunction) and not name.startswith("_")
    }


def _use(dtype: Any, width: int, bound: Any) -> None:
    import torch

    from fmcheck.runtime.relay.owners import Owners
    from fmcheck.runtime.relay.relay_tensor import relay_tensor
    from fmcheck.runtime.relay.row_layout import Layout
    from fmcheck.runtime.session.watch import Watch

    watch = Watch([], streams="tracked")
    watch.start()
    try:
        owners = Owners()
        plain = torch.zeros((600, width) if width else (600,), dtype=dtype)
        streams = watch.services.streams
        layout = Layout(sink_holds=None if bound is None else 1)
        reported = ("Map.buf", "m:Map", watch.tally, bound, (0,), owners, "always", streams, layout)
        buf = relay_tensor(plain, *reported)
        buf._relay.lay_poison()
        owners.hand_out([1, 2], ["first", "second"])
        batch = torch.tensor([1, 2])
        with torch.cpu.stream(torch.cpu.Stream()):
            buf[batch] = torch.ones_like(plain[batch])
        _ = buf[batch]
        owners.take_back([1, 2])
    finally:
        watch.stop()


_buffer_in_use: list[str] = []


@contextmanager
def _called(seen: dict[Launch, None], name: str) -> Iterator[None]:
    _buffer_in_use.append(name)
    try:
        yield
    finally:
        _buffer_in_use.pop()


@contextmanager
def _taken_down(module: Any, seen: dict[Launch, None]) -> Iterator[None]:
    """Replaces the kernels of a module by what takes their launches down."""
    found = _kernels_of(module)

    class Down:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **kwargs: seen.setdefault(_launch(self.kernel, args, kwargs))

    for name, kernel in found.items():
        setattr(module, name, Down(kernel))
    try:
        yield
    finally:
        for name, kernel in found.items():
            setattr(module, name, kernel)


def _launch(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    """Takes down what Triton's own launcher would compile for these arguments."""
    given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    signature, constants, aligned = [], [], []
    for param in kernel.params:
        value = given[param.name]
        if param.is_constexpr:
            signature.append((param.name, "constexpr"))
            constants.append((param.name, value))
        elif hasattr(value, "dtype"):
            signature.append((param.name, f"*{_TYPES[str(value.dtype)]}"))
            if not param.do_not_specialize_on_alignment:
                aligned.append(param.name)  # as an allocator of a device hands memory out
        else:
            assert param.annotation_type, f"{kernel.__name__}: {param.name} makes other kernels"
            signature.append((param.name, param.annotation_type))
    return Launch(
        kernel.__name__, _buffer_in_use[-1], tuple(signature), tuple(constants), tuple(aligned)
    )


def compiled(launch: Launch, target: tuple[str, str, Any, int]) -> Binary:
    """Compiles a launch for a target and reads what the binary says of itself."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from fmcheck.runtime.device import clock_kernels, kernels

    name, backend, arch, warp = target
    kernel = {**_kernels_of(kernels), **_kernels_of(clock_kernels)}[launch.kernel]
    places = {param: (place,) for place, param in enumerate(kernel.arg_names)}
    source = ASTSource(
        kernel,
        dict(launch.signature),
        {places[key]: value for key, value in launch.constants},
        {places[key]: [["tt.divisibility", 16]] for key in launch.aligned},
    )
    made = triton.compile(source, target=GPUTarget(backend, arch, warp))
    read = _of_nvidia if backend == "cuda" else _of_amd
    registers, spills, size = read(made)
    return Binary(launch.kernel, launch.buffer, launch.made_with, name, registers, spills, size)


def _of_nvidia(made: Any) -> tuple[int, int, int]:
    """Registers of a thread, and the bytes of its stack: where ptxas puts what it spills."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    fields = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", said))
    return int(fields["REG"]), int(fields["STACK"]) + int(fields["LOCAL"]), len(made.asm["cubin"])


def _of_amd(made: Any) -> tuple[int, int, int]:
    """Vector registers of a thread, and how many registers of both kinds were spilt."""
    text = made.asm["amdgcn"]
    fields = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count):\s+(\d+)", text))
    spills = int(fields["vgpr_spill_count"]) + int(fields["sgpr_spill_count"])
    return int(fields["vgpr_count"]), spills, len(made.asm["hsaco"])


def every_binary() -> Iterator[Binary]:
    """Compiles all launches for all targets."""
    for launch in launches():
        for target in TARGETS:
            yield compiled(launch, target)


@dataclass(frozen=True)
class Figure:
    """A row of the table: a kernel on a target, the most that any of its binaries takes."""

    kernel: str
    target: str
    binaries: int
    registers: int
    spills: int


def figures(binaries: list[Binary]) -> list[Figure]:
    """Sums binaries up, kernel by kernel and target by target."""
    keys = sorted({(one.kernel, one.target) for one in binaries}, key=lambda key: (key[0], key[1]))
    rows = []
    for kernel, target in keys:
        own = [one for one in binaries if (one.kernel, one.target) == (kernel, target)]
        most = max(one.registers for one in own)
        rows.append(Figure(kernel, target, len(own), most, max(one.spills for one in own)))
    return rows


def table(rows: list[Figure]) -> str:
    """Returns the table as the page has it."""
    lines = [
        "| kernel | target | binaries | most registers | most spills |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{one.kernel}` | `{one.target}` | {one.binaries} | {one.registers} | {one.spills} |"
        for one in rows
    ]
    return "\n".join(lines)


def kept(page: Path = PAGE) -> list[Figure]:
    """Returns the table that the page has."""
    text = page.read_text().partition(BEGIN)[2].partition(END)[0]
    found = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \|$", text, re.M)
    return [Figure(name, target, *map(int, rest)) for name, target, *rest in found]


def made_elsewhere() -> list[Binary]:
    """Compiles all in SGLang's environment, which has Triton, and returns what came of it.

    Raises:
        RuntimeError: with what was said, if it failed there.
    """
    from tests.sglang_env import STUBS, sglang_python

    dropped = ("PYTEST_", "TRITON_INTERPRET")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(STUBS)])
    command = [str(sglang_python()), "-m", "tests.gpu.binaries", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the kernels could not be compiled:\n{done.stdout}{done.stderr}")
    return [Binary(**json.loads(line)) for line in done.stdout.splitlines()]


def main() -> int:
    """Writes the page's table, or with `--json` prints a line a binary."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", action="store_true", help="here: print a line a binary")
    if options.parse_args().json:
        for one in every_binary():
            print(json.dumps(asdict(one)), flush=True)
        return 0
    try:
        binaries = made_elsewhere()
    except Exception as err:
        print(f"tests.gpu.binaries: {err}", file=sys.stderr)
        return 2
    text = PAGE.read_text()
    made = table(figures(binaries))
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
