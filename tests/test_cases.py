"""States taken from public bug reports, and what is right for each: what stands in a queue's keys.

Each test names the reports (bullmq = taskforcesh/bullmq, bull = OptimalBits/bull). Where a job goes and when it fails
is in ``test_cases_policy.py``; what needs many jobs, a server of its own or a moment between two commands in
``test_cases_server.py``.
"""

from __future__ import annotations

import pytest

from mqsweep import UnsupportedQueueError
from support.cases import Case
from support.ways import next_interval

BULLMQ = pytest.mark.parametrize("dialect", ["bullmq"])


def test_job_of_a_dead_worker_comes_back_with_no_worker_online(case: Case) -> None:
    """bullmq#652, #2580: active=[j], no lock, nobody there who would check."""
    case.dead(b"j")
    first = case.sweep()
    assert (first.recovered, case.active(), case.marks()) == ((), [b"j"], {b"j"})
    assert not case.tells or first.marked == ("j",)
    assert case.sweep().recovered == ("j",)
    assert (case.active(), case.wait(), case.marks()) == ([], [b"j"], set())
    assert case.look("j")[b"stc"] == b"1"


def test_marks_that_an_abandoned_check_left_are_recovered_at_once(case: Case) -> None:
    """bullmq#3535: stalled=[a,b], both in active, nobody sweeping any more. Those marks have had their grace."""
    case.dead(b"a", b"b")
    case.client.sadd(case.key("stalled"), "a", "b")
    assert case.inspect().holder is None  # nobody sweeps here, and it can be seen
    assert case.sweep().recovered == ("a", "b")
    holder = case.inspect().holder or ""
    assert holder.startswith("mqsweep:") or (case.engine == "script" and holder.isdigit())
    assert sorted(case.wait()) == [b"a", b"b"]


def test_inspect_tells_a_check_of_bullmqs_own_from_ours(case: Case) -> None:
    """bullmq#3535: a bare timestamp is a check of BullMQ that has finished."""
    case.dead(b"a")
    case.client.set(case.key("stalled-check"), "1700000000000", px=60_000)
    assert case.inspect().holder == "1700000000000"


def test_cron_job_that_sweeps_twice_is_enough(case: Case) -> None:
    """bullmq#1976, #806: each sweep by a new sweeper that knows nothing of the one before."""
    case.dead(b"j1", b"j2")
    case.alive(b"j3")
    case.sweep()
    assert case.sweep().recovered == ("j1", "j2")
    assert case.active() == [b"j3"]


def test_job_without_a_hash_leaves_active_and_goes_nowhere(case: Case) -> None:
    """bull#850, #1600, bullmq#3929: an id in active and stalled, and no hash."""
    case.client.lpush(case.key("active"), "gone", "new-ghost")
    case.client.sadd(case.key("stalled"), "gone")
    report = case.sweep()
    assert case.active() == [b"new-ghost"]  # second sight for one, first for the other
    assert not case.tells or (report.ghosts, report.marked) == (("gone",), ("new-ghost",))
    report = case.sweep()
    assert not case.tells or report.ghosts == ("new-ghost",)
    assert (report.recovered, report.failed) == ((), ())
    assert case.dump() == {} if case.dialect == "echomq" else set(case.dump()) <= {b"meta"}


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_finished_job_that_is_still_in_active_is_not_run_again(case: Case, end: str) -> None:
    """bull#850 in kind: what is done stays done."""
    case.dead(b"j", finishedOn="1700000000000")
    case.client.zadd(case.key(end), {"j": 1_700_000_000_000})
    case.client.sadd(case.key("stalled"), "j")
    before = case.look("j")
    report = case.sweep()
    assert (report.recovered, case.active(), case.wait(), case.look("j")) == ((), [], [], before)
    assert case.client.zscore(case.key(end), "j") == 1_700_000_000_000
    assert not case.tells or report.ghosts == ("j",)


def test_lock_that_comes_a_moment_after_the_pick_up_is_in_time(case: Case) -> None:
    """bull#258, #358: id in active, its lock set 10 ms later. Two phases: the first sight costs nothing."""
    case.dead(b"j")
    case.sweep()
    case.lock(b"j")
    for _ in range(3):
        report = case.sweep()
        assert (report.recovered, report.failed) == ((), ())
        assert case.active() == [b"j"]
    assert case.marks() == set()
    assert b"stc" not in case.look("j")


def test_mark_of_an_earlier_run_does_not_harm_the_next(case: Case) -> None:
    """bull#1349: the mark is old, the new run's lock is alive."""
    case.alive(b"j")
    case.client.sadd(case.key("stalled"), "j")
    report = case.sweep()
    assert not case.tells or report.cleared == ("j",)
    assert (case.marks(), case.active()) == (set(), [b"j"])
    case.lapse(b"j")  # now it dies, and has its full grace
    assert case.sweep().recovered == ()
    assert case.sweep().recovered == ("j",)


@pytest.mark.parametrize("place", ["wait", "completed", "nowhere"])
def test_mark_of_a_job_that_is_not_active_goes(case: Case, place: str) -> None:
    """bull#1349 in kind: stray marks would rob the job's next run of its grace."""
    case.client.sadd(case.key("stalled"), "j")
    if place == "wait":
        case.client.lpush(case.key("wait"), "j")
    elif place == "completed":
        case.client.zadd(case.key("completed"), {"j": 1})
    report = case.sweep()
    assert not case.tells or report.strays == ("j",)
    assert case.marks() == set()
    assert case.wait() == ([b"j"] if place == "wait" else [])


def test_poison_jobs_can_be_seen(case: Case) -> None:
    """sidekiq#4594, #3103: before the ceiling by `inspect`, past it in the report."""
    case.dead(b"poison", stc="1", pb="w7", processedOn="1700000000000")
    case.dead(b"fresh")
    seen = {job.id: job for job in case.inspect().jobs}
    assert (seen["poison"].stalls, seen["poison"].past_ceiling, seen["poison"].worker) == (1, True, "w7")
    assert seen["poison"].processed_on == 1_700_000_000.0
    assert (seen["fresh"].stalls, seen["fresh"].past_ceiling) == (None, False)
    case.sweep()
    assert case.inspect().jobs[0].marked
    assert case.sweep().failed == ("poison",)


def test_runaway_is_reported_as_such(case: Case) -> None:
    """activepieces PR 13110: a consumer that ignores defa; its stalls are in the thousands."""
    case.dead(b"runaway", stc="4711")
    case.dead(b"unlucky", stc="3")
    seen = {job.id: job for job in case.inspect().jobs}
    assert seen["runaway"].runaway
    assert not seen["unlucky"].runaway
    assert seen["unlucky"].past_ceiling


@BULLMQ
def test_markers_of_bullmq_4_are_taken_out_and_nothing_else(case: Case) -> None:
    """v4 markers: active holds ``0:123``, which is no job."""
    case.client.lpush(case.key("active"), "0:123")
    case.alive(b"j")
    case.sweep()
    before = {name: value for name, value in case.dump().items() if name not in (b"active", b"stalled", b"meta")}
    report = case.sweep()
    assert (report.recovered, report.failed, case.active(), case.marks()) == ((), (), [b"j"], set())
    assert not case.tells or report.ghosts == ("0:123",)
    after = {name: value for name, value in case.dump().items() if name not in (b"active", b"stalled", b"meta")}
    assert after == before


def test_echomq_2_is_refused_by_name(case: Case) -> None:
    """EchoMQ 2: active is a sorted set of deadlines, and there are no locks."""
    case.client.zadd(case.key("active"), {"j": 1})
    case.client.sadd(case.key("stalled"), "j")
    before = case.dump()
    for ask in (case.sweep, case.inspect):
        with pytest.raises(UnsupportedQueueError, match="EchoMQ 2"):
            ask()
    assert case.dump() == before
    assert not case.client.exists(case.key("stalled-check"))


@BULLMQ
def test_groups_of_bullmq_pro_are_refused_by_name(case: Case) -> None:
    """EchoMQ 2 in kind: another protocol in part, whose state a recovery would have to maintain."""
    case.client.zadd(case.key("groups"), {"g": 1})
    case.dead(b"j")
    before = case.dump()
    with pytest.raises(UnsupportedQueueError, match="Pro"):
        case.sweep()
    assert case.dump() == before
    assert not case.client.exists(case.key("stalled-check"))


@pytest.mark.parametrize("copies", [2, 3, 7])
def test_id_that_is_in_active_more_than_once_is_recovered_once(case: Case, copies: int) -> None:
    """Duplicates: one recovery, one stall counted, all its entries gone."""
    case.dead(b"a")
    for number in range(copies):
        case.client.lpush(case.key("active"), "twin")
        case.alive(b"other-%d" % number)
    case.client.hset(case.key("twin"), mapping={"name": "paint", "data": "{}"})
    case.sweep()
    assert case.sweep().recovered == ("a", "twin")
    assert sorted(case.active()) == sorted(b"other-%d" % n for n in range(copies))
    assert sorted(case.wait()) == [b"a", b"twin"]
    assert case.look("twin")[b"stc"] == b"1"


@BULLMQ
def test_both_entries_of_an_id_are_followed_when_a_removal_moves_both(case: Case) -> None:
    """Duplicates: the copies of one job leave, and the living tail that fills their holes is one other id, twice."""
    case.dead(*(b"%d" % number for number in range(1, 201)))
    case.dead(b"x", stc="9", rjk="some-scheduler")  # its key is asked for, so a batch ends before it
    case.client.lpush(case.key("active"), b"x", *([b"1"] * 10))
    case.client.sadd(case.key("stalled"), "x", *range(1, 201))
    report = case.sweep(max_pause=1.0)
    assert set(report.recovered) == {str(number) for number in range(1, 201)}
    assert (report.failed, case.active()) == (("x",), [])
    case.dead(b"y")
    case.client.lpush(case.key("active"), b"x", b"y", b"x", b"y", b"y", b"y")
    case.client.sadd(case.key("stalled"), "x", "y")
    report = case.sweep(max_pause=1.0)
    assert (report.recovered, report.failed, case.active()) == (("y",), ("x",), [])


def test_locks_of_a_deployment_keep_their_jobs_until_they_end(case: Case) -> None:
    """bullmq#834, #2714: the worker is gone, its locks are not; `inspect` tells whose the jobs were."""
    case.alive(b"j", px=150, pb="pod-1", processedOn="1700000000000")
    assert case.sweep().recovered == ()
    if case.client.exists(case.key("j:lock")):
        assert case.marks() == set()
        assert case.active() == [b"j"]
    while case.client.exists(case.key("j:lock")):  # the server's own clock ends it
        next_interval(case.client, case.base)
    (job,) = case.inspect().jobs
    assert (job.id, job.worker, job.processed_on) == ("j", "pod-1", 1_700_000_000.0)
    case.sweep()
    assert case.sweep().recovered == ("j",)
