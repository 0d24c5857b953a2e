"""One sweep, top to bottom: lease -> scan the marks -> walk active -> plan -> apply -> report.

Generators of requests (see `mqsweep.drive`): nothing here does I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import Any, Literal

from . import guards
from .admission import holds_back, refuse
from .authority import Authority, Outcome
from .connect import Packed
from .dialects import Policy
from .drive import Abandon, Commands, RoundTrip, Step, Steps
from .engine import Engine
from .errors import ProtocolError
from .generations import UNKNOWN
from .keys import QueueKeys, to_str
from .lease import Opening, look_commands, read_opening, sweeping_ttl, take_commands
from .plan import decide
from .report import Status, SweepReport
from .script import Fenced, evaluate

Phase = Literal["scan", "recover"]

MANY_MARKS = 20_000
"""Marks from which on they are read in slices of about so many, a slice a sweep (``bullmq`` only)."""
WINDOW = 400
"""Elements of active that one request asks for."""
AHEAD, MOST_AHEAD = 3, 30
"""Requests that are sent ahead of their replies: to a server that is near, and at most."""
NEAR = 0.0005
"""Seconds in which a server answers the first requests of a sweep that is no farther than this machine."""
WORTH = 0.00005
"""Seconds of a round trip that one more request ahead makes up for: less than the server needs for one."""
NO_TTL = -1
"""What ``PTTL`` says of a key that never expires."""


@dataclass(frozen=True)
class Progress:
    """How far a sweep has come.

    Attributes:
        phase: ``scan`` (done and total are elements of active) or ``recover`` (jobs).
        done: how many so far.
        total: of how many.
        longest_call: seconds of the longest call of the script so far, by the server's clock.
    """

    phase: Phase
    done: int
    total: int
    longest_call: float = 0.0


@dataclass(frozen=True)
class Task:
    """What stays the same from sweep to sweep of one queue."""

    queue: str
    keys: QueueKeys
    policy: Policy
    engine: Engine
    interval: float
    max_pause: float
    exceptions: Any
    progress: Callable[[Progress], None]


@dataclass
class Memory:
    """What one sweep leaves for the next of the same queue; losing it costs nothing but a guard's comparison.

    Attributes:
        vitals: what the sweep before saw, for the guards.
        cursor: where the next slice of marks begins, while there are many.
    """

    vitals: guards.Vitals | None = None
    cursor: bytes = b"0"


@dataclass
class Round:
    """What belongs to one sweep.

    Attributes:
        token: what is put into ``stalled-check``.
        stop: says whether to end early.
        keep: leave the lease two intervals at the end, for the next sweep of the same token.
        memory: what the sweep before left.
        vitals: what this one saw.
        opening: what its first round trip told.
        started: our clock at its start.
    """

    token: bytes
    memory: Memory
    stop: Callable[[], bool] = lambda: False
    keep: bool = False
    vitals: guards.Vitals | None = None
    opening: Opening | None = None
    started: float = field(default_factory=time.monotonic)
    active_scanned: int = 0
    stalled_scanned: int = 0


def sweep(task: Task, this: Round) -> Steps[SweepReport]:
    """One sweep of one queue.

    Raises:
        UnsupportedQueueError, WrongTypeError: a queue that must not be touched; it was not.
        ScriptError, ProtocolError: see there. The lease is left what remains of one interval.
        redis.exceptions.RedisError: faults of the connection and refusals of the server.
    """
    if task.engine.scan is None:
        return (yield from _sweep_by_script(task, this))
    taken, *rest = yield Commands(take_commands(task.keys, this.token, task.interval))
    if isinstance(taken, Exception):
        raise taken
    this.opening = opening = read_opening(rest)
    authority = _authority(task, this)
    outcome = authority.outcome
    try:
        refuse(task.policy, task.keys, opening)
    except Exception:
        if taken is not None:  # the lease was free: leave the queue as it was found
            yield from _give_up(authority, 0)
        raise
    if opening.holder != this.token:
        return _report(task, this, opening, outcome, "throttled")
    status: Status = "held" if holds_back(task.policy, opening) else "swept"
    try:
        busy = opening.active > 0 or opening.marks != 0 or task.policy.mark == "active"
        if busy:
            status = yield from _work(task, this, opening, authority)
        if busy or this.keep:
            yield from authority.expire(_left(task, this, status))
    except Fenced:
        yield Abandon()
        status = "fenced"
    except Exception:
        yield from _give_up(authority, _left(task, this, "held"))
        raise
    return _report(task, this, opening, outcome, status)


def _authority(task: Task, this: Round) -> Authority:
    return Authority(
        task.keys,
        task.policy,
        this.token,
        ttl=sweeping_ttl(task.interval),
        max_pause=task.max_pause,
        exceptions=task.exceptions,
        stop=this.stop,
        progress=lambda done, total, longest: task.progress(Progress("recover", done, total, longest)),
    )


def _work(task: Task, this: Round, opening: Opening, authority: Authority) -> Steps[Status]:
    """Everything between taking the lease and letting it go."""
    ttl = sweeping_ttl(task.interval)
    if opening.ttl < 0.9 * ttl:
        yield from authority.expire(ttl)
    scan = new_scan(task, opening, (yield RoundTrip()), this.memory.cursor)
    renewed = time.monotonic()
    while not scan.done:
        yield Step(scan)
        task.progress(Progress("scan", scan.active_scanned, scan.active_total))
        if this.stop():
            yield Abandon()
            authority.outcome.stopped = True
            break
        if (time.monotonic() - renewed) * 1000 > ttl / 3:
            yield from authority.expire(ttl)
            renewed = time.monotonic()
    this.active_scanned, this.stalled_scanned = scan.active_scanned, scan.stalled_scanned
    if not scan.done:
        return "swept"
    seen = scan.sightings()
    this.memory.cursor = scan.cursor
    del scan  # what it knew besides takes memory
    this.vitals = guards.Vitals(opening.info, opening.server_time, this.started, seen.active_scanned, len(seen.stalled))
    held = holds_back(task.policy, opening) is not None
    yield from authority.apply(decide(seen, task.policy, hold=held))
    return "held" if held or authority.outcome.held else "swept"


def new_scan(task: Task, opening: Opening, round_trip: float, cursor: bytes = b"0") -> Any:
    """A scan of the task's queue, by its engine.

    While a request and its reply are on their way the server must have others to work on: the farther it is, the more
    windows are asked for ahead.

    BullMQ's own check marks every active job. Where it did so for a large queue, most marks are of living jobs whose
    workers take them back; so only a slice of them is read, and the rest asked for where it matters.
    """
    assert task.engine.scan is not None
    depth = AHEAD + int(min(MOST_AHEAD - AHEAD, max(0.0, round_trip - NEAR) / WORTH))
    many = task.policy.dialect == "bullmq" and opening.marks > MANY_MARKS
    return task.engine.scan(
        stalled=task.keys.of("stalled"),
        active=task.keys.of("active"),
        base=task.keys.base + b":",
        window=WINDOW * depth,
        depth=depth,
        keep_locked=task.policy.mark == "active",
        most_marks=MANY_MARKS if many else None,
        cursor=cursor if many else b"0",
    )


def _left(task: Task, this: Round, status: Status) -> int:
    """Milliseconds that the lease gets at the end, counted from the sweep's start."""
    intervals = 2 if this.keep and status == "swept" else 1
    return max(0, round((intervals * task.interval - (time.monotonic() - this.started)) * 1000))


def _give_up(authority: Authority, ttl: int) -> Steps[None]:
    """A sweep that fails must not keep the built-in checks away (I9). What made it fail is raised, not this."""
    yield Abandon()
    try:
        yield from authority.expire(ttl)
    except Exception:  # noqa: BLE001 - whatever it is, the lease's TTL ends it
        return


def _report(task: Task, this: Round, opening: Opening, outcome: Outcome, status: Status) -> SweepReport:
    duration = time.monotonic() - this.started
    names: tuple[str, ...] = ()
    if this.vitals is not None:
        this.vitals = guards.Vitals(**{**this.vitals.__dict__, "duration": duration})
        names = guards.raised(this.memory.vitals, this.vitals)
        this.memory.vitals = this.vitals
    stalled, recovered, failed = _fates(outcome)
    return SweepReport(
        queue=task.queue,
        dialect=task.policy.dialect,
        engine=task.engine.name,
        status=status,
        recovered=recovered,
        failed=failed,
        marked=_strings(outcome.marked),
        cleared=_strings(outcome.cleared),
        strays=_strings(outcome.strays),
        ghosts=_strings(outcome.ghosts),
        missed=_strings(outcome.missed),
        held=_strings(outcome.held),
        refused={to_str(job_id): reason for job_id, reason in outcome.refused.items()},
        stalled=stalled,
        guards=names,
        marks_placed=outcome.marks_placed,
        retry_after=_retry_after(opening) if status == "throttled" else None,
        holder=to_str(opening.holder) if status == "throttled" and opening.holder is not None else None,
        unconfirmed=outcome.unconfirmed,
        active_scanned=this.active_scanned,
        stalled_scanned=this.stalled_scanned,
        calls=outcome.calls,
        longest_call=outcome.longest_call,
        duration=duration,
        started_at=opening.server_time,
        complete=not outcome.stopped,
        held_because=(holds_back(task.policy, opening) or UNKNOWN) if status == "held" else None,
    )


def _retry_after(opening: Opening) -> float | None:
    if opening.ttl == NO_TTL:
        return None
    return max(0, opening.ttl) / 1000  # it may have expired between two looks


def _fates(outcome: Outcome) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The ids of the stalled, of the recovered and of the failed among them; each id is one object in all three."""
    stalled, gone = _strings(outcome.stalled), set(outcome.failed)
    if not gone:
        return stalled, stalled, ()
    fates = [job_id in gone for job_id in outcome.stalled]
    return stalled, tuple(compress(stalled, map(not_, fates))), tuple(compress(stalled, fates))


def _strings(ids: list[bytes]) -> tuple[str, ...]:
    return tuple(map(to_str, ids))


def _sweep_by_script(task: Task, this: Round) -> Steps[SweepReport]:
    """The whole sweep in one call of the script: O(active), and Redis serves nobody meanwhile."""
    opening = read_opening((yield Commands(look_commands(task.keys))))
    refuse(task.policy, task.keys, opening)
    began = time.monotonic()
    reply = yield from evaluate(
        Packed.of(task.keys.script_keys),
        (
            task.keys.base,
            task.policy.max_stalled_count,
            0,
            round(task.interval * 1000),
            task.policy.to_json(status=True),
        ),
        task.exceptions,
    )
    took = time.monotonic() - began
    match reply:
        case [list(), list(), b"swept" | b"held" | b"throttled", int(), list()]:
            failed, recovered, status, left, held = reply
        case _:
            raise ProtocolError("the server's reply is none that the script gives")
    outcome = Outcome([*recovered, *failed], failed, held=held, calls=1, longest_call=took)
    opening = Opening(**{**opening.__dict__, "ttl": left})
    return _report(task, this, opening, outcome, status.decode())
