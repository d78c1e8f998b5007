"""Kinds of functions: a coroutine or generator function that is wrapped stays one.

Who calls it may ask which kind it is. Its body runs in stretches, between which others run in the
same thread: what is done around a call is done around each of these.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator


class AroundCall:
    """What is done around one call: nothing, unless a subclass does it. Nothing here raises."""

    def enter(self) -> None:
        """The body begins, or goes on."""

    def leave(self) -> None:
        """It waits, or is over."""

    def returned(self, result: Any) -> None:
        """It has returned."""

    def over(self) -> None:
        """It goes on no more, whether it has returned or not."""


def before_body(function: Callable[..., Any], begin: Callable[[], None]) -> Callable[..., Any]:
    """Returns a function of the same kind that calls `begin` before its body."""

    class Beginning(AroundCall):
        def __init__(self, *_: Any) -> None:
            begin()

    return around(function, Beginning)


def after_body(
    function: Callable[..., Any], then: Callable[[Any, Any, Any], None]
) -> Callable[..., Any]:
    """Returns a function of the same kind that tells of arguments and result once it returned."""

    class AfterBody(AroundCall):
        def __init__(self, args: Any, kwargs: Any) -> None:
            self.given = args, kwargs

        def returned(self, result: Any) -> None:
            then(*self.given, result)

    return around(function, AfterBody)


def around(
    function: Callable[..., Any], call_of: Callable[[Any, Any], AroundCall | None]
) -> Callable[..., Any]:
    """Returns a function of the same kind, with a `AroundCall` around each call.

    `call_of` is asked with the arguments once the body is to begin; None is for a call that is
    left alone.
    """

    def asked(args: Any, kwargs: Any) -> AroundCall:
        return call_of(args, kwargs) or AroundCall()

    wrapped: Callable[..., Any]
    if inspect.isasyncgenfunction(function):

        async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            call = asked(args, kwargs)
            made = function(*args, **kwargs)
            step = made.__anext__()
            try:
                while True:
                    try:
                        item = await _awaited(step, call)
                    except StopAsyncIteration:
                        break
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await made.aclose()
                        raise
                    except BaseException as err:
                        step = made.athrow(err)
                    else:
                        step = made.asend(sent)
                call.returned(None)
            finally:
                call.over()

        wrapped = stream
    elif inspect.iscoroutinefunction(function):

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            call = asked(args, kwargs)
            try:
                result = await _awaited(function(*args, **kwargs), call)
                call.returned(result)
            finally:
                call.over()
            return result

        wrapped = coroutine
    elif inspect.isgeneratorfunction(function):

        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            call = asked(args, kwargs)
            try:
                result = yield from _resumed(function(*args, **kwargs), call)
                call.returned(result)
            finally:
                call.over()
            return result

        wrapped = generator
    else:

        def plain(*args: Any, **kwargs: Any) -> Any:
            call = call_of(args, kwargs)
            if call is None:
                return function(*args, **kwargs)
            try:
                call.enter()
                try:
                    result = function(*args, **kwargs)
                finally:
                    call.leave()
                call.returned(result)
            finally:
                call.over()
            return result

        wrapped = plain
    return functools.wraps(function)(wrapped)


def _resumed(made: Any, call: AroundCall) -> Generator[Any, Any, Any]:
    """Hands on all that a generator or coroutine yields, and what it is sent or thrown."""
    value: Any = None
    error: BaseException | None = None
    while True:
        call.enter()
        try:
            yielded = made.send(value) if error is None else made.throw(error)
        except StopIteration as stop:
            return stop.value
        finally:
            call.leave()
        value = error = None
        try:
            value = yield yielded
        except GeneratorExit:
            call.enter()
            try:
                made.close()
            finally:
                call.leave()
            raise
        except BaseException as err:
            error = err


_awaited = types.coroutine(_resumed)
