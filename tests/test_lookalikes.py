"""What is said where a queue was named wrongly: those that are there, each with the command that names it."""

from __future__ import annotations

import shlex
import signal
from typing import Any

import pytest
import redis

from mqsweep.cli.queues import linked
from mqsweep.discover import look_alikes
from mqsweep.keys import QueueKeys
from support.cases import commands, reset_commands
from support.commands import call, fill, start, until
from support.rights import limited_url
from support.servers import Server


@pytest.mark.parametrize(
    ("there", "asked", "hint"),
    [
        ("emq:{orders}", ("orders", "--dialect", "bullmq"), "--dialect echomq orders"),
        ("bull:orders", ("orders",), "--dialect bullmq orders"),
        ("emq:orders", ("orders",), "--dialect echomq --no-hash-tag orders"),
        ("emq:{orders}", ("orders", "--no-hash-tag"), "--dialect echomq orders"),
        ("{bull}:orders", ("orders", "--dialect", "bullmq"), "--dialect bullmq --prefix '{bull}' orders"),
        ("bull:Orders", ("orders", "--dialect", "bullmq"), "--dialect bullmq Orders"),
        ("bull:order", ("orders", "--dialect", "bullmq"), "--dialect bullmq order"),
    ],
)
@pytest.mark.parametrize("command", ["sweep", "inspect", "doctor"])
def test_queue_named_wrongly_gets_its_look_alike(
    server: Server, client: redis.Redis, command: str, there: str, asked: tuple[str, ...], hint: str
) -> None:
    client.lpush(f"{there}:active", "1")
    client.hset("bull:something-else:meta", "version", "bullmq:6.2.0")
    ran = call("-u", server.url, command, *asked)
    said = " ".join(ran.said.split())
    assert ran.code == 0
    assert "no such queue" in said
    assert f"there is {there}: mqsweep {command} {hint} " in said + " "
    assert "something-else" not in said
    again = call("-u", server.url, command, *shlex.split(hint))  # and that is right
    assert (again.code, "no such queue" in again.said) == (0, False)


def test_likeliest_is_the_first(server: Server, client: redis.Redis) -> None:
    for base in ("a:bull:orders", "bull:order", "bull:orders", "bull:unlike"):
        client.lpush(f"{base}:active", "1")
    said = [line for line in call("-u", server.url, "inspect", "orders").err.splitlines() if "there is" in line]
    assert [line.split()[3] for line in said] == ["bull:orders:", "a:bull:orders:", "bull:order:"]


def test_keys_of_other_programs_are_not_offered(server: Server, client: redis.Redis) -> None:
    client.hset("user:orders:meta", "title", "x")
    assert "there is" not in call("-u", server.url, "inspect", "orders").err


def test_name_that_a_shell_would_take_apart_is_quoted(server: Server, client: redis.Redis) -> None:
    client.lpush("bull:all orders:active", "1")
    err = call("-u", server.url, "inspect", "all orders").err
    assert "mqsweep inspect --dialect bullmq 'all orders'" in err


def test_search_ends_where_no_key_is_a_queues(server: Server, client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(20_000):
        pipe.set(f"page:{number}", "x")
    pipe.execute()
    reset_commands(client)
    with linked(server.url) as link:
        assert look_alikes(link, QueueKeys(b"emq:{orders}"), "orders", patience=3_000) == []
        assert commands(client)["scan"] == 3
        reset_commands(client)
        assert look_alikes(link, QueueKeys(b"emq:{orders}"), "orders", seconds=0) == []
        assert commands(client)["scan"] == 1


@pytest.mark.parametrize("command", ["sweep", "inspect", "doctor"])
def test_user_who_may_not_search_is_told_no_less(server: Server, client: redis.Redis, command: str) -> None:
    """The rights that SECURITY.md asks for have neither SCAN nor other queues' keys."""
    client.lpush("bull:orders:active", "1")
    with limited_url(server, client) as url:
        ran = call("-u", url, command, "orders")
    assert (ran.code, "no such queue" in ran.said, "no permissions" in ran.said.lower()) == (0, True, False)


@pytest.mark.parametrize("limited", [False, True])
def test_run_notes_it_and_sweeps_the_queue_once_it_is_there(server: Server, client: Any, limited: bool) -> None:
    client.lpush("bull:orders:active", "1")
    with limited_url(server, client) as url:
        process = start("run", "orders", "--interval", "100ms", MQSWEEP_REDIS_URL=url if limited else server.url)
        assert process.stdout is not None
        assert process.stderr is not None
        until(lambda: client.exists("emq:{orders}:stalled-check"))
        fill(client, b"1", base=b"emq:{orders}")
        until(lambda: client.llen("emq:{orders}:wait") == 1)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "1 recovered" in out
    assert "orders: it will be swept as soon as it is there" in err
    assert ("there is bull:orders: mqsweep run --dialect bullmq orders" in err) != limited
