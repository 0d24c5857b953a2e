"""What the commands on queues share: a Sweeper for each, and what is known of it before it sweeps."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..connect import Link, Source
from ..dialects import base_of, dialect_of
from ..discover import command_for, look_alikes
from ..keys import QueueKeys, to_str
from ..sweep import Progress
from ..sweeper import Sweeper
from .faults import Exit
from .options import sweeper_options
from .output import escape, say
from .progress import Ticker


@dataclass
class Queue:
    """One queue that was named on the command line.

    Attributes:
        name: as it was given.
        dialect: whose queue.
        sweeper: for it.
        keys: where it lies.
        command: that it was named for.
        url: of the server.
        ticker: shows its progress, where somebody wants to see it.
    """

    name: str
    dialect: str
    sweeper: Sweeper
    keys: QueueKeys
    command: str
    url: str
    ticker: Ticker | None = field(default=None)

    def missing(self) -> bool:
        """Whether no key of it exists, which is then said on stderr.

        Raises:
            redis.exceptions.RedisError: faults of the connection.
        """
        if self.sweeper.exists():
            return False
        base = escape(to_str(self.keys.base), 200)
        say(
            f"{escape(self.name)}: no such queue: Redis has no key of {base}:* that a queue has; "
            "check the name, --dialect, --prefix and --no-hash-tag"
        )
        with linked(self.url) as link:
            for alike in self.alike(link):
                say(f"there is {alike}")
        return True

    def alike(self, link: Link) -> list[str]:
        """Queues that may have been meant, each with the command that names it."""
        found = look_alikes(link, self.keys, self.name)
        return [f"{escape(base, 200)}: mqsweep {self.command} {escape(command_for(base), 200)}" for base in found]

    def _progress(self, progress: Progress) -> None:
        if self.ticker is not None:
            self.ticker.update(progress)

    @contextlib.contextmanager
    def ticking(self) -> Iterator[None]:
        """Show the progress of what is done within."""
        with Ticker(self.name) as self.ticker:
            try:
                yield
            finally:
                self.ticker = None


@contextlib.contextmanager
def linked(url: str, timeout: float | None = None) -> Iterator[Link]:
    """A connection to the server, for commands.

    Args:
        url: of the server.
        timeout: seconds that a reply may take; ``None`` = 10.
    """
    source = Source(url, QueueKeys(b"mqsweep"), 10.0 if timeout is None else timeout)
    try:
        with Link(source) as link:
            yield link
    finally:
        source.client.close()


@contextlib.contextmanager
def opened(options: argparse.Namespace) -> Iterator[list[Queue]]:
    """The queues that were named; nothing is asked of Redis yet.

    Raises:
        ConfigurationError: an option or a name that cannot work.
    """
    given = sweeper_options(options)
    dialect = dialect_of(given.get("dialect", "echomq"))
    with contextlib.ExitStack() as stack:
        queues: list[Queue] = []
        for name in options.queues:
            slot: list[Queue] = []
            sweeper = Sweeper(options.url, name, **given, on_progress=_teller(slot))
            stack.callback(sweeper.close)
            keys = base_of(dialect, name, given.get("prefix"), given.get("hash_tag"))
            slot.append(Queue(name, dialect.name, sweeper, keys, options.command, options.url))
            queues += slot
        yield queues


def _teller(slot: list[Queue]) -> Callable[[Progress], None]:
    """Hands progress to the queue that will be in the slot by then."""
    return lambda progress: slot[0]._progress(progress)


def overall(codes: list[Exit]) -> Exit:
    """The exit code of a command on several queues: any failure, else busy if all were, else done."""
    if Exit.FAILED in codes:
        return Exit.FAILED
    return Exit.BUSY if codes and all(code is Exit.BUSY for code in codes) else Exit.DONE
