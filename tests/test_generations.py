"""BullMQ's generations: what each did to a stalled job, and how a queue's own is told (docs/generations.md)."""

from __future__ import annotations

import pytest
import redis

from mqsweep import UnsupportedQueueError
from support.cases import Case
from support.fleet import Fleet, for_nodes


@pytest.fixture
def case(client: redis.Redis, engine: str) -> Case:
    """A BullMQ queue with nothing in it."""
    return Case(client, engine, "bullmq")


@pytest.mark.parametrize("version", ["bullmq:5.40.0", "bullmq:5.53.1", "bullmq:5.0.0", "bullmq:4.18.3", "bullmq:5.40"])
def test_releases_that_fail_jobs_in_their_check_are_refused_by_name(case: Case, version: str) -> None:
    """bullmq#977, #1171, below 5.53.2: there the check itself removes, and mqsweep does not."""
    case.client.hset(case.key("meta"), "version", version)
    case.dead(b"j", stc="1")
    case.client.sadd(case.key("stalled"), "j")
    before = case.dump()
    with pytest.raises(UnsupportedQueueError, match=version.removeprefix("bullmq:").replace(".", r"\.")):
        case.sweep()
    assert case.dump() == before
    assert not case.client.exists(case.key("stalled-check"))  # BullMQ's own check is free to work


@pytest.mark.parametrize("version", ["bullmq:5.53.2", "bullmq:5.81.3", "bullmq:6.0.0", "bullmq:6.7.0-beta.1", None])
def test_releases_that_leave_failing_to_workers_are_swept(case: Case, version: str | None) -> None:
    """bullmq#977, #1171, from 5.53.2 on."""
    if version is not None:
        case.client.hset(case.key("meta"), "version", version)
    case.dead(b"j", stc="1")
    case.sweep()
    assert case.sweep().failed == ("j",)


def test_paused_queue_of_bullmq_6_keeps_its_jobs_in_wait(case: Case) -> None:
    """bull#247, bullmq PR 4289: recovered to wait, nobody woken; resumed, it is all there."""
    case.client.hset(case.key("meta"), mapping={"paused": "1", "version": "bullmq:6.2.0"})
    case.client.lpush(case.key("wait"), "w")
    case.dead(b"j")
    case.sweep()
    assert case.sweep().recovered == ("j",)
    assert (case.wait(), case.look("paused"), case.look("marker")) == ([b"w", b"j"], None, None)
    case.client.hdel(case.key("meta"), "paused")  # which is all that resuming does to the lists
    assert case.wait() == [b"w", b"j"]


@pytest.mark.parametrize("told", ["meta", "option", "lists"])
def test_paused_queue_of_bullmq_5_keeps_its_jobs_in_paused(case: Case, told: str) -> None:
    """bull#247, bullmq PR 4289: resuming renames paused over wait; what was pushed to wait meanwhile is lost."""
    case.client.hset(case.key("meta"), "paused", "1")
    if told == "meta":
        case.client.hset(case.key("meta"), "version", "bullmq:5.81.3")
    if told == "lists":
        case.client.lpush(case.key("paused"), "w")
    options = {"bullmq_version": "5.70.0"} if told == "option" else {}
    case.dead(b"j1", b"j2")
    case.sweep(**options)
    report = case.sweep(**options)
    assert (report.status, report.recovered) == ("swept", ("j1", "j2"))
    kept = [b"w", b"j2", b"j1"] if told == "lists" else [b"j2", b"j1"]
    assert (case.look("paused"), case.wait(), case.look("marker"), case.active()) == (kept, [], None, [])
    case.client.hdel(case.key("meta"), "paused")
    case.client.rename(case.key("paused"), case.key("wait"))  # which is what resuming does
    assert case.wait() == kept


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("version", [None, "other:6.0.0", "bullmq:7.1.0"])
def test_paused_queue_of_unknown_generation_is_held(case: Case, version: str | None, both: bool) -> None:
    """bull#247, bullmq PR 4289: the wrong list strands or loses a job, so none is pushed; it waits for the resume."""
    case.client.hset(case.key("meta"), mapping={"paused": "1", **({"version": version} if version else {})})
    for name in ("wait", "paused") if both else ():
        case.client.lpush(case.key(name), "w")
    case.dead(b"j")
    case.sweep()
    report = case.sweep()
    assert (report.status, report.recovered, report.held) == ("held", (), ("j",))
    assert "bullmq_version" in (report.held_because or "")
    assert case.active() == [b"j"]
    assert [case.look("wait"), case.look("paused")] == ([[b"w"], [b"w"]] if both else [None, None])
    case.client.hdel(case.key("meta"), "paused")
    report = case.sweep()
    assert (report.recovered, report.held_because) == (("j",), None)
    assert case.wait()[-1] == b"j"


def test_generation_that_the_user_says_is_believed(case: Case) -> None:
    """bull#247: Python's own Queue writes no meta.version."""
    case.client.hset(case.key("meta"), "paused", "1")
    case.dead(b"j")
    case.sweep(bullmq_version="6")
    assert case.sweep(bullmq_version="6").recovered == ("j",)
    assert case.wait() == [b"j"]


@pytest.mark.parametrize("server", ["redis"], indirect=True)
@for_nodes
def test_what_resuming_does_to_a_queue_with_jobs_in_both_lists(fleet: Fleet, package: str) -> None:
    """bull#247, bullmq PR 4289: BullMQ 5 loses what is in wait, BullMQ 6 moves the rest behind it."""
    program = fleet.control(package)
    program("queue", "pause")
    fleet.client.rpush(fleet.key("wait"), "w1", "w2")
    fleet.client.rpush(fleet.key("paused"), "p1", "p2")
    program("queue", "resume")
    kept = [b"p1", b"p2"] if package == "bullmq5" else [b"w1", b"w2", b"p1", b"p2"]
    assert fleet.client.lrange(fleet.key("wait"), 0, -1) == kept
    assert not fleet.client.exists(fleet.key("paused"))


def test_old_release_that_writes_no_version_is_refused_where_the_user_says_it(case: Case) -> None:
    """bullmq#977: 5.19.1 and older for Node write none; untold, the queue is swept as one of 6."""
    case.client.hset(case.key("meta"), "opts.maxLenEvents", "10000")
    case.dead(b"j", stc="1")
    with pytest.raises(UnsupportedQueueError, match=r"5\.18\.0"):
        case.sweep(bullmq_version="5.18.0")
    case.sweep()
    assert case.sweep().failed == ("j",)
    assert case.look("j")[b"defa"]  # which workers before 5.49.2 ignore


@pytest.mark.parametrize(
    ("version", "rjk", "opts", "spared"),
    [
        ("6.7.0", "alive", "{}", True),
        ("6.7.0", "gone", '{"repeat":{"every":9}}', False),
        ("5.78.1", "alive", "{}", True),
        ("5.78.0", "alive", "{}", False),
        ("5.78.0", "gone", '{"repeat":{"every":9}}', True),
        ("5.58.8", "gone", '{"repeat":{"every":9}}', True),
        ("5.58.7", "alive", '{"repeat":{"every":9}}', False),
        ("5.53.2", "alive", '{"repeat":{"every":9}}', False),
    ],
)
def test_who_is_spared_the_ceiling_changed_twice(case: Case, version: str, rjk: str, opts: str, spared: bool) -> None:
    """Read from the releases' own scripts: nobody; then whose options repeat; then whose scheduler lives."""
    case.client.hset(case.key("meta"), "version", f"bullmq:{version}")
    case.client.hset(case.key("repeat:alive"), "name", "every")
    case.dead(b"j", stc="9", rjk=rjk, opts=opts)
    case.sweep()
    report = case.sweep()
    assert (report.recovered, report.failed) == ((("j",), ()) if spared else ((), ("j",)))
    assert (b"defa" in case.look("j")) is not spared


@pytest.mark.parametrize("sign", ["meta-paused", "priority"])
def test_queue_of_bull_is_refused_by_name(case: Case, sign: str) -> None:
    """Bull, BullMQ's predecessor, has no meta, and keys of its own."""
    if sign == "priority":
        case.client.zadd(case.key(sign), {"j": 1})
    else:
        case.client.set(case.key(sign), "1")
    case.dead(b"j")
    before = case.dump()
    with pytest.raises(UnsupportedQueueError, match="Bull, BullMQ's predecessor"):
        case.sweep()
    assert case.dump() == before
    assert not case.client.exists(case.key("stalled-check"))
