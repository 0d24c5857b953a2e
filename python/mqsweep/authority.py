"""The half that writes: calls of the one Lua script, in bounded batches. What it answers is the truth."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from .connect import Command
from .dialects import Policy
from .drive import Commands, Steps
from .errors import MQSweepError, ScriptError, WrongTypeError
from .keys import QueueKeys, to_str
from .plan import Entry, Plan

SCRIPT_NAME = "moveStalledJobsToWait-8.lua"
FIRST_BATCH = 32
LARGEST = {"recover": 500, "mark": 1000, "clear": 1000}
"""Entries per call at most: keys and arguments together stay under 3,900 in each."""
TRIES = 3
"""How often a batch is sent when its reply is lost."""

_DENIED = re.compile(r"ACL failure in script|The user executing the script can't")
"""How servers tell that the user may not run a command inside a script; redis-py knows only what begins with NOPERM."""

log = logging.getLogger("mqsweep")
Item = TypeVar("Item")


@cache
def script_source() -> str:
    """The script's text: the tree's own in a development checkout, else the package's.

    Raises:
        ScriptError: the installation lacks it.
    """
    tree = Path(__file__).resolve().parents[2]
    if (tree / "pyproject.toml").is_file() and (tree / "lua" / SCRIPT_NAME).is_file():
        return (tree / "lua" / SCRIPT_NAME).read_text("utf-8")
    packaged = resources.files("mqsweep") / "lua" / SCRIPT_NAME
    if not packaged.is_file():
        raise ScriptError(f"{SCRIPT_NAME} is missing from this installation; install mqsweep again")
    return packaged.read_text("utf-8")


@cache
def script_digest() -> str:
    """The SHA-1 by which the server knows the script."""
    return hashlib.sha1(script_source().encode(), usedforsecurity=False).hexdigest()


def evaluate(keys: Sequence[bytes], arguments: Sequence[bytes | str | int], exceptions: Any) -> Steps[Any]:
    """Call the script by its digest, and by its text where the server does not know it.

    Args:
        keys: KEYS.
        arguments: ARGV.
        exceptions: the client's exceptions module.

    Raises:
        WrongTypeError: one of the queue's keys is of another type.
        ScriptError: the script failed or refused its arguments.
        redis.exceptions.ResponseError: the server refused (``NOPERM``, ``OOM``, ``READONLY``, ...).
    """
    tail: Command = (len(keys), *keys, *arguments)
    (reply,) = yield Commands([("EVALSHA", script_digest(), *tail)])
    if isinstance(reply, exceptions.NoScriptError):
        (reply,) = yield Commands([("EVAL", script_source(), *tail)])
    if isinstance(reply, Exception):
        text = str(reply)
        if text.startswith("WRONGTYPE"):
            raise WrongTypeError(text.removeprefix("WRONGTYPE ")) from reply
        if _DENIED.search(text):
            raise exceptions.NoPermissionError(text) from reply
        if type(reply) is exceptions.ResponseError and not text.startswith("BUSY"):
            raise ScriptError(text) from reply
        raise reply
    return reply


class Fenced(MQSweepError):
    """The lease is not ours any more; nothing was changed by the call that found out."""


@dataclass
class Outcome:
    """What the script did, by its own words, gathered over the batches of one sweep. Ids are bytes."""

    recovered: list[bytes] = field(default_factory=list)
    failed: list[bytes] = field(default_factory=list)
    stalled: list[bytes] = field(default_factory=list)
    marked: list[bytes] = field(default_factory=list)
    cleared: list[bytes] = field(default_factory=list)
    strays: list[bytes] = field(default_factory=list)
    ghosts: list[bytes] = field(default_factory=list)
    missed: list[bytes] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)
    refused: dict[bytes, str] = field(default_factory=dict)
    marks_placed: int = 0
    unconfirmed: int = 0
    calls: int = 0
    longest_call: float = 0.0
    stopped: bool = False


class Pace:
    """How many entries the next call gets, so that it ends within its budget.

    Args:
        max_pause: seconds that one call may hold the server.
        largest: entries per call at most.
    """

    def __init__(self, max_pause: float, largest: int) -> None:
        self._budget = max_pause * 1e6 / 2  # half for looking; writing takes about as long
        self._largest = largest
        self.size = FIRST_BATCH

    def learn(self, sent: int, consumed: int, micros: int) -> None:
        """Size the next call by what this one did."""
        if consumed < sent:
            self.size = max(1, consumed)
        elif micros > 0 and sent >= self.size:  # 0: no clock moves inside a script there, so do not grow
            fitting = int(consumed * self._budget / micros)
            self.size = max(1, min(fitting, 2 * self.size, self._largest))


@dataclass
class _Job:
    """An entry on its way, with the scheduler key that it asked for."""

    entry: Entry
    scheduler: bytes | None = None


class Authority:
    """One sweep's calls of the script.

    Args:
        keys: the queue's keys.
        policy: what to do with a stalled job.
        token: our value in ``stalled-check``.
        ttl: milliseconds that each call keeps the lease at.
        max_pause: seconds that one call may hold the server.
        exceptions: the client's exceptions module.
        stop: says whether to end between two batches.
        progress: told (done, total) recoveries after each batch.
    """

    def __init__(
        self,
        keys: QueueKeys,
        policy: Policy,
        token: bytes,
        *,
        ttl: int,
        max_pause: float,
        exceptions: Any,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._keys = keys
        self._policy = policy
        self._json = policy.to_json()
        self._token = token
        self._ttl = ttl
        self._max_pause = max_pause
        self._exceptions = exceptions
        self._stop = stop
        self._progress = progress
        self.outcome = Outcome()

    def expire(self, ttl: int) -> Steps[None]:
        """Leave the lease this many milliseconds to live, or give it back when there are none.

        Raises:
            Fenced: it is not ours.
        """
        yield from self._call("lease", [b"expire"], ttl=ttl)

    def take_over(self, holder: bytes, ttl: int) -> Steps[None]:
        """Make the lease ours if its key still holds that value.

        Raises:
            Fenced: it does not.
        """
        yield from self._call("lease", [b"takeover", holder], ttl=ttl)

    def apply(self, plan: Plan) -> Steps[None]:
        """Have the plan carried out, batch by batch; `outcome` tells what became of it.

        Raises:
            Fenced: the lease was lost on the way; what was done until then stands.
        """
        if not plan.cover:
            yield from self._mark(plan)
        yield from self._recover(plan)
        yield from self._clear(plan.clear, self.outcome.cleared)
        yield from self._clear(plan.strays, self.outcome.strays)
        if plan.cover:
            yield from self._cover()
            self.outcome.marked.extend(entry.job_id for entry in plan.mark)

    def _mark(self, plan: Plan) -> Steps[None]:
        def send(entries: Sequence[Entry], drift: int) -> Steps[list[Any]]:
            arguments: list[bytes | str | int] = [drift]
            for job_id, places in entries:
                arguments += (job_id, _joined(places))
            return (yield from self._call("mark", arguments, [self._keys.lock(e.job_id) for e in entries]))

        def read(entries: Sequence[Entry], reply: list[Any]) -> None:
            for entry, letter in zip(entries, reply[4].decode(), strict=False):
                if letter == "k":
                    self.outcome.marked.append(entry.job_id)

        yield from self._batches("mark", list(plan.mark), send, read)

    def _clear(self, ids: Sequence[bytes], into: list[bytes]) -> Steps[None]:
        def send(entries: Sequence[bytes], drift: int) -> Steps[list[Any]]:
            return (yield from self._call("clear", entries))

        def read(entries: Sequence[bytes], reply: list[Any]) -> None:
            into.extend(e for e, letter in zip(entries, reply[4].decode(), strict=False) if letter == "c")

        yield from self._batches("clear", list(ids), send, read)

    def _cover(self) -> Steps[None]:
        start = 0
        # trimmed once a sweep, and never after its own events: those must be there to be read
        events = [] if self.outcome.stalled else [self._keys.of("events")]
        while True:
            _, reply = yield from self._until_answered(
                lambda s=start, e=events: self._call("cover", [s], e)  # type: ignore[misc]
            )
            start, events = reply[3], []
            if start == 0 or self._ended():
                return

    def _recover(self, plan: Plan) -> Steps[None]:
        outcome = self.outcome
        outcome.held.extend(plan.held)
        jobs = [_Job(entry) for entry in plan.recover]
        total, before = len(jobs), outcome.unconfirmed

        def send(batch: Sequence[_Job], drift: int) -> Steps[list[Any]]:
            return (yield from self._call("recover", *self._encode(batch, drift)))

        def read(batch: Sequence[_Job], reply: list[Any]) -> None:
            self._read_recovery(batch, reply, jobs)
            self._progress(len(outcome.stalled) + outcome.unconfirmed - before, total)

        left = yield from self._batches("recover", jobs, send, read, _rebased)
        (outcome.missed if outcome.stopped else outcome.held).extend(job.entry.job_id for job in left)

    def _encode(self, batch: Sequence[_Job], drift: int) -> tuple[list[bytes | str | int], list[bytes]]:
        arguments: list[bytes | str | int] = [drift]
        keys = [self._keys.of("events"), self._keys.of("repeat"), self._keys.of("completed")]
        schedulers: list[bytes] = []
        for job in batch:
            job_id = job.entry.job_id
            keys += (self._keys.job(job_id), self._keys.lock(job_id))
            if job.scheduler is not None:
                schedulers.append(job.scheduler)
            arguments += (job_id, _joined(job.entry.distances), len(schedulers) if job.scheduler else 0)
        return arguments, keys + schedulers

    def _read_recovery(self, batch: Sequence[_Job], reply: list[Any], jobs: list[_Job]) -> None:
        _, consumed, _, _, letters, texts = reply[:6]
        outcome = self.outcome
        notes = {texts[i] - 1: texts[i + 1] for i in range(0, len(texts), 2)}
        for i, letter in enumerate(letters.decode()):
            job_id = batch[i].entry.job_id
            if letter == "x":
                outcome.refused[job_id] = notes[i].decode()
            elif letter in _INTO:
                getattr(outcome, _INTO[letter]).append(job_id)
            if letter in "rf":
                outcome.stalled.append(job_id)
        for i, note in notes.items():
            if i < consumed:
                continue
            if batch[i].scheduler is not None:  # it changed schedulers under our eyes: leave it to the next sweep
                outcome.missed.append(batch[i].entry.job_id)
                jobs.remove(batch[i])
            else:
                batch[i].scheduler = self._keys.of("repeat") + b":" + note

    def _batches(
        self,
        op: str,
        items: list[Item],
        send: Callable[[Sequence[Item], int], Steps[list[Any]]],
        read: Callable[[Sequence[Item], list[Any]], None],
        rebase: Callable[[list[Item], list[Any], int], list[Item]] | None = None,
    ) -> Generator[Any, Any, list[Item]]:
        """Send all items in calls of a fitting size. Returns those not sent because of a stop or a held queue."""
        pace = Pace(self._max_pause, LARGEST[op])
        at = drift = 0
        while at < len(items):
            if self._ended():
                return items[at:]
            batch = items[at : at + pace.size]
            lost, reply = yield from self._until_answered(lambda b=batch, d=drift: send(b, d))  # type: ignore[misc]
            if reply[0] == b"held":
                return items[at:]
            if lost:  # what the lost call did comes back as "not marked": done or gone, we cannot tell
                self.outcome.unconfirmed += reply[4].count(b"u")
            read(batch, reply)
            consumed, micros, drift = reply[1], reply[2], reply[3]
            if not any(index > consumed for index in reply[5][::2]):  # else it stopped for a key, not for the clock
                pace.learn(len(batch), consumed, micros)
            at += consumed
            if reply[8] and rebase:
                items[at:] = rebase(items[at:], reply[8], drift)
        return []

    def _until_answered(self, send: Callable[[], Steps[list[Any]]]) -> Generator[Any, Any, tuple[bool, list[Any]]]:
        """Send, and send again when the reply is lost: all is verified again, so nothing is done twice."""
        for attempt in range(TRIES):
            try:
                reply = yield from send()
            except (self._exceptions.ConnectionError, self._exceptions.TimeoutError):
                if attempt == TRIES - 1:
                    raise
                log.warning("%s: the reply to a batch was lost, sending it again", to_str(self._keys.base))
            else:
                return attempt > 0, reply
        raise AssertionError  # pragma: no cover - the loop returns or raises

    def _ended(self) -> bool:
        self.outcome.stopped = self.outcome.stopped or self._stop()
        return self.outcome.stopped

    def _call(
        self,
        op: str,
        arguments: Sequence[bytes | str | int],
        keys: Sequence[bytes] = (),
        ttl: int | None = None,
    ) -> Steps[list[Any]]:
        budget = round(self._max_pause * 1e6 / 2)
        head = (self._keys.base, self._policy.max_stalled_count, 0, self._ttl if ttl is None else ttl)
        argv = (*head, self._json, self._token, budget, op, *arguments)
        reply = yield from evaluate((*self._keys.script_keys, *keys), argv, self._exceptions)
        outcome = self.outcome
        outcome.calls += 1
        if reply[0] == b"fenced":
            raise Fenced(f"the lease is held by {to_str(reply[1])[:100]!r}")
        if reply[0] == b"ok":
            outcome.longest_call = max(outcome.longest_call, reply[2] / 1e6)
            outcome.marks_placed += reply[6]
            if reply[7]:
                log.warning("%s: %d events could not be written", to_str(self._keys.base), reply[7])
        return list(reply)


_INTO = {"r": "recovered", "f": "failed", "g": "ghosts", "l": "cleared", "m": "missed"}


def _rebased(jobs: list[_Job], moved: list[Any], drift: int) -> list[_Job]:
    """The jobs to come, with the new places of those that a removal moved; oldest first again.

    Args:
        jobs: the jobs to come.
        moved: ``[id, distance, ...]``; an id that stands in active twice may have moved twice.
        drift: how far the distances in `jobs` have fallen by now.
    """
    places: dict[bytes, list[int]] = {}
    for job_id, place in zip(moved[::2], moved[1::2], strict=True):
        places.setdefault(job_id, []).append(place + drift)
    for job in jobs:
        if new := places.get(job.entry.job_id):
            job.entry = Entry(job.entry.job_id, (*sorted(new), *job.entry.distances))
    return sorted(jobs, key=lambda job: job.entry.distances[0])


def _joined(distances: Sequence[int]) -> str:
    return ",".join(map(str, distances))
