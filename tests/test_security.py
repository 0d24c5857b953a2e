"""The rights that SECURITY.md asks for are enough, and lacking one of them does no half work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from mqsweep import Sweeper
from support import snapshot
from support.rights import limited_url
from support.servers import Server
from support.ways import next_interval

BASE = b"emq:{orders}"
WRITES = ("lpush", "zadd", "srem", "hset", "lset", "ltrim", "pexpire", "xadd", "xtrim")


@pytest.fixture
def limited(server: Server, client: redis.Redis) -> Iterator[redis.Redis]:
    """A client of a user with just the rights of the page."""
    with limited_url(server, client), server.client(username="mqsweep", password="secret") as user:
        yield user


def fill(client: redis.Redis, *, marked: bool) -> None:
    """Stalled jobs of all fates, among living ones: recovered, failed, ghosts."""
    for number in range(60):
        job_id = b"%d" % number
        client.lpush(BASE + b":active", job_id)
        if number % 3 == 2:
            client.set(BASE + b":" + job_id + b":lock", b"token")
            continue
        if marked:
            client.sadd(BASE + b":stalled", job_id)
        if number % 10:
            client.hset(
                BASE + b":" + job_id, mapping={"timestamp": "1", "stc": str(number % 2), "opts": '{"attempts":5}'}
            )
    client.hset(BASE + b":meta", "concurrency", "100")


def test_rights_of_the_page_are_enough(client: redis.Redis, limited: redis.Redis, engine: str) -> None:
    fill(client, marked=False)
    with Sweeper(limited, "orders", engine=engine) as sweeper:
        assert sweeper.exists()
        assert len(sweeper.inspect().jobs) == 40
        assert sweeper.sweep().status == "swept"
        next_interval(client, BASE)
        report = sweeper.sweep()
    assert report.recovered
    assert report.failed
    assert client.xlen(BASE + b":events") > 0
    assert client.zrange(BASE + b":marker", 0, -1) == [b"0"]


@pytest.mark.parametrize("missing", WRITES)
def test_a_missing_right_leaves_nothing_half_done(
    client: redis.Redis, limited: redis.Redis, engine: str, missing: str
) -> None:
    fill(client, marked=True)
    anything: Any = client
    anything.execute_command("ACL", "SETUSER", "mqsweep", f"-{missing}")
    before = snapshot.settled(snapshot.dump(client, BASE))
    with Sweeper(limited, "orders", engine=engine) as sweeper:
        if missing in ("xadd", "xtrim"):  # an event that cannot be written holds no job up
            assert sweeper.sweep().recovered
            return
        if missing == "pexpire" and engine == "script":  # it never renews a lease
            return
        with pytest.raises(redis.exceptions.NoPermissionError):
            sweeper.sweep()
    assert snapshot.settled(snapshot.dump(client, BASE)) == before


def test_full_memory_leaves_nothing_half_done(client: redis.Redis, engine: str) -> None:
    fill(client, marked=True)
    before = snapshot.settled(snapshot.dump(client, BASE))
    client.config_set("maxmemory", "1")
    try:
        with Sweeper(client, "orders", engine=engine) as sweeper, pytest.raises(redis.exceptions.OutOfMemoryError):
            sweeper.sweep()
    finally:
        client.config_set("maxmemory", "0")
    assert snapshot.settled(snapshot.dump(client, BASE)) == before
