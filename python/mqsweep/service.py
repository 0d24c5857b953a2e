"""Sweeping one queue for good: the loop behind ``run``, as a generator of requests like the sweep itself."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from .authority import Authority
from .connect import is_passing
from .drive import Steps, Tell, Wait
from .errors import MQSweepError
from .lease import new_token
from .report import SweepReport
from .script import Fenced
from .sweep import Memory, Round, Task, sweep

log = logging.getLogger("mqsweep")

FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 30.0
"""Seconds between two tries while the server cannot serve us: the first, doubled each time, and the most."""


def serve(task: Task, stopped: Callable[[], bool]) -> Steps[None]:
    """Sweep at a fixed rate until a wait says that it is over.

    Args:
        task: the queue.
        stopped: whether to end after the current batch.

    Raises:
        MQSweepError: the queue cannot be swept.
        redis.exceptions.ResponseError: the server refuses for good. Faults that pass are waited out.
    """
    token = new_token()
    due = time.monotonic()
    backoff = FIRST_BACKOFF
    memory = Memory()
    last: Round | None = None
    while not (yield Wait(max(0.0, due - time.monotonic()))):
        this = Round(token, memory, stopped, keep=task.engine.scan is not None)
        try:
            report = yield from sweep(task, this)
            wait = (yield from _standby(task, this, report)) if report.status == "throttled" else None
        except Exception as fault:
            if isinstance(fault, MQSweepError) or not is_passing(fault):
                raise
            pause = min(LONGEST_BACKOFF, backoff)
            if this.opening is not None:  # it may have marked: what it marked has its interval of grace
                pause = max(pause, this.started + task.interval - time.monotonic())
            backoff *= 2
            log.warning("%s: %s; trying again in %.1f s", task.queue, fault, pause)
            due = time.monotonic() + pause
            continue
        backoff = FIRST_BACKOFF
        if wait is not None:
            due = time.monotonic() + wait
        else:
            last = this if report.status == "swept" else None
            # from its own start, however late that was: what it marked has its interval of grace; and where it held
            # recoveries back, the built-in checks have the interval after that to themselves (I9)
            due = this.started + task.interval * (2 if report.status == "held" else 1)
        yield Tell(report)
    if last is not None:
        yield from _release(task, last)


def _standby(task: Task, this: Round, report: SweepReport) -> Steps[float]:
    """Seconds until the next try. A BullMQ check that has finished holds nobody up: its key becomes ours now."""
    left = task.interval if report.retry_after is None else report.retry_after
    opening = this.opening
    if opening is not None and opening.foreign_check and opening.holder is not None and opening.ttl > 0:
        try:
            yield from _authority(task, this).take_over(opening.holder, round((left + 2 * task.interval) * 1000))
        except Fenced:
            pass
        else:
            return left
    return min(left, task.interval) * (1 + random.random() / 20)


def _authority(task: Task, this: Round) -> Authority:
    return Authority(task.keys, task.policy, this.token, ttl=0, max_pause=task.max_pause, exceptions=task.exceptions)


def _release(task: Task, last: Round) -> Steps[None]:
    """Leave the lease what remains of one interval from the last sweep's start; after a fault its TTL ends it."""
    left = max(0, round((task.interval - (time.monotonic() - last.started)) * 1000))
    try:
        yield from _authority(task, last).expire(left)
    except Fenced:
        return
    except Exception as fault:
        if not is_passing(fault):
            raise
        log.warning("%s: the lease could not be given back (%s); it expires by itself", task.queue, fault)
