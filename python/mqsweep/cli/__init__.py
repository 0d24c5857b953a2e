"""The command ``mqsweep``: demo, sweep, run, inspect, queues, doctor, bench."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urlsplit

from ..errors import ConfigurationError
from .faults import Exit
from .options import URL_VARIABLE, hide_urls, parse
from .output import escape, say

__all__ = ["main"]

LOG_LIMIT = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments without the program's name; ``None`` = those of the process.

    Returns:
        The exit code, see ``mqsweep --help``.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a narrow locale must not end a service
    try:
        options = parse(arguments)
        with _logging(options.verbose):
            code = _command(options)
        sys.stdout.flush()
        return int(code)
    except SystemExit as end:  # argparse: help, version, usage
        return end.code if isinstance(end.code, int) else 1
    except ConfigurationError as fault:
        say(escape(str(fault), LOG_LIMIT))
        return Exit.USAGE
    except KeyboardInterrupt:
        say("interrupted; what was done until then stands, a lease that was taken expires by itself")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # what reads our output has gone; the flush at exit must not complain of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    except Exception:  # noqa: BLE001 - a bug of ours; its traceback must not carry the URL
        print(_without_secrets(traceback.format_exc(), arguments), file=sys.stderr)
        say("this is a bug in mqsweep, please report it with the lines above")
        return Exit.FAILED


def _command(options: argparse.Namespace) -> Exit:
    # imported here, so that --help and usage errors come at once
    match options.command:
        case "demo":
            from .demo import demo

            return demo(options)
        case "sweep":
            from .sweep import sweep

            return sweep(options)
        case "run":
            from .run import run

            return run(options)
        case "queues":
            from .survey import queues

            return queues(options)
        case "doctor":
            from .survey import doctor

            return doctor(options)
        case "bench":
            from .bench import bench

            return bench(options)
    from .inspect import inspect

    return inspect(options)


class _Lines(logging.Formatter):
    """One line per record, and nothing in it that a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        return f"mqsweep: {record.levelname.lower()}: {escape(record.getMessage(), LOG_LIMIT)}"


@contextlib.contextmanager
def _logging(verbose: bool) -> Iterator[None]:
    """Show mqsweep's log on stderr while a command runs."""
    log = logging.getLogger("mqsweep")
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _without_secrets(text: str, arguments: Sequence[str]) -> str:
    """The text without the URLs that were given, and without their passwords standing alone."""
    given = os.environ.get(URL_VARIABLE, "")
    text = hide_urls(text, [*arguments, given])
    for url in (part for a in [*arguments, given] for part in (a, a.partition("=")[2])):
        with contextlib.suppress(ValueError):
            for secret in {urlsplit(url).password or "", unquote(urlsplit(url).password or "")} - {""}:
                text = text.replace(secret, "***")
    return text
