"""`fmcheck doctor`: proves on this machine that every detector fires, or says which does not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from fmcheck.runtime.session.probes import Probe, ProbeTarget

FIRES, DEAD = 0, 1

EXIT_STATUS = """\
exit status:
  0  every detector works on every device that is here
  1  a detector is broken: a run without findings would prove nothing
  2  could not try them
"""


class Cell(NamedTuple):
    """One detector in one place: `fires`, `dead` with a reason, `no such device`, or `-`."""

    code: str
    name: str
    place: str
    state: str
    reason: str = ""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command to the parser."""
    import argparse

    doctor = commands.add_parser(
        "doctor",
        help="self-test every run-time check on this machine",
        description=(
            "Injects each run-time check's bug into scratch buffers, on each device and "
            "compiler backend, and requires that the check reports it."
        ),
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("--json", action="store_true", help="a JSON list of objects")
    doctor.add_argument(
        "--device", action="append", default=[], metavar="DEVICE", help="only this one: cpu, cuda"
    )
    doctor.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="BACKEND",
        help="only this one: eager, aot_eager, inductor (which compiles, and takes a while)",
    )
    doctor.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tries every detector and returns the exit status."""
    try:
        import torch  # noqa: F401
    except ImportError as err:
        raise UsageError(
            "doctor",
            f"needs torch, which cannot be imported: {err}; install the one that your engine uses",
        ) from None
    from fmcheck.runtime.session import probes
    from fmcheck.runtime.session.watch import Watch

    devices = _chosen(arguments.device, probes.DEVICES, "--device")
    backends = _chosen(arguments.backend, probes.BACKENDS, "--backend")
    places = [probes.ProbeTarget(device, backend) for device in devices for backend in backends]
    watch = Watch(())  # teaches Dynamo what a relay tensor is, as a session does
    watch.start()
    try:
        cells = [_try(probe, place) for probe in probes.PROBES for place in places]
    finally:
        watch.stop()
    dead = [cell for cell in cells if cell.state == "dead"]
    if arguments.json:
        import json

        print(json.dumps([cell._asdict() for cell in cells], indent=2))
    else:
        _show(cells, [str(place) for place in places])
        print(_closing(cells, dead))
    for cell in dead:
        print(
            f"fmcheck: {cell.code} {cell.name} does not work on {cell.place}: {cell.reason}",
            file=sys.stderr,
        )
    if not any(cell.state in ("fires", "dead") for cell in cells):
        print("fmcheck: there is no such device here: nothing was tried", file=sys.stderr)
        return DEAD
    return DEAD if dead else FIRES


def _try(probe: Probe, place: ProbeTarget) -> Cell:
    from fmcheck.runtime.session.probes import tried

    if not probe.applies(place):
        return Cell(probe.code, probe.name, str(place), "-")
    if not _is_here(place.device):
        return Cell(probe.code, probe.name, str(place), "no such device")
    wrong = tried(probe, place)
    return Cell(probe.code, probe.name, str(place), "dead" if wrong else "fires", wrong)


def _is_here(device: str) -> bool:
    import torch

    return device == "cpu" or bool(getattr(torch, device).is_available())


def _chosen(asked: Sequence[str], known: Sequence[str], option: str) -> Sequence[str]:
    for one in asked:
        if one not in known:
            raise UsageError(
                option, f"expected one of {', '.join(known)}, got `{one}`{nearest(one, known)}"
            )
    return tuple(dict.fromkeys(asked)) or known


def _closing(cells: Iterable[Cell], dead: Sequence[Cell]) -> str:
    tried = sum(cell.state in ("fires", "dead") for cell in cells)
    return (
        f"fmcheck doctor: {tried} detectors self-tested: {tried - len(dead)} working, "
        f"{len(dead)} broken"
    )


def _show(cells: Sequence[Cell], places: Sequence[str]) -> None:
    rows: dict[str, list[str]] = {}
    for cell in cells:
        rows.setdefault(f"{cell.code} {cell.name}", []).append(cell.state)
    if sys.stdout.isatty():
        _show_colored(rows, places)
        return
    lines = [["check", *places], *([name, *states] for name, states in rows.items())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        print("  ".join(padded).rstrip())


def _show_colored(rows: dict[str, list[str]], places: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    colors = {"fires": "green", "dead": "bold red"}
    table = Table("check", *places)
    for name, states in rows.items():
        table.add_row(name, *(f"[{colors.get(state, 'dim')}]{state}[/]" for state in states))
    Console().print(table)
