"""Many jobs lose their workers at once, again and again, in a fleet of BullMQ for Python; all are completed, once, as counted."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from support.bullmq_worker import PATIENCE
from support.cases import until
from support.fleet import PYTHON, Fleet, Hand

OFTEN = 20
"""Stalls that a job survives."""

HOLD = 150
"""Jobs in one worker's hands. (One with 400 takes so long over each that it loses its own locks.)"""


def add(fleet: Fleet, count: int) -> set[str]:
    """So many jobs, and an event stream that keeps all that happens to them."""
    program = fleet.control("bullmq6", streams={"events": {"maxLen": 100 * count}})
    program("queue", "setGlobalConcurrency", 100_000)  # a call that waits until the queue has written its settings
    ids: set[str] = set()
    while len(ids) < count:
        ids.update(program.add(min(1_000, count - len(ids)), {"ms": 500}))
    return ids


def kill_one(fleet: Fleet, least: int, **options: Any) -> list[str]:
    """A worker with at least so many jobs in its hands is killed, another comes; the jobs that it had, by their locks."""

    def laden() -> list[Hand]:
        return [hand for hand in fleet.hands if len(hand.holding()) >= least]

    until(laden, PATIENCE, 0.05)
    victim = laden()[0]
    victim.freeze()
    for _ in range(10):  # what it has sent is done before what we ask
        fleet.client.ping()
    tokens = locks(fleet)
    (who,) = {tokens[job_id] for job_id in victim.holding() & set(tokens)}
    victim.kill()
    fleet.hands.remove(victim)
    fleet.begin(PYTHON, **options)
    return [job_id for job_id, token in tokens.items() if token == who]


def locks(fleet: Fleet) -> dict[str, bytes]:
    """Which worker has which active job."""
    active = fleet.ids("active")
    values = fleet.client.mget(*(fleet.key(f"{job_id}:lock") for job_id in active))
    return {job_id: value.partition(b":")[0] for job_id, value in zip(active, values, strict=True) if value}


@pytest.mark.parametrize("server", ["redis"], indirect=True)
@pytest.mark.parametrize(
    ("count", "workers", "deaths", "lock"),
    [(2_000, 3, 2, 3_000), pytest.param(20_000, 5, 8, 5_000, marks=pytest.mark.slow)],
)
def test_all_jobs_are_completed_however_many_lose_their_worker(
    fleet: Fleet, count: int, workers: int, deaths: int, lock: int
) -> None:
    options = {"concurrency": HOLD, "maxStalledCount": OFTEN, "lockDuration": lock}
    service = fleet.sweep(0.5, "--max-stalled-count", str(OFTEN))
    fleet.until_held(service)
    ids = add(fleet, count)
    for _ in range(workers):
        fleet.begin(PYTHON, **options)
    fleet.until_ready()
    began = time.monotonic()
    lost: list[str] = []
    for death in range(deaths):
        # spread over the first half of the work
        until(lambda death=death: done(fleet) >= count * death // (2 * deaths), PATIENCE)
        lost += kill_one(fleet, HOLD // 2, **options)
    until(lambda: done(fleet) == count, 10 * PATIENCE, 0.05)
    took = time.monotonic() - began
    until(lambda: not fleet.client.exists(fleet.key("stalled")), PATIENCE, 0.01)
    assert service.stop() == 0

    assert set(fleet.ids("completed")) == ids
    assert not fleet.client.exists(*map(fleet.key, ("wait", "active", "failed", "delayed")))
    events = fleet.client.xrange(fleet.key("events"))
    finished = Counter(event[b"jobId"].decode() for _, event in events if event[b"event"] == b"completed")
    assert finished == Counter(ids)  # each once
    reports = service.reports()
    recovered = Counter(job_id for report in reports for job_id in report["recovered"])
    assert not any(report["failed"] or report["refused"] or report["unconfirmed"] for report in reports)
    # all that died with their worker, once a death; on a slow machine also some that a living one lost
    assert recovered >= Counter(lost)
    pipe = fleet.client.pipeline(transaction=False)
    for job_id in sorted(ids):
        pipe.hget(fleet.key(job_id), "stc")
    assert recovered == Counter({i: int(n) for i, n in zip(sorted(ids), pipe.execute(), strict=True) if n})
    assert len(lost) >= deaths * HOLD // 3
    longest = max(report["longest_call"] for report in reports)
    print(
        f"{count} jobs, {deaths} deaths with {len(lost)} jobs, {recovered.total()} recovered in "
        f"{sum(bool(report['recovered']) for report in reports)} sweeps, {took:.1f} s, longest call {1000 * longest:.1f} ms"
    )


def done(fleet: Fleet) -> int:
    """How many jobs are completed."""
    number: int = fleet.client.zcard(fleet.key("completed"))
    return number
