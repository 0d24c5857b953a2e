"""``mqsweep queues`` and ``mqsweep doctor``: what is there, and whether it can be swept well. Change nothing."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from ..connect import Link
from ..discover import QueueState, bases, look, look_alikes
from ..doctor import Finding, examine_queue, examine_server
from ..engine import engine_info
from ..errors import MQSweepError
from ..keys import to_str
from .faults import EXPECTED, Exit, explain
from .output import escape, print_lines, say, span, who, width
from .queues import Queue, linked, opened

NAME_LIMIT = 40
TEXT_LIMIT = 600
PROGRESS_FROM = 0.5
"""Seconds after which a search says how far it is."""


def queues(options: argparse.Namespace) -> Exit:
    """Say which queues there are."""
    try:
        with linked(options.url, options.timeout) as link:
            found = sorted(_found(link, options.queues), key=lambda state: (state.name, state.base))
    except EXPECTED as fault:
        code, text = explain(fault, options.url)
        say(text)
        return code
    if options.json:
        print_lines(json.dumps(state.to_dict()) for state in found) if found else None
    elif found:
        print_lines(_table(found))
    else:
        say("no queues found" + (f" that match {' '.join(map(escape, options.queues))}" if options.queues else ""))
    return Exit.DONE


def _found(link: Link, patterns: Sequence[str]) -> Iterator[QueueState]:
    began, shown = time.monotonic(), False

    def progress(over: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.monotonic() - began > PROGRESS_FROM:
            sys.stderr.write(f"\r\x1b[Klooking for queues: {over:,} keys gone over")
            sys.stderr.flush()
            shown = True

    there = list(bases(link, progress))
    if shown:
        sys.stderr.write("\r\x1b[K")
    for state in look(link, there):
        if not patterns or any(fnmatchcase(state.name, p) or fnmatchcase(state.base, p) for p in patterns):
            yield state


def _table(found: Sequence[QueueState]) -> Iterator[str]:
    wide = width() >= 100
    head = ("QUEUE", "DIALECT", "VERSION", "ACTIVE", "MARKED", "WAIT", "STATE", "LEASE")
    rows = [head, *(_row(state, NAME_LIMIT if wide else 24) for state in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (t.rjust(n) if i in (3, 4, 5) else t.ljust(n) for i, (t, n) in enumerate(zip(row, widths, strict=True)))
        yield "  ".join(cells).rstrip()


def _row(state: QueueState, limit: int) -> tuple[str, ...]:
    version = state.generation or ("-" if state.dialect == "echomq" else "?")
    lease = "nobody" if state.holder is None else who(state.holder)
    if state.holder is not None and state.holder_ttl is not None:
        lease += f", {span(state.holder_ttl)} left"
    return (
        escape(state.base, limit),
        state.dialect,
        version,
        f"{state.active:,}",
        f"{state.marked:,}",
        f"{state.waiting + state.in_paused:,}",
        "refused" if state.refused else "paused" if state.paused else "",
        lease,
    )


def doctor(options: argparse.Namespace) -> Exit:
    """Examine the server and the queues that were named; where none was, all that are found, from outside."""
    findings: list[Finding] = []
    try:
        with linked(options.url, options.timeout) as link, opened(options) as named:
            there = [queue.keys.base for queue in named] or sorted(bases(link))
            findings += examine_server(link, engine_info(), [to_str(base) for base in there])
            for i, state in enumerate(look(link, there)):
                findings += _examined(link, state, named[i] if named else None)
    except EXPECTED as fault:
        code, text = explain(fault, options.url)
        say(text)
        if code is Exit.UNREACHABLE or not findings:
            return code
    print_lines([json.dumps(finding.to_dict()) for finding in findings] if options.json else _lines(findings))
    return Exit.FAILED if any(finding.level == "serious" for finding in findings) else Exit.DONE


def _examined(link: Link, state: QueueState, queue: Queue | None) -> Iterator[Finding]:
    if queue is None:
        yield from examine_queue(state, None)
        return
    if not queue.sweeper.exists():
        alike = ", ".join(look_alikes(link, queue.keys, queue.name)) or "none that is like it"
        yield Finding("note", state.base, "queue", "no such queue", f"check the name; there is: {alike}")
        return
    try:
        with queue.ticking():
            seen = queue.sweeper.inspect()
    except MQSweepError as fault:
        yield Finding("serious", state.base, "queue", str(fault), "it is left alone: its own check must do the work")
        return
    yield from examine_queue(state, seen)


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    about = None
    for finding in findings:
        if finding.about != about:
            about = finding.about
            yield escape(about, 200)
        yield from _wrapped(f"  {finding.level:<8}{finding.topic:<10}", escape(finding.text, TEXT_LIMIT))
        if finding.remedy:
            yield from _wrapped(f"{'':<20}-> ", escape(finding.remedy, TEXT_LIMIT))
    serious = sum(finding.level == "serious" for finding in findings)
    yield f"{serious} serious" if serious else "nothing serious"


def _wrapped(head: str, text: str) -> Iterator[str]:
    return iter(textwrap.wrap(text, width(), initial_indent=head, subsequent_indent=" " * len(head)))
