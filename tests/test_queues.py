"""``mqsweep queues``, and what is said where a queue was named wrongly."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import redis

from mqsweep.cli import main, survey
from mqsweep.cli.output import aligned, columns_of, escape
from support.cases import commands, reset_commands, until, writing
from support.commands import call, fill, on_terminal
from support.servers import Server, start_server


def listed(server: Server, *patterns: str) -> dict[str, dict[str, Any]]:
    """What the command says of each queue, by base."""
    return listed_by(server.url, *patterns)


def listed_by(url: str, *patterns: str) -> dict[str, dict[str, Any]]:
    """The same, as the user of the URL sees it."""
    ran = call("-u", url, "queues", "--json", *patterns)
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


def test_keys_of_other_programs_are_no_queues(server: Server, client: redis.Redis) -> None:
    client.hset("user:7:meta", "title", "x")
    client.sadd("user:8:active", "1")
    client.zadd("app:users:active", {"1": 1})
    client.set("app:page:active", "yes")
    client.lpush("users:active", "1")  # no prefix
    client.lpush("app:mails:wait", "1")
    client.hset("jobs:with-events:meta", "opts.maxLenEvents", "10000")
    client.hset("jobs:with-version:meta", "version", "bullmq:6.2.0")
    client.lpush("jobs:with-active:active", "1")
    client.lpush("emq:waiting:wait", "1")
    client.hset("bull:bare:meta", "title", "x")
    assert listed(server).keys() == {
        *("jobs:with-events", "jobs:with-version", "jobs:with-active", "emq:waiting", "bull:bare"),
    }


def test_name_in_braces_may_have_a_colon(server: Server, client: redis.Redis) -> None:
    client.lpush("emq:{eu:mails}:active", "1")
    assert listed(server)["emq:{eu:mails}"]["name"] == "eu:mails"
    hint = "there is emq:{eu:mails}: mqsweep inspect --dialect echomq eu:mails"
    assert hint in call("-u", server.url, "inspect", "eu:mail").err


@pytest.mark.parametrize("columns", [80, 120, 130])
def test_table_fits_the_terminal(server: Server, client: redis.Redis, columns: int) -> None:
    client.hset("bull:mails:meta", mapping={"version": "bullmq:5.81.5", "paused": "1"})
    client.set("bull:mails:stalled-check", str(round(time.time() * 1000)), px=20_000)
    client.set("emq:{q}:stalled-check", "mqsweep:a-long-name-of-a-host-in.some.domain:4194304:00ff", px=20_000)
    client.set("bull:stuck:stalled-check", "a value of somebody else, and a long one")
    client.hset("bull:by-its-lists:meta", "paused", "1")
    client.lpush("bull:by-its-lists:wait", "7")
    client.lpush("bull:" + 20 * "long-name-" + ":active", "1")
    client.lpush("bull:\u30ad\u30e5\u30fc\u30ad\u30e5\u30fc\u30ad\u30e5\u30fc\u30ad\u30e5\u30fc:active", "1")
    client.lpush("bull:a\x1b[31mb:active", "1")
    head, *lines = on_terminal(columns, "-u", server.url, "queues").splitlines()
    assert len(lines) == 7
    assert all(columns_of(line) <= columns for line in lines)
    assert "\x1b" not in "".join(lines)
    last = head.index("LEASE")
    leases = {line[last:].split(",")[0].split("  ")[0] for line in lines if line.isascii()}
    if columns < 130:
        assert leases == {"nobody", "a check", "mqsweep", "other"}
    else:
        assert leases == {"nobody", "a whole check", "mqsweep a-long-name-o... 4194304", "a value of somebody e..."}
    assert ("LAST SWEEP" in head) == (columns == 130)


def test_wide_characters_take_two_columns() -> None:
    assert columns_of("a\u30ad\u0301") == 3
    assert escape(10 * "\u30ad", 9) == 3 * "\u30ad" + "..."
    assert [*aligned([("\u30ad", "1"), ("ab", "20"), ("abc", "3")], right=(1,))] == [
        "\u30ad    1",
        "ab   20",
        "abc   3",
    ]


def test_long_search_shows_how_far_it_is_and_then_nothing(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client.mset({f"page:{number}": "x" for number in range(3_000)})
    monkeypatch.setattr(survey, "PROGRESS_FROM", -1)
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=terminal: shown, raising=False)
        assert main(["-u", server.url, "queues"]) == 0
        err = capsys.readouterr().err
        assert ("looking for queues: 2,000 keys gone over" in err) == terminal
        assert err.rpartition("\x1b[K")[2] == "mqsweep: no queues found\n"


def test_table_is_for_people(server: Server, client: redis.Redis) -> None:
    client.hset("bull:mails:meta", mapping={"version": "bullmq:6.2.0", "paused": "1"})
    client.set("bull:mails:stalled-check", str(round(time.time() * 1000)), px=20_000)
    client.hset("bull:other:meta", "paused", "1")
    client.lpush("bull:other:paused", "7")
    client.lpush("bull:a\x1b[31mb:active", "1")
    client.zadd("emq:{v2}:active", {"1": 1})
    ran = call("-u", server.url, "queues")
    head, *lines = ran.out.splitlines()
    assert head.split() == ["QUEUE", "DIALECT", "ACTIVE", "MARKED", "WAIT", "STATE", "LEASE", "LAST", "SWEEP"]
    odd, mails, other, refused = ([cell.strip() for cell in line.split("  ")] for line in lines)
    assert odd[0] == "bull:a\\x1b[31mb"
    assert {"bullmq 6.2.0", "paused", "a whole check, 20 s left"} <= set(mails)
    assert mails[-1].endswith(" ago")
    assert "bullmq 5 (lists)" in other
    assert {"echomq", "refused", "nobody", "?"} <= set(refused)
    assert "1 refused: 'mqsweep doctor' says why" in ran.err


def test_queue_that_this_user_may_not_read_is_listed(server: Server, client: Any) -> None:
    client.lpush("bull:mine:active", "1")
    client.lpush("bull:other:active", "1")
    client.execute_command("ACL", "SETUSER", "some", "reset", "on", ">pw", "~bull:mine:*", "+@all")
    found = listed_by(f"redis://some:pw@127.0.0.1:{server.port}/0")
    client.acl_deluser("some")
    assert found["bull:mine"]["refused"] is None
    assert "permission" in found["bull:other"]["refused"]


def test_nothing_is_written(server: Server, client: redis.Redis) -> None:
    client.hset("bull:mails:meta", "version", "bullmq:6.2.0")
    client.lpush("bull:mails:active", "1")
    reset_commands(client)
    listed(server)
    ran = commands(client).keys()
    assert {"scan", "lrange", "llen"} & ran
    assert not writing(client) & ran


def test_node_of_a_cluster_says_that_it_is_one() -> None:
    with start_server("redis", tcp=True, options=("--cluster-enabled", "yes")) as server, server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
        client.lpush("{bull}:mails:active", "1")
        ran = call("-u", server.url, "queues", "--json")
        assert [found["base"] for found in ran.objects] == ["{bull}:mails"]
        assert "one node of a cluster" in ran.err


def test_unreachable_is_3(server: Server) -> None:
    ran = call("-u", "redis://:secret@127.0.0.1:1/0", "queues")
    assert ran.code == 3
    assert "secret" not in ran.said
