"""Workers push, finish and renew as fast as they can, and die, while sweeps go on: every id is accounted for.

Nobody's death is guessed here. A worker that is killed loses its locks at that instant, one that is paused
loses them and takes them again after one sweep; all others hold their locks all the time. So exactly the
jobs of the killed are to be recovered, once for each death, whatever the interleaving was.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from support import snapshot
from support.model import Policy, ZSet
from support.servers import Server
from support.ways import BASES, next_interval, sweeper
from support.workers import Crew, EchoQueue, Ledger, Worker, crew

BASE = BASES["echomq"]
WORKERS = 4
HOLD = 250  # so that a death fills several batches
DEATHS = 8
STEPS = 150  # what the workers do between two events, at least
LIMIT = 30.0  # seconds; a case takes one or two, and only a fault takes longer


class Scene:
    """A queue under load: a producer and workers that come and go."""

    def __init__(self, server: Server, team: Crew, seed: int) -> None:
        self.ledger = Ledger()
        self.chance = random.Random(seed)
        self.enough = threading.Event()
        self._server, self._team = server, team
        self._names = iter(range(1_000_000))
        queue = EchoQueue(server.client(), BASE)
        seeds = [b"seed-%d" % number for number in range(2 * WORKERS * HOLD)]
        for job_id in seeds:
            self.ledger.add(job_id)
        queue.add(*seeds)
        self.workers = [self.hire() for _ in range(WORKERS)]
        self.wait_for(lambda: all(len(worker.held) > HOLD // 2 for worker in self.workers))
        self.producer = team.beside(self.produce)

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Let the workers work until something is so."""
        deadline = time.monotonic() + LIMIT
        while not ready():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def let_work(self) -> None:
        """Let the workers do some work."""
        goal = self.ledger.steps + STEPS
        self.wait_for(lambda: self.ledger.steps >= goal)

    def hire(self) -> Worker:
        """One more worker."""
        number = next(self._names)
        queue = EchoQueue(self._server.client(), BASE)
        return self._team.start(Worker(queue, self.ledger, f"w{number}", HOLD, self.chance.randrange(10**9)))

    def produce(self) -> None:
        """Add jobs until there were enough, a few ahead of the workers."""
        queue = EchoQueue(self._server.client(), BASE)
        number = 0
        while not self.enough.is_set():
            if queue.client.llen(queue.key(b"wait")) > 400:
                self.enough.wait(0.001)
                continue
            job_id = b"%d" % number if number % 2 else b"job-%d:x" % number
            self.ledger.add(job_id)
            queue.add(job_id)
            number += 1

    def stop_adding(self) -> None:
        """No jobs come after this."""
        self.enough.set()
        self.producer.result(10)

    def kill_one(self) -> None:
        """A worker that holds something dies; another comes."""
        victim = self.chance.choice(self.workers)
        victim.kill()
        self._team.join(victim)
        self.workers[self.workers.index(victim)] = self.hire()

    def pause_one(self) -> Worker:
        """A worker stops beyond the life of its locks."""
        sleeper = self.chance.choice(self.workers)
        sleeper.pause()
        sleeper.queue.lapse(sleeper.held)
        return sleeper


@pytest.fixture
def scene(server: Server) -> Iterator[Scene]:
    """The load, running."""
    with crew(WORKERS + 2) as team:
        scene = Scene(server, team, seed=random.randrange(10**9))
        try:
            yield scene
        finally:
            scene.stop_adding()


@pytest.mark.parametrize("survives", [1_000, 0])
def test_every_id_is_accounted_for_under_load(client: redis.Redis, scene: Scene, engine: str, survives: int) -> None:
    """With a ceiling out of reach all jobs complete; with none survived, those of the dead fail."""
    deadline = time.monotonic() + LIMIT
    recovered: Counter[bytes] = Counter()
    failed: Counter[bytes] = Counter()
    policy = Policy(max_stalled_count=survives)
    with sweeper(client, engine, policy) as subject:

        def sweep() -> None:
            next_interval(client, BASE)
            report = subject.sweep()
            assert report.status == "swept"
            assert not report.refused
            assert not report.ghosts
            recovered.update(i.encode() for i in report.recovered)
            failed.update(i.encode() for i in report.failed)

        for _ in range(DEATHS):
            scene.kill_one()
            sweep()
            sleeper = scene.pause_one()
            scene.let_work()
            sweep()
            sleeper.resume()
            scene.let_work()
            sweep()
        scene.stop_adding()
        while settled(client) < len(scene.ledger.added):
            assert time.monotonic() < deadline, lost(client, scene.ledger)
            sweep()
        for _ in range(2):  # the last marks are strays by now
            sweep()
    account(client, scene.ledger, recovered, failed)


def settled(client: redis.Redis) -> int:
    """How many jobs are at an end."""
    counts: list[Any] = [client.zcard(BASE + b":" + name) for name in (b"completed", b"failed")]
    return sum(counts)


def lost(client: redis.Redis, ledger: Ledger) -> str:
    """Where the jobs are that came to no end."""
    keys = snapshot.dump(client, BASE)
    done = set(keys.get(b"completed", ())) | set(keys.get(b"failed", ()))
    places = {name: keys.get(name) for name in (b"wait", b"active", b"stalled")}
    return f"{ledger.added - done} came to no end; {places}"


def account(client: redis.Redis, ledger: Ledger, recovered: Counter[bytes], failed: Counter[bytes]) -> None:
    """Every id in exactly one place, and every counter as often as somebody died."""
    keys = snapshot.dump(client, BASE)
    for name in (b"wait", b"active", b"paused", b"stalled"):
        assert name not in keys, (name, keys[name])
    assert not [key for key in keys if key.endswith(b":lock")]
    completed, failed_set = keys.get(b"completed", ZSet()), keys.get(b"failed", ZSet())
    assert isinstance(completed, ZSet)
    assert isinstance(failed_set, ZSet)
    assert not completed.keys() & failed_set.keys()
    assert completed.keys() | failed_set.keys() == ledger.added
    assert ledger.finished == Counter(completed.keys())  # each once
    assert not ledger.rejected, "a living worker lost a job"
    assert recovered + failed == ledger.abandoned
    assert failed == Counter(failed_set.keys())
    assert sum(ledger.abandoned.values()) > 0
    for job_id in ledger.added:
        job = keys[job_id]
        assert isinstance(job, dict)
        deaths = ledger.abandoned[job_id]
        assert int(job.get(b"stc", b"0")) == deaths, (job_id, job)
        assert int(job.get(b"atm", b"0")) == deaths, (job_id, job)
