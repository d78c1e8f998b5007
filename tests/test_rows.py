"""Which rows an index expression touches, through any view, against torch itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fmcheck.runtime.core import rows

if TYPE_CHECKING:
    from collections.abc import Callable

BUFFER = torch.arange(6 * 4).reshape(6, 4)

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda t: t,
    "slice": lambda t: t[2:5],
    "strided": lambda t: t[1::2],
    "row": lambda t: t[3],
    "column": lambda t: t[:, 1],
    "columns": lambda t: t[:, 1:3],
    "flat": lambda t: t.view(-1),
    "part of the flat": lambda t: t.view(-1)[5:11],
    "transposed": lambda t: t.T,
    "reshaped": lambda t: t.view(3, 2, 4),
    "expanded": lambda t: t[2:3].expand(3, 4),
    "empty": lambda t: t[2:2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_row_of_each_element_of_a_view(name: str) -> None:
    view = VIEWS[name](BUFFER)
    found = rows.row_map(view.shape, view.stride(), view.storage_offset(), 4)
    assert found.tolist() == (view // 4).tolist()


def test_the_map_of_a_whole_buffer_costs_one_number_a_row() -> None:
    found = rows.row_map((1000, 512, 64), (512 * 64, 64, 1), 0, 512 * 64)
    assert found.strides[1:] == (0, 0)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (np.array([1, 2]), True),
        (np.array([], np.int64), True),
        (np.zeros(6, bool), True),
        (np.zeros((6, 4), bool), True),
        ([1, 2], True),
        ((np.array([1]), slice(None)), True),
        ((np.array([1]), np.array([1])), True),
        ((None, np.array([1])), True),
        ((slice(None), np.array([1])), False),
        ((Ellipsis, np.array([1])), False),
        ((slice(1, 3), np.array([1])), False),
        ((2, np.array([1])), False),
        (2, False),
        (slice(None), False),
        (Ellipsis, False),
    ],
)
def test_an_index_selects_rows_when_it_picks_along_them(expression: object, expected: bool) -> None:
    whole = rows.row_map((6, 4), (4, 1), 0, 4)
    assert rows.selects_rows(expression, 2, rows.row_dims(whole)) is expected


def test_a_view_of_one_row_has_none_to_select() -> None:
    row = rows.row_map((4,), (1,), 12, 4)
    assert not rows.selects_rows(np.array([1, 2]), 1, rows.row_dims(row))


def test_a_flat_view_selects_rows() -> None:
    flat = rows.row_map((24,), (1,), 0, 4)
    assert rows.selects_rows(np.array([1, 2]), 1, rows.row_dims(flat))


INDEX = torch.tensor([[1, 0], [5, 2], [3, 3]])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (rows.along(0, np.array([4, 1]), 2), BUFFER.index_select(0, torch.tensor([4, 1]))),
        (rows.along(-1, np.array([3, 1]), 2), BUFFER.index_select(1, torch.tensor([3, 1]))),
        (rows.elementwise(0, INDEX.numpy()), BUFFER.gather(0, INDEX)),
        (rows.elementwise(-1, INDEX.numpy() % 4), BUFFER.gather(1, INDEX % 4)),
        (
            rows.along_dim(0, np.array([[5], [1]]), (6, 4)),
            BUFFER.take_along_dim(torch.tensor([[5], [1]]), 0),
        ),
        (rows.flat(np.array([7, -1]), (6, 4)), BUFFER.take(torch.tensor([7, -1]))),
        (
            rows.masked(np.array([True, False, False, True]), (6, 4)),
            BUFFER.masked_select(torch.tensor([True, False, False, True])),
        ),
    ],
)
def test_each_way_of_picking_is_one_expression(expression: object, expected: torch.Tensor) -> None:
    assert BUFFER.numpy()[expression].tolist() == expected.tolist()  # type: ignore[index]


@pytest.mark.parametrize(
    ("mask", "shape", "picked"),
    [
        ([[[True, False]], [[False, False]]], (3, 2), [[True, False]] * 3),
        ([[True, False], [False, False]], (1, 2), [[True, False]]),
        ([True, False], (1,), [True]),
        ([False, False], (1, 1), [[False]]),
    ],
)
def test_what_a_mask_picks_several_times_it_picks(
    mask: list[object], shape: tuple[int, ...], picked: list[object]
) -> None:
    assert rows.masked(np.array(mask), shape).tolist() == picked


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_an_array_is_made_of_memory_alone() -> None:
    seen = rows.array_over(torch.arange(6).view(2, 3).t())
    assert seen.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert rows.array_over(torch.empty(0, 3, dtype=torch.bool)).shape == (0, 3)
    for without in (torch.empty(2, device="meta"), FakeTensorMode().from_tensor(torch.ones(2))):
        with pytest.raises(RuntimeError, match=r"without memory|data pointer"):
            rows.array_over(without)
