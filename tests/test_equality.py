"""``dialect="bullmq", mark="active"`` does to a queue exactly what BullMQ's own stalled check does.

Excepted, as the measures say: stream ids, the lease's value, the order in active and, of wait and
events, the order among the recovered. The marker is not excepted: BullMQ decides it job by job, and its
last decision is the one after the whole removal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

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
    waited = len(before.items(b"wait"))
    wait = out.get(b"wait")
    if isinstance(wait, list):
        assert wait[:waited] == before.items(b"wait")
        out[b"wait"] = (wait[:waited], sorted(wait[waited:]))
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
            for _ in (1, 2):
                stalled = oracle.run_oracle(twin, BASE, max_stalled, 30_000, 1)
                report: Any = subject.sweep()
                assert sorted(report.stalled) == sorted(i.decode() for i in stalled)
                ours, theirs = snapshot.dump(client, BASE), snapshot.dump(twin, BASE)
                fresh = len(stalled)
                snapshot.assert_same(comparable(ours, state, fresh), comparable(theirs, state, fresh))
                # The excepted orders must not grow into differences: both go on from ours.
                state = State(ours)
                twin.flushdb()
                snapshot.write(twin, BASE, state)
                next_interval(client, BASE)

    check()


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
