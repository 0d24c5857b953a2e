"""States taken from public bug reports, as in ``test_cases.py``: where a recovered job goes, and when it fails."""

from __future__ import annotations

import json

import pytest

from support.cases import Case
from support.model import STALLS

BULLMQ = pytest.mark.parametrize("dialect", ["bullmq"])
ECHOMQ = pytest.mark.parametrize("dialect", ["echomq"])


@BULLMQ
def test_ceiling_of_bullmq_is_stalls_alone(case: Case) -> None:
    """bullmq#892, bull#1278: past the ceiling although attempts remain. That is BullMQ's rule."""
    case.dead(b"over", stc="1", opts='{"attempts":10}', atm="0")
    case.dead(b"under", stc="0", opts='{"attempts":1}', atm="9")
    case.sweep()
    report = case.sweep()
    assert (report.failed, report.recovered) == (("over",), ("under",))
    assert case.look("over")[b"defa"] == STALLS
    assert b"defa" not in case.look("under")
    assert case.look("over")[b"atm"] == b"0"
    assert sorted(case.wait()) == [b"over", b"under"]  # the next worker does the failing


@ECHOMQ
def test_ceiling_of_echomq_is_either(case: Case) -> None:
    """bullmq#892, bull#1278: whichever of stalls and attempts is reached first."""
    case.dead(b"stalls", stc="1", opts='{"attempts":10}', atm="0")
    case.dead(b"attempts", stc="0", opts='{"attempts":2}', atm="1")
    case.dead(b"neither", stc="0", opts='{"attempts":3}', atm="1")
    case.sweep()
    report = case.sweep()
    assert (report.failed, report.recovered) == (("stalls", "attempts"), ("neither",))
    assert set(case.look("failed")) == {b"stalls", b"attempts"}
    assert b"defa" not in case.look("stalls")


@BULLMQ
def test_job_of_a_scheduler_that_is_gone_has_no_exemption(case: Case) -> None:
    """bullmq#4220: rjk is set, stc is 9, its scheduler does not exist any more."""
    case.client.zadd(case.key("repeat"), {"other": 1})
    case.dead(b"j", rjk="s", stc="9")
    case.sweep()
    assert case.sweep().failed == ("j",)
    assert (case.look("j")[b"stc"], case.look("j")[b"defa"]) == (b"10", STALLS)


@BULLMQ
@pytest.mark.parametrize("kind", ["hash", "zset"])
def test_job_of_a_living_scheduler_is_exempt(case: Case, kind: str) -> None:
    """BullMQ's scheduler tests: by the scheduler's own hash, or by its place in repeat, as before 5.x."""
    if kind == "hash":
        case.client.hset(case.key("repeat:s"), mapping={"every": "1000", "ic": "4"})
    else:
        case.client.zadd(case.key("repeat"), {"s": 1_700_000_000_000})
    case.client.zadd(case.key("delayed"), {"repeat:s:1700000000000": 1})
    case.dead(b"j", rjk="s", stc="9")
    case.dead(b"plain", stc="9")
    before = {name: value for name, value in case.dump().items() if name.startswith((b"repeat", b"delayed"))}
    case.sweep()
    report = case.sweep()
    assert (report.recovered, report.failed) == (("j",), ("plain",))
    assert (case.look("j")[b"stc"], b"defa" in case.look("j")) == (b"10", False)
    after = {name: value for name, value in case.dump().items() if name.startswith((b"repeat", b"delayed"))}
    assert after == before


@ECHOMQ
def test_echomq_knows_no_exemption(case: Case) -> None:
    """bullmq#4220 in the other dialect: a scheduler does not lift the ceiling."""
    case.client.hset(case.key("repeat:s"), "every", "1000")
    case.dead(b"j", rjk="s", stc="1")
    case.sweep()
    assert case.sweep().failed == ("j",)


@BULLMQ
def test_child_past_the_ceiling_is_left_to_a_worker_for_its_parents_sake(case: Case) -> None:
    """bullmq#2464, #2531: its parent waits for it; only a worker does that bookkeeping."""
    parent = f"{case.base.decode()}:p"
    case.client.hset(case.key("p"), mapping={"name": "parent", "data": "{}"})
    case.client.zadd(case.key("waiting-children"), {"p": 1})
    case.client.sadd(case.key("p:dependencies"), case.key("c"))
    case.dead(b"c", stc="1", parentKey=parent, parent=json.dumps({"id": "p", "fpof": True}))
    before = {name: v for name, v in case.dump().items() if name[:1] == b"p" or name == b"waiting-children"}
    case.sweep()
    assert case.sweep().failed == ("c",)
    assert (case.wait(), case.look("c")[b"defa"]) == ([b"c"], STALLS)
    after = {name: v for name, v in case.dump().items() if name[:1] == b"p" or name == b"waiting-children"}
    assert after == before
    assert case.look("failed") is None


@BULLMQ
@pytest.mark.parametrize("opts", ['{"removeOnFail":true}', '{"removeOnFail":0}', '{"removeOnFail":{"count":1}}'])
def test_remove_on_fail_is_left_to_the_worker(case: Case, opts: str) -> None:
    """bullmq#977, #1171: nothing is removed here, and nothing kept that should go: the job goes by way of a worker."""
    case.dead(b"j", stc="1", opts=opts)
    case.sweep()
    assert case.sweep().failed == ("j",)
    assert (case.wait(), case.look("j")[b"defa"], case.look("failed")) == ([b"j"], STALLS, None)


@ECHOMQ
def test_paused_queue_of_echomq_keeps_its_jobs_in_paused(case: Case) -> None:
    """bull#247: recovered to paused, nobody woken; resumed, it is all there."""
    case.client.hset(case.key("meta"), "paused", "1")
    case.client.lpush(case.key("paused"), "w")
    case.dead(b"j")
    case.sweep()
    assert case.sweep().recovered == ("j",)
    assert (case.wait(), case.look("marker")) == ([], None)
    case.client.rename(case.key("paused"), case.key("wait"))
    assert case.wait() == [b"j", b"w"]


@pytest.mark.parametrize(
    ("concurrency", "living", "woken"), [(None, 3, True), (3, 1, True), (2, 2, False), (1, 3, False)]
)
def test_worker_is_woken_when_there_is_something_for_it(
    case: Case, concurrency: int | None, living: int, woken: bool
) -> None:
    """bullmq PR 2384: decided after all of the dead have left active, not while they still count."""
    if concurrency is not None:
        case.client.hset(case.key("meta"), "concurrency", concurrency)
    case.dead(b"d1", b"d2", b"d3")
    case.alive(*(b"a%d" % n for n in range(living)))
    case.sweep()
    assert case.look("marker") is None
    case.sweep()
    assert case.look("marker") == ({b"0": 0.0} if woken else None)


def test_recovered_jobs_go_behind_those_that_wait_if_asked(case: Case) -> None:
    """bee-queue#52: at the front they hog the workers."""
    case.client.lpush(case.key("wait"), "w1", "w2")
    case.dead(b"j1", b"j2")
    case.sweep(requeue="back")
    case.sweep(requeue="back")
    assert case.wait()[::-1] == [b"w1", b"w2", b"j1", b"j2"]  # from the right, as workers take them


def test_recovered_jobs_go_first_if_asked(case: Case) -> None:
    """bee-queue#52, the other way: the oldest of them is the next to be taken."""
    case.client.lpush(case.key("wait"), "w1", "w2")
    case.dead(b"j1", b"j2")
    case.sweep(requeue="front")
    case.sweep(requeue="front")
    assert case.wait()[::-1] == [b"j1", b"j2", b"w1", b"w2"]
