"""What lets vLLM's own classes run on a CPU: Triton interpreted, streams followed, nothing pinned.

Streams and events are those of `torch.cpu`; host and device are one memory. Import it before vLLM.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from typing import Any
from unittest.mock import MagicMock

import torch
import triton
import triton.language as tl
import vllm

CPU = torch.device("cpu")


def given(function: Any, **arguments: Any) -> Any:
    """Calls a function with those arguments that this release has."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})


def put_triton_in() -> None:
    """Lets vLLM find a Triton, whose kernels are interpreted: it looks for a device first."""
    package = types.ModuleType("vllm.triton_utils")
    package.__path__ = [os.path.join(os.path.dirname(vllm.__file__), "triton_utils")]
    extra = MagicMock()
    package.__dict__.update(
        HAS_TRITON=True,
        triton=triton,
        tl=tl,
        tldevice=extra,
        LOG2E=1.44269504,
        LOGE2=0.6931471805599453,
        gluon=None,
        gl=None,
        aggregate=lambda one: one,
        use_tensor_descriptor=lambda *_, **__: False,
    )
    sys.modules["vllm.triton_utils"] = package


def put_streams_in() -> None:
    """Lets `torch.cuda` make the streams and events of `torch.cpu`, which fmcheck follows."""
    torch.cuda.Stream = lambda *_, **__: torch.cpu.Stream()
    torch.cuda.Event = lambda *_, **__: torch.cpu.Event()
    torch.Event = lambda *_, **__: torch.cpu.Event()
    torch.cuda.current_stream = lambda *_: torch.cpu.current_stream()
    torch.cuda.stream = lambda one: torch.cpu.stream(one)


put_triton_in()
# Up to 0.19 vLLM imports it, to keep grammars on the disk.
sys.modules.setdefault("diskcache", MagicMock())

import vllm.utils.torch_utils as torch_utils  # noqa: E402

torch_utils.PIN_MEMORY = False  # pinning asks for an accelerator; others import the name

torch.Tensor.pin_memory = lambda self, *_: self
_tensor = torch.tensor
torch.tensor = lambda *data, pin_memory=False, **kind: _tensor(*data, **kind)

_to = torch.Tensor.to


@functools.wraps(_to)  # fmcheck knows calls by their names
def _to_other_memory(self: torch.Tensor, *where: Any, **how: Any) -> torch.Tensor:
    """Copies to the host as from a device, though both are memory of a CPU."""
    if where and isinstance(where[0], str):
        how["copy"] = True
    return _to(self, *where, **how)


torch.Tensor.to = _to_other_memory
