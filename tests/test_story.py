"""The seed's story, sentence by sentence, for each engine and for the bare script, over both servers.

Every sweep here is made by a new sweeper: all memory between two sweeps is on the server.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from support import snapshot
from support.model import Policy, Stream
from support.servers import Server
from support.ways import BASES, bare_script, next_interval, script_keys, sweeper
from support.workers import EchoQueue

BASE = BASES["echomq"]


@pytest.fixture
def queue(client: redis.Redis) -> EchoQueue:
    """An EchoMQ queue with nothing in it."""
    return EchoQueue(client, BASE)


def sweep(way: str, queue: EchoQueue, **policy: Any) -> tuple[list[bytes], list[bytes]]:
    """One sweep, an interval after the last one: the ids recovered, and those failed."""
    next_interval(queue.client, BASE)
    return sweep_now(way, queue, **policy)


def sweep_now(way: str, queue: EchoQueue, **policy: Any) -> tuple[list[bytes], list[bytes]]:
    """One sweep at this moment, whatever the last one left."""
    if way == "bare":
        failed, recovered = bare_script(queue.client, BASE, max_stalled=policy.get("max_stalled_count", 1))
        return recovered, failed
    with sweeper(queue.client, way, Policy(**policy)) as subject:
        report = subject.sweep()
    return [i.encode() for i in report.recovered], [i.encode() for i in report.failed]


def stall(queue: EchoQueue, *job_ids: bytes, **fields: str) -> None:
    """Jobs whose worker took them and is dead; where they exist already, they are taken again."""
    for job_id in job_ids:
        if not queue.client.exists(queue.key(job_id)):
            queue.add(job_id, **fields)
        assert queue.pick_up(b"doomed") == job_id
        queue.lapse([job_id])


def held(queue: EchoQueue, name: bytes) -> Any:
    """What stands under one key of the queue."""
    return snapshot.dump(queue.client, BASE).get(name)


def events(queue: EchoQueue) -> list[tuple[bytes, ...]]:
    """The event stream."""
    found = held(queue, b"events") or Stream()
    return list(found)


def field(queue: EchoQueue, job_id: bytes, name: str) -> Any:
    """A field of a job."""
    return queue.client.hget(queue.key(job_id), name)


def test_first_sweep_marks_and_reclaims_nothing(queue: EchoQueue, way: str) -> None:
    stall(queue, b"1")
    before = snapshot.dump(queue.client, BASE)
    assert sweep(way, queue) == ([], [])
    after = snapshot.dump(queue.client, BASE)
    assert after.pop(b"stalled") == {b"1"}  # it moves on, and this is all that it leaves behind
    assert after == before


def test_job_with_a_lock_is_not_even_marked(queue: EchoQueue, way: str) -> None:
    queue.add(b"1")
    queue.pick_up(b"alive")
    before = snapshot.dump(queue.client, BASE)
    for _ in range(3):
        assert sweep(way, queue) == ([], [])
    assert snapshot.dump(queue.client, BASE) == before


def test_paused_worker_that_renews_keeps_its_job(queue: EchoQueue, way: str) -> None:
    stall(queue, b"1")
    sweep(way, queue)
    queue.renew(b"1", b"paused")
    before = snapshot.dump(queue.client, BASE)
    assert b"stalled" not in before
    for _ in range(3):
        assert sweep(way, queue) == ([], [])
    assert snapshot.dump(queue.client, BASE) == before
    assert queue.finish(b"1", b"paused") == 1


def test_lock_seen_alive_clears_the_mark(queue: EchoQueue, way: str) -> None:
    """A worker that only sets its lock leaves the mark; the sweep that sees the lock takes it back."""
    stall(queue, b"1")
    sweep(way, queue)
    queue.client.set(queue.key(b"1:lock"), "back", px=600_000)
    assert sweep(way, queue) == ([], [])
    assert held(queue, b"stalled") is None
    assert field(queue, b"1", "atm") is None


def test_cleared_mark_means_a_grace_pass_of_its_own(queue: EchoQueue, way: str) -> None:
    stall(queue, b"1")
    sweep(way, queue)
    queue.renew(b"1", b"paused")
    sweep(way, queue)
    queue.lapse([b"1"])
    assert sweep(way, queue) == ([], [])
    assert sweep(way, queue) == ([b"1"], [])


def test_second_sweep_recovers_with_the_attempt_counted(queue: EchoQueue, way: str) -> None:
    stall(queue, b"1")
    sweep(way, queue)
    assert sweep(way, queue) == ([b"1"], [])
    left = snapshot.dump(queue.client, BASE)
    assert left.get(b"active") is None
    assert left.get(b"stalled") is None
    assert left[b"wait"] == [b"1"]
    assert left[b"marker"] == {b"0": 0.0}
    job = left[b"1"]
    assert isinstance(job, dict)
    assert (job[b"atm"], job[b"stc"]) == (b"1", b"1")
    assert b"failedReason" not in job
    assert events(queue) == [
        (b"event", b"waiting", b"jobId", b"1", b"prev", b"active"),
        (b"event", b"stalled", b"jobId", b"1"),
    ]


def test_recovered_jobs_go_behind_those_already_waiting(queue: EchoQueue, way: str) -> None:
    stall(queue, b"1", b"2", b"3")
    sweep(way, queue)
    for waiting in (b"8", b"9"):
        queue.add(waiting)
    assert sweep(way, queue) == ([b"1", b"2", b"3"], [])
    taken = [queue.pick_up(b"w") for _ in range(5)]
    assert taken == [b"8", b"9", b"1", b"2", b"3"]  # and the oldest of them first


def test_only_the_dead_are_taken_from_among_the_living(queue: EchoQueue, way: str) -> None:
    for number in range(20):
        queue.add(b"%d" % number)
    ids = [queue.pick_up(b"w") or b"" for _ in range(20)]
    dead = ids[::3]
    queue.lapse(dead)
    sweep(way, queue)
    assert sweep(way, queue) == (dead, [])
    assert sorted(held(queue, b"active")) == sorted(set(ids) - set(dead))


def test_finished_between_the_sweeps_means_untouched(queue: EchoQueue, way: str) -> None:
    stall(queue, b"1")
    sweep(way, queue)
    queue.renew(b"1", b"w")
    assert queue.finish(b"1", b"w") == 1
    assert sweep(way, queue) == ([], [])
    assert held(queue, b"wait") is None
    assert held(queue, b"completed") == {b"1": 1_700_000_000_000.0}


@pytest.mark.parametrize("used", [0, 1, 2, 3])
def test_attempts_used_decide_between_wait_and_failed(queue: EchoQueue, way: str, used: int) -> None:
    """The slider of the story: of three attempts, so many are used."""
    stall(queue, b"1", opts='{"attempts":3}', atm=str(used))
    sweep(way, queue)
    since = snapshot.server_ms(queue.client)
    answer = sweep(way, queue)
    until = snapshot.server_ms(queue.client)
    assert field(queue, b"1", "atm") == b"%d" % (used + 1)
    assert held(queue, b"active") is None
    if used < 2:
        assert answer == ([b"1"], [])
        assert held(queue, b"wait") == [b"1"]
        assert held(queue, b"failed") is None
        return
    assert answer == ([], [b"1"])
    assert held(queue, b"wait") is None
    at = held(queue, b"failed")[b"1"]
    assert since <= at <= until
    assert field(queue, b"1", "finishedOn") == b"%d" % at
    reason = field(queue, b"1", "failedReason")
    assert reason == b"job stalled on its last attempt"
    assert events(queue) == [(b"event", b"failed", b"jobId", b"1", b"failedReason", reason, b"prev", b"active")]


@pytest.mark.parametrize("own", [None, '{"attempts":0}', '{"attempts":', '{"attempts":"1"}'])
def test_sweepers_max_attempts_counts_where_the_job_says_none(queue: EchoQueue, engine: str, own: str | None) -> None:
    """BullMQ's ports write 0 for "not set"; a broken text says nothing either."""
    fields = {} if own is None else {"opts": own}
    stall(queue, b"1", atm="1", **fields)
    sweep(engine, queue, max_attempts=2)
    assert sweep(engine, queue, max_attempts=2) == ([], [b"1"])


def test_the_jobs_own_attempts_go_before_the_sweepers(queue: EchoQueue, engine: str) -> None:
    stall(queue, b"1", opts='{"attempts":5}')
    sweep(engine, queue, max_attempts=1)
    assert sweep(engine, queue, max_attempts=1) == ([b"1"], [])


@pytest.mark.parametrize("survives", [0, 1, 3])
def test_max_stalled_count_is_how_many_stalls_a_job_survives(queue: EchoQueue, way: str, survives: int) -> None:
    """A job that stalls every time it runs is recovered so many times, and then it fails."""
    for _ in range(survives):
        stall(queue, b"1")
        sweep(way, queue, max_stalled_count=survives)
        assert sweep(way, queue, max_stalled_count=survives) == ([b"1"], [])
    stall(queue, b"1")
    sweep(way, queue, max_stalled_count=survives)
    assert sweep(way, queue, max_stalled_count=survives) == ([], [b"1"])
    assert field(queue, b"1", "stc") == b"%d" % (survives + 1)
    assert field(queue, b"1", "failedReason") == b"job stalled more than allowable limit"
    assert list(held(queue, b"failed")) == [b"1"]
    assert held(queue, b"wait") is None
    assert held(queue, b"active") is None
    assert held(queue, b"stalled") is None


def test_sweep_too_early_does_nothing(queue: EchoQueue, way: str) -> None:
    stall(queue, b"1")
    sweep(way, queue)
    before = snapshot.dump(queue.client, BASE)
    assert sweep_now(way, queue) == ([], [])
    assert snapshot.dump(queue.client, BASE) == before


def test_whoever_holds_stalled_check_is_obeyed_and_left_alone(queue: EchoQueue, way: str) -> None:
    stall(queue, b"1")
    key = queue.key(b"stalled-check")
    queue.client.set(key, "somebody", px=600_000)
    assert sweep_now(way, queue) == ([], [])
    assert held(queue, b"stalled") is None
    assert queue.client.get(key) == b"somebody"
    assert 590_000 < queue.client.pttl(key) <= 600_000


def test_default_interval_is_thirty_seconds(queue: EchoQueue, way: str) -> None:
    stall(queue, b"1")
    sweep(way, queue)
    assert 25_000 < queue.client.pttl(queue.key(b"stalled-check")) <= 30_000


def test_interval_over_opens_the_next_sweep(queue: EchoQueue, engine: str) -> None:
    """No hand on the key here: the lease ends by itself, one interval after the start of the sweep."""
    stall(queue, b"1")
    with sweeper(queue.client, engine, Policy(), interval=0.2) as subject:
        assert subject.sweep().status == "swept"
        early = subject.sweep()
        assert early.status == "throttled"
        assert 0 < early.retry_after <= 0.2
        deadline = time.monotonic() + 10
        while (report := subject.sweep()).status == "throttled":
            assert time.monotonic() < deadline
            time.sleep(report.retry_after)
    assert report.recovered == ("1",)


def test_four_arguments_set_the_interval(queue: EchoQueue) -> None:
    stall(queue, b"1")
    bare_script(queue.client, BASE, interval_ms=5_000)
    assert 4_000 < queue.client.pttl(queue.key(b"stalled-check")) <= 5_000


def test_script_takes_the_callers_time(queue: EchoQueue) -> None:
    stall(queue, b"1")
    for now in (1_700_000_000_001, 1_700_000_000_002):
        next_interval(queue.client, BASE)
        bare_script(queue.client, BASE, max_stalled=0, now_ms=now)
        assert queue.client.get(queue.key(b"stalled-check")) == b"%d" % now
    assert held(queue, b"failed") == {b"1": 1_700_000_000_002.0}
    assert field(queue, b"1", "finishedOn") == b"1700000000002"


def test_base_with_a_trailing_colon_is_the_same_queue(queue: EchoQueue) -> None:
    stall(queue, b"1")
    for _ in range(2):
        next_interval(queue.client, BASE)
        failed, recovered = bare_script(queue.client, BASE, trailing=b":")
    assert (failed, recovered) == ([], [b"1"])


def test_bare_script_from_redis_cli(queue: EchoQueue, server: Server) -> None:
    """The file in the tree, the command line tool, no Python."""
    tool = shutil.which("redis-cli")
    if tool is None:
        pytest.skip("no redis-cli on this machine")
    stall(queue, b"1")
    script = Path(__file__).resolve().parents[1] / "lua" / "moveStalledJobsToWait-8.lua"
    keys = [key.decode() for key in script_keys(BASE)]
    command = [tool, "-s", server.socket, "--eval", str(script), *keys, ",", BASE.decode(), "1", "0"]
    for _ in range(2):
        next_interval(queue.client, BASE)
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["1"], done.stdout + done.stderr
    assert held(queue, b"wait") == [b"1"]


_ELSEWHERE = """
import sys
import redis
from support.model import Policy
from support.ways import BASES, bare_script, sweeper

path, way = sys.argv[1:]
with redis.Redis(unix_socket_path=path) as client:
    if way == "bare":
        assert bare_script(client, BASES["echomq"]) == ([], [])
    else:
        with sweeper(client, way, Policy()) as subject:
            report = subject.sweep()
        assert (report.status, report.recovered, report.engine) == ("swept", (), way), report
"""


def test_sweeps_by_different_processes_and_engines(queue: EchoQueue, server: Server, other_way: str, way: str) -> None:
    """A process makes sweep 1 and ends; this one, by any other way, makes sweep 2."""
    stall(queue, b"1", b"2")
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, server.socket, other_way],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    queue.renew(b"1", b"paused")
    assert held(queue, b"stalled") == {b"2"}
    assert sweep(way, queue) == ([b"2"], [])
