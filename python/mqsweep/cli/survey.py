"""``mqsweep queues`` and ``mqsweep doctor``: what is there, and whether it can be swept well. Change nothing."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

from ..connect import Link
from ..dialects import dialect_of
from ..discover import QueueState, bases, in_cluster, look, reading_policy
from ..doctor import Finding, examine_queue, examine_server, runaways
from ..engine import engine_info
from ..errors import MQSweepError
from ..keys import to_bytes
from .faults import EXPECTED, Exit, explain
from .output import ID_LIMIT, aligned, columns_of, escape, print_lines, say, span, width
from .queues import Queue, linked, opened

NAME_LEAST, NAME_ENOUGH = 16, 24
"""Columns that a queue's name gets in any case; that it gets before a table says more of the queues."""
TEXT_LIMIT = 600
PROGRESS_FROM = 0.5
"""Seconds after which a search says how far it is."""
OTHER_NODES = "this is one node of a cluster; queues on its other nodes are not seen from here"


def queues(options: argparse.Namespace) -> Exit:
    """Say which queues there are."""
    try:
        with linked(options.url, options.timeout) as link:
            found = sorted(_found(link, options.queues), key=lambda state: (state.name, state.base))
            if in_cluster(link):
                say(OTHER_NODES)
    except EXPECTED as fault:
        code, text = explain(fault, options.url)
        say(text)
        return code
    if options.json:
        print_lines(json.dumps(state.to_dict()) for state in found) if found else None
    elif found:
        print_lines(_table(found))
        if refused := sum(state.refused is not None for state in found):
            say(f"{refused:,} refused: 'mqsweep doctor' says why")
    else:
        say("no queues found" + (f" that match {' '.join(map(escape, options.queues))}" if options.queues else ""))
    return Exit.DONE


def _found(link: Link, patterns: Sequence[str]) -> Iterator[QueueState]:
    for state in look(link, _bases(link)):
        if not patterns or any(fnmatchcase(state.name, p) or fnmatchcase(state.base, p) for p in patterns):
            yield state


def _bases(link: Link) -> list[bytes]:
    """All bases; on a terminal it says how far the search is when it takes long."""
    began, shown = time.monotonic(), False

    def progress(over: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.monotonic() - began > PROGRESS_FROM:
            sys.stderr.write(f"\r\x1b[Klooking for queues: {over:,} keys gone over")
            sys.stderr.flush()
            shown = True

    try:
        return list(bases(link, progress))
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _table(found: Sequence[QueueState]) -> Iterator[str]:
    """As wide as the terminal: it says less where all would not fit, and the names get what the rest leaves."""
    now = time.time()
    terminal = sys.stdout.isatty()
    for wide in (True, False):
        head = ("DIALECT", "ACTIVE", "MARKED", "WAIT", "STATE", "LEASE", *(("LAST SWEEP",) if wide else ()))
        rest = [head, *(_row(state, now, wide=wide) for state in found)]
        room = width() - sum(2 + max(map(columns_of, column)) for column in zip(*rest, strict=True))
        if room >= NAME_ENOUGH or not terminal:
            break
    names = ["QUEUE", *(escape(state.base, max(NAME_LEAST, room) if terminal else ID_LIMIT) for state in found)]
    yield from aligned([(name, *row) for name, row in zip(names, rest, strict=True)], right=(2, 3, 4))


def _row(state: QueueState, now: float, *, wide: bool) -> tuple[str, ...]:
    cells = (
        _owner(state, wide=wide),
        f"{state.active:,}",
        f"{state.marked:,}",
        f"{state.waiting + state.in_paused:,}",
        "refused" if state.refused else "paused" if state.paused else "",
        _lease(state, wide=wide),
    )
    swept = "?" if state.checked_at is None else f"{span(max(0.0, now - state.checked_at))} ago"
    return (*cells, swept) if wide else cells


def _owner(state: QueueState, *, wide: bool) -> str:
    if state.dialect == "echomq":
        return state.dialect
    told = " (lists)" if wide and state.told_by == "lists" else ""
    return f"{state.dialect} {'?' if state.generation is None else escape(state.generation, 16)}{told}"


def _lease(state: QueueState, *, wide: bool) -> str:
    if state.holder is None:
        return "nobody"
    parts = state.holder.split(":")
    if state.checked_at is not None:
        holder = "a whole check" if wide else "a check"
    elif parts[0] == "mqsweep" and len(parts) == 4:
        host = escape(parts[1].partition(".")[0], 16)
        holder = f"mqsweep {host} {escape(parts[2], 8)}" if wide else "mqsweep"
    else:
        holder = escape(state.holder, 24) if wide else "other"
    if state.holder_ttl is None:
        return f"{holder}, for good"
    return f"{holder}, {span(state.holder_ttl)}{' left' if wide else ''}"


def doctor(options: argparse.Namespace) -> Exit:
    """Examine the server and the queues that were named; where none was, all that are found, from outside."""
    findings: list[Finding] = []
    code = Exit.DONE
    try:
        with linked(options.url, options.timeout) as link, opened(options) as named:
            for finding in _findings(link, named, options.bullmq_version):
                findings.append(finding)  # what was found until a fault is shown
    except EXPECTED as fault:
        code, text = explain(fault, options.url)
        say(text)
        if code is not Exit.FAILED or not findings:
            return code
    if options.json:
        print_lines(json.dumps(finding.to_dict()) for finding in findings)
    else:
        print_lines(_lines(findings, fold=not options.queues))
    serious = any(finding.level == "serious" for finding in findings)
    return Exit.FAILED if serious else code


def _findings(link: Link, named: Sequence[Queue], bullmq_version: str | None) -> Iterator[Finding]:
    given = {queue.keys.base: queue for queue in named}
    policies = {queue.keys.base: reading_policy(dialect_of(queue.dialect), bullmq_version) for queue in named}
    states = list(look(link, given or sorted(_bases(link)), policies))
    yield from examine_server(link, engine_info(), [state.base for state in states])
    if not given and in_cluster(link):
        yield Finding("note", "server", "cluster", OTHER_NODES, "give another node's address, or name the queues")
    running = runaways(link, states)
    for state in states:
        yield from _examined(link, state, given.get(to_bytes(state.base)), running.get(state.base))


def _examined(link: Link, state: QueueState, queue: Queue | None, running: dict[str, int] | None) -> Iterator[Finding]:
    if queue is None:
        yield from examine_queue(state, None, running)
        return
    if not queue.sweeper.exists():
        alike = "; ".join(queue.alike(link)) or "none that is like it"
        yield Finding("note", state.base, "queue", "no such queue", f"check the name; there is {alike}")
        return
    try:
        with queue.ticking():
            seen = queue.sweeper.inspect()
    except MQSweepError as fault:
        yield Finding("serious", state.base, "queue", str(fault), "it is left alone: its own check must do the work")
        return
    yield from examine_queue(state, seen, running)


def _lines(findings: Sequence[Finding], *, fold: bool) -> Iterator[str]:
    """Findings for people.

    Args:
        findings: of one server and queue after the other.
        fold: say no more than how many they are of queues where all is well.
    """
    well = 0
    for about, those in groupby(findings, key=lambda finding: finding.about):
        group = list(those)
        if fold and about != "server" and all(finding.level == "ok" for finding in group):
            well += 1
            continue
        yield escape(about, 200)
        for finding in group:
            yield from _wrapped(f"  {finding.level:<8}{finding.topic:<10}", escape(finding.text, TEXT_LIMIT))
            if finding.remedy:
                yield from _wrapped(f"{'':<20}-> ", escape(finding.remedy, TEXT_LIMIT))
    if well:
        yield f"{well:,} {'queue' if well == 1 else 'queues'} where all is well"
    serious = sum(finding.level == "serious" for finding in findings)
    yield f"{serious} serious" if serious else "nothing serious"


def _wrapped(head: str, text: str) -> Iterator[str]:
    indent = " " * len(head)
    return iter(textwrap.wrap(text, width(), initial_indent=head, subsequent_indent=indent, break_on_hyphens=False))
