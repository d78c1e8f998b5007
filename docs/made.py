"""Pages that are made from the code when the site is built: one a rule, one a run-time check.

A hook of mkdocs. Nothing that it makes is kept in the tree, so that no page can go stale.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fmcheck.check_pages import PAGES, check_page
from fmcheck.finding import ADVISORY, CHECKS
from fmcheck.lint.own import OWN_CODES
from fmcheck.lint.page import own_page, rule_page
from fmcheck.registry import contract_files, rules

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parent.parent
BY_HAND = (
    ("A finding", "index.md"),
    ("Contracts", "contract.md"),
    ("Contracts, key by key", "keys.md"),
    ("Is it watching?", "prove.md"),
    ("What it is shown to catch", "proof.md"),
    ("On a GPU", "gpu.md"),
    ("What it cannot see", "unseen.md"),
    ("False alarms", "false-alarms.md"),
    ("Precision and recall on new code", "first-sight.md"),
    ("Versions", "matrix.md"),
    ("Mutation testing of fmcheck", "self-mutation.md"),
)
#: What a page written by hand may put in: the text of a shipped contract, `{{ contract vllm }}`.
_CONTRACT = "{{{{ contract {} }}}}"


def pages() -> dict[str, str]:
    """Returns the made pages by their paths."""
    found = {f"rules/{code}.md": rule_page(rule) for code, rule in _own_rules().items()}
    found |= {f"rules/{code}.md": own_page(own) for code, own in OWN_CODES.items()}
    found |= {f"checks/{code}.md": check_page(code) for code in CHECKS}
    found["keys.md"] = _guide()
    found["rules/index.md"] = "\n".join(_rules_index())
    found["checks/index.md"] = "\n".join(_checks_index())
    return found


def _guide() -> str:
    """Returns what fixtures/README.md says of contracts, as a page."""
    text = (_ROOT / "fixtures" / "README.md").read_text(encoding="utf-8")
    _, heading, guide = text.partition("## A contract for an engine of your own")
    return f"{heading[1:]}{guide}"


def _own_rules() -> dict[str, Any]:
    return {code: rule for code, rule in rules().items() if code.startswith("FM")}


def _rules_index() -> Iterator[str]:
    yield "# Rules of the linter\n\n`fmcheck explain FM201` prints the page of one.\n"
    yield "| rule | default | what it finds |\n|---|---|---|"
    for code, rule in _own_rules().items():
        default = rule.severity.value if rule.on_by_default else "off"
        summary = (rule.__doc__ or "").strip().partition("\n")[0]
        yield f"| [{code}]({code}.md) `{rule.name}` | {default} | {summary} |"
    yield "\n## The linter's own codes\n\n| code | what |\n|---|---|"
    for code, own in OWN_CODES.items():
        summary = own.page.strip().partition("\n")[0]
        yield f"| [{code}]({code}.md) `{own.name}` | {summary} |"


def _checks_index() -> Iterator[str]:
    yield "# Run-time checks\n\n`fmcheck explain FR102` prints the page of one.\n"
    yield "| check | default | what it means |\n|---|---|---|"
    for code, name in CHECKS.items():
        default = "advice" if code in ADVISORY else "fails"
        yield f"| [{code}]({code}.md) `{name}` | {default} | {PAGES[code].means} |"


def nav() -> list[dict[str, Any]]:
    """Returns the site's navigation."""
    made = sorted(path for path in pages() if not path.endswith("index.md"))
    by_folder = {
        folder: [{Path(path).stem: path} for path in made if path.startswith(folder)]
        for folder in ("rules", "checks")
    }
    return [
        *({title: path} for title, path in BY_HAND),
        {"Rules": [{"All rules": "rules/index.md"}, *by_folder["rules"]]},
        {"Checks": [{"All checks": "checks/index.md"}, *by_folder["checks"]]},
    ]


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
