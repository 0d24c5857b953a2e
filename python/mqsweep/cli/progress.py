"""One changing line on stderr while something takes long; plain log lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ..sweep import Progress
from .output import escape, say, span

QUIET = 0.5
"""Seconds for which nothing is shown: what is over by then needs no progress."""
REFRESH = 0.1
LOG_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""

_WORDS = {"scan": "looking at active jobs", "recover": "recovering"}


class Ticker:
    """Shows how far a sweep has come; give `update` to the Sweeper as ``on_progress``.

    With rich and a terminal it is a bar; with a terminal alone a line that is written over; else a line every
    ten seconds.

    Args:
        queue: whose sweep it is.
        clock: seconds that only grow.
    """

    def __init__(self, queue: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = escape(queue, 24)
        self._clock = clock
        self._terminal = sys.stderr.isatty()
        self._started = self._phase_started = clock()
        self._next = self._started + (QUIET if self._terminal else LOG_EVERY)
        self._phase = ""
        self._bar: Any = None
        self._written = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def update(self, progress: Progress) -> None:
        """Take note; shows it when it is time to."""
        now = self._clock()
        if progress.phase != self._phase:
            self._phase, self._phase_started = progress.phase, now
        if now < self._next:
            return
        self._next = now + (REFRESH if self._terminal else LOG_EVERY)
        note = f"{progress.done / max(now - self._phase_started, 0.001):,.0f}/s"
        if progress.longest_call:
            note += f", longest call {span(progress.longest_call)}"
        if self._terminal:
            self._show(progress, note)
        else:
            say(f"{self._label}: {self._text(progress, note)}, {span(now - self._started)} so far")

    def _text(self, progress: Progress, note: str) -> str:
        return f"{_WORDS[progress.phase]}: {progress.done:,} of {progress.total:,} ({note})"

    def _show(self, progress: Progress, note: str) -> None:
        if self._bar is None and not self._written:
            self._bar = bar()
        if self._bar is None:
            sys.stderr.write(f"\r\x1b[K{self._label}: {self._text(progress, note)}")
            sys.stderr.flush()
            self._written = True
            return
        words = f"{self._label}: {_WORDS[progress.phase]}"
        self._bar.update(words, progress.done, progress.total, note)

    def close(self) -> None:
        """Take the line away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._written:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._written = False


class _Bar:
    """A bar by rich, one task."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self._bars = Bars(*columns, console=Console(stderr=True), transient=True, refresh_per_second=10)
        self._task: Any = None

    def update(self, words: str, done: int, total: int, note: str) -> None:
        if self._task is None:
            self._task = self._bars.add_task(words, completed=done, total=total, note=note)
            self._bars.start()
        self._bars.update(self._task, description=words, completed=done, total=total, note=note)

    def close(self) -> None:
        self._bars.stop()


def bar() -> Any:
    """A bar by rich; ``None`` where it is not installed (extra ``cli``)."""
    try:
        return _Bar()
    except ImportError:
        return None
