"""Mass recovery is bounded: in what a call does, in what it searches, in the events it leaves."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest
import redis

from mqsweep.authority import FIRST_BATCH, LARGEST
from support.cases import Case, commands, ids_of, names, reset_commands
from support.servers import start_server

NODE = 100
"""Entries of a stream's node, by default; what is trimmed with ``~`` may keep one node more."""


def test_calls_shrink_where_jobs_take_long(client: redis.Redis, looking: str) -> None:
    """Each of these takes the script as long as hundreds of others: opts that are 60 kB of JSON to decode."""
    case = Case(client, looking, "echomq")
    easy, hard = ids_of(400), ids_of(120, start=400)
    case.dead(*easy)
    case.dead(*hard, opts='{"attempts":5,"path":[' + "[0]," * 15_000 + "0]}")
    case.sweep()
    sizes: list[int] = []
    done = [0]

    def count(progress: Any) -> None:
        if progress.phase == "recover":
            sizes.append(progress.done - done[0])
            done[0] = progress.done

    report = case.sweep(max_pause=0.002, on_progress=count)
    assert report.recovered == names(easy + hard)
    assert case.active() == []
    assert sum(sizes) == len(easy) + len(hard)
    assert max(sizes) >= FIRST_BATCH
    # One of them alone takes about as long as a call may look; also in the call that came to them from the easy ones.
    first = next(total for total in accumulate(sizes) if total > len(easy))
    assert first - len(easy) <= 4, sizes
    assert max(sizes[-30:]) <= 4, sizes


def test_calls_shrink_on_a_slow_server(looking: str) -> None:
    """A server that is stopped most of the time, as on a machine that has better things to do."""
    with start_server("redis") as server, server.client() as client:  # whose scripts see the time pass
        case = Case(client, looking, "bullmq")
        ids = ids_of(6_000)
        case.dead(*ids)
        case.sweep()
        brisk = case.sweep(max_pause=0.01)
        assert brisk.recovered == names(ids)
        client.flushall()
        case.dead(*ids)
        case.sweep()
        with hampered(server.pid):
            slow = case.sweep(max_pause=0.01)
        assert slow.recovered == names(ids)
        assert (case.active(), case.marks()) == ([], set())
        assert slow.calls > 2 * brisk.calls


@contextlib.contextmanager
def hampered(pid: int) -> Iterator[None]:
    """A process that runs for a millisecond and then stands still for twenty, again and again."""
    over = threading.Event()

    def hamper() -> None:
        while not over.wait(0.001):
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.02)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=hamper)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("dialect", ["echomq", "bullmq"])
def test_events_of_a_mass_recovery_stay_within_the_queues_bound(
    client: redis.Redis, looking: str, dialect: str
) -> None:
    """At most the bound, one node and the last batch's events; and none of that batch's is missing."""
    case = Case(client, looking, dialect)
    ids = ids_of(5_000)
    case.dead(*ids)
    case.sweep()
    client.hset(case.key("meta"), "opts.maxLenEvents", "200")
    batches: list[int] = []
    report = case.sweep(on_progress=lambda p: batches.append(p.done) if p.phase == "recover" else None)
    assert report.recovered == names(ids)
    last = batches[-1] - batches[-2]
    events = [fields for _, fields in client.xrange(case.key("events"))]
    assert len(events) <= 200 + NODE + 2 * last
    assert 2 * last <= len(events) < 2 * len(ids)
    told = [fields[b"jobId"] for fields in events[-2 * last :]]
    assert told == [job_id for job_id in ids[-last:] for _ in range(2)]


def test_places_hold_while_workers_remove_thousands(client: redis.Redis, looking: str) -> None:
    """Between the looks and between the batches workers finish jobs everywhere in the list, and take new ones."""
    case = Case(client, looking, "bullmq")
    ids, chance = ids_of(20_000), random.Random(5)
    case.alive(*ids)
    dead = ids[7::20]
    case.lapse(*dead)
    case.sweep()
    living = [i for i in ids if i not in set(dead)]
    chance.shuffle(living)
    fresh = iter(range(100_000, 200_000))
    finished: set[bytes] = set()
    taken: list[bytes] = []

    def work(progress: Any) -> None:
        some = [living.pop() for _ in range(300 if progress.phase == "scan" else 60) if len(living) > 2_000]
        pipe: Any = client.pipeline(transaction=False)
        for job_id in some:
            pipe.lrem(case.key("active"), -1, job_id)
            pipe.delete(case.key(job_id), case.key(job_id + b":lock"))
        for _ in some[::2]:
            job_id = b"%d" % next(fresh)
            pipe.set(case.key(job_id + b":lock"), "token")
            pipe.lpush(case.key("active"), job_id)
            taken.append(job_id)
        pipe.execute()
        finished.update(some)

    report = case.sweep(on_progress=work)
    assert len(finished) > 1_000
    assert set(report.recovered) | set(report.missed) == set(names(dead))
    assert len(report.missed) <= len(dead) // 100
    assert not set(report.recovered) & set(report.missed)
    left = [i for i in ids if i not in finished and i.decode() not in set(report.recovered)]
    assert sorted(case.active()) == sorted(left + taken)
    assert case.sweep().recovered == report.missed


def test_taking_over_a_queue_full_of_marks_asks_only_for_a_slice(client: redis.Redis, looking: str) -> None:
    """BullMQ's own check marked every job. By count of commands: marks of living jobs are left to their workers."""
    case = Case(client, looking, "bullmq")
    ids = ids_of(60_000)
    case.alive(*ids)
    dead = ids[100::600]
    case.lapse(*dead)
    for start in range(0, len(ids), 5_000):
        client.sadd(case.key("stalled"), *ids[start : start + 5_000])
    reset_commands(client)
    report = case.sweep()
    ran = commands(client)
    assert report.recovered == names(dead)
    assert ran["sscan"] <= 30  # some 20,000 marks, a thousand a reply
    assert len(report.cleared) <= 30_000
    assert ran["evalsha"] <= 2 + len(dead) + 30_000 / LARGEST["clear"] + 30
    assert client.scard(case.key("stalled")) == len(ids) - len(dead) - len(report.cleared)
