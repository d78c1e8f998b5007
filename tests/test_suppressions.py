"""Suppressions of run-time violations: what they take, and that they never do it in silence."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from fmcheck.config import Located, Settings, Suppression, load_settings
from fmcheck.errors import UsageError
from fmcheck.finding import Access, Site, Violation
from fmcheck.runtime.session.accepted_violations import Suppressions, suppressions_of

TODAY = datetime.date(2026, 6, 1)
FOUND = Violation(
    code="FR102",
    name="double-read",
    buffer="FutureMap.topk_p_buf",
    rows=(1,),
    row_count=1,
    values=("-1",),
    access=Access("gather", Site("lib/sglang/srt/x.py", 3, "gather")),
    test="",
    device="cpu",
    pid=1,
)


def suppressions(**fields: str) -> Suppressions:
    one = Suppression(
        **{"check": "FR102", "reason": "known", "expires": TODAY, **fields}  # type: ignore[arg-type]
    )
    located = Located(Settings(suppress=(one,)), Path("pyproject.toml"))
    return suppressions_of(located, TODAY)


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"buffer": "FutureMap.topk_p_buf"}, True),
        ({"buffer": "FutureMap.*"}, True),
        ({"buffer": "topk_p_buf"}, False),
        ({"site": "sglang/srt/x.py"}, True),
        ({"site": "srt/*.py"}, True),
        ({"site": "t/x.py"}, False),
        ({"site": "sglang/srt/x.py", "buffer": "Other.*"}, False),
        ({"check": "FR101", "buffer": "FutureMap.*"}, False),
    ],
)
def test_check_buffer_and_site_must_all_fit(fields: dict[str, str], taken: bool) -> None:
    held = suppressions(**fields)
    assert held.take(FOUND) is taken
    assert held.taken == int(taken)
    assert (len(held.matched), len(held.unmatched)) == (int(taken), int(not taken))


def test_the_last_day_still_counts_and_the_next_does_not() -> None:
    one = Suppression(check="FR102", reason="known", expires=TODAY, buffer="*")
    located = Located(Settings(suppress=(one,)), Path("pyproject.toml"))
    assert suppressions_of(located, TODAY).take(FOUND)
    late = suppressions_of(located, TODAY + datetime.timedelta(days=1))
    assert not late.take(FOUND)
    (problem,) = late.problems
    for part in ("pyproject.toml", "tool.fmcheck.suppress[0]", "2026-06-01", "known"):
        assert part in problem


ENTRY = {"check": '"FR102"', "reason": '"why"', "expires": "2027-01-31", "buffer": '"a"'}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"check": '"FR1O2"'}, "`tool.fmcheck.suppress[0].check`: expected one of"),
        ({"check": '"FR1O2"'}, "did you mean `FR102`?"),
        ({"reason": '" "'}, "`tool.fmcheck.suppress[0].reason`: expected a sentence"),
        ({"reason": None}, "`tool.fmcheck.suppress[0].reason` is missing: expected a string"),
        ({"expires": None}, "`tool.fmcheck.suppress[0].expires` is missing: expected a date"),
        ({"expires": '"soon"'}, "`tool.fmcheck.suppress[0].expires`"),
        ({"buffer": None}, "`tool.fmcheck.suppress[0]`: expected `buffer`, `site` or both"),
        ({"buffr": '"a"'}, "`tool.fmcheck.suppress[0].buffr`; did you mean `buffer`?"),
    ],
)
def test_what_does_not_fit_is_named_with_file_and_key(
    tmp_path: Path, change: dict[str, str | None], message: str
) -> None:
    entry = {key: value for key, value in {**ENTRY, **change}.items() if value is not None}
    path = tmp_path / "pyproject.toml"
    lines = [f"{key} = {value}" for key, value in entry.items()]
    path.write_text("\n".join(["[[tool.fmcheck.suppress]]", *lines]))
    with pytest.raises(UsageError) as caught:
        load_settings(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_fail_on_takes_advisory_checks_only(tmp_path: Path) -> None:
    path = tmp_path / "fmcheck.toml"
    path.write_text('fail-on = ["FR102"]')
    with pytest.raises(UsageError, match=r"key `fail-on\[0\]`: expected one of `FR401`, .*`FR602`"):
        load_settings(path)
