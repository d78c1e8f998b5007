"""Writes by their words: what may fill or reset a buffer is kept, however it is written."""

from __future__ import annotations

import textwrap

import pytest

from fmcheck.config import find_settings
from fmcheck.contract import parse_contract
from fmcheck.lint.engine import lint_text
from fmcheck.lint.words import words_around
from fmcheck.lint.write_words import may_fill, may_reset, may_write_part
from fmcheck.registry import contracts_for, rules
from tests import truth

R = "self.req_pool_indices"
COPY = "rows.copy_(batch.rows)"

#: Ways to fill the front of `req_pool_indices`: each is one whole statement or more.
FILLS = {
    "a method": f"{R}[:raw_bs].copy_(batch.rows)",
    "a store": f"{R}[:raw_bs] = batch.rows",
    "from zero": f"{R}[0:raw_bs].copy_(batch.rows)",
    "from a zero in brackets": f"{R}[(0):raw_bs].copy_(batch.rows)",
    "a second dimension": f"{R}[..., :raw_bs] = batch.rows",
    "brackets inside": f"{R}[: sizes[0][raw_bs] + raw_bs] = batch.rows",
    "a quote inside": f"{R}[: raw_bs + sizes['a:b']] = batch.rows",
    "a comment before the bound": f"{R}[  # the front\n    :raw_bs] = batch.rows",
    "a comment after the receiver": f"({R}[:raw_bs]  # see self.rows\n    .copy_(batch.rows))",
    "a continued line": f"{R}[:raw_bs] \\\n    .copy_ \\\n    (batch.rows)",
    "a space before the bracket": f"{R} [ : raw_bs ] . copy_ (batch.rows)",
    "brackets around it": f"({R}[:raw_bs]).copy_(batch.rows)",
    "brackets around a store": f"({R}[:raw_bs]) = batch.rows",
    "a view": f"{R}[:raw_bs].view(-1).copy_(batch.rows)",
    "a view of a name": f"rows = {R}[:raw_bs]\nrows.view(-1).copy_(batch.rows)",
    "what a wrapper holds": f"rows = {R}[:raw_bs]\nrows.data.copy_(batch.rows)",
    "all of a front": f"{R}[:raw_bs][:].copy_(batch.rows)",
    "all of a named front": f"rows = {R}[:raw_bs]\nrows[...] = batch.rows",
    "a name of a name": f"rows = {R}[:raw_bs]\nsame = rows\nsame.copy_(batch.rows)",
    "a name of a view": f"rows = {R}[:raw_bs]\nsame = rows.view(-1)\nsame.copy_(batch.rows)",
    "a name in brackets": f"rows = ({R}[:raw_bs])\n{COPY}",
    "a name over lines": f"rows = (\n    {R}[\n        :raw_bs\n    ]\n)\n{COPY}",
    "a name before another": f"rows = {R}[:raw_bs]; n = 1\n{COPY}",
    "an annotated name": f"rows: Tensor = {R}[:raw_bs]\n{COPY}",
    "a name in an expression": f"if (rows := {R}[:raw_bs]) is not None:\n    {COPY}",
    "a second target": f"a = rows = {R}[:raw_bs]\n{COPY}",
    "a tuple": f"n, rows = bs, {R}[:raw_bs]\n{COPY}",
    "a tuple over lines": f"(\n    n,\n    rows,\n) = bs, {R}[:raw_bs]\n{COPY}",
    "a continued tuple": f"rows, \\\n    n = {R}[:raw_bs], bs\n{COPY}",
    "a comment beside a name": f"rows = {R}[:raw_bs]  # ) the front\n{COPY}",
    "a quote beside a name": f"rows = ({R} if n != ')' else {R})[:raw_bs]\n{COPY}",
    "a loop over lines": f"for (\n    n,\n    rows,\n) in ((1, {R}[:raw_bs]),):\n    {COPY}",
    "one of several arguments": f"torch.add(1, out={R}[:raw_bs] if bs else n, alpha=2)",
    "narrow": f"{R}.narrow(0, 0, raw_bs).copy_(batch.rows)",
    "a name": f"rows = {R}[:raw_bs]\n{COPY}",
    "a name after return": f"rows = {R}[:raw_bs]\nif bs: return (rows).copy_(batch.rows)",
    "either of two": f"rows = {R}[:raw_bs] if bs else {R}[:raw_bs]\n{COPY}",
    "an argument": f"torch.add(batch.rows, 1, out={R}[:raw_bs])",
    "an argument after a comment": f"torch.add(\n    batch.rows,  # (\n    out = {R}[:raw_bs])",
    "a name as the argument": f"rows = {R}[:raw_bs]\ntorch.add(batch.rows, 1, out=rows)",
    "a list": f"grouped_copy([{R}[:raw_bs]], [batch.rows])",
    "a list by keyword": f"grouped_copy(to=[{R}[:raw_bs]], of=[batch.rows])",
    "a list that grows": f"to = []\nto.append({R}[:raw_bs])\ngrouped_copy(to, batch)",
    "a loop": f"for rows in ({R}[:raw_bs],):\n    rows.copy_(batch.rows)",
}


def runner(fill: str) -> str:
    body = f"""
if bs != raw_bs:
    self.seq_lens.fill_(1)
self.seq_lens[:raw_bs].copy_(batch.seq_lens)
{fill}
"""
    lines = textwrap.indent(body, " " * 8)
    return f"class Runner:\n    def replay(self, batch, bs, raw_bs, sizes, n):{lines}"


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_a_fill_is_found_however_it_is_written(fill: str) -> None:
    rule = rules()["FM201"](contracts_for(find_settings(truth.DATA)))

    found = lint_text(runner(fill).encode(), "runner.py", [rule])

    assert may_fill(fill)
    assert ["`req_pool_indices`" in one.message for one in found] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "buf.copy_(batch.rows)\nbuf[n:].copy_(batch.rows)\nbuf[n:m] = batch.rows",
        "self.buf.copy_(batch.rows[:n])",
        "self.buf[rows].copy_(batch.rows[:n])",
        "self.buf['rows'] = batch.rows[:n]",
        "self.buf[key(n, 'x')] = batch.rows[:n]",
        "torch.add(batch.rows[:n], 1, out=self.buf)",
        "torch.add(batch.rows[:n], 1, out=None)",
        "if n:\n    out = batch.rows[:n]",
        "rows = batch.rows[:n].copy()",
        "rows = torch.empty(n)\nrows.copy_(batch.rows[:n])",
        "rows = self.rows\nrows.copy_(batch.rows[:n])",
        "rows.copy_(batch.rows[:n])",
        "first = batch.rows[:n]\nrows = self.make(first)\nrows.copy_(first)",
        "torch.add(batch.rows[:n], 1, out=rows.view(-1, n))",
        "self.make(rows[:n]).copy_(batch.rows)",
    ],
)
def test_what_fills_no_front_is_cleared_by_its_text(text: str) -> None:
    assert not may_fill(text)


@pytest.mark.parametrize(
    "text",
    [
        "buf.zero_()",
        "buf . fill_ \\\n (1)",
        "host.fill(0)",
        "torch._foreach_zero_(all)",
        "buf[n:] = 0",
        "buf[:] = 0",
        "buf[(n):(m)] = 0",
    ],
)
def test_what_may_reset_is_kept(text: str) -> None:
    assert may_reset(text)


@pytest.mark.parametrize("text", ["buf[:n] = 0", "prefill_(1)", "buf[0] = 0", "buf.zeros_like()"])
def test_what_resets_nothing_is_cleared_by_its_text(text: str) -> None:
    assert not may_reset(text)


@pytest.mark.parametrize(
    "text",
    [
        "buf[:n] = 0",
        "buf [ n : ] . zero_()",
        "(buf[:n]\n  # the front\n  .copy_(rows))",
        "(buf)[:n] = rows",
        "(\n  # the front\n  buf\n)[:n].fill_(0)",
        f"buf[{'rows, ' * 100}:n] = 0",
    ],
)
def test_a_write_to_a_part_is_kept_however_it_is_written(text: str) -> None:
    assert may_write_part(text)


@pytest.mark.parametrize(
    "text", ["buf[n] = 0", "self.buf[:n] = 0", "buf[:n] == 0", "buf[:n].copy(rows)", "buf.zero_()"]
)
def test_what_writes_no_part_of_a_name_is_cleared_by_its_text(text: str) -> None:
    assert not may_write_part(text)


def test_the_words_around_nothing_are_all_words() -> None:
    assert words_around("", "a.b_1 = [c2]\n") == {"a", "b_1", "c2"}


def test_a_contract_may_name_anything() -> None:
    contract = parse_contract(
        """
        [engine]
        name = "any"
        [graph_inputs]
        holds = { "*" = 0, "?" = 0, "[ab]" = 0 }
        """,
        "any.toml",
    )
    rule = rules()["FM202"]((contract,))
    text = b"def f(self):\n    self.a.fill_(1)\n    self.seq_lens.fill_(0)\n"

    found = lint_text(text, "x.py", [rule])

    assert found == lint_text(text, "x.py", [rule], whole=True)


#: Odd spellings of what opt-in rules look for.
SPELT = {
    "FM107": """\
class Batch:
    def hand_over(self, other):
        other.make(lengths=(
            # as they are
            self . lengths))

    def advance(self):
        (self.lengths  # in place
            .add_(1))
""",
    "FM205": """\
class Backend:
    def replay(self, batch, bs):
        buf = self.track_buf
        (buf [:bs]
            # the front
            .copy_(batch.rows))
        return buf
""",
    "FM206": """\
class Runner:
    def \\
            replay(self, batch, n):
        self.rows[:n].copy_(batch.rows)
        self.slots[:n].copy_(batch.slots)
        batch.rows = self.rows[:n]
        batch.slots = self.slots[: self.padded]
""",
    "FM303": """\
class Runner:
    def run(self, stream):
        if _is_cuda:
            stream . wait_stream (self.stream)
""",
    "FM602": """\
from torch import compile as faster

@ faster
def gather(buf, rows):
    return buf[rows]
""",
    "FM603": """\
class Runner(GraphRunner):
    async def fill(self, batch, n):
        def init():
            pass
        (self.rows) = torch . zeros (n)
        self.rows[:n].copy_(batch.rows)
""",
    "FM605": """\
from torch import empty as make

class Layer:
    async def forward(self, x):
        staging_0 = make(8)
        return exchange(x, staging_0)
""",
}


@pytest.mark.parametrize("code", SPELT)
def test_an_odd_spelling_hides_nothing(code: str) -> None:
    rule = rules()[code](contracts_for(find_settings(truth.DATA)))
    text = SPELT[code].encode()

    found = lint_text(text, "runner.py", [rule])

    assert found == lint_text(text, "runner.py", [rule], whole=True)
    assert [one.code for one in found] == [code]
