"""`mqsweep.bullmq.install`: what it puts where, what it refuses, how it connects, and that undo takes it all away."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
import redis.asyncio

from mqsweep import ConfigurationError, UnsupportedQueueError
from mqsweep.bullmq import install, move_stalled_jobs_to_wait
from support.cases import Case
from support.dropin import check, eventually, is_ours, next_check, run, worker_of
from support.servers import KINDS, Server, free_port, start_server

pytest.importorskip("bullmq")


@pytest.fixture
def case(client: redis.Redis) -> Case:
    """A BullMQ queue."""
    return Case(client, "python", "bullmq")


def test_check_answers_with_the_ids_of_what_left_active(server: Server, case: Case) -> None:
    """Recovered and past the ceiling alike, as BullMQ does, as ``str``."""
    case.dead(b"1", b"2")
    case.dead(b"3", stc="1")
    case.alive(b"4")

    async def main() -> None:
        async with worker_of(server.url) as worker:
            install(worker)
            assert await check(worker) == []
            assert is_ours(case)
            assert case.marks() == {b"1", b"2", b"3"}
            assert await check(worker) == []  # too early
            assert await next_check(case, worker) == ["1", "2", "3"]
            assert await next_check(case, worker) == []

    run(main)
    assert case.active() == [b"4"]
    assert case.look("3")[b"defa"] == b"job stalled more than allowable limit"


def test_sweeps_do_not_run_in_the_workers_thread(server: Server, case: Case) -> None:
    """What a sweep computes must not keep the worker from renewing locks."""
    case.dead(b"1")
    threads = set()

    async def main() -> None:
        async with worker_of(server.url) as worker:
            install(worker, on_progress=lambda _: threads.add(threading.current_thread()))
            await check(worker)

    run(main)
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("closed", [False, True])
def test_undo_puts_the_original_back_and_closes_our_connections(server: Server, case: Case, closed: bool) -> None:
    async def main() -> None:
        async with worker_of(server.url) as worker:
            original = worker.backend.moveStalledJobsToWait
            await check(worker)
            clients = len(case.client.client_list())
            undo = install(worker)
            assert worker.backend.moveStalledJobsToWait != original
            await next_check(case, worker)
            assert len(case.client.client_list()) > clients
            if closed:
                await worker.close()
                await eventually(lambda: len(case.client.client_list()) < clients)  # ours and the worker's
            await undo()
            assert worker.backend.moveStalledJobsToWait == original
            assert "moveStalledJobsToWait" not in vars(worker.backend)
            if not closed:
                assert len(case.client.client_list()) == clients
            await undo()
            undo()
            assert worker.backend.moveStalledJobsToWait == original

    run(main)


def test_undo_leaves_what_others_put_on_top(server: Server, case: Case) -> None:
    """Someone wrapped our check: theirs stays, and reaches the original through us."""

    async def main() -> None:
        async with worker_of(server.url) as worker:
            undo = install(worker)
            ours = worker.backend.moveStalledJobsToWait

            async def theirs(*arguments: int) -> Any:
                return await ours(*arguments)

            worker.backend.moveStalledJobsToWait = theirs
            await undo()
            assert worker.backend.moveStalledJobsToWait is theirs
            await check(worker)
            assert case.client.get(case.key("stalled-check")).isdigit()  # BullMQ's own

    run(main)


def test_undo_restores_what_was_on_the_backend_before(server: Server) -> None:
    async def main() -> None:
        async with worker_of(server.url) as worker:

            async def before(*_: int) -> list[str]:
                return []

            worker.backend.moveStalledJobsToWait = before
            await install(worker)()
            assert worker.backend.moveStalledJobsToWait is before

    run(main)


def test_install_again_only_after_undo(server: Server, case: Case) -> None:
    case.dead(b"1")

    async def main() -> None:
        async with worker_of(server.url) as worker:
            undo = install(worker)
            with pytest.raises(ConfigurationError, match="already"):
                install(worker)
            undo()
            install(worker)
            await check(worker)
            assert is_ours(case)

    run(main)


def test_interval_and_ceiling_follow_each_call(server: Server, case: Case) -> None:
    case.dead(b"1")

    async def main() -> None:
        async with worker_of(server.url) as worker:
            install(worker)
            await check(worker)
            case.client.delete(case.key("stalled-check"))
            assert await worker.backend.moveStalledJobsToWait(0, 60_000) == ["1"]
            assert 50_000 < case.client.pttl(case.key("stalled-check")) <= 60_000

    run(main)
    assert case.look("1")[b"defa"]


@pytest.mark.parametrize(
    "options",
    [
        {"interval": 5},
        {"max_stalled_count": 2},
        {"prefix": "x"},
        {"dialect": "echomq"},
        {"queue": "x"},
        {"hash_tag": True},
    ],
)
def test_options_that_are_the_workers_are_refused(server: Server, options: dict[str, Any]) -> None:
    async def main() -> None:
        async with worker_of(server.url) as worker:
            with pytest.raises(ConfigurationError, match="the worker says this"):
                install(worker, **options)
            assert "moveStalledJobsToWait" not in vars(worker.backend)

    run(main)


@pytest.mark.parametrize(
    ("options", "own", "words"),
    [
        ({"mark": "most"}, {}, "mark='most'"),
        ({"engine": "c"}, {}, "engine='c'"),
        ({"max_attempts": 3}, {}, "max_attempts=3"),
        ({}, {"stalledInterval": 0}, "stalledInterval=0"),
        ({}, {"stalledInterval": "30s"}, "stalledInterval='30s'"),
        ({}, {"maxStalledCount": -1}, "max_stalled_count=-1"),
    ],
)
def test_values_that_cannot_work_are_refused_at_once(
    server: Server, options: dict[str, Any], own: dict[str, Any], words: str
) -> None:
    async def main() -> None:
        async with worker_of(server.url, **own) as worker:
            with pytest.raises(ConfigurationError, match=words):
                install(worker, **options)
            assert "moveStalledJobsToWait" not in vars(worker.backend)

    run(main)


class OldWorker:
    """As in bullmq 2: no backend."""

    async def runStalledJobsCheck(self) -> None: ...  # noqa: N802


class PostgresBackend:
    """As in bullmq's own, as far as anybody looks."""

    async def moveStalledJobsToWait(self, *_: int) -> list[str]:  # noqa: N802
        return []


def test_what_is_no_worker_on_redis_is_refused_in_words() -> None:
    on_postgres: Any = OldWorker()
    on_postgres.backend = PostgresBackend()
    for worker, words in ((object(), "bullmq.Worker"), (OldWorker(), "3.0"), (on_postgres, "PostgresBackend")):
        with pytest.raises(ConfigurationError, match=words):
            install(worker)
    with pytest.raises(ConfigurationError, match="PostgresBackend"):
        run(lambda: move_stalled_jobs_to_wait(on_postgres, 1, 1_000))


class Renamed(redis.asyncio.Redis):
    """A client class of the user's own."""


@pytest.mark.parametrize("way", ["url", "options", "client", "subclass", "prefix"])
def test_connects_as_the_worker_does(server: Server, case: Case, way: str) -> None:
    """Over TCP, with a user and password, from each form that BullMQ takes."""
    case.client.acl_setuser("u", enabled=True, reset=True, passwords="+secret", keys=["*"], commands=["+@all"])
    url = server.tcp_url.replace("//", "//u:secret@")
    host, port = server.tcp_url.removeprefix("redis://").split("/")[0].split(":")
    parts = {"host": host, "port": int(port), "username": "u", "password": "secret"}
    others = {c["id"] for c in case.client.client_list()}

    async def main() -> None:
        client = redis.asyncio.Redis(**parts, decode_responses=True)  # type: ignore[arg-type]
        own = Renamed(**parts, decode_responses=True)  # type: ignore[arg-type]
        connection = {"url": url, "options": parts, "client": client, "subclass": own, "prefix": url}[way]
        options = {"prefix": "bull:q"} if way == "prefix" else {}
        if way == "prefix":
            case.base = b"bull:q:q"
        case.dead(b"1")
        async with worker_of(connection, **options) as worker:
            install(worker)
            assert await next_check(case, worker) == []
            assert is_ours(case)
            assert {c["user"] for c in case.client.client_list() if c["id"] not in others} == {"u"}
            assert await next_check(case, worker) == ["1"]
        await client.aclose()
        await own.aclose()

    try:
        run(main)
    finally:
        case.client.acl_deluser("u")


@pytest.mark.parametrize("kind", KINDS)
def test_cluster_client(kind: str) -> None:
    """One node that owns every slot: braces are needed, and the client finds its nodes when it is first used."""
    bus = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    with start_server(kind, tcp=True, options=bus) as server:
        client = server.client()
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        case = Case(client, "python", "bullmq")
        case.base = b"{bull}:q"

        async def main() -> None:
            await eventually(lambda: client.cluster("INFO")["cluster_state"] == "ok")
            case.dead(b"1")
            cluster = redis.asyncio.RedisCluster.from_url(server.tcp_url, decode_responses=True)
            async with worker_of(cluster, prefix="{bull}") as worker:
                install(worker)
                assert await next_check(case, worker) == []
                assert is_ours(case)
                assert await next_check(case, worker) == ["1"]
            async with worker_of(cluster) as worker:
                with pytest.raises(UnsupportedQueueError, match="braces"):
                    install(worker)
            await cluster.aclose()

        run(main)
