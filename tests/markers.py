"""Markers: each test has one kind, by which `make quick`, `make test` and `make sweep` choose.

A test says its kind by its own mark, or by that of its module; else it is a `process` test if it
has a fixture or a name that is listed here, else what is said here of its file. A file of which
nothing is said is an error, so that no test is left out of a target unawares.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The kinds, with what each says; a test has exactly one.
KINDS = {
    "pure": "needs no torch and no other process",
    "torch": "uses torch in this process, and compiles nothing",
    "process": "starts processes: inner pytest runs, commands, browsers",
    "release": "runs a whole engine: a released one, or the built-in one with all its faults",
    "compile": "compiles functions with torch.compile",
}
#: Marks beside the kind.
BESIDE = {
    "fresh": "its inner pytest runs are processes of their own, not forks of the zygote",
    "sweep": "the same law again, on more releases, seeds or backends: `make sweep`",
}

FILES = {
    "pure": (
        *("baseline", "benchmarks", "binding", "command_line", "config", "contract"),
        *("contract_clashes", "contract_command", "corpus", "corpus_diff", "docs", "drives"),
        *("engine/lint", "fix", "flow", "formats", "fuzz", "html", "identity", "init", "judged"),
        *("ledger", "lint_cli", "lint_files", "lint_meaning", "lint_output", "lint_suppressions"),
        *("markers", "museum", "names", "neighbours", "pool", "printable", "prove_operators"),
        *("qualnames", "readme", "registry", "relay_rules", "report", "rooms", "rules", "schemas"),
        *("sieve", "since", "slices"),
        *("stream_rules", "supported", "suppressions", "tail", "words", "workflows"),
    ),
    "torch": (
        *("beneath", "captures", "clocks", "containment", "cuda", "device_ops", "device_streams"),
        *("devices_runtime", "differential", "engine/device_graph", "engine/equality", "healthy"),
        *("engine/future_map", "engine/memory", "engine/parts", "engine/ranks", "engine/reach"),
        *(
            "assigned_rows",
            "host_buffers",
            "batches",
            "kept_views",
            "engine/tails",
            "entries",
            "extents",
            "fill_writes",
            "headlines",
            "offsets",
            "operators",
            "outputs",
            "overrides",
        ),
        *(
            "interpreted",
            "journal",
            "kinds",
            "lifetimes",
            "literals",
            "model",
            "museum_runs",
            "owners",
            "placements",
            "poison",
            "races",
            "rebinding",
            "relay_patches",
        ),
        *(
            "relay_tensor",
            "relay_unchanged",
            "replays_runtime",
            "rows",
            "run_reports",
            "shapes",
        ),
        *("stream_options", "streams", "syncs_runtime", "verdicts", "tails_runtime", "trace"),
        *("uninitialized", "missing_in_engine", "unseen", "virtual_streams", "watch_api"),
    ),
    "process": (
        *(
            "ci",
            "ci_command",
            "doctor",
            "first_import",
            "first_sight",
            "gpu",
            "guard",
            "historic",
            "instances",
        ),
        *("lint_cache", "lint_robust", "order", "outcomes", "packaging", "plugin", "prove"),
        *(
            "prove_progress",
            "reach",
            "server",
            "statuses",
            "unchecked",
            "unrelated",
            "zygote",
        ),
    ),
    "release": (
        *("engine/faults", "engine/late", "engine/streams", "engine/watch", "found"),
        *("real_engines", "real_races", "real_sglang", "real_tails", "real_vllm"),
        "real_vllm_engines",
    ),
    "compile": ("compile", "dead_assert"),
}
#: Who has one of these starts processes.
FIXTURES = {"pytester", "project", "browser", "installed"}
#: Tests of other kinds' files that start processes, too.
STARTERS = (
    "test_docs.py::test_a_rule_s_page_has_code_in_colour_folded_examples_and_links",
    "test_docs.py::test_edit_links_lead_where_the_builder_says_and_nowhere_by_default",
    "test_docs.py::test_every_page_has_search_and_a_dark_mode",
    "test_docs.py::test_the_site_*",
    "test_fuzz.py::test_the_command_says_how_much_was_tried",
    "test_html.py::test_the_script_runs_and_nothing_else_is_asked_for",
    "test_html.py::test_filters_are_in_the_address",
    "test_html.py::test_an_address_opens_its_finding",
    "test_html.py::test_buttons_filters_and_keys_work",
    "test_html.py::test_a_script_of_another_is_not_run",
    "test_judged.py::test_the_page_lists_what_the_linter_says",
    "test_journal.py::test_a_parent_tells_how_its_child_ended",
    "test_lint_cli.py::test_reader_that_goes_away_is_no_traceback",
    "test_lint_cli.py::test_importing_fmcheck_imports_nothing_heavy",
    "test_lint_cli.py::test_a_file_that_no_rule_concerns_imports_no_libcst",
    "test_lint_output.py::test_progress_is_shown_on_a_terminal_unless_quiet",
    "test_pool.py::*",
    "test_readme.py::test_every_option_exists",
    "test_readme.py::test_the_guide_s_contract_sees_what_its_engine_does_wrong",
    "test_readme.py::test_the_ten_lines_of_a_contract_find_the_bug_that_is_shown",
    "test_readme.py::test_the_watch_of_a_block_of_code_runs",
    "test_registry.py::test_an_installed_plugin_that_cannot_be_registered_is_named",
    "test_run_reports.py::test_a_record_needs_neither_jinja2_nor_rich",
    "test_trace.py::test_pytest_writes_it_whatever_was_found",
)
#: Lint or run the museum's cases, all of them in each.
MUSEUM = ("tests/test_headlines.py", "tests/test_museum.py", "tests/test_museum_runs.py")
#: What takes half a minute of CPU or more, roughly the longest first: begun late, it would be all
#: that is left to run, on one processor.
LONGEST = (
    *("release 0.5.23", "tests/test_reach.py", "tests/test_judged.py", "tests/test_prove.py"),
    *("release 0.33.0", "release 0.5.12", "tests/test_plugin.py", "tests/test_unrelated.py"),
    *("tests/test_guard.py", "tests/test_packaging.py", "tests/test_real_engines.py"),
    *("tests/engine/test_streams.py", "tests/engine/test_faults.py", "tests/engine/test_watch.py"),
    *("tests/test_compile.py", "tests/test_doctor.py", "tests/test_gpu.py", "museum"),
    *("tests/test_real_races.py", "tests/engine/test_equality.py", "tests/test_run_reports.py"),
    *("tests/test_ci.py", "tests/test_lint_robust.py"),
)
#: Releases that `make test` runs: the newest of each engine. Each takes a minute of CPU or more; of
#: the others, which the sweep drives by the same tests, the oldest relay through a ring.
KEPT = ("0.5.23", "0.33.0")
_RELEASE = re.compile(r"[\[-](\d+\.\d+\.\d+)(?:\.post\d+)?[\]-]")


def kind_of_file(path: str) -> str | None:
    """Returns the kind of a test file, by its path from the checkout; nothing if none is said."""
    name = path.removeprefix("tests/").removesuffix(".py").replace("test_", "", 1)
    found = [kind for kind, names in FILES.items() if name in names]
    assert len(found) < 2, f"{path} is said to be {' and '.join(found)}"
    return found[0] if found else None


def mark(items: Iterable[pytest.Item]) -> None:
    """Gives each test its marks; pytest.UsageError for one of which nothing is said."""
    for item in items:
        own = [each.name for each in item.iter_markers() if each.name in KINDS]
        kind = own[0] if own else _kind(item)
        if len(set(own)) > 1 or kind is None:
            said = " and ".join(own) or "of no kind"
            raise pytest.UsageError(
                f"{item.nodeid} is {said}: expected one of {', '.join(KINDS)}, by a mark, or for "
                "its whole file in `FILES` of tests/markers.py"
            )
        if not own:
            item.add_marker(kind)
        if kind == "release" and not item.get_closest_marker("sweep") and _is_repeated(item):
            item.add_marker("sweep")


def _kind(item: pytest.Item) -> str | None:
    kind = kind_of_file(item.nodeid.partition("::")[0])
    name = item.nodeid.partition("[")[0].removeprefix("tests/")
    starts = FIXTURES & set(getattr(item, "fixturenames", ()))
    if kind in ("pure", "torch") and (starts or any(fnmatch(name, each) for each in STARTERS)):
        return "process"
    return kind


def _is_repeated(item: pytest.Item) -> bool:
    """Tells whether a test runs a release that stands for no others."""
    release = _RELEASE.search(item.nodeid)
    return release is not None and release[1] not in KEPT


def scope(nodeid: str) -> str:
    """Returns what is run in one process, as its tests share what took long: a file, mostly."""
    path = nodeid.partition("::")[0]
    if path in MUSEUM:
        return "museum"
    release = _RELEASE.search(nodeid)
    if kind_of_file(path) == "release" and release:
        return f"release {release[1]}"
    return path


def turn(nodeid: str) -> int:
    """Returns when a test is begun where there are several processes: the lower, the sooner."""
    own = scope(nodeid)
    return LONGEST.index(own) if own in LONGEST else len(LONGEST)
