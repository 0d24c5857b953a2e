"""``mqsweep bench``: the measurements of `mqsweep.bench`, from the command line."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..connect import client_of
from ..errors import ConfigurationError
from .faults import EXPECTED, Exit, explain
from .options import check_url, duration, whole
from .output import escape, print_lines, say

if TYPE_CHECKING:
    from ..bench.record import CaseResult, Report

LIVE_EVERY, LOG_EVERY = 0.1, 15.0

_DESCRIPTION = """\
Measures one stalled check on queues of your own choosing: mqsweep's engines, the same written with redis-py's
pipelines, and BullMQ's own script, in turn, each on a freshly filled copy of the same data, in a process of its own.
Without -u on a private server that is started for each run. On a server given by -u only scratch keys are
touched, and removed afterwards; but script and bullmq hold that server while they run, which is what is measured.
$MQSWEEP_REDIS_URL is not looked at. Lists are separated by commas; all combinations are measured.
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line.

    Args:
        commands: what ``add_subparsers`` gave.
    """
    sub = commands.add_parser(
        "bench", help="measure engines and BullMQ's script side by side", description=_DESCRIPTION, allow_abbrev=False
    )
    unset: Any = argparse.SUPPRESS
    add = sub.add_argument
    add("-u", "--url", metavar="URL", default=unset, help="measure on this Redis, under a scratch prefix")
    add("-v", "--verbose", action="store_true", default=unset, help="say more")
    group = sub.add_argument_group("what to measure")
    add = group.add_argument
    add("--active", type=_listed, metavar="N,...", help="active jobs: 20000, 100k, 1m (default: 100k)")
    add("--dead", type=_listed, metavar="N,...", help="how many are dead: 0, 1%%, 100%% (default: 0,1%%)")
    add("--ids", type=_listed, metavar="KIND,...", help="int, uuid (default: int)")
    add(
        "--marks",
        type=_listed,
        metavar="KIND,...",
        help="of the living: renewed (none), standing (all) (default: renewed)",
    )
    add("--server", dest="servers", type=_listed, metavar="NAME,...", help="valkey, redis (default: one that is there)")
    add("--contenders", type=_listed, metavar="NAME,...", help="rust, python, idiom, script, bullmq (default: all)")
    add("--repeat", type=whole, metavar="N", help="runs of each, of which the median is shown (default: 3)")
    add("--limit", type=duration, metavar="TIME", help="end a run that takes longer (default: 60s; 5s with -u)")
    add("--seed", type=whole, metavar="N", help="of the ids (default: 1)")
    group = sub.add_argument_group("what to do with it")
    add = group.add_argument
    add(
        "--json", nargs="?", const=True, default=unset, metavar="FILE", help="write every run as JSON (default: stdout)"
    )
    add("--plot", type=Path, metavar="FILE", help="draw time and worst wait, .png or .svg (needs matplotlib)")
    add("--markdown", action="store_true", help="print Markdown instead of tables")
    add("--from", dest="files", type=Path, nargs="+", metavar="FILE", help="show what --json wrote, measure nothing")


def bench(options: argparse.Namespace) -> Exit:
    """Measure and show, or show what was measured."""
    from .demo import ended_by

    url = getattr(options, "url", None)
    live = _Live()
    with ended_by(signal.SIGTERM, signal.SIGHUP), contextlib.closing(live):
        try:
            return _bench(options, url, live)
        except KeyboardInterrupt:
            live.say("interrupted; servers and processes of the bench have ended, nothing is left of them")
            return Exit.INTERRUPTED
        except EXPECTED as fault:
            live.close()
            code, text = explain(fault, url or "")
            say(text)
            return code


def _bench(options: argparse.Namespace, url: str | None, live: _Live) -> Exit:
    from ..bench.plot import check_plot, draw
    from ..bench.record import Report
    from ..bench.runner import Listener, Options, perform

    if url:
        check_url(url)
        client_of(url)[0].close()  # says in words what is wrong with it
    if options.plot:
        check_plot(options.plot)
        _writable(options.plot)
    show = _Show(options, live)
    if options.files:
        reports = [Report.read(path) for path in options.files]
        for report in reports:
            show.begin(report)
            for case in report.cases:
                show.case(case)
    else:
        given = {name: getattr(options, name) for name in Options.__dataclass_fields__ if hasattr(options, name)}
        chosen = Options(**{name: value for name, value in given.items() if value is not None})
        with show.kept():
            reports = [perform(chosen, Listener(live.show, live.say, show.case), show.begin)]
    live.close()
    show.end(reports)
    if options.plot:
        draw(reports, options.plot)
        say(f"drew {escape(str(options.plot), 200)}")
    return Exit.FAILED if any(report.failed for report in reports) else Exit.DONE


class _Show:
    """Prints a report while it grows, and keeps it."""

    def __init__(self, options: argparse.Namespace, live: _Live) -> None:
        self._options, self._live = options, live
        self._quiet = options.json is True or options.markdown
        self._report: Report | None = None

    def begin(self, report: Report) -> None:
        from ..bench.environment import described

        self._report = report
        if not self._quiet:
            self._live.close()
            print_lines(described(report.environment))

    def case(self, case: CaseResult) -> None:
        from ..bench.table import plain

        assert self._report is not None
        if self._quiet:
            return
        self._live.close()
        if not (sys.stdout.isatty() and _print_rich(case, self._report.limit)):
            print_lines(["", plain(case, self._report.limit)])

    def end(self, reports: Sequence[Report]) -> None:
        from ..bench.table import markdown, notes

        if self._options.json is True:
            for report in reports:
                sys.stdout.write(report.to_json())
        elif self._options.markdown:
            print_lines([markdown(reports)])
        else:
            print_lines(["", *dict.fromkeys(line for report in reports for line in notes(report))])

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Write the file, whatever ends the measurement: what was measured until then took its time."""
        file = self._options.json
        if not isinstance(file, str):
            yield
            return
        path = Path(file)
        _writable(path)
        try:
            yield
        finally:
            if self._report is not None and any(r.runs for case in self._report.cases for r in case.results):
                path.write_text(self._report.to_json(), "utf-8")
                self._live.say(f"wrote {escape(file, 200)}")


def _print_rich(case: CaseResult, limit: float) -> bool:
    """Print by rich; says whether it could."""
    from ..bench.table import rich_table

    try:
        from rich.console import Console

        table = rich_table(case, limit)
    except ImportError:
        return False
    console = Console()
    if console.measure(table).minimum > console.width:
        return False  # a wrapped line is easier to read than cut figures
    console.print()
    console.print(table)
    return True


class _Live:
    """One changing line on stderr; where there is no terminal, a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (0 if self._terminal else LOG_EVERY)
        self._shown = False

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (LIVE_EVERY if self._terminal else LOG_EVERY)
        if not self._terminal:
            say(escape(text, 400))
            return
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r\x1b[K{escape(text, max(20, width - 1))}")
        sys.stderr.flush()
        self._shown = True

    def say(self, text: str) -> None:
        self.close()
        say(escape(text, 400))

    def close(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def _writable(path: Path) -> None:
    """Learn before anything is measured whether its results can be kept.

    Raises:
        ConfigurationError: they cannot.
    """
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ConfigurationError(f"{path}: cannot be written")


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
