"""Virtual streams: while a session follows streams, those of the CPU order work as a device's do.

torch has streams and events for the CPU that do nothing, so that one code runs everywhere. Their
classes are given methods that tell the session's fences, in place: a name that was imported before
is followed as well, and `isinstance` holds. What is made in a session keeps these methods for good,
and they do nothing once it is over.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from fmcheck.runtime.core import moment
from fmcheck.runtime.core.containment import broke, contained
from fmcheck.runtime.core.naming import holder_of
from fmcheck.runtime.core.patches import patch, rebind
from fmcheck.runtime.core.site import is_here
from fmcheck.runtime.steps.torch_modes import left_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.order.fences import FenceRecord, Fences, Lane

#: What the closing section calls the checks that hear of streams and events.
CHECK = "following streams and events (FR401 to FR405)"
_fences: Fences | None = None
# Who is notified that a thread uses streams, at each use.
_using: list[Callable[[], None]] = []
_numbers = itertools.count(1)
#: Seconds that a wait for a stream takes in a thread, at the least.
_BLOCKED = 0.001
#: The function itself: a test may put another one in its place.
_sleep = functools.partial(time.sleep)
_ASSIGNED = re.compile(r"^\s*(?:\w+\.)*(\w+)\s*(?::[^=]*)?=\s*[\w.(\"')]*Stream\(")


#: How many streams of one line are looked for by name, each among all objects of Python.
_MOST_LOOKS = 8
#: How many were, by file and line.
_looks: Counter[tuple[str, int]] = Counter()


class _Current(threading.local):
    """The streams of this thread, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[Any] = []


_current = _Current()


def _reduced(made: Any) -> Any:
    """Reduces a stream or an event to torch's, with what a program has put into it."""
    kept = {name: value for name, value in vars(made).items() if not name.startswith("_fmcheck_")}
    return type(made).__base__, (), kept


class VirtualStream(torch.cpu.Stream):
    """A stream of the CPU that was made in a session."""

    def __init__(self, *_: Any, **__: Any) -> None:
        _begin(self)

    __reduce__ = _reduced

    @property
    def stream_id(self) -> int:
        """A number that no other stream has; 0 is the default one's."""
        return _number(self)

    def wait_stream(self, stream: Any) -> None:
        """Lets what is launched here next wait for all that `stream` was given so far."""
        _notify(lambda fences: fences.wait_lane(lane_of(self), lane_of(stream)))

    def wait_event(self, event: Any) -> None:
        """Lets what is launched here next wait for the last record of `event`."""
        _notify(lambda fences: fences.wait(lane_of(self), _record_of(event)))

    def record_event(self, event: Any = None) -> Any:
        """Records `event`, a new one by default, and returns it."""
        event = torch.cpu.Event() if event is None else event
        _notify(lambda fences: _record(fences, event, self))
        return event

    def synchronize(self) -> None:
        """Blocks the host until all that this stream was given is done."""
        _block(lambda fences: fences.is_done(lane_of(self)))
        _notify(lambda fences: fences.synchronize_lane(lane_of(self)))

    def query(self) -> bool:
        """Tells whether all that this stream was given is done; then the host knows of it."""
        _notify(lambda fences: fences.found_lane_done(lane_of(self)))
        return True


class VirtualEvent(torch.cpu.Event):
    """An event of the CPU that was made in a session."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    __reduce__ = _reduced

    def record(self, stream: Any = None) -> None:
        """Takes the place after all that `stream`, the current one by default, was given so far."""
        _notify(lambda fences: _record(fences, self, stream))

    def wait(self, stream: Any = None) -> None:
        """Lets what is launched next on `stream`, the current one by default, wait for it."""
        _notify(lambda fences: fences.wait(lane_of(stream), _record_of(self)))

    def synchronize(self) -> None:
        """Blocks the host until the record has passed."""
        _block(lambda fences: _has_passed(fences, _record_of(self)))
        _notify(lambda fences: fences.synchronize(_record_of(self)))

    def query(self) -> bool:
        """Tells whether the record has passed; then the host knows of it."""
        _notify(lambda fences: fences.found_done(_record_of(self)))
        return True

    def elapsed_time(self, end_event: Any) -> float:
        """Returns the milliseconds on the host between two records."""
        begun, ended = (vars(one).get("_fmcheck_time", 0.0) for one in (self, end_event))
        return float(ended - begun) * 1000


def follow(fences: Fences) -> Iterator[Undo]:
    """Lets `fences` follow the CPU's streams, yielding how to let go of each part."""
    global _fences
    _fences = fences
    moment.virtual = lambda: current_lane().name
    yield _let_go
    yield from _take_class(torch.cpu.Stream, VirtualStream)
    yield from _take_class(torch.cpu.Event, VirtualEvent)
    context = torch.cpu.StreamContext
    yield patch(context, "__enter__", _enter)
    yield patch(context, "__exit__", _leave)
    yield from _take_function(torch.cpu.current_stream, _current_stream)
    yield from _take_function(torch.cpu.synchronize, _synchronize)
    yield patch(torch.Tensor, "record_stream", _recording(torch.Tensor.record_stream))


@contextmanager
def followed_by(fences: Fences) -> Iterator[None]:
    """Lets other fences be notified in a block, whether or not a session follows streams.

    The streams that are the session's keep their lanes: none of them is current in the block.
    """
    global _fences
    outer, undo = _fences, []
    default = vars(torch.cpu._default_cpu_stream)
    lane, entered = default.get("_fmcheck_lane"), _current.entered
    _current.entered = []
    if outer is None:
        undo = list(follow(fences))
    _fences = fences
    try:
        yield
    finally:
        for one in reversed(undo):
            one()
        _fences = outer
        _current.entered = entered
        if lane is not None:
            default["_fmcheck_lane"] = lane


def follows_other(tally: Tally) -> bool:
    """Tells whether the streams are followed for another tally, as in a probe of a session."""
    return _fences is not None and _fences.tally is not tally


def current_lane() -> Lane:
    """Returns the lane that this thread's launches on the CPU go to."""
    return lane_of(None)


def has_streams() -> bool:
    """Tells whether a stream of the CPU was created in this session, beside the default one."""
    default = vars(torch.cpu._default_cpu_stream).get("_fmcheck_lane")
    return _fences is not None and any(lane is not default for lane in _fences.lanes[1:])


def is_in_stream() -> bool:
    """Tells whether this thread has entered a stream."""
    return bool(_current.entered)


def on_use(used: Callable[[], None]) -> Undo:
    """Calls a function at each use of streams, in the thread that uses them; returns what ends it.

    A use is to enter a stream, to record or wait for an event or a stream, and to lend memory to
    one. To make one is none, nor to ask for the current one, nor to wait for the whole device: so
    engines begin that then use no stream, and what they set up is ordered by no fence.
    """
    _using.append(used)
    return lambda: _using.remove(used)


def lend(tally: Tally, tensor: Any, stream: Any) -> None:
    """Tells a session that a tensor is in use on a stream, if it is the one that is told."""
    if _fences is not None and _fences.tally is tally:
        _fences.lend(tensor, lane_of(stream))


def lane_of(stream: Any) -> Lane:
    """Returns a stream's lane, that of the current one for None."""
    assert _fences is not None
    if stream is None:
        entered = _current.entered
        stream = entered[-1] if entered else torch.cpu._current_stream
    lane: Lane | None = vars(stream).get("_fmcheck_lane")
    if lane is None or lane.fences is not _fences:
        lane = _open(stream)
    return lane


def _let_go() -> None:
    global _fences
    _fences = None
    _looks.clear()
    moment.virtual = None


def _take_class(class_: type, ours: type) -> Iterator[Undo]:
    yield patch(class_, "__init__", _making(class_, ours, class_.__init__))  # type: ignore[misc]
    for name, value in vars(ours).items():
        if not name.startswith("__"):
            yield patch(class_, name, value)


def _take_function(original: Callable[..., Any], ours: Callable[..., Any]) -> Iterator[Undo]:
    @functools.wraps(original)
    def wrapper(device: Any = None) -> Any:
        return ours()

    rebind(original, wrapper)
    yield lambda: rebind(wrapper, original)


def _making(class_: type, ours: type, init: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if type(self) is class_:
            self.__class__ = ours
            ours.__init__(self, *args, **kwargs)  # type: ignore[misc]
        else:
            init(self, *args, **kwargs)

    return left_alone(__init__)


def _begin(stream: Any) -> None:
    _notify(lambda _: _open(stream), is_use=False)


@left_alone
def _notify(notify: Callable[[Fences], object], is_use: bool = True) -> None:
    """Tells the session's fences of something, if there is a session.

    A fence that they failed to take in leaves a doubt on each race.
    """
    fences = _fences
    if fences is None:
        return
    if is_use:
        _used()
    try:
        notify(fences)
    except Exception as err:
        fences.doubt("fmcheck failed to follow a call of a stream or event")
        broke(fences.tally, CHECK, err)


@left_alone
def _block(is_done: Callable[[Fences], bool]) -> None:
    """Lets other threads run where one blocks on a device, but for the main one, which drives.

    Here nothing takes time: a thread would be done with its wait before others launch anything.
    """
    fences = _fences
    if fences is None or threading.current_thread() is threading.main_thread() or is_here():
        return
    is_pending = False
    with contained(fences.tally, CHECK):
        is_pending = not is_done(fences)
    if is_pending:
        _sleep(_BLOCKED)


def _has_passed(fences: Fences, record: FenceRecord | None) -> bool:
    return record is None or fences.ordered(record.happening.epoch, fences.host)


def _used() -> None:
    """The engine uses streams, in this thread; compiled code does so unseen."""
    if _using and not torch.compiler.is_compiling() and not is_here():
        for used in _using:
            used()


def _number(stream: Any) -> int:
    if stream is torch.cpu._default_cpu_stream:
        return 0
    kept: int = vars(stream).setdefault("_fmcheck_number", next(_numbers))
    return kept


def _open(stream: Any) -> Lane:
    assert _fences is not None
    made = _fences.tally.sites[_fences.tally.sites.here(1)]
    line = linecache.getline(made.path, made.line)
    assigned = _ASSIGNED.match(line) if line.count("Stream(") == 1 else None
    known = assigned.group(1) if assigned else ""

    def name() -> str:
        if stream_is_default:
            return "default stream"
        return known or _kept_as(reference, (made.path, made.line)) or f"stream {number}"

    stream_is_default = stream is torch.cpu._default_cpu_stream
    number = _number(stream)
    reference = _weakly(stream)
    lane = _fences.open(name, stream)
    stream._fmcheck_lane = lane
    return lane


def _kept_as(reference: Callable[[], Any], made: tuple[str, int]) -> str:
    """Returns the name of the attribute that keeps a stream, "" if too many were made in a line."""
    if _looks[made] >= _MOST_LOOKS:
        return ""
    _looks[made] += 1
    return holder_of(reference())


def _weakly(stream: Any) -> Callable[[], Any]:
    import weakref

    return weakref.ref(stream)


def _record(fences: Fences, event: Any, stream: Any) -> None:
    before = _record_of(event)
    event._fmcheck_record = made = fences.record(lane_of(stream))
    if before is not None:
        fences.record_again(before, made)
    event._fmcheck_time = time.perf_counter()


def _record_of(event: Any) -> FenceRecord | None:
    """Returns an event's last record of this session."""
    record: FenceRecord | None = getattr(event, "_fmcheck_record", None)
    return None if record is None or record.lane.fences is not _fences else record


@left_alone
def _enter(context: Any) -> None:
    """Enters a stream, on this thread alone: torch's own note of it is one for all threads."""
    if context.stream is not None:
        _used()
        _current.entered.append(context.stream)


@left_alone
def _leave(context: Any, *_: Any) -> None:
    if context.stream is not None and _current.entered:
        _current.entered.pop()


def _current_stream() -> Any:
    """Returns the stream of the innermost context of this thread."""
    return _current.entered[-1] if _current.entered else torch.cpu._current_stream


def _synchronize() -> None:
    """Blocks the host until the device has nothing left to do."""
    _notify(lambda fences: fences.synchronize_all(), is_use=False)


def _recording(record_stream: Callable[..., None]) -> Callable[..., None]:
    def recording(self: torch.Tensor, stream: Any) -> None:
        if not isinstance(stream, torch.cpu.Stream) or self.device.type != "cpu":
            record_stream(self, stream)
        else:
            _notify(lambda fences: fences.lend(self, lane_of(stream)))

    return recording
