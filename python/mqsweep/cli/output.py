"""How results look: a block of lines per queue for people, one line of JSON for machines."""

from __future__ import annotations

import shutil
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from ..report import Inspection, StalledJob, SweepReport

ID_LIMIT = 64
"""Characters of an id that are printed."""
UUID_LENGTH = 36
LISTED = 10
"""Ids of a list, or rows of a table, that are printed."""
LEAST_WIDTH = 40
PLAIN_WIDTH = 110
"""Columns of a line where there is no terminal to ask."""


def say(line: str) -> None:
    """A line to stderr."""
    print(f"mqsweep: {line}", file=sys.stderr, flush=True)


def escape(text: str, limit: int = ID_LIMIT) -> str:
    """The text as it can be printed: nothing in it can move a cursor, set a colour or end a line.

    Args:
        text: an id, a queue's name or the like, with ``surrogateescape`` for bytes that are not UTF-8.
        limit: columns; what is longer ends in ``...``.
    """
    parts: list[str] = []
    length = 0
    for character in text:
        parts.append(_escaped(character))
        length += columns_of(parts[-1])
        if length > limit:
            while length > limit - 3 and parts:
                length -= columns_of(parts.pop())
            return "".join(parts) + "..."
    return "".join(parts) or "''"


def _escaped(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte that is not UTF-8
    if code < 0x80:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def columns_of(text: str) -> int:
    """Columns that printable text takes on a terminal: East Asian wide characters take two, combining ones none."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Rows in columns, two blanks apart.

    Args:
        rows: of equal length, the head first.
        right: columns that are set to the right.
    """
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for i, (text, wanted) in enumerate(zip(row, widths, strict=True)):
            blanks = " " * (wanted - columns_of(text))
            cells.append(blanks + text if i in right else text + blanks)
        yield "  ".join(cells).rstrip()


def width() -> int:
    """Columns that a line may have."""
    columns = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if sys.stdout.isatty() else PLAIN_WIDTH
    return max(LEAST_WIDTH, columns)


def listed(ids: Sequence[str], room: int) -> str:
    """The first ids of a list, as many as the room (in columns) has place for, and how many more there are."""
    shown: list[str] = []
    for job_id in ids[:LISTED]:
        text = escape(job_id)
        if shown and len(", ".join([*shown, text])) > room - len(_more(len(ids) - len(shown))):
            break
        shown.append(text)
    return ", ".join(shown) + (_more(len(ids) - len(shown)) if len(shown) < len(ids) else "")


def _more(count: int) -> str:
    return f" ... and {count:,} more"


def span(seconds: float) -> str:
    """A duration for people: ``45 ms``, ``2.5 s``, ``4m12s``, ``3h05m``."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    hours = whole // 3600
    return f"{hours}h{whole % 3600 // 60:02d}m" if hours < 48 else f"{hours // 24} days"


def count(number: int, noun: str) -> str:
    """A count with its noun: ``1 job``, ``2,000 jobs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def who(holder: str | None) -> str:
    """What the value in ``stalled-check`` says of who holds the lease."""
    if holder is None:
        return "nobody"
    parts = holder.split(":")
    if parts[0] == "mqsweep" and len(parts) == 4:
        return f"mqsweep on {escape(parts[1])}, process {escape(parts[2])}"
    if holder.isdigit() and len(holder) < 15:
        at = time.strftime("%H:%M:%S", time.localtime(int(holder) / 1000))
        return f"a whole-queue check of {at}, BullMQ's own or the script"
    return escape(holder)


# The fields of a report that are lists of ids, each with what it means.
_MEANINGS = {
    "recovered": "put back to work",
    "failed": "past the ceiling",
    "marked": "no lock, seen for the first time",
    "cleared": "marks taken back: a lock was seen",
    "strays": "marks taken back: not active any more",
    "ghosts": "taken out of active: no such job, or done already",
    "missed": "not handled, left to the next sweep",
    "held": "would have been recovered, held back",
}


def moved(report: SweepReport) -> bool:
    """Whether a sweep changed anything, or left something to the next that it meant to do."""
    return any(getattr(report, name) for name in _MEANINGS if name != "held")


def summary(report: SweepReport) -> str:
    """What a sweep did, in one line; empty when it did nothing."""
    counts = {name: len(getattr(report, name)) for name in (*_MEANINGS, "refused")}
    said = [f"{n:,} {name}" for name, n in counts.items() if n]
    return ", ".join([*said, *(f"guard {name}" for name in report.guards)])


def report_lines(report: SweepReport, interval: float) -> Iterator[str]:
    """One sweep, for people.

    Args:
        report: of the sweep.
        interval: seconds between two sweeps.
    """
    yield f"{escape(report.queue)}: {_headline(report)}"
    room = width() - 22
    for name, meaning in _MEANINGS.items():
        ids = getattr(report, name)
        if ids:
            yield f"  {name:<10}{len(ids):>8,}  {meaning}"
            yield f"{'':<22}{listed(ids, room)}"
    if report.refused:
        yield f"  {'refused':<10}{len(report.refused):>8,}  left alone, something is wrong with them"
        yield from (f"{'':<22}{line}" for line in _reasons(report.refused))
    if report.unconfirmed:
        yield f"  {'unconfirmed':<11}{report.unconfirmed:>7,}  their reply was lost: done, or gone"
    for name in report.guards:
        yield f"  guard     {name}: missing locks may not mean dead workers"
    yield from (f"  {line}" for line in _closing(report, interval))


def _reasons(refused: dict[str, str]) -> Iterator[str]:
    for job_id, reason in list(refused.items())[:LISTED]:
        yield f"{escape(job_id)}: {escape(reason, 2 * ID_LIMIT)}"
    if len(refused) > LISTED:
        yield _more(len(refused) - LISTED).strip()


def _headline(report: SweepReport) -> str:
    cost = (
        f"in {span(report.duration)} ({count(report.active_scanned, 'active job')} looked at, engine {report.engine})"
    )
    if report.engine == "script":
        cost = f"in {span(report.duration)}, one call that held Redis (engine script)"
    match report.status:
        case "throttled":
            return "throttled, nothing done: swept less than an interval ago, or being swept now"
        case "fenced":
            return f"fenced {cost}: another sweeper took the lease; what was done until then stands"
        case "held":
            return f"held {cost}: {report.held_because}"
    return f"swept {cost}" + ("" if report.complete else ", stopped early")


def _closing(report: SweepReport, interval: float) -> Iterator[str]:
    if report.status == "throttled":
        when = "" if report.retry_after is None else f"; try again in {span(report.retry_after)}"
        yield f"lease: {who(report.holder) if report.holder else 'given back meanwhile'}{when}"
    elif report.marked:
        number = len(report.marked)
        those = "the marked job, if it still has" if number == 1 else f"those of the {number:,} marked that still have"
        yield f"next: a sweep {span(interval)} after this one, or later, recovers {those} no lock"
    elif report.engine == "script" and report.status == "swept":
        yield "what it marked, the script engine does not say; 'mqsweep inspect' does"
    elif report.status == "swept" and not summary(report):
        yield "nothing is stalled"


def inspection_lines(seen: Inspection) -> Iterator[str]:
    """Who is stalled, for people."""
    marked = sum(job.marked for job in seen.jobs)
    yield (
        f"{escape(seen.queue)}: {count(seen.active_scanned, 'active job')}, {len(seen.jobs):,} without a lock, "
        f"{marked:,} of them marked{'; paused' if seen.paused else ''}"
    )
    if seen.jobs:
        workers = Counter(job.worker for job in seen.jobs).most_common()
        names = ("unknown" if name is None else escape(name, 32) for name, _ in workers)
        yield "  workers: " + _some([f"{name} ({n:,})" for name, (_, n) in zip(names, workers, strict=True)], 5)
        yield from _table(seen.jobs)
    back = ((len(seen.locked_marks), "whose job has a lock"), (len(seen.strays), "whose job is not active"))
    if any(number for number, _ in back):
        said = ", ".join(f"{number:,} {which}" for number, which in back if number)
        yield f"  marks that the next sweep takes back: {said}"
    yield f"  lease: {who(seen.holder)}"


def _some(texts: Sequence[str], most: int) -> str:
    return ", ".join(texts[:most]) + (_more(len(texts) - most) if len(texts) > most else "")


def _table(jobs: Sequence[StalledJob]) -> Iterator[str]:
    head = ("JOB", "MARKED", "AGE", "WORKER", "TRIES", "STALLS", "NOTE")
    rows = [_row(job, wide=width() >= PLAIN_WIDTH) for job in jobs[:LISTED]]
    rows = [head if any(row[-1] for row in rows) else (*head[:-1], ""), *rows]
    yield from (f"  {line}" for line in aligned(rows))
    if len(jobs) > LISTED:
        yield f"  {_more(len(jobs) - LISTED).strip()}, younger ones (--json has all)"


def _row(job: StalledJob, *, wide: bool) -> tuple[str, ...]:
    age = "?" if job.processed_on is None else span(max(0.0, time.time() - job.processed_on))
    past = "past its ceiling next" if job.past_ceiling else ""
    return (
        escape(job.id, ID_LIMIT if wide else UUID_LENGTH),
        "yes" if job.marked else "no",
        age,
        "?" if job.worker is None else escape(job.worker, 32 if wide else 12),
        _known(job.attempts),
        _known(job.stalls),
        "its workers ignore the ceiling" if job.runaway else past,
    )


def _known(number: int | None) -> str:
    return "-" if number is None else str(number)


def print_lines(lines: Iterable[str]) -> None:
    """Lines to stdout, all at once."""
    print("\n".join(lines), flush=True)
