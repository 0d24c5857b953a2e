"""The loop that carries bytes between a sweep and a server.

A sweep is a generator: it yields what it wants done and is sent the answer. So it is written once, without I/O,
and can be driven by a blocking loop as here, or by any other.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .connect import Command, Link, Scanner

Result = TypeVar("Result")


@dataclass(frozen=True)
class Commands:
    """Send these in one write; the answer is a list of replies, error replies among them as exceptions."""

    commands: Sequence[Command]


@dataclass(frozen=True)
class Step:
    """Send what the scan has to send, then feed it one chunk; the answer is ``None``."""

    scan: Scanner


@dataclass(frozen=True)
class Abandon:
    """Drop the scan's connection, for the scan is not going to be finished; the answer is ``None``."""


Request = Commands | Step | Abandon
Steps = Generator[Request, Any, Result]


def drive(steps: Steps[Result], link: Link) -> Result:
    """Run a generator of requests to its end over a blocking link.

    Raises:
        Exception: whatever the generator raises; faults of the connection are thrown into it first.
    """
    try:
        request = next(steps)
        while True:
            try:
                answer = _perform(request, link)
            except Exception as fault:
                request = steps.throw(fault)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result


def _perform(request: Request, link: Link) -> Any:
    if isinstance(request, Step):
        return link.step(request.scan)
    if isinstance(request, Abandon):
        return link.abandon()
    return link.commands(request.commands)
