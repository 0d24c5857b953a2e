"""``mqsweep queues``, and what is said where a queue was named wrongly."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from support.cases import commands, reset_commands
from support.commands import call, fill
from support.servers import Server


def listed(server: Server, *patterns: str) -> dict[str, dict[str, Any]]:
    """What the command says of each queue, by base."""
    ran = call("-u", server.url, "queues", "--json", *patterns)
    assert ran.code == 0, ran.said
    return {found["base"]: found for found in ran.objects}


def test_each_queue_is_told_by_what_lies_there(server: Server, client: redis.Redis) -> None:
    fill(client, b"1", b"2")
    client.sadd("emq:{q}:stalled", "1")
    client.set("emq:{q}:stalled-check", "mqsweep:host-1:42:00ff", px=20_000)
    client.hset("bull:mails:meta", mapping={"version": "bullmq:5.70.4", "paused": "1"})
    client.lpush("bull:mails:paused", "7", "8")
    client.hset("{bull}:told-by-lists:meta", "paused", "1")
    client.lpush("{bull}:told-by-lists:wait", "7")
    client.set("bull:checked:stalled-check", "1700000000000", px=20_000)
    client.lpush("bull:unknown:active", "1")
    found = listed(server)
    assert found.keys() == {"emq:{q}", "bull:mails", "{bull}:told-by-lists", "bull:checked", "bull:unknown"}
    echo, mails, lists = found["emq:{q}"], found["bull:mails"], found["{bull}:told-by-lists"]
    assert (echo["name"], echo["dialect"], echo["active"], echo["marked"]) == ("q", "echomq", 2, 1)
    assert (echo["holder"], echo["checked_at"]) == ("mqsweep:host-1:42:00ff", None)
    assert 0 < echo["holder_ttl"] <= 20
    assert (mails["dialect"], mails["generation"], mails["told_by"]) == ("bullmq", "5.70.4", "meta.version")
    assert (mails["paused"], mails["in_paused"], mails["waiting"]) == (True, 2, 0)
    assert (lists["name"], lists["generation"], lists["told_by"]) == ("told-by-lists", "6", "lists")
    assert (found["bull:checked"]["checked_at"], found["bull:checked"]["active"]) == (1_700_000_000.0, 0)
    assert (found["bull:unknown"]["generation"], found["bull:unknown"]["told_by"]) == (None, "nothing")
    assert all(each["refused"] is None for each in found.values())


def test_what_would_be_refused_says_so(server: Server, client: redis.Redis) -> None:
    client.zadd("emq:{v2}:active", {"1": 1})
    client.zadd("bull:pro:groups", {"g": 1})
    client.lpush("bull:pro:active", "1")
    client.set("bull:pro:stalled", "no set")
    client.lpush("bull:odd:active", "1")
    client.lpush("bull:odd:stalled-check", "no string")
    client.hset("bull:old:meta", "version", "bullmq:5.40.0")
    client.set("bull:bull4:meta-paused", "1")
    client.lpush("bull:bull4:active", "1")
    found = listed(server)
    words = {
        "emq:{v2}": "EchoMQ 2",
        "bull:pro": "set",
        "bull:odd": "string",
        "bull:old": "5.53.2",
        "bull:bull4": "Bull,",
    }
    for base, word in words.items():
        assert word in found[base]["refused"]


def test_thousands_of_queues_and_jobs_take_few_round_trips_and_no_keys(server: Server, client: Any) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(2_000):
        pipe.hset(f"bull:q-{number}:meta", "version", "bullmq:6.2.0")
        pipe.hset(f"bull:q-{number}:1", "name", "x")
        pipe.hset(f"bull:q-{number}:meta:1", "name", "x")  # ends like no queue's key
    pipe.execute()
    reset_commands(client)
    began = client.info("stats")["total_reads_processed"]
    assert len(listed(server)) == 2_000
    assert client.info("stats")["total_reads_processed"] - began < 2_000 / 10
    ran = commands(client)
    assert "keys" not in ran
    assert ran["scan"] <= 6_000 / 1_000 + 3


def test_patterns_choose_by_name(server: Server, client: redis.Redis) -> None:
    for name in ("mail-in", "mail-out", "orders"):
        client.hset(f"bull:{name}:meta", "version", "bullmq:6.2.0")
    assert listed(server, "mail*").keys() == {"bull:mail-in", "bull:mail-out"}
    ran = call("-u", server.url, "queues", "nothing*")
    assert (ran.code, ran.out) == (0, "")
    assert "no queues found that match nothing*" in ran.err


def test_table_is_for_people(server: Server, client: redis.Redis) -> None:
    client.hset("bull:mails:meta", mapping={"version": "bullmq:6.2.0", "paused": "1"})
    client.set("bull:mails:stalled-check", str(round(time.time() * 1000)), px=20_000)
    client.lpush("bull:a\x1b[31mb:active", "1")
    out = call("-u", server.url, "queues").out
    assert out.splitlines()[0].split() == ["QUEUE", "DIALECT", "VERSION", "ACTIVE", "MARKED", "WAIT", "STATE", "LEASE"]
    assert "\x1b" not in out
    assert "bull:a\\x1b[31mb" in out
    (line,) = [line for line in out.splitlines() if line.startswith("bull:mails")]
    assert "6.2.0" in line
    assert "paused" in line
    assert "a whole-queue check of" in line


def test_nothing_is_written(server: Server, client: redis.Redis) -> None:
    client.hset("bull:mails:meta", "version", "bullmq:6.2.0")
    reset_commands(client)
    listed(server)
    assert commands(client).keys() <= {
        *("scan", "get", "pttl", "time", "type", "llen", "scard", "hmget", "exists", "hello", "client|setinfo"),
        *("client|setname", "select", "info", "config|resetstat"),
    }


def test_unreachable_is_3(server: Server) -> None:
    ran = call("-u", "redis://:secret@127.0.0.1:1/0", "queues")
    assert ran.code == 3
    assert "secret" not in ran.said


@pytest.mark.parametrize("command", ["sweep", "inspect"])
def test_who_may_not_search_is_told_that_the_queue_is_not_there(
    server: Server, client: redis.Redis, command: str
) -> None:
    """Such as the user of SECURITY.md: a service may start before its queue is there."""
    rights = ("~emq:{q}:*", "+@all", "-scan")
    client.execute_command("ACL", "SETUSER", "sweeper", "on", ">pw", *rights)
    try:
        ran = call("-u", f"redis://sweeper:pw@127.0.0.1:{server.port}/0", command, "q")
        assert (ran.code, "no such queue" in ran.err, "no permissions" in ran.err.lower()) == (0, True, False)
    finally:
        client.execute_command("ACL", "DELUSER", "sweeper")


@pytest.mark.parametrize(
    ("there", "asked", "hint"),
    [
        ("emq:{orders}", ("orders", "--dialect", "bullmq"), "--dialect echomq orders"),
        ("bull:orders", ("orders",), "--dialect bullmq orders"),
        ("emq:orders", ("orders",), "--dialect echomq --no-hash-tag orders"),
        ("emq:{orders}", ("orders", "--no-hash-tag"), "--dialect echomq orders"),
        ("{bull}:orders", ("orders", "--dialect", "bullmq"), "--dialect bullmq --prefix {bull} orders"),
        ("bull:Orders", ("orders", "--dialect", "bullmq"), "--dialect bullmq Orders"),
        ("bull:order", ("orders", "--dialect", "bullmq"), "--dialect bullmq order"),
    ],
)
@pytest.mark.parametrize("command", ["sweep", "inspect"])
def test_queue_named_wrongly_gets_its_look_alike(
    server: Server, client: redis.Redis, command: str, there: str, asked: tuple[str, ...], hint: str
) -> None:
    client.lpush(f"{there}:active", "1")
    client.hset("bull:something-else:meta", "version", "bullmq:6.2.0")
    ran = call("-u", server.url, command, *asked)
    assert "no such queue" in ran.err
    assert f"there is {there}: name it by {hint}" in ran.err
    assert "something-else" not in ran.err
    again = call("-u", server.url, command, *hint.split())  # and that is right
    assert (again.code, "no such queue" in again.err) == (0, False)
