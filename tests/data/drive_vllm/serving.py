"""What the drives of both model runners share: requests served, and a call that is broken."""

from __future__ import annotations

from typing import Any


def serve_three(runner: Any) -> None:
    """Serves three requests: chunked prompts, mixed batches, padding, a row that is reused."""
    runner.add("a", [5, 6, 7])
    runner.add("b", list(range(10, 17)))
    runner.step({"a": 3, "b": 4})
    runner.step({"a": 1, "b": 3})
    for pad in (4, 8, 4):
        runner.step({"a": 1, "b": 1}, pad=pad)
    runner.remove("a")
    runner.add("c", [8, 9])
    runner.step({"b": 1, "c": 2})
    runner.step({"b": 1, "c": 1}, pad=4)


def broken(runner: Any, name: str, at: int, instead: Any) -> Any:
    """Replaces one call of a method, the `at`-th, by `instead(real, *arguments)`."""
    real, calls = getattr(runner, name), [0]

    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            return instead(real, *arguments, **named)
        return real(*arguments, **named)

    setattr(runner, name, call)
    return runner
