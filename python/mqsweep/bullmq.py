"""The drop-in for BullMQ's Python workers: their own timer calls mqsweep instead of the built-in stalled check.

    worker = Worker("emails", process)
    undo = install(worker)

Options, pacing and ``stalled`` events stay the worker's. Where mqsweep refuses or holds the queue, the original is
called, as if nothing had been installed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from .aio import AsyncSweeper
from .errors import ConfigurationError, MQSweepError
from .report import SweepReport

log = logging.getLogger("mqsweep")

Check = Callable[[int, int], Awaitable[list[str]]]
Undo = Callable[[], Awaitable[None]]

_WORKERS = ("dialect", "prefix", "hash_tag", "interval", "max_stalled_count")
"""Options that are the worker's to set."""


def install(worker: Any, **options: Any) -> Undo:
    """Let a worker's stalled check be done by mqsweep.

    Args:
        worker: a ``bullmq.Worker`` on Redis, running or not.
        options: as for `mqsweep.Sweeper`, but for what the worker itself sets: queue, prefix, interval
            (``stalledInterval``) and ``max_stalled_count`` (``maxStalledCount``). ``interval`` follows what the
            worker's timer says at each call.

    Returns:
        A coroutine function that puts the original back and closes our connections. It can be awaited twice.

    Raises:
        ConfigurationError: no such worker, mqsweep is installed in it already, or an option that cannot work.
    """
    backend = _backend_of(worker)
    original: Check = backend.moveStalledJobsToWait
    if isinstance(getattr(original, "__self__", None), _Swept):
        raise ConfigurationError("mqsweep is installed in this worker already; await what install() returned first")
    had_own = "moveStalledJobsToWait" in vars(backend)
    swept = _Swept(backend, original, options)
    backend.moveStalledJobsToWait = swept.check

    async def undo() -> None:
        if getattr(backend.moveStalledJobsToWait, "__self__", None) is swept:
            if had_own:
                backend.moveStalledJobsToWait = original
            else:
                del backend.moveStalledJobsToWait
        await swept.close()

    return undo


async def move_stalled_jobs_to_wait(
    worker: Any, max_stalled_count: int, stalled_interval_ms: int, **options: Any
) -> list[str]:
    """One stalled check of a worker's queue.

    Args:
        worker: a ``bullmq.Worker`` or ``bullmq.Queue`` on Redis.
        max_stalled_count: how many stalls a job survives.
        stalled_interval_ms: milliseconds for which no other check shall start.
        options: as for `install`.

    Returns:
        The ids of the stalled jobs that left active, whether they run again or fail.

    Raises:
        ConfigurationError: no such worker, or an option that cannot work.
        MQSweepError: the queue must not be touched.
        redis.exceptions.RedisError: faults of the connection and refusals of the server.
    """
    backend = _backend_of(worker)
    async with _sweeper(backend, max_stalled_count, stalled_interval_ms, options) as sweeper:
        return list((await sweeper.sweep()).stalled)


def _backend_of(worker: Any) -> Any:
    """The Redis backend of a worker.

    Raises:
        ConfigurationError: it has none.
    """
    backend = getattr(worker, "backend", None)
    if backend is None or not callable(getattr(backend, "moveStalledJobsToWait", None)):
        raise ConfigurationError(
            f"worker={type(worker).__name__}: must be a bullmq.Worker; its backend has no moveStalledJobsToWait"
        )
    if not hasattr(getattr(backend, "conn", None), "connection_pool") and not hasattr(
        getattr(backend, "conn", None), "get_node_from_key"
    ):
        raise ConfigurationError(
            f"worker={type(worker).__name__}: its backend, {type(backend).__name__}, is not on Redis"
        )
    return backend


def _sweeper(backend: Any, max_stalled_count: int, interval_ms: int, options: dict[str, Any]) -> AsyncSweeper:
    wrong = [name for name in _WORKERS if name in options]
    if wrong:
        raise ConfigurationError(f"{wrong[0]}={options[wrong[0]]!r}: the worker's own options say this; set it there")
    return AsyncSweeper(
        backend.conn,
        backend.name,
        dialect="bullmq",
        prefix=backend.prefix,
        interval=interval_ms / 1000,
        max_stalled_count=max_stalled_count,
        **options,
    )


class _Swept:
    """What stands in a backend's place of the built-in check.

    Args:
        backend: the worker's backend.
        original: its own check.
        options: of the sweeper.
    """

    def __init__(self, backend: Any, original: Check, options: dict[str, Any]) -> None:
        self._backend = backend
        self._original = original
        self._options = options
        self._asked = (1, 30_000)
        self._sweeper = _sweeper(backend, *self._asked, options)  # options that cannot work fail at once
        self._complained = ""
        self._aside = False

    async def check(self, max_stalled_count: int, stalled_interval: int) -> list[str]:
        """The stalled check, with the arguments and the answer of the one that it replaces."""
        if self._asked != (max_stalled_count, stalled_interval):
            await self._sweeper.close()
            self._sweeper = _sweeper(self._backend, max_stalled_count, stalled_interval, self._options)
            self._asked = (max_stalled_count, stalled_interval)
        if self._aside:
            self._aside = False
            return list(await self._original(max_stalled_count, stalled_interval))
        try:
            report = await self._sweeper.sweep()
        except MQSweepError as fault:
            return await self._instead(str(fault), max_stalled_count, stalled_interval)
        if report.status == "held":
            return await self._instead(_held(report), max_stalled_count, stalled_interval)
        self._complained = ""
        return list(report.stalled)

    async def _instead(self, why: str, max_stalled_count: int, stalled_interval: int) -> list[str]:
        """Where mqsweep does not recover it does not stand in the way of what does.

        A sweep that came far enough to take the lease leaves it one interval, as any check does; so the original is
        called now, for a queue that was refused, and again in our place next time, when that interval is over.
        """
        self._aside = True
        if why != self._complained:
            log.warning("%s: %s; BullMQ's own check goes on", self._backend.name, why)
            self._complained = why
        return list(await self._original(max_stalled_count, stalled_interval))

    async def close(self) -> None:
        """Close our connections."""
        await self._sweeper.close()


def _held(report: SweepReport) -> str:
    return f"recoveries are held back ({len(report.held)} jobs): the queue is paused and its BullMQ version is unknown"
