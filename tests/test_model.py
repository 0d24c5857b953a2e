"""Every engine leaves exactly what the reference model says, on random queues, hostile ones included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from support import model, snapshot
from support.model import Keys, Outcome, Policy, State
from support.states import benign, every_shape, hostile, policies, states
from support.ways import BASES, bare_script, expected, next_interval, sweeper, told

NOW = 4_000_000_000_000
"""What the model's clock says: far off, so that no time in a state is taken for one of the sweep's."""

BATCH = 12
"""Up to so many recoveries go in one call; the order of the front of wait is promised within one."""

CHANGES = ("lapse", "renew", "lock", "finish", "mark")


@dataclass(frozen=True)
class Case:
    """A queue, a policy, and what workers do between the two sweeps, each to the job at an index of active."""

    policy: Policy
    state: State
    between: list[tuple[int, str]]


def cases(*dialects: str) -> st.SearchStrategy[Case]:
    """Random cases of these dialects."""
    return st.builds(
        Case,
        policy=st.sampled_from(dialects).flatmap(policies),
        state=st.one_of(states(hostile), states(benign)),
        between=st.lists(st.tuples(st.integers(0, 20), st.sampled_from(CHANGES)), max_size=4),
    )


def agree(
    client: redis.Redis, base: bytes, policy: Policy, state: State, run: Callable[[], Any]
) -> tuple[Outcome, Any, State]:
    """Sweep server and model alike; both must leave the same. Returns both answers, and what is left."""
    since = snapshot.server_ms(client)
    answer = run()
    until = snapshot.server_ms(client)
    left = snapshot.dump(client, base)
    found = State(left).copy().keys
    snapshot.fix_times(found, state, since, until, NOW)
    wanted = state.copy()
    outcome = model.sweep(wanted, policy, NOW)
    snapshot.assert_same(settled(found, policy, outcome), settled(wanted.keys, policy, outcome))
    # The order in active is the server's to choose, so the next sweep of the model goes on from it.
    return outcome, answer, State(left)


def settled(keys: Keys, policy: Policy, outcome: Outcome) -> dict[str, object]:
    """The keys as they are compared. Printable names, for the sake of the one who reads the difference."""
    out = snapshot.settled(keys)
    fresh = len(outcome.stalled)
    asks = asks_for_keys(State(keys), policy, outcome)
    if asks or fresh > BATCH:
        for name in (b"wait", b"paused") if policy.to_front else ():
            items = out.get(name)
            if isinstance(items, list):
                out[name] = items[:-fresh] + sorted(items[-fresh:])
    if asks and isinstance(events := out.get(b"events"), list):
        out[b"events"] = sorted(events)
    return {repr(name): value for name, value in sorted(out.items())}


def asks_for_keys(state: State, policy: Policy, outcome: Outcome) -> bool:
    """Whether order is not promised: a job whose scheduler's key has to be declared first begins a batch of its own, by
    when a removal before it may have moved it deeper."""
    return policy.dialect == "bullmq" and any(b"rjk" in (state.job(i) or {}) for i in outcome.stalled)


def assert_told(report: Any, outcome: Outcome, engine: str, *, ordered: bool) -> None:
    """The report says what the model does."""
    said, wanted = told(report), expected(outcome, engine)
    if not ordered:
        said, wanted = ({n: sorted(v) if isinstance(v, list) else v for n, v in d.items()} for d in (said, wanted))
    snapshot.assert_same(said, wanted)


def change(client: redis.Redis, base: bytes, state: State, between: list[tuple[int, str]]) -> None:
    """What workers do between two sweeps, to the server and to the model's state."""
    for index, kind in between:
        active = list(state.items(b"active"))
        if not active:
            break
        job_id = active[index % len(active)]
        lock = job_id + b":lock"
        marks = set(state.members(b"stalled"))
        if kind == "lapse":
            state.keys.pop(lock, None)
        elif kind in ("renew", "lock"):
            state.put(lock, b"token")
        if kind in ("renew", "finish"):
            marks.discard(job_id)
        if kind == "mark":
            marks.add(job_id)
        if kind == "finish":
            state.keys.pop(lock, None)
            state.put(b"active", [i for i in active if i != job_id])
        state.put(b"stalled", marks)
    client.flushdb()
    snapshot.write(client, base, state)


@pytest.mark.parametrize("dialect", ["echomq", "bullmq"])
def test_engine_leaves_what_the_model_says(client: redis.Redis, engine: str, dialect: str) -> None:
    """Two sweeps of one sweeper, with workers in between."""
    base = BASES[dialect]

    @given(cases(dialect))
    def check(case: Case) -> None:
        client.flushdb()
        snapshot.write(client, base, case.state)
        state = case.state
        # A generous pause: how a call is cut by its clock is not what is compared here.
        with sweeper(client, engine, case.policy, max_pause=1.0) as subject:
            for sweep in (1, 2):
                outcome, report, state = agree(client, base, case.policy, state, subject.sweep)
                asks = asks_for_keys(state, case.policy, outcome)
                assert_told(report, outcome, engine, ordered=not asks)
                if engine != "script":
                    assert_reasons(report.refused, outcome.refused)
                if sweep == 1:
                    next_interval(client, base)
                    change(client, base, state, case.between)

    check()


@pytest.mark.parametrize("mark", ["lockless", "active"])
@pytest.mark.parametrize("dialect", ["echomq", "bullmq"])
@pytest.mark.parametrize("paused", [None, b"1", b""])
def test_every_odd_shape_at_once(
    client: redis.Redis, engine: str, dialect: str, mark: str, paused: bytes | None
) -> None:
    """Chance may never draw an odd value in a job that is due; here each is, beside all the others."""
    base = BASES[dialect]
    policy = Policy(dialect, mark, max_attempts=2 if dialect == "echomq" else None)
    state = every_shape(paused)
    snapshot.write(client, base, state)
    with sweeper(client, engine, policy, max_pause=1.0) as subject:
        for _ in (1, 2):
            outcome, report, state = agree(client, base, policy, state, subject.sweep)
            snapshot.assert_same(told(report), expected(outcome, engine))
            if engine != "script":
                assert_reasons(report.refused, outcome.refused)
            next_interval(client, base)


def assert_reasons(refused: dict[str, str], classes: dict[bytes, str]) -> None:
    """Each refused id has a reason that names what is wrong with it."""
    for job_id, word in classes.items():
        reason = refused[job_id.decode("utf-8", "surrogateescape")]
        assert word in reason, (job_id, word, reason)


def test_bare_script_leaves_what_the_model_says(client: redis.Redis) -> None:
    """Three arguments, as any language sends them; the time is the caller's."""
    base = BASES["echomq"]

    @given(states(hostile), st.sampled_from((1, 0, 3)))
    def check(state: State, max_stalled: int) -> None:
        client.flushdb()
        snapshot.write(client, base, state)
        policy = Policy(max_stalled_count=max_stalled)
        for _ in (1, 2):
            outcome, answer, state = agree(
                client,
                base,
                policy,
                state,
                lambda: bare_script(client, base, max_stalled=max_stalled, now_ms=NOW),
            )
            assert answer == (outcome.failed, outcome.recovered)
            next_interval(client, base)

    check()


@pytest.mark.parametrize(
    "version", [None, b"bullmq:6.2.0", b"bullmq:5.81.3", b"bullmq:60.1.0", b"bullmq-pro:6.1.0", b"6.2.0", b"\xff"]
)
@pytest.mark.parametrize("said", [None, "6.2.0", "5.81.3"])
@pytest.mark.parametrize("mark", ["lockless", "active"])
def test_paused_bullmq_queue_by_generation(
    client: redis.Redis, engine: str, version: bytes | None, said: str | None, mark: str
) -> None:
    """What the user says goes before what the queue says; who is not sure recovers nothing."""
    base = BASES["bullmq"]
    state = State({b"1": {b"name": b"paint"}, b"2": {b"name": b"paint"}, b"active": [b"2", b"1"], b"stalled": {b"1"}})
    state.put(b"meta", {b"paused": b"1", **({} if version is None else {b"version": version})})
    snapshot.write(client, base, state)
    policy = Policy("bullmq", mark, bullmq_version=said)
    with sweeper(client, engine, policy) as subject:
        outcome, report, _ = agree(client, base, policy, state, subject.sweep)
    snapshot.assert_same(told(report), expected(outcome, engine))


@pytest.mark.parametrize(("dialect", "mark"), [("echomq", "lockless"), ("echomq", "active"), ("bullmq", "active")])
def test_many_dead_in_many_batches(client: redis.Redis, engine: str, dialect: str, mark: str) -> None:
    """More than the script searches for, so that only counting one's own removals finds them all."""
    base = BASES[dialect]
    ids = [b"%d" % number for number in range(4_000)]
    keys: Keys = {job_id: {b"name": b"paint"} for job_id in ids}
    keys.update({job_id + b":lock": b"t" for job_id in ids[::4]})
    keys.update({b"active": ids[::-1], b"stalled": {*ids[1::4], *ids[2::4]}})
    state, policy = State(keys), Policy(dialect, mark)
    snapshot.write(client, base, state)
    with sweeper(client, engine, policy) as subject:
        for _ in (1, 2):
            outcome, report, state = agree(client, base, policy, state, subject.sweep)
            snapshot.assert_same(told(report), expected(outcome, engine))
            next_interval(client, base)


def test_worker_is_woken_though_the_last_batches_only_failed(client: redis.Redis, engine: str) -> None:
    """Room under the concurrency comes with the last removal; that jobs wait was decided by the first."""
    base = BASES["echomq"]
    ids = [b"%d" % number for number in range(600)]
    keys: Keys = {job_id: {b"name": b"paint", b"stc": b"0" if n < 20 else b"9"} for n, job_id in enumerate(ids)}
    keys.update({b"active": ids[::-1], b"stalled": set(ids), b"meta": {b"concurrency": b"100"}})
    state, policy = State(keys), Policy()
    snapshot.write(client, base, state)
    with sweeper(client, engine, policy) as subject:
        outcome, report, _ = agree(client, base, policy, state, subject.sweep)
    snapshot.assert_same(told(report), expected(outcome, engine))
