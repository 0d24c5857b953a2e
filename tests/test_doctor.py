"""``mqsweep doctor``: each finding where it must be raised, and only there; and nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from support import snapshot
from support.cases import commands, reset_commands
from support.commands import call, fill
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
    examined(server.url, "q")
    examined(server.url)
    ran = commands(client).keys()
    assert snapshot.dump(client, b"emq:{q}") == before
    assert not {"set", "del", "pexpire", "sadd", "srem", "hset", "lset", "evalsha", "script|load"} & ran


def test_queue_that_is_not_there_gets_its_look_alikes(server: Server, client: redis.Redis) -> None:
    client.lpush("emq:{orders}:active", "1")
    code, findings = examined(server.url, "order")
    (found,) = [finding for finding in findings if finding["text"] == "no such queue"]
    assert (code, found["level"], "emq:{orders}" in found["remedy"]) == (0, "note", True)


def test_unreachable_is_3(server: Server) -> None:
    assert call("-u", "redis://127.0.0.1:1/0", "doctor").code == 3
