"""Slices: they cover the module, are cut between statements, and change no finding."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING

import libcst as cst
import pytest

from fmcheck.config import Located, Settings
from fmcheck.lint.engine import lint_text
from fmcheck.lint.source.cuts import Cuts
from fmcheck.lint.source.file import File
from fmcheck.lint.source.module import CutError, Module
from fmcheck.lint.source.tree import KEPT, Kept, Tree
from fmcheck.lint.source.words import either, stand
from fmcheck.registry import contracts_for, rules
from tests.corpus import wheel_source
from tests.parts import module_of
from tests.sources import chosen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Files of sglang 0.5.23: with findings of several rules, with none, with strings that are not cut.
SAMPLE = (
    "sglang/srt/managers/overlap_utils.py",
    "sglang/srt/model_executor/cpu_graph_runner.py",
    "sglang/srt/model_executor/runner_utils/pool.py",
    "sglang/srt/managers/tp_worker.py",
    "sglang/srt/managers/utils.py",
    "sglang/srt/speculative/eagle_utils.py",
    "sglang/srt/utils/common.py",
    "sglang/version.py",
)


def sources() -> list[Path]:
    """Files of this checkout and of a release."""
    return [*chosen(), *(wheel_source("sglang", "0.5.23") / name for name in SAMPLE)]


def cut(source: str) -> list[str]:
    return [source[one.start : one.end] for one in Cuts(source).top_level()]


def test_cuts_before_definitions_and_their_decorators():
    assert cut("x = 1\n@one\n@two\ndef f(): pass\ny = 2\nclass A: pass\nasync def g(): pass\n") == [
        "x = 1\n",
        "@one\n@two\ndef f(): pass\ny = 2\n",
        "class A: pass\n",
        "async def g(): pass\n",
    ]


def test_a_form_feed_before_a_definition_is_no_indentation():
    assert cut("x = 1\n\fclass A: pass\n \fdef f(): pass\n") == [
        "x = 1\n",
        "\fclass A: pass\n",
        " \fdef f(): pass\n",
    ]


def test_a_name_that_begins_as_a_keyword_does_is_no_definition():
    source = "x = 1\ndef_ = 2\nclass_a = 3\n"

    assert cut(source) == [source]


def test_a_definition_in_a_string_is_none():
    source = 'text = """\ndef f(): pass\n"""\ndef g(): pass\n'

    assert cut(source) == ['text = """\ndef f(): pass\n"""\n', "def g(): pass\n"]


def test_an_escaped_quote_does_not_close_a_string():
    source = 'text = """\\"""\ndef f(): pass\n"""\n'

    assert cut(source) == [source]


def test_quotes_right_behind_an_escaped_one_close_a_string():
    source = 'text = """\\""""\ndef f(): pass\n'

    assert Cuts(source).certain
    assert cut(source) == ['text = """\\""""\n', "def f(): pass\n"]


@pytest.mark.parametrize(
    "head",
    [
        'x = \'"""\'\n',
        '# """\n',
        'x = "it\'s"; y = """\ndef g(): pass\n"""\n',
        'x = f\'    """{y}"""\'  # \'\n',
        'x = \'a\', """b\ndef g(): pass\n""" \'"""\'\n',
    ],
    ids=[
        "in a string",
        "in a comment",
        "after a string",
        "twice in an f-string",
        "around a string",
    ],
)
def test_quotes_beside_strings_and_comments_are_paired(head):
    source = f"{head}def f(): pass\n"
    assert Cuts(source).certain
    assert cut(source) == [head, "def f(): pass\n"]


@pytest.mark.parametrize(
    "source",
    [
        'x = f"{d["k"]}", \'"""\'\ndef f(): pass\n',
        'x = \'a\\\n"""\'\ndef f(): pass\n',
        '"""\ndef f(): pass\n',
        "x = a \\\n@ b\ndef f(): pass\n",
    ],
    ids=["in a newer f-string", "in a continued string", "never closed", "product"],
)
def test_what_is_not_certain_is_not_cut(source):
    assert not Cuts(source).certain


def test_a_product_cut_as_a_decorator_is_parsed_whole():
    source = "x = (a\n@ b)\ndef f():\n    word\n"
    with pytest.raises(CutError):
        list(module_of(source).parts_with((("word",),)))


def test_slices_hold_the_statements_of_the_whole_module():
    for path in sources():
        source = path.read_text(encoding="utf-8")
        by_slice, in_one = (Module(File("x.py", source), whole=whole) for whole in (False, True))
        # A slice's nodes stand where the file has them.
        assert _placed(by_slice) == _placed(in_one), path


def _placed(module: Module) -> list[tuple[object, str]]:
    return [
        (part.span(node), type(node).__name__)
        for part in module.parts_with(())
        for node in part.nodes()
    ]


def test_imports_are_found_without_parsing():
    for path in sources():
        source = path.read_text(encoding="utf-8")
        found = {one.name for one in module_of(source).imports}
        assert found == set(_imported(ast.parse(source))), path


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for one in node.names:
                if one.name != "*":
                    is_plain = isinstance(node, ast.Import)
                    yield one.asname or (one.name.partition(".")[0] if is_plain else one.name)


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        (
            "import a.b\nfrom c import (\n    d as e,  # )\n    f,\n)\n",
            {"a": "a", "e": "c.d", "f": "c.f"},
        ),
        ("def f():\n    from a import b\n", {"b": "a.b"}),
        ('"""\nimport a\n"""\n', {}),
        ("if x: import a\n", {"a": "a"}),
        ("import a; import b as c\n", {"a": "a", "c": "b"}),
        ("from a \\\n    import b\n", {"b": "a.b"}),
        ("from a \\\n    .b import c\n", {"c": "a.b.c"}),
        ('x = 1 + \\\n    2\ndef f():\n    """f."""\n    import a\n', {"a": "a"}),
        ("from a import b\ndef f():\n    from c import b\n", {"b": "c.b"}),
        ("x = 1  # import a\n", {}),
    ],
)
def test_imports_of_odd_shape(source, imported):
    assert module_of(source).imported == imported


def names(module: Module, *words: str) -> list[str]:
    parts = module.parts_with((words,))
    return [one.node.name.value for one in parts if isinstance(one.node, cst.FunctionDef)]


def test_only_slices_with_a_word_are_handed_out():
    source = "def f():\n    word\ndef g():\n    other\nclass A:\n    def h(self):\n        word\n"

    assert names(module_of(source), "word") == ["f", "h"]


def test_of_each_group_of_words_one_has_to_stand_there():
    module = module_of("def f():\n    one\n    two\ndef g():\n    one\ndef h():\n    two\n")

    found = [one.node.name.value for one in module.parts_with((("one", "1"), ("two",)))]

    assert found == ["f"]


def test_a_star_in_a_word_is_anything_on_the_line():
    module = module_of("def f():\n    a[:n] = b\ndef g():\n    a[:n]\n    b = [1] = c\n")

    assert names(module, "[:*] =") == ["f"]


def test_the_name_that_an_import_gives_is_one_for_the_word():
    module = module_of("from torch.cuda import Event as Made\ndef f():\n    Made()\n")

    assert names(module, "Event") == ["f"]


def test_only_what_defines_a_function_that_a_rule_judges_is_parsed():
    source = (
        "def step():\n    word\ndef load():\n    word\nword\n"
        "class A:\n    def \\\n  step_b(self):\n        word\n"
        "    def save(self):\n        def step_c():\n            word\n"
    )
    module = module_of(source)

    found = list(module.parts_with((("word",),), re.compile("step")))

    # `save` is handed out for what it holds: the rule asks again.
    assert [one.node.name.value for one in found] == ["step", "step_b", "save"]
    stretches = [one for family in module.families for one in family.stretches]
    assert sum("tree" in vars(one) for one in stretches) == 3


def test_only_methods_with_a_word_are_parsed():
    filler = "".join(f"    def m{n}(self):\n        return {n}\n" for n in range(200))
    module = module_of(f"class A:\n    x = 1\n{filler}    def h(self):\n        word\n")

    (found,) = module.parts_with((("word",),))

    assert found.span(found.node).line == 403
    parsed = [one for one in module.families[0].stretches if "tree" in vars(one)]
    assert len(parsed) == 1


def test_slices_whose_loops_read_nothing_that_they_draw_are_not_parsed():
    source = (
        "def many(self, rows, size):\n    for row in rows:\n        self.add(int(size))\n"
        "def last(self, rows):\n    for i in rows:\n        i.add(self.lens[-1].item())\n"
        "def taken(self, rows):\n    for i in rows:\n        self.add(int(i[0]), self.lens[i])\n"
        "def each(self, rows):\n    for i in rows:\n        i.add(self.lens[rows[i]].item())\n"
        "def drawn(self):\n    return [int(\n        one\n    ) + int(one) for one in self.lens]\n"
        "def split(self, a, b):\n    return [int(x[0]) for (\n        x\n    ) in zip(a, self.b)]\n"
        "def spread(self, n):\n    return [bool(\n        self.lens[\n            i\n        ]\n"
        "    ) or bool(n[i]) for i in range(n)]\n"
    )
    rule = rules()["FM504"](())

    found = [one.node.name.value for one in rule.pieces(module_of(source))]

    assert found == ["each", "drawn", "spread"]


def test_a_buffer_outside_of_relays_is_parsed_beside_what_holds_it():
    source = (
        "def one(batch):\n    return batch.output_tokens_buf[batch.rows]\n"
        "def other(worker):\n    held = worker._future_map\n"
        "    return held.output_tokens_buf[rows]\n"
        "def nothing(worker):\n    return worker.future_map\n"
    )
    rule = rules()["FM101"](contracts_for(Located(Settings(), None)))
    module = module_of(source)
    relay = Module(File("sglang/srt/managers/overlap_utils.py", source))

    assert [one.node.name.value for one in rule.pieces(module)] == ["other"]
    assert [one.node.name.value for one in rule.pieces(relay)] == ["one", "other"]


@pytest.mark.parametrize("name", SAMPLE)
def test_cheap_stages_change_no_finding_in_a_released_engine(name):
    path = wheel_source("sglang", "0.5.23") / name
    contracts = contracts_for(Located(Settings(), None))
    used = [rule(contracts) for rule in rules().values()]
    text = path.read_bytes()

    assert lint_text(text, name, used) == lint_text(text, name, used, whole=True)


def test_a_long_class_without_methods_before_a_nested_function_is_parsed_whole() -> None:
    long = "".join(f"    field_{number} = {number}\n" for number in range(100))
    source = f"class A:\n{long}\nif A:\n    def f():\n        pass\n"
    with pytest.raises(CutError):
        list(module_of(source).parts_with(()))
    whole = Module(File("x.py", source), whole=True)
    found = [type(part.node).__name__ for part in whole.parts_with(())]
    assert found == ["SimpleStatementLine"] * 100 + ["If"]


@pytest.mark.parametrize(
    ("word", "line", "is_there"),
    [
        ("[:?*] = ", "rows[:n] = 1", True),
        ("[:?*] = ", "rows[:n, 0] = 1", True),
        ("[:?*] = ", "rows[:, 0] = 1", False),
        ("[:?*] = ", "rows[:n] == 1", False),
        ("cuda*Event", "torch.cuda.Event()", True),
        ("cuda*Event", "torch.cuda\nEvent()", False),
        ("^int(~[", "n = int(lens[0])", True),
        ("^int(~[", "int(self.lens[0])", False),
        ("^int(~[", "print(lens[0])", False),
        ("^int(~[", "x.int(lens[0])", False),
        ("^int(~[", "x_int(lens[0])", False),
    ],
)
def test_a_word_may_hold_signs_that_stand_for_others(word, line, is_there):
    assert stand(((word,),), line, 0, len(line)) is is_there
    assert File("x.py", line).holds((word,)) or not is_there


@pytest.mark.parametrize(
    ("source", "own"),
    [
        ("import torch.cuda as tc\n", "tc*Event"),
        ("from torch import cuda as tc\n", "tc*Event"),
        ("from torch.cuda import Event as Made\n", "Made"),
    ],
)
def test_a_word_goes_by_the_names_that_imports_give_to_it(source, own):
    assert module_of(source).renamed((("cuda*Event",),)) == (("cuda*Event", own),)


@pytest.mark.parametrize(
    ("statement", "is_bound"),
    [
        ("self.side = made()", True),
        ("self.side: Stream = made()", True),
        ("self.main, self.side = made()", True),
        ("(\n            self.main,\n            self.side,\n        ) = made()", True),
        ("self.other = self.side = made()", True),
        ("use(self.side)", False),
        ("use(self.side, self.main)", False),
        ("use(side=self.side.event)", False),
        ("return self.side == self.main", False),
    ],
)
def test_a_class_is_asked_for_the_slices_that_may_bind_a_name(statement, is_bound):
    (family,) = module_of(f"class A:\n    def f(self):\n        {statement}\n").families
    assert bool(list(family.binding("side"))) is is_bound


def test_a_property_of_a_name_may_bind_it():
    source = "class A:\n    @property\n    def side(self):\n        return made()\n"
    (family,) = module_of(source).families
    assert list(family.binding("side"))


def test_signs_before_a_word_stand_before_its_other_names_too():
    module = module_of("from torch import compile as made\n")
    assert module.renamed((("@*compile",),)) == (("@*compile", "@*made"),)


def test_what_needs_the_words_of_one_choice_or_of_another_has_one_of_each_pair():
    words = either((("a", "b"), ("c",)), (("d",),))
    assert words == (("a", "b", "d"), ("c", "d"))
    assert [stand(words, text, 0, 3) for text in ("b c", "d  ", "a b")] == [True, True, False]


def test_nodes_are_asked_whether_they_are_valid_but_for_those_of_the_parser(monkeypatch):
    asked = []
    monkeypatch.setattr(cst.Name, "_validate", lambda node: asked.append(node.value))

    Tree("x = 1\n")
    assert asked == []
    cst.Name("y")
    assert asked == ["y"]


#: Odd ways to reach CUDA's API beside a device module, or where the module has one at its top.
REACHED = (
    "from torch.cuda import Event as Made\n\ndef f(d):\n    torch.get_device_module(d)\n"
    "    return Made()\n",
    "from torch import cuda as nv\n\ndef f(d):\n    torch.get_device_module(d)\n"
    "    return nv.Event()\n",
    "import torch.cuda as nv\n\ndef f(d):\n    torch.get_device_module(d)\n    return nv.Event()\n",
    "from torch \\\n    .cuda import (\n    Event,\n)\n\ndef f(d):\n"
    "    torch.get_device_module(d)\n    return Event()\n",
    "import torch\n\ndef f(d):\n    torch.get_device_module(d)\n    return (torch.cuda  # here\n"
    "        .Event())\n",
    "import torch\nfrom torch import (\n    get_device_module  # of a device\n    as of,\n)\n\n"
    "def f(d):\n    of(d)\n    return torch.cuda.Event()\n\ndef g(d):\n"
    "    torch.get_device_module(d)\n",
    "import torch\n\ndef f():\n    pass\n\nmodule = torch.get_device_module()\n"
    "ready = torch.cuda.Event()\n",
    "import torch\n\nclass A:\n    x = 1\n# here\n"
    "if torch.get_device_module():\n    ready = torch.cuda.Event()\n",
)


@pytest.mark.parametrize("source", REACHED)
def test_api_is_found_however_it_is_reached(source: str) -> None:
    rule = rules()["FM301"](contracts_for(Located(Settings(), None)))

    found = lint_text(source.encode(), "a.py", [rule])

    assert {one.code for one in found} == {"FM301"}
    assert found == lint_text(source.encode(), "a.py", [rule], whole=True)


@pytest.mark.parametrize("name", SAMPLE)
def test_trees_that_are_kept_change_no_finding(name):
    raw = (wheel_source("sglang", "0.5.23") / name).read_bytes()
    contracts = contracts_for(Located(Settings(), None))
    checked = [rule(contracts) for rule in rules().values()]
    fresh = lint_text(raw, name, checked)
    token = KEPT.set(Kept())
    try:
        again = [lint_text(raw, name, checked) for _ in range(2)]
    finally:
        KEPT.reset(token)
    assert again == [fresh, fresh]


def test_two_slices_of_one_text_are_two_trees():
    kept, used = Kept(), Counter()
    first, second = (kept.tree("x = 1\n", "", used) for _ in range(2))
    assert first is not second
    used = Counter()
    assert [kept.tree("x = 1\n", "", used) for _ in range(2)] == [first, second]


def test_no_more_trees_are_kept_than_were_asked_for():
    kept = Kept(most=1)
    first = kept.tree("x = 1\n", "", Counter())
    kept.tree("y = 1\n", "", Counter())
    assert kept.tree("x = 1\n", "", Counter()) is not first
