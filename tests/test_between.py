"""What happens between the look and the act: the script believes nothing that it is told.

The plan is made at exactly that moment, so the tests step in there: whatever the engine, the scan is over
and nothing is written yet. Later moments, between two batches, come with the sweeper's own progress calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from support import snapshot
from support.model import Policy
from support.ways import BASES, sweeper
from support.workers import EchoQueue

BASE = BASES["echomq"]
ECHOMQ = Policy()
BULLMQ = Policy("bullmq")


@pytest.fixture
def queue(client: redis.Redis) -> EchoQueue:
    """An EchoMQ queue with nothing in it."""
    return EchoQueue(client, BASE)


class Moment:
    """Sweeps in which something happens right after the look."""

    def __init__(self, patch: pytest.MonkeyPatch, queue: EchoQueue, engine: str) -> None:
        self._patch, self._queue, self._engine = patch, queue, engine

    def sweep(self, meanwhile: Callable[[], object], policy: Policy = ECHOMQ, **options: Any) -> Any:
        """One sweep; the report."""
        from mqsweep.plan import decide

        def step_in(*seen: Any, **rest: Any) -> Any:
            meanwhile()
            return decide(*seen, **rest)

        with self._patch.context() as patch, sweeper(self._queue.client, self._engine, policy, **options) as subject:
            patch.setattr("mqsweep.sweep.decide", step_in)
            return subject.sweep()


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch, queue: EchoQueue, looking: str) -> Moment:
    """Ready to step in."""
    return Moment(monkeypatch, queue, looking)


def stand(queue: EchoQueue, dead: list[bytes], living: list[bytes] | None = None, *, marked: bool = True) -> None:
    """Jobs in active, the dead at the tail unless they are among ``living`` too."""
    order = [*dead, *living] if living and not set(dead) & set(living) else living or dead
    queue.add(*order)
    for _ in order:
        queue.pick_up(b"w")
    queue.lapse(dead)
    if marked:
        queue.client.sadd(queue.key(b"stalled"), *dead)


def left(queue: EchoQueue) -> Any:
    """All that is left, by name."""
    return snapshot.dump(queue.client, BASE)


def test_lock_set_again_saves_the_job(queue: EchoQueue, moment: Moment) -> None:
    stand(queue, [b"1", b"2"])
    report = moment.sweep(lambda: queue.client.set(queue.key(b"1:lock"), "back", px=600_000))
    assert (report.recovered, report.cleared) == (("2",), ("1",))
    after = left(queue)
    assert after[b"active"] == [b"1"]
    assert b"stalled" not in after
    assert b"stc" not in after[b"1"]


def test_renewal_that_took_the_mark_back_saves_the_job(queue: EchoQueue, moment: Moment) -> None:
    """Even if its lock has lapsed anew: that would be a stall of its own, and has its grace."""
    stand(queue, [b"1", b"2"])
    report = moment.sweep(lambda: queue.client.srem(queue.key(b"stalled"), "1"))
    assert report.recovered == ("2",)
    after = left(queue)
    assert after[b"active"] == [b"1"]
    assert after[b"wait"] == [b"2"]
    assert b"stc" not in after[b"1"]


def test_finished_job_is_not_run_again(queue: EchoQueue, moment: Moment) -> None:
    stand(queue, [b"1", b"2"])

    def finish() -> None:
        queue.renew(b"1", b"w")
        assert queue.finish(b"1", b"w") == 1

    report = moment.sweep(finish)
    assert report.recovered == ("2",)
    after = left(queue)
    assert after[b"wait"] == [b"2"]
    assert list(after[b"completed"]) == [b"1"]
    assert b"stc" not in after[b"1"]


def test_job_that_left_active_without_an_end_is_not_pushed(queue: EchoQueue, moment: Moment) -> None:
    """Another sweeper was faster: the mark still stands, the place is empty."""
    stand(queue, [b"1", b"2"])
    report = moment.sweep(lambda: queue.client.lrem(queue.key(b"active"), 1, "1"))
    assert (report.recovered, report.missed) == (("2",), ("1",))
    assert left(queue)[b"wait"] == [b"2"]


def test_lock_that_appears_means_no_mark(queue: EchoQueue, moment: Moment) -> None:
    stand(queue, [b"1", b"2"], marked=False)
    report = moment.sweep(lambda: queue.client.set(queue.key(b"1:lock"), "back", px=600_000))
    assert (report.marked, report.marks_placed) == (("2",), 1)
    assert left(queue)[b"stalled"] == {b"2"}


def test_job_that_left_is_not_marked(queue: EchoQueue, moment: Moment) -> None:
    """A stray mark would rob the job's next run of its grace."""
    stand(queue, [b"1", b"2"], marked=False)
    report = moment.sweep(lambda: queue.client.lrem(queue.key(b"active"), 1, "1"))
    assert (report.marked, report.marks_placed) == (("2",), 1)
    assert left(queue)[b"stalled"] == {b"2"}


def test_mark_taken_back_by_the_worker_is_not_counted_as_cleared(queue: EchoQueue, moment: Moment) -> None:
    stand(queue, [b"1", b"2"])
    queue.renew(b"1", b"w")
    queue.client.sadd(queue.key(b"stalled"), "1")
    report = moment.sweep(lambda: queue.renew(b"1", b"w"))
    assert (report.cleared, report.recovered) == ((), ("2",))


@pytest.mark.parametrize("gone", [1, 40, 2_400])
def test_all_are_found_however_far_they_fell(queue: EchoQueue, moment: Moment, gone: int) -> None:
    """Living jobs finish all over the list; what was found so far tells where the rest is."""
    ids = [b"%d" % number for number in range(2_500)]
    dead = ids[::25]
    stand(queue, dead, ids)
    living = [job_id for job_id in ids if job_id not in set(dead)]
    step = len(living) / gone
    finished = [living[int(n * step)] for n in range(gone)]

    def finish() -> None:
        pipe = queue.client.pipeline(transaction=False)
        for job_id in finished:
            pipe.delete(queue.key(job_id + b":lock"))
            pipe.lrem(queue.key(b"active"), -1, job_id)
        pipe.execute()

    report = moment.sweep(finish)
    assert [i.encode() for i in report.recovered] == dead
    after = left(queue)
    assert sorted(after.get(b"active", [])) == sorted(set(living) - set(finished))


def test_new_jobs_at_the_head_move_nobody(queue: EchoQueue, moment: Moment) -> None:
    ids = [b"%d" % number for number in range(200)]
    stand(queue, ids[::7], ids)
    new = [b"new-%d" % number for number in range(300)]

    def more() -> None:
        queue.add(*new)
        for _ in new:
            queue.pick_up(b"w")

    report = moment.sweep(more)
    assert [i.encode() for i in report.recovered] == ids[::7]
    assert sorted(left(queue)[b"active"]) == sorted([*new, *set(ids) - set(ids[::7])])


@pytest.mark.parametrize("copy", [1, -1])
def test_copy_that_left_takes_nobody_with_it(queue: EchoQueue, moment: Moment, copy: int) -> None:
    """Seen twice, there once: the search for the other copy ends at the one already found."""
    stand(queue, [b"1"], [b"2", b"1", b"3", b"4"])
    queue.client.lpush(queue.key(b"active"), "1")
    report = moment.sweep(lambda: queue.client.lrem(queue.key(b"active"), copy, "1"))
    assert report.recovered == ("1",)
    after = left(queue)
    assert sorted(after[b"active"]) == [b"2", b"3", b"4"]
    assert after[b"1"][b"stc"] == b"1"


def test_counter_broken_after_the_look_is_refused(queue: EchoQueue, moment: Moment) -> None:
    stand(queue, [b"1", b"2"])
    report = moment.sweep(lambda: queue.client.hset(queue.key(b"1"), "stc", "x"))
    assert report.recovered == ("2",)
    assert list(report.refused) == ["1"]
    assert left(queue)[b"active"] == [b"1"]


@pytest.mark.parametrize("holder", [None, b"1700000000000", b"mqsweep:other:1:00"])
@pytest.mark.parametrize("mark", ["lockless", "active"])
def test_without_the_lease_nothing_is_changed(
    queue: EchoQueue, moment: Moment, holder: bytes | None, mark: str
) -> None:
    stand(queue, [b"1"])
    queue.add(b"2")
    queue.pick_up(b"w")
    queue.client.sadd(queue.key(b"stalled"), "2", "stray")
    queue.add(b"3")
    queue.pick_up(b"w")
    queue.lapse([b"3"])
    before = left(queue)
    key = queue.key(b"stalled-check")

    def lose() -> None:
        queue.client.delete(key)
        if holder is not None:
            queue.client.set(key, holder, px=600_000)

    report = moment.sweep(lose, Policy(mark=mark))
    assert report.status == "fenced"
    assert (report.recovered, report.marked, report.cleared, report.strays) == ((), (), (), ())
    assert left(queue) == before
    assert queue.client.get(key) == holder


def test_lease_lost_between_two_batches_ends_the_sweep_there(queue: EchoQueue, looking: str) -> None:
    ids = [b"%d" % number for number in range(300)]
    stand(queue, ids)

    def lose(progress: Any) -> None:
        if progress.phase == "recover" and 0 < progress.done < progress.total:
            queue.client.set(queue.key(b"stalled-check"), "somebody", px=600_000)

    with sweeper(queue.client, looking, ECHOMQ, on_progress=lose) as subject:
        report = subject.sweep()
    assert report.status == "fenced"
    assert 0 < len(report.recovered) < len(ids)
    after = left(queue)
    assert sorted(after[b"wait"]) == sorted(i.encode() for i in report.recovered)
    assert sorted(after[b"wait"] + after[b"active"]) == sorted(ids)
    assert after[b"stalled"] == set(after[b"active"])


def bullmq_queue(client: redis.Redis, *dead: bytes) -> EchoQueue:
    """A BullMQ queue with marked jobs whose worker is dead."""
    queue = EchoQueue(client, BASES["bullmq"])
    stand(queue, list(dead))
    return queue


@pytest.mark.parametrize("version", [None, "bullmq:7.0.0"])
def test_paused_after_the_look_holds_the_recoveries(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, looking: str, version: str | None
) -> None:
    """Nobody knows by then to which list the jobs would have to go."""
    queue = bullmq_queue(client, b"1", b"2")

    def pause() -> None:
        client.hset(queue.key(b"meta"), mapping={"paused": "1", **({"version": version} if version else {})})

    report = Moment(monkeypatch, queue, looking).sweep(pause, BULLMQ)
    assert (report.status, report.recovered, report.held) == ("held", (), ("1", "2"))
    assert client.lrange(queue.key(b"active"), 0, -1) == [b"2", b"1"]
    assert client.smembers(queue.key(b"stalled")) == {b"1", b"2"}
    assert not client.exists(queue.key(b"wait"))


def test_resumed_after_the_look_wakes_a_worker(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, looking: str
) -> None:
    """Whether a worker may be woken is asked when the jobs are back, not when they were seen."""
    queue = bullmq_queue(client, b"1")
    client.delete(queue.key(b"marker"))
    client.hset(queue.key(b"meta"), mapping={"paused": "1", "version": "bullmq:6.2.0"})
    report = Moment(monkeypatch, queue, looking).sweep(lambda: client.hdel(queue.key(b"meta"), "paused"), BULLMQ)
    assert report.recovered == ("1",)
    assert client.zrange(queue.key(b"marker"), 0, -1) == [b"0"]


@pytest.mark.parametrize("lives", [True, False])
def test_scheduler_is_asked_for_when_the_job_is_taken(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, looking: str, lives: bool
) -> None:
    """It came, or went, after the look; and the job was given to it only then."""
    queue = bullmq_queue(client, b"1", b"2")
    if not lives:
        client.hset(queue.key(b"repeat:s"), "name", "every")

    def meanwhile() -> None:
        client.hset(queue.key(b"1"), mapping={"rjk": "s", "stc": "9"})
        if lives:
            client.hset(queue.key(b"repeat:s"), "name", "every")
        else:
            client.delete(queue.key(b"repeat:s"))

    report = Moment(monkeypatch, queue, looking).sweep(meanwhile, BULLMQ)
    assert set(report.stalled) == {"1", "2"}
    assert ("1" in report.recovered) == lives
    assert client.hexists(queue.key(b"1"), "defa") != lives
