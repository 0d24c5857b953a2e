"""Random queues: benign ones that BullMQ itself could have left, and hostile ones.

Most are small, so that a failure shrinks to something a person can read; one in forty has several
hundred jobs, so that windows, batches and calls that stop half-way are met too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from support.model import OWN_KEYS, Hash, Keys, Policy, State, Stream, Value, ZSet

T = TypeVar("T")


class Choose(Protocol):
    """One of the options; where hypothesis chooses, it shrinks towards the first."""

    def __call__(self, options: Sequence[T], /) -> T: ...


LARGE = (200, 700)
_ONE_IN = 40

ORDINARY_IDS = (
    b"custom-id",
    b"repeat:cron:1700000000000",
    "größe-✓".encode(),
    b"a:b",
    b"0",
    b"x y",
    b"{tag}",
)
HOSTILE_IDS = (
    b"", b" ", b"\r\n", b"$-1\r\n", b"*3\r\n$1\r\na", b"a\x00b", b"\xff\xfe", b"\xc3",
    b"1:lock", b":lock", b"1:lock:lock", b"-1", b"1,2", b"%s%d", b"repeat:s1", b"repeat:", b"x" * 300, b"y" * 70_000,
)  # fmt: skip
MARKER_IDS = (b"0:1", b"0:", b"0:1700000000000")
"""BullMQ 4 kept markers among the jobs."""

COUNTERS = (b"1", b"2", b"3", b"9", b"0", b"41")
ODD_COUNTERS = (
    b"-3",
    b"007",
    b"123456789012345",
    b"1.5",
    b"",
    b"x",
    b"1e3",
    b" 1",
    b"1\n",
    b"1234567890123456",
    b"--1",
    b"nan",
)
OPTS = (
    b"{}", b'{"attempts":1}', b'{"attempts":2}', b'{"attempts":3}', b'{"attempts":0}', b'{"attempts":5,"delay":100}',
    b'{"backoff":{"type":"fixed","attempts":9},"attempts":4}', b'{"repeat":{"every":1000}}', b'{"repeat":false}',
)  # fmt: skip
ODD_OPTS = (
    b'{"attempts":"1"}', b'{"attempts":true}', b'{"attempts":null}', b'{"attempts":-1}', b'{"attempts":0.5}',
    b'{"attempts":1.5}', b'{"attempts":[1]}', b'{"attempts":{"x":1}}', b'{"attempts":1', b"", b"null", b"1", b'"attempts"',
    b"[]", b"[1,2]", b'[{"attempts":1}]', b'{"attempts":1e0}', b'{"attempts":1e400}', b'{"a":"\xff","attempts":1}',
    b'{"repeat":null}', b'{"repeat":0}', b"[" * 5_000, b'{"attempts":1,"pad":"' + b"x" * 65_520 + b'"}', b'{"attempts":1} x',
)  # fmt: skip
WRONG_TYPES: tuple[Value, ...] = (b"text", [b"a"], {b"m"}, ZSet({b"m": 1.0}), Stream([(b"f", b"v")]))


@st.composite
def states(draw: st.DrawFn, build: Callable[[Choose, int], State]) -> State:
    """States made by a builder such as :func:`benign`, small or, now and then, large."""
    if draw(st.integers(0, _ONE_IN - 1)) == _ONE_IN - 1:
        # Hypothesis cannot draw so much; one seed stands for all of it.
        chance = random.Random(draw(st.integers(0, 2**32)))
        return build(chance.choice, chance.randint(*LARGE))

    def choose(options: Sequence[T], /) -> T:
        return options[draw(st.integers(0, len(options) - 1))]

    return build(choose, draw(st.integers(0, 12)))


def policies(dialect: str) -> st.SearchStrategy[Policy]:
    """Any policy of a dialect."""
    versions = (None, None, None, "6.2.0", "6", "5.81.3", "5.70.0", "5.54.0", "5", "7.0.0")
    return st.builds(
        Policy,
        dialect=st.just(dialect),
        mark=st.sampled_from(("lockless", "active")),
        requeue=st.sampled_from((None, "back", "front")),
        max_stalled_count=st.sampled_from((1, 0, 3, 40)),
        max_attempts=st.sampled_from((None, 1, 2, 4)) if dialect == "echomq" else st.none(),
        bullmq_version=st.sampled_from(versions) if dialect == "bullmq" else st.none(),
    )


def benign(choose: Choose, size: int) -> State:
    """A queue as BullMQ 6 leaves it: what row 9 of the measures asks equality on.

    Every active id has a hash, stands once and in no other list; counters are numbers. Beside that:
    paused or not, concurrency reached or not, schedulers alive and gone, strays, priorities.
    """
    keys: Keys = {}
    lists: dict[bytes, list[bytes]] = {b"active": [], b"wait": [], b"paused": []}
    ends: dict[bytes, ZSet] = {b"completed": ZSet(), b"failed": ZSet(), b"prioritized": ZSet()}
    marks: set[bytes] = set()
    for number, job_id in enumerate(_ids(choose, size, ORDINARY_IDS)):
        place = choose((b"active",) * 7 + (b"wait", b"completed", b"failed", b"prioritized", b""))
        job = _fields(choose, COUNTERS, OPTS)
        if place in lists:
            lists[place].append(job_id)
        elif place in ends:
            ends[place][job_id] = float(1_700_000_000_000 + number)
        if place in (b"completed", b"failed"):
            job[b"finishedOn"] = b"1700000000000"
        if place:
            keys[job_id] = job
        if choose((True, False)) if place == b"active" else choose((False, False, False, True)):
            marks.add(job_id)
        if place == b"active" and choose((False, False, True)):
            keys[job_id + b":lock"] = b"token-%d" % number
    _assemble(keys, lists, ends, marks)
    _schedulers(choose, keys)
    _events(choose, keys)
    if choose((False, True)):
        keys[b"marker"] = ZSet(choose(({b"0": 0.0}, {b"1": 5.0}, {b"0": 0.0, b"1": 7.0})))
    meta: Hash = {}
    if choose((False, True)):
        # Many batches trim often, one script trims once; with many events how often would show.
        meta[b"opts.maxLenEvents"] = choose((b"10000", b"20000", b"100") if size < 20 else (b"10000",))
    if choose((False, True)):
        # Around the number of active jobs: reached, just freed by the recoveries, and far away.
        meta[b"concurrency"] = b"%d" % max(
            1, len(lists[b"active"]) + choose((0, -1, -2, 1, -len(lists[b"active"]) // 2, 50))
        )
    if choose((False, False, True)):
        meta[b"paused"] = b"1"
    if b"paused" in meta or choose((False, True)):
        meta[b"version"] = choose((b"bullmq:6.2.0", b"bullmq:6.0.0-rc.1"))
    if meta:
        keys[b"meta"] = meta
    return State(keys)


def hostile(choose: Choose, size: int) -> State:
    """Anything that bytes on a server can be: no hash, other types, duplicates, broken counters, odd ids."""
    keys: Keys = {}
    lists: dict[bytes, list[bytes]] = {b"active": [], b"wait": [], b"paused": []}
    ends: dict[bytes, ZSet] = {b"completed": ZSet(), b"failed": ZSet()}
    marks: set[bytes] = set()
    for number, job_id in enumerate(_ids(choose, size, ORDINARY_IDS, HOSTILE_IDS, MARKER_IDS, sorted(OWN_KEYS))):
        job = _fields(choose, COUNTERS + ODD_COUNTERS, OPTS + ODD_OPTS)
        kind = choose(("job",) * 8 + ("gone", "typed", "finished", "empty"))
        if kind == "finished" and choose((True, False)):
            job[b"finishedOn"] = choose((b"1700000000000", b"0", b""))
        value: Value | None = job
        if kind == "gone":
            value = None
        elif kind == "typed":
            value = choose(WRONG_TYPES)
        elif kind == "empty":
            value = {b"name": b""}
        if value is not None and job_id not in OWN_KEYS:
            keys.setdefault(job_id, value)
        for place in choose(_PLACES):
            lists[place].append(job_id)
        if kind == "finished" and choose((True, False)):
            ends[choose((b"completed", b"failed"))][job_id] = float(number)
        if choose((True, True, False)):
            marks.add(job_id)
        if choose((False, False, True)):
            keys.setdefault(job_id + b":lock", choose((b"token", b"")))
    again = lists[b"active"]
    for _ in range(choose((0, 0, 0, 1, 2, 5)) if again else 0):
        twin = choose(again)
        again.insert(choose(range(len(again) + 1)), twin)
    _assemble(keys, lists, ends, marks)
    _schedulers(choose, keys)
    _events(choose, keys)
    if choose((False,) * 9 + (True,)):
        keys[b"events"] = b"no stream"
    if choose((False, True)):
        keys[b"marker"] = ZSet(choose(({b"0": 5.0}, {b"1": 5.0}, {b"": 0.0})))
    meta: Hash = {}
    for name, values in _META.items():
        value_or_none = choose(values)
        if value_or_none is not None:
            meta[name] = value_or_none
    if meta:
        keys[b"meta"] = meta
    if choose((False,) * 19 + (True,)):
        keys[b"stalled-check"] = choose((b"1700000000000", b"mqsweep:host:1:00", b""))
    return State(keys)


_PLACES: tuple[tuple[bytes, ...], ...] = (
    *((b"active",),) * 7, (b"wait",), (b"paused",), (), (b"active", b"wait"), (b"active", b"active"),
)  # fmt: skip

_META: dict[bytes, tuple[bytes | None, ...]] = {
    b"paused": (None, b"1", b""),
    b"version": (
        None,
        b"bullmq:6.2.0",
        b"bullmq:5.81.3",
        b"bullmq:5.70.0",
        b"bullmq:5.54.1-rc.1",
        b"bullmq:5.",
        b"bullmq:6x",
        b"bullmq:60.1.0",
        b"bullmq-pro:6.1.0",
        b"6.2.0",
        b"\xff",
    ),
    b"concurrency": (None, None, b"1", b"3", b"100", b"0", b"-1", b"many", b""),
    b"opts.maxLenEvents": (None, b"10000", b"many", b"-1", b"", b"1.5"),
    b"unrelated": (None, b"\x00\xff"),
}


def _ids(choose: Choose, size: int, *special: Sequence[bytes]) -> list[bytes]:
    """Ids, none twice: mostly numbers, some of each special kind."""
    pools = [list(kind) for kind in special]
    found = []
    for number in range(1, size + 1):
        pool = choose((*[[]] * (2 * len(pools)), *pools))
        if pool:
            found.append(pool.pop(choose(range(len(pool)))))
        else:
            found.append(b"%d" % number)
    return found


def _fields(choose: Choose, counters: Sequence[bytes], opts: Sequence[bytes]) -> Hash:
    """A job's hash; fields that nothing has to do with are there to be left alone."""
    job: Hash = {
        b"name": b"paint",
        b"data": b'{"n":1}',
        b"timestamp": b"1700000000000",
        b"ats": b"1",
        b"priority": b"0",
    }
    for counter in (b"stc", b"atm"):
        if choose((False, True)):
            job[counter] = choose(counters)
    if choose((False, True)):
        job[b"opts"] = choose(opts)
    if choose((False, False, False, True)):
        job[b"rjk"] = choose((b"s1", b"s2", b"gone", b""))
        job[b"stc"] = choose((b"41", choose(counters)))  # past every ceiling: only there does its scheduler matter
    if choose((False,) * 7 + (True,)):
        job[b"failedReason"] = b"an earlier attempt"
    return job


def _assemble(keys: Keys, lists: dict[bytes, list[bytes]], ends: dict[bytes, ZSet], marks: set[bytes]) -> None:
    keys.update({name: items for name, items in lists.items() if items})
    keys.update({name: scores for name, scores in ends.items() if scores})
    if marks:
        keys[b"stalled"] = marks


def _schedulers(choose: Choose, keys: Keys) -> None:
    """``s1`` as a scheduler of today, ``s2`` as one of old: scored, without a hash."""
    if choose((False, True)):
        keys.setdefault(b"repeat:s1", {b"name": b"every", b"every": b"1000"})
    scored: dict[bytes, float] = choose(({}, {b"s1": 1.0}, {b"s2": 2.0}, {b"s2": 2.0, b"": 3.0}))
    if scored:
        keys[b"repeat"] = ZSet(scored)


def _events(choose: Choose, keys: Keys) -> None:
    count = choose((0, 1, 3))
    if count:
        keys[b"events"] = Stream([(b"event", b"added", b"jobId", b"%d" % n) for n in range(count)])


def every_shape(paused: bytes | None = None) -> State:
    """One queue with every odd thing in it once, each in a job that is due: nothing is left to chance."""
    plain: Hash = {b"name": b"paint"}
    jobs: dict[bytes, Value | None] = {b"plain": plain, b"hashless": None, b"empty": {b"name": b""}}
    for number, opts in enumerate(OPTS + ODD_OPTS):
        jobs[b"opts-%d" % number] = {**plain, b"opts": opts}
    for number, counter in enumerate(COUNTERS + ODD_COUNTERS):
        jobs[b"stc-%d" % number] = {**plain, b"stc": counter}
        jobs[b"atm-%d" % number] = {**plain, b"atm": counter}
    for number, value in enumerate(WRONG_TYPES):
        jobs[b"typed-%d" % number] = value
    for scheduler in (b"s1", b"s2", b"gone", b""):
        for stalls in (b"0", b"41"):
            jobs[b"of-%s-%s" % (scheduler, stalls)] = {**plain, b"rjk": scheduler, b"stc": stalls}
    for place in (b"completed", b"failed", b"neither"):
        jobs[b"done-" + place] = {**plain, b"finishedOn": b"1700000000000"}
        jobs[b"fresh-" + place] = dict(plain)
    jobs.update({job_id: dict(plain) for job_id in ORDINARY_IDS + HOSTILE_IDS + MARKER_IDS})
    keys: Keys = {job_id: value for job_id, value in jobs.items() if value is not None}
    keys[b"completed"] = ZSet({b"done-completed": 1.0, b"fresh-completed": 2.0})
    keys[b"failed"] = ZSet({b"done-failed": 1.0, b"fresh-failed": 2.0})
    keys[b"repeat:s1"] = {b"name": b"every"}
    keys[b"repeat"] = ZSet({b"s2": 2.0})
    due = [*jobs, *sorted(OWN_KEYS)]
    twice = [b"plain", b"hashless", b"opts-0", b"stc-0"]
    unmarked, locked, strays = b"new", b"alive", (b"stray", b"stray-locked")
    keys.update({unmarked: dict(plain), locked: dict(plain), locked + b":lock": b"t", b"stray-locked:lock": b"t"})
    keys[b"active"] = [*twice, unmarked, locked, *due, *twice, unmarked]
    keys[b"stalled"] = {*due, locked, *strays}
    keys[b"wait"] = [b"8", b"9"]
    if paused is not None:
        keys[b"meta"] = {b"paused": paused, b"version": b"bullmq:6.2.0"}
    return State(keys)
