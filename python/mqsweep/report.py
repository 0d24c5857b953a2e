"""What a sweep and an inspection say."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["swept", "throttled", "fenced", "held"]


class _Printable:
    """Adds the two forms that machines read."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python values (tuples become lists)."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}  # type: ignore[call-overload]

    def to_json(self) -> str:
        r"""All fields as one line of JSON; bytes that are not UTF-8 appear as ``\\udcXX``."""
        return json.dumps(self.to_dict())


@dataclass(frozen=True, slots=True)
class SweepReport(_Printable):
    """What one sweep did. Ids are ``str`` (UTF-8 with ``surrogateescape``), oldest first.

    Attributes:
        queue: the queue's name.
        dialect: ``echomq`` or ``bullmq``.
        engine: whose scan was used: ``rust``, ``python``, or ``script``.
        status: ``swept``; ``throttled`` (someone holds the lease); ``fenced`` (the lease was lost on the way);
            ``held`` (recoveries were left out).
        recovered: put back to work. At-least-once: the old worker may still finish its side effects.
        failed: went past the ceiling, also where the next worker does the failing.
        marked: found stalled for the first time.
        cleared: marks taken back because a lock was seen.
        strays: marks taken back because the job is not in active.
        ghosts: taken out of active and put nowhere: no hash, or finished already.
        missed: moved too far, or not reached before a stop; left to the next sweep.
        held: would have been recovered, but recoveries were held back.
        refused: ``{id: reason}`` of jobs that were left alone because something about them is wrong.
        stalled: recovered and failed together.
        guards: named signs that missing locks may not mean dead workers.
        marks_placed: members added to the set of marks.
        retry_after: seconds until the lease may be free (throttled), else ``None``.
        holder: what ``stalled-check`` holds (throttled), else ``None``: a token that says whose lease it is, or the
            bare timestamp of a built-in check.
        unconfirmed: entries of batches whose reply was lost and that a second call found done or gone.
        active_scanned: elements of active that were read.
        stalled_scanned: marks that were read.
        calls: calls of the script.
        longest_call: the longest of them by the server's clock, in seconds.
        duration: seconds that the sweep took.
        started_at: the server's clock at its start, in seconds since the epoch.
        complete: ``False`` when a stop request ended the sweep early.
        held_because: why recoveries were held back (held), and what to do; else ``None``.
    """

    queue: str
    dialect: str
    engine: str
    status: Status
    recovered: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    ghosts: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    stalled: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    marks_placed: int = 0
    retry_after: float | None = None
    holder: str | None = None
    unconfirmed: int = 0
    active_scanned: int = 0
    stalled_scanned: int = 0
    calls: int = 0
    longest_call: float = 0.0
    duration: float = 0.0
    started_at: float = 0.0
    complete: bool = True
    held_because: str | None = None


@dataclass(frozen=True, slots=True)
class StalledJob:
    """A job that is in active and has no lock.

    Attributes:
        id: the job's id.
        marked: an earlier sweep saw it stalled: the next one recovers it if it still is.
        worker: name of the worker that took it (``pb``), if it says so.
        processed_on: when it was taken, in seconds since the epoch (``processedOn``). Redis does not record when
            a lock lapsed.
        attempts: attempts made (``atm``).
        stalls: recoveries so far (``stc``).
        distance: its place in active, counted from the tail, where the oldest is 1.
        past_ceiling: the next recovery takes it past its ceiling, of stalls or (``echomq``) of attempts.
        runaway: stalls are far past the ceiling: its workers ignore what should have failed it (``defa``).
    """

    id: str
    marked: bool
    worker: str | None
    processed_on: float | None
    attempts: int | None
    stalls: int | None
    distance: int
    past_ceiling: bool
    runaway: bool


@dataclass(frozen=True, slots=True)
class Inspection(_Printable):
    """Who is stalled now. Nothing was changed to find out, and no lease was taken.

    Attributes:
        queue: the queue's name.
        dialect: ``echomq`` or ``bullmq``.
        engine: whose scan was used.
        exists: whether any key of the queue exists.
        paused: whether the queue is paused.
        holder: what ``stalled-check`` holds, ``None`` when nobody holds the lease.
        jobs: the stalled jobs, oldest first.
        locked_marks: marks of jobs that have a lock; the next sweep takes them back.
        strays: marks of jobs that are not in active.
        active_scanned: elements of active that were read.
        stalled_scanned: marks that were read.
        duration: seconds.
    """

    queue: str
    dialect: str
    engine: str
    exists: bool
    paused: bool
    holder: str | None
    jobs: tuple[StalledJob, ...]
    locked_marks: tuple[str, ...]
    strays: tuple[str, ...]
    active_scanned: int
    stalled_scanned: int
    duration: float
