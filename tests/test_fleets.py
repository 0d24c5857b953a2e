"""Fleets of BullMQ 5 and 6 for Node and BullMQ for Python on one queue, whose workers are killed, paused, closed and replaced.

At the end every job that was ever added is where BullMQ itself would have it, and got there once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.bullmq_worker import PATIENCE, Event
from support.cases import until
from support.fleet import NODE, PYTHON, Control, Fleet, Hand, Service, for_nodes

INTERVAL = 0.4
OFTEN = 20
"""Stalls that a job survives: nobody fails for having met death more than once."""

MOST = 16
"""Jobs that are active at once, by the queue's own setting."""

one_server = pytest.mark.parametrize("server", ["redis"], indirect=True)
"""For what the kind of server has no part in."""


class Work:
    """All kinds of jobs, and what has to become of each.

    Args:
        program: adds them.
    """

    def __init__(self, program: Control) -> None:
        self.completed = {
            *program.add(100, {"ms": 20}),
            *program.add(30, {"ms": 400}),
            *program.add(20, {"ms": 20}, priority=5),
            *program.add(10, {"ms": 100}, priority=1),
            *program.add(10, {"ms": 20}, delay=1_500),
            *program.add(10, {"ms": 20, "fail": 2}, attempts=3, backoff=50),
        }
        self.failed = set(program.add(5, {"ms": 20, "fail": 2}, attempts=2))
        for _ in range(6):
            self._add(self.completed, program, {})
        # a child that fails: its parent goes on without it, or fails with it
        doomed = {"data": {"ms": 20, "fail": 1}}
        self._add(self.completed, program, {**doomed, "opts": {"ignoreDependencyOnFailure": True}})
        self._add(self.failed, program, {**doomed, "opts": {"failParentOnFailure": True}})

    def keep_busy(self, fleet: Fleet, program: Control) -> None:
        """Add jobs where none waits any more."""
        if not fleet.client.exists(fleet.key("wait")):
            self.completed |= {*program.add(3 * MOST, {"ms": 200})}

    def _add(self, parents: set[str], program: Control, odd: Event) -> None:
        """A parent with children and grandchildren, one of them odd."""
        parts = {"name": "part", "queueName": "q"}
        leaves = [{**parts, "data": {"ms": 50 * n}} for n in range(4)]
        branch = {**parts, "data": {"ms": 20}, "children": leaves}
        last = {**parts, "data": {"ms": 20}, **odd}
        tree = {"name": "whole", "queueName": "q", "data": {"ms": 20}, "children": [branch, last]}
        made = program("flow", "add", tree)
        first, second = made["children"]
        parents.add(made["id"])
        (self.failed if odd else self.completed).add(second["id"])
        self.completed |= {first["id"], *(leaf["id"] for leaf in first["children"])}


def scheduled(fleet: Fleet) -> list[str]:
    """The scheduler's jobs that were completed."""
    return [job_id for job_id in fleet.ids("completed") if job_id.startswith("repeat:")]


def strike(fleet: Fleet, victim: Hand, successor: dict[str, Any], *, dies: bool) -> None:
    """A worker is killed, or paused for longer than its locks live, with jobs in hand; another comes in its place."""
    held = victim.holding()
    if dies:
        victim.kill()
        fleet.hands.remove(victim)
    else:
        victim.freeze()
    fleet.hire(victim.package, **successor)
    if not dies:
        until(lambda: not any(fleet.client.exists(fleet.key(f"{job_id}:lock")) for job_id in held), PATIENCE, 0.01)
        victim.thaw()


def ended(fleet: Fleet) -> Counter[str]:
    """How often each job was completed or failed, by the queue's own events."""
    events = fleet.client.xrange(fleet.key("events"))
    assert len(events) == fleet.client.xlen(fleet.key("events"))
    final = [event for _, event in events if event[b"event"] in (b"completed", b"failed")]
    return Counter(event[b"jobId"].decode() for event in final)


def stalls(fleet: Fleet, ids: Any) -> int:
    """How often these jobs stalled, all together."""
    pipe = fleet.client.pipeline()
    for job_id in ids:
        pipe.hget(fleet.key(job_id), "stc")
    return sum(int(count or 0) for count in pipe.execute())


def drained(fleet: Fleet) -> bool:
    """Whether nothing is left to do."""
    places = ("wait", "active", "paused", "delayed", "prioritized", "waiting-children", "stalled")
    return not any(fleet.client.exists(fleet.key(place)) for place in places)


@pytest.mark.parametrize(
    ("server", "package", "way"),
    [
        ("redis", "bullmq5", "service"),
        ("valkey", "bullmq6", "install"),
        pytest.param("valkey", "bullmq6", "service", marks=pytest.mark.slow),
    ],
    indirect=["server"],
)
def test_every_job_ends_as_bullmq_would_have_it(fleet: Fleet, package: str, way: str) -> None:
    """The service beside a fleet that knows nothing of it, or the Python workers of a fleet with mqsweep inside."""
    options: dict[str, dict[str, Any]] = {
        each: {"concurrency": 4, "maxStalledCount": OFTEN} for each in (*NODE, PYTHON)
    }
    if way == "install":
        options[PYTHON]["install"] = {}
        for each in NODE:  # so that whatever is recovered is recovered by mqsweep
            options[each]["skipStalledCheck"] = True
    service: Service | None = None
    if way == "service":
        service = fleet.sweep(INTERVAL, "--max-stalled-count", str(OFTEN))
        fleet.until_held(service)
    crew = {each: [fleet.begin(each, **options[each]) for _ in range(2)] for each in options}
    program = fleet.control(package)
    program("queue", "setGlobalConcurrency", MOST)
    program("queue", "setGlobalRateLimit", 5, 40)
    program("queue", "upsertJobScheduler", "clock", {"every": 250}, {"name": "tick", "data": {"ms": 10}})
    work = Work(program)
    fleet.until_ready()
    for each in options:
        for victim, dies in zip(crew[each], (True, False), strict=True):
            until(lambda victim=victim: work.keep_busy(fleet, program) or len(victim.holding()) >= 2, PATIENCE)
            strike(fleet, victim, options[each], dies=dies)
    for each in options:
        assert crew[each][1].close() == 0
        fleet.hands.remove(crew[each][1])

    def over() -> bool:
        assert fleet.client.llen(fleet.key("active")) <= MOST
        return work.completed | work.failed <= {*fleet.ids("completed"), *fleet.ids("failed")}

    until(over, 2 * PATIENCE, 0.01)
    ticks = len(scheduled(fleet))
    until(lambda: len(scheduled(fleet)) >= ticks + 3, PATIENCE, 0.01)
    assert program("queue", "removeJobScheduler", "clock")
    until(lambda: drained(fleet), PATIENCE, 0.01)
    if service is not None:
        assert service.stop() == 0

    assert set(fleet.ids("failed")) == work.failed
    assert set(fleet.ids("completed")) - set(scheduled(fleet)) == work.completed
    everything = [*fleet.ids("failed"), *fleet.ids("completed")]
    assert ended(fleet) == Counter(everything)  # each once
    assert not list(fleet.client.scan_iter(fleet.key("*:lock")))
    assert stalls(fleet, everything) >= 6
    if service is not None:
        told = [job_id for report in service.reports() for job_id in report["recovered"]]
        assert stalls(fleet, everything) == len(told)
        assert not any(report["failed"] or report["refused"] for report in service.reports())


@one_server
@pytest.mark.parametrize(("package", "by"), [("bullmq5", "mqsweep"), ("bullmq6", "mqsweep"), ("bullmq6", "bullmq")])
def test_child_past_the_ceiling_fails_its_parent(fleet: Fleet, package: str, by: str) -> None:
    """With mqsweep as without it: what the child's failure brings about is the worker's business."""
    child = {"name": "part", "queueName": "q", "data": {}, "opts": {"failParentOnFailure": True}}
    program = fleet.control(package)
    tree = program("flow", "add", {"name": "whole", "queueName": "q", "data": {}, "children": [child]})
    family = {tree["id"], tree["children"][0]["id"]}
    fleet.take_and_die(package, 1)
    if by == "mqsweep":
        fleet.sweep(INTERVAL, "--max-stalled-count", "0")
    fleet.hire(package, maxStalledCount=0, skipStalledCheck=by == "mqsweep")
    until(lambda: set(fleet.ids("failed")) == family, PATIENCE, 0.01)
    reason = fleet.client.hget(fleet.key(tree["children"][0]["id"]), "failedReason")
    assert reason == b"job stalled more than allowable limit"
    assert drained(fleet)
    assert not fleet.ids("completed")


@for_nodes
@one_server
def test_queue_that_is_paused_and_resumed_while_jobs_are_recovered(fleet: Fleet, package: str) -> None:
    """A paused queue of BullMQ 5 keeps its jobs in another list than one of 6."""
    program = fleet.control(package)
    service = fleet.sweep(INTERVAL)
    fleet.until_held(service)
    dead = fleet.lose(package, 4, program)
    program("queue", "pause")
    crew = [fleet.begin(each) for each in (package, package)]
    fleet.until_ready()
    late = program.add(10)
    kept = "paused" if package == "bullmq5" else "wait"
    until(lambda: set(dead) <= set(fleet.ids(kept)), PATIENCE, 0.01)
    assert set(late) <= set(fleet.ids(kept))
    assert not {*dead, *late} & set(fleet.ids("completed"))
    everything = {*dead, *late, *fleet.ids(kept)}
    program("queue", "resume")
    fleet.until_completed(everything)
    until(lambda: drained(fleet), PATIENCE, 0.01)
    assert [fleet.client.hget(fleet.key(job_id), "stc") for job_id in dead] == [b"1"] * len(dead)
    assert not fleet.ids("failed")
    assert set(ended(fleet).values()) == {1}
    assert all(hand.running() for hand in crew)


@one_server
@pytest.mark.parametrize(("package", "most"), [("bullmq5", None), ("bullmq6", 1)])
def test_worker_blocked_on_the_marker_wakes(fleet: Fleet, package: str, most: int | None) -> None:
    """Also where the dead job alone was as much as the queue's global concurrency lets be active."""
    program = fleet.control(package)
    if most:
        program("queue", "setGlobalConcurrency", most)
    ids = program.add(2 if most else 1)
    fleet.take_and_die(package, 1)
    idle = fleet.hire(package, skipStalledCheck=True, drainDelay=120)
    idle.wait_for(lambda: any(each["cmd"] == "bzpopmin" for each in fleet.client.client_list()))
    assert idle.count("active") == 0
    fleet.sweep(INTERVAL)
    fleet.until_completed(ids)
