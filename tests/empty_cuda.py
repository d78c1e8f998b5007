"""Empty libraries in place of CUDA's, so that a CUDA build of torch runs on a CPU without them.

They have the functions that torch's own libraries name. Each fails, as on a machine without a GPU,
and torch tells its errors as it does there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: CUDA's number for "no device": what a function returns that returns how a call went.
_NO_DEVICE = 100
#: Those that return a text. torch reads it where a call failed: a number would be no address.
_TEXTS = re.compile(
    r"(cuda|cudnn|cusparse|nvrtc|nccl)GetErrorString|cudaGetErrorName|ncclGetLastError"
    r"|cublas\w*GetStatus(String|Name)"
)
TEXT = "no CUDA-capable device is detected"


class NoCompilerError(Exception):
    """There is nothing here to make a library with."""


def make_libraries(torch: Path, into: Path) -> None:
    """Makes a library for each of CUDA's that the libraries in a folder, torch's, ask for.

    Raises:
        NoCompilerError: if a command that this needs is not installed.
    """
    into.mkdir(exist_ok=True)
    libraries = [str(path) for path in torch.glob("*.so*")]
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", _said_by("readelf", "-d", *libraries)))
    needed = {name for name in needed if re.match(r"lib(cu|nv|nccl)", name)}
    wanted = set(re.findall(r" U (\w+)(?:@(\S+))?$", _said_by("nm", "-D", *libraries), re.M))
    cuda = {pair for pair in wanted if pair[1] in needed or re.match(r"_*(nv|nccl|cu)", pair[0])}
    for name in needed:
        version = "NVSHMEM" if "nvshmem" in name else name
        mine = {symbol for symbol, of in cuda if of == version}
        # What asks for no version takes it from any library.
        mine |= {symbol for symbol, of in cuda if not of} if "nccl" in name else set()
        source, script = into / "empty.c", into / "empty.map"
        source.write_text("".join(map(_function, sorted(mine))))
        script.write_text(f"{version} {{ global: *; }};\n")
        versioned = [f"-Wl,--version-script={script}"] if "nccl" not in name else []
        output = ["-o", str(into / name), f"-Wl,-soname,{name}"]
        _said_by("cc", "-w", "-shared", "-fPIC", *output, *versioned, str(source))


def _function(symbol: str) -> str:
    """Returns a function in C that fails, or that says why another one did."""
    if _TEXTS.fullmatch(symbol):
        return f'const char *{symbol}(void) {{ return "{TEXT}"; }}\n'
    return f"int {symbol}(void) {{ return {_NO_DEVICE}; }}\n"


def _said_by(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise NoCompilerError(f"no `{command[0]}` here, for empty libraries in place of CUDA's")
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
