"""Programs over torch's public surface that have nothing to do with a relay, a fill or a stream.

`python -m tests.unrelated MODE,... [PROGRAM ...]` runs each of them bare, then, for each MODE,
watched with streams followed in it while a relay buffer lives in the process, then inside a virtual
stream, and prints as JSON, by mode, what differs: results bit for bit, and exceptions by type and
text.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import functools
import gc
import hashlib
import io
import json
import operator
import pickle
import random
import sys
import tempfile
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAMS: dict[str, Callable[[], Any]] = {}
#: They read on one thread what another made, which streams of a device would have to order.
CROSSING: set[str] = set()
#: torch itself takes another formula for them, with other last bits, while any mode is on, the last
#: while a function mode is: where streams are followed they are held against modes that do nothing.
BY_MODE = {"linear_algebra", "backward_formulas", "attention"}


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    """Adds a program."""
    PROGRAMS[function.__name__] = function
    return function


def crossing(function: Callable[[], Any]) -> Callable[[], Any]:
    """Adds a program in which threads hand tensors to one another."""
    CROSSING.add(function.__name__)
    return program(function)


def numbers(*shape: int) -> torch.Tensor:
    """Returns seeded values."""
    return torch.randn(*shape)


# --- layouts ---


@program
def sparse_coo() -> Any:
    made = numbers(4, 4).relu().to_sparse()
    return made @ numbers(4, 2), (made + made).coalesce(), made.t().to_dense(), made.sum()


@program
def sparse_gradients() -> Any:
    table = nn.Embedding(6, 3, sparse=True)
    table(torch.tensor([1, 2, 1])).sum().backward()
    optimizer = torch.optim.SparseAdam(table.parameters())
    optimizer.step()
    return table.weight, table.weight.grad


@program
def sparse_csr() -> Any:
    made = numbers(4, 4).relu().to_sparse_csr()
    return made @ numbers(4, 2), made.crow_indices(), made.col_indices(), made.to_dense()


@program
def sparse_blocks() -> Any:
    made = numbers(4, 4).to_sparse_bsr((2, 2))
    return made.values(), made.to_dense(), numbers(4, 4).to_sparse_csc().to_dense()


@program
def sparse_in_place() -> Any:
    made = torch.eye(3).to_sparse()
    made.mul_(3)
    made.zero_()
    return made, made.values().clone()


@program
def sparse_softmax_fails() -> Any:
    return torch.eye(3).to_sparse().view(9)


@program
def mkldnn() -> Any:
    made = torch.ones(2, 3).to_mkldnn()
    return (made + made).to_dense(), made.relu().to_dense(), made.is_mkldnn


@program
def nested_strided() -> Any:
    made = torch.nested.nested_tensor([numbers(2), numbers(3)])
    return made.to_padded_tensor(0.0), (made * 2).unbind(), made.size(0)


@program
def nested_jagged() -> Any:
    made = torch.nested.nested_tensor([numbers(2, 3), numbers(4, 3)], layout=torch.jagged)
    return made.values(), (made.sin() + 1).values(), made.sum(), made.offsets()


@program
def nested_jagged_gradients() -> Any:
    values = numbers(5, 2).requires_grad_()
    made = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5]))
    (made * made).sum().backward()
    return values.grad


@program
def quantized() -> Any:
    made = torch.quantize_per_tensor(numbers(3), 0.1, 0, torch.qint8)
    return made.int_repr(), made.dequantize(), made.q_scale(), made.clone().dequantize()


@program
def quantized_by_channel() -> Any:
    scales = torch.tensor([0.1, 0.2])
    made = torch.quantize_per_channel(numbers(2, 3), scales, torch.zeros(2).long(), 0, torch.qint8)
    return made.dequantize(), made[0].dequantize()


@program
def meta() -> Any:
    made = torch.ones(3, device="meta") + 1
    return made.shape, made.sum().shape, nn.Linear(3, 4, device="meta")(made).shape


@program
def meta_has_no_values() -> Any:
    return (torch.ones(3, device="meta") + 1).tolist()


@program
def memory_formats() -> Any:
    made = numbers(2, 3, 4, 4).to(memory_format=torch.channels_last)
    out = nn.functional.conv2d(made, numbers(5, 3, 3, 3))
    return out, out.stride(), made.contiguous(), made.permute(0, 2, 3, 1).is_contiguous()


@program
def complex_numbers() -> Any:
    made = torch.complex(numbers(3), numbers(3))
    lazy = made.conj()
    return lazy.resolve_conj(), lazy.imag.neg(), torch.view_as_real(made), lazy.is_conj(), lazy * 2


@program
def negative_views() -> Any:
    made = torch.complex(numbers(3), numbers(3)).conj().imag
    return made.is_neg(), made + 1, made.resolve_neg(), made.tolist()


@program
def zero_tensors() -> Any:
    made = torch._efficientzerotensor(3)
    return made + numbers(3), made._is_zerotensor()


@program
def low_precision() -> Any:
    made = numbers(8).to(torch.bfloat16)
    return made + 1, made.to(torch.float8_e4m3fn).to(torch.float32), made.half() * 3


@program
def freed_storage() -> Any:
    made = numbers(10)
    made.untyped_storage().resize_(0)
    empty = made.untyped_storage().size()
    made.untyped_storage().resize_(40)
    return empty, made.fill_(2)


@program
def resized() -> Any:
    made = torch.arange(4).resize_(2, 2)
    made.resize_(3)
    return made, torch.empty(0).set_(numbers(4).untyped_storage(), 1, (2,), (1,)).shape


@program
def foreign_memory() -> Any:
    held = bytearray(range(16))
    made = torch.frombuffer(held, dtype=torch.int32)
    made += 1
    array = np.arange(4.0)
    torch.from_numpy(array).mul_(2)
    return made, bytes(held), array.tolist(), np.asarray(torch.ones(2)).tolist()


@program
def dlpack() -> Any:
    made = torch.arange(4.0)
    return torch.from_dlpack(made) + 1, np.from_dlpack(made).tolist()


@program
def swapped_and_data() -> Any:
    one, other = nn.Parameter(numbers(2)), nn.Parameter(numbers(2))
    torch.utils.swap_tensors(one, other)
    one.data = torch.ones(3)
    return one, other


@program
def lazy_modules() -> Any:
    module = nn.LazyLinear(3)
    before = type(module.weight).__name__
    return before, module(torch.ones(2, 4)), type(module.weight).__name__


# --- transforms ---


@program
def vmap() -> Any:
    return torch.func.vmap(lambda x: x.sum() * 2)(numbers(3, 2))


@program
def vmap_writes() -> Any:
    def inner(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x.clone().index_fill_(0, at, 1.0).add_(1)

    return torch.func.vmap(inner)(numbers(3, 4), torch.tensor([[0], [1], [2]]))


@program
def vmap_randomness_fails() -> Any:
    return torch.func.vmap(lambda x: x + torch.rand(2))(numbers(3, 2))


@program
def vmap_randomness() -> Any:
    return torch.func.vmap(lambda x: x + torch.rand(2), randomness="different")(numbers(3, 2))


@program
def vmap_item_fails() -> Any:
    return torch.func.vmap(lambda x: x.sum().item())(numbers(3, 2))


@program
def vmap_tolist_fails() -> Any:
    return torch.func.vmap(lambda x: torch.tensor(x.tolist()))(numbers(3, 2))


@program
def grad() -> Any:
    return torch.func.grad(lambda x: (x * x).sum())(numbers(3))


@program
def grad_reads_a_value() -> Any:
    return torch.func.grad(lambda x: x * 2 if float(torch.tensor(3.0)) > 2 else x)(numbers(1)[0])


@program
def grad_item_fails() -> Any:
    return torch.func.grad(lambda x: torch.tensor(x.tolist()).sum())(numbers(3))


@program
def jvp() -> Any:
    return torch.func.jvp(lambda x: x.sin(), (numbers(3),), (numbers(3),))


@program
def vjp() -> Any:
    out, pull = torch.func.vjp(lambda x: x.sin(), numbers(3))
    return out, pull(torch.ones(3))


@program
def jacobians() -> Any:
    return torch.func.jacrev(torch.sin)(numbers(3)), torch.func.jacfwd(torch.sin)(numbers(3))


@program
def hessian() -> Any:
    return torch.func.hessian(lambda x: (x**3).sum())(numbers(3))


@program
def linearize() -> Any:
    out, push = torch.func.linearize(lambda x: x.sin(), numbers(3))
    return out, push(torch.ones(3))


@program
def per_sample_gradients() -> Any:
    module = nn.Linear(3, 1)
    held = dict(module.named_parameters())

    def loss(held: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, held, (x,)).sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(held, numbers(4, 3))


@program
def ensembles() -> Any:
    models = [nn.Linear(3, 2) for _ in range(2)]
    held, buffers = torch.func.stack_module_state(models)

    def call(held: Any, buffers: Any, x: torch.Tensor) -> Any:
        return torch.func.functional_call(models[0], (held, buffers), (x,))

    return torch.vmap(call, (0, 0, None))(held, buffers, numbers(1, 3))


@program
def functionalize() -> Any:
    return torch.func.functionalize(lambda x: x.clone().add_(1).view(-1).mul_(2))(numbers(3))


@program
def forward_ad() -> Any:
    import torch.autograd.forward_ad as fwd

    with fwd.dual_level():
        return fwd.unpack_dual(fwd.make_dual(numbers(3), numbers(3)).sin() * 2)


# --- tracing ---


@program
def make_fx() -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: x[torch.tensor([0, 1])] * 2)(torch.ones(3))
    return graph(torch.arange(3.0)), graph.code


@program
def make_fx_symbolic() -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: x.view(-1) + x.shape[0], tracing_mode="symbolic")(torch.ones(3, 2))
    return graph(numbers(4, 2)), graph.code


@program
def symbolic_trace() -> Any:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() + 1

    graph = torch.fx.symbolic_trace(Module())
    return graph(numbers(3)), graph.code


@program
def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        made = torch.ones(3) + 1
        other = mode.from_tensor(torch.ones(2))
        return type(made).__name__, made.sum().shape, (other * 2).shape


@program
def fake_values_fail() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3).sum().item()


@program
def export() -> Any:
    module = nn.Linear(3, 3)
    made = torch.export.export(module, (torch.ones(1, 3),))
    return made.module()(numbers(1, 3)), made.graph_module.code


@program
def export_with_shapes() -> Any:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x]) * x.shape[0]

    rows = torch.export.Dim("rows", min=2, max=9)
    made = torch.export.export(Module(), (numbers(4, 2),), dynamic_shapes=({0: rows},))
    return made.module()(numbers(5, 2)), made.run_decompositions().graph_module.code


@program
def export_strict() -> Any:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cpu() + 1

    return torch.export.export(Module(), (numbers(2),), strict=True).graph_module.code


@program
def export_fails_on_values() -> Any:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if bool(x.sum() > 0) else x

    try:
        torch.export.export(Module(), (numbers(2),))
    except Exception as err:
        return type(err).__name__, str(err).partition("\n")[0]


def _compiled(backend: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, **options)(*args)


@program
def compiled_eager() -> Any:
    return _compiled("eager", lambda x: x.sin() + 1, numbers(3))


@program
def compiled_whole() -> Any:
    return _compiled("eager", lambda x: x.cpu().view(-1) * 2, numbers(3), fullgraph=True)


@program
def compiled_reads_values() -> Any:
    return _compiled("eager", lambda x: x * (2 if x.sum().item() > 0 else 3), numbers(3))


@program
def compiled_lists() -> Any:
    return _compiled("eager", lambda x: torch.tensor(x.tolist()) + 1, torch.arange(3))


@program
def compiled_numpy() -> Any:
    return _compiled("eager", lambda x: torch.from_numpy(x.numpy() * 2), numbers(3))


@program
def compiled_breaks_fail() -> Any:
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    try:
        return _compiled("eager", broken, numbers(3), fullgraph=True)
    except Exception as err:
        return type(err).__name__, str(err).partition("\n")[0]


@program
def compiled_aot() -> Any:
    x = numbers(3).requires_grad_()
    out = _compiled("aot_eager", lambda x: (x * x).sum(), x)
    out.backward()
    return out, x.grad


@program
def compiled_module() -> Any:
    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    made = torch.compile(module, backend="aot_eager")
    made(numbers(2, 3)).sum().backward()
    return [one.grad for one in module.parameters()]


@program
def compiled_counts_frames() -> Any:
    torch._dynamo.reset()
    counted: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        counted.append(len(graph.graph.nodes))
        return graph.forward

    made = torch.compile(lambda x: (x + 1).view(-1) * 2, backend=backend)
    return made(numbers(2, 2)), made(numbers(3, 2)), counted


@program
def compiled_inductor() -> Any:
    return _compiled("inductor", lambda x: (x.sin() + 1).sum(0), numbers(3, 4))


@program
def compiled_condition() -> Any:
    return _compiled(
        "aot_eager",
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
        numbers(3),
    )


@program
def higher_order() -> Any:
    return torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (numbers(2),))


@program
def jit_trace() -> Any:
    made = torch.jit.trace(lambda x: x * 2 + x.shape[0], torch.ones(3))
    return made(numbers(3)), made.code


@program
def jit_trace_module() -> Any:
    made = torch.jit.trace(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), numbers(1, 3))
    return made(numbers(2, 3)), str(made.graph).count("aten::")


class _Scripted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x.add(1)
        return x.cpu().mul(int(x.numel()))


@program
def jit_script() -> Any:
    made = torch.jit.script(_Scripted())
    return made(numbers(3)), made.code


@program
def jit_saved() -> Any:
    held = io.BytesIO()
    torch.jit.save(torch.jit.script(_Scripted()), held)
    held.seek(0)
    return torch.jit.load(held)(numbers(3))


@program
def custom_operators() -> Any:
    with torch.library._scoped_library("fmcheck_unrelated", "FRAGMENT") as library:
        library.define("twice(Tensor x, int n=2) -> Tensor")
        library.impl("twice", lambda x, n=2: x * n, "CompositeExplicitAutograd")
        return torch.ops.fmcheck_unrelated.twice(numbers(3)), torch.ops.aten.add(numbers(2), 1)


@program
def python_custom_operator() -> Any:
    seen: list[str] = []

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    @torch.library.custom_op("fmcheck_unrelated::sine", mutates_args=())
    def sine(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.sin(x.numpy()))

    with Seeing():
        return sine(numbers(3)), seen


@program
def wrong_calls_fail() -> Any:
    reported = []
    for call in (
        lambda: torch.ones(2, 3) @ torch.ones(2, 3),
        lambda: torch.ones(2).view(3),
        lambda: torch.ops.aten.add("a", 1),
        lambda: torch.ones(2)[5],
        lambda: torch.ones(2).index_select(0, torch.tensor([7])),
        lambda: torch.ones(2, requires_grad=True).add_(1),
        lambda: torch.ones(2).sum().backward(),
        lambda: torch.zeros(3).item(),
        lambda: torch.tensor([1, 2], dtype=torch.int32).bitwise_and_(torch.ones(2)),
        lambda: torch.linalg.inv(torch.zeros(2, 2)),
        lambda: bool(torch.ones(2)),
        lambda: int(torch.ones(3)),
        lambda: torch.ones(2).numpy(force=False, wrong=1),
    ):
        try:
            reported.append(call())
        except Exception as err:
            reported.append((type(err).__name__, str(err)))
    return reported


# --- autograd ---


@program
def backward() -> Any:
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    loss = nn.functional.cross_entropy(module(numbers(3, 4)), torch.tensor([0, 1, 0]))
    loss.backward()
    return loss, [one.grad for one in module.parameters()]


@program
def double_backward() -> Any:
    x = numbers(3).requires_grad_()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.mark_dirty()
        return x * 2

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return given * x


@program
def custom_function() -> Any:
    x = numbers(3).requires_grad_()
    _Doubled.apply(x).sum().backward()
    return x.grad


@program
def gradcheck() -> Any:
    return torch.autograd.gradcheck(torch.sin, numbers(2).double().requires_grad_())


@program
def saved_tensor_hooks() -> Any:
    packed: list[tuple[int, ...]] = []

    def pack(x: torch.Tensor) -> Any:
        packed.append(tuple(x.shape))
        return x.numpy(force=True).copy()

    x = numbers(3).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        (x * x).sum().backward()
    with torch.autograd.graph.save_on_cpu():
        (x**2).sum().backward()
    return x.grad, packed


@program
def tensor_hooks() -> Any:
    x = numbers(3).requires_grad_()
    order: list[str] = []
    x.register_hook(lambda g: order.append("tensor") or g * 2)
    x.register_post_accumulate_grad_hook(lambda p: order.append("accumulated"))
    (x * 3).sum().backward()
    return x.grad, order


@program
def module_hooks() -> Any:
    module, order = nn.Linear(2, 2), []
    module.register_forward_pre_hook(lambda m, a: order.append("pre"))
    module.register_forward_hook(lambda m, a, out: out * 2)
    module.register_full_backward_hook(lambda m, i, o: order.append("back"))
    out = module(numbers(1, 2).requires_grad_())
    out.sum().backward()
    return out, order


@program
def checkpointed() -> Any:
    from torch.utils.checkpoint import checkpoint

    x, reported = numbers(3).requires_grad_(), []
    for reentrant in (False, True):
        out = checkpoint(lambda a: a.sin() * 2, x, use_reentrant=reentrant)
        out.sum().backward()
        reported.append(x.grad.clone())
    return reported


@program
def checkpointed_selectively() -> Any:
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    x = numbers(3, 3).requires_grad_()
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    out = checkpoint(lambda a: (a @ a).sin(), x, use_reentrant=False, context_fn=contexts)
    out.sum().backward()
    return x.grad


@program
def version_counters() -> Any:
    x = numbers(3).requires_grad_()
    y = x * 1
    z = y * y
    counts = [y._version]
    y.add_(1)
    counts.append(y._version)
    try:
        z.sum().backward()
    except RuntimeError as err:
        return counts, str(err)
    return counts


@program
def grad_modes() -> Any:
    x, reported = numbers(2).requires_grad_(), []
    for mode in (torch.no_grad(), torch.enable_grad(), torch.inference_mode()):
        with mode:
            y = x * 2
            reported.append((y.requires_grad, y.is_inference(), torch.is_grad_enabled(), y))
    return reported


@program
def inference_tensors_fail() -> Any:
    with torch.inference_mode():
        made = torch.ones(2)
    return made.add_(1)


@program
def anomalies() -> Any:
    with torch.autograd.detect_anomaly(check_nan=True):
        x = torch.zeros(2, requires_grad=True)
        (x / x).sum().backward()


@program
def leaf_and_views() -> Any:
    x = numbers(4).requires_grad_()
    view = x[:2]
    return view._is_view(), view._base is x, x.is_leaf, view.grad_fn.name(), (x.view(2, 2)).stride()


@program
def multi_gradients() -> Any:
    x, y = numbers(3).requires_grad_(), numbers(3).requires_grad_()
    return torch.autograd.functional.hvp(lambda a, b: (a * b).sum(), (x, y), (y, x))


# --- modes and subclasses ---


class _Logging(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@program
def dispatch_mode() -> Any:
    with _Logging() as mode:
        out = nn.functional.linear(numbers(2, 3), numbers(4, 3)).softmax(-1)
        reported = [out.sum().item(), out[0].tolist(), bool(out.any())]
    return out, reported, mode.seen


@program
def dispatch_modes_nested() -> Any:
    with _Logging() as outer, _Logging() as inner:
        out = numbers(3) + 1
    return out, outer.seen, inner.seen


@program
def function_mode() -> Any:
    seen: list[str] = []

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    with Seeing():
        out = torch.ones(3).add(1).view(3, 1)
        reported = [
            out.tolist(),
            out.sum().item(),
            out.numpy().tolist(),
            out.cpu() is out,
            out.shape,
        ]
    return out, reported, seen


@program
def function_mode_changes_reads() -> Any:
    class Changing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out + 1 if func is torch.Tensor.item else out

    with Changing():
        return torch.ones(()).item()


@program
def default_device() -> Any:
    with torch.device("meta"):
        return torch.ones(2).device.type, nn.Linear(2, 2).weight.is_meta, torch.tensor([1]).is_meta


@program
def default_dtype() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return torch.ones(2) * 1.5, torch.tensor([0.1]).dtype
    finally:
        torch.set_default_dtype(torch.float32)


class _Named(torch.Tensor):
    """A subclass that keeps its class through calls."""


@program
def plain_subclass() -> Any:
    made = numbers(3).as_subclass(_Named)
    out = made + 1
    return type(out).__name__, out.sum().item(), out.tolist(), type(made[0]).__name__


class _Seeing(torch.Tensor):
    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@program
def function_subclass() -> Any:
    _Seeing.seen = []
    made = torch.arange(3).as_subclass(_Seeing)
    reported = [made.sum().item(), made.tolist(), made.numpy().tolist(), (made * 2).max().item()]
    return reported, _Seeing.seen


@program
def wrapper_subclass() -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    made = TwoTensor(numbers(3), numbers(3))
    out = (made + 1).sum()
    return out.a, out.b, type(made * 2).__name__


@program
def masked_tensor() -> Any:
    made = torch.masked.masked_tensor(numbers(3), torch.tensor([True, False, True]))
    return made.sum().get_data(), (made + 1).get_mask()


@program
def registered_overrides() -> Any:
    handled = {torch.Tensor.cpu: "cpu", torch.Tensor.item: "item", torch.Tensor.tolist: "tolist"}

    class Handling(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return handled.get(func) or super().__torch_function__(func, types, args, kwargs or {})

    made = torch.ones(()).as_subclass(Handling)
    return made.cpu(), made.item(), made.tolist()


@program
def parametrized() -> Any:
    module = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    return module(numbers(1, 3)), sorted(dict(module.named_parameters()))


# --- the rest of the world ---


@contextlib.contextmanager
def _group() -> Iterator[Any]:
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield dist
        finally:
            dist.destroy_process_group()


@program
def collectives() -> Any:
    with _group() as dist:
        made, gathered = numbers(3), [torch.empty(3)]
        dist.all_reduce(made)
        work = dist.all_gather(gathered, made, async_op=True)
        work.wait()
        dist.broadcast(made, 0)
        dist.barrier()
        objects: list[Any] = [None]
        dist.all_gather_object(objects, {"a": 1})
        return made, gathered, objects


@program
def functional_collectives() -> Any:
    import torch.distributed._functional_collectives as collectives

    with _group():
        return collectives.all_reduce(numbers(3), "sum", [0]) + 1


@program
def distributed_tensors() -> Any:
    with _group():
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

        mesh = init_device_mesh("cpu", (1,))
        made = distribute_tensor(numbers(4, 2), mesh, [Shard(0)])
        out = made @ distribute_tensor(numbers(2, 3), mesh, [Replicate()])
        return out.to_local(), out.full_tensor(), (made + 1).sum().to_local()


@program
def data_parallel() -> Any:
    with _group():
        module = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        module(numbers(2, 3)).sum().backward()
        gradients = [one.grad for one in module.parameters()]
        # torch waits for the group's thread with the GIL held where a module outlives its group:
        # one of 10,000 unwatched runs never ended.
        del module
        gc.collect()
        return gradients


def _square(value: int) -> torch.Tensor:
    return torch.tensor([value * value, value])


@program
def data_loader() -> Any:
    from torch.utils.data import DataLoader

    return list(DataLoader([_square(one) for one in range(6)], batch_size=2))


@program
def data_loader_workers() -> Any:
    from torch.utils.data import DataLoader

    loader = DataLoader([_square(one) for one in range(6)], batch_size=2, num_workers=2)
    return [one.clone() for one in loader]


@program
def profiled() -> Any:
    with torch.profiler.profile() as profile:
        out = nn.functional.relu(numbers(3, 3) @ numbers(3, 3))
    names = {one.key for one in profile.key_averages()}
    return out, sorted(name for name in names if name in ("aten::mm", "aten::relu", "aten::clone"))


@program
def recorded_function() -> Any:
    with torch.profiler.record_function("block"):
        return numbers(3).sin()


@program
def autocast() -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = nn.functional.linear(numbers(2, 3), numbers(4, 3))
        return out, out.dtype, out.float().exp(), torch.is_autocast_enabled("cpu")


@program
def foreach() -> Any:
    held = [numbers(2), numbers(3)]
    torch._foreach_add_(held, 1)
    torch._foreach_mul_(held, [2.0, 3.0])
    return held, torch._foreach_norm(held), torch._foreach_add(held, held)


@program
def optimizers() -> Any:
    reported = []
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
        for foreach_ in (False, True):
            module = nn.Linear(3, 2)
            made = kind(module.parameters(), lr=0.1, foreach=foreach_)
            for _ in range(2):
                made.zero_grad()
                module(torch.ones(1, 3)).sum().backward()
                made.step()
            reported.append([one.detach().clone() for one in module.parameters()])
    return reported


@program
def fused_optimizer() -> Any:
    module = nn.Linear(3, 2)
    made = torch.optim.Adam(module.parameters(), fused=True)
    module(torch.ones(1, 3)).sum().backward()
    made.step()
    return list(module.parameters()), made.state_dict()["state"][0]["step"]


@program
def schedulers_and_clipping() -> Any:
    module = nn.Linear(3, 2)
    made = torch.optim.SGD(module.parameters(), lr=1.0)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(made, 4)
    module(torch.ones(1, 3)).sum().backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), 0.1)
    made.step()
    plan.step()
    return norm, plan.get_last_lr(), list(module.parameters())


@program
def random_state() -> Any:
    before = torch.get_rng_state()
    first = torch.rand(3), torch.randperm(5), torch.bernoulli(torch.full((4,), 0.5))
    torch.set_rng_state(before)
    with torch.random.fork_rng():
        torch.rand(7)
    held = torch.Generator().manual_seed(3)
    return (
        first,
        torch.rand(3),
        torch.multinomial(torch.ones(5), 3, generator=held),
        held.get_state(),
    )


@program
def dropout() -> Any:
    return (
        nn.functional.dropout(torch.ones(8), 0.5),
        random.random(),
        np.random.default_rng(1).random(),
    )


@program
def serialized() -> Any:
    held = io.BytesIO()
    made = {"a": numbers(3), "view": numbers(4)[1:3], "half": numbers(2).half()}
    torch.save(made, held)
    size = len(held.getvalue())
    held.seek(0)
    return torch.load(held), size


@program
def serialized_by_map() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "held.pt")
        torch.save({"a": torch.arange(6.0)}, path)
        made = torch.load(path, mmap=True)["a"]
        out = made * 2
        del made
        gc.collect()
        return out


@program
def pickled() -> Any:
    made = numbers(3)
    return pickle.loads(pickle.dumps(made)), copy.deepcopy({"a": made}), copy.copy(made), vars(made)


@program
def state_dicts() -> Any:
    module = nn.BatchNorm1d(3)
    module(numbers(4, 3))
    other = nn.BatchNorm1d(3)
    other.load_state_dict(module.state_dict())
    return other.state_dict()


@program
def shown() -> Any:
    return repr(numbers(3)), str(torch.arange(4)), f"{torch.tensor(1.5):.2f}", repr(nn.Linear(2, 2))


@program
def identities() -> Any:
    made = numbers(3)
    again = made.to("cpu"), made.cpu(), made.to(torch.float32), made.contiguous(), made.detach()
    return [one is made for one in again], made.data_ptr() == again[-1].data_ptr()


@program
def in_place_and_index_writes() -> Any:
    made = torch.zeros(4, 4)
    made[torch.tensor([0, 2])] = numbers(4)
    made[made > 1] = 0
    made[:, 1].fill_(3)
    made.index_put_((torch.tensor([1]), torch.tensor([2])), torch.tensor(5.0), accumulate=True)
    made.scatter_(1, torch.tensor([[0], [1], [2], [3]]), 7.0)
    made.masked_fill_(made == 3, 2)
    return made, torch.where(made > 2, made, -made), made.nonzero(), made.unique()


@program
def outs() -> Any:
    out, index = torch.empty(3), torch.empty(3, dtype=torch.long)
    torch.add(torch.ones(3), 1, out=out)
    values = torch.sort(numbers(3), out=(torch.empty(3), index))
    resized = torch.empty(0)
    torch.cat([out, out], out=resized)
    return out, values, index, resized


@program
def linear_algebra() -> Any:
    made = numbers(4, 4)
    return (
        torch.linalg.qr(made),
        torch.linalg.eigvalsh(made @ made.T),
        torch.einsum("ij,kj", made, made),
    )


@program
def fourier() -> Any:
    return torch.fft.rfft(numbers(8)), torch.stft(
        numbers(64), 16, return_complex=True, window=torch.ones(16)
    )


@program
def attention() -> Any:
    made = numbers(1, 2, 4, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        fast = layer(numbers(1, 4, 8))
    return nn.functional.scaled_dot_product_attention(made, made, made, is_causal=True), fast


@program
def recurrent() -> Any:
    layer = nn.LSTM(3, 4, 2, bidirectional=True)
    packed = nn.utils.rnn.pack_padded_sequence(numbers(5, 2, 3), [5, 3])
    out, _ = layer(packed)
    return nn.utils.rnn.pad_packed_sequence(out)


@program
def convolutions() -> Any:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2))
    out = module(numbers(1, 3, 8, 8))
    out.sum().backward()
    return out, [one.grad for one in module.parameters()]


@program
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        return torch.zeros(3).index_add_(0, torch.tensor([0, 0, 1]), numbers(3)), torch.empty(2)
    finally:
        torch.use_deterministic_algorithms(False)


@program
def numpy_functions() -> Any:
    made = numbers(4)
    return (
        np.sin(made),
        np.add(made.numpy(), 1).tolist(),
        made.__array__().sum(),
        operator.index(torch.tensor(3)),
    )


@program
def constant_tensors() -> Any:
    flags = torch.tensor([True, False])
    return complex(torch.tensor(1j)), torch.is_nonzero(flags[0]), [bool(one) for one in flags]


@program
def signal_and_windows() -> Any:
    return (
        torch.hann_window(8),
        torch.bucketize(numbers(4), torch.linspace(-1, 1, 5)),
        torch.cdist(numbers(2, 3), numbers(2, 3)),
    )


@program
def embedding_bags() -> Any:
    return nn.functional.embedding_bag(torch.tensor([1, 2, 4]), numbers(6, 2), torch.tensor([0, 2]))


@program
def losses() -> Any:
    logits = numbers(3, 4).requires_grad_()
    target = torch.tensor([0, 3, 1])
    out = nn.functional.nll_loss(logits.log_softmax(-1), target)
    ctc = nn.functional.ctc_loss(numbers(6, 1, 4).log_softmax(-1), torch.tensor([[1, 2]]), [6], [2])
    out.backward()
    return out, ctc, logits.grad


@program
def backward_formulas() -> Any:
    reported = []
    for function in (
        lambda x: x.prod(),
        lambda x: x.norm(),
        lambda x: x.cumprod(0).sum(),
        lambda x: torch.linalg.norm(x),
        lambda x: nn.functional.cosine_similarity(x[:2], x[1:], dim=0),
        lambda x: x.std(),
        lambda x: x.median(),
        lambda x: x.masked_select(x > 0).sum(),
        lambda x: torch.linalg.lstsq(torch.outer(x, x) + torch.eye(3), x[:, None]).solution.sum(),
    ):
        x = numbers(3).requires_grad_()
        function(x).backward()
        reported.append(x.grad)
    return reported


@crossing
def threads() -> Any:
    reported: list[Any] = [None] * 4

    def work(number: int) -> None:
        made = torch.full((64,), float(number))
        for _ in range(8):
            made = made * 2 + 1
        reported[number] = made.tolist()

    held = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in held:
        one.start()
    for one in held:
        one.join()
    return reported


@crossing
def threaded_backward() -> Any:
    weight = numbers(3).requires_grad_()
    held = [threading.Thread(target=lambda: (weight * 2).sum().backward()) for _ in range(2)]
    for one in held:
        one.start()
    for one in held:
        one.join()
    return weight.grad


@crossing
def futures() -> Any:
    future = torch.jit.fork(lambda x: x + 1, numbers(2))
    return torch.jit.wait(future), torch.futures.collect_all([future]).wait()[0].wait()


@program
def streams_of_the_cpu() -> Any:
    stream, event = torch.cpu.Stream(), torch.cpu.Event()
    with torch.cpu.stream(stream):
        stream.wait_stream(torch.cpu.current_stream())
        made = numbers(3) + 1
        event.record()
    event.wait()
    event.synchronize()
    torch.cpu.synchronize()
    return made, event.query(), isinstance(stream, torch.cpu.Stream), torch.cpu.current_device()


@program
def no_stream() -> Any:
    with torch.cpu.stream(None):
        return numbers(2) + 1


@program
def generic_streams_fail() -> Any:
    return torch.Stream(device="cpu")


@program
def recursion_fails() -> Any:
    def deeper(x: torch.Tensor) -> torch.Tensor:
        return deeper(x + 1)

    try:
        deeper(torch.ones(1))
    except RecursionError:
        return "too deep", torch.ones(2) + 1


@program
def weak_references() -> Any:
    import weakref

    made = numbers(3)
    held = weakref.ref(made)
    storage = made.untyped_storage().data_ptr()
    del made
    gc.collect()
    return held() is None, storage != 0


# --- running them ---


def digest(value: Any) -> Any:
    """Returns what can be compared of a result, bit for bit."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested or value.is_meta:
            return [type(value).__name__, str(value.layout), _parts(value)]
        held = value.detach().resolve_conj().resolve_neg().contiguous()
        raw = bytes(held.reshape(-1).view(torch.uint8).numpy()) if held.numel() else b""
        return [
            *(type(value).__name__, str(value.dtype), list(value.shape), list(value.stride())),
            hashlib.sha256(raw).hexdigest()[:16],
        ]
    if isinstance(value, dict):
        return {str(key): digest(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [digest(one) for one in value]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    return repr(value)


def _parts(value: torch.Tensor) -> Any:
    if value.is_meta:
        return list(value.shape)
    if value.is_nested:
        return [digest(one) for one in value.unbind()]
    return digest(value.to_dense())


def outcome(name: str) -> Any:
    """Runs a program and returns its digest, or its exception by type and text."""
    torch.manual_seed(7)
    random.seed(7)
    try:
        return digest(PROGRAMS[name]())
    except Exception as err:
        return [type(err).__name__, str(err)]


def outcomes(names: list[str]) -> dict[str, Any]:
    """Returns the outcomes of programs."""
    return {name: outcome(name) for name in names}


class _HearingNothing(TorchFunctionMode):
    """Does nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Nothing(TorchDispatchMode):
    """Does nothing."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _step(tally: Any) -> Iterator[None]:
    """Runs a block as a step whose syncs and launches are counted."""
    from fmcheck.contract import Budget, Contract, Engine
    from fmcheck.runtime.steps import budgets, step_syncs

    ledger = budgets.BudgetCounter(tally, Contract(engine=Engine(name="unrelated")))
    many = Budget(functions=("unrelated:step",), syncs=1_000_000, launches=1_000_000)
    window = budgets.BudgetedCall("step", many, declared=True)
    undo = step_syncs.watch_methods(budgets.mode_of_thread)
    ledger.open(window)
    try:
        yield
    finally:
        ledger.close(window)
        undo()


WAYS = ("beside a relay", "in a stream", "after one", "in a step")


@dataclass(frozen=True)
class Bare:
    """What programs do unwatched, by themselves and under modes that do nothing."""

    alone: dict[str, Any]
    under_a_mode: dict[str, Any]
    #: Those that do another thing each time.
    unsteady: tuple[str, ...]


def unwatched(names: list[str]) -> Bare:
    """Runs programs without a watch."""
    alone = outcomes(names)
    unsteady = tuple(name for name, was in alone.items() if outcome(name) != was)
    under_a_mode = dict(alone)
    for name in set(names) & BY_MODE:
        with _Nothing(), _HearingNothing():
            under_a_mode[name] = outcome(name)
    return Bare(alone, under_a_mode, unsteady)


def differences(mode: str, bare: Bare) -> dict[str, list[Any]]:
    """Returns each program that differs when it is watched, with how it was watched."""
    from fmcheck.runtime.relay.relay_tensor import relay_tensor
    from fmcheck.runtime.session.watch import Watch

    names = list(bare.alone)
    found: dict[str, list[Any]] = {f"{name}: bare, twice": [] for name in bare.unsteady}
    watch = Watch([], streams=mode, seed=3)
    watch.start()
    buffer = relay_tensor(torch.zeros(8), "Relay.buf", "engine:Relay", watch.tally)
    for how in WAYS:
        expected = bare.alone if how == "beside a relay" else bare.under_a_mode
        for name in names:
            if name in CROSSING and how == "in a stream" and mode != "tracked":
                continue
            inside = torch.cpu.stream(torch.cpu.Stream() if how == "in a stream" else None)
            step = _step(watch.tally) if how == "in a step" else contextlib.nullcontext()
            with inside, step:
                is_now = outcome(name)
            if is_now != expected[name]:
                found[f"{name}: {how}"] = [expected[name], is_now]
    reported = watch.coverage().incomplete
    watch.stop()
    del buffer
    if reported:
        found["incomplete"] = list(reported)
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    faulthandler.dump_traceback_later(600, exit=True)  # says where a program hangs
    modes, *chosen = sys.argv[1:]
    was = unwatched(chosen or list(PROGRAMS))
    json.dump({one: differences(one, was) for one in modes.split(",")}, sys.stdout, indent=1)
