"""What switches the stalled check of a worker off, for those who prefer that: in Node, and in Python."""

from __future__ import annotations

import asyncio

import pytest
import redis

from support.cases import commands, reset_commands
from support.dropin import eventually, run, worker_of
from support.fleet import Fleet, for_nodes
from support.servers import Server


@for_nodes
@pytest.mark.parametrize("server", ["redis"], indirect=True)
@pytest.mark.parametrize("skip", [False, True])
def test_skip_stalled_check_is_all_it_takes_to_switch_the_check_off(fleet: Fleet, package: str, skip: bool) -> None:
    """By the events of the keyspace: the key that every stalled check sets is never set."""
    fleet.client.config_set("notify-keyspace-events", "K$")
    try:
        with fleet.client.pubsub(ignore_subscribe_messages=True) as writes:
            writes.subscribe(f"__keyspace@0__:{fleet.key('stalled-check')}")
            writes.get_message(timeout=5)
            worker = fleet.hire(package, stalledInterval=20, skipStalledCheck=skip)
            program = fleet.control(package)
            # 20 jobs of 20 ms, one after the other: as many intervals
            program.add(20, {"ms": 20})
            worker.wait_for(lambda: worker.count("completed") == 20)
            message = writes.get_message(timeout=0.1)
            assert (message is None) is skip
    finally:
        fleet.client.config_set("notify-keyspace-events", "")


@pytest.mark.parametrize("server", ["redis"], indirect=True)
@pytest.mark.parametrize("off", [False, True])
def test_check_of_a_python_worker_is_off_when_its_method_does_nothing(
    server: Server, client: redis.Redis, off: bool
) -> None:
    """There is no option for it. By the server's count of SMEMBERS, with which the check begins."""
    pytest.importorskip("bullmq")
    ticks = 0

    async def nothing() -> None:
        nonlocal ticks
        ticks += 1

    async def main() -> None:
        async with worker_of(server.url, stalledInterval=20) as worker:
            if off:
                worker.runStalledJobsCheck = nothing
            reset_commands(client)
            running = asyncio.ensure_future(worker.run())
            await eventually(lambda: ticks >= 10 or commands(client).get("smembers", 0) > 0)
            await worker.close()
            await running

    run(main)
    assert (commands(client).get("smembers", 0) == 0) is off
