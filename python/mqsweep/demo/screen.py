"""What the demo shows: a heading and a few lines per act, and one changing line while something takes time."""

from __future__ import annotations

import os
import time
from typing import TextIO

MARGIN = 16
REFRESH = 0.1
_BOLD, _GREEN, _RED, _DIM, _PLAIN = "\x1b[1m", "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[0m"


class Screen:
    """Writes to two streams: the story to one, what changes to the other.

    Args:
        story: where the lines go that stay.
        live: where the changing line goes; nothing is written there unless it is a terminal.
    """

    def __init__(self, story: TextIO, live: TextIO) -> None:
        self._story, self._live = story, live
        self._colours = story.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._moving = live.isatty() and os.environ.get("TERM") != "dumb"
        self._act = 0
        self._next = 0.0
        self._shown = False

    def act(self, title: str, line: str) -> None:
        """Begin an act with its first line."""
        self._act += 1
        heading = f"{self._act} {title}"
        self._write(self._style(heading.ljust(MARGIN), _BOLD) + line)

    def line(self, text: str, aside: str = "") -> None:
        """Another line of the act, with a word in the margin."""
        self._write((self._style(f"  {aside}".ljust(MARGIN), _DIM) + text).rstrip())

    def title(self, text: str) -> None:
        """A line without a margin."""
        self._write(self._style(text, _BOLD))

    def quote(self, text: str) -> None:
        """A line that is not ours."""
        self._write(self._style(f"  | {text}", _DIM))

    def verdict(self, text: str, good: bool) -> None:
        """The last line."""
        self._write(" " * MARGIN + self._style(text, _GREEN if good else _RED))

    def live(self, text: str, *, now: bool = False) -> None:
        """What is going on now, until something else is written.

        Args:
            text: the line.
            now: show it even if the last one is a moment old only.
        """
        moment = time.monotonic()
        if not self._moving or (moment < self._next and not now):
            return
        self._next = moment + REFRESH
        self._shown = True
        self._live.write(f"\r\x1b[K{' ' * MARGIN}{text}")
        self._live.flush()

    def clear(self) -> None:
        """Take the changing line away."""
        if self._shown:
            self._live.write("\r\x1b[K")
            self._live.flush()
            self._shown = False

    def _write(self, text: str) -> None:
        self.clear()
        self._story.write(text + "\n")
        self._story.flush()

    def _style(self, text: str, style: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._colours else text
