"""Workers as EchoMQ has them, on a real server, by raw commands; and a ledger of what they did.

A worker here never sleeps. Death is exact instead of timed: killing a worker takes its locks away in
one step, which is what their expiry would do, so that a test knows who was dead and who was not.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import redis

LOCK_MS = 600_000

# KEYS: wait, active, marker. ARGV: base, token, lock's TTL. From the right end of wait to the head of active.
_PICK_UP = """
local id = redis.call('RPOPLPUSH', KEYS[1], KEYS[2])
if not id then return false end
redis.call('SET', ARGV[1] .. ':' .. id .. ':lock', ARGV[2], 'PX', ARGV[3])
redis.call('HINCRBY', ARGV[1] .. ':' .. id, 'ats', 1)
if redis.call('LLEN', KEYS[1]) > 0 then redis.call('ZADD', KEYS[3], 0, '0') end
return id
"""

# KEYS: lock, stalled, active, completed, job. ARGV: id, token, now. -2: no lock, -6: another's lock, -3: not active.
_FINISH = """
local holder = redis.call('GET', KEYS[1])
if not holder then return -2 end
if holder ~= ARGV[2] then return -6 end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[1])
if redis.call('LREM', KEYS[3], -1, ARGV[1]) == 0 then return -3 end
redis.call('ZADD', KEYS[4], ARGV[3], ARGV[1])
redis.call('HSET', KEYS[5], 'finishedOn', ARGV[3])
return 1
"""


class Ledger:
    """What happened, as the workers saw it; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.added: set[bytes] = set()
        self.finished: Counter[bytes] = Counter()
        self.abandoned: Counter[bytes] = Counter()
        self.rejected: Counter[int] = Counter()
        self.steps = 0

    def add(self, job_id: bytes) -> None:
        """A job went into wait."""
        with self._lock:
            self.added.add(job_id)

    def finish(self, job_id: bytes, verdict: int) -> None:
        """A worker tried to finish a job; 1 = it did."""
        with self._lock:
            self.steps += 1
            if verdict == 1:
                self.finished[job_id] += 1
            else:
                self.rejected[verdict] += 1

    def abandon(self, job_ids: list[bytes]) -> None:
        """A worker died with these in its hands."""
        with self._lock:
            self.abandoned.update(job_ids)

    def renew(self) -> None:
        """A lock was renewed."""
        with self._lock:
            self.steps += 1


class EchoQueue:
    """The raw commands that producers and workers send to one queue."""

    def __init__(self, client: redis.Redis, base: bytes) -> None:
        self.client: Any = client
        self.base = base

    def key(self, name: bytes) -> bytes:
        """A key of the queue."""
        return self.base + b":" + name

    def add(self, *job_ids: bytes, **fields: str) -> None:
        """Add jobs to wait, and wake a worker."""
        pipe = self.client.pipeline()
        for job_id in job_ids:
            pipe.hset(self.key(job_id), mapping={"name": "paint", "data": "{}", **fields})
            pipe.lpush(self.key(b"wait"), job_id)
        pipe.zadd(self.key(b"marker"), {"0": 0})
        pipe.execute()

    def pick_up(self, token: bytes) -> bytes | None:
        """Take the next job, with its lock; ``None`` when nothing waits."""
        found: bytes | None = self.client.eval(
            _PICK_UP,
            3,
            self.key(b"wait"),
            self.key(b"active"),
            self.key(b"marker"),
            self.base,
            token,
            LOCK_MS,
        )
        return found

    def renew(self, job_id: bytes, token: bytes) -> None:
        """Set the lock again and take the mark back, as the seed's worker does."""
        pipe = self.client.pipeline()
        pipe.set(self.key(job_id + b":lock"), token, px=LOCK_MS)
        pipe.srem(self.key(b"stalled"), job_id)
        pipe.execute()

    def lapse(self, job_ids: list[bytes]) -> None:
        """What the end of their TTL does to locks, at an instant of our choosing."""
        if job_ids:
            self.client.delete(*(self.key(job_id + b":lock") for job_id in job_ids))

    def finish(self, job_id: bytes, token: bytes, now_ms: int = 1_700_000_000_000) -> int:
        """Complete a job; 1 when it was done, negative when the lock is not this worker's any more."""
        names = (job_id + b":lock", b"stalled", b"active", b"completed", job_id)
        return int(self.client.eval(_FINISH, 5, *map(self.key, names), job_id, token, now_ms))


class Worker:
    """Takes jobs, renews and finishes them as fast as it can, in random order.

    Args:
        queue: with a connection of this worker's own.
        ledger: where it writes what it did.
        name: also its token.
        hold: how many jobs it works on at once.
        seed: of its choices.
    """

    def __init__(self, queue: EchoQueue, ledger: Ledger, name: str, hold: int, seed: int) -> None:
        self.queue, self.ledger, self.name, self.hold = queue, ledger, name, hold
        self.token = name.encode()
        self.held: list[bytes] = []
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._killed = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._paused, self._awake = threading.Event(), threading.Event()

    def run(self) -> None:
        """Work until stopped or killed."""
        while not self._killed.is_set():
            if not self._going.is_set():
                self._sleep()
                continue
            if self._stopping.is_set() and not self.held:
                return
            self._step()
        self.ledger.abandon(self.held)
        self.queue.lapse(self.held)

    def _sleep(self) -> None:
        """Be paused; on waking set every lock again first, as the seed's paused worker does."""
        self._awake.clear()
        self._paused.set()
        self._going.wait()
        self._paused.clear()
        if not self._killed.is_set():
            for job_id in self.held:
                self.queue.renew(job_id, self.token)
        self._awake.set()

    def _step(self) -> None:
        if len(self.held) < self.hold and not self._stopping.is_set():
            job_id = self.queue.pick_up(self.token)
            if job_id is not None:
                self.held.append(job_id)
                return
        if not self.held:
            # Nothing to do: wait for the marker, as real workers do, but never for long.
            self.queue.client.bzpopmin(self.queue.key(b"marker"), timeout=0.02)
            return
        index = self._chance.randrange(len(self.held))
        if self._chance.random() < 0.3:
            self.queue.renew(self.held[index], self.token)
            self.ledger.renew()
            return
        job_id = self.held.pop(index)
        self.ledger.finish(job_id, self.queue.finish(job_id, self.token))

    def pause(self, timeout: float = 10.0) -> None:
        """Stop between two steps and return when it has; its locks stand, until somebody lets them lapse."""
        self._going.clear()
        if not self._paused.wait(timeout):
            raise TimeoutError(f"{self.name} did not pause within {timeout} s")

    def resume(self, timeout: float = 10.0) -> None:
        """Go on after a pause; returns when the locks are set again."""
        self._going.set()
        if not self._awake.wait(timeout):
            raise TimeoutError(f"{self.name} did not wake within {timeout} s")

    def stop(self) -> None:
        """Take no more jobs, finish those in hand, end."""
        self._stopping.set()
        self._going.set()

    def kill(self) -> None:
        """Die at once with the jobs in hand, and their locks with it."""
        self._killed.set()
        self._going.set()


class Crew:
    """Workers, each in a thread; what goes wrong in one is raised by :meth:`join`."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._work: dict[Worker, Future[None]] = {}

    def start(self, worker: Worker) -> Worker:
        """Let a worker begin."""
        self._work[worker] = self._pool.submit(worker.run)
        return worker

    def beside(self, task: Callable[[], None]) -> Future[None]:
        """Let something else run in a thread of the same pool."""
        return self._pool.submit(task)

    def join(self, worker: Worker, timeout: float = 10.0) -> None:
        """Wait until a worker has ended; raises what ended it, or TimeoutError."""
        self._work[worker].result(timeout)

    def stop(self) -> None:
        """Stop all who still work, and wait for them."""
        for worker in self._work:
            worker.stop()
        for worker in self._work:
            self.join(worker)


@contextmanager
def crew(most: int) -> Iterator[Crew]:
    """Room for up to ``most`` workers at a time; whoever is left is stopped at the end of the block."""
    with ThreadPoolExecutor(most) as pool:
        team = Crew(pool)
        try:
            yield team
        finally:
            team.stop()
