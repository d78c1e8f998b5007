"""Operators: what each operator of torch does with its tensors, by its schema, said once.

An operator is looked up by its id, and kept: torch's own hash of one is a call in Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

#: Operators that copy from one place to another, and the kinds of an index that is a mask.
COPIES = frozenset({"copy_", "_to_copy"})
MASKS = (torch.bool, torch.uint8)
#: The place of a tensor argument of a call: its position, and its name.
Place = tuple[int, str]

# They change what a tensor object shows, and no element.
_MOVES = frozenset({"set_", "resize_", "lift_fresh", "detach", "detach_", "alias"})
# Views that torch's schemas call new tensors, and batch norms that write their running values in
# spite of theirs: some in every call, the others where it trains.
_UNSAFE_VIEWS = frozenset({"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes"})
_RUNNING = frozenset({"running_mean", "running_var"})
_ALWAYS_RUN = frozenset(
    {"batch_norm_gather_stats", "batch_norm_gather_stats_with_counts", "batch_norm_update_stats"}
)
_RUN_IN_TRAINING = frozenset({"cudnn_batch_norm", "miopen_batch_norm", "native_batch_norm"})
#: The argument by which these are told.
_TRAINING: Place = 5, "training"
# By torch's own word, what these bring or how much of it hangs on values: of a device the host has
# to wait for it. Of an index that holds for masks alone; of some others torch says nothing, as of
# the last step of `torch.tensor`, which has uploaded its values.
_WAITING = frozenset({"is_nonzero", "multinomial", "_linalg_check_errors", "lift_fresh"})
_BY_MASK = frozenset({"index"})
_BY_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


@dataclass(eq=False, slots=True)
class Operator:
    """What an operator of a name space does with its arguments.

    `tensors` are the places of all tensor arguments, `reads` and `writes` those of some; those of
    `trained` are written as well by a call that trains. A view touches nothing; what does not
    `fill` leaves its result's memory as it was found. On a device, the host `waits` for what its
    result hangs on. `unknown` says why a call cannot be known of, "" if it can. One that is not
    `of_torch` may leave out any of what it is given, and run code in Python. One that is
    `composite` consists of others, and has no code of its own. `step` is what it is to a step. One
    that `only_shows` touches no element and waits for none; `call` makes it.
    """

    func: Any
    name: str
    space: str = ""
    tensors: tuple[Place, ...] = ()
    reads: tuple[Place, ...] = ()
    writes: tuple[Place, ...] = ()
    trained: tuple[Place, ...] = ()
    is_view: bool = True
    moves: bool = False
    fills: bool = True
    waits: bool = False
    unknown: str = ""
    of_torch: bool = False
    composite: bool = False
    step: Callable[..., Any] | None = None
    only_shows: bool = field(init=False)
    call: Any = field(init=False)

    def __post_init__(self) -> None:
        # A call in Python less, unless a kind of operators does more there.
        is_plain = type(self.func) is torch._ops.OpOverload
        self.call = self.func._op if is_plain else self.func
        self.only_shows = self.is_view and not self.waits and not self.unknown


#: All operators that were met, by id.
known: dict[int, Operator] = {}


def read(func: Any, failed: Callable[[Exception], object]) -> Operator:
    """Returns what an operator's schema says; `failed` is told why one could not be read."""
    try:
        operator = _operator(func)
    except Exception as err:
        failed(err)
        operator = Operator(func, str(func), unknown="fmcheck could not read their schema")
    known[id(func)] = operator
    return operator


def _operator(func: Any) -> Operator:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Operator(func, str(func), unknown="they run other operators inside")
    space, _, name = schema.name.partition("::")
    reads: list[Place] = []
    writes: list[Place] = []
    for position, argument in enumerate(schema.arguments):
        if "Tensor" in str(argument.type):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            is_written |= name in _ALWAYS_RUN and argument.name in _RUNNING
            (writes if is_written else reads).append((position, argument.name))
    tags = getattr(func, "tags", ())
    trained = [one for one in reads if name in _RUN_IN_TRAINING and one[1] in _RUNNING]
    moves = name in _MOVES or torch.Tag.inplace_view in tags
    # Factories look at the shape of what they are given.
    makes_alike = name.endswith("_like") or name.startswith("new_")
    return Operator(
        func,
        name,
        space,
        tuple(sorted((*reads, *writes))),
        () if makes_alike else tuple(reads),
        tuple(writes),
        tuple(trained),
        is_view=bool(getattr(func, "is_view", False)) or moves or name in _UNSAFE_VIEWS,
        moves=moves,
        fills=not name.removeprefix("new_").startswith("empty"),
        waits=name in _WAITING or (name not in _BY_MASK and not _BY_VALUES.isdisjoint(tags)),
        of_torch=space == "aten",
        composite=_is_composite(func),
    )


def _is_composite(func: Any) -> bool:
    def has(key: str) -> bool:
        try:
            return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))
        except RuntimeError:  # `aten::sym_size` and its like are no operators of the dispatcher
            return False

    return has("CompositeImplicitAutograd") and not has("CPU")


def tensors_written(operator: Operator, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Returns the tensors that a call of an operator writes, those in lists too."""
    written = tensors_at(operator.writes, args, kwargs)
    place, name = _TRAINING
    if operator.trained and (args[place] if place < len(args) else kwargs.get(name)):
        written += tensors_at(operator.trained, args, kwargs)
    return written


def tensors_at(places: tuple[Place, ...], args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Returns the tensors at some places of a call, those in lists too."""
    found: list[torch.Tensor] = []
    given = len(args)
    for position, name in places:
        value = args[position] if position < given else kwargs.get(name)
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [one for one in value if isinstance(one, torch.Tensor)]
    return found
