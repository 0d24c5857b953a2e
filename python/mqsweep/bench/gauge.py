"""What the server says of a run: CPU, memory, and the commands that took long."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

THRESHOLD = 200
"""Microseconds: shorter commands are not logged, since logging itself takes a part of a microsecond per argument."""
LOGGED = 200_000
_SETTINGS = {"slowlog-log-slower-than": THRESHOLD, "slowlog-max-len": LOGGED}


@dataclass
class Reading:
    """What the server did between two moments.

    Attributes:
        cpu: seconds, user and system.
        memory: bytes that its data grew by.
        executed: commands, those that scripts ran and those of other clients included.
        slow: seconds of each logged command of the contender; ``None`` where the log may not be read.
    """

    cpu: float = 0.0
    memory: int = 0
    executed: int = 0
    slow: list[float] | None = None

    def longest(self, commands: int) -> tuple[float | None, float | None]:
        """The 99.9th percentile and the longest of the contender's commands, in seconds.

        What is not in the log took `THRESHOLD` at most, and is given as that.
        """
        if self.slow is None:
            return None, None
        ordered = sorted(self.slow, reverse=True)
        rank = commands - math.ceil(0.999 * commands)  # how many may be longer
        floor = THRESHOLD / 1e6
        return (ordered[rank] if rank < len(ordered) else floor), (ordered[0] if ordered else floor)


class Gauge:
    """Reads one server.

    Args:
        client: of the server; nothing else may use it between `start` and `stop`.
        subject: the name that the contender's connections bear.
    """

    def __init__(self, client: redis.Redis, subject: str) -> None:
        self._client: Any = client
        self._subject = subject.encode()
        self._logs = False
        self._newest = -1
        self._before: dict[str, Any] = {}

    @contextlib.contextmanager
    def set_up(self) -> Iterator[None]:
        """Have the server log what takes long, and set it back as it was."""
        before: dict[str, Any] = {}
        try:
            before = {name: self._client.config_get(name)[name] for name in _SETTINGS}
            for name, value in _SETTINGS.items():
                self._client.config_set(name, value)
            self._logs = True
        except (redis.ResponseError, KeyError):
            self._logs = False  # a managed server: all but the longest commands can be had
        try:
            yield
        finally:
            with contextlib.suppress(redis.RedisError):
                for name, value in before.items():
                    self._client.config_set(name, value)

    def start(self) -> None:
        """Measure from here."""
        self._newest = max((entry[0] for entry in self._log(1)), default=-1)
        self._before = self._client.info()

    def stop(self) -> Reading:
        """What has been done since `start`."""
        after, before = self._client.info(), self._before
        cpu = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
        memory = after["used_memory"] - before["used_memory"]
        executed = after["total_commands_processed"] - before["total_commands_processed"] - 1  # the first INFO
        return Reading(cpu, memory, executed, self._slow() if self._logs else None)

    def _slow(self) -> list[float]:
        return [entry[2] / 1e6 for entry in self._log(LOGGED) if entry[0] > self._newest and entry[5] == self._subject]

    def _log(self, count: int) -> list[Any]:
        """Entries, the newest first: id, when, microseconds, arguments, address, name of the client."""
        if not self._logs:
            return []
        connection = self._client.connection_pool.get_connection()
        try:  # the client's own method leaves the name out
            connection.send_command("SLOWLOG", "GET", count)
            return list(connection.read_response())
        finally:
            self._client.connection_pool.release(connection)
