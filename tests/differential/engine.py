"""An engine of a relay and of graph inputs, as random programs use it."""

from __future__ import annotations

import torch

ROWS, MOST = 8, 8

CONTRACT = """
    [engine]
    name = "differential"

    [[relay]]
    class = "tests.differential.engine:Relay"
    sink_rows = [0]

    [[relay.buffer]]
    name = "tokens"
    valid = ">= 0"

    [[relay.buffer]]
    name = "hidden"

    [graph_inputs]
    row_indices = ["rows"]
    index_like = ["positions"]

    [[graph_inputs.fill]]
    class = "tests.differential.engine:Runner"
    methods = ["run"]
    inputs = "self.inputs"
    settled_by = ["replay"]
    axis.rows = { raw = "raw", padded = "self.padded", capacity = "self.most" }
"""


class Relay:
    """Values of each row, from one iteration to the next."""

    def __init__(self) -> None:
        self.tokens = torch.full((ROWS,), -1)
        self.hidden = torch.zeros((ROWS, 2))

    def stash(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        self.tokens[rows] = values
        self.hidden[rows] = values.float()[:, None]

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens[rows], self.hidden[rows]

    def gather_otherwise(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens.index_select(0, rows), torch.index_select(self.hidden, 0, rows)


class Runner:
    """Inputs of a captured graph, filled up to a batch's size and replayed whole."""

    def __init__(self) -> None:
        self.most, self.padded = MOST, 6
        self.inputs = {"rows": torch.zeros(MOST).long(), "positions": torch.zeros(MOST).long()}

    def run(self, values: torch.Tensor, raw: int, resets: bool) -> torch.Tensor:
        for one in self.inputs.values():
            one[:raw].copy_(values[:raw])
            if resets:
                one[raw : self.padded].fill_(0)
        return self.replay()

    def replay(self) -> torch.Tensor:
        return self.inputs["rows"][: self.padded] * 2 + self.inputs["positions"][: self.padded]
