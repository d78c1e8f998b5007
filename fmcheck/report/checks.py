"""What each run-time check means, in a sentence for those who meet its code for the first time."""

from __future__ import annotations

from fmcheck.finding import CHECKS, RuleInfo, Severity
from fmcheck.report.violation import MISSING

MEANING = {
    "FR101": "The row was gathered, and nobody had written it.",
    "FR102": "The row was gathered again with no write in between.",
    "FR103": "The row was written over, and nobody had gathered the value.",
    "FR104": "The row was gathered, and only the request that had it before has written it.",
    "FR105": "The row was written with a value that the contract calls invalid.",
    "FR106": "The sink row, at which padded entries point, was handed out to a request.",
    "FR107": "The row was handed out to a request while another one still held it.",
    "FR108": "The row was taken back a second time, and nobody had been given it in between.",
    "FR109": "The row was written while no request held it.",
    "FR110": "One write gave the row two different values.",
    "FR201": "A graph was to be replayed while the padded tail of one of its inputs was stale.",
    "FR202": "A graph was to be replayed with a placeholder in a real row of one of its inputs.",
    "FR203": "A graph was to be replayed, and an input's real rows were those of the last step.",
    "FR204": "A padded entry read the sink row, which held something else than it is to hold.",
    "FR301": "Relay rows or values lie on another device than their buffer.",
    "FR401": "Two streams touched the same row, and no fence orders them.",
    "FR402": "A tensor was used on another stream after its memory had been given back.",
    "FR403": "The host wrote a pinned buffer while an asynchronous copy could still read it.",
    "FR404": "The host read the target of an asynchronous copy before the copy was done.",
    "FR405": "A wait met an older record of its event than the one that it was meant for.",
    "FR501": "The host waited for the device inside a step that declares no such wait.",
    "FR502": "A step launched more kernels than it declares.",
    "FR601": "A graph is replayed with another tensor in the place of one that it captured.",
    "FR602": "torch.compile deleted an async assert, so that nothing is checked there.",
}


def meaning(code: str) -> str:
    """Returns what a check means; "" for the code of a newer fmcheck."""
    return MEANING.get(code, "")


def rule_info(code: str, name: str, severity: Severity) -> RuleInfo:
    """Returns what reports for machines tell of a check."""
    name = CHECKS.get(code, name)
    summary = meaning(code) or f"{name}."
    missing = f"\n\nWhat would have made it right: {MISSING[code]}." if code in MISSING else ""
    return RuleInfo(code, name, severity, summary, f"{summary}{missing}")
