"""Which reads pay: the server's own time for each way of looking at many active jobs. Writes docs/reads.md.

    python benches/reads.py                              a million jobs; about 20 minutes on two cores
    python benches/reads.py --jobs 100k --servers valkey --page /tmp/reads.md

Figures are the server's CPU time (INFO cpu, user + system), which a busy machine disturbs less than the clock on the
wall; the least of three. Where a way is shown by itself, the requests for about a thousand keys, or one window, go in
one write, and the next is sent when all of it has been answered.
"""

from __future__ import annotations

import argparse
import random
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from mqsweep import engine as engines
from mqsweep.bench.cases import number
from mqsweep.bench.environment import described, environment
from mqsweep.bench.stage import version_of
from support.servers import start_server

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reads.md"
BEGIN, END = "<!-- figures: written by benches/reads.py -->", "<!-- end of figures -->"
BASE = b"bull:q"
REPEAT = 3
SHARES = (0.001, 0.01, 0.1, 0.5, 1.0)
FIXED = (1, 3, 12, 25, 100)
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


SCAN: Any = engines.choose().scan


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

    def scan(self, size: int = 1 << 17, **how: Any) -> None:
        """A whole scan, as the product does it; so many bytes are read at once."""
        scan = SCAN(stalled=BASE + b":stalled", active=BASE + b":active", base=BASE + b":", **how)
        while not scan.done:
            self._socket.sendall(scan.outgoing())
            scan.feed(self._socket.recv(size))


Way = tuple[str, Callable[[], None]]


def cpu(client: Any, work: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the server's CPU, and on the wall, that some work takes."""
    before, began = client.info("cpu"), time.perf_counter()
    work()
    wall, after = time.perf_counter() - began, client.info("cpu")
    return sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys")), wall


def least(client: Any, ways: Iterable[Way]) -> list[tuple[float, float]]:
    """The same of each, the least of a few times; they take turns, so that a busy moment hits all alike."""
    return [min(found) for found in zip(*([cpu(client, work) for _, work in ways] for _ in range(REPEAT)), strict=True)]


def ways(wire: Wire, ids: list[bytes]) -> list[Way]:
    """All that is compared where every lock is alive."""
    found: list[Way] = []
    for n in (1, 10, 50, 100, 200, 500):
        found.append((f"`EXISTS`, {n} keys each", lambda n=n: wire.all(locks(b"EXISTS", ids, n))))
    for n in (1, 100):
        found.append((f"`MGET`, {n} keys each", lambda n=n: wire.all(locks(b"MGET", ids, n))))
    for n in (100, 400, 1000, 5000):
        found.append((f"`LRANGE`, windows of {n:,}", lambda n=n: wire.all(windows(len(ids), n))))
    for n in (200, 400, 1000, 2000):
        found.append((f"scan, three windows of {n:,}", lambda n=n: wire.scan(window=3 * n)))
    for n in (50, 200):
        found.append((f"scan, checks of {n}", lambda n=n: wire.scan(check=n)))
    for n in (1, 2, 3, 6, 30):
        found.append((f"scan, {n} windows of 400 ahead", lambda n=n: wire.scan(window=400 * n, depth=n)))
    for n in (14, 16, 17, 20):
        found.append((f"scan, {1 << n - 10:,} KB read at once", lambda n=n: wire.scan(size=1 << n)))
    return found


def fixed(ids: list[bytes], dead: set[bytes], size: int) -> list[bytes]:
    """Checks of one size, and one per key where one comes back mixed; the answers are known beforehand."""
    mixed = [part for part in batches(ids, size) if 0 < len(dead.intersection(part)) < len(part)]
    again = [job_id for part in mixed for job_id in part] if size > 1 else []
    return [*locks(b"EXISTS", ids, size), *locks(b"EXISTS", again, 1)]


def measure(kind: str, jobs: int, ids_are: str) -> Iterator[str]:
    """All ways on one server and one kind of ids, as lines of the page."""
    chance = random.Random(1)
    ids = [
        b"%d" % (n + 1) if ids_are == "int" else str(uuid.UUID(int=chance.getrandbits(128))).encode()
        for n in range(jobs)
    ]
    with start_server(kind) as server, server.client(socket_timeout=None) as client:
        fill = client.register_script(FILL)
        for part in batches(ids, 5000):
            fill(keys=[BASE], args=part)
        wire, name = Wire(server.socket), version_of(client)
        yield from ("", f"### {name}, {jobs:,} {ids_are} ids, all locks alive", "")
        yield from ("| read | server CPU | wall |", "|---|---:|---:|")
        tried = ways(wire, ids)
        for (title, _), (spent, wall) in zip(tried, least(client, tried), strict=True):
            yield f"| {title} | {spent:.3g} s | {wall:.3g} s |"
        yield from ("", f"### {name}, {jobs:,} {ids_are} ids, some dead: server CPU", "")
        titles = [*(f"checks of {n}" for n in FIXED), "the scan"]
        yield from (f"| dead | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles))
        for share in SHARES:
            dead = set(ids[:: round(1 / share)])
            for part in batches(sorted(dead), 1000):
                client.delete(*(BASE + b":" + i + b":lock" for i in part))
            asks = [[*windows(jobs, 400), *fixed(ids, dead, n)] for n in FIXED]
            tried = [
                *((title, lambda a=a: wire.all(a)) for title, a in zip(titles, asks, strict=False)),
                ("", wire.scan),
            ]
            found = [spent for spent, _ in least(client, tried)]
            yield f"| {share:.1%} | " + " | ".join(f"{spent:.3g} s" for spent in found) + " |"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="1m")
    parser.add_argument("--servers", default="redis,valkey")
    parser.add_argument("--ids", default="int,uuid")
    parser.add_argument("--page", type=Path, default=PAGE, help="whose figures are written (%(default)s)")
    options = parser.parse_args()
    page = options.page.read_text("utf-8") if options.page.exists() else f"{BEGIN}{END}\n"
    if BEGIN not in page or END not in page:
        raise SystemExit(f"{options.page.name} lacks the lines between which its figures go: {BEGIN} ... {END}")
    lines = [f"* {line}" for line in described(environment())]
    for kind in options.servers.split(","):
        for ids_are in options.ids.split(","):
            for line in measure(kind, number(options.jobs), ids_are):
                lines.append(line)
                print(line, flush=True)
    figures = "\n".join([BEGIN, "", *lines, "", END])
    written = re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: figures, page, flags=re.DOTALL)
    options.page.write_text(written, "utf-8")


if __name__ == "__main__":
    main()
