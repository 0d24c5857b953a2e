"""A queue's keys out of a server and into it, in the form the reference model uses.

Left out everywhere is ``stalled-check``: whose value and TTL belong to the lease, with tests of its own.
"""

from __future__ import annotations

from collections import Counter
from reprlib import Repr
from typing import Any

import redis

from support.model import Hash, Keys, State, Stream, Value, ZSet

LEASE = b"stalled-check"
_LOCK_TTL_MS = 3_600_000  # no lock lapses by itself while a test runs


def write(client: redis.Redis, base: bytes, state: State) -> None:
    """Put a state on a server, under ``<base>:``."""
    pipe = client.pipeline(transaction=False)
    for suffix, value in state.keys.items():
        _write_key(pipe, base + b":" + suffix, value)
    pipe.execute()


def _write_key(pipe: Any, key: bytes, value: Value) -> None:
    if isinstance(value, bytes):
        pipe.set(key, value, px=_LOCK_TTL_MS if key.endswith(b":lock") else None)
    elif isinstance(value, Stream):
        if not value:  # one that was trimmed to nothing is still there
            pipe.xgroup_create(key, "g", mkstream=True)
            pipe.xgroup_destroy(key, "g")
        for entry in value:
            pipe.execute_command("XADD", key, "*", *entry)
    elif isinstance(value, list):
        pipe.rpush(key, *value)
    elif isinstance(value, set):
        pipe.sadd(key, *value)
    elif isinstance(value, ZSet):
        pipe.zadd(key, value)
    else:
        pipe.hset(key, mapping=value)


def dump(client: redis.Redis, base: bytes) -> Keys:
    """Every key under ``<base>:`` but the lease, by what follows the colon.

    Raises:
        AssertionError: the database holds keys of anybody else, or of a type no queue has.
    """
    everything: Any = client.keys("*")
    keys: list[bytes] = sorted(everything)
    strangers = [key for key in keys if not key.startswith(base + b":")]
    assert not strangers, f"keys outside of {base!r}: {strangers!r}"
    keys = [key for key in keys if key != base + b":" + LEASE]
    pipe: Any = client.pipeline(transaction=False)
    for key in keys:
        pipe.type(key)
    types = pipe.execute()
    for key, kind in zip(keys, types, strict=True):
        pipe.execute_command(*_READ[kind](key))
    replies = pipe.execute()
    return {key[len(base) + 1 :]: _SHAPE[kind](reply) for key, kind, reply in zip(keys, types, replies, strict=True)}


_READ: dict[bytes, Any] = {
    b"string": lambda key: ("GET", key),
    b"list": lambda key: ("LRANGE", key, 0, -1),
    b"set": lambda key: ("SMEMBERS", key),
    b"zset": lambda key: ("ZRANGE", key, 0, -1, "WITHSCORES"),
    b"hash": lambda key: ("HGETALL", key),
    b"stream": lambda key: ("XRANGE", key, "-", "+"),
}


def _pairs(reply: Any) -> Hash:
    # The library hands out a dict, or the flat list that the protocol carries.
    if isinstance(reply, dict):
        return reply
    return dict(zip(reply[::2], reply[1::2], strict=True))


_SHAPE: dict[bytes, Any] = {
    b"string": bytes,
    b"list": list,
    b"set": set,
    b"zset": lambda reply: ZSet({m: float(s) for m, s in reply}),
    b"hash": _pairs,
    b"stream": lambda reply: Stream(tuple(part for pair in fields.items() for part in pair) for _, fields in reply),
}


def settled(keys: Keys) -> dict[bytes, object]:
    """The keys in the form in which two queues are the same.

    The order inside ``active`` means nothing to anybody, and the lease is nobody's business here.
    """
    out: dict[bytes, object] = {name: value for name, value in keys.items() if name != LEASE}
    active = out.get(b"active")
    if isinstance(active, list):
        out[b"active"] = Counter(active)
    return out


def assert_same(found: dict[str, object], wanted: dict[str, object]) -> None:
    """Compare two of them, naming only what differs, and cut: some ids are 70,000 bytes long."""
    brief = Repr()
    brief.maxother = brief.maxstring = 1_000
    brief.maxdict = brief.maxlist = brief.maxset = brief.maxtuple = 40
    wrong = [
        f"{name}:\n  found  {brief.repr(found.get(name))}\n  wanted {brief.repr(wanted.get(name))}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def fix_times(keys: Keys, before: State, since_ms: int, until_ms: int, now_ms: int) -> None:
    """Replace the times of those that failed since ``before`` by ``now_ms``, in place.

    Whoever reads the server's clock cannot be told what to find there; but the score in ``failed``
    and ``finishedOn`` of the job must be the same instant, within the sweep.
    """
    failed = keys.get(b"failed")
    if not isinstance(failed, ZSet):
        return
    for job_id, score in failed.items():
        if job_id not in before.scores(b"failed") and since_ms <= score <= until_ms:
            job = keys.get(job_id)
            assert isinstance(job, dict) and not isinstance(job, ZSet), job_id
            assert job.get(b"finishedOn") == b"%d" % score, (job_id, score, job)
            failed[job_id] = float(now_ms)
            job[b"finishedOn"] = b"%d" % now_ms


def server_ms(client: redis.Redis) -> int:
    """The server's clock, in milliseconds."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000
