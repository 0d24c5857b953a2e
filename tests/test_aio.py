"""`AsyncSweeper`: the same sweeps, driven by asyncio. What a sweep does is tested through `Sweeper`; here it is the
driving: links, cancellation, the service loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import given, settings

from mqsweep import AsyncSweeper, ConfigurationError, Sweeper, SweepReport
from support import snapshot
from support.model import State
from support.servers import Server
from support.states import hostile, states
from support.ways import BASES, next_interval, told
from support.workers import EchoQueue

BASE = BASES["echomq"]
PATIENCE = 20.0
"""Seconds after which a test that waits has failed."""


def stall(client: redis.Redis, count: int) -> list[str]:
    """Jobs in active whose worker is dead; oldest first."""
    queue = EchoQueue(client, BASE)
    for number in range(count):
        queue.add(b"%d" % number)
        taken = queue.pick_up(b"doomed")
        assert taken is not None
        queue.lapse([taken])
    return [str(number) for number in range(count)]


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function, with a deadline."""
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_marks_then_recovers(server: Server, client: redis.Redis, engine: str) -> None:
    ids = stall(client, 50)

    async def main() -> list[SweepReport]:
        reports = []
        async with AsyncSweeper(server.url, "q", engine=engine) as sweeper:
            for _ in range(3):
                next_interval(client, BASE)
                reports.append(await sweeper.sweep())
            reports.append(await sweeper.sweep())
        return reports

    first, second, third, early = run(main)
    assert first.recovered == ()
    assert engine == "script" or first.marked == tuple(ids)
    assert second.recovered == tuple(ids)
    assert (third.status, third.stalled) == ("swept", ())
    assert early.status == "throttled"
    assert early.retry_after is not None


def test_leaves_and_says_what_the_blocking_sweeper_does(server: Server, client: redis.Redis, engine: str) -> None:
    """On random hostile queues; of the bullmq dialect, which writes no times that would differ."""
    base = BASES["bullmq"]
    options: dict[str, Any] = {"dialect": "bullmq", "engine": engine, "max_pause": 1.0}

    async def awaited() -> SweepReport:
        async with AsyncSweeper(server.url, "q", **options) as sweeper:
            return await sweeper.sweep()

    @settings(max_examples=100)
    @given(state=states(hostile))
    def check(state: State) -> None:
        outcomes = []
        for asynchronous in (False, True):
            client.flushdb()
            snapshot.write(client, base, state)
            if asynchronous:
                report = runner.run(awaited())
            else:
                with Sweeper(client, "q", **options) as blocking:
                    report = blocking.sweep()
            left = snapshot.settled(snapshot.dump(client, base))
            outcomes.append({**told(report), **{repr(name): value for name, value in left.items()}})
        snapshot.assert_same(*outcomes)

    with asyncio.Runner() as runner:
        check()


def test_inspect_and_exists(server: Server, client: redis.Redis) -> None:
    async def main() -> tuple[bool, bool, Any]:
        async with AsyncSweeper(server.url, "q") as sweeper:
            before = await sweeper.exists()
            stall(client, 3)
            return before, await sweeper.exists(), await sweeper.inspect()

    before, after, seen = run(main)
    assert (before, after) == (False, True)
    assert [job.id for job in seen.jobs] == ["0", "1", "2"]


def test_run_recovers_at_its_own_rate_and_gives_the_lease_back(server: Server, client: redis.Redis) -> None:
    ids = stall(client, 5)
    stop = asyncio.Event()
    reports: list[SweepReport] = []

    async def listen(report: SweepReport) -> None:
        reports.append(report)
        if report.recovered:
            stop.set()

    async def main() -> None:
        async with AsyncSweeper(server.url, "q", interval=0.2) as sweeper:
            await sweeper.run(stop, listen)

    run(main)
    assert reports[-1].recovered == tuple(ids)
    assert client.pttl(BASE + b":stalled-check") <= 200


def test_cancelled_sweep_leaves_a_sweeper_that_works(server: Server, client: redis.Redis) -> None:
    ids = stall(client, 200)

    async def main() -> SweepReport:
        client_side = redis.asyncio.Redis.from_url(server.url)
        async with AsyncSweeper(client_side, "q") as sweeper:
            for delay in range(12):
                task = asyncio.ensure_future(sweeper.sweep())
                for _ in range(delay):  # cancelled at its first, second, ... rest
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                next_interval(client, BASE)
            report = await sweeper.sweep()
            while report.status == "throttled":  # the server came late to what a cancelled sweep had sent
                next_interval(client, BASE)
                report = await sweeper.sweep()
        await client_side.aclose()
        return report

    report = run(main)
    assert report.status == "swept"
    left = [i.decode() for i in client.lrange(BASE + b":active", 0, -1)]
    waiting = [i.decode() for i in client.lrange(BASE + b":wait", 0, -1)]
    assert sorted(left + waiting) == sorted(ids)


def test_each_door_takes_its_own_kind_of_client(server: Server) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as other:
            with pytest.raises(ConfigurationError, match="AsyncSweeper"):
                Sweeper(other, "q")
        with redis.Redis.from_url(server.url) as blocking, pytest.raises(ConfigurationError, match="AsyncSweeper"):
            AsyncSweeper(blocking, "q")

    run(main)


def test_unreachable_server_is_the_clients_own_error() -> None:
    async def main() -> None:
        async with AsyncSweeper("redis://:secret@127.0.0.1:1/0", "q") as sweeper:
            with pytest.raises(redis.exceptions.ConnectionError) as caught:
                await sweeper.sweep()
            assert "secret" not in str(caught.value)

    run(main)
