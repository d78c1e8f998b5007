"""Relays of other shapes: units that are no rows, sinks that are computed, values read often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fmcheck.errors import UsageError
from tests.test_relay_patches import Bench, bench, codes  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from fmcheck.runtime.session.watch import Watch

ENGINE = """
    import numpy as np
    import torch

    class Table:
        def __init__(self, rows=6, width=4):
            self.table = torch.zeros((rows, width), dtype=torch.int64)

    class Layers:
        def __init__(self, rows=6):
            self.hidden = torch.zeros((2, rows, 3))

    class Tokens:
        def __init__(self, rows=6):
            self.tokens = torch.zeros(rows, dtype=torch.int64)
            self.pad_row = rows - 2

    class Pool:
        def __init__(self):
            self.free = [1, 2, 3, 4, 5]
            self.row_of = {}

        def alloc(self, reqs):
            rows = [self.free.pop(0) for _ in reqs]
            for req, row in zip(reqs, rows):
                self.row_of[req] = row
            return len(rows), rows

        def drop(self, req):
            self.free.insert(0, self.row_of[req])
            del self.row_of[req]
"""
HEAD = """
    [engine]
    name = "toy"
"""
RELAY = """
    [[relay]]
    class = "MODULE:{}"
    {}

    [[relay.buffer]]
    name = "{}"
    {}
"""
OWNERS = """
    [[owners]]
    functions = ["MODULE:Pool.alloc"]
    does = "hands out"
    rows = "return[1]"
    owner = "reqs[]"

    [[owners]]
    functions = ["MODULE:Pool.drop"]
    does = "takes back"
    rows = "self.row_of[req]"
"""


def declared(class_: str, buffer: str, more: str = "", relay: str = "", owners: str = "") -> str:
    return HEAD + RELAY.format(class_, relay, buffer, more) + owners


def begun(bench: Bench, text: str) -> tuple[ModuleType | Any, Watch]:  # noqa: F811
    return bench.engine(text, ENGINE)


# --- the unit is the element ---

TABLE = declared(
    "Table",
    "table",
    'unit = "element"\n    reads = "many"\n    overwrite = "always"',
    owners=OWNERS,
)


def table_of(bench: Bench, text: str = TABLE) -> tuple[Any, Any, Watch]:  # noqa: F811
    engine, watch = begun(bench, text)
    made, pool = engine.Table(), engine.Pool()
    pool.alloc(["a", "b"])
    return made, pool, watch


def test_a_position_that_nobody_wrote_is_read_before_it_is_written(bench: Bench) -> None:  # noqa: F811
    made, _, watch = table_of(bench)
    rows, columns = torch.tensor([1, 1, 2]), torch.tensor([0, 1, 0])
    made.table[rows, columns] = torch.tensor([7, 8, 9])
    assert made.table[rows, columns].tolist() == [7, 8, 9]
    assert codes(watch) == []
    made.table[rows, columns + 1]
    (violation,) = watch.drain()
    assert (violation.code, violation.rows, violation.owner) == ("FR101", (1, 2), "a")
    assert violation.notes[0] == "of row 1 it is about unit 2"


def test_what_lies_behind_a_rows_own_end_is_padding(bench: Bench) -> None:  # noqa: F811
    made, _, watch = table_of(bench)
    made.table[1, :3] = torch.tensor([7, 8, 9])
    made.table[2, :1] = torch.tensor([7])
    made.table[torch.tensor([1, 2, 0]), :4]
    made.table[torch.tensor([1, 2])]
    made.table[torch.tensor([[1], [2]]), torch.arange(4)]
    assert codes(watch) == []
    assert watch.coverage().counts.unseen_writes == 0


def test_a_hole_in_a_row_and_a_row_without_any_value_are_reported(bench: Bench) -> None:  # noqa: F811
    made, _, watch = table_of(bench)
    made.table[1, 2:3] = torch.tensor([9])
    made.table[torch.tensor([1, 2]), :3]
    (violation,) = watch.drain()
    assert (violation.code, violation.rows, violation.row_count) == ("FR101", (1, 2), 2)
    assert violation.notes[0] == "of row 1 it is about units 0, 1"


def test_a_list_of_positions_means_each_of_them(bench: Bench) -> None:  # noqa: F811
    made, _, watch = table_of(bench)
    made.table[1, :2] = torch.tensor([7, 8])
    made.table[torch.tensor([1, 1]), torch.tensor([1, 2])]
    assert codes(watch) == ["FR101"]


def test_positions_of_the_owner_before_are_stale(bench: Bench) -> None:  # noqa: F811
    made, pool, watch = table_of(bench)
    made.table[1, :3] = torch.tensor([7, 8, 9])
    assert codes(watch) == []
    # Nobody has read them, and the row goes to the next one, who writes the last of them alone.
    text = TABLE.replace('overwrite = "always"', "")
    made, pool, watch = table_of(bench, text)
    made.table[1, :3] = torch.tensor([7, 8, 9])
    pool.drop("a")
    pool.alloc(["c"])
    made.table[torch.tensor([1]), torch.tensor([2])] = torch.tensor([5])
    made.table[torch.tensor([1]), :3]
    (violation,) = watch.drain()
    assert (violation.code, violation.owner, violation.previous_owner) == ("FR104", "c", "a")


def test_a_table_may_be_read_any_number_of_times(bench: Bench) -> None:  # noqa: F811
    made, _, watch = table_of(bench)
    made.table[1, :2] = torch.tensor([7, 8])
    for _ in range(3):
        made.table[torch.tensor([1]), :2]
    assert codes(watch) == []
    made, _, watch = table_of(bench, TABLE.replace('"many"', '"once"'))
    made.table[1, :2] = torch.tensor([7, 8])
    for _ in range(2):
        made.table[torch.tensor([1]), :2]
    assert codes(watch) == ["FR102"]


def test_some_columns_may_be_a_unit(bench: Bench) -> None:  # noqa: F811
    made, _, watch = table_of(bench, TABLE.replace('"element"', "2"))
    made.table[1, :2] = torch.tensor([7, 8])
    made.table[torch.tensor([1]), :4]
    assert codes(watch) == []
    made.table[torch.tensor([1, 1]), torch.tensor([2, 3])]
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR101", (1,))
    assert violation.notes[0] == "of row 1 it is about unit 1"


def test_a_table_that_is_too_wide_is_named_and_not_half_watched(
    bench: Bench,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fmcheck.runtime.relay import row_layout

    monkeypatch.setattr(row_layout, "MOST_UNITS", 20)
    engine, watch = begun(bench, TABLE)
    made = engine.Table()
    assert type(made.table) is torch.Tensor
    (problem,) = watch.coverage().problems
    assert "buffer `table`: could not be instrumented" in problem
    assert "24 units are too many" in problem


def test_rows_that_columns_do_not_divide_are_named(bench: Bench) -> None:  # noqa: F811
    engine, watch = begun(bench, TABLE.replace('"element"', "3"))
    engine.Table()
    (problem,) = watch.coverage().problems
    assert "unit: expected rows of a multiple of 3 columns, got 6x4" in problem


# --- rows in another dimension ---


@pytest.mark.parametrize("dim", [1, -2])
def test_rows_may_be_counted_by_another_dimension(bench: Bench, dim: int) -> None:  # noqa: F811
    engine, watch = begun(bench, declared("Layers", "hidden", f"row_dim = {dim}"))
    made, rows = engine.Layers(), torch.tensor([1, 3])
    made.hidden[:, rows] = torch.ones(2, 2, 3)
    made.hidden[:, rows]
    assert codes(watch) == []
    made.hidden[:, rows]
    made.hidden[1].index_select(0, torch.tensor([4]))
    found = {one.code: one.rows for one in watch.drain()}
    assert found == {"FR102": (1, 3), "FR101": (4,)}


def test_a_dimension_that_is_not_there_is_named(bench: Bench) -> None:  # noqa: F811
    engine, watch = begun(bench, declared("Layers", "hidden", "row_dim = 3"))
    engine.Layers()
    (problem,) = watch.coverage().problems
    assert "row_dim = 3: expected a tensor with such a dimension, got 3" in problem


# --- sinks that are computed ---


@pytest.mark.parametrize("sink", ["-2", '"self.pad_row"'])
def test_a_sink_may_be_computed(bench: Bench, sink: str) -> None:  # noqa: F811
    text = declared("Tokens", "tokens", 'valid = ">= 0"', relay=f"sink_rows = [{sink}]")
    engine, watch = begun(bench, text)
    made = engine.Tokens()
    for _ in range(2):
        assert made.tokens[torch.tensor([4, 4])].tolist() == [0, 0]
    assert codes(watch) == []
    made.tokens[torch.tensor([0])]
    assert codes(watch) == ["FR101"]
    assert watch.coverage().problems == ()


def test_a_sink_that_leads_nowhere_is_named_with_the_nearest(bench: Bench) -> None:  # noqa: F811
    text = declared("Tokens", "tokens", relay='sink_rows = ["self.pad_rows"]')
    engine, watch = begun(bench, text)
    engine.Tokens()
    (problem,) = watch.coverage().problems
    assert "sink_rows: path `self.pad_rows`: there is no `pad_rows`; did you mean" in problem


# --- owners through subscripts ---


def test_owners_are_found_through_subscripts(bench: Bench) -> None:  # noqa: F811
    text = declared("Tokens", "tokens", 'valid = ">= 0"', owners=OWNERS)
    engine, watch = begun(bench, text)
    made, pool = engine.Tokens(), engine.Pool()
    pool.alloc(["a"])
    made.tokens[torch.tensor([1])] = torch.tensor([7])
    pool.drop("a")
    pool.alloc(["b"])
    made.tokens[torch.tensor([1])]
    (violation,) = watch.drain()
    assert (violation.code, violation.owner, violation.previous_owner) == ("FR104", "b", "a")
    assert watch.coverage().problems == ()


# --- bad input ---

BAD = {
    'unit = "elements"': "unit`: expected `row`, `element` or a number of columns, got `elements`; "
    "did you mean `element`?",
    "unit = 0": "unit`: expected 1 column or more, got 0",
    'unit = "element"\nrow_dim = 1': "unit`: expected `row` where `row_dim` is 1",
    'reads = "often"': "reads`: expected one of `once`, `many`, got `often`",
    "row_dims = 1": "row_dims`",
}


@pytest.mark.parametrize("line", BAD)
def test_a_wrong_word_is_named_with_what_was_expected(bench: Bench, line: str) -> None:  # noqa: F811
    with pytest.raises(UsageError) as caught:
        bench.contract(declared("Tokens", "tokens", line.replace("\n", "\n    ")))
    assert BAD[line] in str(caught.value)


# --- attributes that are bound again ---

MIRROR = """
    import torch

    class Mirror:
        def __init__(self, rows=6):
            self.lens = torch.zeros(rows, dtype=torch.int64)

        def publish(self, lens):
            self.lens = lens

    class Pool:
        def __init__(self):
            self.free = [1, 2, 3]

        def alloc(self, reqs):
            return len(reqs), [self.free.pop(0) for _ in reqs]
"""
HANDS_OUT = OWNERS[: OWNERS.rindex("[[owners]]")]


def mirror_of(bench: Bench, more: str = "", streams: str = "off") -> tuple[Any, Watch]:  # noqa: F811
    from fmcheck.runtime.session.watch import Watch

    bench.write(MIRROR)
    text = declared("Mirror", "lens", more, owners=HANDS_OUT)
    watch = Watch([bench.contract(text)], streams=streams)
    bench.watches.append(watch)
    watch.start()
    import importlib

    engine = importlib.import_module(bench.name)
    made = engine.Mirror()
    engine.Pool().alloc(["a", "b"])
    return made, watch


def test_a_bind_is_a_write_of_all_rows(bench: Bench) -> None:  # noqa: F811
    made, watch = mirror_of(bench)
    rows = torch.tensor([1, 2])
    for step in range(3):
        made.publish(torch.tensor([0, step, step + 1, 0, 0, 0]))
        made.lens[rows]
    assert codes(watch) == []
    made.lens[rows]
    assert codes(watch) == ["FR102"]


def test_a_bind_before_any_row_is_held_is_followed_too(bench: Bench) -> None:  # noqa: F811
    from fmcheck.runtime.session.watch import Watch

    bench.write(MIRROR)
    watch = Watch([bench.contract(declared("Mirror", "lens", owners=HANDS_OUT))], streams="off")
    bench.watches.append(watch)
    watch.start()
    import importlib

    made = importlib.import_module(bench.name).Mirror()
    made.publish(torch.zeros(6, dtype=torch.int64))
    made.publish(torch.ones(6, dtype=torch.int64))
    assert (codes(watch), watch.coverage().problems) == ([], ())


def test_a_bind_over_what_nobody_gathered_loses_it(bench: Bench) -> None:  # noqa: F811
    made, watch = mirror_of(bench)
    made.publish(torch.tensor([0, 5, 6, 0, 0, 0]))
    made.publish(torch.tensor([0, 5, 7, 9, 0, 0]))  # row 1 goes on, row 3 is nobody's
    (violation,) = watch.drain()
    assert (violation.code, violation.rows, violation.owner) == ("FR103", (2,), "b")
    assert violation.last_write is not None
    sites = (violation.last_write.site, violation.access.site)
    assert [one.function for one in sites] == ["Mirror.publish"] * 2
    assert all(one.caller is not None and one.caller.path == __file__ for one in sites)


def test_values_that_are_dropped_by_design_may_be_bound_over(bench: Bench) -> None:  # noqa: F811
    made, watch = mirror_of(bench, 'overwrite = "always"')
    for value in (5, 6):
        made.publish(torch.full((6,), value))
    assert codes(watch) == []


@pytest.mark.parametrize("fenced", [True, False])
def test_what_is_bound_was_written_by_whoever_made_it(bench: Bench, fenced: bool) -> None:  # noqa: F811
    made, watch = mirror_of(bench, streams="tracked")
    forward, schedule = torch.cpu.Stream(), torch.cpu.Stream()
    for stream in (forward, schedule):
        stream.wait_stream(torch.cpu.current_stream())
    with torch.cpu.stream(forward):
        made.publish(torch.arange(6) * 2)
    if fenced:
        schedule.wait_stream(forward)
    with torch.cpu.stream(schedule):
        made.lens[torch.tensor([1, 2])]
    found = [(one.code, one.access.verb) for one in watch.drain()]
    assert [code for code, _ in found] == ([] if fenced else ["FR401"])


@pytest.mark.parametrize("fenced", [True, False])
def test_the_engine_s_own_tensor_is_followed_beside_the_buffer(bench: Bench, fenced: bool) -> None:  # noqa: F811
    made, watch = mirror_of(bench, streams="tracked")
    forward, copy = torch.cpu.Stream(), torch.cpu.Stream()
    forward.wait_stream(torch.cpu.current_stream())
    with torch.cpu.stream(forward):
        lens = torch.arange(6) * 2
        made.publish(lens)
        made.lens[torch.tensor([1, 2])]
    if fenced:
        copy.wait_stream(forward)
    with torch.cpu.stream(copy):
        lens.clone()
    found = [(one.code, one.access.verb) for one in watch.drain()]
    assert found == ([] if fenced else [("FR401", "read")])


# --- columns of one row on two streams ---


@pytest.mark.parametrize(("unit", "expected"), [("element", []), ("row", ["FR401"])])
def test_two_streams_may_write_two_columns_of_a_row(
    bench: Bench,  # noqa: F811
    unit: str,
    expected: list[str],
) -> None:
    from fmcheck.runtime.session.watch import Watch

    bench.write(ENGINE)
    text = declared("Table", "table", f'unit = "{unit}"')
    watch = Watch([bench.contract(text)], streams="tracked")
    bench.watches.append(watch)
    watch.start()
    import importlib

    made = importlib.import_module(bench.name).Table()
    rows = torch.tensor([1, 2])
    first, second = torch.cpu.Stream(), torch.cpu.Stream()
    for column, stream in enumerate((first, second)):
        stream.wait_stream(torch.cpu.current_stream())
        with torch.cpu.stream(stream):
            made.table[rows, column] = torch.tensor([7, 8])
    assert codes(watch) == expected


# --- arrays of NumPy's ---

BLOCKS = """
    import numpy as np
    import torch

    class Blocks:
        def __init__(self, rows=6, width=4):
            self.table = np.zeros((rows, width), dtype=np.int64)
            self.lens = np.empty(rows, dtype=np.int32)
            self.known = np.arange(rows)
"""


def blocks_of(bench: Bench, more: str = "") -> tuple[Any, Watch]:  # noqa: F811
    text = declared("Blocks", "*", more)
    engine, watch = bench.engine(text, BLOCKS)
    return engine.Blocks(), watch


def test_an_array_is_followed_row_by_row(bench: Bench) -> None:  # noqa: F811
    made, watch = blocks_of(bench)
    rows = np.array([1, 2])
    made.table[rows] = np.array([[1, 2, 3, 4]] * 2)
    made.lens[rows] = 3
    gathered = made.table[rows]
    assert (type(gathered), gathered.tolist()) == (np.ndarray, [[1, 2, 3, 4]] * 2)
    assert made.lens[rows].tolist() == [3, 3]
    assert codes(watch) == []
    made.table[rows]
    made.lens[np.array([4])]
    found = {one.code: (one.buffer, one.rows, one.access.site.path) for one in watch.drain()}
    assert found == {
        "FR102": ("Blocks.table", (1, 2), __file__),
        "FR101": ("Blocks.lens", (4,), __file__),
    }


def test_an_array_that_is_made_with_values_has_them(bench: Bench) -> None:  # noqa: F811
    made, watch = blocks_of(bench)
    assert made.known[np.array([3])].tolist() == [3]
    assert codes(watch) == []


ARRAY_WRITES = {
    "a row": lambda a: a.__setitem__(1, [7, 8, 9, 1]),
    "a part of a row": lambda a: a[1].__setitem__(slice(None), 7),
    "a view's": lambda a: a[1:3].T.__setitem__(..., 7),
    "fill": lambda a: a.fill(7),
    "out": lambda a: np.add(a, 7, out=a),
    "in place": lambda a: a[1:2].__iadd__(7),
    "copyto": lambda a: np.copyto(a[1:2], 7),
    "put": lambda a: a.put([4, 5, 6, 7], 7),
    "at": lambda a: np.add.at(a, np.array([1]), 7),
}


@pytest.mark.parametrize("how", ARRAY_WRITES)
def test_a_write_by_numpy_is_a_write(bench: Bench, how: str) -> None:  # noqa: F811
    made, watch = blocks_of(bench)
    plain = np.zeros((6, 4), np.int64)
    ARRAY_WRITES[how](made.table)
    ARRAY_WRITES[how](plain)
    assert made.table.tolist() == plain.tolist()
    made.table[np.array([1])]
    assert codes(watch) == []
    assert watch.coverage().counts.unseen_writes == 0


def test_what_numpy_makes_of_an_array_is_plain(bench: Bench) -> None:  # noqa: F811
    made, watch = blocks_of(bench)
    made.table[1] = 5
    for one in (made.table + 1, made.table.copy(), made.table.astype(np.int32), made.table.sum(0)):
        assert type(one) is np.ndarray
    assert type(made.table.reshape(-1)) is not np.ndarray
    assert (repr(made.known[:2]), str(made.table[1])) == ("array([0, 1])", "[5 5 5 5]")
    import copy
    import pickle

    assert type(copy.deepcopy(made.table)) is np.ndarray
    assert type(pickle.loads(pickle.dumps(made.table))) is np.ndarray
    assert codes(watch) == []


def test_an_array_that_cannot_be_followed_is_named(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(
        declared("Blocks", "names"),
        BLOCKS.replace("self.known = np.arange(rows)", 'self.names = np.array(["a"], object)'),
    )
    engine.Blocks()
    (problem,) = watch.coverage().problems
    assert "buffer `names`: could not be instrumented" in problem


# --- what the sink holds ---


def test_a_sink_that_holds_what_a_capture_left_is_reported(bench: Bench) -> None:  # noqa: F811
    engine, watch = begun(bench, declared("Tokens", "tokens", "sink_holds = 0"))
    made, rows = engine.Tokens(), torch.tensor([1, 0, 0])
    made.tokens[rows] = torch.tensor([7, 0, 0])
    made.tokens[rows]
    assert codes(watch) == []
    made.tokens[rows] = torch.tensor([7, 9, 9])
    made.tokens[rows]
    (violation,) = watch.drain()
    assert (violation.code, violation.rows, violation.values) == ("FR204", (0,), ("9",))
    assert violation.expected == "0 in the sink row"


# --- one write that names a place twice ---

AGAIN = torch.tensor([1, 2, 1])
OTHERS = torch.tensor([3, 3, 2])
TWO_VALUES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a row, one column": ("element", lambda t: t.__setitem__((AGAIN, 2), values(3))),
    "a row, columns": ("element", lambda t: t.__setitem__((AGAIN, slice(1, 3)), values(3, 2))),
    "a row and no more": ("element", lambda t: t.__setitem__(AGAIN, values(3, 4))),
    "a view's row": ("element", lambda t: t[:, 1:].__setitem__(AGAIN, values(3, 3))),
    "a row of columns": ("2", lambda t: t.__setitem__((AGAIN, slice(2, 4)), values(3, 2))),
    "a whole row by parts": ("row", lambda t: t.__setitem__((AGAIN, 2), values(3))),
    "row and column": (
        "element",
        lambda t: t.__setitem__((AGAIN, torch.tensor([2, 2, 2])), values(3)),
    ),
}
ONE_VALUE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "the same value": (
        "element",
        lambda t: t.__setitem__((AGAIN, slice(1, 3)), torch.ones(3, 2, dtype=torch.int64)),
    ),
    "a value for all": (
        "element",
        lambda t: t.__setitem__((AGAIN, slice(1, 3)), torch.tensor([4, 5])),
    ),
    "other columns": ("element", lambda t: t.__setitem__((AGAIN, OTHERS), values(3))),
    "other columns of a row": ("row", lambda t: t.__setitem__((AGAIN, OTHERS), values(3))),
    "columns of a row, turned": (
        "row",
        lambda t: t[1:].T.__setitem__(torch.arange(3), values(3, 5)),
    ),
    "added up": (
        "element",
        lambda t: t.index_put_((AGAIN, AGAIN), values(3), accumulate=True),
    ),
    "the sink": (
        "element",
        lambda t: t.__setitem__((torch.zeros(2, dtype=torch.int64), 1), values(2)),
    ),
}


def values(*shape: int) -> torch.Tensor:
    return torch.arange(1, 1 + int(np.prod(shape))).view(shape)


def pool_of(bench: Bench, unit: str) -> tuple[Any, Watch]:  # noqa: F811
    shown = unit if unit.isdecimal() else f'"{unit}"'
    more = f'unit = {shown}\n    reads = "many"\n    overwrite = "always"'
    engine, watch = begun(bench, declared("Table", "table", more))
    return engine.Table(), watch


@pytest.mark.parametrize("how", TWO_VALUES)
def test_a_place_that_one_write_gives_two_values_is_reported(bench: Bench, how: str) -> None:  # noqa: F811
    unit, write = TWO_VALUES[how]
    made, watch = pool_of(bench, unit)
    write(made.table)
    assert codes(watch) == ["FR110"]


@pytest.mark.parametrize("how", ONE_VALUE)
def test_places_that_one_write_gives_one_value_are_right(bench: Bench, how: str) -> None:  # noqa: F811
    unit, write = ONE_VALUE[how]
    made, watch = pool_of(bench, unit)
    write(made.table)
    assert codes(watch) == []


# --- buffers of odd layouts ---

LAYOUTS = {
    "transposed": "torch.zeros(3, rows).t()",
    "part of one that was transposed": "torch.zeros(3, 16).t()[:rows]",
    "every second row": "torch.zeros(2 * rows, 3)[::2]",
    "one of two planes": "torch.zeros(2, rows, 3)[1]",
}


@pytest.mark.parametrize("made", LAYOUTS.values(), ids=LAYOUTS)
def test_rows_are_rows_however_they_lie_in_memory(bench: Bench, made: str) -> None:  # noqa: F811
    source = ENGINE.replace("torch.zeros((2, rows, 3))", made)
    engine, watch = bench.engine(declared("Layers", "hidden"), source)
    hidden = engine.Layers().hidden
    hidden[torch.tensor([1, 5])] = torch.ones(2, 3)
    hidden[2:3] += 1
    assert hidden[torch.tensor([5, 2, 1])].sum() == 9
    assert codes(watch) == []
    _ = hidden[torch.tensor([4, 5])]
    assert [(one.code, one.rows) for one in watch.drain()] == [("FR101", (4,)), ("FR102", (5,))]
    assert not watch.coverage().incomplete


@pytest.mark.parametrize("size", [(0, 3), (0,), (6, 0)])
def test_a_buffer_without_elements_is_a_buffer(bench: Bench, size: tuple[int, ...]) -> None:  # noqa: F811
    source = ENGINE.replace("torch.zeros((2, rows, 3))", f"torch.zeros({size})")
    engine, watch = bench.engine(declared("Layers", "hidden"), source)
    layers = engine.Layers()
    layers.hidden = torch.zeros(size)
    assert layers.hidden.sum() == 0
    coverage = watch.coverage()
    assert (coverage.problems, coverage.incomplete) == ((), ())
