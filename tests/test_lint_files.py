"""Which files are linted: excludes, `.gitignore`, named files; and what is ignored in which."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from fmcheck.lint.scope.patterns import Patterns
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


@pytest.mark.parametrize("pattern", ["!", "./gen", "../gen"])
def test_a_pattern_that_matches_nothing_is_named(lint, tree, pattern):
    status, _, err = lint("--exclude", pattern, ".")

    assert status == 2
    assert f"fmcheck: --exclude: expected a .gitignore pattern, got `{pattern}`" in err


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('exclude = ["!"]', "exclude"),
        ('extend-exclude = ["!"]', "extend-exclude"),
        ('per-file-ignores = {"!" = ["FM301"]}', 'per-file-ignores."!"'),
    ],
)
def test_a_setting_that_is_no_pattern_is_named_with_its_file(lint, tree, text, key):
    (tree / "pyproject.toml").write_text(f"[tool.fmcheck]\n{text}\n")

    status, _, err = lint(".")

    assert status == 2
    place = f"{tree / 'pyproject.toml'}: key `{key}`"
    assert f"fmcheck: {place}: expected a .gitignore pattern, got `!`" in err


def test_a_line_of_a_gitignore_that_is_no_pattern_matches_nothing(lint, linted, tree):
    (tree / ".git").mkdir()
    (tree / ".gitignore").write_text("!\n/\n!/\nfoo\\\n[a\n//\ngen\n")

    assert lint(".")[2] == ""
    assert linted(".") == [name for name in EVERYTHING if "gen" not in name]


#: Patterns of every kind, those that are odd too.
KINDS = (
    "a.py|*.py|a?py|sub|sub/|/sub|sub/a.py|/a.py|**/a.py|sub/**|**|*|/*|*/a.py|sub/*/|sub/*/a.py|"
    "sub/**/a.py|**/deep/**|**/gen/|[ab].py|[!b].py|[^b].py|[a-c].py|[]a].py|[[:alpha:]].py|"
    "[[:digit:]].py|a[.]py|[a|a\\.py|\\a.py|a.py |a.py\\ | a.py|a.p*y|*a*.*p*y*|b.py/|sub/deep/a.py"
    "|deep/a.py|s*b/d*p|*.pyi|!a.py|\\!b.py|# a.py"
)


@pytest.mark.parametrize("pattern", KINDS.split("|"))
def test_a_pattern_means_what_it_means_to_git(tree, git, pattern):
    for name in ("b.py", "a b.py", " a.py", "a.py ", "!b.py", "].py", "c/a.py/d.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")
    (tree / ".gitignore").write_text(f"{pattern}\n")
    files = [path for path in tree.rglob("*.py*") if path.is_file() and ".git" not in path.parts]
    names = [str(path.relative_to(tree)) for path in files]
    given = "".join(f"{name}\0" for name in names).encode()
    command = ["git", "check-ignore", "--no-index", "--stdin", "-z"]
    asked = subprocess.run(command, cwd=tree, input=given, capture_output=True, check=False)
    expected = {one for one in asked.stdout.decode().split("\0") if one}

    patterns = Patterns([pattern], str(tree))

    assert {name for name in names if patterns.match(str(tree / name))} == expected


STARS = "*a" * 14 + "*b"


@pytest.mark.parametrize("where", ["gitignore", "exclude", "option", "per-file-ignores", "path"])
def test_many_stars_take_no_time(linted, tree, where):
    """As a regular expression, this one takes a day; if it does again, the suite hangs."""
    name = "a" * 120 + ".py"
    (tree / name).write_text(STRAY_EVENT)
    deep = "/".join(["**/a"] * 14)
    if where == "gitignore":
        (tree / ".git").mkdir()
        (tree / ".gitignore").write_text(f"{STARS}\n{deep}/b\n")
    elif where == "exclude":
        settings(tree, f'extend-exclude = ["{STARS}"]')
    elif where == "per-file-ignores":
        settings(tree, f'[tool.fmcheck.per-file-ignores]\n"{STARS}" = ["FM301"]')
    elif where == "path":
        settings(tree, f'extend-exclude = ["{deep}/b"]')
        folder = tree.joinpath(*["a"] * 40)
        folder.mkdir(parents=True)
        (folder / "c.py").write_text(STRAY_EVENT)

    option = ("--exclude", STARS) if where == "option" else ()

    assert name in linted(*option, ".")


def test_more_patterns_than_can_be_tried_are_one_error_and_plain_paths_are_not_counted(
    lint, linted, tree
):
    (tree / ".git").mkdir()
    paths = [f"/sub/{number}.py" for number in range(20_000)]
    (tree / ".gitignore").write_text("\n".join([*paths, "/sub/deep/a.py", "/gen/", "!/gen/"]))
    assert linted(".") == [name for name in EVERYTHING if name != "sub/deep/a.py"]

    (tree / ".gitignore").write_text("\n".join(f"*a*{number}*y" for number in range(2_001)))
    status, out, err = lint(".")

    assert (status, out) == (2, "")
    assert err.endswith("expected at most 2,000 patterns that are no plain paths, got more\n")


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
            'key `per-file-ignores."a.py"`: expected a rule code, a family like `FM2`, or `ALL`, '
            "got `FM310`; did you mean `FM301`?",
        ),
        (
            '[tool.fmcheck.per-file-ignores]\nb = ["FM301"]\n"a.py" = "FM301"',
            'key `tool.fmcheck.per-file-ignores."a.py"`: expected a list of strings, `["..."]`, '
            "got a string",
        ),
        (
            "[tool.fmcheck.per-file-ignores]\nb = ['FM301']\na = ['FM301', 1]",
            "key `tool.fmcheck.per-file-ignores.a[1]`: expected a string, got a whole number",
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


#: What may stand in the place of a file that is read.
ODD = {
    "pipe": "a named pipe",
    "socket": "a socket",
    "device": "a device",
    "folder": "a folder",
    "large": "larger than 1 MiB, the limit",
    "circle": "Too many levels of symbolic links",
}


def plant(path, kind: str, size: int = 2 << 30) -> None:
    """Puts something that is no file to read in the place of one."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        # From its folder: the name of a socket may be 100 characters long.
        here = os.getcwd()
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
        os.chdir(here)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "circle":
        path.symlink_to(path.name)
    else:
        with path.open("wb") as file:
            file.truncate(size)  # takes no room on the disk


READ = {
    "settings": ("pyproject.toml", ["."]),
    "named settings": ("odd.toml", ["--config", "odd.toml", "."]),
    "contract": ("odd.toml", ["."]),
    "baseline": ("odd.json", ["--baseline", "odd.json", "."]),
    "gitignore": (".gitignore", ["sub"]),
}


@pytest.mark.skipif(os.name != "posix", reason="needs FIFOs")
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("what", READ)
def test_what_is_no_regular_file_of_a_usual_size_is_one_error_at_once(lint, tree, what, kind):
    name, arguments = READ[what]
    (tree / ".git").mkdir()
    if what == "contract":
        settings(tree, 'contracts = ["odd.toml"]')
    plant(tree / name, kind)

    status, out, err = lint("--no-cache", *arguments)

    assert (status, out, err.count("\n")) == (2, "", 1)
    limit = ODD[kind].replace("1 MiB", "64 MiB") if what == "baseline" else ODD[kind]
    assert err.startswith("fmcheck: ")
    assert f"{name}: cannot be read: " in err
    assert limit in err


@pytest.mark.skipif(os.name != "posix", reason="needs FIFOs")
@pytest.mark.parametrize("kind", [kind for kind in ODD if kind != "folder"])
def test_source_that_is_no_regular_file_of_a_usual_size_costs_itself(lint, linted, tree, kind):
    (tree / "odd").mkdir()
    plant(tree / "odd" / "odd.py", kind)

    status, out, err = lint("--no-cache", ".")

    if kind == "device":  # a link out of the tree
        assert (status, err.count("\n")) == (1, 1)
        assert "not followed out of the tree: odd/odd.py" in err
    else:
        assert (status, err) == (2, "")
        assert "error[FM001]: file cannot be read: " in out
        assert ODD[kind].replace("1 MiB", "32 MiB") in out
    assert linted("odd/odd.py", "a.py") == ["odd/odd.py", "a.py"]


def test_a_file_that_may_not_be_looked_at_is_not_said_to_be_missing(lint, tree, monkeypatch):
    def refusing(path, real=os.lstat, **options):
        if str(path).startswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, **options)

    monkeypatch.setattr(os, "lstat", refusing)

    assert lint("sub/b.py") == (2, "", "fmcheck: sub/b.py: cannot be read: Permission denied\n")


def test_a_folder_that_cannot_be_listed_is_reported_and_the_others_are_linted(
    lint, tree, monkeypatch
):
    # Root may list anything: say what the system would say to anybody else.
    def refusing(path, real=os.scandir):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    def refused(path, *arguments, real=os.open, **options):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "scandir", refusing)
    monkeypatch.setattr(os, "open", refused)

    for named in (".", "sub/deep"):
        status, out, err = lint("--no-cache", "--format", "json", named)
        found = {entry["path"]: entry["code"] for entry in json.loads(out)}
        assert (status, err) == (2, "")
        assert "file cannot be read: Permission denied" in out
        assert found.pop("sub/deep") == "FM001"
        assert len(found) == (5 if named == "." else 0)


@pytest.mark.parametrize("named", ["circle", "circle.py"])
def test_a_link_in_a_circle_that_is_named_is_no_traceback(lint, tree, named):
    (tree / named).symlink_to(named)

    status, out, err = lint(named)

    assert (status, err) == (2, "")
    assert "Too many levels of symbolic links" in out


def test_a_null_byte_in_a_contracts_path_is_one_error(lint, tree):
    settings(tree, 'contracts = ["a\\u0000.toml"]')

    status, out, err = lint("a.py")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "cannot be read: its name holds a null byte" in err


@pytest.mark.parametrize("line", ["{} = 1", "[{}]", "x = {{ {} = 1 }}", '"a.b" . {} = 1'])
def test_a_key_of_many_parts_is_one_error_at_once(lint, tree, line):
    settings(tree, line.format(".".join("a" * 50_001)))

    status, out, err = lint("a.py")

    assert (status, out) == (2, "")
    assert err.endswith(
        "pyproject.toml: line 2: expected a key of at most 100 parts, got a longer one\n"
    )


def test_dots_that_are_no_keys_are_no_error(linted, tree):
    dots = ".".join("a" * 500)
    texts = (f"# {dots}", f'a = "{dots}"', f"b = '{dots}'", f'c = """\n{dots}\n"""')
    more = (f"d = '''\n{dots}'''", f'"{dots}" = 1', "e = [" + "1.5, " * 500 + "]")
    (tree / "pyproject.toml").write_text("\n".join((*texts, *more)))

    assert linted("a.py") == ["a.py"]


@pytest.mark.parametrize("text", ["x = " + "[" * 100_000, "x = " + "9" * 5000])
def test_settings_beyond_what_the_parser_takes_are_one_error(lint, tree, text):
    settings(tree, text)

    status, out, err = lint("a.py")

    assert (status, out) == (2, "")
    assert "pyproject.toml: is not valid TOML: " in err


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" + "9" * 5000 + "]"])
def test_a_baseline_beyond_what_the_parser_takes_is_one_error(lint, tree, text):
    (tree / "known.json").write_text(text)

    status, out, err = lint("--baseline", "known.json", "a.py")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("fmcheck: known.json: is not ")


@pytest.mark.parametrize("coding", ["undefined", "punycode", "idna", "rot13", "zlib"])
def test_an_encoding_that_is_none_of_source_costs_its_file_alone(lint, linted, tree, coding):
    (tree / "a.py").write_text(f"# coding: {coding}\n{STRAY_EVENT}")

    status, out, err = lint("--format", "json", ".")

    assert (status, err) == (2, "")
    codes = {entry["path"]: entry["code"] for entry in json.loads(out)}
    assert codes.pop("a.py") == "FM001"
    assert set(codes.values()) == {"FM301"}


def test_folders_nested_deeper_than_calls_are_linted(lint, tmp_path, monkeypatch):
    monkeypatch.setenv("FMCHECK_CACHE_DIR", str(tmp_path.parent / "deep-cache"))
    folder = str(tmp_path)
    for _ in range(1500):
        folder += "/d"
        os.mkdir(folder)
    with open(f"{folder}/a.py", "w") as file:
        file.write(STRAY_EVENT)
    command = "import sys; from fmcheck.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", command, "lint", "."], cwd=tmp_path, capture_output=True, check=False
    )

    os.remove(f"{folder}/a.py")
    while folder != str(tmp_path):  # what removes it after the tests recurses
        os.rmdir(folder)
        folder = os.path.dirname(folder)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"FM301" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="names are bytes")
def test_a_name_that_is_no_utf_8_can_stand_in_a_baseline(lint, tree):
    with open(os.fsencode(tree) + b"/\xff.py", "w") as file:
        file.write(STRAY_EVENT)

    for _ in range(2):
        lint("--baseline", "known.json", "--update-baseline", ".")

    assert lint("--baseline", "known.json", ".")[0] == 0
    assert "\\\\xff.py" in (tree / "known.json").read_text()
