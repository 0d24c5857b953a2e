"""``mqsweep doctor``: each finding where it must be raised, and only there; and nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from mqsweep.cli.queues import linked
from mqsweep.doctor import NEEDS, examine_server
from mqsweep.engine import EngineInfo
from mqsweep.script import script_digest
from support import snapshot
from support.cases import commands, reset_commands, until, writing
from support.commands import call, fill
from support.rights import limited_url, rights_of_the_page
from support.servers import KINDS, Server, start_server


def examined(url: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and findings."""
    ran = call("-u", url, "doctor", "--json", *arguments)
    return ran.code, ran.objects


def topics(findings: list[dict[str, Any]], level: str) -> set[str]:
    """Of the findings of that level."""
    return {finding["topic"] for finding in findings if finding["level"] == level}


@pytest.fixture(params=KINDS)
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own, whose configuration it may change."""
    with start_server(request.param, tcp=True) as server:
        yield server


def test_healthy_server_and_queue_have_nothing_serious(server: Server, client: redis.Redis) -> None:
    fill(client, b"1")
    client.set("emq:{q}:1:lock", "token")
    client.set("emq:{q}:stalled-check", "mqsweep:host-1:42:00ff", px=20_000)
    code, findings = examined(server.url, "q")
    assert code == 0
    assert topics(findings, "serious") == set()
    assert {"version", "role", "eviction", "rights", "clock", "dialect", "lease", "stalled"} <= topics(findings, "ok")
    assert call("-u", server.url, "doctor", "q").out.splitlines()[-1] == "nothing serious"


def test_every_finding_of_a_queue_that_is_not_well(server: Server, client: redis.Redis) -> None:
    client.hset("bull:q:meta", mapping={"paused": "1", "version": "bullmq:5.70.0"})
    client.lpush("bull:q:wait", "8")
    client.lpush("bull:q:paused", "9")
    client.hset("bull:q:1", mapping={"name": "x", "stc": "4711"})
    client.lpush("bull:q:active", "1")
    client.set("bull:q:stalled-check", "a value without a TTL")
    code, findings = examined(server.url, "--dialect", "bullmq", "q")
    assert code == 1
    assert topics(findings, "serious") == {"paused", "runaway", "lease"}
    assert "stalled" in topics(findings, "note")
    assert all(finding["remedy"] for finding in findings if finding["level"] == "serious")


def test_who_holds_the_lease(server: Server, client: redis.Redis) -> None:
    def lease() -> dict[str, Any]:
        (found,) = [f for f in examined(server.url, "q")[1] if f["topic"] == "lease"]
        return found

    fill(client, b"1")
    assert "nobody sweeps now" in lease()["text"]
    client.set("emq:{q}:stalled-check", str(round(time.time() * 1000) - 3_000), px=20_000)
    assert "built-in checks are at work" in lease()["text"]
    client.set("emq:{q}:stalled-check", "mqsweep:host-1:42:00ff", px=20_000)
    assert "held by mqsweep on host-1, process 42" in lease()["text"]


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        (lambda c: c.zadd("bull:q:active", {"1": 1}), "EchoMQ 2"),
        (lambda c: (c.zadd("bull:q:groups", {"g": 1}), c.lpush("bull:q:active", "1")), "Pro"),
        (lambda c: c.hset("bull:q:meta", "version", "bullmq:5.40.0"), "5.53.2"),
        (lambda c: (c.set("bull:q:meta-paused", "1"), c.lpush("bull:q:active", "1")), "Bull, BullMQ's predecessor"),
        (lambda c: (c.hset("bull:q:meta", "paused", "1"), c.lpush("bull:q:active", "1")), "nobody says whether BullMQ"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_queue_that_is_refused_or_held_is_serious(
    server: Server, client: redis.Redis, keys: Callable[[Any], object], word: str, named: bool
) -> None:
    keys(client)
    code, findings = examined(server.url, *(("--dialect", "bullmq", "q") if named else ()))
    assert code == 1
    assert any(word in finding["text"] for finding in findings if finding["level"] == "serious")


def test_policy_that_evicts_locks(own: Server) -> None:
    with own.client() as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        assert "eviction" in topics(examined(own.url)[1], "note")
        client.config_set("maxmemory", "100mb")
        code, findings = examined(own.url)
        assert (code, topics(findings, "serious")) == (1, {"eviction"})


def test_replica(own: Server) -> None:
    with start_server(own.kind, tcp=True) as primary, own.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(primary.port))
        code, findings = examined(own.url)
    assert code == 1
    assert "role" in topics(findings, "serious")


def test_rights_that_are_missing_are_named(own: Server) -> None:
    with own.client() as client:
        client.execute_command("ACL", "SETUSER", "sweeper", "on", ">pw", "~bull:*", "+@all", "-ltrim", "-xadd")
        client.lpush("bull:q:active", "1")
        url = f"redis://sweeper:pw@127.0.0.1:{own.port}/0"
        code, findings = examined(url, "--dialect", "bullmq", "q")
        assert code == 1
        (found,) = [finding for finding in findings if finding["topic"] == "rights"]
        assert "this user may not run LTRIM, XADD" in found["text"]
        client.execute_command("ACL", "SETUSER", "sweeper", "+@all", "resetkeys", "~other:*")
        code, findings = examined(url, "--dialect", "bullmq", "q")
        (found,) = [finding for finding in findings if finding["topic"] == "rights"]
        assert (code, found["level"], "GET" in found["text"]) == (1, "serious", True)


def test_user_of_the_page_is_told_apart_from_one_who_lacks_a_right(server: Server, client: redis.Redis) -> None:
    """That user may not use ACL, and is the one who has to know."""
    client.lpush("emq:{orders}:active", "1")
    with limited_url(server, client) as url:
        code, findings = examined(url, "orders")
        assert (code, topics(findings, "serious")) == (0, set())
        assert "rights" in topics(findings, "ok")
    rights = [part.removeprefix("+") for part in rights_of_the_page() if part.startswith("+")]
    assert {need[0].lower() for need in NEEDS} == set(rights) - {"role", "select", "smembers"}
    for right in sorted({"ltrim", "smismember", "evalsha", "set"} & set(rights)):
        with limited_url(server, client, f"-{right}") as url:
            code, findings = examined(url, "orders")
        (found,) = [finding for finding in findings if finding["topic"] == "rights"]
        assert (code, found["text"]) == (1, f"this user may not run {right.upper()} on its keys")


def test_user_who_may_run_no_script(server: Server, client: redis.Redis) -> None:
    client.lpush("emq:{orders}:active", "1")
    with limited_url(server, client, "-eval") as url:
        code, findings = examined(url, "orders")
    assert (code, topics(findings, "serious")) == (1, {"script"})


def test_what_the_user_says_of_a_queue_is_believed(server: Server, client: redis.Redis) -> None:
    client.hset("jobs:{q}:meta", "paused", "1")
    client.lpush("jobs:{q}:active", "1")

    def dialect(*options: str) -> str:
        (found,) = [f for f in examined(server.url, "--prefix", "jobs", *options, "q")[1] if f["topic"] == "dialect"]
        return f"{found['level']}: {found['text']}"

    assert dialect() == "ok: EchoMQ 1"
    assert dialect("--dialect", "bullmq", "--hash-tag").startswith("serious: recoveries are held")
    known = dialect("--dialect", "bullmq", "--hash-tag", "--bullmq-version", "5.81.5")
    assert known == "ok: BullMQ 5.81.5, told by option"


def test_runaways_are_seen_from_outside_too_locked_or_not(server: Server, client: redis.Redis) -> None:
    many = [b"%d" % number for number in range(300)]
    fill(client, *many, base=b"bull:q")
    for job_id, stalls in (("0", "4711"), ("1", "5000"), ("150", "9000"), ("299", "1000"), ("298", "999")):
        client.hset(f"bull:q:{job_id}", "stc", stalls)
    client.hset("bull:q:2", "stc", 400 * "9")
    client.set("bull:q:1:lock", "token")
    client.hset("bull:well:meta", "version", "bullmq:6.2.0")
    code, findings = examined(server.url)
    (found,) = [finding for finding in findings if finding["level"] == "serious"]
    assert (code, found["about"], found["topic"]) == (1, "bull:q", "runaway")
    assert found["text"].startswith("3 jobs past every ceiling, again and again ('1': 5,000 stalls)")


def test_marks_that_nobody_comes_back_to(server: Server, client: redis.Redis) -> None:
    fill(client, b"1", b"2")
    client.sadd("emq:{q}:stalled", "1", "2")
    (found,) = [f for f in examined(server.url, "q")[1] if f["topic"] == "lease"]
    assert "nobody sweeps now" in found["text"]
    assert "2 marks stand from an earlier one" in found["text"]


def test_server_whose_last_save_failed(own: Server) -> None:
    (own.directory / "dump.rdb").mkdir()
    with own.client() as client:
        client.set("x", "1")
        client.bgsave()
        until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        code, findings = examined(own.url)
    assert (code, topics(findings, "serious")) == (1, {"saving"})


@pytest.mark.parametrize(
    ("engine", "profile", "level", "word"),
    [
        ("rust", "release", "ok", "why so"),
        ("rust", "debug", "note", "debug build"),
        ("python", None, "note", "python (why so)"),
    ],
)
def test_engine_that_could_be_better(server: Server, engine: Any, profile: str | None, level: str, word: str) -> None:
    info = EngineInfo(engine, "why so", "1", "1", profile, "CPython 3.11")
    with linked(server.url) as link:
        (found,) = [finding for finding in examine_server(link, info, []) if finding.topic == "engine"]
    assert (found.level, word in found.text) == (level, True)


def test_script_is_tried_without_being_loaded(server: Server, client: redis.Redis) -> None:
    (found,) = [finding for finding in examined(server.url)[1] if finding["topic"] == "script"]
    assert (found["level"], script_digest() in found["text"]) == ("ok", True)
    assert client.script_exists(script_digest()) == [False]


def test_queues_that_are_well_are_counted(server: Server, client: redis.Redis) -> None:
    for name in ("a", "b"):
        client.hset(f"bull:{name}:meta", "version", "bullmq:6.2.0")
    client.hset("bull:old:meta", "version", "bullmq:5.40.0")
    lines = call("-u", server.url, "doctor").out.splitlines()
    assert "bull:old" in lines
    assert lines[-2:] == ["2 queues where all is well", "1 serious"]
    assert "bull:a" in call("-u", server.url, "doctor", "--dialect", "bullmq", "a").out
    assert {"bull:a", "bull:b", "bull:old", "server"} == {f["about"] for f in examined(server.url)[1]}


def test_thousands_of_queues_take_few_round_trips(server: Server, client: Any) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(1_000):
        pipe.lpush(f"bull:q-{number}:active", *range(20))
    pipe.execute()
    began = client.info("stats")["total_reads_processed"]
    examined(server.url)
    assert client.info("stats")["total_reads_processed"] - began < 1_000


def test_cluster_whose_keys_spread() -> None:
    with start_server("redis", tcp=True, options=("--cluster-enabled", "yes")) as server, server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        code, findings = examined(server.url, "--dialect", "bullmq", "q")
    assert code == 1
    assert "cluster" in topics(findings, "serious")


def test_nothing_is_changed(server: Server, client: redis.Redis) -> None:
    fill(client, b"1", b"2")
    client.sadd("emq:{q}:stalled", "1")
    before = snapshot.dump(client, b"emq:{q}")
    reset_commands(client)
    examined(server.url, "q", "missing")
    examined(server.url)
    ran = commands(client).keys()
    assert {"eval", "lrange", "scan"} <= ran
    assert not (writing(client) | {"evalsha", "script|load"}) & ran
    assert snapshot.dump(client, b"emq:{q}") == before  # and that there is no other key


def test_queue_that_is_not_there_gets_its_look_alikes(server: Server, client: redis.Redis) -> None:
    client.lpush("emq:{orders}:active", "1")
    code, findings = examined(server.url, "order")
    (found,) = [finding for finding in findings if finding["text"] == "no such queue"]
    assert (code, found["level"], "emq:{orders}" in found["remedy"]) == (0, "note", True)


def test_unreachable_is_3(server: Server) -> None:
    assert call("-u", "redis://127.0.0.1:1/0", "doctor").code == 3
