"""A bystander: another client of the same server, a GET or a SET every millisecond, and how long each waited.

Beside it an idle worker, asleep on the marker as BullMQ's are: when could it take the first recovered job?

A process of its own: what the sweeper's interpreter does must not show as a wait. Lines of JSON come on stdin:
first ``{"url", "key", "marker"}``, then ``"start"`` and ``"read"`` in turn; each is answered with one line,
``"start"`` when the first command has been answered.

A command that was late kept those behind it waiting too, had they been sent on time: they are counted with what
was left of the wait (the correction for "coordinated omission"). So a freeze of a second is a thousand bad samples,
not one.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

from .meter import plain_client, say

PERIOD = 0.001


class Bystander:
    """One client, one key; and a worker that sleeps.

    Args:
        url: of the server.
        key: that is written and read.
        marker: key of the queue's marker.
    """

    def __init__(self, url: str, key: str, marker: str) -> None:
        # kept: a client that is collected closes its connections
        self._client = plain_client(url, "mqsweep-bench-bystander")
        pool: Any = self._client.connection_pool
        self._connection = pool.get_connection()
        commands = ("SET", key, "x" * 32), ("GET", key)
        self._packed: list[bytes] = [b"".join(self._connection.pack_commands([each])) for each in commands]
        self._waits: list[float] = []
        self._sleeper: Any = pool.get_connection()
        self._sleeper.send_command("BZPOPMIN", marker, 0)
        self._first: float | None = None

    def watch(self) -> None:
        """Go on until there is something to read on stdin; says so when it has begun."""
        waits = self._waits = list[float]()
        connection, packed, wakes = self._connection, self._packed, [sys.stdin, self._sleeper._sock]
        due = start = time.perf_counter()
        while True:
            began = time.perf_counter()
            connection.send_packed_command([packed[len(waits) % 2]], check_health=False)
            connection.read_response()
            now = time.perf_counter()
            waits.append(now - began)
            if len(waits) == 1:
                say("started")
            due = max(due + PERIOD, now)
            ready = select.select(wakes, [], [], due - now)[0]
            if self._sleeper._sock in ready:
                self._first = time.perf_counter() - start
                wakes.pop()
            if sys.stdin in ready:
                return

    def read(self) -> dict[str, Any]:
        """What the waits were, and when the worker was woken, in seconds."""
        samples = sorted(self._waits + list(missed(self._waits)))
        waits = {
            "commands": len(self._waits),
            "samples": len(samples),
            "p50": quantile(samples, 0.5),
            "p99": quantile(samples, 0.99),
            "p999": quantile(samples, 0.999),
            "worst": samples[-1],
        }
        return {"waits": waits, "first_job": self._first}


def missed(waits: list[float]) -> list[float]:
    """The waits of those that would have been sent meanwhile."""
    found = []
    for wait in waits:
        while wait > 2 * PERIOD:
            wait -= PERIOD
            found.append(wait)
    return found


def quantile(ordered: list[float], share: float) -> float:
    """The least of the samples that so large a share does not exceed."""
    index = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[max(0, min(len(ordered), index) - 1)]


def main() -> None:
    """Obey until stdin ends."""
    spec = json.loads(sys.stdin.readline())
    bystander = Bystander(spec["url"], spec["key"], spec["marker"])
    say("ready")
    while sys.stdin.readline():
        bystander.watch()
        sys.stdin.readline()
        say(bystander.read())


if __name__ == "__main__":
    main()
