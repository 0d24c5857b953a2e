"""What goes wrong around a sweep: keys of another type, replies that are lost, rights and scripts that go, SIGKILL.

After each fault the queue is whole, and what was interrupted is finished by whoever sweeps next.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from mqsweep import Sweeper, SweepReport, WrongTypeError
from support.cases import Case, commands, ids_of, reset_commands, until
from support.proxy import Proxy, proxy_of
from support.servers import Server
from support.ways import next_interval
from support.workers import EchoQueue, Ledger, Worker, crew

RECOVER = b"$7\r\nrecover\r\n"
MARK = b"$4\r\nmark\r\n"
"""Stand in the calls of the script that recover, and in those that mark."""


@pytest.fixture
def looking(client: redis.Redis, looking: str) -> Case:
    """An EchoMQ queue, and the engines that look before the script acts."""
    return Case(client, looking, "echomq")


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy before the server."""
    with proxy_of(Proxy, server.socket) as proxy:
        yield proxy


def whole(case: Case, ids: list[bytes], *, stalls: int | None = None) -> None:
    """Every job in exactly one place; with ``stalls``, all are back in wait and have stalled so often."""
    places = Counter(case.active() + case.wait())
    assert places == Counter(ids), places - Counter(ids) or Counter(ids) - places
    if stalls is not None:
        assert sorted(case.wait()) == sorted(ids)
        assert case.marks() == set()
        assert {case.client.hget(case.key(i), "stc") for i in ids} == {b"%d" % stalls}


# keys of another type

WRONG = {
    "stalled": ("rpush", "0"),
    "wait": ("sadd", "0"),
    "active": ("set", "0"),
    "failed": ("sadd", "0"),
    "stalled-check": ("rpush", "0"),
    "meta": ("set", "0"),
    "paused": ("sadd", "0"),
    "marker": ("set", "0"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("marked", [False, True])
def test_key_of_another_type_is_refused_by_name_and_nothing_written(case: Case, name: str, marked: bool) -> None:
    if name != "active":
        case.dead(b"0", b"1")
        case.alive(b"2")
    if marked and name != "stalled":
        case.client.sadd(case.key("stalled"), "0", "1")
    command, value = WRONG[name]
    getattr(case.client, command)(case.key(name), value)
    before = {key: case.client.dump(key) for key in case.client.keys("*")}
    with case.sweeper() as sweeper, pytest.raises(WrongTypeError, match=name):
        sweeper.sweep()
    after = {key: case.client.dump(key) for key in case.client.keys("*")}
    if name != "stalled-check":
        after.pop(case.key("stalled-check"), None)
    assert after == before
    assert case.client.pttl(case.key("stalled-check")) <= (30_000 if name != "stalled-check" else -1)


# replies that are lost


def test_lost_reply_to_a_recovery_is_asked_again_and_counted_as_unconfirmed(
    looking: Case, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch was done: what came of each entry is not guessed at."""
    ids = ids_of(200)
    looking.dead(*ids)
    looking.sweep()
    with Sweeper(proxy.url, "q", engine=looking.engine) as sweeper, caplog.at_level(logging.WARNING, "mqsweep"):
        next_interval(looking.client, looking.base)
        proxy.lose_reply_to(RECOVER)
        report = sweeper.sweep()
    assert proxy.cuts == 1
    assert report.status == "swept"
    assert report.unconfirmed > 0
    assert len(report.recovered) + report.unconfirmed == len(ids)
    assert not report.missed
    assert "was lost" in caplog.text
    whole(looking, ids, stalls=1)


def test_lost_reply_to_a_mark_is_asked_again(looking: Case, proxy: Proxy) -> None:
    ids = ids_of(200)
    looking.dead(*ids)
    with Sweeper(proxy.url, "q", engine=looking.engine) as sweeper:
        sweeper.sweep()  # loads the script, and marks
        looking.client.delete(looking.key("stalled"), looking.key("stalled-check"))
        proxy.lose_reply_to(MARK)
        report = sweeper.sweep()
    assert proxy.cuts == 1
    assert report.status == "swept"
    assert looking.marks() == set(ids)


def test_lost_reply_to_the_lease_is_no_other_holder(looking: Case, proxy: Proxy) -> None:
    """The token is the sweep's own: asked once more, by the next sweep, it is throttled; nothing was begun."""
    looking.dead(b"0")
    with Sweeper(proxy.url, "q", engine=looking.engine) as sweeper:
        proxy.lose_reply_to(b"$2\r\nNX\r\n")
        with pytest.raises(redis.ConnectionError):
            sweeper.sweep()
        assert looking.marks() == set()
        assert sweeper.sweep().status == "throttled"
        next_interval(looking.client, looking.base)
        assert sweeper.sweep().marked == ("0",)


def test_batch_whose_replies_are_always_lost_ends_the_sweep(looking: Case, proxy: Proxy) -> None:
    ids = ids_of(200)
    looking.dead(*ids)
    looking.sweep()
    next_interval(looking.client, looking.base)
    with Sweeper(proxy.url, "q", engine=looking.engine, interval=2) as sweeper:
        proxy.lose_reply_to(RECOVER, times=3)
        with pytest.raises(redis.ConnectionError):
            sweeper.sweep()
        assert proxy.cuts == 3
        assert looking.client.pttl(looking.key("stalled-check")) <= 2_000
        next_interval(looking.client, looking.base)
        sweeper.sweep()
    whole(looking, ids, stalls=1)


def test_server_that_answers_nothing_is_a_timeout_and_the_connection_is_not_used_again(
    looking: Case, proxy: Proxy
) -> None:
    """A late reply would be taken for the next one's."""
    ids = ids_of(100)
    looking.dead(*ids)
    looking.sweep()
    next_interval(looking.client, looking.base)
    with Sweeper(proxy.url, "q", engine=looking.engine, timeout=0.2) as sweeper:
        proxy.lose_reply_to(RECOVER, silently=True)
        report = sweeper.sweep()
        assert proxy.cuts == 1
        assert report.unconfirmed > 0
        proxy.lose_reply_to(b"LRANGE", silently=True)
        looking.dead(b"more")
        next_interval(looking.client, looking.base)
        with pytest.raises(redis.TimeoutError):
            sweeper.sweep()
        next_interval(looking.client, looking.base)
        assert sweeper.sweep().marked == ("more",)
    assert sorted(looking.wait()) == sorted(ids)


def test_cut_after_any_byte_leaves_a_whole_queue(case: Case, proxy: Proxy) -> None:
    """Wherever the stream of replies ends: all jobs are there, and each has stalled once in the end."""
    ids = ids_of(70)

    def state() -> None:
        case.client.flushdb()
        case.dead(*ids)
        case.client.sadd(case.key("stalled"), *ids)

    def sweep() -> SweepReport:
        next_interval(case.client, case.base)
        with Sweeper(proxy.url, "q", dialect=case.dialect, engine=case.engine) as sweeper:
            return sweeper.sweep()

    state()
    before = proxy.replied
    sweep()
    length = proxy.replied - before
    assert length > 500 or case.engine == "script"
    for count in range(0, length, max(1, length // 60)):
        state()
        proxy.cut_after(count)
        try:
            report = sweep()
        except redis.ConnectionError:
            pass
        else:
            assert len(report.recovered) + report.unconfirmed == len(ids)
        proxy.cut_after(None)
        whole(case, ids)
        sweep()
        whole(case, ids, stalls=1)
    assert proxy.cuts >= 50


# scripts and rights that go


def test_script_that_the_server_forgot_is_sent_again(case: Case) -> None:
    """SCRIPT FLUSH between two sweeps, and between any two calls of one."""
    ids = ids_of(300)
    case.dead(*ids)
    with case.sweeper(on_progress=lambda _: case.client.script_flush()) as sweeper:
        for _ in range(2):
            next_interval(case.client, case.base)
            case.client.script_flush()
            sweeper.sweep()
    whole(case, ids, stalls=1)


def test_script_is_sent_once_and_then_called_by_its_digest(case: Case) -> None:
    case.dead(*ids_of(300))
    reset_commands(case.client)
    for _ in range(2):
        case.sweep()
    assert commands(case.client)["eval"] == 1


WRITES = (
    "rpush",
    "lpush",
    "zadd",
    "srem",
    "sadd",
    "hset",
    "lset",
    "ltrim",
    "pexpire",
    "evalsha",
    "xadd",
    "xtrim",
    "set",
)
OPTIONAL = ("xadd", "xtrim")
"""Events that cannot be written hold no job up."""


@pytest.mark.parametrize("missing", WRITES)
def test_write_that_the_user_may_not_do_is_refused_before_anything_is_done(
    case: Case, server: Server, missing: str
) -> None:
    """Jobs of all fates among living ones, so that holes are filled; it is done whole, or not at all."""
    ids = ids_of(40)
    case.dead(*ids[:20])
    case.alive(*ids[20:])
    case.lapse(*ids[20::2])
    dead = [*ids[:20], *ids[20::2]]
    case.client.hset(case.key("0"), "stc", "1")
    case.client.sadd(case.key("stalled"), *dead[:-5])  # the last are marked now
    case.client.acl_setuser("u", enabled=True, reset=True, nopass=True, keys=["*"], commands=["+@all", f"-{missing}"])
    before, report = case.dump(), None
    with server.client(username="u", password="x") as user, sweeper_of(case, user) as sweeper:
        try:
            report = sweeper.sweep()
        except redis.exceptions.NoPermissionError:
            assert missing not in OPTIONAL
    case.client.acl_deluser("u")
    if report is not None:
        assert set(report.recovered) | set(report.failed) == {i.decode() for i in dead[:-5]}
    elif missing != "sadd" or case.tells:  # the script alone marks at the end of its one call
        after = case.dump()
        assert {**after, b"stalled": set()} == {**before, b"stalled": set()}
        assert case.marks() >= set(dead[:-5])
    whole(case, [i for i in ids if i not in (case.look("failed") or ())])


def sweeper_of(case: Case, client: Any) -> Sweeper:
    """The case's sweeper over another client."""
    return Sweeper(client, "q", dialect=case.dialect, engine=case.engine)


# SIGKILL

_KILLED = """
import os, signal, sys
import redis
from mqsweep import Sweeper

path, dialect, engine, points = sys.argv[1:]
client = redis.Redis(unix_socket_path=path)

def sweep(point):
    steps = [0]

    def on_progress(progress):
        steps[0] += 1
        if steps[0] == point:
            os.kill(os.getpid(), signal.SIGKILL)

    mine = redis.Redis(unix_socket_path=path)
    Sweeper(mine, "q", dialect=dialect, engine=engine, max_stalled_count=1000, on_progress=on_progress).sweep()

killed = 0
for point in range(1, int(points) + 1):
    client.delete(sys.stdin.readline().strip())
    child = os.fork()
    if child == 0:
        sweep(1 + point // 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), status
    killed += os.waitstatus_to_exitcode(status) != 0
    print(killed, flush=True)
"""
POINTS = 24


def test_sweeper_killed_at_many_points_loses_nothing(server: Server, looking: Case) -> None:
    """Beside workers that take, renew and finish jobs, and die as well."""
    case = looking
    ledger = Ledger()
    ids = ids_of(1_500)
    queue = EchoQueue(server.client(), case.base)
    queue.add(*ids)
    for job_id in ids:
        ledger.add(job_id)
    killer = subprocess.Popen(
        [sys.executable, "-c", _KILLED, server.socket, case.dialect, case.engine, str(POINTS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )
    with killer, crew(40) as team:
        assert killer.stdin is not None
        assert killer.stdout is not None
        killed = 0
        for number in range(POINTS):
            doomed = team.start(Worker(EchoQueue(server.client(), case.base), ledger, f"d{number}", 200, number))
            until_holding(doomed, case)
            doomed.kill()
            team.join(doomed)
            killer.stdin.write(case.key("stalled-check").decode() + "\n")
            killer.stdin.flush()
            killed = int(killer.stdout.readline())
        assert killer.wait(30) == 0
        assert killed >= POINTS // 3
        worker = team.start(Worker(EchoQueue(server.client(), case.base), ledger, "last", 10, 1))
        while case.active() or case.wait():
            case.sweep(max_stalled_count=1000)
        worker.stop()
        team.join(worker)
    left: Any = case.dump()
    assert set(left[b"completed"]) == set(ids)
    assert ledger.finished == Counter(ids)
    stalls = {job_id: int(left[job_id].get(b"stc", b"0")) for job_id in ids}
    assert stalls == {job_id: ledger.abandoned[job_id] for job_id in ids}
    assert sum(stalls.values()) > len(ids)


def until_holding(worker: Worker, case: Case) -> None:
    """Wait until a worker has some jobs, or there are none to have."""
    until(lambda: len(worker.held) > 100 or not case.wait())
