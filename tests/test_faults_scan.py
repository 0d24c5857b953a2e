"""What may come instead of a reply in the middle of a sweep: both engines that look, both front doors.

Each is the exception that users know, without the password; what was asked next never goes over that connection; and
the same sweeper sweeps again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.exceptions as theirs

from mqsweep import AsyncSweeper, ProtocolError, Sweeper, SweepReport, UnsupportedQueueError, WrongTypeError
from mqsweep.keys import QueueKeys
from mqsweep.lease import look_commands
from mqsweep.script import script_source
from support.cases import Case, until
from support.proxy import proxy_of
from support.servers import KINDS, Server, start_server
from support.swap import PASSWORD, Swap
from support.ways import next_interval

ERRORS: dict[bytes, tuple[type[Exception], str]] = {
    b"LOADING Redis is loading the dataset in memory": (theirs.BusyLoadingError, "loading"),
    b"MOVED 3999 127.0.0.1:6381": (theirs.MovedError, "3999"),
    b"NOPERM this user has no permissions": (theirs.NoPermissionError, "permissions"),
    b"WRONGTYPE Operation against a key holding the wrong kind of value": (WrongTypeError, "wrong kind"),
    b"BUSY Redis is busy running a script.": (theirs.ResponseError, "BUSY"),
    b"CLUSTERDOWN The cluster is down": (theirs.ClusterDownError, "down"),
    b"MASTERDOWN Link with MASTER is down": (theirs.MasterDownError, "MASTER"),
    b"NOAUTH Authentication required.": (theirs.AuthenticationError, "required"),
    b"ERR odd \xff": (theirs.ResponseError, "odd"),
}
GARBAGE = (
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"+OK\r\n",
    b"$-1\r\n",
    b":18446744073709551616\r\n",
)
SCAN = b"\r\nSSCAN\r\n"
OPENING = b"\r\nNX\r\n"
"""Stand in the first request of the scan, and of the sweep."""
PLACES = (1, 3, 17)
"""Of a scan's replies: to SSCAN, LLEN, and one in the walk."""
COMMANDS = ["SET", *(command[0] for command in look_commands(QueueKeys(b"q")))]
"""In the first round trip of a sweep."""


class Door:
    """A front door, of either kind.

    Args:
        kind: ``blocking`` or ``asyncio``.
        url: of the server.
        options: of the sweeper.
    """

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner() if kind == "asyncio" else None
        self._sweeper: Any = (AsyncSweeper if self._runner else Sweeper)(url, "q", **options)

    def sweep(self) -> SweepReport:
        """One sweep."""
        report: SweepReport = self._runner.run(self._sweeper.sweep()) if self._runner else self._sweeper.sweep()
        return report

    def exists(self) -> bool:
        """Whether the queue does."""
        answer = self._sweeper.exists()
        found: bool = self._runner.run(answer) if self._runner else answer
        return found

    def rest(self) -> None:
        """Let the event loop see what has come in, as it does between the sweeps of a service."""
        for _ in range(10 if self._runner else 0):
            assert self._runner is not None
            self._runner.run(asyncio.sleep(0))

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner:
            self._runner.run(self._sweeper.close())
            self._runner.close()
        else:
            self._sweeper.close()


@pytest.fixture
def looking(client: redis.Redis, looking: str) -> Case:
    """An EchoMQ queue, and the engines that look before the script acts."""
    return Case(client, looking, "echomq")


@pytest.fixture
def swap(server: Server, client: redis.Redis) -> Iterator[Swap]:
    """A proxy before the server, and the user and password that its URL has."""
    client.acl_setuser("u", enabled=True, reset=True, passwords=[f"+{PASSWORD}"], keys=["*"], commands=["+@all"])
    with proxy_of(Swap, server.socket) as proxy:
        yield proxy
    client.acl_deluser("u")


@pytest.fixture(params=["blocking", "asyncio"])
def door(request: pytest.FixtureRequest, looking: Case, swap: Swap) -> Iterator[Door]:
    """A sweeper of the queue, through the proxy."""
    with Door(request.param, swap.url, engine=looking.engine) as door:
        yield door


def fill(case: Case) -> list[bytes]:
    """A queue whose scan takes a score of replies; the ids of the dead."""
    ids = [b"%d" % number for number in range(150)]
    case.dead(*ids)
    case.lock(*ids[1::2])
    case.client.sadd(case.key("stalled"), "stray")
    return ids[::2]


def no_secret(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """Neither what was raised nor what was logged holds the password."""
    shown = "".join(traceback.format_exception(error)) + repr(error) + caplog.text
    assert PASSWORD not in shown


def works_again(door: Door, case: Case, swap: Swap, dead: list[bytes], scans: int) -> None:
    """The next sweep of the same sweeper is whole, over another connection than the one that failed."""
    failed = swap.swapped
    assert failed is not None
    until(lambda: failed.over)
    assert case.marks() == {b"stray"}
    next_interval(case.client, case.base)
    report = door.sweep()
    assert set(report.marked) == {i.decode() for i in dead}
    assert report.strays == ("stray",)
    assert sum(SCAN in stream.asked for stream in swap.streams) == scans
    case.client.delete(case.key("stalled"))
    case.client.sadd(case.key("stalled"), "stray")
    next_interval(case.client, case.base)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.split()[0].decode())
def test_error_reply_to_a_scan_is_the_exception_that_users_know(
    door: Door, looking: Case, swap: Swap, error: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    dead = fill(looking)
    kind, words = ERRORS[error]
    for tries, number in enumerate(PLACES):
        swap.swap(SCAN, number, b"-" + error + b"\r\n")
        with pytest.raises(kind, match=words) as caught:
            door.sweep()
        no_secret(caught.value, caplog)
        works_again(door, looking, swap, dead, scans=tries + 2)


@pytest.mark.parametrize("reply", GARBAGE, ids=lambda reply: repr(reply[:6]))
def test_garbage_in_a_scan_is_a_protocol_error(
    door: Door, looking: Case, swap: Swap, reply: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    dead = fill(looking)
    for tries, number in enumerate(PLACES):
        swap.swap(SCAN, number, reply)
        with pytest.raises(ProtocolError) as caught:
            door.sweep()
        no_secret(caught.value, caplog)
        works_again(door, looking, swap, dead, scans=tries + 2)


def test_server_that_closes_the_connection_in_a_scan(
    door: Door, looking: Case, swap: Swap, caplog: pytest.LogCaptureFixture
) -> None:
    dead = fill(looking)
    for tries, number in enumerate(PLACES):
        swap.swap(SCAN, number, None)
        with pytest.raises(theirs.ConnectionError) as caught:
            door.sweep()
        no_secret(caught.value, caplog)
        works_again(door, looking, swap, dead, scans=tries + 2)


@pytest.mark.parametrize("op", ["mark", "recover"])
@pytest.mark.parametrize(
    "reply",
    [
        *GARBAGE[1:],
        b"*0\r\n",
        b"*1\r\n$2\r\nok\r\n",
        b"*9\r\n$2\r\nok\r\n:0\r\n:5\r\n:0\r\n$0\r\n\r\n*0\r\n:0\r\n:0\r\n*0\r\n",  # nothing consumed: for good
        b"*9\r\n$2\r\nok\r\n:99999\r\n:5\r\n:0\r\n$0\r\n\r\n*0\r\n:0\r\n:0\r\n*0\r\n",
    ],
    ids=lambda reply: repr(reply[:20]),
)
def test_garbage_to_a_batch_is_a_protocol_error(
    door: Door, looking: Case, swap: Swap, reply: bytes, op: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What the batch did stands; the next sweep goes on from there."""
    dead = {i.decode() for i in fill(looking)}
    looking.client.script_load(script_source())
    if op == "recover":
        door.sweep()
        next_interval(looking.client, looking.base)
    swap.swap(b"\r\n" + op.encode() + b"\r\n", 1, reply)
    with pytest.raises(ProtocolError) as caught:
        door.sweep()
    no_secret(caught.value, caplog)
    next_interval(looking.client, looking.base)
    report = door.sweep()
    if op == "mark":
        assert {*report.marked, *report.recovered} == dead
    else:
        assert {i.decode() for i in looking.wait()} == dead


@pytest.mark.parametrize("reply", [b"+OK\r\n", b"*0\r\n", b"*2\r\n*0\r\n*0\r\n"])
def test_garbage_to_the_script_engine_is_a_protocol_error(client: redis.Redis, swap: Swap, reply: bytes) -> None:
    client.script_load(script_source())
    Case(client, "script", "echomq").dead(b"1")
    with Door("blocking", swap.url, engine="script") as door:
        swap.swap(b"\r\nEVALSHA\r\n", 1, reply)
        with pytest.raises(ProtocolError):
            door.sweep()


def test_reply_too_many_is_seen_and_the_connection_dropped(door: Door, looking: Case, swap: Swap) -> None:
    """Each reply after it would be taken for the one before."""
    dead = fill(looking)
    for tries, number in enumerate(PLACES):
        swap.swap(SCAN, number, b":0\r\n:0\r\n")
        with pytest.raises(ProtocolError):
            door.sweep()
        works_again(door, looking, swap, dead, scans=tries + 2)


OPTIONAL = ("SCARD", "INFO")
"""How many marks there are, and how the server is, are not to be had everywhere."""


@pytest.mark.parametrize("looking", ["python"], indirect=True)  # the engine has no part in it
@pytest.mark.parametrize("error", list(ERRORS)[:3], ids=lambda error: error.split()[0].decode())
def test_error_reply_around_a_scan_is_raised_before_anything_is_done(
    door: Door, looking: Case, swap: Swap, error: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The first round trip takes the lease and asks how the queue is."""
    dead = fill(looking)
    kind, words = ERRORS[error]
    for number in range(1, len(COMMANDS) + 1):
        swap.swap(OPENING, number, b"-" + error + b"\r\n")
        if COMMANDS[number - 1] not in OPTIONAL or issubclass(kind, theirs.ConnectionError):
            with pytest.raises(kind, match=words) as caught:
                door.sweep()
            no_secret(caught.value, caplog)
            assert looking.marks() == {b"stray"}
            next_interval(looking.client, looking.base)
        report = door.sweep()
        assert swap.swapped is not None
        assert set(report.marked) == {i.decode() for i in dead}
        looking.client.delete(looking.key("stalled"))
        looking.client.sadd(looking.key("stalled"), "stray")
        next_interval(looking.client, looking.base)


@pytest.mark.parametrize("looking", ["python"], indirect=True)  # the engine has no part in it
@pytest.mark.parametrize("reply", [*GARBAGE[:3], b":0\r\n:0\r\n"], ids=lambda reply: repr(reply[:6]))
def test_garbage_around_a_scan_is_never_taken_for_the_reply_to_something_else(
    door: Door, looking: Case, swap: Swap, reply: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    dead = fill(looking)
    for number in range(1, len(COMMANDS) + 1):
        swap.swap(OPENING, number, reply)
        try:
            report = door.sweep()
        except (ProtocolError, WrongTypeError) as fault:  # a TYPE that there is not is another type
            no_secret(fault, caplog)
            assert looking.marks() == {b"stray"}
            if isinstance(fault, ProtocolError):
                until(lambda: swap.swapped is not None and swap.swapped.over)
            report = None
        if report is None or not report.marked:  # a nil instead of OK: somebody else's lease
            next_interval(looking.client, looking.base)
            report = door.sweep()
        assert set(report.marked) == {i.decode() for i in dead}
        looking.client.delete(looking.key("stalled"))
        looking.client.sadd(looking.key("stalled"), "stray")
        next_interval(looking.client, looking.base)


def test_reply_that_never_comes_is_a_timeout(swap: Swap, looking: Case, caplog: pytest.LogCaptureFixture) -> None:
    """What comes late must find nobody."""
    dead = fill(looking)
    for kind in ("blocking", "asyncio"):
        with Door(kind, swap.url, engine=looking.engine, timeout=0.2) as door:
            before = len([stream for stream in swap.streams if SCAN in stream.asked])
            swap.swap(SCAN, 3, b"")
            with pytest.raises(theirs.TimeoutError) as caught:
                door.sweep()
            no_secret(caught.value, caplog)
            works_again(door, looking, swap, dead, scans=before + 2)


def test_connections_that_the_server_closed_between_two_sweeps_are_opened_anew(
    door: Door, looking: Case, swap: Swap
) -> None:
    """Its ``timeout`` may be shorter than an interval."""
    dead = fill(looking)
    door.sweep()
    looking.client.client_kill_filter(_type="normal", skipme=True)
    until(lambda: all(stream.over for stream in swap.streams))
    door.rest()
    next_interval(looking.client, looking.base)
    assert set(door.sweep().recovered) == {i.decode() for i in dead}


@pytest.mark.parametrize("server_kind", KINDS)
def test_replica_is_refused_whether_it_takes_writes_or_not(server_kind: str, usable: Callable[[str], str]) -> None:
    """Locks are seen late there. One that takes no writes may be the primary in a moment: such an error passes."""
    options = ["--repl-diskless-sync-delay", "0"]
    with (
        start_server(server_kind, tcp=True, options=options) as primary,
        start_server(server_kind, tcp=True, options=options) as server,
        contextlib.ExitStack() as stack,
    ):
        replica: Any = server.client()
        Case(primary.client(), "python", "echomq").dead(b"0")
        replica.replicaof("127.0.0.1", primary.port)
        until(lambda: replica.info("replication")["master_link_status"] == "up" and replica.dbsize() > 0)
        doors = [
            stack.enter_context(Door(kind, server.url, engine=usable(engine)))
            for kind in ("blocking", "asyncio")
            for engine in ("python", "rust", "script")
        ]
        for door in doors:
            with pytest.raises(theirs.ReadOnlyError):
                door.sweep()
        replica.config_set("replica-read-only", "no")
        before = sorted(replica.keys("*"))
        for door in doors:
            with pytest.raises(UnsupportedQueueError, match="connect to the primary"):
                door.sweep()
            assert sorted(replica.keys("*")) == before
        replica.replicaof("NO", "ONE")
        for door in doors:
            next_interval(replica, b"emq:{q}")
            assert door.sweep().status == "swept"


# long ids

MEGABYTE = 1 << 20
_GROWTH = """
import json, sys
import redis
from mqsweep import AsyncSweeper, Sweeper
from mqsweep.bench.meter import Traffic, measured
from test_faults_scan import Door

kind, url, engine = sys.argv[1:]
with Door(kind, url, engine=engine) as door:
    door.exists()  # on a busy machine the first round trip of a sweep may look like a long way
    redis.Redis.from_url(url).delete("emq:{q}:stalled-check")
    report, cost = measured(door.sweep, Traffic())
print(json.dumps([report.active_scanned, len(report.marked), cost["rss_growth"]]))
"""


@pytest.mark.parametrize("server", ["redis"], indirect=True)
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_ids_of_a_megabyte_do_not_exhaust_memory(looking: Case, server: Server, kind: str) -> None:
    """At the start, in the middle and at the end of short ones: what is held at once is what was asked for at once."""
    short = [b"%d" % number for number in range(4_000)]
    for cluster in range(4):
        looking.alive(*short[cluster * 1_000 : (cluster + 1) * 1_000])
        looking.alive(*(b"%d-%d" % (cluster, number) + b"x" * MEGABYTE for number in range(20)))
    done = subprocess.run(
        [sys.executable, "-c", _GROWTH, kind, server.url, looking.engine],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    scanned, marked, growth = json.loads(done.stdout)
    assert (scanned, marked) == (4_080, 0)
    # received, joined, cut, encoded and on its way out: each byte of a cluster is there a few times for a moment
    assert growth < 7 * 20 * MEGABYTE, growth / MEGABYTE
