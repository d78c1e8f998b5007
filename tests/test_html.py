"""The page of a run: what it tells, that it asks for nothing, and that a browser can use it."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import re
import shutil
import subprocess
import threading
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from fmcheck.finding import Event, Site
from fmcheck.report.run.html import MOST_EVENTS, render
from fmcheck.report.run.picture import picture
from fmcheck.report.run.timeline import shortened, timeline
from tests.made_up import healthy_run, made_up_run

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Page(HTMLParser):
    """A page's elements, as (name, attributes), and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in ("meta", "link", "input", "option"):
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.elements.append((name, dict(attributes)))

    def handle_endtag(self, name):
        if name in self.open:
            while self.open.pop() != name:
                pass

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += data

    def all(self, name: str, kind: str = "") -> list[dict[str, str]]:
        return [
            attributes
            for one, attributes in self.elements
            if one == name and (not kind or kind in (attributes.get("class") or "").split())
        ]


@pytest.fixture
def run(tmp_path):
    return made_up_run(tmp_path)


def test_a_finding_is_reported_with_both_code_excerpts(run):
    text = render(run)
    page = Page(text)

    assert re.findall(r"<mark><i>\s+(\d+)</i>(.*)</mark>", text)[:2] == [
        ("6", "     return self.buf[rows]"),
        ("2", "     self.buf[rows] = tokens"),
    ]
    for reported in (
        "double-read in FutureMap.tokens_buf rows 11, 12",
        "a write of these rows between the last read and this gather",
        "r-9f3, before: r-77a",
        "gather waited on event 7",
        "called at engine.py:3",
        "240",
    ):
        assert reported in page.text


def test_one_site_is_one_finding_with_all_its_tests(run):
    page = Page(render(run))

    findings = page.all("details", "finding")
    assert [(one["data-check"], one["class"]) for one in findings] == [
        ("FR102", "finding fails"),
        ("FR401", "finding fails"),
        ("FR602", "finding advisory"),
        ("FR102", "finding accepted"),
    ]
    tests = [one["data-test"] for one in page.all("li") if "data-test" in one]
    assert tests[:3] == [
        "tests/test_it.py::test_<b>it</b>",
        "tests/test_it.py::test_two",
        "outside of any test",
    ]
    assert len({one["id"] for one in findings}) == len(findings)


def test_what_a_run_says_cannot_become_markup(run):
    evil = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    first = replace(
        run.violations[0], buffer=evil, test=evil, owner=evil, notes=(evil,), missing=evil
    )
    first = replace(first, history=(Event(1, evil, evil, Site(evil, 1, evil)),))
    page = Page(render(replace(run, root=evil, violations=(first,), problems=(evil,))))

    assert len(page.all("script")) == 1
    assert page.all("img") == []
    assert not any(name.startswith("on") for _, one in page.elements for name in one)
    assert page.text.count("<script>alert(1)</script>") > 5


def test_the_page_asks_for_nothing(run):
    text = render(run)
    page = Page(text)

    asked = [one[name] for _, one in page.elements for name in ("src", "href") if name in one]
    assert {one for one in asked if not one.startswith("#")} == {"data:,"}
    assert "url(" not in text.replace("url(#", "")
    assert "@import" not in text
    assert "fetch(" not in text
    policy = page.all("meta")[2]["content"]
    assert policy.startswith("default-src 'none';")
    for name in ("style", "script"):
        body = re.search(f"<{name}>(.*?)</{name}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_code_that_is_not_here_is_reported(run, tmp_path):
    (tmp_path / "engine.py").write_text("x = 1\n")
    assert "engine.py has 1 lines here: it is not the file that ran" in Page(render(run)).text

    (tmp_path / "engine.py").unlink()
    assert "engine.py is not on the machine that made this report" in Page(render(run)).text


def test_a_healthy_run_says_what_was_checked(tmp_path):
    page = Page(render(healthy_run(tmp_path)))

    assert "No violation found" in page.text
    assert "240" in page.text
    assert page.all("details") == []


def test_a_run_that_checked_nothing_is_not_called_clean(tmp_path):
    run = healthy_run(tmp_path)
    empty = replace(run, coverage=replace(run.coverage, counts=type(run.coverage.counts)()))

    assert "Nothing was checked" in Page(render(empty)).text
    assert "Not everything was watched" in Page(render(replace(run, problems=("x",)))).text


# --- the picture ---


def test_the_picture_of_a_race_has_a_lane_a_stream_a_fence_and_a_gap(run):
    line = timeline(run.violations[2])
    page = Page(picture(line, "what led to it"))

    assert line.lanes == ("forward", "schedule")
    assert len(page.all("line", "lane")) == 2
    assert len(page.all("path", "fence")) == 1
    assert len(page.all("path", "gap")) == 1
    assert len(page.all("circle", "finding")) == 1
    assert len(page.all("circle", "event")) == 5


def test_a_fence_goes_from_its_record_to_its_wait(run):
    page = Page(picture(timeline(run.violations[2]), ""))
    circles = [one["cx"] for one in page.all("circle", "event")]
    (fence,) = page.all("path", "fence")

    assert fence["d"].startswith(f"M{circles[1]} ")
    assert f" {circles[2]} " in fence["d"].partition("C")[2]


@pytest.mark.parametrize(
    ("code", "events"),
    [
        ("FR102", ["write", "gather", "missing write", "finding gather"]),
        ("FR104", ["gather", "write", "missing write", "finding gather"]),
        ("FR103", ["gather", "write", "missing gather", "finding gather"]),
        ("FR301", ["gather", "write", "finding gather"]),
    ],
)
def test_without_a_history_the_row_tells_it(run, code, events):
    marks = timeline(replace(run.violations[0], code=code)).marks

    assert [f"{mark.kind} {mark.event.what}".strip() for mark in marks] == events


def test_a_history_that_stops_before_the_finding_is_ended_by_it(run):
    race = replace(run.violations[2], history=run.violations[2].history[:-1])

    line = timeline(race)
    assert line.finding == len(line.marks) - 1 == 4


def test_a_long_history_shows_its_end(run):
    race = run.violations[2]
    many = tuple(replace(race.history[0], number=-n) for n in range(MOST_EVENTS, 0, -1))
    line = timeline(replace(race, history=(*many, *race.history)))

    short = shortened(line, 2)
    assert [mark.event.number for mark in short.marks] == [4, 5]
    assert (
        "5 earlier ones in the record"
        in Page(
            render(replace(run, violations=(replace(race, history=(*many, *race.history)),)))
        ).text
    )


# --- in a browser ---


@pytest.fixture
def browser(tmp_path):
    """Opens a page by its text and returns the DOM, once scripts have run, and what was asked."""
    if CHROMIUM is None:
        pytest.skip("NOT TESTED IN A BROWSER: there is no chromium on this machine")
    folder = tmp_path / "site"
    folder.mkdir()
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def open_page(text: str, fragment: str = "") -> tuple[Page, list[str]]:
        (folder / "page.html").write_text(text)
        address = f"http://127.0.0.1:{server.server_port}/page.html{fragment}"
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-extensions")
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        done = subprocess.run(
            [CHROMIUM, *options, profile, "--virtual-time-budget=2000", "--dump-dom", address],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return Page(done.stdout), asked

    yield open_page
    server.shutdown()
    server.server_close()


def shown(page: Page) -> list[str]:
    return [one["data-check"] for one in page.all("details", "finding") if "hidden" not in one]


def test_the_script_runs_and_nothing_else_is_asked_for(run, browser):
    page, asked = browser(render(run))

    assert shown(page) == ["FR102", "FR401", "FR602", "FR102"]
    assert "4 of 4 shown" in page.text
    assert "hidden" not in page.all("form")[0]
    assert asked == ["/page.html"]


@pytest.mark.parametrize(
    ("fragment", "left"),
    [
        ("#check=FR102", ["FR102", "FR102"]),
        ("#buffer=guard", ["FR602"]),
        ("#test=test_two", ["FR102"]),
        ("#text=lens_buf+incomplete", ["FR401"]),
        ("#check=FR401&test=test_two", []),
    ],
)
def test_filters_are_in_the_address(run, browser, fragment, left):
    page, _ = browser(render(run), fragment)

    assert shown(page) == left
    assert ("hidden" in next(one for one in page.all("p") if one.get("id") == "none")) is bool(left)


def test_an_address_opens_its_finding(run, browser):
    text = render(run)
    name = Page(text).all("details", "finding")[2]["id"]

    page, _ = browser(text, f"#{name}")

    assert "open" in page.all("details", "finding")[2]


CLICKS = """
<script>
document.getElementById("theme").click();
document.getElementById("theme").click();
document.getElementById("fold").click();
const form = document.getElementById("filters");
form.elements.check.value = "FR102";
form.dispatchEvent(new Event("input", {bubbles: true}));
document.dispatchEvent(new KeyboardEvent("keydown", {key: "/", bubbles: true}));
setTimeout(() => {
  document.title = [
    document.documentElement.dataset.theme,
    document.querySelectorAll("details.finding[open]").length,
    document.getElementById("shown").textContent,
    location.hash,
    document.activeElement.name,
  ].join(", ");
}, 500);
</script></body>
"""


def test_buttons_filters_and_keys_work(run, browser):
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", render(run))

    page, _ = browser(text.replace("</body>", CLICKS))

    assert "dark, 4, 2 of 4 shown, #check=FR102, text" in page.text


def test_a_script_of_another_is_not_run(run, browser):
    page, _ = browser(render(run).replace("</body>", CLICKS))

    assert "dark, 4" not in page.text
