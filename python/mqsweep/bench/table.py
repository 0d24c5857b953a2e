"""The figures as tables: plain, Markdown, or by rich."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .contenders import MEANINGS
from .environment import described
from .gauge import THRESHOLD
from .record import CaseResult, Report, Result, Waits

BASELINE = "bullmq"

_COLUMNS = (
    *("contender", "total", f"vs {BASELINE}", "cmd 99.9%", "cmd max", "server CPU", "client CPU"),
    *("first job", "commands", "MB out", "MB in", "RSS +MB", "wait p50", "p99", "p99.9", "max"),
)
_FLOOR = THRESHOLD / 1e6


def time_of(seconds: float | None) -> str:
    """A duration in three figures: ``0.21 ms``, ``4.3 ms``, ``213 ms``, ``1.23 s``, ``131 s``."""
    if seconds is None:
        return "-"
    number, unit = (seconds * 1000, "ms") if seconds < 0.9995 else (seconds, "s")
    return f"{number:.{0 if number >= 99.95 else 1 if number >= 9.995 else 2}f} {unit}"


def rows(case: CaseResult, limit: float) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A case as a table: its head, and a row for each contender."""
    base = case.result(BASELINE)
    found = [_row(result, base, limit) for result in case.results]
    if case.quiet:
        found.append(("nobody", *["-"] * (len(_COLUMNS) - 5), *_waits(case.quiet)))
    return _COLUMNS, found


def _row(result: Result, base: Result | None, limit: float) -> tuple[str, ...]:
    if not result.measured:
        total = f"> {limit:g} s" if result.outcome == "over" else result.outcome
        wait = f"> {limit:g} s" if result.outcome == "over" and result.contender in ("script", BASELINE) else "-"
        return (result.contender, total, *["-"] * (len(_COLUMNS) - 3), wait)
    return (
        result.contender,
        time_of(result.middle("seconds")),
        _ratio(result, base, limit),
        *(_command(result.most(name)) for name in ("p999_command", "longest_command")),
        *(time_of(result.middle(name)) for name in ("server_cpu", "client_cpu")),
        time_of(result.most("first_job")),
        f"{result.middle('commands'):,.0f}",
        *(f"{result.middle(name) / 1e6:,.1f}" for name in ("sent", "received")),
        f"{(result.most('rss_growth') or 0) / 1e6:,.1f}",
        *_waits(result.waits()),
    )


def _ratio(result: Result, base: Result | None, limit: float) -> str:
    """How many times faster than the baseline."""
    if base is None or base is result:
        return "-" if base is None else "1"
    if base.outcome == "over":
        return f"> {_times(limit / result.middle('seconds'))}"
    return _times(base.middle("seconds") / result.middle("seconds")) if base.measured else "-"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2g}x" if ratio < 1 else f"{ratio:.1f}x"


def _command(seconds: float | None) -> str:
    return f"< {time_of(_FLOOR)}" if seconds is not None and seconds <= _FLOOR else time_of(seconds)


def _waits(waits: Waits) -> tuple[str, ...]:
    return tuple(time_of(t) for t in (waits.p50, waits.p99, waits.p999, waits.worst))


def notes(report: Report) -> Iterator[str]:
    """What must be known to read the tables."""
    names = list(dict.fromkeys(r.contender for case in report.cases for r in case.results))
    yield "; ".join(f"{name}: {MEANINGS[name]}" for name in names)
    yield (
        f"vs {BASELINE}: how many times faster than BullMQ's own script on the same data, run in turn with it; with "
        "marks renewed, its best case; with marks standing, every id is still marked"
    )
    yield (f"{_runs(report)}; cmd (time on the server, by SLOWLOG), wait max and RSS: the worst of all runs")
    yield "first job: when a worker asleep on the marker was woken by the first recovered job, at worst"
    yield (
        "wait: what a bystander's GET or SET, one every millisecond, waited meanwhile, those counted that it could not "
        "send in time; nobody: the same with nobody sweeping"
    )
    yield (
        "after every run: each id exactly once in active or wait, counters exact, else the contender is shown as failed"
    )
    for case in report.cases:
        for result in case.results:
            if result.note:
                yield f"{result.contender}, {case.title}: {result.note}"
    if report.environment.get("build_profile") == "debug":
        yield "THE NATIVE CORE IS A DEBUG BUILD: the figures of rust mean nothing"


def _runs(report: Report) -> str:
    if report.repeat == 1:
        return "one run each"
    once = any(len(r.runs) < report.repeat for case in report.cases for r in case.results if r.measured)
    return f"medians of {report.repeat} runs" + (", one run where it takes long" if once else "")


def plain(case: CaseResult, limit: float) -> str:
    """A case in aligned columns."""
    head, body = rows(case, limit)
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in (head, *body)]
    return "\n".join([case.title, *lines])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for i, (text, width) in enumerate(zip(row, widths, strict=True)):
        yield text.ljust(width) if i == 0 else text.rjust(width)


def markdown(reports: Sequence[Report]) -> str:
    """Reports for a document: their tables, what they were measured on, and how to read them."""
    blocks = []
    for report in reports:
        blocks += [tables(report), "\n".join(f"* {line}" for line in described(report.environment))]
    reading = dict.fromkeys(line for report in reports for line in notes(report))
    return "\n\n".join([*blocks, "\n".join(f"* {line}" for line in reading)])


def tables(report: Report, level: int = 3) -> str:
    """A Markdown table for each case.

    Args:
        report: whose cases.
        level: of their headings.
    """
    blocks = []
    for case in report.cases:
        head, body = rows(case, report.limit)
        lines = ["| " + " | ".join(row) + " |" for row in (head, *body)]
        lines.insert(1, "|---" + "|---:" * (len(head) - 1) + "|")
        blocks.append(f"{'#' * level} {case.title}\n\n" + "\n".join(lines))
    return "\n\n".join(blocks)


def rich_table(case: CaseResult, limit: float) -> Any:
    """A case for a terminal.

    Raises:
        ImportError: rich is not installed (extra ``cli``).
    """
    from rich.table import Table
    from rich.text import Text

    head, body = rows(case, limit)
    table = Table(title=Text(case.title, style="bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    for i, name in enumerate(head):
        table.add_column(Text(name), justify="left" if i == 0 else "right", no_wrap=True)
    for row in body:
        style = "dim" if row[0] == "nobody" else "red" if row[1] == "failed" else ""
        table.add_row(*(Text(text) for text in row), style=style)
    return table
