"""The loop that carries bytes between a sweep and a server.

A sweep is a generator: it yields what it wants done and is sent the answer. So it is written once, without I/O,
and can be driven by a blocking loop as here, or by any other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .connect import Command, Link, Scanner
from .errors import ProtocolError
from .report import SweepReport

Result = TypeVar("Result")


@dataclass(frozen=True)
class Commands:
    """Send these in one write; the answer is a list of replies, error replies among them as exceptions.

    While the server is busy with them `meanwhile` is called.
    """

    commands: Sequence[Command]
    meanwhile: Callable[[], object] | None = None


@dataclass(frozen=True)
class Step:
    """Send what the scan has to send, then feed it one chunk; the answer is ``None``."""

    scan: Scanner


@dataclass(frozen=True)
class Abandon:
    """Drop the scan's connection, for the scan is not going to be finished; the answer is ``None``."""


@dataclass(frozen=True)
class RoundTrip:
    """Ask how long the server was to answer a command, at least; the answer is in seconds."""


@dataclass(frozen=True)
class Wait:
    """Wait this many seconds, or until a stop is asked for; the answer says whether it was."""

    seconds: float


@dataclass(frozen=True)
class Tell:
    """Hand a report to whoever listens; the answer is ``None``."""

    report: SweepReport


Request = Commands | Step | Abandon | RoundTrip | Wait | Tell
Steps = Generator[Request, Any, Result]


def drive(
    steps: Steps[Result],
    link: Link,
    stop: threading.Event | None = None,
    on_report: Callable[[SweepReport], object] | None = None,
) -> Result:
    """Run a generator of requests to its end over a blocking link.

    Args:
        steps: the generator.
        link: where its bytes go.
        stop: ends its waits; needed by generators that wait.
        on_report: takes its reports.

    Raises:
        Exception: whatever the generator raises; faults of the connection are thrown into it first.
    """
    try:
        request = next(steps)
        while True:
            try:
                answer = _perform(request, link, stop, on_report)
            except Exception as fault:  # noqa: BLE001 - it is thrown on
                request = steps.throw(fault)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    except ProtocolError:
        link.close()  # its replies may belong to other requests than it seems
        raise


def _perform(
    request: Request,
    link: Link,
    stop: threading.Event | None,
    on_report: Callable[[SweepReport], object] | None,
) -> Any:
    match request:
        case Step(scan):
            return link.step(scan)
        case Commands(commands, meanwhile):
            return link.commands(commands, meanwhile)
        case Abandon():
            return link.abandon()
        case RoundTrip():
            return link.round_trip
        case Tell(report):
            return on_report(report) if on_report else None
        case Wait(seconds):
            assert stop is not None
            return stop.wait(seconds)
