"""Scans in threads: each its own runs beside the others; one in two threads at once is refused."""

from __future__ import annotations

import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from mqsweep import Sweeper
from support.cases import Case
from support.servers import Server
from support.twins import TWINS, twin

QUEUES = 4
JOBS = 8_000


def look(module: Any, server: Server, number: int) -> tuple[list[Any], list[bytes], int]:
    """What a scan of one of the queues saw, over a connection of its own."""
    base = b"bull:q%d" % number
    scan = module.Scan(stalled=base + b":stalled", active=base + b":active", base=base + b":")
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(20)
        wire.connect(server.socket)
        while not scan.done:
            wire.sendall(scan.outgoing())
            scan.feed(wire.recv(1 << 17))
    seen = scan.sightings()
    return list(seen.stalled), list(seen.locked_marks), seen.active_scanned


def fill(client: redis.Redis) -> None:
    """Queues of different shares of dead jobs, some of them marked."""
    for number in range(QUEUES):
        case = Case(client, "python", "bullmq")
        case.base = b"bull:q%d" % number
        ids = [b"%d-%d" % (number, place) for place in range(JOBS)]
        case.dead(*ids)
        case.lock(*(job_id for place, job_id in enumerate(ids) if place % (2 + 7 * number)))
        client.sadd(case.key("stalled"), *ids[::5])


@pytest.mark.parametrize("name", TWINS)
def test_scans_in_threads_see_what_each_sees_alone(name: str, client: redis.Redis, server: Server) -> None:
    module = twin(name)
    fill(client)
    alone = [look(module, server, number) for number in range(QUEUES)]
    assert len({len(stalled) for stalled, _, _ in alone}) == QUEUES
    with ThreadPoolExecutor(QUEUES) as pool:
        for _ in range(2):
            assert list(pool.map(lambda number: look(module, server, number), range(QUEUES))) == alone


def test_sweepers_in_threads(client: redis.Redis, server: Server) -> None:
    """Blocking doors over one client: each has connections of its own."""
    fill(client)

    def recovered(number: int) -> int:
        with Sweeper(client, f"q{number}", dialect="bullmq") as sweeper:
            return len(sweeper.sweep().recovered)

    with ThreadPoolExecutor(QUEUES) as pool:
        counts = list(pool.map(recovered, range(QUEUES)))
    assert counts == [sum(p % 5 == 0 for p in range(0, JOBS, 2 + 7 * number)) for number in range(QUEUES)]


def test_scan_used_from_two_threads_at_once_is_refused_and_goes_on(usable: Any) -> None:
    """The interpreter is released while a large chunk is parsed: others may come then, and must be told."""
    usable("rust")
    count = 400_000
    marks = b"*2\r\n$1\r\n0\r\n*%d\r\n" % count + b"".join(b"$6\r\n%06d\r\n" % number for number in range(count))
    scan = twin("rust").Scan(stalled=b"s", active=b"a", base=b"b:")
    started = threading.Event()

    def feed() -> None:
        started.set()
        scan.feed(marks)

    feeder = threading.Thread(target=feed)
    complaints: list[str] = []
    feeder.start()
    started.wait(20)
    while feeder.is_alive() and not complaints:
        for use in (scan.outgoing, scan.sightings, lambda: scan.feed(b""), lambda: scan.done):
            try:
                use()
            except RuntimeError as error:
                if "not done" not in str(error):
                    complaints.append(str(error))
    feeder.join(20)
    assert set(complaints) == {"a scan is used from two threads at once"}
    assert scan.stalled_scanned == count
    assert scan.outgoing().count(b"EXISTS") == count / 100
    assert not scan.done


def test_native_core_does_not_bring_the_interpreter_lock_back(usable: Any) -> None:
    """On a free-threaded interpreter a module that does not declare itself safe does."""
    usable("rust")
    is_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    if is_enabled() and "free-threading" not in sys.version:
        pytest.skip("this interpreter has the lock always")
    twin("rust")
    assert not is_enabled()
