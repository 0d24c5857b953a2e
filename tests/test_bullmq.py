"""Real workers of the ``bullmq`` package, in processes of their own: beside mqsweep, and with mqsweep inside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from mqsweep import Sweeper, SweepReport
from support.bullmq_worker import PATIENCE, WorkerProcess, workers
from support.cases import commands, reset_commands
from support.servers import Server

Start = Callable[..., WorkerProcess]

pytest.importorskip("bullmq")

QUEUE = "q"
STALLS = "job stalled more than allowable limit"
FAR = 600_000
"""Milliseconds: a stalled check that is not going to happen."""


@pytest.fixture
def start(server: Server) -> Iterator[Start]:
    """Starts workers."""
    with workers(server.url, QUEUE) as start:
        yield start


def run(main: Awaitable[Any]) -> Any:
    """Run a coroutine, with a deadline."""

    async def limited() -> Any:
        return await asyncio.wait_for(main, PATIENCE)

    return asyncio.run(limited())


def add(server: Server, count: int) -> list[str]:
    """Put jobs into the queue with BullMQ's own ``Queue``; returns their ids, oldest first."""
    from bullmq import Queue

    async def main() -> list[str]:
        queue = Queue(QUEUE, {"connection": server.url})
        jobs = await queue.addBulk([{"name": "paint", "data": {"n": n}} for n in range(count)])
        await queue.close()
        return [job.id for job in jobs]

    ids: list[str] = run(main())
    return ids


def die_with(start: Start, count: int, **options: Any) -> list[str]:
    """A worker takes so many jobs and is killed."""
    doomed = start("hang", concurrency=count, stalledInterval=FAR, **options)
    doomed.wait_for(lambda: doomed.count("active") == count)
    doomed.kill()
    return doomed.ids("active")


@contextmanager
def running(server: Server, **options: Any) -> Iterator[list[SweepReport]]:
    """``Sweeper.run`` in a thread, with its reports."""
    stop, reports = threading.Event(), list[SweepReport]()
    faults: list[BaseException] = []
    with Sweeper(server.url, QUEUE, **{"dialect": "bullmq", "interval": 0.3, **options}) as sweeper:

        def target() -> None:
            try:
                sweeper.run(stop, reports.append)
            except BaseException as fault:
                faults.append(fault)

        thread = threading.Thread(target=target)
        thread.start()
        try:
            yield reports
        finally:
            stop.set()
            thread.join(PATIENCE)
    assert not faults, faults


def field(client: Any, job_id: str, name: str) -> bytes | None:
    """A field of a job."""
    value: bytes | None = client.hget(f"bull:{QUEUE}:{job_id}", name)
    return value


def completed(client: Any) -> set[str]:
    """The jobs that were completed."""
    return {i.decode() for i in client.zrange(f"bull:{QUEUE}:completed", 0, -1)}


@pytest.mark.parametrize("options", [{}, {"mark": "active"}, {"engine": "python"}, {"engine": "script"}])
def test_worker_with_mqsweep_inside_does_the_jobs_of_a_killed_one(
    server: Server, client: redis.Redis, start: Start, options: dict[str, Any]
) -> None:
    ids = add(server, 30)
    dead = die_with(start, 10)
    second = start("finish", options, concurrency=3)
    second.wait_for(lambda: second.count("completed") == len(ids))
    assert completed(client) == set(ids)
    assert sorted(second.ids("completed")) == sorted(ids)  # each once
    assert sorted(second.ids("stalled")) == sorted(dead)
    assert [field(client, i, "stc") for i in dead] == [b"1"] * len(dead)
    assert not any(field(client, i, "stc") for i in set(ids) - set(dead))
    assert not client.exists(f"bull:{QUEUE}:active")
    assert not client.exists(f"bull:{QUEUE}:wait")
    assert second.close() == 0
    assert "error" not in {event["event"] for event in second.events}


def test_job_past_the_ceiling_fails_as_bullmq_fails_it(server: Server, client: redis.Redis, start: Start) -> None:
    add(server, 3)
    dead = die_with(start, 3)
    second = start("finish", {}, maxStalledCount=0)
    second.wait_for(lambda: second.count("failed") == len(dead))
    assert {event["reason"] for event in second.events if event["event"] == "failed"} == {STALLS}
    assert [field(client, i, "failedReason") for i in dead] == [STALLS.encode()] * len(dead)
    assert sorted(second.ids("stalled")) == sorted(dead)
    assert not completed(client)


def test_living_workers_keep_their_jobs(server: Server, client: redis.Redis, start: Start) -> None:
    """A lock that is renewed all the time, swept by another worker at the shortest interval."""
    add(server, 5)
    holder = start("hang", {}, concurrency=5)
    other = start("finish", {"mark": "active"}, stalledInterval=100)
    holder.wait_for(lambda: holder.count("active") == 5 and other.count("checked") >= 20)
    assert not other.ids("stalled") + holder.ids("stalled")
    assert client.llen(f"bull:{QUEUE}:active") == 5


def test_service_beside_workers_that_know_nothing_of_it(server: Server, client: redis.Redis, start: Start) -> None:
    ids = add(server, 30)
    dead = die_with(start, 10)
    second = start("finish", stalledInterval=FAR)
    with running(server) as reports:
        second.wait_for(lambda: second.count("completed") == len(ids))
    recovered = [i for report in reports for i in report.recovered]
    assert sorted(recovered) == sorted(dead)
    assert completed(client) == set(ids)


def test_workers_own_checks_do_nothing_while_the_service_holds_the_lease(
    server: Server, client: redis.Redis, start: Start
) -> None:
    """By the server's count of SMEMBERS, with which BullMQ's check begins and which mqsweep never sends."""
    crew = [start("finish", stalledInterval=50) for _ in range(2)]

    def ticks() -> int:
        return sum(worker.count("checked") for worker in crew)

    def smembers_in(some: int) -> int:
        before = ticks()
        reset_commands(client)
        crew[0].wait_for(lambda: ticks() >= before + some)
        return commands(client).get("smembers", 0)

    assert smembers_in(10) > 0
    with running(server, interval=1.0) as reports:
        crew[0].wait_for(lambda: any(report.status == "swept" for report in reports))
        assert smembers_in(40) == 0
        add(server, 20)
        crew[0].wait_for(lambda: sum(worker.count("completed") for worker in crew) == 20)
    crew[0].wait_for(lambda: commands(client).get("smembers", 0) > 0)  # and they take over when it is gone


@pytest.mark.parametrize("concurrency", [None, 1])
def test_worker_blocked_on_the_marker_wakes(
    server: Server, client: redis.Redis, start: Start, concurrency: int | None
) -> None:
    """Also where meta.concurrency was reached by the dead job alone."""
    ids = add(server, 2 if concurrency else 1)
    if concurrency:
        client.hset(f"bull:{QUEUE}:meta", "concurrency", concurrency)
    die_with(start, 1)
    idle = start("finish", stalledInterval=FAR, drainDelay=120)
    idle.wait_for(lambda: any(c["cmd"] == "bzpopmin" for c in client.client_list()))
    assert idle.count("active") == 0
    with running(server):
        idle.wait_for(lambda: idle.count("completed") == len(ids))


def test_service_and_workers_with_mqsweep_inside_get_along(server: Server, client: redis.Redis, start: Start) -> None:
    ids = add(server, 40)
    dead = die_with(start, 10)
    crew = [start("finish", {}), start("finish", {"mark": "active"}), start("finish")]
    with running(server):
        crew[0].wait_for(lambda: sum(worker.count("completed") for worker in crew) == len(ids))
    assert completed(client) == set(ids)
    assert [field(client, i, "stc") for i in dead] == [b"1"] * len(dead)
