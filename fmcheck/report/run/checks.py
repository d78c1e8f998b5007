"""What each run-time check means, in a sentence for those who meet its code for the first time."""

from __future__ import annotations

from fmcheck.finding import CHECKS, RuleInfo, Severity
from fmcheck.report.run.violation import MISSING

MEANING = {
    "FR101": "The row was gathered before it was written.",
    "FR102": "The row was gathered again with no write in between.",
    "FR103": "The row was overwritten before its value was gathered.",
    "FR104": "The row was gathered by one request, but last written by the request that had it "
    "before.",
    "FR105": "The row was written with a value that the contract calls invalid.",
    "FR106": "The sink row, at which padded entries point, was allocated to a request.",
    "FR107": "The row was allocated to a request while another one still held it.",
    "FR108": "The row was freed twice with no allocation in between.",
    "FR109": "The row was written while no request held it.",
    "FR110": "One write put two different values into the row.",
    "FR111": "The row was used for a request, or a batch, that does not hold it.",
    "FR201": "A graph was about to be replayed while the padded tail of one of its inputs was "
    "stale.",
    "FR202": "A graph was about to be replayed with a placeholder in a real row of one of its "
    "inputs.",
    "FR203": "A graph was about to be replayed with an input's real rows left over from the "
    "last step.",
    "FR204": "A padded entry read the sink row, whose content was not what the contract requires.",
    "FR301": "Relay rows or values are on a different device than their buffer.",
    "FR401": "Two streams accessed the same row, and no fence orders them.",
    "FR402": "Memory may be reused while another stream still works with it.",
    "FR403": "The host wrote a pinned buffer while an asynchronous copy could still use it.",
    "FR404": "The host read the target of an asynchronous copy before the copy was done.",
    "FR405": "A wait used an older record of its event than the one it was meant for.",
    "FR501": "The host waited for the device inside a step that declares no such wait.",
    "FR502": "A step launched more kernels than it declares.",
    "FR601": "A graph was replayed after one of its captured inputs was replaced by another "
    "tensor.",
    "FR602": "torch.compile deleted an async assert, so that nothing is checked there.",
    "FR603": "An output of a graph was read after the next replay had overwritten it.",
    "FR701": "A value that the host reads depends on memory that was never written.",
}


def meaning(code: str) -> str:
    """Returns what a check means; "" for the code of a newer fmcheck."""
    return MEANING.get(code, "")


def rule_info(code: str, name: str, severity: Severity) -> RuleInfo:
    """Returns what reports for machines tell of a check."""
    name = CHECKS.get(code, name)
    summary = meaning(code) or f"{name}."
    missing = f"\n\nMissing: {MISSING[code]}." if code in MISSING else ""
    return RuleInfo(code, name, severity, summary, f"{summary}{missing}")
