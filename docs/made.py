"""Pages that are made from the code when the site is built: one a rule, one a run-time check.

A hook of mkdocs. Nothing that it makes is kept in the tree, so that no page can go stale. A rule's
page is laid out for readers of the site: links have names, all examples but the first are folded.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fmcheck.cli.check_pages import PAGES, check_page
from fmcheck.finding import ADVISORY, CHECKS
from fmcheck.lint.own import OWN_CODES
from fmcheck.lint.page import in_short, own_page
from fmcheck.registry import contract_files, rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HERE = Path(__file__).resolve().parent
#: The sections of the navigation with their pages, or folders of made ones. A page that does not
#: exist is left out.
SECTIONS: dict[str, tuple[str, ...]] = {
    "": ("index.md", "quick-start.md"),
    "Guides": (
        *("lint.md", "runtime.md", "contracts.md", "other-engines.md", "ci.md", "prove.md"),
        *("editors.md", "write-a-rule.md"),
    ),
    "Rules": ("rules",),
    "Checks": ("checks",),
    "Reference": ("keys.md", "glossary.md", "versions.md", "matrix.md", "changelog.md"),
    "Evidence": (
        *("proof.md", "found.md", "engines.md", "first-sight.md", "limits.md"),
        *("false-alarms.md", "gpu.md"),
    ),
    "Inside": ("architecture.md", "self-mutation.md"),
}
#: What a page written by hand may put in: the text of a shipped contract, `{{ contract vllm }}`.
_CONTRACT = "{{{{ contract {} }}}}"
_THREAD = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:pull|issues)/(\d+)")


def pages() -> dict[str, str]:
    """Returns the made pages by their paths."""
    found = {f"rules/{code}.md": "\n".join(_rule(rule)) for code, rule in _own_rules().items()}
    found |= {f"rules/{code}.md": own_page(own) for code, own in OWN_CODES.items()}
    found |= {f"checks/{code}.md": check_page(code) for code in CHECKS}
    found["rules/index.md"] = "\n".join(_rules_index())
    found["checks/index.md"] = "\n".join(_checks_index())
    found["changelog.md"] = (_HERE.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    return found


def _own_rules() -> dict[str, Any]:
    return {code: rule for code, rule in rules().items() if code.startswith("FM")}


# --- a rule ---


def _rule(rule: Any) -> Iterator[str]:
    """Yields the page of a rule."""
    yield f"# {rule.code} {rule.name}\n"
    yield f"*{in_short(rule)}*\n"
    yield _apart(inspect.getdoc(rule) or "")
    yield "\n## Seen in\n"
    yield from (f"- {_link(one)}" for one in rule.seen_in)
    if rule.judged:
        yield "\n## On released trees\n"
        yield from (f"- {judged}" for judged in rule.judged)
    yield from _examples("Reported", [_flagged(one) for one in rule.bad])
    yield from _examples("Not reported", [_shown(one, "") for one in rule.good])


def _apart(text: str) -> str:
    """Returns Markdown with an empty line on each side of a heading and of a block of code."""
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        fence = line.startswith("```")
        opens = fence and not in_code
        if (opens or (line.startswith("#") and not in_code)) and lines and lines[-1]:
            lines.append("")
        lines.append(line)
        in_code ^= fence
        if not in_code and (fence or line.startswith("#")):
            lines.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _link(thread: str) -> str:
    """Returns a link to a public thread, by the name that people use for it."""
    known = _THREAD.fullmatch(thread)
    if known:
        return f"[{known[1]}#{known[2]}]({thread})"
    return f"<{thread}>" if thread.startswith("http") else thread


def _flagged(example: Any) -> str:
    places = [f"line {line}, column {column}" for line, column in example.at]
    return _shown(example, f"{' and '.join(places)}")


def _shown(example: Any, places: str) -> str:
    """Returns an example of a rule, with the places and the path that matter."""
    path = "" if example.path == "example.py" else f"in `{example.path}`"
    said = ", ".join(filter(None, (places and f"At {places}", path)))
    code = "\n".join(("```python", example.code.strip("\n"), "```"))
    return f"{said[:1].upper()}{said[1:]}:\n\n{code}\n" if said else f"{code}\n"


def _examples(title: str, shown: list[str]) -> Iterator[str]:
    """Yields a section with the first example, and the others folded away."""
    if not shown:
        return
    first, *others = shown
    yield f"\n## {title}\n\n{first}"
    if others:
        noun = "example" if len(others) == 1 else "examples"
        yield f'??? example "{len(others)} more {noun}"\n'
        yield "\n".join(_indented(one) for one in others)


def _indented(text: str) -> str:
    return "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())


# --- the lists ---


def _rules_index() -> Iterator[str]:
    yield "# Rules of the linter\n\n`fmcheck explain FM201` prints the page of one.\n"
    yield "| rule | default | what it finds |\n|---|---|---|"
    for code, rule in _own_rules().items():
        default = rule.severity.value if rule.on_by_default else "off"
        summary = (rule.__doc__ or "").strip().partition("\n")[0]
        yield f"| [{code}]({code}.md) `{rule.name}` | {default} | {summary} |"
    yield "\n## The linter's own codes\n\n| code | what it means |\n|---|---|"
    for code, own in OWN_CODES.items():
        summary = own.page.strip().partition("\n")[0]
        yield f"| [{code}]({code}.md) `{own.name}` | {summary} |"


def _checks_index() -> Iterator[str]:
    yield "# Run-time checks\n\n`fmcheck explain FR102` prints the page of one.\n"
    yield "| check | default | what it means |\n|---|---|---|"
    for code, name in CHECKS.items():
        default = "advice" if code in ADVISORY else "fails"
        yield f"| [{code}]({code}.md) `{name}` | {default} | {PAGES[code].means} |"


# --- the navigation ---


def nav() -> list[Any]:
    """Returns the site's navigation: sections with the pages that there are."""
    made = pages()
    found: list[Any] = []
    for section, names in SECTIONS.items():
        there = [page for name in names for page in _pages_of(name, made)]
        found += [{section: there}] if section and there else there
    return found


def _pages_of(name: str, made: Iterable[str]) -> list[str]:
    """Returns a page if it exists, or the made pages of a folder, its index first."""
    if name.endswith(".md"):
        return [name] if name in made or (_HERE / name).is_file() else []
    index = f"{name}/index.md"
    return [index, *sorted(path for path in made if path.startswith(f"{name}/") and path != index)]


# --- what mkdocs calls ---


def on_config(config: Any) -> Any:
    """Sets the navigation."""
    config.nav = nav()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the made pages."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts shipped contracts where a page asks for them."""
    for name, path in contract_files().items():
        text = path.read_text(encoding="utf-8").rstrip("\n")
        markdown = markdown.replace(_CONTRACT.format(name), f"```toml\n{text}\n```")
    return markdown
