"""``dialect="bullmq", mark="active"`` does to a queue exactly what BullMQ's own stalled check does.

Excepted, as the measures say: stream ids, the lease's value, the order in active and, of wait and
events, the order among the recovered. The marker is not excepted: BullMQ decides it job by job, and its
last decision is the one after the whole removal.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from mqsweep import UnsupportedQueueError
from support import oracle, snapshot
from support.model import Keys, Policy, State, Stream
from support.servers import Server
from support.states import Choose, benign, states
from support.ways import BASES, next_interval, sweeper

BASE = BASES["bullmq"]


def trimmed(choose: Choose, size: int) -> State:
    """A benign queue, now and then with more events than it keeps."""
    state = benign(choose, size)
    if size < 20 and choose((False,) * 7 + (True,)):
        state.put(b"events", Stream([(b"event", b"added", b"jobId", b"%d" % n) for n in range(230)]))
        # Not less than a stream node: each batch trims before its own events, so a bound that small would cut those
        # of the sweep's batch before, which one call of BullMQ's does not have.
        state.put(b"meta", {**state.meta, b"opts.maxLenEvents": choose((b"100", b"200"))})
    return state


@pytest.fixture
def twin(server: Server) -> Iterator[redis.Redis]:
    """A second database of the same server, where BullMQ works on its copy."""
    with server.client(db=1) as client:
        yield client


def comparable(keys: Keys, before: State, fresh: int) -> dict[str, object]:
    """The keys, without what is excepted."""
    out = snapshot.settled(keys)
    for name in (b"wait", b"paused"):
        waited, wait = len(before.items(name)), out.get(name)
        if isinstance(wait, list):
            assert wait[:waited] == before.items(name)
            out[name] = (wait[:waited], sorted(wait[waited:]))
    events = out.get(b"events")
    if isinstance(events, Stream):
        old, new = (events[: -2 * fresh], events[-2 * fresh :]) if fresh else (events, [])
        # Of one job, waiting comes first and stalled right behind it.
        out[b"events"] = (list(old), sorted(zip(new[::2], new[1::2], strict=True)))
    return {repr(name): value for name, value in sorted(out.items())}


def test_same_as_bullmqs_own_check(client: redis.Redis, twin: redis.Redis, engine: str) -> None:
    """Two checks in a row on two copies of a random benign queue."""

    @given(states(trimmed), st.sampled_from((1, 0, 3, 40)))
    def check(state: State, max_stalled: int) -> None:
        for database in (client, twin):
            database.flushdb()
            snapshot.write(database, BASE, state)
        policy = Policy("bullmq", "active", max_stalled_count=max_stalled)
        with sweeper(client, engine, policy, max_pause=1.0) as subject:
            both_check(client, twin, subject, state, max_stalled, times=2)

    check()


def both_check(
    client: redis.Redis,
    twin: redis.Redis,
    subject: Any,
    state: State,
    max_stalled: int,
    release: str | None = None,
    times: int = 1,
) -> None:
    """Ours on one copy, a release's own on the other; each time every key must be the same."""
    for _ in range(times):
        stalled = oracle.run_oracle(twin, BASE, max_stalled, 30_000, 1, release)
        report = subject.sweep()
        assert sorted(report.stalled) == sorted(i.decode() for i in stalled)
        ours, theirs = snapshot.dump(client, BASE), snapshot.dump(twin, BASE)
        fresh = len(stalled)
        snapshot.assert_same(comparable(ours, state, fresh), comparable(theirs, state, fresh))
        # The excepted orders must not grow into differences: both go on from ours.
        state = State(ours)
        twin.flushdb()
        snapshot.write(twin, BASE, state)
        next_interval(client, BASE)


def left_by(release: str) -> Callable[[Choose, int], State]:
    """A benign queue as this release leaves it."""

    def build(choose: Choose, size: int) -> State:
        state = trimmed(choose, size)
        for job_id in {*state.keys}:
            job = state.job(job_id)
            if job is None or b"timestamp" not in job:
                continue
            job.setdefault(b"opts", b"{}")  # which BullMQ's jobs always have
            if choose((False,) * 5 + (True,)):
                job[b"parentKey"], job[b"parent"] = b"bull:up:1", b'{"id":"1","queueKey":"bull:up"}'
        if state.meta:
            state.put(b"meta", {**state.meta, b"version": b"bullmq:" + release.encode()})
        if release < "6" and b"paused" in state.meta:  # pausing moved what waited
            state.put(b"paused", state.items(b"wait"))
            state.put(b"wait", [])
        return state

    return build


STATES = {100: 100, 150: 1_000, 2_000: 2_000, 10_000: 5_000}
"""Of each generation on each server, by how many the profile tries elsewhere."""
REPEATED = 150
"""Profiles that try no more than so many elsewhere try the same each time."""


@pytest.mark.parametrize("release", oracle.RELEASES)
def test_same_as_each_generations_own_check(
    client: redis.Redis, twin: redis.Redis, usable: Callable[[str], str], release: str
) -> None:
    """As above, with the release's own script from npm; an engine by turns. A seed stands for each state: many are tried,
    and hypothesis takes longer to draw one than both checks take."""
    needed(release)
    engines = [engine for engine in ("script", "python", "rust") if engine != "rust" or usable(engine)]
    tries = settings.default.max_examples
    first = 0 if tries <= REPEATED else random.randrange(1 << 32)
    for seed in range(first, first + STATES[tries]):
        chance = random.Random(f"{release} {seed}")
        state = left_by(release)(chance.choice, chance.choice([*range(1, 13)] * 5 + [200]))
        max_stalled, engine = chance.choice((1, 0, 3, 40)), engines[seed % len(engines)]
        client.flushall()
        for database in (client, twin):
            snapshot.write(database, BASE, state)
        policy = Policy("bullmq", "active", max_stalled_count=max_stalled, bullmq_version=release)
        with sweeper(client, engine, policy, max_pause=1.0) as subject:
            try:
                both_check(client, twin, subject, state, max_stalled, release)
            except BaseException as fault:
                fault.add_note(f"seed {seed}, engine {engine}, max_stalled_count {max_stalled}: {state}")
                raise


def needed(release: str) -> None:
    """Skip where the release is not installed; fail under MQSWEEP_REQUIRE_NODE=1."""
    try:
        oracle.source(release)
    except LookupError as fault:
        if os.environ.get("MQSWEEP_REQUIRE_NODE") == "1":
            pytest.fail(f"MQSWEEP_REQUIRE_NODE=1, but: {fault}")
        pytest.skip(str(fault))


@pytest.mark.parametrize("release", oracle.EAGER)
def test_release_that_fails_jobs_itself_is_left_to_its_own_check(
    client: redis.Redis, engine: str, release: str
) -> None:
    """Refused by name, nothing changed, no lease held: its own check does all that it would have done (I9)."""
    needed(release)
    job: Keys = {b"1": {b"name": b"paint", b"opts": b'{"removeOnFail":true}', b"stc": b"1"}}
    state = State({**job, b"active": [b"1"], b"stalled": {b"1"}, b"meta": {b"version": b"bullmq:" + release.encode()}})
    snapshot.write(client, BASE, state)
    with sweeper(client, engine, Policy("bullmq", "active")) as subject, pytest.raises(UnsupportedQueueError):
        subject.sweep()
    assert snapshot.dump(client, BASE) == state.keys
    assert not client.exists(BASE + b":stalled-check")
    failed, stalled = oracle.run_oracle(client, BASE, 1, 30_000, 1, release)
    assert (failed, stalled) == ([b"1"], [])


def test_throttled_like_bullmqs_own_check(client: redis.Redis, engine: str) -> None:
    """Each obeys the key that the other has set."""
    state = State({b"active": [b"1"], b"stalled": {b"1"}, b"1": {b"name": b"paint"}})
    snapshot.write(client, BASE, state)
    with sweeper(client, engine, Policy("bullmq", "active")) as subject:
        assert subject.sweep().recovered == ("1",)
        client.rpush(BASE + b":active", "2")
        client.sadd(BASE + b":stalled", "2")
        client.hset(BASE + b":2", "name", "paint")
        assert oracle.run_oracle(client, BASE, 1, 30_000, 1) == []
        next_interval(client, BASE)
        assert oracle.run_oracle(client, BASE, 1, 30_000, 1) == [b"2"]
        assert subject.sweep().status == "throttled"
