"""Which files are linted: excludes, `.gitignore`, named files; and what is ignored in which."""

from __future__ import annotations

import json

import pytest

from tests.sources import DEAD_ASSERT, STRAY_EVENT


def settings(folder, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.fmcheck]\n{text}\n")


@pytest.fixture
def tree(tmp_path):
    """Files with one finding each."""
    names = ("a.py", "b.pyi", "sub/a.py", "sub/deep/a.py", "build/a.py", "gen/a.py", "sub/gen/a.py")
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STRAY_EVENT)
    return tmp_path


@pytest.fixture
def linted(lint):
    """Runs the linter and returns the files that it found something in."""

    def run(*arguments: str) -> list[str]:
        _, out, _ = lint("--format", "json", *arguments)
        return [entry["path"] for entry in json.loads(out)]

    return run


EVERYTHING = ["a.py", "b.pyi", "gen/a.py", "sub/a.py", "sub/deep/a.py", "sub/gen/a.py"]


def test_the_usual_folders_are_left_out(linted, tree):
    assert linted(".") == EVERYTHING


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ('extend-exclude = ["gen"]', {"gen/a.py", "sub/gen/a.py"}),
        ('extend-exclude = ["/gen/"]', {"gen/a.py"}),
        ('extend-exclude = ["sub/*/a.py"]', {"sub/deep/a.py", "sub/gen/a.py"}),
        ('extend-exclude = ["sub/**"]', {"sub/a.py", "sub/deep/a.py", "sub/gen/a.py"}),
        ('extend-exclude = ["sub/*", "!sub/a.py"]', {"sub/deep/a.py", "sub/gen/a.py"}),
        ('extend-exclude = ["*.pyi"]', {"b.pyi"}),
    ],
)
def test_settings_exclude_more(linted, tree, text, left_out):
    settings(tree, text)

    assert linted(".") == [name for name in EVERYTHING if name not in left_out]


def test_exclude_in_the_settings_replaces_the_usual_folders(linted, tree):
    settings(tree, 'exclude = ["gen"]')

    assert linted(".") == ["a.py", "b.pyi", "build/a.py", "sub/a.py", "sub/deep/a.py"]


def test_exclude_on_the_command_line_adds_from_this_folder(linted, tree):
    settings(tree, 'extend-exclude = ["gen"]')

    assert linted("--exclude", "sub/deep", "--exclude", "*.pyi", ".") == ["a.py", "sub/a.py"]


def test_patterns_start_at_the_settings_file(linted, tree, monkeypatch):
    settings(tree, 'extend-exclude = ["sub/deep"]')
    monkeypatch.chdir(tree / "sub")

    assert linted(".") == ["a.py", "gen/a.py"]


def test_named_files_and_folders_are_linted_whatever_excludes_them(linted, tree):
    settings(tree, 'extend-exclude = ["sub/**"]')

    assert linted("build/a.py", "sub/deep/a.py") == ["build/a.py", "sub/deep/a.py"]
    assert linted("build", "sub/deep") == ["build/a.py", "sub/deep/a.py"]


def test_a_named_folder_is_walked_though_a_pattern_matches_all_in_it(linted, tree):
    settings(tree, 'extend-exclude = ["sub/**/*", "gen"]')

    assert linted("sub/deep") == ["sub/deep/a.py"]


def test_force_exclude_leaves_out_named_files(lint, linted, tree):
    settings(tree, 'extend-exclude = ["sub/**"]')

    assert linted("--force-exclude", "a.py", "build/a.py", "sub/deep/a.py", "sub") == ["a.py"]
    status, _, err = lint("--force-exclude", "build/a.py")
    assert (status, err) == (0, "")


def test_gitignore_is_respected_nested_and_from_above(linted, tree):
    (tree / ".git").mkdir()
    (tree / ".gitignore").write_text("# generated\n\n/gen/\n*.pyi\n")
    (tree / "sub" / ".gitignore").write_text("gen\n!deep\n")
    (tree / "sub" / "deep" / ".gitignore").write_text("*.py\n!a.py\n")

    assert linted(".") == ["a.py", "sub/a.py", "sub/deep/a.py"]
    assert linted("sub") == ["sub/a.py", "sub/deep/a.py"]


def test_a_nearer_gitignore_takes_back_what_one_above_ignores(linted, tree):
    (tree / ".gitignore").write_text("a.py\n")
    (tree / "sub" / ".gitignore").write_text("!a.py\n")

    assert linted(".") == ["b.pyi", "sub/a.py", "sub/deep/a.py", "sub/gen/a.py"]


def test_what_the_repository_excludes_is_left_out(linted, tree):
    (tree / ".git" / "info").mkdir(parents=True)
    (tree / ".git" / "info" / "exclude").write_text("sub\n")

    assert linted(".") == ["a.py", "b.pyi", "gen/a.py"]
    assert linted("sub") == ["sub/a.py", "sub/deep/a.py", "sub/gen/a.py"]


def test_gitignore_can_be_switched_off(linted, tree):
    (tree / ".gitignore").write_text("*.py\n")

    assert linted(".") == ["b.pyi"]
    assert linted("--no-respect-gitignore", ".") == EVERYTHING
    settings(tree, "respect-gitignore = false")
    assert linted(".") == EVERYTHING


def test_what_git_lists_is_what_is_linted(linted, tree, git):
    """The same patterns, by git's own word."""
    (tree / ".gitignore").write_text("gen/\nsub/d*p\n[ab].pyi\n!/gen\nfoo\\ bar/\n")
    listed = git("ls-files", "--others", "--exclude-standard", "--", "*.py", "*.pyi").split()

    assert linted(".") == sorted(name for name in listed if not name.startswith("build/"))


def test_a_pattern_that_is_none_is_named(lint, tree):
    status, _, err = lint("--exclude", "!", ".")

    assert status == 2
    assert "`!` is not a .gitignore pattern" in err


def test_rules_can_be_ignored_in_some_files(linted, tree):
    (tree / "sub" / "deep" / "b.py").write_text(DEAD_ASSERT)
    settings(tree, '[tool.fmcheck.per-file-ignores]\n"sub/*" = ["FM301"]\n"b.pyi" = ["ALL"]')

    assert linted(".") == ["a.py", "gen/a.py", "sub/deep/b.py"]


def test_an_ignored_rule_makes_no_suppression_unused(lint, tree):
    (tree / "a.py").write_text("x = 1  # fmcheck: ignore[FM301] why\n")
    settings(tree, '[tool.fmcheck.per-file-ignores]\n"a.py" = ["FM301"]')

    assert lint("a.py")[0] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[tool.fmcheck.per-file-ignores]\n"a.py" = ["FM310"]',
            "key `per-file-ignores.a.py`: expected a rule code, a family like `FM2`, or `ALL`, "
            "got `FM310`; did you mean `FM301`?",
        ),
        (
            '[tool.fmcheck.per-file-ignores]\n"a.py" = "FM301"',
            'key `tool.fmcheck.per-file-ignores[...]`: expected a list of strings, `["..."]`, '
            "got a string",
        ),
        ('exlude = ["x"]', "unknown key `tool.fmcheck.exlude`; did you mean `exclude`?"),
        ('ignore = ["FM001"]', "key `ignore`: `FM001` cannot be turned off or on"),
    ],
)
def test_settings_that_do_not_fit_are_one_error(lint, tree, text, message):
    settings(tree, text)

    status, out, err = lint(".")

    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
