"""The stalled check that `mqsweep.bullmq` puts in a worker, call by call: when it steps aside, and the plain coroutine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
import redis

from mqsweep.bullmq import install, move_stalled_jobs_to_wait
from support.cases import Case
from support.dropin import INTERVAL_MS, is_ours, next_check, run, worker_of
from support.servers import Server, start_server

pytest.importorskip("bullmq")


@pytest.fixture
def case(client: redis.Redis) -> Case:
    """A BullMQ queue."""
    return Case(client, "python", "bullmq")


def refused(case: Case) -> None:
    case.client.zadd(case.key("groups"), {"g": 0})


def held(case: Case) -> None:
    case.client.hset(case.key("meta"), "paused", 1)
    for name in ("wait", "paused"):  # so that nobody can tell whose it is
        case.client.lpush(case.key(name), "w")


def broken(case: Case) -> None:
    case.client.set(case.key("failed"), "no sorted set")  # which BullMQ's own check does not look at


@pytest.mark.parametrize("state", [refused, held, broken])
def test_where_mqsweep_does_not_recover_the_original_does(
    server: Server, case: Case, state: Callable[[Case], None], caplog: pytest.LogCaptureFixture
) -> None:
    case.dead(b"1")
    state(case)

    async def main() -> list[str]:
        found: list[str] = []
        async with worker_of(server.url) as worker:
            install(worker)
            for _ in range(4):
                found += await next_check(case, worker)
                if state is not broken:
                    assert not is_ours(case)
        return found

    with caplog.at_level(logging.WARNING, "mqsweep"):
        assert run(main) == ["1"]
    assert case.wait() == [b"w"] * (state is held) + [b"1"]
    assert len([r for r in caplog.records if "BullMQ's own stalled check goes on" in r.message]) == 1


def test_where_mqsweep_cannot_connect_the_original_works(caplog: pytest.LogCaptureFixture) -> None:
    """The server's last connections are the worker's own."""
    with start_server("redis") as server:
        case = Case(server.client(), "python", "bullmq")
        case.dead(b"1")

        async def main() -> list[str]:
            async with worker_of(server.url) as worker:
                await worker.backend.waitUntilReady()
                case.client.config_set("maxclients", len(case.client.client_list()))
                install(worker)
                return [*await next_check(case, worker), *await next_check(case, worker)]

        assert run(main) == ["1"]


def test_cancelled_check_leaves_one_that_works(server: Server, case: Case) -> None:
    """Closing a worker cancels its timer, wherever its check is."""
    case.dead(*(b"%d" % n for n in range(200)))

    async def main() -> None:
        async with worker_of(server.url) as worker:
            install(worker)
            for turns in range(10):
                task = asyncio.ensure_future(next_check(case, worker))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            for _ in range(3):
                await next_check(case, worker)

    run(main)
    assert sorted(case.active() + case.wait()) == sorted(b"%d" % n for n in range(200))
    assert not case.active()


def test_plain_coroutine_is_one_check(server: Server, case: Case) -> None:
    """Of a worker, of one that mqsweep is installed in, of a queue, of a backend."""
    from bullmq import Queue

    async def main() -> None:
        queue = Queue("q", {"connection": server.url})
        async with worker_of(server.url) as worker, worker_of(server.url) as installed:
            install(installed)
            for number, subject in enumerate((worker, installed, queue, worker.backend)):
                case.dead(b"%d" % number)
                found = []
                for _ in range(2):
                    case.client.delete(case.key("stalled-check"))
                    found += await move_stalled_jobs_to_wait(subject, 1, INTERVAL_MS, mark="lockless")
                    assert is_ours(case)
                assert found == [str(number)]
        await queue.close()

    run(main)


def test_plain_coroutine_steps_aside_too(server: Server, case: Case) -> None:
    case.dead(b"1")
    refused(case)

    async def main() -> None:
        async with worker_of(server.url) as worker:
            await move_stalled_jobs_to_wait(worker, 1, INTERVAL_MS)
            assert case.client.get(case.key("stalled-check")).isdigit()

    run(main)
    assert case.marks() == {b"1"}
