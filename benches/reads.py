"""Which reads pay: the server's own time for each way of looking at a million active jobs.

    python benches/reads.py [--jobs 1000000] [--servers redis,valkey] > docs/reads-results.md

One raw connection, one request in flight per step so that the client costs the server nothing but its work; figures
are the server's CPU time (INFO cpu, user + system), which a busy machine disturbs less than the clock on the wall.
"""

from __future__ import annotations

import argparse
import platform
import random
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from mqsweep.scan import Scan
from support.servers import start_server

BASE = b"bull:q"
FILL = """
for i = 1, #ARGV do
  redis.call('LPUSH', KEYS[1] .. ':active', ARGV[i])
  redis.call('SET', KEYS[1] .. ':' .. ARGV[i] .. ':lock', '0123456789abcdef0123456789abcdef:1', 'PX', 100000000)
end
"""


def packed(*parts: bytes) -> bytes:
    """A command as it goes over the wire."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def batches(ids: list[bytes], size: int) -> Iterator[list[bytes]]:
    """The ids, so many at a time."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def locks(command: bytes, ids: list[bytes], size: int) -> Iterator[bytes]:
    """Lock checks by a many-key command, ten of them in one write."""
    asks = (packed(command, *(BASE + b":" + i + b":lock" for i in part)) for part in batches(ids, size))
    return grouped(asks, max(1, 1000 // size))


def windows(length: int, width: int) -> Iterator[bytes]:
    """The walk of active alone."""
    starts = range(length, 0, -width)
    return grouped(
        (packed(b"LRANGE", BASE + b":active", b"-%d" % c, b"-%d" % max(1, c - width + 1)) for c in starts), 1
    )


def grouped(commands: Iterable[bytes], count: int) -> Iterator[bytes]:
    """So many commands in one write."""
    some: list[bytes] = []
    for command in commands:
        some.append(command)
        if len(some) == count:
            yield b"".join(some)
            some = []
    if some:
        yield b"".join(some)


class Wire:
    """A raw connection that sends requests and waits for the last reply of each."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)

    def all(self, requests: Iterable[bytes]) -> None:
        """Send them one after the other; a PING marks each one's end."""
        end = b"+PONG\r\n"
        for request in requests:
            self._socket.sendall(request + packed(b"PING"))
            tail = b""
            while not tail.endswith(end):
                tail = (tail + self._socket.recv(1 << 20))[-len(end) :]

    def scan(self, **how: Any) -> None:
        """A whole scan, as the product does it."""
        scan = Scan(stalled=BASE + b":stalled", active=BASE + b":active", base=BASE + b":", **how)
        while not scan.done:
            self._socket.sendall(scan.outgoing())
            scan.feed(self._socket.recv(1 << 17))


def cpu(client: Any, work: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the server's CPU, and on the wall, that some work takes."""
    before, began = client.info("cpu"), time.perf_counter()
    work()
    wall, after = time.perf_counter() - began, client.info("cpu")
    return sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys")), wall


def measure(kind: str, jobs: int, ids_are: str) -> None:
    """All ways on one server and one kind of ids, printed as a table."""
    chance = random.Random(1)
    ids = [
        b"%d" % (n + 1) if ids_are == "int" else str(uuid.UUID(int=chance.getrandbits(128))).encode()
        for n in range(jobs)
    ]
    with start_server(kind) as server, server.client(socket_timeout=None) as client:
        fill = client.register_script(FILL)
        for part in batches(ids, 5000):
            fill(keys=[BASE], args=part)
        version = client.info("server")
        name = (
            f"Valkey {version['valkey_version']}"
            if "valkey_version" in version
            else f"Redis {version['redis_version']}"
        )
        wire = Wire(server.socket)
        print(f"\n### {name}, {jobs:,} {ids_are} ids, all locks alive\n\n| read | server CPU | wall |\n|---|---|---|")
        ways: list[tuple[str, Callable[[], None]]] = [
            *((f"`EXISTS`, {n} keys each", lambda n=n: wire.all(locks(b"EXISTS", ids, n))) for n in (1, 10, 50, 100, 200, 500)),
            ("`MGET`, 100 keys each", lambda: wire.all(locks(b"MGET", ids, 100))),
            *((f"`LRANGE`, windows of {n}", lambda n=n: wire.all(windows(jobs, n))) for n in (100, 500, 1000, 5000)),
            *((f"whole scan, window {w}, check {c}", lambda w=w, c=c: wire.scan(window=w, check=c))
              for w, c in ((500, 100), (1000, 50), (1000, 100), (1000, 200), (2000, 100))),
            *((f"whole scan, {d} windows ahead", lambda d=d: wire.scan(depth=d)) for d in (1, 2, 3, 6)),
        ]  # fmt: skip
        for title, work in ways:
            best = min(cpu(client, work) for _ in range(3))
            print(f"| {title} | {best[0]:.2f} s | {best[1]:.2f} s |", flush=True)
        print(
            f"\n### {name}, {jobs:,} {ids_are} ids, some dead: whole scan\n\n| dead | server CPU | wall |\n|---|---|---|"
        )
        gone = 0
        for share in (0.001, 0.01, 0.1, 0.5, 1.0):
            dead = ids[:: round(1 / share)] if share < 1 else ids
            for part in batches(dead, 1000):
                client.delete(*(BASE + b":" + i + b":lock" for i in part))
            gone = len(dead)
            best = min(cpu(client, wire.scan) for _ in range(3))
            print(f"| {gone:,} ({share:.1%}) | {best[0]:.2f} s | {best[1]:.2f} s |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--servers", default="redis,valkey")
    parser.add_argument("--ids", default="int,uuid")
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.platform()}, Python {platform.python_version()}, best of 3")
    for kind in options.servers.split(","):
        for ids_are in options.ids.split(","):
            measure(kind, options.jobs, ids_are)


if __name__ == "__main__":
    main()
