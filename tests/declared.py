"""Parts of the contracts of toy engines; `MODULE` stands for the module of the engine."""

from __future__ import annotations

ENGINE = """
    [engine]
    name = "toy"
"""


def relay(name: str, buffer: str, more: str = "") -> str:
    return f"""
    [[relay]]
    class = "MODULE:{name}"
    {more}
    [[relay.buffer]]
    name = "{buffer}"
    valid = ">= 0"
"""


def pool(owner: str = "rid", freed: str = "row") -> str:
    return f"""
    [[owners]]
    functions = ["MODULE:Pool.alloc"]
    does = "hands out"
    rows = "return"
    owner = "{owner}"

    [[owners]]
    functions = ["MODULE:Pool.free"]
    does = "takes back"
    rows = "{freed}"
"""


def steps(*functions: str) -> str:
    named = ", ".join(f'"MODULE:{one}"' for one in functions)
    return f"""
    [[steps]]
    functions = [{named}]
"""


def kernel(function: str, buffer: str) -> str:
    return f"""
    [[opaque]]
    functions = ["MODULE:{function}"]
    rows = "rows"
    reads = ["{buffer}"]
"""


GRAPH_INPUTS = """
    [graph_inputs]
    row_indices = ["rows"]
"""


def fill(name: str, raw: str, more: str = "") -> str:
    return f"""
    [[graph_inputs.fill]]
    class = "MODULE:{name}"
    methods = ["fill"]
    {more}
    inputs = "self"
    axis.rows = {{ raw = "{raw}", padded = "self.size", capacity = "self.most" }}
"""
