"""Public bug reports, as in ``test_cases.py``: many jobs, servers in trouble, and what comes between two commands."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis

from mqsweep import ConfigurationError, Sweeper, UnsupportedQueueError
from mqsweep.authority import LARGEST
from support.cases import Case, at_end_of_scan, commands, ids_of, names, reset_commands, until
from support.servers import KINDS, Server, free_port, start_server
from support.ways import BASES


@pytest.fixture
def looking(client: redis.Redis, looking: str) -> Case:
    """A BullMQ queue, and the engines that look before the script acts."""
    return Case(client, looking, "bullmq")


# many jobs


def test_more_jobs_than_a_script_can_unpack(case: Case) -> None:
    """bullmq#422, bull PR 2340: active beyond 8,000 ids, all dead; then as many alive and marked."""
    ids = ids_of(9_000)
    case.dead(*ids)
    assert case.sweep().recovered == ()
    assert case.client.scard(case.key("stalled")) == len(ids)
    assert case.sweep().recovered == names(ids)
    assert (case.active(), case.marks()) == ([], set())
    assert sorted(case.wait()) == sorted(ids)
    case.client.rename(case.key("wait"), case.key("active"))
    case.lock(*ids)
    case.client.sadd(case.key("stalled"), *ids)
    case.sweep()
    assert case.marks() == set()
    assert case.client.llen(case.key("active")) == len(ids)


def test_workers_are_served_while_thousands_are_recovered(looking: Case) -> None:
    """bull#313: 30,000 stalled. The first are at work again long before the last is moved."""
    case = looking
    ids = ids_of(30_000)
    case.dead(*ids)
    case.sweep()
    worker: Any = redis.Redis(unix_socket_path=case.client.connection_pool.connection_kwargs["path"])
    taken: list[bytes] = []

    def take(progress: Any) -> None:
        if progress.phase == "recover" and progress.done < progress.total:
            taken.append(worker.rpoplpush(case.key("wait"), case.key("active")))

    reset_commands(case.client)
    report = case.sweep(on_progress=take)
    worker.close()
    assert report.recovered == names(ids)
    assert len(taken) >= len(ids) // LARGEST["recover"] - 1
    assert None not in taken
    assert sorted(case.active()) == sorted(taken)
    assert report.calls == commands(case.client)["evalsha"] >= len(ids) / LARGEST["recover"]


@pytest.mark.parametrize("place", ["tail", "head", "spread"])
def test_no_list_is_searched_for_each_job(case: Case, place: str) -> None:
    """bull PR 548: stalled ids anywhere in a long list. By the server's own count of commands."""
    living, dead = ids_of(9_000), ids_of(300, start=9_000)
    if place == "tail":
        case.dead(*dead)
    case.alive(*living)
    if place == "head":
        case.dead(*dead)
    if place == "spread":
        dead = living[15::30]
        case.lapse(*dead)
    case.sweep()
    reset_commands(case.client)
    assert case.sweep().recovered == names(dead)
    ran = commands(case.client)
    assert not {"lrem", "lpos", "linsert", "smembers"} & (
        ran.keys() - ({"smembers"} if case.engine == "script" else set())
    )
    assert ran["ltrim"] <= 1 + len(dead) / 10
    assert case.client.llen(case.key("active")) == len(living) - (300 if place == "spread" else 0)


def test_backlog_larger_than_any_batch_goes_in_one_sweep(looking: Case) -> None:
    """kombu#164: bounded per call, not per sweep."""
    ids = ids_of(5_000)
    looking.dead(*ids)
    assert looking.sweep().marked == names(ids)
    report = looking.sweep(max_pause=0.002)
    assert report.recovered == names(ids)
    assert report.calls >= len(ids) / LARGEST["recover"]


# guards


def test_all_locks_gone_at_once_raises_mass_stall(looking: Case) -> None:
    """bull#1397: an outage took all locks. An alert; marked, then recovered, since their workers cannot finish them."""
    case = looking
    ids = ids_of(200)
    case.alive(*ids)
    with case.sweeper() as sweeper:
        guards = []
        for gone in ([], ids, [], []):
            case.client.delete(case.key("stalled-check"))
            if gone:
                case.lapse(*gone)
            report = sweeper.sweep()
            guards.append((report.guards, len(report.marked), len(report.recovered)))
    assert guards == [((), 0, 0), (("mass-stall",), 200, 0), ((), 0, 200), ((), 0, 0)]


@pytest.mark.parametrize(("before", "gone", "total"), [(0, 99, 99), (0, 150, 1_000), (20, 500, 1_000)])
def test_fewer_or_slower_is_no_mass_stall(looking: Case, before: int, gone: int, total: int) -> None:
    """bull#1397 in kind: under a hundred, under a fifth, or from over one in a hundred."""
    ids = ids_of(total)
    looking.alive(*ids)
    if before:
        looking.lapse(*ids[:before])
    with looking.sweeper() as sweeper:
        assert sweeper.sweep().guards == ()
        looking.client.delete(looking.key("stalled-check"))
        looking.lapse(*ids[:gone])
        assert sweeper.sweep().guards == ()


@pytest.fixture(params=KINDS)
def small(request: pytest.FixtureRequest) -> Any:
    """A server of the test's own, whose configuration may be changed."""
    with start_server(request.param) as server:
        yield server


@pytest.mark.parametrize("engine", ["python", "rust"])
def test_evicted_locks_raise_eviction(small: Server, engine: str, usable: Callable[[str], str]) -> None:
    """bullmq#2215, #1827: volatile-lru. An alert; recovered, since those locks are lost."""
    case = Case(small.client(), usable(engine), "bullmq")
    ids = ids_of(50)
    case.alive(*ids)
    with case.sweeper() as sweeper:
        assert sweeper.sweep().guards == ()
        used = case.client.info("memory")["used_memory"]
        case.client.config_set("maxmemory-policy", "volatile-lru")
        case.client.config_set("maxmemory", used // 2)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            case.client.set("filler", "x")  # evicts every lock there is, and that is not enough
        assert case.client.info("stats")["evicted_keys"] >= len(ids)
        case.client.config_set("maxmemory", used * 4)
        reports = []
        for _ in range(3):
            case.client.delete(case.key("stalled-check"))
            reports.append(sweeper.sweep())
    assert [report.guards for report in reports] == [("eviction",), (), ()]
    assert [len(report.recovered) for report in reports] == [0, 50, 0]


@pytest.mark.parametrize("dialect", ["echomq", "bullmq"])
@pytest.mark.parametrize("engine", ["python", "rust", "script"])
def test_out_of_memory_leaves_nothing_half_done(
    small: Server, engine: str, dialect: str, usable: Callable[[str], str]
) -> None:
    """bull#416, #433: ``OOM command not allowed``. Loud, nothing changed, and all is well when there is room again."""
    case = Case(small.client(), usable(engine), dialect)
    ids = ids_of(100)
    case.dead(*ids)
    case.sweep()
    before = case.dump()
    case.client.config_set("maxmemory", case.client.info("memory")["used_memory"] // 2)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        case.sweep()
    assert case.dump() == before
    case.client.config_set("maxmemory", 0)
    assert case.sweep().recovered == names(ids)


# the lease


_HOLDER = """
import os, signal, sys
import redis
from mqsweep import Sweeper

def die(progress):
    os.kill(os.getpid(), signal.SIGKILL)

with redis.Redis(unix_socket_path=sys.argv[1]) as client:
    Sweeper(client, "q", dialect=sys.argv[2], engine=sys.argv[3], interval=float(sys.argv[4]), on_progress=die).sweep()
"""


def test_lease_of_a_killed_sweeper_ends_by_itself(server: Server, looking: Case) -> None:
    """taskiq-redis#131, rq#2005: a lock without a TTL outlives its owner. Ours always has one."""
    case = looking
    case.dead(*ids_of(100))
    arguments = [server.socket, case.dialect, case.engine, "0.5"]
    done = subprocess.run([sys.executable, "-c", _HOLDER, *arguments], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert case.client.get(case.key("stalled-check")).startswith(b"mqsweep:")
    assert 0 < case.client.pttl(case.key("stalled-check")) <= 10_000


def test_lease_has_a_ttl_whenever_anybody_looks(looking: Case) -> None:
    """taskiq-redis#131, rq#2005: at every step of a sweep."""
    case = looking
    case.dead(*ids_of(2_000))
    ttls = []
    with case.sweeper(
        interval=2, on_progress=lambda _: ttls.append(case.client.pttl(case.key("stalled-check")))
    ) as one:
        for _ in range(2):
            case.client.delete(case.key("stalled-check"))
            one.sweep()
            ttls.append(case.client.pttl(case.key("stalled-check")))
    assert len(ttls) > 6
    assert all(0 < ttl <= 10_000 for ttl in ttls)


def test_lock_of_somebody_else_without_a_ttl_is_obeyed(case: Case) -> None:
    """taskiq-redis#131, rq#2005: whose it is, `inspect` says; nobody can say how long it stands."""
    case.dead(b"j")
    case.client.set(case.key("stalled-check"), "somebody")
    with case.sweeper() as sweeper:
        report = sweeper.sweep()
    assert (report.status, report.retry_after, case.marks()) == ("throttled", None, set())
    assert case.inspect().holder == "somebody"


# between the look and the act


def finish(case: Case) -> None:
    case.client.lrem(case.key("active"), 1, "j")
    case.client.zadd(case.key("completed"), {"j": 1})
    case.client.hset(case.key("j"), "finishedOn", "1")


def lock(case: Case) -> None:
    case.lock(b"j")


def remove(case: Case) -> None:
    case.client.lrem(case.key("active"), 1, "j")
    case.client.delete(case.key("j"))


@pytest.mark.parametrize("act", [finish, lock, remove])
def test_what_changed_after_the_look_is_left_alone(looking: Case, act: Callable[[Case], None]) -> None:
    """river#1302: rescued from an old snapshot although it was finished meanwhile. The script looks again."""
    case = looking
    case.dead(b"j", b"other")
    case.sweep()
    after: dict[str, Any] = {}

    def step_in() -> None:
        act(case)
        after["j"] = case.look("j")

    report = case.sweep(on_progress=at_end_of_scan(step_in))
    assert after
    assert report.recovered == ("other",)
    assert case.wait() == [b"other"]
    assert case.look("j") == after["j"]


# construction and clusters


@pytest.mark.parametrize(
    "options",
    [
        {"interval": 0},
        {"interval": -1},
        {"interval": float("nan")},
        {"max_stalled_count": -1},
        {"max_stalled_count": "1"},
    ],
)
def test_settings_that_cannot_work_are_refused_in_words(client: redis.Redis, options: dict[str, Any]) -> None:
    """bull#2718, bullmq#286: interval 0, a ceiling that is negative or no number."""
    (name,) = options
    for dialect in BASES:
        with pytest.raises(ConfigurationError, match=f"{name}=.*must be"):
            Sweeper(client, "q", dialect=dialect, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_cluster_prefix_without_braces_is_refused_with_the_remedy(kind: str, usable: Callable[[str], str]) -> None:
    """bullmq#459, #906: before anything is written; with braces the same queue is swept."""
    with start_server(
        kind, tcp=True, options=["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    ) as server:
        client: Any = server.client()
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: client.cluster("INFO")["cluster_state"] == "ok")
        with redis.RedisCluster.from_url(server.tcp_url) as cluster:
            with pytest.raises(UnsupportedQueueError, match=r"prefix='\{bull\}'"):
                Sweeper(cluster, "q", dialect="bullmq")
            with pytest.raises(UnsupportedQueueError, match="braces"):
                Sweeper(cluster, "q", hash_tag=False)
            assert client.dbsize() == 0
            case = Case(client, "python", "bullmq")
            case.base = b"{bull}:q"
            case.dead(*ids_of(300))
            with Sweeper(cluster, "q", dialect="bullmq", prefix="{bull}") as sweeper:
                sweeper.sweep()
                client.delete("{bull}:q:stalled-check")
                assert sweeper.sweep().recovered == names(ids_of(300))
