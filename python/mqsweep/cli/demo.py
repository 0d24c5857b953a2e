"""``mqsweep demo``: the story in `mqsweep.demo`, from the command line."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import redis

from ..demo import DemoError, Options, Screen, perform
from ..report import SweepReport
from .faults import Exit
from .output import escape, print_lines, report_lines, say


def demo(options: argparse.Namespace) -> Exit:
    """Tell the story; with ``--json`` it goes to stderr, and the figures to stdout."""
    screen = Screen(sys.stderr if options.json else sys.stdout, sys.stderr)
    with ended_by(signal.SIGTERM, signal.SIGHUP):
        try:
            given = Options(options.jobs, options.attempts, options.interval)
            result = perform(given, screen, _teller(screen, options))
        except (DemoError, redis.RedisError) as fault:
            say(escape(str(fault), 1000))
            return Exit.FAILED
        except KeyboardInterrupt:
            say("interrupted; the server and the workers have ended, nothing is left")
            return Exit.INTERRUPTED
    if options.json:
        print_lines([json.dumps(dataclasses.asdict(result))])
    return Exit.DONE if result.right else Exit.FAILED


def _teller(screen: Screen, options: argparse.Namespace) -> Callable[[SweepReport], None]:
    """With ``-v``: the reports as ``mqsweep sweep`` prints them."""

    def tell(report: SweepReport) -> None:
        if options.verbose:
            for line in report_lines(report, options.interval):
                screen.quote(line)

    return tell


@contextlib.contextmanager
def ended_by(*numbers: signal.Signals) -> Iterator[None]:
    """Let these signals end what is within in an orderly way, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
