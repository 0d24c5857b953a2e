"""The executable specification: what one sweep does to a queue, in plain Python.

Written from the design alone; it imports nothing of mqsweep, and knows nothing of batches, positions
or commands. A queue is its keys: a :class:`State` maps what stands behind ``<base>:`` to a value, so
that a job whose id is the name of another key (``meta``, ``7:lock``) is what it is on a server.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

STALLS = b"job stalled more than allowable limit"
ATTEMPTS = b"job stalled on its last attempt"
OPTS_LIMIT = 65_536
DEFAULT_MAX_EVENTS = b"10000"

OWN_KEYS = frozenset(
    b"wait active paused stalled failed completed marker meta events repeat stalled-check delayed prioritized "
    b"waiting-children id pc limiter metrics:completed metrics:failed".split()
)


class ZSet(dict[bytes, float]):
    """A sorted set: member to score."""


class Stream(list[tuple[bytes, ...]]):
    """A stream without its ids: each entry is field, value, field, value, ..."""


Hash = dict[bytes, bytes]
Value = list[bytes] | set[bytes] | ZSet | Hash | bytes | Stream
Keys = dict[bytes, Value]


@dataclass(repr=False)
class State:
    """All keys of one queue, by what follows ``<base>:``; a key that is absent is empty.

    Lists run from left (head) to right (tail). Workers push at the head of ``active``, so the
    oldest job stands at its right end, and they take from the right end of ``wait``.
    """

    keys: Keys = field(default_factory=dict)

    def __repr__(self) -> str:
        text = repr(self.keys)
        return f"State({text})" if len(text) < 5_000 else f"State({text[:5_000]}... of {len(text)} characters)"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every field of every job

    def copy(self) -> State:
        """A state that shares nothing with this one."""
        return State(copy.deepcopy(self.keys))

    def items(self, name: bytes) -> list[bytes]:
        """The list under this name, to be read."""
        value = self.keys.get(name, [])
        assert isinstance(value, list) and not isinstance(value, Stream), name
        return value

    def members(self, name: bytes) -> set[bytes]:
        """The set under this name, to be read."""
        value = self.keys.get(name, set())
        assert isinstance(value, set), name
        return value

    def scores(self, name: bytes) -> ZSet:
        """The sorted set under this name, to be read."""
        value = self.keys.get(name, ZSet())
        assert isinstance(value, ZSet), name
        return value

    @property
    def meta(self) -> Hash:
        """The queue's settings, to be read."""
        return self.job(b"meta") or {}

    def job(self, job_id: bytes) -> Hash | None:
        """The job's own hash; ``None`` when its key is absent or of another type."""
        value = self.keys.get(job_id)
        is_hash = isinstance(value, dict) and not isinstance(value, ZSet)
        return cast(Hash, value) if is_hash else None

    def locked(self, job_id: bytes) -> bool:
        """Whether the job's lock stands."""
        return job_id + b":lock" in self.keys

    def put(self, name: bytes, value: Value) -> None:
        """Set a key; as on a server, an empty collection is no key at all."""
        if value or isinstance(value, bytes | Stream):
            self.keys[name] = value
        else:
            self.keys.pop(name, None)


@dataclass(frozen=True)
class Policy:
    """What the user chose; ``requeue=None`` is the dialect's own way."""

    dialect: str = "echomq"
    mark: str = "lockless"
    requeue: str | None = None
    max_stalled_count: int = 1
    max_attempts: int | None = None
    bullmq_version: str | None = None

    @property
    def to_front(self) -> bool:
        """Whether recovered jobs are the next to be taken."""
        return (self.requeue or ("front" if self.dialect == "bullmq" else "back")) == "front"


@dataclass
class Outcome:
    """What a sweep says that it did. Ids are oldest first; nobody knows the age of cleared and strays."""

    status: str = "swept"
    recovered: list[bytes] = field(default_factory=list)
    failed: list[bytes] = field(default_factory=list)
    stalled: list[bytes] = field(default_factory=list)
    marked: list[bytes] = field(default_factory=list)
    cleared: set[bytes] = field(default_factory=set)
    strays: set[bytes] = field(default_factory=set)
    ghosts: list[bytes] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)
    refused: dict[bytes, str] = field(default_factory=dict)
    marks_placed: int = 0


def sweep(state: State, policy: Policy, now_ms: int) -> Outcome:
    """One sweep of the whole queue, in place.

    Args:
        state: the queue; changed.
        policy: what the user chose.
        now_ms: what the server's clock says.

    Returns:
        What was done. ``refused`` maps an id to a word that the reason must contain.
    """
    if b"stalled-check" in state.keys:
        return Outcome(status="throttled")
    state.put(b"stalled-check", b"taken")
    outcome = Outcome()
    marked_before = set(state.members(b"stalled"))
    active_before = set(state.items(b"active"))
    dead = [i for i in _oldest_first(state.items(b"active")) if not state.locked(i)]
    due = [i for i in dead if i in marked_before]
    outcome.marked = [i for i in dead if i not in marked_before]

    if _must_hold(state, policy):
        outcome.status = "held"
        outcome.held = due
    else:
        _recover(state, policy, due, now_ms, outcome)

    strays = marked_before - active_before
    if policy.mark == "active":  # BullMQ's way: the marks are whatever is active now
        outcome.strays = strays
        after = set(state.items(b"active"))
    else:
        outcome.cleared = {i for i in marked_before if state.locked(i)}
        outcome.strays = strays - outcome.cleared
        kept = state.members(b"stalled") - outcome.cleared - outcome.strays
        after = kept | set(outcome.marked)
    outcome.marks_placed = len(after - marked_before)
    state.put(b"stalled", after)

    trims = policy.mark == "active" or outcome.stalled
    if policy.dialect == "bullmq" and trims:
        state.put(b"meta", {b"opts.maxLenEvents": DEFAULT_MAX_EVENTS, **state.meta})
    return outcome


def _oldest_first(active: list[bytes]) -> list[bytes]:
    """Each id once, by its sighting nearest the tail."""
    return list(dict.fromkeys(reversed(active)))


def _version(state: State, policy: Policy) -> tuple[int, int, int] | None:
    """Of the BullMQ that owns the queue; one that is cut short is the latest of its line."""
    text = policy.bullmq_version
    if text is None:
        told = re.fullmatch(rb"bullmq:(.*)", state.meta.get(b"version", b""), re.DOTALL)
        text = told[1].decode("latin-1") if told else ""
    found = re.fullmatch(r"v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?(?:[-+.].*)?", text, re.DOTALL)
    return None if found is None else (int(found[1]), int(found[2] or 999), int(found[3] or 999))


def _paused_list(state: State, policy: Policy) -> bool | None:
    """Whether a paused queue keeps its jobs in ``paused``. A wrong guess strands them; ``None`` is no guess."""
    if policy.dialect != "bullmq":
        return True
    version = _version(state, policy)
    if version is not None and version[0] <= 6:
        return version[0] < 6
    waiting, paused = bool(state.items(b"wait")), bool(state.items(b"paused"))
    return None if waiting == paused else paused


def _must_hold(state: State, policy: Policy) -> bool:
    return b"paused" in state.meta and _paused_list(state, policy) is None


def _recover(state: State, policy: Policy, due: Iterable[bytes], now_ms: int, outcome: Outcome) -> None:
    """Take every id of ``due`` out of active, to where it belongs; leave what cannot be judged."""
    leaving: set[bytes] = set()
    back: list[bytes] = []
    events: list[tuple[bytes, ...]] = []
    for job_id in due:
        verdict = _judge(state, policy, job_id)
        if verdict == "ghost":
            outcome.ghosts.append(job_id)
        elif verdict:
            outcome.refused[job_id] = verdict
            continue
        else:
            to_wait, reason = _count(state, policy, job_id, now_ms)
            outcome.stalled.append(job_id)
            (outcome.failed if reason else outcome.recovered).append(job_id)
            if to_wait:
                back.append(job_id)
                events.append((b"event", b"waiting", b"jobId", job_id, b"prev", b"active"))
                events.append((b"event", b"stalled", b"jobId", job_id))
            else:
                events.append((b"event", b"failed", b"jobId", job_id, b"failedReason", reason, b"prev", b"active"))
        leaving.add(job_id)
    state.put(b"active", [i for i in state.items(b"active") if i not in leaving])
    state.put(b"stalled", state.members(b"stalled") - leaving)
    _push(state, policy, back)
    _wake(state, leaving, back)
    stream = state.keys.get(b"events", Stream())
    if events and isinstance(stream, Stream):  # a key of another type costs the events, nothing else
        state.put(b"events", Stream([*stream, *events]))


def _judge(state: State, policy: Policy, job_id: bytes) -> str:
    """``""`` for a job to recover, ``"ghost"``, or a word of the reason why it is refused."""
    if policy.dialect == "bullmq" and job_id.startswith(b"0:"):
        return "ghost"  # BullMQ 4 kept its markers among the jobs
    if job_id in OWN_KEYS:
        return "own keys"
    job = state.job(job_id)
    if job is None:
        return "no hash" if job_id in state.keys else "ghost"
    if job_id in state.scores(b"completed") or job_id in state.scores(b"failed"):
        return "ghost"
    if b"finishedOn" in job:
        return "finishedOn"
    for counter in (b"stc", b"atm") if policy.dialect == "echomq" else (b"stc",):
        if not re.fullmatch(rb"-?[0-9]{1,15}", job.get(counter, b"0")):
            return counter.decode()
    return ""


def _count(state: State, policy: Policy, job_id: bytes, now_ms: int) -> tuple[bool, bytes]:
    """Raise the counters. Whether the job goes on to wait, and the reason when it passed a ceiling."""
    job = state.job(job_id)
    assert job is not None
    stalls = _raise(job, b"stc")
    too_many = stalls > policy.max_stalled_count
    if policy.dialect == "bullmq":
        if not too_many or _exempt(state, policy, job):
            return True, b""
        job[b"defa"] = STALLS  # the worker that takes it next fails it
        return True, STALLS
    attempts = _raise(job, b"atm")
    limit = _max_attempts(job, policy)
    if not too_many and (limit is None or attempts < limit):
        return True, b""
    reason = STALLS if too_many else ATTEMPTS
    job[b"failedReason"] = reason
    job[b"finishedOn"] = b"%d" % now_ms
    state.put(b"failed", ZSet({**state.scores(b"failed"), job_id: float(now_ms)}))
    return False, reason


def _raise(job: Hash, counter: bytes) -> int:
    value = int(job.get(counter, b"0")) + 1
    job[counter] = b"%d" % value
    return value


def _exempt(state: State, policy: Policy, job: Hash) -> bool:
    """Whether the ceiling is not for this job: since 5.78.1 while its scheduler lives, from 5.58.8 by its options."""
    version = _version(state, policy) or (6, 0, 0)
    if version < (5, 58, 8):
        return False
    if version < (5, 78, 1):
        return _opts(job).get("repeat", False) is not False
    scheduler = job.get(b"rjk")
    if scheduler is None:
        return False
    return b"repeat:" + scheduler in state.keys or scheduler in state.scores(b"repeat")


def _max_attempts(job: Hash, policy: Policy) -> float | None:
    """The job's own attempts where its options name a number of 1 or more, else the user's."""
    attempts = _opts(job).get("attempts")
    if isinstance(attempts, int | float) and not isinstance(attempts, bool) and attempts >= 1:
        return attempts
    return policy.max_attempts


def _opts(job: Hash) -> dict[str, Any]:
    """The job's options, as far as they can be read."""
    text = job.get(b"opts", b"")
    if not 0 < len(text) <= OPTS_LIMIT:
        return {}
    try:
        opts = json.loads(text.decode("latin-1"))  # what is not UTF-8 is no reason to lose the rest
    except (ValueError, RecursionError):
        return {}
    return opts if isinstance(opts, dict) else {}


def _push(state: State, policy: Policy, back: list[bytes]) -> None:
    """Put recovered jobs where workers find them, the oldest to be taken first."""
    if not back:
        return
    target = b"paused" if b"paused" in state.meta and _paused_list(state, policy) else b"wait"
    youngest_first = back[::-1]
    waiting = state.items(target)
    state.put(target, waiting + youngest_first if policy.to_front else youngest_first + waiting)


def _wake(state: State, leaving: set[bytes], back: list[bytes]) -> None:
    """Wake a worker where jobs came to wait; and where room was made for one that waited for it already."""
    concurrency = state.meta.get(b"concurrency", b"")
    limited = re.fullmatch(rb"-?[0-9]+", concurrency)
    full = limited and len(state.items(b"active")) >= int(concurrency)
    waits = back or (limited and leaving and state.items(b"wait"))
    if waits and b"paused" not in state.meta and not full:
        state.put(b"marker", ZSet({**state.scores(b"marker"), b"0": 0.0}))
