"""The front door: `Sweeper`, one queue, blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType, TracebackType
from typing import Any, Self

import redis

from . import engine as engines
from . import inspection
from . import scan as pure
from .connect import Command, Link, Source
from .dialects import base_of, choice, dialect_of, policy_of, seconds
from .drive import drive
from .errors import ConfigurationError
from .keys import ORDER
from .lease import new_token
from .report import Inspection, SweepReport
from .service import serve
from .sweep import Memory, Progress, Round, Task, sweep


class Front:
    """What both front doors share: the options, checked.

    Args:
        client: a ``redis.Redis``, ``redis.RedisCluster``, a Sentinel master client, the same of ``valkey``; or a URL
            that ``Redis.from_url`` takes. It is never closed, reconfigured or shared: connections of our own are
            opened from its settings.
        queue: the queue's name, without prefix.
        dialect: ``echomq`` or ``bullmq``: key layout and recovery policy.
        prefix: first part of every key; ``None`` = ``emq`` or ``bull``.
        hash_tag: put the queue's name in braces; ``None`` = as the dialect does (``echomq`` yes, ``bullmq`` no).
        interval: seconds between the starts of two sweeps; ``None`` = 30 for ``echomq``, 15 for ``bullmq``.
        max_stalled_count: how many stalls a job survives.
        max_attempts: how many attempts a job survives that does not say so itself (``echomq`` only); ``None`` = no
            such ceiling.
        mark: ``lockless`` marks stalled jobs only; ``active`` marks every active job, as BullMQ does.
        requeue: where recovered jobs join ``wait``: ``back``, or ``front`` to be taken next; ``None`` = ``back`` for
            ``echomq``, ``front`` for ``bullmq``.
        grace: ``marks``. (``strict`` is not built yet.)
        hold: guards that hold recoveries back. (Not built yet: must be empty.)
        engine: ``auto``, ``rust``, ``python`` or ``script``; see `engine_info`.
        max_pause: seconds that one call of the script may hold the server.
        bullmq_version: the version of the BullMQ that owns the queue, where ``meta.version`` does not say it.
        timeout: seconds to wait for a reply; the ``script`` engine waits without bound, since its one call may take
            minutes.
        on_progress: told how far a sweep has come, many times a second; must return at once.

    Raises:
        ConfigurationError: a value that cannot work; the text names it and what is allowed.
        UnsupportedQueueError: a cluster client and a queue whose keys spread over slots.
    """

    _flavour: ModuleType
    """Whose clients: ``redis`` or ``redis.asyncio``."""

    def __init__(
        self,
        client: Any,
        queue: str,
        *,
        dialect: str = "echomq",
        prefix: str | None = None,
        hash_tag: bool | None = None,
        interval: float | None = None,
        max_stalled_count: int = 1,
        max_attempts: int | None = None,
        mark: str = "lockless",
        requeue: str | None = None,
        grace: str = "marks",
        hold: Iterable[str] = (),
        engine: str = "auto",
        max_pause: float = 0.005,
        bullmq_version: str | None = None,
        timeout: float = 10.0,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        spoken = dialect_of(dialect)
        if choice("grace", grace, ("marks", "strict")) == "strict":
            raise ConfigurationError("grace='strict': not built yet; use 'marks'")
        if tuple(hold):
            raise ConfigurationError(f"hold={tuple(hold)!r}: not built yet; leave it empty")
        policy = policy_of(
            spoken,
            mark=mark,
            requeue=requeue,
            max_stalled_count=max_stalled_count,
            max_attempts=max_attempts,
            bullmq_version=bullmq_version,
        )
        keys = base_of(spoken, queue, prefix, hash_tag)
        pause, patience = seconds("max_pause", max_pause, 0.0001), seconds("timeout", timeout)
        every = spoken.interval if interval is None else seconds("interval", interval)
        chosen = engines.choose(engine)
        # one call of the script engine may take minutes, and what it did must be heard
        self._source = Source(client, keys, None if chosen.scan is None else patience, self._flavour)
        self._task = Task(
            queue=queue,
            keys=keys,
            policy=policy,
            engine=chosen,
            interval=every,
            max_pause=pause,
            exceptions=self._source.exceptions,
            progress=on_progress or (lambda progress: None),
        )
        self._memory = Memory()
        self._prepare()

    def _prepare(self) -> None:
        """What a front door needs besides."""
        raise NotImplementedError

    @classmethod
    def from_url(cls, url: str, queue: str, **options: Any) -> Self:
        """A sweeper with a client of its own.

        Args:
            url: what ``Redis.from_url`` takes.
            queue: the queue's name.
            options: as for `Sweeper`.
        """
        if not isinstance(url, str):
            raise ConfigurationError(f"url={type(url).__name__}: must be a string")
        return cls(url, queue, **options)

    @property
    def engine(self) -> str:
        """Whose scan is used: ``rust``, ``python``, or ``script``."""
        return self._task.engine.name

    @property
    def interval(self) -> float:
        """Seconds between the starts of two sweeps."""
        return self._task.interval

    def _looking(self) -> Task:
        """The task for an inspection: the script engine cannot look without writing, so the pure scan does."""
        return self._task if self._task.engine.scan else replace(self._task, engine=engines.Engine("python", pure.Scan))

    def _exists_command(self) -> Command:
        return ("EXISTS", *(self._task.keys.of(name) for name in ORDER))


class Sweeper(Front):
    """Finds and recovers the stalled jobs of one queue.

    Recovery is at-least-once: a worker thought dead may finish its side effects while its job runs again.

    The arguments are those of `Front`. A sweeper may be used from several threads and after a fork.
    """

    _flavour = redis

    def _prepare(self) -> None:
        self._link = Link(self._source)
        self._busy = threading.Lock()

    def sweep(self) -> SweepReport:
        """One sweep: mark what is stalled for the first time, recover what is stalled for the second.

        Two sweeps of a queue start at least one interval apart, whoever makes them; one that comes too early does
        nothing and reports ``throttled``.

        Raises:
            UnsupportedQueueError: a queue that mqsweep must not touch.
            WrongTypeError: one of the queue's keys is of another type.
            ScriptError: the script failed on the server.
            ProtocolError: the server sent something that is not RESP2.
            redis.exceptions.RedisError: faults of the connection and refusals of the server.
        """
        with self._busy:
            this = Round(new_token(), self._memory)
            return drive(sweep(self._task, this), self._link)

    def run(self, stop: threading.Event, on_report: Callable[[SweepReport], None] | None = None) -> None:
        """Sweep at a fixed rate until the event is set.

        The lease is kept alive between sweeps, which turns the built-in stalled check of every BullMQ worker into a
        no-op; when this process dies, the key expires and they take over. Several processes may run this: one holds
        the lease, the others wait for it. No signal handlers are installed.

        Args:
            stop: ends the run after the current batch.
            on_report: called with each report, also of sweeps that were throttled.

        Raises:
            MQSweepError: the queue cannot be swept. Faults that pass (of the connection, a full or loading server)
                are logged and waited out.
            redis.exceptions.ResponseError: the server refuses for good, e.g. ``NOPERM``.
        """
        with Link(self._source) as link:  # its own: a `sweep` may go on in another thread
            drive(serve(self._task, stop.is_set), link, stop, on_report)

    def inspect(self) -> Inspection:
        """Who is stalled now. Writes nothing and takes no lease.

        Raises:
            As `sweep`, and UnsupportedQueueError when the server is a replica.
        """
        with self._busy:
            return drive(inspection.inspect(self._looking()), self._link)

    def exists(self) -> bool:
        """Whether any key of the queue exists. Asks the server.

        Raises:
            redis.exceptions.RedisError: faults of the connection and refusals of the server.
        """
        with self._busy:
            (reply,) = self._link.commands([self._exists_command()])
        if isinstance(reply, Exception):
            raise reply
        return bool(reply)

    def close(self) -> None:
        """Close our own connections, and the client if it was made from a URL. Can be called twice."""
        self._link.close()
        if self._source.owned:
            self._source.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
