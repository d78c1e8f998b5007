"""Operators: what each plants, and where it plants nothing."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

import fixtures.engine
from fmcheck.contract import parse_contract
from fmcheck.prove.operators.all_operators import OPERATORS
from fmcheck.prove.operators.engine_names import EngineNames, names_of
from fmcheck.prove.operators.mutant import applied, parses
from fmcheck.prove.operators.parsed import ParsedModule

CONTRACT = """
[engine]
name = "mine"

[[relay]]
class = "mine.relay:Relay"
peeks = ["look"]
takes = ["mine.runner:Runner.prepare"]
buffer = [{ name = "tokens_buf" }, { name = "lens_buf" }, { name = "top*_buf", lazy = true }]

[[opaque]]
functions = ["mine.kernels:gather_all"]
rows = "rows"
reads = ["tokens_buf"]

[[opaque]]
functions = ["mine.kernels:write_all"]
rows = "rows"
writes = ["tokens_buf"]

[graph_inputs]
row_indices = ["rows"]
index_like = ["positions"]
tail_is_discarded = ["hidden"]
holds = { lens = 1 }

[[graph_inputs.fill]]
class = "mine.runner:Runner"
methods = ["prepare"]
inputs = "self.starts"
only = ["gpu"]
axis.rows = { raw = "n", padded = "padded", capacity = "padded" }
holds = { gpu = 0 }

[[graph_inputs.registry]]
slot_class = "Slot"
policy_argument = "padding"
default_policy = "KEEP"
stale_policies = ["KEEP"]

[device]
agnostic = ["mine/*.py"]
cuda_only = ["mine/kernels.py"]
"""
RELAY = """\
class Relay:
    def __init__(self, rows):
        self.tokens_buf[rows] = -1

    def publish(self, rows, lens):
        self.lens_buf[rows] = lens
        self._record()

    def _record(self):
        self.ready.record()

    def stash(self, rows, tokens):
        self.tokens_buf[rows] = tokens

    def resolve(self, rows):
        return self.tokens_buf[rows]

    def look(self, rows):
        return self.lens_buf[rows]

    def admit(self, row):
        self.tokens_buf[row].zero_()
"""
TREE = ParsedModule(RELAY, "mine/relay.py")
NAMES = names_of([parse_contract(CONTRACT, "mine.toml")], [("Relay", TREE)])


def planted(operator: str, source: str, path: str = "mine/x.py", names: EngineNames = NAMES):
    """What becomes of the changed lines, mutant by mutant: `- before` and `+ after`."""
    tree = ParsedModule(source, path)
    changes = []
    for fault in OPERATORS[operator].faults(tree, names):
        text = applied(source, fault.edits)
        assert parses(text), text
        lines = difflib.unified_diff(source.splitlines(), text.splitlines(), n=0, lineterm="")
        kept = [one for one in lines if one[:2] not in ("--", "++", "@@")]
        changes.append([one[0] + one[1:].strip() for one in kept])
    return changes


def test_writers_and_readers_are_read_from_the_relay_itself():
    assert NAMES.writers == {"publish", "stash", "write_all"}
    assert NAMES.readers == {"resolve"}


CASES = {
    "drop-reset": (
        "def f(b, n):\n    b.rows.zero_()\n    b['positions'][n:].fill_(0)\n    b.rows[n:] = 0\n",
        [
            ["-b.rows.zero_()", "+pass"],
            ["-b['positions'][n:].fill_(0)", "+pass"],
            ["-b.rows[n:] = 0", "+pass"],
        ],
    ),
    "clear-after-copy": (
        "def f(b, n, x):\n    if n:\n        b.rows.zero_()\n    b.rows[:n].copy_(x)\n    done()\n",
        [["-b.rows.zero_()", "+pass", "+b.rows.zero_()"]],
    ),
    "narrow-reset": (
        "def fill(b, n, m):\n    b.rows[n:m].zero_()\n",
        [["-b.rows[n:m].zero_()", "+b.rows[n + 1:m].zero_()"]],
    ),
    "drop-stash": (
        "def step(m, r, v):\n    m.tokens_buf[r] = v\n    m.stash(r, v)\n    on_publish(r, v)\n",
        [
            ["-m.tokens_buf[r] = v", "+pass"],
            ["-m.stash(r, v)", "+pass"],
            ["-on_publish(r, v)", "+pass"],
        ],
    ),
    "gather-twice": (
        "def step(m, r):\n    x = m.tokens_buf[r]\n    gather_all(r)\n    y = m.resolve(r)\n",
        [["+m.tokens_buf[r]"], ["+gather_all(r)"], ["+m.resolve(r)"]],
    ),
    "swap-publish-stash": (
        "def f(m, r):\n    m.publish(r, 1)\n    go()\n    m.stash(r, 2)\n    m.lens_buf[r] = 3\n",
        [
            ["+m.stash(r, 2)", "+go()", "-go()", "-m.stash(r, 2)"],
            ["-m.lens_buf[r] = 3", "+m.tokens_buf[r] = 3"],
        ],
    ),
    "drop-wait": (
        "def f(a, b, e):\n    a = Stream()\n    a.wait_stream(b)\n    e.synchronize()\n",
        [["-a.wait_stream(b)", "+pass"], ["-e.synchronize()", "+pass"]],
    ),
    "move-wait": (
        "def f(a, b, x):\n    Stream()\n    a.wait_stream(b)\n    x.go()\n    go()\n    return x\n",
        [["-a.wait_stream(b)", "+pass", "+a.wait_stream(b)"]],
    ),
    "record-early": (
        "def f(a, b, x):\n    a.copy_(b)\n    e = Event()\n    e.record()\n    return e\n",
        [["-a.copy_(b)", "+a.copy_(b)", "+pass", "+pass"]],
    ),
    "messageless-assert": (
        "def f(x):\n    torch._assert_async((x >= 0).all(), 'why')\n",
        [
            [
                "-torch._assert_async((x >= 0).all(), 'why')",
                "+torch._assert_async((x >= 0).all())",
            ]
        ],
    ),
    "widen-bound": (
        "def f(x):\n    _assert_async((x >= 0).all())\n    _assert_async((x > 0).all())\n",
        [
            ["-_assert_async((x >= 0).all())", "+_assert_async((x >= -1).all())"],
            ["-_assert_async((x > 0).all())", "+_assert_async((x >= 0).all())"],
        ],
    ),
    "hardcode-device": (
        "def f(d):\n    m = get_device_module(d)\n    e = m.Event()\n    t = zeros(3, device=d)\n",
        [
            ["-e = m.Event()", "+e = torch.cuda.Event()"],
            ["-t = zeros(3, device=d)", '+t = zeros(3, device="cuda")'],
        ],
    ),
}


def test_a_step_that_binds_no_new_tensor_drops_a_stash():
    source = (
        "def step(m, t):\n    m.top_k_buf = t.unsqueeze(1)\n    m.top_k_buf = None\n"
        "    m.top_k_buf = torch.empty(3)\n    m.top_k_buf = m.like(t)\n    m.tokens_buf = t\n"
    )
    assert planted("drop-stash", source)[:1] == [["-m.top_k_buf = t.unsqueeze(1)", "+pass"]]
    assert len(planted("drop-stash", source)) == 2


def test_a_kernel_that_writes_is_a_stash():
    assert planted("drop-stash", "def step(r, v):\n    write_all(r, v)\n") == [
        ["-write_all(r, v)", "+pass"]
    ]


def test_a_slice_is_gathered_twice_where_the_contract_says_that_it_takes():
    body = "(m, n):\n    x = m.tokens_buf[:n, 0]\n"
    assert planted("gather-twice", f"def prepare{body}") == [["+m.tokens_buf[:n, 0] + 0"]]
    assert planted("gather-twice", f"def look_up{body}") == []


def test_a_half_of_a_buffer_is_reset_and_no_other_buffer_s_half():
    assert planted("drop-reset", "def f(s):\n    s.starts.gpu[2:].fill_(0)\n") == [
        ["-s.starts.gpu[2:].fill_(0)", "+pass"]
    ]
    assert planted("drop-reset", "def f(s):\n    s.counts.gpu[2:].fill_(0)\n") == []


def test_every_operator_has_a_case():
    assert list(CASES) == list(OPERATORS)


@pytest.mark.parametrize("operator", CASES)
def test_an_operator_plants_its_fault(operator):
    source, expected = CASES[operator]
    found = planted(operator, source)
    assert [sorted(one) for one in found] == [sorted(one) for one in expected]


NOTHING = {
    "a reset of what is no graph input": ("drop-reset", "def f(b):\n    b.other.zero_()\n"),
    "a reset of a tail that is thrown away": ("drop-reset", "def f(b):\n    b.hidden.zero_()\n"),
    "a tail that is reset late": (
        "clear-after-copy",
        "def f(b, n, x):\n    b.rows[n:].zero_()\n    b.rows[:n].copy_(x)\n",
    ),
    "a fill of another input": (
        "clear-after-copy",
        "def f(b, n, x):\n    b.rows.zero_()\n    b.positions[:n].copy_(x)\n",
    ),
    "a write of what is no relay": ("drop-stash", "def f(m, r, v):\n    m.other_buf[r] = v\n"),
    "a gather in a peek": ("gather-twice", "def look(m, r):\n    x = m.lens_buf[r]\n"),
    "a row that is emptied": ("gather-twice", "def f(m, r):\n    m.tokens_buf[r].zero_()\n"),
    "a slice": ("gather-twice", "def f(m):\n    x = m.tokens_buf[2:5] + m.tokens_buf[3]\n"),
    "a gather that may not happen": (
        "gather-twice",
        "def f(m, r):\n    x = m.tokens_buf[r] if r else None\n",
    ),
    "a wait in a module without streams": ("drop-wait", "def f(t):\n    t.wait()\n"),
    "a wait that nothing follows": (
        "move-wait",
        "def f(a, b):\n    s = Stream()\n    a.wait_stream(b)\n    return s\n",
    ),
    "a record that no write precedes": (
        "record-early",
        "def f(e):\n    e = Event()\n    e.record()\n",
    ),
    "an assert without a message": ("messageless-assert", "def f(x):\n    _assert_async(x)\n"),
    "a comparison that nothing asserts": ("widen-bound", "def f(x):\n    return x >= 0\n"),
}


@pytest.mark.parametrize("case", NOTHING)
def test_an_operator_leaves_alone_what_is_none_of_its_business(case):
    assert planted(*NOTHING[case]) == []


def test_code_for_cuda_alone_may_name_it():
    source = CASES["hardcode-device"][0]
    assert planted("hardcode-device", source, "mine/kernels.py") == []
    assert planted("hardcode-device", source, "other/x.py") == []


def test_a_slot_that_resets_its_tail_is_made_to_keep_it():
    source = (
        "SLOTS = (\n"
        "    Slot('rows', padding=Padding.ZERO),\n"
        "    Slot('lens', padding=Padding.KEEP),\n"
        "    Slot('hidden', padding=Padding.ZERO),\n"
        ")\n"
    )
    assert planted("drop-reset", source) == [
        ["-Slot('rows', padding=Padding.ZERO),", "+Slot('rows', padding=Padding.KEEP),"]
    ]


def test_in_the_module_of_the_slots_the_reset_of_a_slice_is_that_of_a_tail():
    reset = "def reset(slot, a, b):\n    tail = slot.buffer[a:b]\n    tail.zero_()\n"
    assert planted("drop-reset", reset) == []
    whole = "def count(slot, n):\n    slot.buffer.fill_(n)\n"
    source = f"class Slot:\n    pass\n\n\n{reset}\n\n{whole}"
    assert planted("drop-reset", source) == [["-tail.zero_()", "+pass"]]
    assert planted("narrow-reset", source) == [
        ["-tail = slot.buffer[a:b]", "+tail = slot.buffer[a + 1:b]"]
    ]


def test_a_record_goes_ahead_of_the_write_with_what_is_around_it():
    source = (
        "def publish(self, rows, lens):\n"
        "    self.lens_buf[rows] = lens\n"
        "    if self.spec:\n"
        "        if self.ready is None:\n"
        "            self.ready = Event()\n"
        "        self.ready.record()\n"
    )
    (fault,) = OPERATORS["record-early"].faults(ParsedModule(source, "mine/x.py"), NAMES)
    text = applied(source, fault.edits)
    assert text.index("self.ready.record()") < text.index("self.lens_buf[rows]")
    assert text.count("self.ready.record()") == 1
    assert parses(text)


def test_a_call_of_a_method_that_records_is_moved_like_a_record():
    assert planted("record-early", RELAY + "EVENT = Event()\n") == [
        ["+self._record()", "-self._record()", "+pass"]
    ]


@pytest.fixture(scope="module")
def engine():
    folder = Path(fixtures.engine.__file__).parent
    paths = [*folder.glob("*.py"), *folder.glob("runners/*.py")]
    return {path: ParsedModule(path.read_text(), _place(path, folder)) for path in paths}


def _place(path, folder):
    return path.relative_to(folder.parent.parent).as_posix()


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_finds_something_in_the_engine(engine, operator):
    folder = Path(fixtures.engine.__file__).parent
    contract = parse_contract((folder / "fmcheck.toml").read_text(), "fmcheck.toml")
    names = names_of([contract], [("FutureMap", engine[folder / "future_map.py"])])
    faults = [one for tree in engine.values() for one in OPERATORS[operator].faults(tree, names)]
    assert len(faults) >= (1 if operator == "narrow-reset" else 2)
