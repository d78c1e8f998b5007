"""The guard's kernels, in Triton's interpreter: run by test_guard.py, in SGLang's environment."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fmcheck.contract import Opaque
from fmcheck.errors import ViolationError
from fmcheck.runtime.core.site import is_here
from fmcheck.runtime.core.tally import HaltingLock, Tally
from fmcheck.runtime.device import kernels
from fmcheck.runtime.device.guard import GuardedBuffer
from fmcheck.runtime.device.launcher import Launcher
from fmcheck.runtime.relay import opaque, relay_tensor
from fmcheck.runtime.relay.owners import Owners
from fmcheck.runtime.relay.row_layout import PLAIN, Layout
from fmcheck.runtime.relay.scope import Handing, Scope, scoped
from fmcheck.runtime.session import probes
from fmcheck.runtime.session.watch import Watch
from tests import test_model

STEPS = int(os.environ.get("FMCHECK_GUARD_STEPS", "1500"))
KERNELS = ("gather_guard", "write_guard", "hand_out_rows", "spare_rows")


@pytest.fixture(autouse=True)
def guarded(monkeypatch):
    monkeypatch.setattr(relay_tensor, "wants_guard", lambda tensor: True)


@pytest.fixture
def launched(monkeypatch):
    counts = dict.fromkeys(KERNELS, 0)

    class Counting:
        def __init__(self, name):
            self.kernel, self.name = getattr(kernels, name), name

        def __getitem__(self, grid):
            counts[self.name] += 1
            return self.kernel[grid]

    for name in KERNELS:
        monkeypatch.setattr(kernels, name, Counting(name))
    return counts


def watched(rows=8, width=0, dtype=torch.int64, bound=(">=", 0), owners=None, layout=PLAIN):
    tally = Tally()
    plain = torch.zeros((rows, width) if width else (rows,), dtype=dtype)
    made = relay_tensor.relay_tensor(
        plain, "Map.buf", "m:Map", tally, bound, (0,), owners, layout=layout
    )
    assert type(made._relay) is GuardedBuffer
    made._relay.lay_poison()
    return made, tally


def reported(tally):
    return [(one.code, one.rows, one.row_count) for one in tally.drain()]


def test_random_programs_agree_with_the_model(monkeypatch, launched):
    agrees = test_model.Subject.agrees

    def with_the_ledger_fetched(subject):
        subject.buf._relay.fetch()
        return agrees(subject)

    monkeypatch.setattr(test_model.Subject, "agrees", with_the_ledger_fetched)
    for seed in range(STEPS // 40 + 1):
        draw = random.Random(seed)
        program = test_model.Program(draw)
        for _ in range(40):
            program.step(draw)
    assert min(launched.values()) > 30, launched


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "bound"),
    [
        (100, 0, torch.int64, (">=", 0)),
        (100, 700, torch.bfloat16, None),
        (40, 3, torch.float32, (">", 0)),
        (70, 257, torch.int32, (">=", 0)),
    ],
)
def test_many_and_wide_rows(rows, width, dtype, bound):
    buf, tally = watched(rows, width, dtype, bound)
    batch = torch.randperm(rows - 1)[: rows - 10] + 1
    inner = (width,) if width else ()
    for step in range(1, 3):
        buf[batch] = torch.full((len(batch), *inner), step, dtype=dtype)
        assert (buf[batch] == step).all()
    assert reported(tally) == []
    buf[batch[:50]]
    ((code, shown, count),) = reported(tally)
    assert (code, count) == ("FR102", min(50, len(batch)))
    assert set(shown) <= set(batch[:50].tolist())


@pytest.mark.parametrize(
    ("width", "rows"), [(0, 256), (8, 256), (32, 256), (33, 128), (128, 64), (257, 32), (700, 32)]
)
def test_a_program_takes_many_rows_and_few_elements_at_once(width, rows):
    """More elements spill registers; fewer rows need a second launch sooner."""
    buf, _ = watched(4, width)
    assert buf._relay._block == rows
    assert buf._relay._block * buf._relay._wide <= 1024


@pytest.mark.parametrize(
    ("width", "dtype", "bound"),
    [
        (0, torch.int64, (">=", 0)),
        (0, torch.int64, None),
        (0, torch.bool, None),
        (300, torch.float32, None),
    ],
)
def test_a_row_that_stands_in_the_index_twice_was_gathered_once(width, dtype, bound):
    buf, tally = watched(400, width, dtype, bound)
    rows = torch.tensor([*range(1, 300), *range(1, 40)])
    buf[rows] = torch.ones((len(rows), width) if width else len(rows), dtype=dtype)
    buf[rows]
    assert reported(tally) == []
    assert tally.unseen_writes == 0
    assert tally.counts().gathers == 1
    buf[rows]
    ((code, _, count),) = reported(tally)
    assert (code, count) == ("FR102", 299)


#: Of rows and their values; who is given a row (FR106 to FR108) is decided on the host.
OF_ROWS = ("FR101", "FR102", "FR103", "FR104", "FR105", "FR109", "FR110", "FR204")
ROW_PROBES = [probe for probe in probes.PROBES if probe.code in OF_ROWS]


@pytest.mark.parametrize("probe", ROW_PROBES, ids=lambda probe: probe.code)
def test_each_detector_is_proved_by_the_kernels(probe, launched):
    assert probes.tried(probe, probes.ProbeTarget("cpu")) == ""
    assert launched["gather_guard"]
    assert launched["write_guard"]


@pytest.mark.parametrize("probe", ROW_PROBES, ids=lambda probe: probe.code)
def test_a_kernel_that_does_nothing_is_noticed(probe, monkeypatch):
    class Nothing:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: None

    of_writes = ("FR103", "FR105", "FR109", "FR110")
    kernel = "write_guard" if probe.code in of_writes else "gather_guard"
    monkeypatch.setattr(kernels, kernel, Nothing())
    assert probes.tried(probe, probes.ProbeTarget("cpu")) != ""


def test_an_access_is_one_launch_and_waits_for_nothing(launched):
    buf, tally = watched()
    rows, values = torch.tensor([1, 2, 5]), torch.tensor([7, 8, 9])
    before = dict(launched)
    seen = []

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Ops():
        buf[rows] = values
        got = buf[rows]
    assert got.tolist() == [7, 8, 9]
    made = {name: launched[name] - before[name] for name in KERNELS}
    assert made == {**dict.fromkeys(KERNELS, 0), "gather_guard": 1, "write_guard": 1}
    assert not {name for name in seen if "local_scalar" in name or "nonzero" in name}
    assert [name for name in seen if name.startswith("index")] == [
        "index_put_.default",
        "index.Tensor",
    ]
    assert tally.counts().gathers == tally.counts().writes == 1


def test_findings_past_the_end_of_the_ring_are_counted(monkeypatch):
    buf, tally = watched(rows=64)
    ring = buf._relay._ring
    ring.capacity = 10
    buf[torch.arange(1, 41)]
    ((code, _, count),) = reported(tally)
    assert (code, count) == ("FR101", 10)
    assert [note for note in tally.notes if "30 findings on cpu did not fit" in note]


def test_rows_out_of_range_are_left_to_torch():
    buf, tally = watched()
    before = buf._relay._plain.clone()
    buf._relay.gather_rows(torch.tensor([-9, 8, 99]), torch.zeros(3, dtype=torch.int64), 0)
    buf._relay.stash_rows(torch.tensor([-9, 8, 99]), 0)
    assert reported(tally) == []
    assert torch.equal(before, buf._relay._plain)


def test_a_row_written_twice_by_one_call_was_written_once():
    owners = Owners()
    owners.hand_out(range(1, 64), [f"r{row}" for row in range(1, 64)])
    buf, tally = watched(rows=64, owners=owners)
    rows = torch.tensor([*range(1, 40), *range(1, 40), 3, 3])
    buf[rows] = torch.ones(len(rows), dtype=torch.int64)
    assert reported(tally) == []
    buf[torch.tensor([3])] = 5
    assert reported(tally) == [("FR103", (3,), 1)]


def test_a_row_that_was_taken_back_steps_ago_is_nobodys():
    owners = Owners()
    buf, tally = watched(owners=owners)
    tally.moments.counts_steps = True
    row = torch.tensor([1])
    buf[row] = torch.tensor([6])  # nobody was given anything so far
    owners.hand_out([1], ["a"])
    owners.take_back([1], step=tally.moments.step)
    for value in range(2):
        assert reported(tally) == [], value
        tally.moments.begin_step()
        buf[row] = torch.tensor([value])
    assert reported(tally) == [("FR109", (1,), 1)]
    buf[torch.tensor([0])] = torch.tensor([9])  # the sink is nobody's ever
    buf[row] = 0
    buf[row - 1 : row + 1] = torch.tensor([9, 9])
    assert reported(tally) == []


@pytest.mark.parametrize("width", [0, 3, 300])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool])
def test_a_write_that_gives_a_row_two_values_is_a_fault(width, dtype, launched):
    buf, tally = watched(400, width, dtype, None)
    rows = torch.tensor([*range(1, 300), 5, 0, 0, 7, 399, 399])
    values = torch.ones((len(rows), width) if width else len(rows), dtype=dtype)
    values[-5] = 0  # a sink's
    before = launched["write_guard"]
    buf[rows] = values
    assert reported(tally) == []
    values[-3] = 0
    buf[rows] = values
    values[-3], values[-1] = 1, 0
    buf.index_copy_(0, rows, values)
    assert launched["write_guard"] - before == 3
    found = tally.drain()
    assert [(one.code, one.rows, one.row_count) for one in found] == [
        ("FR110", (7,), 1),
        ("FR110", (399,), 1),
    ]
    assert all(one.last_write.site == one.access.site for one in found)


def test_values_that_torch_makes_others_of_are_not_compared():
    buf, tally = watched()
    rows = torch.tensor([1, 1, 2])
    buf[rows] = torch.tensor([5])
    buf[rows] = torch.arange(6)[::2]  # with gaps between them
    buf.index_add_(0, rows, torch.tensor([5, 6, 7]))
    assert reported(tally) == []


@pytest.mark.parametrize("scope", [None, Scope.PEEK])
@pytest.mark.parametrize(("width", "dtype"), [(0, torch.int64), (300, torch.float32)])
def test_a_sink_that_holds_something_else_is_a_fault(width, dtype, scope):
    buf, tally = watched(8, width, dtype, None, layout=Layout(sink_holds=3))
    sink, rows = torch.tensor([0]), torch.tensor([1, 0, 2, 0])
    take = scoped(buf.__getitem__, scope, tally) if scope else buf.__getitem__
    buf[:3] = torch.full((3, width) if width else (3,), 3, dtype=dtype)
    take(rows)
    assert reported(tally) == []
    buf[:3] = torch.full((3, width) if width else (3,), 3, dtype=dtype)
    buf[sink] = torch.full((1, width) if width else (1,), 9, dtype=dtype)
    take(rows)
    (violation,) = tally.drain()
    assert (violation.code, violation.rows, violation.row_count) == ("FR204", (0,), 1)
    assert violation.values == ("9",)
    assert violation.last_write.site.function == "test_a_sink_that_holds_something_else_is_a_fault"


def test_the_story_is_that_of_the_moment():
    owners = Owners()
    owners.hand_out([1], ["first"])
    buf, tally = watched(owners=owners)
    buf[torch.tensor([1])] = 7
    owners.take_back([1])
    owners.hand_out([1], ["second"])
    buf[torch.tensor([1])]
    buf[torch.tensor([1])] = 8  # after the finding, before it is read
    (violation,) = tally.drain()
    assert violation.code == "FR104"
    assert (violation.owner, violation.previous_owner) == ("second", "first")
    assert violation.last_write.owner == "first"
    assert violation.last_write.site.function == "test_the_story_is_that_of_the_moment"


def test_a_scope_consumes_at_its_end_but_for_what_was_written_in_it():
    buf, tally = watched()
    rows = torch.tensor([1, 2])
    buf[rows] = torch.tensor([5, 6])

    def resolve():
        assert buf[rows].tolist() == [5, 6]
        assert buf[rows].tolist() == [5, 6]
        buf[torch.tensor([2])] = 9

    scoped(resolve, Scope.AT_RETURN, Tally())()
    assert buf[torch.tensor([2])].tolist() == [9]
    assert reported(tally) == []
    buf[torch.tensor([1])]
    assert reported(tally) == [("FR102", (1,), 1)]


def test_a_kernel_out_of_sight_is_judged_before_and_entered_after():
    buf, tally = watched()
    rows = torch.tensor([1, 2])
    buf[rows] = torch.tensor([5, 6])
    for expected in ([], [("FR102", (1, 2), 2)]):
        relay_tensor.before_call([buf], rows)
        relay_tensor.after_call([buf], [], rows)
        assert reported(tally) == expected


def put(rows, buf, counts):
    buf[rows.long()[counts > 0]] = 7


def take(rows, buf, counts):
    return buf[rows.long()[counts > 0]].tolist()


def of_a_device(monkeypatch, kernel):
    """Returns a watched kernel whose arguments are left where they are, as on a device."""
    monkeypatch.setattr(opaque, "_as_array", lambda value: value)
    how = {"writes": ("buf",)} if kernel is put else {"reads": ("buf",)}
    declared = Opaque(functions=("m:kernel",), rows="rows", rows_where=("counts > 0",), **how)
    return opaque.opaque_call(kernel, declared, Tally())


def test_rows_that_a_kernel_leaves_out_are_left_alone(monkeypatch):
    buf, tally = watched()
    rows, counts = torch.tensor([2, 3, 4], dtype=torch.int32), torch.tensor([1, 0, 1])
    of_a_device(monkeypatch, put)(rows, buf, counts)
    assert of_a_device(monkeypatch, take)(rows, buf, counts) == [7, 7]
    assert reported(tally) == []
    of_a_device(monkeypatch, take)(rows, buf, counts)
    assert reported(tally) == [("FR102", (2, 4), 2)]
    of_a_device(monkeypatch, take)(rows, buf, 1 - counts)
    assert reported(tally) == [("FR101", (3,), 1)]


def test_rows_left_out_are_no_rows_at_the_end_of_a_scope(monkeypatch):
    buf, tally = watched()
    rows, counts = torch.tensor([2, 3]), torch.tensor([1, 0])
    buf[rows] = 7
    gather = of_a_device(monkeypatch, take)
    scoped(gather, Scope.AT_RETURN, tally)(rows, buf, counts)
    buf[torch.tensor([3])]
    assert reported(tally) == []
    buf[torch.tensor([2])]
    assert reported(tally) == [("FR102", (2,), 1)]


def test_the_first_write_to_a_placeholder_may_leave_rows_out(monkeypatch):
    buf, tally = watched()
    buf._relay.adopt_values()
    buf._relay.is_on_trust = True
    rows, counts = torch.tensor([2, 7]), torch.tensor([1, 0])
    of_a_device(monkeypatch, put)(rows, buf, counts)
    assert take(rows[:1], buf, counts[:1]) == [7]
    assert not tally.broken
    buf[torch.tensor([7])]
    assert reported(tally) == [("FR101", (7,), 1)]


def test_rows_left_out_are_no_rows_of_a_view(monkeypatch):
    buf, tally = watched()
    rows, counts = torch.tensor([2, 3]), torch.tensor([1, 0])
    of_a_device(monkeypatch, put)(rows, buf[0:], counts)
    buf[rows]
    assert reported(tally) == [("FR101", (3,), 1)]
    assert not tally.broken


@contextlib.contextmanager
def handing_out():
    call = Handing()
    call.enter()
    yield
    call.leave()
    call.over()


def test_row_0_is_a_request_s_once_it_is_handed_out_where_nobody_calls_it_the_sink():
    owners = Owners()
    buf, tally = watched(owners=owners)
    row = torch.tensor([0])
    buf[row]
    assert reported(tally) == []
    assert not owners.hand_out([0], ["a"])
    buf[row]
    assert reported(tally) == [("FR101", (0,), 1)]
    buf[row] = 7
    assert buf[row].tolist() == [7]
    assert reported(tally) == []
    assert not tally.broken


def test_what_a_take_back_writes_is_a_reset_that_the_next_owner_finds():
    owners = Owners()
    buf, tally = watched(owners=owners)
    row = torch.tensor([1])
    owners.hand_out([1], ["a"])
    buf[row] = 7
    call = Handing()
    call.enter()
    buf[row] = torch.tensor([3])
    owners.take_back([1])
    call.keep_resets()
    call.leave()
    call.over()
    owners.hand_out([1], ["b"])
    assert buf[row].tolist() == [3]
    assert reported(tally) == []
    buf[row]
    assert reported(tally) == [("FR102", (1,), 1)]


def test_what_a_hand_out_writes_into_a_row_is_its_new_owners_and_stays():
    owners = Owners()
    buf, tally = watched(owners=owners)
    owners.hand_out([1, 2], ["a", "b"])
    with handing_out():
        buf[torch.tensor([3, 4])] = torch.tensor([7, 8])
        owners.hand_out([3], ["c"])
    assert reported(tally) == [("FR109", (4,), 1)]
    buf[torch.tensor([3])] = torch.tensor([9])  # over what began the row
    with handing_out():
        buf[torch.tensor([5])] = 6
        owners.hand_out([5], ["d"])
    assert buf[torch.tensor([3, 5])].tolist() == [9, 6]
    assert reported(tally) == []
    assert not tally.broken


def test_fills_and_slices_are_writes_of_rows(launched):
    buf, tally = watched()
    before = launched["write_guard"]
    buf[2:5] = torch.tensor([1, 2, 3])
    buf.fill_(4)
    buf.zero_()
    assert launched["write_guard"] - before == 3
    assert buf[torch.tensor([2, 7])].tolist() == [0, 0]
    assert reported(tally) == []


def test_a_value_that_nobody_saw_written_is_a_note_and_is_gathered_once():
    buf, tally = watched()
    rows = torch.tensor([3])
    buf._relay._plain[3] = 7
    assert buf[rows].tolist() == [7]
    assert reported(tally) == []
    assert tally.unseen_writes == 1
    assert [note for note in tally.notes if "no tracked write" in note]
    buf[rows]
    (violation,) = tally.drain()
    assert (violation.code, violation.last_write) == ("FR102", None)


def test_a_value_that_nobody_saw_written_is_judged_though_the_last_one_was_reported():
    buf, tally = watched()
    row = torch.tensor([3])
    buf[row] = torch.tensor([-7])
    assert [code for code, *_ in reported(tally)] == ["FR105"]
    buf[row]
    buf._relay._plain[3] = 5
    assert scoped(lambda: buf[row], Scope.PEEK, Tally())().tolist() == [5]
    assert (reported(tally), tally.unseen_writes) == ([], 1)
    buf._relay._plain[3] = -7
    buf[row]
    assert [code for code, *_ in reported(tally)] == ["FR105"]


def test_mode_halt_raises_at_the_line():
    buf, tally = watched()
    tally.lock = HaltingLock()
    with pytest.raises(ViolationError, match=r"FR101 .* Map\.buf"):
        buf[torch.tensor([1])]


def test_an_access_on_another_stream_waits_for_the_hand_out(monkeypatch):
    waited = []

    class Stream:
        def wait_event(self, event):
            assert is_here()  # it is no fence of the engine's
            waited.append((event, buf._relay._plain[1].item()))

    buf, _ = watched()
    mine, other = Stream(), Stream()
    buf._relay._plain[1] = 7
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for current, expected in ((mine, []), (other, [("handed out", 7)])):
        buf._relay._own_fence._handed_out = (mine, "handed out")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, now=current: now)
        buf[torch.tensor([1])] = 9 if current is other else 7
        assert waited == expected
    buf[torch.tensor([1])] = 9
    assert len(waited) == 1


def test_a_buffer_that_is_gone_is_not_kept_but_what_was_found_in_it_is_reported():
    buf, tally = watched()
    buf[torch.tensor([1])]
    gone = weakref.ref(buf._relay)
    del buf
    assert reported(tally) == [("FR101", (1,), 1)]
    gc.collect()
    assert gone() is None


def test_what_a_kernel_is_launched_with_is_in_the_order_of_its_signature(monkeypatch):
    """The second launch of a binary goes by order alone, which an interpreter never does."""
    seen, launch = {}, Launcher.launch

    def noting(self, kernel, programs, arguments, constants):
        seen[kernel.fn.__name__] = kernel.arg_names, len(arguments), list(constants)
        launch(self, kernel, programs, arguments, constants)

    monkeypatch.setattr(Launcher, "launch", noting)
    watch = Watch([], streams="tracked")
    watch.start()
    owners = Owners()
    plain = torch.zeros(8, dtype=torch.int64)
    made = relay_tensor.relay_tensor(
        plain, "b", "m:M", watch.tally, (">=", 0), (0,), owners, streams=watch.services.streams
    )
    owners.hand_out([1], ["one"])
    made[torch.tensor([1])] = 7
    _ = made[torch.tensor([1])]
    owners.take_back([1])
    watch.stop()

    assert set(seen) == {*KERNELS, "touch_rows"}
    for names, arguments, constants in seen.values():
        assert names[arguments:] == constants


def test_the_second_launch_is_of_the_binary_and_each_set_of_constants_has_its_own():
    log = []

    class Binary:
        def __getitem__(self, grid):
            return lambda *args: log.append((grid, args))

    class Kernel:
        def __getitem__(self, grid):
            def first(*args, **constants):
                log.append((grid, args, constants))
                return Binary()

            return first

    kernel, launcher = Kernel(), Launcher(torch.device("cpu"))
    launcher.launch(kernel, 2, (1, 2), {"WIDE": 4})
    launcher.launch(kernel, 3, (5, 6), {"WIDE": 4})
    launcher.launch(kernel, 3, (5, 6), {"WIDE": 8})

    assert log == [
        ((2,), (1, 2), {"WIDE": 4}),
        ((3, 1, 1), (5, 6, 4)),
        ((3,), (5, 6), {"WIDE": 8}),
    ]


def test_a_device_that_is_lost_leaves_what_was_found_before(monkeypatch):
    made, tally = watched()
    made[torch.tensor([1])] = 7
    for _ in range(3):
        _ = made[torch.tensor([1])]

    def lost(*_):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\nSearch for")

    on_device = SimpleNamespace(tolist=lost, cpu=lost)
    monkeypatch.setattr(made._relay._ring, "counts", on_device)
    monkeypatch.setattr(made._relay, "on_device", {"state": on_device})
    monkeypatch.setattr(type(made._relay.whole.memory), "read", lost)
    found = tally.drain()

    assert [(one.code, one.rows) for one in found] == [("FR102", (1,))]
    (note,) = [one for one in tally.notes if "cannot be read any more" in one]
    assert "(CUDA error: device-side assert triggered)" in note
    assert tally.drain() == ()
