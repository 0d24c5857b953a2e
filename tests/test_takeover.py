"""`mqsweep run` beside workers that know nothing of it: their stalled check rests while it sweeps, and works when it does not.

The workers are BullMQ 5 and 6 for Node and BullMQ for Python, each with an interval of its own. None is restarted and
none is told anything.
"""

from __future__ import annotations

import pytest

from support.bullmq_worker import PATIENCE
from support.cases import until
from support.fleet import PYTHON, Fleet
from support.fleet_watch import watch_on

WORKERS = {"bullmq5": 200, "bullmq6": 300, PYTHON: 450}
"""Milliseconds between two checks."""

INTERVALS = list(WORKERS.values())
OURS = 0.5
BACK = max(2 * OURS, 10.0) + max(INTERVALS) / 1000
"""Seconds after a SIGKILL within which a built-in check has to be back."""


def counters(fleet: Fleet, ids: list[str]) -> list[bytes | None]:
    """How often each of these jobs stalled."""
    return [fleet.client.hget(fleet.key(job_id), "stc") for job_id in ids]


def test_built_in_checks_rest_while_mqsweep_holds_the_lease_and_are_back_when_it_dies(fleet: Fleet) -> None:
    crew = [fleet.begin(package, stalledInterval=interval) for package, interval in WORKERS.items()]
    fleet.until_ready()
    program = fleet.control("bullmq6")
    with watch_on(fleet.server, fleet.key("")) as watch:
        assert watch.until_asked(INTERVALS, 3) > 0  # without us they scan

        first = fleet.sweep(OURS)
        fleet.until_held(first)
        watch.reset()
        dead = fleet.lose("bullmq5", 4, program)
        fleet.until_completed(dead)
        assert watch.until_asked(INTERVALS, 6) == 0
        assert counters(fleet, dead) == [b"1"] * 4

        dead = fleet.lose(PYTHON, 4, program)
        first.kill()
        watch.reset()
        assert fleet.client.pttl(fleet.key("stalled-check")) <= max(2 * OURS, 10.0) * 1000
        watch.until_scanned(BACK)
        fleet.until_completed(dead)
        assert fleet.holder().isdigit() or not fleet.holder()
        assert counters(fleet, dead) == [b"1"] * 4

        second = fleet.sweep(OURS)
        fleet.until_held(second)
        watch.reset()
        assert watch.until_asked(INTERVALS, 6) == 0

        third = fleet.sweep(OURS)
        until(lambda: any(report["status"] == "throttled" for report in third.reports()), PATIENCE)
        second.kill()
        fleet.until_held(third)
        watch.reset()
        dead = fleet.lose("bullmq6", 4, program)
        fleet.until_completed(dead)
        assert watch.until_asked(INTERVALS, 6) == 0
        assert third.stop() == 0
        watch.until_scanned(BACK)

    assert all(hand.running() for hand in crew)
    assert not [event for hand in crew for event in hand.events if event["event"] == "error"]


@pytest.mark.parametrize(
    ("server", "package", "why"),
    [("redis", "bullmq5", "held"), ("valkey", "bullmq6", "held"), ("redis", "bullmq6", "refused")],
    indirect=["server"],
)
def test_where_mqsweep_does_not_recover_the_built_in_checks_do(fleet: Fleet, package: str, why: str) -> None:
    """It holds no lease there, and leaves the checks the queue as they are used to it (I9)."""
    fleet.control(package).add(2)
    dead = fleet.take_and_die(package, 2)
    fleet.client.hdel(fleet.key("meta"), "version")
    if why == "held":  # paused, and nothing says which BullMQ owns it
        fleet.client.hset(fleet.key("meta"), "paused", 1)
    else:  # as BullMQ Pro has it
        fleet.client.zadd(fleet.key("groups"), {"g": 0})
    service = fleet.sweep(0.5)
    if why == "held":
        until(lambda: sum(report["status"] == "held" for report in service.reports()) >= 2, PATIENCE)
    else:
        assert service.wait() == 1
    crew = [fleet.begin(each, stalledInterval=200) for each in (package, PYTHON)]
    until(lambda: counters(fleet, dead) == [b"1"] * 2, PATIENCE)
    reports = service.reports()
    assert not any(report["recovered"] for report in reports)
    crew[0].wait_for(lambda: set(crew[0].ids("stalled") + crew[1].ids("stalled")) == set(dead))
