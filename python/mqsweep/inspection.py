"""Who is stalled now: the same scan and plan, no write, no lease."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from .admission import REPLICA, refuse
from .connect import Command
from .dialects import Policy
from .drive import Commands, RoundTrip, Step, Steps
from .errors import UnsupportedQueueError
from .keys import ORDER, to_str
from .lease import Opening, look_commands, read_opening
from .report import Inspection, StalledJob
from .sweep import Task, new_scan

FIELDS = ("pb", "processedOn", "atm", "stc", "opts")
CHUNK = 500
RUNAWAY = 10
"""Times past the ceiling from which on a job's workers evidently ignore what should have failed it."""


def inspect(task: Task) -> Steps[Inspection]:
    """Look at one queue.

    Raises:
        UnsupportedQueueError: not a queue that mqsweep sweeps, or the server is a replica.
        WrongTypeError: active is no list.
        redis.exceptions.RedisError: faults of the connection and refusals of the server.
    """
    started = time.monotonic()
    *looks, role, exists = yield Commands(
        [*look_commands(task.keys), ("ROLE",), ("EXISTS", *(task.keys.of(name) for name in ORDER))]
    )
    opening = read_opening(looks)
    if isinstance(role, list) and role[0] in (b"slave", b"replica"):
        raise UnsupportedQueueError(REPLICA)
    refuse(task.policy, task.keys, opening)
    scan = new_scan(task, opening, (yield RoundTrip()))
    while not scan.done:
        yield Step(scan)
    seen = scan.sightings()
    jobs: list[StalledJob] = []
    for start in range(0, len(seen.stalled), CHUNK):
        part = seen.stalled[start : start + CHUNK]
        ask: list[Command] = [("HMGET", task.keys.job(job_id), *FIELDS) for job_id, _, _ in part]
        replies = yield Commands(ask)
        jobs += (_job(task, sight, reply) for sight, reply in zip(part, replies, strict=True))
    return _inspection(task, opening, exists, seen, jobs, time.monotonic() - started)


def _inspection(
    task: Task, opening: Opening, exists: Any, seen: Any, jobs: Sequence[StalledJob], duration: float
) -> Inspection:
    return Inspection(
        queue=task.queue,
        dialect=task.policy.dialect,
        engine=task.engine.name,
        exists=exists != 0,
        paused=opening.paused,
        holder=None if opening.holder is None else to_str(opening.holder),
        jobs=tuple(jobs),
        locked_marks=tuple(map(to_str, seen.locked_marks)),
        strays=tuple(map(to_str, seen.strays)),
        active_scanned=seen.active_scanned,
        stalled_scanned=seen.stalled_scanned,
        duration=duration,
    )


def _number(value: bytes | None) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None


def _max_attempts(opts: bytes | None, policy: Policy) -> float | None:
    """The job's own attempts, else the sweeper's: what the script will go by."""
    try:
        own = json.loads(opts or b"{}").get("attempts")
    except (ValueError, AttributeError, RecursionError):
        own = None
    return own if isinstance(own, int | float) and not isinstance(own, bool) and own >= 1 else policy.max_attempts


def _job(task: Task, sight: tuple[bytes, tuple[int, ...], bool], reply: Any) -> StalledJob:
    job_id, distances, marked = sight
    worker, processed_on, attempts, stalls, opts = (None,) * len(FIELDS) if isinstance(reply, Exception) else reply
    count, taken, made = _number(stalls), _number(processed_on), _number(attempts)
    ceiling = task.policy.max_stalled_count
    limit = _max_attempts(opts, task.policy) if task.policy.dialect == "echomq" else None
    return StalledJob(
        id=to_str(job_id),
        marked=marked,
        worker=None if worker is None else to_str(worker),
        processed_on=None if taken is None else taken / 1000,
        attempts=made,
        stalls=count,
        distance=distances[0],
        past_ceiling=(count or 0) + 1 > ceiling or (limit is not None and (made or 0) + 1 >= limit),
        runaway=(count or 0) > RUNAWAY * (ceiling + 1),
    )
