"""FM409: a result of a side stream is used before it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.handovers import (
    callers_order,
    gradients_used_early,
    is_within_side_stream,
    lost_streams,
    results_used_early,
    waits_for_another,
)
from fmcheck.lint.model.vocabulary import ENTERED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.model.streams import Streams
    from fmcheck.lint.source.module import Part


class SideStreamResultUnawaited(FunctionRule):
    """A result of a side stream is used by a stream that has not waited for it.
    """

    code = "FM409"
    name = "side-stream-result-unawaited"
    severity = Severity.WARNING
    words = (ENTERED,)
    seen_in = ()
    bad = ()
    good = ()

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each use that may come too early."""
        for function in functions(part):
            streams = function.streams()
            if not streams.contexts:
                continue
            yield from self._used(streams, part)
            for context, wait, other in waits_for_another(streams):
                yield part.finding(
                    self,
                    wait.node,
                    f"this waits for `{other}`, but the work above runs on `{context.stream}`",
                    help=f"wait for `{context.stream}`, or for an event recorded on it",
                    related=[(context.node.items[0], "nothing waits for this stream")],
                )
            for context in lost_streams(streams):
                yield part.finding(
                    self,
                    context.node.items[0],
                    "nothing can wait for this stream: it is created here and never awaited, so its "
                    "work races with what comes before and after",
                    help="keep the stream; `wait_stream(current_stream())` before the body, and "
                    "`current_stream().wait_stream(...)` after it",
                )

    def _used(self, streams: Streams, part: Part) -> Iterator[Finding]:
        function = streams.function
        for one in results_used_early(streams):
            if is_within_side_stream(function) or callers_order(function, one.stream):
                continue
            yield part.finding(
                self,
                one.consumer,
                f"`{one.name}` is produced on `{one.stream}` and used here on another stream, which "
                "has not waited for it",
                help=f"`current_stream().wait_stream({one.stream})` before this use",
                related=[(one.producer, "produced here")],
            )
        for backward, step in gradients_used_early(streams):
            yield part.finding(
                self,
                step,
                "the gradients are used here on another stream than `backward()` runs on, which "
                "has not waited for it",
                help="run both on one stream, or wait for the stream of `backward()`",
                related=[(backward, "fills the gradients")],
            )
