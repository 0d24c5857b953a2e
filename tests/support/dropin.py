"""A worker of the ``bullmq`` package in this process, whose timer is not running: each stalled check is one call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from support.cases import Case

PATIENCE = 30.0
INTERVAL_MS = 300


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function, with a deadline."""
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


@asynccontextmanager
async def worker_of(connection: Any, queue: str = "q", **options: Any) -> AsyncIterator[Any]:
    """A worker whose timer is not running."""
    from bullmq import Worker

    async def process(job: Any, token: str) -> None:
        raise AssertionError("nothing is processed here")

    given = {"connection": connection, "stalledInterval": INTERVAL_MS, "autorun": False, **options}
    worker = Worker(queue, process, given)
    try:
        yield worker
    finally:
        await worker.close()


async def check(worker: Any) -> list[str]:
    """What the worker's timer does."""
    found: list[str] = await worker.backend.moveStalledJobsToWait(1, INTERVAL_MS)
    return found


async def next_check(case: Case, worker: Any) -> list[str]:
    """The check one interval later."""
    case.client.delete(case.key("stalled-check"))
    return await check(worker)


async def eventually(ready: Callable[[], bool]) -> None:
    """Poll with a deadline."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def is_ours(case: Case) -> bool:
    """Whether mqsweep holds the lease."""
    return (case.client.get(case.key("stalled-check")) or b"").startswith(b"mqsweep:")
