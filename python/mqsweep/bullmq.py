"""The drop-in for BullMQ's Python workers: their own timer calls mqsweep instead of the built-in stalled check.

    worker = Worker("emails", process)
    undo = install(worker)

Options, pacing and ``stalled`` events stay the worker's. Where mqsweep refuses, holds or fails, the original is
called, as if nothing had been installed.

The sweep runs in a thread with an event loop of its own: what it computes (a mass stall keeps it busy for seconds) must
not keep the worker's loop from renewing locks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .admission import holds_back, refuse
from .aio import AsyncSweeper, drive
from .drive import Commands, Steps
from .errors import ConfigurationError
from .lease import look_commands, new_token, read_opening
from .report import SweepReport
from .sweep import Round, Task, sweep

log = logging.getLogger("mqsweep")

Check = Callable[[int, int], Awaitable[list[str]]]
Undo = Callable[[], Awaitable[None]]

METHOD = "moveStalledJobsToWait"
_WORKERS = ("dialect", "queue", "prefix", "hash_tag", "interval", "max_stalled_count")
"""Options that are the worker's to set."""


def install(worker: Any, **options: Any) -> Undo:
    """Let a worker's stalled check be done by mqsweep.

    With ``mark="lockless"`` (the default) only jobs without a lock are marked, so a dead worker's job is back after its
    lock's TTL and two of the worker's ``stalledInterval``; ``mark="active"`` is as quick as BullMQ itself, and costs
    a mark for every active job, in bounded batches.

    Args:
        worker: a ``bullmq.Worker`` on Redis, running or not. When it is closed, our connections are closed too.
        options: as for `mqsweep.Sweeper`, but for what the worker itself says: the queue, its prefix, the interval
            (``stalledInterval``) and the ceiling (``maxStalledCount``).

    Returns:
        A function that puts the original back at once and closes our connections. What it returns can be awaited, to
        be sure that they are closed. It may be called twice.

    Raises:
        ConfigurationError: not such a worker, mqsweep is installed in it already, or an option that cannot work.
        UnsupportedQueueError: a cluster, and a queue whose keys spread over slots.
    """
    if not hasattr(worker, "runStalledJobsCheck"):
        raise ConfigurationError(f"worker={type(worker).__name__}: must be a bullmq.Worker")
    backend = _backend_of(worker)
    original: Check = getattr(backend, METHOD)
    if isinstance(original, _StandIn):
        raise ConfigurationError("mqsweep is installed in this worker already; call what install() returned first")
    stand_in = _StandIn(backend, original, options)
    stand_in.make(worker.opts["maxStalledCount"], worker.opts["stalledInterval"])
    had_own = METHOD in vars(backend)
    setattr(backend, METHOD, stand_in)
    worker.on("closed", stand_in.rest)

    def undo() -> Awaitable[None]:
        if vars(backend).get(METHOD) is stand_in:
            if had_own:
                setattr(backend, METHOD, original)
            else:
                delattr(backend, METHOD)
        if not stand_in.undone:
            worker.off("closed", stand_in.rest)
        stand_in.undone = True  # somebody may have wrapped us, or be waiting for us
        return stand_in.rest()

    return undo


async def move_stalled_jobs_to_wait(
    worker_or_backend: Any, max_stalled_count: int, stalled_interval_ms: int, **options: Any
) -> list[str]:
    """One stalled check, by mqsweep, or by BullMQ where mqsweep refuses, holds or fails.

    Args:
        worker_or_backend: a ``bullmq.Worker``, ``bullmq.Queue`` or their ``backend``, on Redis.
        max_stalled_count: how many stalls a job survives.
        stalled_interval_ms: milliseconds for which no other check shall start.
        options: as for `install`.

    Returns:
        The ids of the stalled jobs that left active, whether they run again or fail.

    Raises:
        ConfigurationError: not such a worker, or a value that cannot work.
        redis.exceptions.RedisError: BullMQ's own check failed too.
    """
    backend = _backend_of(worker_or_backend)
    original = getattr(backend, METHOD)
    stand_in = _StandIn(backend, original.original if isinstance(original, _StandIn) else original, options)
    stand_in.make(max_stalled_count, stalled_interval_ms)
    try:
        return await stand_in(max_stalled_count, stalled_interval_ms)
    finally:
        await stand_in.rest()


def _backend_of(worker: Any) -> Any:
    """The Redis backend of a worker.

    Raises:
        ConfigurationError: it has none.
    """
    name = type(worker).__name__
    backend = getattr(worker, "backend", worker)
    if not callable(getattr(backend, METHOD, None)):
        raise ConfigurationError(f"worker={name}: must be a worker of the package bullmq, 3.0 or newer")
    client = getattr(backend, "conn", None)
    if not hasattr(client, "connection_pool") and not hasattr(client, "get_node_from_key"):
        raise ConfigurationError(f"worker={name}: it works on a {type(backend).__name__}; mqsweep sweeps Redis only")
    return backend


class _Thread:
    """A thread with an event loop in it, and the sweeper that lives there."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "mqsweep")
        self._runner = asyncio.Runner()
        self._sweeper: _Sweeper | None = None
        self._asked: tuple[int, int] | None = None

    async def sweep(
        self, asked: tuple[int, int], make: Callable[..., _Sweeper], stop: Callable[[], bool]
    ) -> SweepReport | None:
        """One sweep there, waited for here.

        Args:
            asked: arguments of the check.
            make: makes a sweeper for them.
            stop: says whether to end early.
        """

        def turn() -> SweepReport | None:
            return self._runner.run(self._turn(asked, make, stop))

        return await asyncio.get_running_loop().run_in_executor(self._pool, turn)

    async def _turn(
        self, asked: tuple[int, int], make: Callable[..., _Sweeper], stop: Callable[[], bool]
    ) -> SweepReport | None:
        if self._sweeper is None or asked != self._asked:
            await self._put_away()
            self._sweeper, self._asked = make(*asked), asked
        return await self._sweeper.sweep_unless_held(stop)

    async def _put_away(self) -> None:
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            await sweeper.close()

    def close(self) -> Future[None]:
        """Close the sweeper's connections when the sweep under way is over, and end."""

        def finish() -> None:
            with self._runner:
                self._runner.run(self._put_away())

        finished = self._pool.submit(finish)
        self._pool.shutdown(wait=False)
        return finished


class _Finished:
    """Can be awaited, in any event loop; need not be."""

    def __init__(self, future: Future[None] | None) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, Any, None]:
        if self._future is not None:
            yield from asyncio.wrap_future(self._future).__await__()


class _Sweeper(AsyncSweeper):
    """Leaves the lease alone where the original has to do the work (I9)."""

    async def sweep_unless_held(self, stop: Callable[[], bool]) -> SweepReport | None:
        """One sweep; ``None``, and nothing touched, where recoveries would be held back."""
        this = Round(new_token(), self._memory, stop)
        return await drive(_sweep_unless_held(self._task, this), self._link)


def _sweep_unless_held(task: Task, this: Round) -> Steps[SweepReport | None]:
    opening = read_opening((yield Commands(look_commands(task.keys))))
    refuse(task.policy, task.keys, opening)
    if holds_back(task.policy, opening):
        return None
    return (yield from sweep(task, this))


class _StandIn:
    """What stands in the place of a backend's stalled check.

    Args:
        backend: the worker's backend.
        original: its own check.
        options: of the sweeper.
    """

    def __init__(self, backend: Any, original: Check, options: dict[str, Any]) -> None:
        wrong = next((name for name in _WORKERS if name in options), None)
        if wrong is not None:
            raise ConfigurationError(f"{wrong}={options[wrong]!r}: the worker says this; set it there")
        self.original = original
        self.undone = False
        self._backend = backend
        self._options = options
        self._thread: _Thread | None = None
        self._aside = False
        self._complaint = ""

    def make(self, max_stalled_count: int, interval_ms: int) -> _Sweeper:
        """A sweeper for these arguments of the check.

        Raises:
            ConfigurationError: one of them, or of the options, cannot work.
        """
        if isinstance(interval_ms, bool) or not isinstance(interval_ms, (int, float)) or not interval_ms >= 1:
            raise ConfigurationError(f"stalledInterval={interval_ms!r}: must be a number of milliseconds, 1 or more")
        return _Sweeper(
            self._backend.conn,
            self._backend.name,
            dialect="bullmq",
            prefix=self._backend.prefix,
            interval=interval_ms / 1000,
            max_stalled_count=max_stalled_count,
            **self._options,
        )

    async def __call__(self, max_stalled_count: int, stalled_interval: int) -> list[str]:
        """The stalled check, with the arguments and the answer of the one that it replaces."""
        if self.undone or self._aside:
            self._aside = False
            return await self.original(max_stalled_count, stalled_interval)
        try:
            report = await self._sweep(max_stalled_count, stalled_interval)
        except Exception as fault:  # noqa: BLE001 - without us the original would run, whatever it is
            # what had the lease leaves it one interval, to the original too: so that one comes next time as well
            self._aside = True
            why = str(fault) or type(fault).__name__
        else:
            if report is not None:
                self._complaint = ""
                return list(report.stalled)
            why = "recoveries would be held back: the queue is paused, and which BullMQ owns it is unknown"
        if why != self._complaint:
            log.warning("%s: %s; BullMQ's own stalled check goes on in our place", self._backend.name, why)
            self._complaint = why
        return await self.original(max_stalled_count, stalled_interval)

    async def _sweep(self, max_stalled_count: int, stalled_interval: int) -> SweepReport | None:
        client = self._backend.conn
        if hasattr(client, "get_node_from_key"):  # a cluster's nodes are found in the loop that the client lives in
            await client.initialize()
        self._thread = self._thread or _Thread()
        stop = threading.Event()
        try:
            asked = (max_stalled_count, stalled_interval)
            return await self._thread.sweep(asked, self.make, lambda: self.undone or stop.is_set())
        except asyncio.CancelledError:  # the worker is being closed: end after the batch under way
            stop.set()
            raise

    def rest(self) -> Awaitable[None]:
        """Close our connections; the next check opens new ones."""
        thread, self._thread = self._thread, None
        return _Finished(thread.close() if thread is not None else None)
