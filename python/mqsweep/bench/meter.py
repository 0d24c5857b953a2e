"""What a child process measures of itself: CPU, memory, and what goes over its sockets."""

from __future__ import annotations

import json
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def say(answer: object) -> None:
    """One line of JSON to whoever started this process."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def plain_client(url: str, name: str) -> redis.Redis:
    """A client that waits as long as it takes, never tries again by itself, and bears a name on the server."""
    return redis.Redis.from_url(
        url, client_name=name, socket_timeout=None, retry=Retry(NoBackoff(), 0), protocol=2, decode_responses=False
    )


class Traffic:
    """What went over all sockets of a client.

    Attributes:
        commands: requests that were sent.
        sent: bytes.
        received: bytes.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from here."""
        self.commands = self.sent = self.received = 0


class _Socket:
    """A socket that counts, for redis-py and for the scan alike; everything else is the socket's own."""

    def __init__(self, inner: socket.socket, traffic: Traffic) -> None:
        self._inner, self._traffic = inner, traffic
        for name in ("settimeout", "setblocking", "fileno", "close", "shutdown", "gettimeout"):
            setattr(self, name, getattr(inner, name))

    def sendall(self, data: Any) -> None:
        # A request begins with "*", and nothing else in what a contender sends has one: ids, names and tokens have
        # none, and scripts are loaded before the clock starts. So counting them is a memchr.
        self._traffic.commands += bytes(data).count(b"*")
        self._traffic.sent += len(data)
        self._inner.sendall(data)

    def recv(self, *args: Any) -> bytes:
        data = self._inner.recv(*args)
        self._traffic.received += len(data)
        return data

    def recv_into(self, *args: Any) -> int:
        count = self._inner.recv_into(*args)
        self._traffic.received += count
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def count_traffic(client: redis.Redis) -> Traffic:
    """Have everything counted that connections of this client's settings carry from now on."""
    traffic = Traffic()
    pool: Any = client.connection_pool
    base: Any = pool.connection_class

    class Counted(base):  # type: ignore[misc]
        def _connect(self) -> Any:
            return _Socket(super()._connect(), traffic)

    pool.connection_class = Counted
    return traffic


def measured(work: Callable[[], Any], traffic: Traffic) -> tuple[Any, dict[str, float]]:
    """Do the work, and say what it cost this process.

    Returns:
        The work's own result, and: ``seconds``, ``client_cpu`` (seconds, user and system, all threads),
        ``rss_growth`` (bytes, how far the peak rose above what the process had before), ``commands``, ``sent`` and
        ``received`` (bytes).
    """
    traffic.reset()
    memory = _reset_peak()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cost = {
        "seconds": seconds,
        "client_cpu": after.ru_utime - usage.ru_utime + after.ru_stime - usage.ru_stime,
        "rss_growth": max(0, _peak() - memory),
        "commands": traffic.commands,
        "sent": traffic.sent,
        "received": traffic.received,
    }
    return result, cost


def _reset_peak() -> int:
    """Bytes in memory now; where the system allows it the peak counts from here."""
    if not _CLEAR.exists():
        return _peak()
    _CLEAR.write_text("5")
    return _peak()


def _peak() -> int:
    """The most bytes that this process had in memory. Not ``ru_maxrss`` on Linux: it survives from the parent."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
