"""Contract files: the shipped one, and what is said when one does not fit."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from fmcheck.contract import Contract, applies, load_contract, parse_contract
from fmcheck.errors import UsageError
from fmcheck.registry import contract_files

HEAD = '[engine]\nname = "mine"\n'
RELAY = HEAD + '[[relay]]\nclass = "mine.relay:Relay"\n'
BUFFER = RELAY + '[[relay.buffer]]\nname = "tokens_buf"\n'
OPAQUE = HEAD + '[[opaque]]\nfunctions = ["mine:gather"]\nrows = "indices"\n'
OWNERS = HEAD + '[[owners]]\nfunctions = ["mine:Pool.alloc"]\ndoes = "hands out"\nrows = "return"\n'


def load(tmp_path, text) -> Contract:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_contract(path)


@pytest.fixture(scope="module")
def sglang() -> Contract:
    return load_contract(contract_files()["sglang"])


def future_map(contract):
    return next(relay for relay in contract.relay if relay.qualname == "FutureMap")


def names(contract, version) -> set[str]:
    relay = future_map(contract)
    return {buffer.name for buffer in relay.expected_after_init(version)}


def test_sglang_contract_follows_the_class_as_it_grew(sglang):
    relay = future_map(sglang)

    assert relay.buffer_for("token_ids_buf", "0.5.12.post1")
    assert relay.buffer_for("token_ids_buf", "0.5.13") is None
    assert relay.buffer_for("output_tokens_buf", "0.5.12") is None
    assert names(sglang, "0.5.23") == {"output_tokens_buf", "new_seq_lens_buf"}
    assert names(sglang, "0.5.12") == set()
    assert relay.buffer_for("verified_id_buf", "0.5.14")
    assert relay.buffer_for("verified_id_buf", "0.5.15") is None


@pytest.mark.parametrize("minor", range(20, 34))
def test_each_release_of_vllm_has_one_declaration_of_each_access_to_its_relay(minor):
    vllm = load_contract(contract_files()["vllm"])
    reported = [one for one in vllm.opaque if applies(one.releases, f"0.{minor}.0")]
    accesses = sorted(name for one in reported for name in (*one.reads, *one.writes))
    received = ["draft_tokens_out"] if minor >= 33 else []
    assert accesses == ["draft_tokens", *received, "last_sampled_tokens", "last_sampled_tokens"]


def test_an_unknown_release_gets_every_buffer(sglang):
    relay = future_map(sglang)

    assert relay.buffer_for("token_ids_buf", None)
    assert relay.buffer_for("output_tokens_buf", None)


def test_smallest_contract(tmp_path):
    contract = load(tmp_path, HEAD)

    assert contract.engine.name == "mine"
    assert contract.relay == ()


def test_buffer_names_may_be_globs(tmp_path):
    (relay,) = load(tmp_path, RELAY + '[[relay.buffer]]\nname = "*_buf"\n').relay

    assert relay.buffer_for("topk_p_buf", None)
    assert relay.buffer_for("topk_p", None) is None
    assert list(relay.expected_after_init(None)) == []


@pytest.mark.parametrize(
    ("valid", "bound"), [("", None), (">= 0", (">=", 0)), ("> 0", (">", 0)), (">= -5", (">=", -5))]
)
def test_valid_is_a_bound(tmp_path, valid, bound):
    (relay,) = load(tmp_path, BUFFER + f'valid = "{valid}"\n').relay

    assert relay.buffer[0].bound == bound


def test_owners_may_be_those_of_some_relays_in_some_releases(tmp_path):
    text = OWNERS + 'releases = ">=2"\nrelays = ["mine.relay:Relay"]\n'
    other = '[[relay]]\nclass = "mine.relay:Ring"\nbuffer = [{ name = "ring_buf" }]\n'
    contract = load(tmp_path, text + BUFFER.removeprefix(HEAD) + other)
    (owners,) = contract.owners
    relay, ring = contract.relay

    assert owners.covers(relay, "2.1")
    assert owners.covers(relay, None)
    assert not owners.covers(relay, "1.9")
    assert not owners.covers(ring, "2.1")


BAD = {
    "unknown table": (HEAD + "[relays]\n", "unknown key `relays`; did you mean `relay`?"),
    "unknown key in a list": (
        BUFFER + "poisn = 1\n",
        "unknown key `relay[0].buffer[0].poisn`",
    ),
    "missing key": ("[device]\n", "key `engine` is missing: expected a table with `name`"),
    "missing key in a list": (
        RELAY,
        "key `relay[0].buffer` is missing: expected a list of tables, each headed "
        "`[[relay.buffer]]`",
    ),
    "missing table of tables": (
        HEAD + '[[graph_inputs.fill]]\nclass = "a:B"\nmethods = ["c"]\ninputs = "self"\n',
        "key `graph_inputs.fill[0].axis` is missing: expected a table of tables with `raw`, "
        "`padded`, `capacity`",
    ),
    "no buffer": (RELAY + "buffer = []\n", "key `relay[0].buffer`: expected at least one buffer"),
    "wrong type": (
        RELAY + 'buffer = "tokens"\n',
        "key `relay[0].buffer`: expected a list of tables, each headed `[[relay.buffer]]`, got a "
        "string",
    ),
    "single brackets": (
        HEAD + '[relay]\nclass = "a:B"\n',
        "key `relay`: expected a list of tables, each headed `[[relay]]`, got a table",
    ),
    "a name in a table's place": (
        RELAY + 'buffer = ["tokens"]\n',
        "key `relay[0].buffer[0]`: expected a table with `name`, got a string",
    ),
    "number in a list's place": (
        BUFFER.replace("[[relay.buffer]]", "sink_rows = 0\n[[relay.buffer]]"),
        "key `relay[0].sink_rows`: expected a list, `[...]`, got a whole number",
    ),
    "string in a list's place": (
        OWNERS.replace('["mine:Pool.alloc"]', '"mine:Pool.alloc"'),
        'key `owners[0].functions`: expected a list of strings, `["..."]`, got a string',
    ),
    "neither number nor path": (
        HEAD + '[[launches.budget]]\nfunctions = ["mine:step"]\nsyncs = "none"\n',
        "key `launches.budget[0].syncs`: expected a whole number, got a string",
    ),
    "class without module": (
        BUFFER.replace("mine.relay:Relay", "Relay"),
        "key `relay[0].class`: expected `module:Class`, got `Relay`",
    ),
    "class that is no name": (
        BUFFER.replace("mine.relay:Relay", "mine.relay:Relay()"),
        "key `relay[0].class`: expected `module:Class`",
    ),
    "releases": (
        BUFFER + 'releases = "0.5 and up"\n',
        "key `relay[0].buffer[0].releases`: expected a version range like",
    ),
    "engine releases": (
        HEAD + 'releases = "new"\n',
        "key `engine.releases`: expected a version range",
    ),
    "per-step function": (
        HEAD + '[launches]\nper_step = ["run"]\n',
        "key `launches.per_step`: expected `module:Class.method`, got `run`",
    ),
    "valid": (
        BUFFER + 'valid = "positive"\n',
        "key `relay[0].buffer[0].valid`: expected `>= N` or `> N`, got `positive`",
    ),
    "opaque function": (
        HEAD + '[[opaque]]\nfunctions = ["gather"]\nrows = "indices"\n',
        "key `opaque[0].functions`: expected `module:function`, got `gather`",
    ),
    "releases of a kernel": (
        OPAQUE + 'releases = "new"\n',
        "key `opaque[0].releases`: expected a version range",
    ),
    **{
        f"rows where {text}": (
            OPAQUE + f'rows_where = ["{text}"]\n',
            "key `opaque[0].rows_where`: expected a comparison of parameters like "
            "`num_sampled > 0` or `seq_lens > prefill_len[indices]`, or a mask, got `" + text + "`",
        )
        for text in (
            *("", "1 > 0", "a > b > c", "a > ", "a and b", "f(a) > 0", "a.b > 0", "a * 2 > 1"),
            *(
                "a[:1] > 0",
                "a[0] > 1",
                "a in b",
                "a > 1.5",
                "a is None",
                "a + b is not None",
                "(" * 400 + "a" + ")" * 400,
            ),
        )
    },
    "peeks of others": (
        RELAY + 'peeks = ["mine:"]\n[[relay.buffer]]\nname = "tokens_buf"\n',
        "key `relay[0].peeks`: expected `module:Class.method`, got `mine:`",
    ),
    "overwrite": (
        BUFFER + 'overwrite = "until gatherd"\n',
        "key `relay[0].buffer[0].overwrite`: expected one of `never`, `until gathered`, `always`, "
        "got `until gatherd`; did you mean `until gathered`?",
    ),
    "owner functions": (
        OWNERS.replace("mine:Pool.alloc", "Pool.alloc"),
        "key `owners[0].functions`: expected `module:Class.method` or `module:function`",
    ),
    "no owner functions": (
        OWNERS.replace('"mine:Pool.alloc"', ""),
        "key `owners[0].functions`: expected at least one, got none",
    ),
    "what an owner function does": (
        OWNERS.replace("hands out", "hand out"),
        "key `owners[0].does`: expected one of `hands out`, `takes back`, `assigns`, `uses`, "
        "`serves`, got `hand out`; did you mean `hands out`?",
    ),
    "rows": (
        OWNERS.replace('"return"', '"reqs[:].row"'),
        "key `owners[0].rows`: expected a path like `return`, `reqs[].rid` or `self.rows`, "
        "got `reqs[:].row`",
    ),
    "owner": (OWNERS + 'owner = "req.rid()"\n', "key `owners[0].owner`: expected a path"),
    "a key of who hands out": (
        OWNERS.replace("hands out", "takes back").replace('"return"', '"rows"')
        + "drained = false\n",
        'key `owners[0].drained`: expected in the entry with `does = "hands out"` or `does = '
        '"assigns"`, got it in one with `does = "takes back"`',
    ),
    "a ring that is taken back": (
        OWNERS.replace("hands out", "takes back").replace('"return"', '"rows"') + "renews = true\n",
        'key `owners[0].renews`: expected in the entry with `does = "hands out"`',
    ),
    "a key of who takes back": (
        OWNERS + "idempotent = true\n",
        'key `owners[0].idempotent`: expected in the entry with `does = "takes back"`',
    ),
    "taking back what is returned": (
        OWNERS.replace("hands out", "takes back"),
        "key `owners[0].rows`: expected a parameter, got `return` "
        "(what is taken back is looked up before the call)",
    ),
    "rows of a batch": (
        OWNERS.replace("hands out", "serves"),
        'key `owners[0].rows`: expected no such key beside `does = "serves"`, which is about all '
        "rows of its `relays`",
    ),
    "a batch that is returned": (
        OWNERS.replace("hands out", "serves").replace("rows", "owner"),
        "key `owners[0].owner`: expected a parameter, got `return` "
        "(whom a function serves is looked up before the call)",
    ),
    "rows of a table": (
        OWNERS.replace("hands out", "assigns"),
        'key `owners[0].rows`: expected no such key beside `does = "assigns"`, whose `owner` '
        "leads to a list by row, or to a mapping from names to rows",
    ),
    "no table": (
        OWNERS.replace("hands out", "assigns").replace('rows = "return"\n', ""),
        "key `owners[0]`: expected `owner`, a path to who has which row, got none",
    ),
    "no rows": (
        OWNERS.replace('rows = "return"\n', ""),
        "key `owners[0]`: expected `rows`, a path to the rows, got none",
    ),
    "owner releases": (
        OWNERS + 'releases = "new"\n',
        "key `owners[0].releases`: expected a version range",
    ),
    "owners of what": (
        OWNERS + 'relays = ["mine.relay:Relais"]\n' + BUFFER.removeprefix(HEAD),
        "key `owners[0].relays`: expected one of `mine.relay:Relay`, got `mine.relay:Relais`; "
        "did you mean `mine.relay:Relay`?",
    ),
    "owners' pool": (OWNERS + 'pool = "a b"\n', "key `owners[0].pool`: expected a path"),
    "owners key": (
        OWNERS + 'row = "return"\n',
        "unknown key `owners[0].row`; did you mean `rows`?",
    ),
    "step functions": (
        HEAD + '[[steps]]\nfunctions = ["loop"]\n',
        "key `steps[0].functions`: expected `module:Class.method` or `module:function`, got `loop`",
    ),
    "step releases": (
        HEAD + '[[steps]]\nfunctions = ["mine:loop"]\nreleases = "new"\n',
        "key `steps[0].releases`: expected a version range",
    ),
    "stream join of one": (
        HEAD + '[streams]\njoins = [["forward_stream"]]\n',
        "key `streams.joins[0]`: expected a list of length 2",
    ),
    "stream join by a dotted name": (
        HEAD + '[streams]\njoins = [["self.a", "self.b"]]\n',
        "key `streams.joins`: expected a name, got `self.a`; did you mean `a`?",
    ),
    "function that orders streams with its module": (
        HEAD + '[streams]\nordered_by = ["mine:Loop.wait"]\n',
        "key `streams.ordered_by`: expected a name, got `mine:Loop.wait`; did you mean `wait`?",
    ),
    "function that orders streams with its arguments": (
        HEAD + '[streams]\nordered_by = ["wait()"]\n',
        "key `streams.ordered_by`: expected a name, got `wait()`",
    ),
    "guard that covers nothing": (
        HEAD + '[[streams.guard]]\nname = "input_prep"\ncovers = []\n',
        "key `streams.guard[0].covers`: expected at least one method, got none",
    ),
    "fence before nothing": (
        HEAD + '[[streams.fence]]\nfence = "war"\nlaunch = "run"\nwrites = []\n',
        "key `streams.fence[0].writes`: expected at least one function, got none",
    ),
    "unknown key of the streams": (
        HEAD + '[streams]\norderd_by = ["join"]\n',
        "unknown key `streams.orderd_by`; did you mean `ordered_by`?",
    ),
    "renamed hook of nobody": (
        HEAD + '[[renamed]]\nold = "after"\nnew = "after_step"\n',
        "key `renamed[0]`: expected `classes` or `receivers`, got neither",
    ),
    "renamed hook by a dotted name": (
        HEAD + '[[renamed]]\nold = "after"\nnew = "Hooks.after"\nclasses = ["Hooks"]\n',
        "key `renamed[0].new`: expected a name, got `Hooks.after`",
    ),
    "hook that was no name": (
        HEAD + '[[renamed]]\nold = "after()"\nnew = "after"\nclasses = ["Hooks"]\n',
        "key `renamed[0].old`: expected a name, got `after()`",
    ),
    "self-guarding call that asks for nothing": (
        HEAD + '[[self_guarding]]\ncall = "resolve"\nguards = []\n',
        "key `self_guarding[0].guards`: expected at least one, got none",
    ),
    "self-guarding call by a dotted name": (
        HEAD + '[[self_guarding]]\ncall = "relay.resolve"\nguards = ["rows"]\n',
        "key `self_guarding[0].call`: expected a name, got `relay.resolve`",
    ),
    "fill value that is no number": (
        HEAD + '[graph_inputs.holds]\nseq_lens = "PAD"\n',
        "key `graph_inputs.holds.seq_lens`: expected a whole number, got a string",
    ),
    "axis with a key of a slip": (
        HEAD + '[[graph_inputs.fill]]\nclass = "a:B"\nmethods = ["f"]\nsettled_by = ["g"]\n'
        'inputs = "self.b"\naxis.rows = { raw = "n", pad = "m" }\n',
        "unknown key `graph_inputs.fill[0].axis.rows.pad`; did you mean `padded`?",
    ),
    "literal-free files not in a list": (
        HEAD + '[device]\nno_literal = "models/*.py"\n',
        'key `device.no_literal`: expected a list of strings, `["..."]`, got a string',
    ),
    "platform that is no name": (
        HEAD + '[device]\nno_compile = ["is_npu()"]\n',
        "key `device.no_compile`: expected a name, got `is_npu()`",
    ),
    "host value of three parts": (
        HEAD + '[launches]\nhost_values = ["*_cpu", "self.host_io.*"]\n',
        "key `launches.host_values`: expected a name, or that of an object and of its attribute, "
        "as `host_io.*`, got `self.host_io.*`",
    ),
    "host value of nothing": (HEAD + '[launches]\nhost_values = ["host_io."]\n', "got `host_io.`"),
    "not UTF-8": (None, "is not UTF-8"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_bad_contract_names_file_key_and_what_fits(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"name = '\xff'" if text is None else text.encode())

    with pytest.raises(UsageError) as caught:
        load_contract(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


FILL = """
    [engine]
    name = "toy"

    [graph_inputs]
    row_indices = ["rows"]

    [[graph_inputs.fill]]
    class = "toy:Runner"
    methods = ["run"]
    inputs = "self.inputs"
    axis.rows = { raw = "raw", padded = "self.sizes[bs]", capacity = "self.most" }

    [[graph_inputs.replay]]
    function = "toy:replay"
    rows = "io[*].rows"
"""


def test_fills_and_replays_are_read() -> None:
    inputs = parse_contract(FILL, "toy.toml").graph_inputs
    (fill,), (replay,) = inputs.fill, inputs.replay
    assert (fill.module, fill.qualname) == ("toy", "Runner")
    assert fill.axis["rows"].padded == "self.sizes[bs]"
    assert replay.rows == "io[*].rows"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"self.inputs"', '"self.inputs()"', "expected a path like `self.buffers`, got"),
        ('"self.sizes[bs]"', '"bs + 1"', "expected a path like `self.buffers`, got `bs [+] 1`"),
        ('"io[*].rows"', '"io[].rows"', "expected a path like `self.buffers`, got"),
        ("toy:Runner", "Runner", "expected `module:Class`, got `Runner`"),
        ("toy:replay", "replay", "expected `module:function`, got `replay`"),
        ('methods = ["run"]', "methods = []", "expected at least one method, got none"),
        (
            "axis.rows = ",
            "axis.x = {raw='a',padded='b',capacity='c'}\naxis.rows = ",
            "got 2: give each a fill of its own",
        ),
        ('"run"]', '"run"]\nreleases = "new"', "expected a version range like"),
        (
            '"run"]',
            '"run"]\nsettled_by = ["a:b c"]',
            "expected `module:Class.method` or `module:function`, got",
        ),
        ('"run"]', '"run"]\nholds = { lens = "1 + 1" }', "expected a path like"),
        ('"run"]', '"run"]\nsetled_by = []', "unknown key `graph_inputs.fill.0..setled_by`; did"),
    ],
)
def test_a_fill_that_means_nothing_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_contract(FILL.replace(old, new), "toy.toml")


def test_what_a_tail_must_be_is_a_bound() -> None:
    with pytest.raises(UsageError, match=r"graph_inputs\.valid\.lens`: expected `>= N`"):
        parse_contract(
            '[engine]\nname = "toy"\n[graph_inputs.valid]\nlens = "positive"', "toy.toml"
        )


def test_plain_releases_compare_as_packaging_has_it():
    versions = ("0", "0.0", "0.05", "0.5", "0.5.0", "0.5.1", "0.5.10", "0.10", "1", "1.0.0", "10")
    for version in versions:
        for sign in (">=", "<=", ">", "<", "==", "!="):
            for other in versions:
                for releases in (f"{sign}{other}", f"{sign} {other}, !=0.5"):
                    known = SpecifierSet(releases).contains(version, True)
                    assert applies(releases, version) == known, (releases, version)
