"""What workers do to a queue's `stalled-check`, as the server's MONITOR tells it."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.bullmq_worker import PATIENCE
from support.servers import Server

_END = "the-end"


class Watch:
    """Counts calls of BullMQ's stalled check, by the interval that they pass, and what its O(active) part does.

    That part reads the whole list of active jobs, from 0 to -1, in a script. Nothing else does: mqsweep reads windows,
    and from the tail.

    Args:
        server: to watch.
        base: of the queue.
    """

    def __init__(self, server: Server, base: str) -> None:
        self._base = base
        self._client = server.client()
        self._news = threading.Condition()
        self._heard: set[str] = set()
        self._ready = threading.Event()
        self.asked: Counter[str] = Counter()
        self.scans = 0
        self._reader = threading.Thread(target=self._read, args=(server.client(socket_timeout=None),), daemon=True)
        self._reader.start()
        assert self._ready.wait(PATIENCE)

    def _read(self, client: Any) -> None:
        with client.monitor() as monitor:
            self._ready.set()
            for seen in monitor.listen():
                with self._news:
                    words = seen["command"].split(" ")
                    self._take(seen["client_type"], words)
                    self._news.notify_all()
                    if words == ["ECHO", _END]:
                        return

    def _take(self, source: str, words: list[str]) -> None:
        command = words[0].upper()
        if command == "ECHO":
            self._heard.add(words[1])
        elif command in ("EVAL", "EVALSHA") and words[2] == "9" and words[6] == f"{self._base}stalled-check":
            self.asked[words[-1]] += 1
        elif source == "lua" and command == "LRANGE" and words[1:] == [f"{self._base}active", "0", "-1"]:
            self.scans += 1

    def _catch_up(self) -> None:
        """Wait until all that the server did before now has been seen."""
        word = uuid.uuid4().hex
        self._client.echo(word)
        with self._news:
            assert self._news.wait_for(lambda: word in self._heard, PATIENCE)

    def reset(self) -> None:
        """Count from now on."""
        self._catch_up()
        with self._news:
            self.asked.clear()
            self.scans = 0

    def until_asked(self, intervals: list[int], times: int) -> int:
        """Wait until the workers of these intervals have each asked so many times; how many scans there were meanwhile."""
        wanted = [str(interval) for interval in intervals]
        with self._news:
            assert self._news.wait_for(lambda: all(self.asked[i] >= times for i in wanted), PATIENCE), self.asked
        self._catch_up()
        return self.scans

    def until_scanned(self, patience: float) -> None:
        """Wait until there was one scan."""
        with self._news:
            assert self._news.wait_for(lambda: self.scans > 0, patience)

    def close(self) -> None:
        """End watching."""
        self._client.echo(_END)
        self._reader.join(PATIENCE)


@contextmanager
def watch_on(server: Server, base: str) -> Iterator[Watch]:
    """Watch for the length of a ``with`` block."""
    watch = Watch(server, base)
    try:
        yield watch
    finally:
        watch.close()
