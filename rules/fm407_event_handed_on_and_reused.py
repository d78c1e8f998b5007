"""FM407: one event object is handed on with each request, and recorded again for the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted, last_name
from fmcheck.lint.model.function import attribute_values, functions
from fmcheck.lint.model.vocabulary import BEFORE_REPLAY, CLASS, looks_like_event
from fmcheck.lint.source.globs import fits
from fmcheck.lint.streams.function_streams import streams_of
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part
    from fmcheck.lint.streams.function_streams import EventRecord, FunctionStreams

#: Methods that hand an object on to whoever takes it later.
_QUEUES = regex(r"^(put|put_nowait|append|appendleft|submit|enqueue|send|push)$")

#: What an event of a device is reached through: threads and processes have events too.
_DEVICE = regex(r"torch|cuda|npu|xpu|gcu|musa|hpu|device|accelerator|platform|backend")
#: Classes of which each step makes an object that is waited for later.
_OBJECTS = regex(r"Async|Future|Handle|Job|Output|Pending|Request|Result|Task|Ticket|Transfer")


class EventHandedOnAndReused(FunctionRule):
    """One event object is shared by all requests and recorded again for each.

    ## What it does
    Looks for a function that records an event which an object keeps, `self.ready.record()`, and
    hands that event on: into a queue, or into an object that it makes. Also for an event that a
    class makes once, in its constructor, and hands to an object of each step, whose class is named
    as one that is waited for later (`AsyncOutput`, `Request`, `Handle`). It is silent where the
    function makes a new event first, or waits for the last one. Off by default: where buffers and
    events go by slots, an engine finishes each object before it records again, and this rule does
    not see it.

    ## Why is this bad
    An event is one mark: recording it again moves it. The one who waits for the first request then
    waits for the second one's work as well, which may itself wait for the first: a deadlock, or a
    wait that is over before its work is done. One request in flight hides it; overlap makes two.

    ## Example
    ```python
    self.input_ready.record()
    self.requests.put((rows, self.input_ready))
    ```

    ## Use instead
    ```python
    ready = device_module.Event()
    ready.record()
    self.requests.put((rows, ready))
    ```
    """

    code = "FM407"
    name = "event-handed-on-and-reused"
    severity = Severity.WARNING
    on_by_default = False
    words = ((".record(", "record_event(", "=self.*event", "=self.*done"),)
    seen_in = (
        "https://github.com/vllm-project/vllm/issues/53960",
        "https://github.com/vllm-project/vllm/pull/39115",
    )
    bad = (
        Example(
            """\
class Offload:
    def request(self, rows):
        self.input_ready_event.record()
        self.requests.put((rows, self.input_ready_event))
""",
            at=((4, 34),),
        ),
        Example(
            """\
def request(self, rows, stream):
    done = self.done
    done.record(stream)
    return Request(rows=rows, done=done)
""",
            at=((4, 36),),
        ),
    )
    good = (
        Example(
            """\
class Offload:
    def request(self, rows):
        self.ready = torch.Event()
        self.ready.record()
        self.requests.put((rows, self.ready))

    def next(self, rows):
        ready = torch.Event()
        ready.record()
        self.requests.put((rows, ready))

    def single(self, rows):
        self.done.synchronize()
        self.done.record()
        self.requests.append(Request(rows, self.done))

    def start(self, rows):
        self.ready.record()
        self.side.wait_event(self.ready)
        self.requests.append(rows)
        self.requests.append(self.side.record_event())
"""
        ),
    )
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each event that is handed on and will be recorded again."""
        for function in functions(part):
            streams = streams_of(function)
            for record in streams.records:
                is_kept = record.event.startswith("self.") and "(" not in record.event
                if is_kept and not _is_renewed(record, streams):
                    yield from self._handed_on(record, streams, part)
            yield from self._shared(function, part)

    def _shared(self, function: Function, part: Part) -> Iterator[Finding]:
        """Yields a finding for each object of a step that is handed the one event of its maker."""
        if fits(function.name, (*BEFORE_REPLAY, "*init*", "*setup*", "*build*")):
            return
        for call in function.calls:
            if not _OBJECTS.search(last_name(call.func)) or not CLASS.match(last_name(call.func)):
                continue
            for arg in call.args:
                name = dotted(arg.value) or ""
                if not looks_like_event(name) or not _is_made_once(name, function):
                    continue
                if any(wait.on == name for wait in streams_of(function).waits):
                    continue
                if any(one.event == name for one in streams_of(function).records):
                    continue
                yield part.finding(
                    self,
                    arg.value,
                    f"every `{last_name(call.func)}` shares the one event `{name}`",
                    note="the next step records it again while this one may still be waited for",
                    help="create one event for each object",
                )

    def _handed_on(
        self, record: EventRecord, streams: FunctionStreams, part: Part
    ) -> Iterator[Finding]:
        for call in streams.nodes(record.order):
            if not isinstance(call, cst.Call) or call is record.node:
                continue
            word = last_name(call.func)
            is_queue = isinstance(call.func, cst.Attribute) and _QUEUES.match(word)
            if not is_queue and not (CLASS.match(word) and _OBJECTS.search(word)):
                continue
            for arg in call.args:
                for node in _passed(arg.value):
                    if streams.text(node) == record.event:
                        yield part.finding(
                            self,
                            node,
                            f"`{record.event}` is passed on, and recorded again by the next call",
                            note="this record may still be waited for then",
                            help="create one event for each request",
                            related=[(record.node, "recorded here in every call")],
                        )
                        return


def _is_made_once(name: str, function: Function) -> bool:
    """Tells whether a class makes an event in its constructor and nowhere else."""
    if not name.startswith("self.") or name.count(".") != 1:
        return False
    values = list(attribute_values(name.removeprefix("self."), function))
    return bool(values) and all(
        isinstance(value, cst.Call)
        and last_name(value.func) == "Event"
        and _DEVICE.search(owner.module.resolve(dotted(value.func) or owner.part.code(value.func)))
        and owner.name == "__init__"
        for value, owner in values
    )


def _passed(value: CSTNode) -> Iterator[CSTNode]:
    """Yields what is passed by an argument: itself, or the elements of a display."""
    if isinstance(value, (cst.Tuple, cst.List)):
        for element in value.elements:
            yield element.value
    elif isinstance(value, cst.Dict):
        yield from (one.value for one in value.elements if isinstance(one, cst.DictElement))
    else:
        yield value


def _is_renewed(record: EventRecord, streams: FunctionStreams) -> bool:
    """Tells whether the event is made again in this function, or waited for before."""
    bound = streams.function.bindings.get(record.event, ())
    if any(isinstance(one, cst.Assign) for one in bound):
        return True
    return any(wait.on == record.event and wait.order < record.order for wait in streams.waits)
