"""Looking without touching: what `inspect` says of each stalled job, and who holds the lease."""

from __future__ import annotations

import pytest
import redis

from mqsweep import Sweeper
from support import snapshot
from support.ways import BASES

BASE = BASES["echomq"]


def put(client: redis.Redis, base: bytes, job_id: bytes, **fields: str) -> None:
    """A stalled job."""
    client.lpush(base + b":active", job_id)
    client.hset(base + b":" + job_id, mapping={"timestamp": "1700000000000", **fields})


@pytest.mark.parametrize(
    ("fields", "past"),
    [
        ({}, False),
        ({"stc": "1"}, True),
        ({"atm": "1", "opts": '{"attempts":3}'}, False),
        ({"atm": "2", "opts": '{"attempts":3}'}, True),
        ({"atm": "3"}, True),  # the sweeper's own max_attempts
        ({"atm": "3", "opts": '{"attempts":0}'}, True),
        ({"atm": "3", "opts": "{broken"}, True),
        ({"atm": "3", "opts": '["attempts"]'}, True),
        ({"atm": "3", "opts": '{"attempts":9}'}, False),
        ({"atm": "many"}, False),
    ],
)
def test_tells_what_the_next_recovery_would_fail(client: redis.Redis, fields: dict[str, str], past: bool) -> None:
    """And the next recovery does so."""
    put(client, BASE, b"1", **fields)
    client.sadd(BASE + b":stalled", b"1")
    with Sweeper(client, "q", max_attempts=4) as sweeper:
        assert [job.past_ceiling for job in sweeper.inspect().jobs] == [past]
        report = sweeper.sweep()
    if fields.get("atm") != "many":
        assert (report.failed == ("1",)) is past


def test_bullmq_knows_no_ceiling_of_attempts(client: redis.Redis) -> None:
    put(client, BASES["bullmq"], b"1", atm="9", opts='{"attempts":1}')
    with Sweeper(client, "q", dialect="bullmq") as sweeper:
        assert [job.past_ceiling for job in sweeper.inspect().jobs] == [False]


def test_changes_nothing(client: redis.Redis, engine: str) -> None:
    for number in range(300):
        put(client, BASE, b"%d" % number)
    client.sadd(BASE + b":stalled", b"1", b"stray")
    before = snapshot.dump(client, BASE)
    with Sweeper(client, "q", engine=engine) as sweeper:
        seen = sweeper.inspect()
    assert snapshot.dump(client, BASE) == before
    assert (len(seen.jobs), seen.strays, seen.holder) == (300, ("stray",), None)
    assert [job.id for job in seen.jobs if job.marked] == ["1"]
    assert [job.distance for job in seen.jobs] == list(range(1, 301))


def test_throttled_report_says_who_holds_the_lease(client: redis.Redis, engine: str) -> None:
    client.set(BASE + b":stalled-check", b"mqsweep:host-1:7:00", px=5000)
    with Sweeper(client, "q", engine=engine) as sweeper:
        report = sweeper.sweep()
        assert sweeper.inspect().holder == "mqsweep:host-1:7:00"
    assert (report.status, report.holder) == ("throttled", "mqsweep:host-1:7:00")
    assert report.retry_after is not None
    assert 0 < report.retry_after <= 5
