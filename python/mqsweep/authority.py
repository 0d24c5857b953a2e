"""The half that writes: calls of the one Lua script, in bounded batches. What it answers is the truth."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .connect import Packed
from .dialects import Policy
from .drive import Steps
from .errors import ProtocolError
from .keys import QueueKeys, to_str
from .plan import Entry, Plan
from .script import Answer, answer_to, evaluate

FIRST_BATCH = 32
LARGEST = {"recover": 500, "mark": 1000, "clear": 1000}
"""Entries per call at most: keys and arguments together stay under 3,900 in each."""
NO_KEYS = Packed(0, b"")
TRIES = 3
"""How often a batch is sent when its reply is lost."""

log = logging.getLogger("mqsweep")


@dataclass
class Outcome:
    """What the script did, by its own words, gathered over the batches of one sweep. Ids are bytes.

    The recovered are the stalled that are not among the failed.
    """

    stalled: list[bytes] = field(default_factory=list)
    failed: list[bytes] = field(default_factory=list)
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


@dataclass(frozen=True)
class _Batch:
    """Entries on their way to the script, encoded while it was busy with those before."""

    entries: Sequence[Any]
    keys: Packed = NO_KEYS
    arguments: tuple[bytes | str | int, ...] = ()


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
        progress: told (done, total) recoveries after each batch, and the longest call so far in seconds.
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
        progress: Callable[[int, int, float], None] = lambda done, total, longest: None,
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
        self._schedulers: dict[bytes, bytes] = {}
        """Keys that jobs past their ceiling asked for."""
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
        def encode(entries: Sequence[Entry]) -> _Batch:
            locks = map(self._keys.lock, (entry.job_id for entry in entries))
            return _Batch(entries, Packed.of(locks), (_places(entries),))

        def read(entries: Sequence[Entry], answer: Answer) -> Collection[bytes]:
            for entry, letter in zip(entries, answer.letters.decode(), strict=False):
                if letter == "k":
                    self.outcome.marked.append(entry.job_id)
            return ()

        yield from self._batches("mark", plan.mark, encode, read)

    def _clear(self, ids: Sequence[bytes], into: list[bytes]) -> Steps[None]:
        def encode(entries: Sequence[bytes]) -> _Batch:
            return _Batch(entries, arguments=tuple(entries))

        def read(entries: Sequence[bytes], answer: Answer) -> Collection[bytes]:
            into.extend(e for e, letter in zip(entries, answer.letters.decode(), strict=False) if letter == "c")
            return ()

        yield from self._batches("clear", ids, encode, read)

    def _cover(self) -> Steps[None]:
        start = 0
        # trimmed once a sweep, and never after its own events: those must be there to be read
        events = [] if self.outcome.stalled else [self._keys.of("events")]
        while True:
            _, answer = yield from self._until_answered("cover", [start], Packed.of(events))
            assert answer is not None  # only recoveries are held
            start, events = answer.drift, []
            if start == 0 or self._ended():
                return

    def _recover(self, plan: Plan) -> Steps[None]:
        outcome = self.outcome
        outcome.held.extend(plan.held)
        total, before = len(plan.recover), outcome.unconfirmed

        def read(entries: Sequence[Entry], answer: Answer) -> Collection[bytes]:
            given_up = self._read_recovery(entries, answer)
            self._progress(len(outcome.stalled) + outcome.unconfirmed - before, total, outcome.longest_call)
            return given_up

        left = yield from self._batches("recover", plan.recover, self._encode, read)
        (outcome.missed if outcome.stopped else outcome.held).extend(entry.job_id for entry in left)

    def _encode(self, entries: Sequence[Entry]) -> _Batch:
        shared = Packed.of(map(self._keys.of, ("events", "repeat", "completed")))
        ids = [entry.job_id for entry in entries]
        asked = [i for i, job_id in enumerate(ids) if job_id in self._schedulers] if self._schedulers else []
        schedulers = Packed.of(self._schedulers[ids[i]] for i in asked)
        index = json.dumps({str(i + 1): n for n, i in enumerate(asked, 1)})
        return _Batch(entries, shared + _job_keys(self._keys.base, ids) + schedulers, (_places(entries), index))

    def _read_recovery(self, entries: Sequence[Entry], answer: Answer) -> Collection[bytes]:
        outcome, consumed, letters = self.outcome, answer.consumed, answer.letters
        notes = {i - 1: text for i, text in zip(answer.texts[::2], answer.texts[1::2], strict=True)}
        if not letters.strip(b"r"):  # as almost always
            outcome.stalled += (entry.job_id for entry in entries[:consumed])
            letters = b""
        for i, letter in enumerate(letters.decode()):
            job_id = entries[i].job_id
            if letter == "x":
                outcome.refused[job_id] = notes[i].decode()
            elif letter in _INTO:
                getattr(outcome, _INTO[letter]).append(job_id)
            if letter in "rf":
                outcome.stalled.append(job_id)
        wanted = {entries[i].job_id: note for i, note in notes.items() if i >= consumed}
        given_up = wanted.keys() & self._schedulers.keys()  # it changed schedulers under our eyes
        outcome.missed.extend(given_up)
        self._schedulers.update((job_id, self._keys.of("repeat") + b":" + note) for job_id, note in wanted.items())
        return given_up

    def _batches(
        self,
        op: str,
        items: Sequence[Any],
        encode: Callable[[Sequence[Any]], _Batch],
        read: Callable[[Sequence[Any], Answer], Collection[bytes]],
    ) -> Generator[Any, Any, Sequence[Any]]:
        """Send all items in calls of a fitting size, each encoded while the server is busy with the one before.

        Args:
            op: what the script is asked to do.
            items: to whom.
            encode: makes a batch of some of them.
            read: takes the answer about a batch's entries; says which ids of those to come are given up.

        Returns:
            Those not sent because of a stop or a held queue.
        """
        pace = Pace(self._max_pause, LARGEST[op])
        at = drift = 0

        def cut(start: int) -> _Batch:
            return encode(items[start : start + pace.size])

        def prepare(start: int, into: list[_Batch]) -> None:
            into.append(cut(start))

        batch = cut(0)
        while batch.entries:
            if self._ended():
                return items[at:]
            arguments = batch.arguments if op == "clear" else (drift, *batch.arguments)
            ahead: list[_Batch] = []
            meanwhile = partial(prepare, at + len(batch.entries), ahead)
            lost, answer = yield from self._until_answered(op, arguments, batch.keys, meanwhile)
            if answer is None:
                return items[at:]
            if lost:  # what the lost call did comes back as "not marked": done or gone, we cannot tell
                self.outcome.unconfirmed += answer.letters.count(b"u")
            consumed, drift, moved = answer.consumed, answer.drift, answer.moved
            if not (0 if answer.texts else 1) <= consumed <= len(batch.entries):
                raise ProtocolError(f"the script says that it consumed {consumed} of {len(batch.entries)} entries")
            given_up = read(batch.entries, answer)
            if not any(index > consumed for index in answer.texts[::2]):  # else it stopped for a key, not for the clock
                pace.learn(len(batch.entries), consumed, answer.micros)
            at += consumed
            if moved or given_up:
                items, at = _rebased([e for e in items[at:] if e.job_id not in given_up], moved, drift), 0
            as_foreseen = consumed == len(batch.entries) and not moved and not given_up
            batch = ahead[-1] if as_foreseen else cut(at)
        return []

    def _until_answered(
        self,
        op: str,
        arguments: Sequence[bytes | str | int],
        keys: Packed,
        meanwhile: Callable[[], object] | None = None,
    ) -> Generator[Any, Any, tuple[bool, Answer | None]]:
        """Send, and send again when the reply is lost: all is verified again, so nothing is done twice."""
        for attempt in range(TRIES):
            try:
                answer = yield from self._call(op, arguments, keys, meanwhile)
            except (self._exceptions.ConnectionError, self._exceptions.TimeoutError):
                if attempt == TRIES - 1:
                    raise
                log.warning("%s: the reply to a batch was lost, sending it again", to_str(self._keys.base))
            else:
                return attempt > 0, answer
        raise AssertionError  # pragma: no cover - the loop returns or raises

    def _ended(self) -> bool:
        self.outcome.stopped = self.outcome.stopped or self._stop()
        return self.outcome.stopped

    def _call(
        self,
        op: str,
        arguments: Sequence[bytes | str | int],
        keys: Packed = NO_KEYS,
        meanwhile: Callable[[], object] | None = None,
        *,
        ttl: int | None = None,
    ) -> Steps[Answer | None]:
        """One call. ``None`` = the script holds recoveries back."""
        budget = round(self._max_pause * 1e6 / 2)
        head = (self._keys.base, self._policy.max_stalled_count, 0, self._ttl if ttl is None else ttl)
        argv = (*head, self._json, self._token, budget, op, *arguments)
        reply = yield from evaluate(Packed.of(self._keys.script_keys) + keys, argv, self._exceptions, meanwhile)
        outcome = self.outcome
        outcome.calls += 1
        answer = answer_to(reply)
        if answer is not None:
            outcome.longest_call = max(outcome.longest_call, answer.micros / 1e6)
            outcome.marks_placed += answer.placed
            if answer.lost:
                log.warning("%s: %d events could not be written", to_str(self._keys.base), answer.lost)
        return answer


_INTO = {"f": "failed", "g": "ghosts", "l": "cleared", "m": "missed"}


def _rebased(entries: list[Entry], moved: list[Any], drift: int) -> list[Entry]:
    """The entries to come, with the new places of those that a removal moved; oldest first again.

    Args:
        entries: those to come.
        moved: ``[id, distance, ...]``; an id that stands in active twice may have moved twice.
        drift: how far the distances in `entries` have fallen by now.
    """
    places: dict[bytes, list[int]] = {}
    for job_id, place in zip(moved[::2], moved[1::2], strict=True):
        places.setdefault(job_id, []).append(place + drift)
    rebased = [Entry(job_id, (*sorted(places.get(job_id, ())), *distances)) for job_id, distances in entries]
    return sorted(rebased, key=lambda entry: entry.distances[0])


def _job_keys(base: bytes, ids: Sequence[bytes]) -> Packed:
    """Job and lock of each."""
    n = len(base) + 1
    parts = [b"$%d\r\n%b:%b\r\n$%d\r\n%b:%b:lock\r\n" % (n + len(i), base, i, n + 5 + len(i), base, i) for i in ids]
    return Packed(2 * len(ids), b"".join(parts))


def _places(entries: Sequence[Entry]) -> str:
    """Where they stand, as the script reads it."""
    return json.dumps([places if len(places) > 1 else places[0] for _, places in entries])
