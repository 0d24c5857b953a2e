"""`Sweeper`: what it refuses at construction, what it does to its client, threads and forks."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.sentinel
import valkey

import mqsweep
from mqsweep import ConfigurationError, MQSweepError, Sweeper
from support.cases import Case, commands, reset_commands, until
from support.proxy import Proxy, proxy_of
from support.servers import Server

NOWHERE = "redis://127.0.0.1:1/0"
"""Nothing listens there: construction does not connect."""
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def case(client: redis.Redis, engine: str) -> Case:
    """An EchoMQ queue with nothing in it."""
    return Case(client, engine, "echomq")


# construction


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("interval", [0, -1, 0.0, -0.5, NAN, INF, -INF, True, False, "30", b"30", [], 1e12, 0.0005]),
        ("max_stalled_count", [-1, 1.0, 0.5, NAN, True, "1", None, [], 2**60]),
        ("max_attempts", [0, -1, 1.5, True, "3", NAN]),
        ("max_pause", [0, -1, NAN, INF, True, "5ms", None, 0.00001]),
        ("timeout", [0, -1, NAN, INF, True, "10", None]),
        ("dialect", ["bull", "", "EchoMQ", None, 1, [], b"echomq"]),
        ("engine", ["", "c", "Rust", None, 1, []]),
        ("mark", ["", "all", None, True, []]),
        ("requeue", ["", "end", 1, True, []]),
        ("grace", ["", "none", None, []]),
        ("prefix", ["", 1, b"emq"]),
        ("hash_tag", ["yes", 1, 0]),
        ("bullmq_version", ["6.2.0"]),  # of an echomq queue
    ],
)
def test_values_that_cannot_work_are_refused_by_name(option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigurationError) as caught:
            Sweeper(NOWHERE, "q", **{option: value})
        text = str(caught.value)
        assert text.startswith(f"{option}={value!r}: "), text
        assert "must be" in text, text


@pytest.mark.parametrize("queue", ["", None, 1, b"q", ["q"]])
def test_queue_must_have_a_name(queue: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"queue=.*must be"):
        Sweeper(NOWHERE, queue)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grace": "strict"}, "grace='strict'.*not built yet"),
        ({"hold": {"mass-stall"}}, "hold=.*not built yet"),
        ({"dialect": "bullmq", "max_attempts": 3}, "max_attempts=3.*max_stalled_count"),
        ({"dialect": "bullmq", "bullmq_version": "six"}, "bullmq_version='six'.*must be"),
    ],
)
def test_options_that_cannot_be_had_are_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Sweeper(NOWHERE, "q", **options)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:6379", "http://localhost", "redis:/localhost", "REDIS//x", "redis://h:port/0", "redis://h/0?db=x"],
)
def test_url_that_redis_does_not_take_is_refused_without_its_secrets(url: str) -> None:
    for given in (url, url.replace("//", "//user:s3cret@")):
        with pytest.raises(ConfigurationError, match="client=") as caught:
            Sweeper(given, "q")
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("client", [None, 1, b"redis://localhost", object(), {}, redis.Redis, ["redis://localhost"]])
def test_client_that_is_none_is_refused(client: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"client=.*must be"):
        Sweeper(client, "q")


def test_asyncio_client_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match="AsyncSweeper"):
        Sweeper(redis.asyncio.Redis(), "q")


def test_errors_are_one_tree() -> None:
    names = [name for name in mqsweep.__all__ if name.endswith("Error")]
    assert len(names) >= 5
    for name in names:
        assert issubclass(getattr(mqsweep, name), MQSweepError)
    assert issubclass(ConfigurationError, ValueError)


def test_defaults_are_the_dialects() -> None:
    with Sweeper(NOWHERE, "q") as echomq, Sweeper(NOWHERE, "q", dialect="bullmq") as bullmq:
        assert (echomq.interval, bullmq.interval) == (30.0, 15.0)
    with Sweeper(NOWHERE, "q", interval=2) as given:
        assert given.interval == 2.0


@pytest.mark.parametrize(
    ("options", "base"),
    [
        ({}, b"emq:{q}"),
        ({"hash_tag": False}, b"emq:q"),
        ({"prefix": "my"}, b"my:{q}"),
        ({"dialect": "bullmq"}, b"bull:q"),
        ({"dialect": "bullmq", "prefix": "{my}"}, b"{my}:q"),
        ({"dialect": "bullmq", "hash_tag": True}, b"bull:{q}"),
    ],
)
def test_keys_lie_where_the_dialect_says(client: redis.Redis, options: dict[str, Any], base: bytes) -> None:
    case = Case(client, "python", "echomq")
    case.base = base
    case.dead(b"j")
    with Sweeper(client, "q", **options) as sweeper:
        sweeper.sweep()
    assert case.marks() == {b"j"}
    assert {key.rsplit(b":", 1)[0] for key in case.client.keys("*")} == {base}


# clients


def recovers(case: Case, client: Any) -> None:
    """Two sweeps over this client, the first of which marks and the second of which recovers."""
    case.dead(b"j")
    with Sweeper(client, "q", engine=case.engine) as sweeper:
        sweeper.sweep()
        case.client.delete(case.key("stalled-check"))
        assert sweeper.sweep().recovered == ("j",)


@pytest.mark.parametrize(
    "options",
    [
        {"decode_responses": True},
        {"single_connection_client": True},
        {"protocol": 3},
        {"protocol": 2, "decode_responses": True, "encoding": "latin-1"},
        {"socket_timeout": 0.5, "health_check_interval": 1, "retry_on_error": [redis.BusyLoadingError]},
        {"max_connections": 1, "client_name": "theirs"},
    ],
)
def test_whatever_the_client_is_set_to(case: Case, server: Server, options: dict[str, Any]) -> None:
    with server.client(**options) as client:
        before = copy.copy(client.connection_pool.connection_kwargs)
        recovers(case, client)
        assert client.connection_pool.connection_kwargs == before
        assert client.get("nothing") is None  # neither closed nor left with a reply in it
        assert client.connection_pool.get_encoder().decode_responses == options.get("decode_responses", False)


def test_urls_over_tcp_and_unix_sockets(case: Case, server: Server) -> None:
    for url in (server.url, server.tcp_url, server.tcp_url + "?protocol=3&decode_responses=yes"):
        case.client.flushdb()
        recovers(case, url)


def test_valkeys_own_client_and_its_errors(case: Case, server: Server) -> None:
    with valkey.Valkey(unix_socket_path=server.socket) as client:
        recovers(case, client)
    with Sweeper(valkey.Valkey(port=1), "q", engine=case.engine) as sweeper, pytest.raises(valkey.ConnectionError):
        sweeper.sweep()


class Renamed(redis.Redis):
    """A class of the user's own."""


def test_clients_class_may_be_the_users_own(case: Case, server: Server) -> None:
    with Renamed(unix_socket_path=server.socket) as client:
        recovers(case, client)


def test_close_leaves_the_client_open_and_closes_all_that_is_ours(case: Case, server: Server) -> None:
    case.dead(b"j")
    with server.client() as client:
        client.ping()
        before = len(case.client.client_list())
        sweeper = Sweeper(client, "q", engine=case.engine)
        sweeper.sweep()
        assert len(case.client.client_list()) > before
        sweeper.close()
        sweeper.close()
        until(lambda: len(case.client.client_list()) == before)
        client.ping()
        assert len(case.client.client_list()) == before  # over the very connection that it had
        case.client.delete(case.key("stalled-check"))
        assert sweeper.sweep().recovered == ("j",)  # and a closed sweeper opens again
        sweeper.close()


def test_nothing_is_opened_before_it_is_needed(case: Case, server: Server) -> None:
    before = len(case.client.client_list())
    with Sweeper(server.url, "q", engine=case.engine):
        assert len(case.client.client_list()) == before


# an idle queue


def test_idle_queue_costs_one_round_trip_and_no_call_of_the_script(server: Server, case: Case) -> None:
    """By the writes that a proxy saw, and by the server's own count of commands."""
    if case.engine == "script":
        pytest.skip("its one call is the sweep")
    case.client.hset(case.key("meta"), "opts.maxLenEvents", "10000")
    with proxy_of(Proxy, server.socket) as proxy, Sweeper(proxy.url, "q", engine=case.engine) as sweeper:
        sweeper.sweep()  # connects
        case.client.delete(case.key("stalled-check"))
        before = proxy.requests
        reset_commands(case.client)
        report = sweeper.sweep()
        ran = commands(case.client)
        assert proxy.requests == before + 1
    assert (report.status, report.calls) == ("swept", 0)
    assert not {"eval", "evalsha", "sscan", "lrange"} & ran.keys()


def test_throttled_sweep_costs_one_round_trip(server: Server, case: Case) -> None:
    case.dead(b"j")
    case.client.set(case.key("stalled-check"), "somebody", px=60_000)
    with proxy_of(Proxy, server.socket) as proxy, Sweeper(proxy.url, "q", engine=case.engine) as sweeper:
        sweeper.sweep()
        before = proxy.requests
        report = sweeper.sweep()
        spent = proxy.requests - before
    assert report.status == "throttled"
    assert spent == (1 if case.tells else 2)  # the script engine looks, then lets the script look


def test_inspect_and_exists_write_nothing(case: Case) -> None:
    with case.sweeper() as sweeper:
        assert not sweeper.exists()
        assert not sweeper.inspect().exists
        case.dead(b"j")
        case.alive(b"k")
        case.client.sadd(case.key("stalled"), "j", "k", "stray")
        before = {key: case.client.dump(key) for key in case.client.keys("*")}
        assert sweeper.exists()
        seen = sweeper.inspect()
    assert {key: case.client.dump(key) for key in case.client.keys("*")} == before
    assert ([job.id for job in seen.jobs], seen.locked_marks, seen.strays) == (["j"], ("k",), ("stray",))
    assert not case.client.exists(case.key("stalled-check"))


# threads and forks


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Some threads."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_one_sweeper_in_many_threads(case: Case, pool: ThreadPoolExecutor) -> None:
    ids = [b"%d" % n for n in range(500)]
    case.dead(*ids)
    recovered: Counter[str] = Counter()
    together = threading.Barrier(8)
    with case.sweeper() as sweeper:

        def sweep(_: int) -> str:
            together.wait(10)
            report = sweeper.sweep()
            recovered.update(report.recovered)
            return report.status

        for _ in range(2):
            case.client.delete(case.key("stalled-check"))
            statuses = Counter(pool.map(sweep, range(8)))
            assert statuses == {"swept": 1, "throttled": 7}
    assert recovered == Counter(i.decode() for i in ids)


_FORK = """
import os, sys
import redis
from mqsweep import Sweeper

path, engine = sys.argv[1:]
client = redis.Redis(unix_socket_path=path)
sweeper = Sweeper(client, "q", engine=engine)

def sweep():
    client.delete("emq:{q}:stalled-check")
    return sweeper.sweep()

assert sweep().recovered == ()
child = os.fork()
if child == 0:
    report = sweep()
    os._exit(0 if len(report.recovered) == 300 else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
for number in range(300):  # the parent's own connections still carry its own replies
    client.lpush("emq:{q}:active", number)
assert len(sweep().marked) == (300 if engine != "script" else 0)
assert len(sweep().failed) == 300  # their second stall
sweeper.close()
client.close()
"""


def test_sweeper_lives_on_in_both_after_a_fork(case: Case, server: Server) -> None:
    case.dead(*(b"%d" % n for n in range(300)))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _FORK, server.socket, case.engine],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
