"""The lease: who holds it, for how long, who may take it over, and what the loss of it stops."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import redis

from mqsweep import ScriptError, Sweeper, SweepReport, UnsupportedQueueError
from support import snapshot
from support.cases import Case, until
from support.oracle import run_oracle

TOKEN = re.compile(rb"mqsweep:[A-Za-z0-9.-]+:(\d+):([0-9a-f]{32})")
PATIENCE = 20.0


@pytest.fixture(params=["python", "rust"])
def case(request: pytest.FixtureRequest, client: redis.Redis, usable: Callable[[str], str]) -> Case:
    """An EchoMQ queue with nothing in it, and the engines that hold a lease."""
    return Case(client, usable(request.param), "echomq")


@contextmanager
def running(case: Case, **options: Any) -> Iterator[list[SweepReport]]:
    """``run`` in a thread, with its reports; stopped at the end of the block."""
    stop, reports, faults = threading.Event(), list[SweepReport](), list[BaseException]()
    with case.sweeper(**{"interval": 0.3, **options}) as sweeper:

        def target() -> None:
            try:
                sweeper.run(stop, reports.append)
            except BaseException as fault:
                faults.append(fault)

        thread = threading.Thread(target=target)
        thread.start()
        try:
            yield reports
        finally:
            stop.set()
            thread.join(PATIENCE)
            assert not thread.is_alive()
    if faults:
        raise faults[0]


def holder(case: Case) -> bytes | None:
    """What stands in the lease's key."""
    value: bytes | None = case.client.get(case.key("stalled-check"))
    return value


def ttl(case: Case) -> int:
    """Milliseconds that the lease has to live."""
    left: int = case.client.pttl(case.key("stalled-check"))
    return left


# one sweep


def test_token_says_who_and_is_never_the_same(case: Case) -> None:
    seen = set()
    with case.sweeper() as sweeper:
        for _ in range(3):
            case.client.delete(case.key("stalled-check"))
            sweeper.sweep()
            found = TOKEN.fullmatch(holder(case) or b"")
            assert found
            assert int(found.group(1)) == os.getpid()
            seen.add(found.group(2))
    assert len(seen) == 3


@pytest.mark.parametrize("busy", [True, False])
def test_lease_is_left_what_remains_of_one_interval(case: Case, busy: bool) -> None:
    """Counted from the sweep's start, also where a sweep keeps it longer while it works."""
    if busy:
        case.dead(b"j")
    during = []
    with case.sweeper(interval=4, on_progress=lambda _: during.append(ttl(case))) as sweeper:
        sweeper.sweep()
        assert 3_000 < ttl(case) <= 4_000
    assert bool(during) == busy
    assert all(9_000 < left <= 10_000 for left in during)  # longer than the interval: no walk fences itself


def test_second_sweep_within_the_interval_is_throttled(case: Case) -> None:
    """By our own lease of a moment ago, as by anybody's."""
    case.dead(b"j")
    with case.sweeper(interval=60) as sweeper, case.sweeper() as other:
        sweeper.sweep()
        for again in (sweeper.sweep(), other.sweep()):
            assert (again.status, again.recovered, again.active_scanned) == ("throttled", (), 0)
            assert again.retry_after == pytest.approx(60, abs=5)
    assert case.active() == [b"j"]


def test_lease_of_a_refused_queue_is_given_back(case: Case) -> None:
    case.client.zadd(case.key("active"), {"j": 1})
    with pytest.raises(UnsupportedQueueError):
        case.sweep()
    assert holder(case) is None


def test_refusal_leaves_the_lease_of_somebody_else(case: Case) -> None:
    case.client.zadd(case.key("active"), {"j": 1})
    case.client.set(case.key("stalled-check"), "1700000000000", px=60_000)
    with case.sweeper() as sweeper, pytest.raises(UnsupportedQueueError):
        sweeper.sweep()
    assert holder(case) == b"1700000000000"
    assert ttl(case) > 50_000


def test_lease_after_a_failure_is_no_longer_than_one_interval(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: it was kept at ten seconds for the walk; a sweep that fails must not keep the built-in checks away."""
    case.dead(b"j")
    case.client.sadd(case.key("stalled"), "j")

    def fail(*_: Any, **__: Any) -> Any:
        raise ScriptError("as if")

    monkeypatch.setattr("mqsweep.sweep.decide", fail)
    with case.sweeper(interval=2) as sweeper, pytest.raises(ScriptError):
        sweeper.sweep()
    assert 0 < ttl(case) <= 2_000


@pytest.mark.parametrize("phase", ["scan", "recover"])
@pytest.mark.parametrize("thief", [b"mqsweep:other:1:0", b"1700000000000", None])
def test_sweep_that_lost_its_lease_changes_nothing_more(case: Case, phase: str, thief: bytes | None) -> None:
    ids = [b"%d" % n for n in range(400)]
    case.dead(*ids)
    case.sweep()
    snapshots: list[Any] = []

    def steal(progress: Any) -> None:
        if progress.phase == phase and not snapshots:
            if thief is None:
                case.client.delete(case.key("stalled-check"))
            else:
                case.client.set(case.key("stalled-check"), thief, px=50_000)
            snapshots.append(case.dump())

    report = case.sweep(on_progress=steal, mark="lockless")
    assert report.status == "fenced"
    assert case.dump() == snapshots[0]
    assert len(report.recovered) == (0 if phase == "scan" else len(case.wait())) < len(ids)
    assert holder(case) == thief
    assert thief is None or ttl(case) > 40_000
    rest = case.sweep()  # who comes next finds the rest
    assert report.recovered + rest.recovered == tuple(i.decode() for i in ids)


# run


def test_run_keeps_one_lease_for_two_intervals_and_leaves_one(case: Case) -> None:
    with running(case, interval=0.4) as reports:
        until(lambda: len(reports) >= 1)
        first = holder(case)
        assert TOKEN.fullmatch(first or b"")
        assert 400 < ttl(case) <= 800
        until(lambda: len(reports) >= 4)
        assert holder(case) == first
    assert {report.status for report in reports} == {"swept"}
    assert ttl(case) <= 400
    assert all(later.started_at - earlier.started_at > 0.3 for earlier, later in pairwise(reports))


def test_run_takes_a_finished_check_over_and_begins_when_its_time_is_over(case: Case) -> None:
    """A bare timestamp: BullMQ's check is one script, so nobody is sweeping; but its interval is an interval."""
    case.dead(b"j")
    case.client.set(case.key("stalled-check"), "1700000000000", px=800)
    with running(case, interval=0.2) as reports:
        until(lambda: TOKEN.fullmatch(holder(case) or b""))
        assert ttl(case) > 400
        until(lambda: any(report.recovered for report in reports))
    throttled, swept = reports[0], reports[1]
    assert (throttled.status, swept.status) == ("throttled", "swept")
    assert throttled.retry_after == pytest.approx(0.8, abs=0.3)
    assert swept.started_at - throttled.started_at >= throttled.retry_after - 0.01


def test_run_leaves_a_token_alone_until_it_expires(case: Case) -> None:
    case.dead(b"j")
    case.client.set(case.key("stalled-check"), "mqsweep:other:1:0", px=500)
    with running(case, interval=0.2) as reports:
        until(lambda: reports)
        assert reports[0].status == "throttled"
        until(lambda: any(report.recovered for report in reports))
    first = next(report for report in reports if report.status == "swept")
    assert first.started_at - reports[0].started_at >= reports[0].retry_after - 0.01


def test_of_two_services_one_sweeps_and_the_other_follows(case: Case) -> None:
    ids = [b"%d" % n for n in range(50)]
    with running(case) as second_in_line:
        with running(case) as reports:
            until(lambda: len(reports) + len(second_in_line) >= 6)
            case.dead(*ids)
            until(lambda: any(report.recovered for report in reports + second_in_line))
        waiting = [all(r.status == "throttled" for r in some) for some in (reports, second_in_line)]
        assert sum(waiting) == 1
        follower = second_in_line if waiting[1] else reports
        if follower is second_in_line:  # its turn now
            until(lambda: follower[-1].status == "swept")
    recovered = [i for report in reports + second_in_line for i in report.recovered]
    assert sorted(recovered) == sorted(i.decode() for i in ids)
    assert {case.client.hget(case.key(i), "stc") for i in ids} == {b"1"}


def test_stop_ends_a_sweep_after_the_batch_under_way(case: Case) -> None:
    ids = [b"%d" % n for n in range(2_000)]
    case.dead(*ids)
    case.client.sadd(case.key("stalled"), *ids)
    stop, reports = threading.Event(), list[SweepReport]()

    def at_work(progress: Any) -> None:
        if progress.phase == "recover":
            stop.set()

    with case.sweeper(interval=5, on_progress=at_work) as sweeper:
        sweeper.run(stop, reports.append)
    (report,) = reports
    assert not report.complete
    assert 0 < len(report.recovered) < len(ids)
    assert len(report.recovered) + len(report.missed) == len(ids)
    assert sorted(case.wait()) == sorted(i.encode() for i in report.recovered)
    assert ttl(case) <= 5_000
    assert case.sweep().recovered == report.missed


def test_stop_during_the_look_changes_nothing(case: Case) -> None:
    case.dead(*(b"%d" % n for n in range(2_000)))
    stop, reports = threading.Event(), list[SweepReport]()
    before = case.dump()
    with case.sweeper(on_progress=lambda _: stop.set()) as sweeper:
        sweeper.run(stop, reports.append)
    assert [(report.complete, report.marked) for report in reports] == [(False, ())]
    assert case.dump() == before


def test_run_that_is_stopped_before_it_began_does_nothing(case: Case) -> None:
    stop = threading.Event()
    stop.set()
    reports: list[SweepReport] = []
    with case.sweeper() as sweeper:
        sweeper.run(stop, reports.append)
    assert reports == []
    assert case.client.dbsize() == 0


def test_run_raises_what_will_not_pass(case: Case) -> None:
    case.client.zadd(case.key("active"), {"j": 1})
    with pytest.raises(UnsupportedQueueError), case.sweeper() as sweeper:
        sweeper.run(threading.Event())
    assert holder(case) is None


class Dozing(threading.Event):
    """Its owner is put to sleep now and then, and wakes later than it wanted to."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(timeout if not timeout else timeout + random.choice((0, 0.3)))


def test_sweep_that_began_late_still_gives_a_whole_interval_of_grace(case: Case) -> None:
    """I3: the next is counted from when it began, not from when it was due."""
    stop, reports = Dozing(), list[SweepReport]()

    def enough(report: SweepReport) -> None:
        reports.append(report)
        if len(reports) == 8:
            stop.set()

    with case.sweeper(interval=0.35) as sweeper:
        sweeper.run(stop, enough)
    assert all(later.started_at - earlier.started_at > 0.2 for earlier, later in pairwise(reports))


def test_held_queue_is_left_to_the_checks_that_are_built_in(case: Case) -> None:
    """I9: a worker's timer comes by often enough to find the lease free, though we are there to take it again."""
    case = Case(case.client, case.engine, "bullmq")
    case.client.hset(case.key("meta"), "paused", "1")
    case.dead(b"j")
    with running(case, interval=0.5) as reports:
        until(lambda: reports)
        assert reports[0].status == "held"
        until(lambda: run_oracle(case.client, case.base, 1, 100, snapshot.server_ms(case.client)), 6, every=0.13)
        assert case.active() == []


def test_sweep_and_run_of_one_sweeper_at_once(case: Case) -> None:
    stop = threading.Event()
    with Sweeper(case.client, "q", engine=case.engine, interval=0.3) as sweeper:
        thread = threading.Thread(target=sweeper.run, args=(stop,))
        thread.start()
        until(lambda: holder(case))
        statuses = {sweeper.sweep().status for _ in range(20)}
        stop.set()
        thread.join(PATIENCE)
    assert statuses == {"throttled"}
