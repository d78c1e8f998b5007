"""Literals: whether a call spells the host's name itself, or hands on an engine's setting.

On a CPU `device="cpu"` and `device=self.device` give the same string. The code that calls tells
them apart: the first loads the name as a constant. `torch.device("cpu")` among the arguments is
such a name too.
"""

from __future__ import annotations

import dis
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

_HOST = "cpu"
#: What puts something of a value's own in its place.
_OF_ITS_OWN = ("LOAD_ATTR", "LOAD_METHOD")
#: What makes a device of a name, and what some Pythons have between the name and its call.
_MAKER = "device"
_BETWEEN = ("PRECALL", "CACHE", "PUSH_NULL", "EXTENDED_ARG")


def spells_host(frame: FrameType | None) -> bool:
    """Tells whether the call that a frame is in has the host's name among its own arguments.

    A name that is bound first counts for none. Beside a condition it may count or not: Python
    compiles the call once for both branches, or once for each.
    """
    if frame is None or _HOST not in frame.f_code.co_consts:
        return False
    return _spells_at(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=4096)
def _spells_at(code: CodeType, at: int) -> bool:
    """Follows what lies on the stack of a straight piece of code, up to the call at an offset."""
    # The offset may be that of a cache which follows the call.
    before = [one for one in dis.get_instructions(code) if one.offset <= at]
    call = before.pop()
    depth, names = 0, list[int]()  # where the host's name lies
    for number, instruction in enumerate(before):
        if instruction.is_jump_target:
            names = []
        if instruction.opname == "LOAD_CONST" and instruction.argval == _HOST:
            names.append(depth)
        if instruction.opname in _OF_ITS_OWN:
            names = [one for one in names if one != depth - 1]
        depth += _effect(instruction)
        names = [one for one in names if one < depth]
        if instruction.opname.startswith("CALL") and _makes_host(before, number):
            names.append(depth - 1)
    # On some Pythons the names of the arguments by keyword lie above those.
    return any(one >= depth - (call.arg or 0) - 1 for one in names)


def _makes_host(code: Sequence[dis.Instruction], at: int) -> bool:
    """Tells whether one of some instructions is the call in `device("cpu")`."""
    last = [one for one in code[max(0, at - 6) : at] if one.opname not in _BETWEEN][-2:]
    return code[at].arg == 1 and [one.argval for one in last] == [_MAKER, _HOST]


def _effect(instruction: dis.Instruction) -> int:
    if instruction.opname == "PRECALL":  # 3.11 counts there what its CALL takes
        return 0
    if instruction.opname == "CALL":
        return -(instruction.arg or 0) - 1
    return dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
