"""Places: which values of one function live on the device, and which on the host.

Each answer is yes alone: what nothing in the function tells of is neither.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from fmcheck.lint.devices.host_words import is_named_host
from fmcheck.lint.model.expressions import dotted, is_name, keywords, last_name
from fmcheck.lint.model.names import ByVersion
from fmcheck.lint.model.vocabulary import TO_HOST
from fmcheck.lint.source.lazy import cst
from fmcheck.regex import regex

if TYPE_CHECKING:
    from libcst import CSTNode

    from fmcheck.lint.model.function import Function

#: What a tensor is asked for, and hardly anything else is.
_TENSOR_ONLY = frozenset(
    (
        *("cumsum", "dim", "dtype", "int", "ndim", "numel", "reshape", "shape", "size"),
        *("sum", "unsqueeze", "view"),
    )
)
#: Annotations of tensors.
_TENSOR = regex(r"\b(?:\w*Tensor)\b")
#: Of these a container of tensors is annotated, and nobody knows what an element of it is.
_CONTAINER = regex(r"\b(?:[Ll]ist|[Dd]ict|[Tt]uple|Sequence|Iterable|Mapping|Union)\b")
#: Attributes of a tensor that are of the host.
_OF_HOST = frozenset({"device", "dtype", "is_cuda", "ndim", "shape"})
#: Methods of a tensor that give a number or a property.
_ASKS = frozenset(
    {"data_ptr", "dim", "element_size", "is_contiguous", "nelement", "numel", "size", "stride"}
)
#: What stands in an expression that names a device.
_DEVICE = regex(r"device|cuda|npu|xpu|hpu|musa")
#: How many steps a value is followed back.
_DEEPEST = 12


class Places:
    """Where the values of one function live."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._part = function.part
        self._names = function.names
        self._known = ByVersion(self._names)
        self._hosts = ByVersion(self._names)

    def on_device(self, node: CSTNode, depth: int = 0) -> bool:
        """Tells whether a value is a tensor that lives where the model runs."""
        if depth > _DEEPEST:
            return False
        if isinstance(node, (cst.Name, cst.Attribute)):
            return self._named(node, depth)
        if isinstance(node, cst.Subscript):
            return self.on_device(node.value, depth + 1)
        if isinstance(node, cst.Call):
            return self._called(node, depth + 1)
        if isinstance(node, cst.BinaryOperation):
            return any(self.on_device(one, depth + 1) for one in (node.left, node.right))
        if isinstance(node, cst.Comparison):
            return self.on_device(node.left, depth + 1)
        if isinstance(node, cst.UnaryOperation):
            return self.on_device(node.expression, depth + 1)
        return False

    def on_host(self, node: CSTNode, depth: int = 0) -> bool:
        """Tells whether a value's name, or the way it is made, says that the host holds it."""
        if depth > _DEEPEST:
            return False
        if isinstance(node, cst.Name):
            if is_named_host(node.value):
                return True
            return self._hosts.all(node, lambda one: self.on_host(one, depth + 1))
        if isinstance(node, cst.Attribute):
            return is_named_host(node.attr.value) or self.on_host(node.value, depth + 1)
        if isinstance(node, cst.Subscript):
            return self.on_host(node.value, depth + 1)
        if isinstance(node, cst.Call):
            if isinstance(node.func, cst.Attribute):
                word = node.func.attr.value
                return word in TO_HOST or self.on_host(node.func.value, depth + 1)
            return is_name(node.func, "len") or is_name(node.func, "list")
        return isinstance(node, (cst.List, cst.ListComp, cst.Tuple, cst.Integer, cst.Float))

    def _named(self, node: cst.Name | cst.Attribute, depth: int) -> bool:
        name = dotted(node)
        if name is None or is_named_host(name.rpartition(".")[2]):
            return False
        if isinstance(node, cst.Attribute) and node.attr.value in _OF_HOST:
            return False
        if isinstance(node, cst.Attribute):
            return self._is_attribute_of_device(name)
        return self._known.of(node, lambda: self._is_made_on_device(node, depth))

    def _is_attribute_of_device(self, name: str) -> bool:
        return self._is_shown(name) or (name.startswith("self.") and self._is_kept(name))

    def _is_made_on_device(self, node: cst.Name, depth: int) -> bool:
        values = [one for one in self._names.bound(node) if not is_name(one, "None")]
        if any(self._goes_to_host(one) or self.on_host(one) for one in values):
            return False
        if self._is_asked_for_cpu:
            return False
        told = self._is_told(node.value)
        if told is not None:
            return told
        return bool(values) and all(self.on_device(one, depth + 1) for one in values)

    def _is_told(self, name: str) -> bool | None:
        """Tells whether a name alone says that its tensor is on the device, None if it does not."""
        is_there = self._is_shown(name) or (name in self._tensors and self._knows_devices)
        return True if is_there else None

    def _is_shown(self, name: str) -> bool:
        return name in self._shown

    def _goes_to_host(self, value: CSTNode) -> bool:
        return isinstance(value, cst.Call) and (
            last_name(value.func) in TO_HOST or '"cpu"' in self._part.code(value)
        )

    def _called(self, call: cst.Call, depth: int) -> bool:
        given = keywords(call)
        name = self._part.module.resolve(dotted(call.func) or "")
        if "device" in given and (name.startswith("torch.") or _makes(call)):
            return not may_be_host(self._part.code(given["device"]))
        args = [one.value for one in call.args]
        if not isinstance(call.func, cst.Attribute):
            return False
        word, held = call.func.attr.value, call.func.value
        if word in TO_HOST or word in _ASKS:
            return False
        if word == "to":
            text = self._part.code(args[0]) if args else ""
            if may_be_host(text):
                return False
            return is_accelerator(text) or self.on_device(held, depth)
        if word == "cuda":
            return True
        owner = self._part.module.resolve(dotted(held) or "")
        if owner == "torch" or owner.startswith("torch.nn.functional") or owner == "F":
            return any(self.on_device(one, depth) for one in args[:2])
        return self.on_device(held, depth)

    def _is_kept(self, name: str) -> bool:
        """Tells whether the class makes an attribute on the device, wherever it makes it."""
        from fmcheck.lint.model.function import bound_in_class

        leaf = name.removeprefix("self.")
        family = self._part.stretch.family
        if "." in leaf or family is None:
            return False
        memo: dict[tuple[int, str], bool] = self._part.module.memo.setdefault("kept", {})
        key = (family.place.start, leaf)
        if key not in memo:
            memo[key] = False
            made = [
                _puts_on_device(value, function)
                for value, function in bound_in_class(name, self._part)
                if not is_name(value, "None")
            ]
            memo[key] = bool(made) and all(made)
        return memo[key]

    @cached_property
    def _tensors(self) -> set[str]:
        """The parameters that are annotated as tensors."""
        params = self._function.node.params
        found = set()
        for one in (*params.posonly_params, *params.params, *params.kwonly_params):
            text = self._part.code(one.annotation.annotation) if one.annotation else ""
            if _TENSOR.search(text) and not _CONTAINER.search(text):
                found.add(one.name.value)
        return found

    @cached_property
    def _knows_devices(self) -> bool:
        """Tells whether the function asks a tensor for its device, or its class has one."""
        if self._function.name.startswith("forward") or self._shown:
            return True
        family = self._part.stretch.family
        return self._part.is_nested and family is not None and "self.device" in family.text

    @cached_property
    def _is_asked_for_cpu(self) -> bool:
        """Tells whether the function compares a device with the CPU: it may be there."""
        return any("cpu" in self._part.code(one.test) for one in self._function.of(cst.Assert))

    @cached_property
    def _shown(self) -> set[str]:
        """The names of tensors whose device is the device: others are made where they are."""
        asked = {name for name, word in self._asked if word == "device"}
        tensors = {name for name, word in self._asked if word in _TENSOR_ONLY} | self._tensors
        shown = asked & tensors
        # One object's tensors live together, but for those that say otherwise.
        held = {name.rpartition(".")[0] for name in asked if "." in name} - {"self"}
        beside = {name for name in tensors if name.rpartition(".")[0] in held}
        return shown | beside

    @cached_property
    def _asked(self) -> set[tuple[str, str]]:
        attributes = self._function.of(cst.Attribute)
        named = ((dotted(one.value), one.attr.value) for one in attributes)
        return {(name, word) for name, word in named if name is not None}


class CertainPlaces(Places):
    """The same, where it leaves little doubt.

    A tensor is on the device that was made or moved there, that a layer with weights or `forward`
    is handed, or on whose device others are made; but not what a model's inputs are prepared with.
    """

    def _is_shown(self, name: str) -> bool:
        return super()._is_shown(name) and not _PREPARED.search(name.rpartition(".")[2])

    def _is_told(self, name: str) -> bool | None:
        if name in self._handed or self._is_shown(name) or self._is_of_forward(name):
            return True
        # What a parameter was before it was bound again, nobody knows.
        return False if name in self._function.parameters else None

    def _called(self, call: cst.Call, depth: int) -> bool:
        if _is_layer(call, self._function):
            return True
        return super()._called(call, depth)

    def _is_of_forward(self, name: str) -> bool:
        """Tells whether `forward` is handed a tensor of this name, which is where the model is."""
        if not self._function.name.lstrip("_").startswith("forward") or not self._part.is_nested:
            return False
        return name in self._tensors and not _PREPARED.search(name)

    @cached_property
    def _handed(self) -> set[str]:
        """The names of what layers with weights are handed: it is where they are."""
        return {
            call.args[0].value.value
            for call in self._function.calls
            if call.args
            and isinstance(call.args[0].value, cst.Name)
            and _is_layer(call, self._function)
        }


#: Names of what is prepared for a model, on the host as likely as not.
_PREPARED = regex(
    r"(^|_)(\w*grid\w*|thw|\w*sizes?|image\w*|video\w*|audio\w*|pixel\w*|patch\w*|timesteps?|"
    r"shapes?|offsets?|config\w*|scale|scales|rewards?|labels?|targets?)(_|$)"
)
#: Layers that have weights.
_LAYERS = regex(r"(^|\.)(\w*Linear|\w*Embedding|\w*Norm\w*|Conv\d?d?|\w*Conv\dd|GRU|LSTM)$")


def _is_layer(call: cst.Call, function: Function) -> bool:
    """Tells whether a call is that of a layer with weights which the class has made."""
    from fmcheck.lint.model.function import bound_in_class

    name = dotted(call.func) or ""
    leaf, family = name.removeprefix("self."), function.part.stretch.family
    if leaf == name or "." in leaf or family is None:
        return False
    memo: dict[tuple[int, str], bool] = function.module.memo.setdefault("layers", {})
    key = (family.place.start, leaf)
    if key not in memo:
        made = [value for value, _ in bound_in_class(name, function.part)]
        memo[key] = bool(made) and all(
            isinstance(one, cst.Call) and _LAYERS.search(dotted(one.func) or "") is not None
            for one in made
        )
    return memo[key]


def _makes(call: cst.Call) -> bool:
    """Tells whether a method makes a tensor of another one: `x.new_zeros`, `x.to`."""
    word = last_name(call.func)
    return word == "to" or word.startswith("new_")


def _puts_on_device(value: CSTNode, function: Function) -> bool:
    """Tells whether an expression makes a tensor with a device, or moves one there."""
    if not isinstance(value, cst.Call):
        return False
    given = keywords(value)
    if "device" in given:
        return not may_be_host(function.part.code(given["device"])) and (
            function.module.resolve(dotted(value.func) or "").startswith("torch.")
        )
    word = last_name(value.func)
    if word == "to" and value.args:
        text = function.part.code(value.args[0].value)
        return "device" in text and not may_be_host(text)
    return word == "cuda"


def may_be_host(device: str) -> bool:
    """Tells whether the text of a device says that it may be the host, or none at all."""
    return any(word in device.lower() for word in ("cpu", "none", "meta"))


def is_accelerator(device: str) -> bool:
    """Tells whether a text is that of a device, and of no host."""
    return _DEVICE.search(device) is not None and not may_be_host(device)
