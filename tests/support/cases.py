"""A queue in the state that somebody reported, and the few words that the tests of the field cases need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis

from mqsweep import Inspection, Sweeper, SweepReport
from support import snapshot
from support.ways import BASES, QUEUE, next_interval

LOCK_MS = 600_000

# ARGV: base, how many fields and values follow, these, ids. In one script: some tests have thousands.
_TAKE = """
local fields, count = {}, tonumber(ARGV[2])
for i = 1, count do fields[i] = ARGV[2 + i] end
for i = 3 + count, #ARGV do
  redis.call('HSET', ARGV[1] .. ':' .. ARGV[i], unpack(fields))
  redis.call('LPUSH', KEYS[1], ARGV[i])
end
"""

# ARGV: base, TTL, ids.
_LOCK = "for i = 3, #ARGV do redis.call('SET', ARGV[1] .. ':' .. ARGV[i] .. ':lock', 'token', 'PX', ARGV[2]) end"


class Case:
    """A queue and the engine that sweeps it.

    Args:
        client: replies in bytes.
        engine: ``python``, ``rust`` or ``script``.
        dialect: ``echomq`` or ``bullmq``.
    """

    def __init__(self, client: redis.Redis, engine: str, dialect: str) -> None:
        self.client: Any = client
        self.engine, self.dialect = engine, dialect
        self.base = BASES[dialect]
        self.tells = engine != "script"
        """Whether reports say more than status, recovered and failed."""

    def key(self, name: bytes | str) -> bytes:
        """A key of the queue."""
        return self.base + b":" + (name.encode() if isinstance(name, str) else name)

    def dead(self, *ids: bytes, **fields: str) -> None:
        """Jobs that a worker took and that have no lock; the first is the oldest."""
        given = [part for pair in {"name": "paint", "data": "{}", "ats": "1", **fields}.items() for part in pair]
        for start in range(0, len(ids), 5_000):
            chunk = ids[start : start + 5_000]
            self.client.eval(_TAKE, 1, self.key("active"), self.base, len(given), *given, *chunk)

    def alive(self, *ids: bytes, px: int = LOCK_MS, **fields: str) -> None:
        """Jobs that a living worker has."""
        self.dead(*ids, **fields)
        self.lock(*ids, px=px)

    def lock(self, *ids: bytes, px: int = LOCK_MS) -> None:
        """Set locks, as a worker does when it takes a job or renews."""
        for start in range(0, len(ids), 5_000):
            self.client.eval(_LOCK, 0, self.base, px, *ids[start : start + 5_000])

    def lapse(self, *ids: bytes) -> None:
        """What the end of their TTL does to locks."""
        self.client.delete(*(self.key(job_id + b":lock") for job_id in ids))

    def sweeper(self, **options: Any) -> Sweeper:
        """A sweeper of the queue."""
        return Sweeper(self.client, QUEUE, dialect=self.dialect, engine=self.engine, **options)

    def sweep(self, **options: Any) -> SweepReport:
        """One sweep by a new sweeper, an interval after the last."""
        next_interval(self.client, self.base)
        with self.sweeper(**options) as subject:
            return subject.sweep()

    def inspect(self, **options: Any) -> Inspection:
        """What an inspection says."""
        with self.sweeper(**options) as subject:
            return subject.inspect()

    def dump(self) -> snapshot.Keys:
        """Every key of the queue but the lease."""
        return snapshot.dump(self.client, self.base)

    def look(self, name: bytes | str) -> Any:
        """What stands under one key; ``None`` if nothing does."""
        return self.dump().get(name.encode() if isinstance(name, str) else name)

    def wait(self) -> list[bytes]:
        """Ids in wait, from left to right."""
        ids: list[bytes] = self.client.lrange(self.key("wait"), 0, -1)
        return ids

    def active(self) -> list[bytes]:
        """Ids in active, from head to tail."""
        ids: list[bytes] = self.client.lrange(self.key("active"), 0, -1)
        return ids

    def marks(self) -> set[bytes]:
        """Ids that are marked."""
        ids: set[bytes] = self.client.smembers(self.key("stalled"))
        return ids


def ids_of(count: int, start: int = 0) -> list[bytes]:
    """Ids of many jobs."""
    return [b"%d" % number for number in range(start, start + count)]


def names(ids: list[bytes]) -> tuple[str, ...]:
    """Ids as a report has them."""
    return tuple(i.decode() for i in ids)


def at_end_of_scan(act: Callable[[], object]) -> Callable[[Any], None]:
    """A progress callback that acts once, when a sweep has seen everything and written nothing yet."""
    done = []

    def on_progress(progress: Any) -> None:
        if progress.phase == "scan" and progress.done >= progress.total and not done:
            done.append(True)
            act()

    return on_progress


def commands(client: redis.Redis) -> dict[str, int]:
    """How often the server ran each command since `reset_commands`, those inside scripts included."""
    anything: Any = client
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in anything.info("commandstats").items()}


def reset_commands(client: redis.Redis) -> None:
    """Count commands from now on."""
    client.config_resetstat()


def writing(client: redis.Redis) -> set[str]:
    """Names of all commands that the server counts among those that write."""
    anything: Any = client
    names = anything.execute_command("ACL CAT", "write")
    return {name.lower() for name in names}


def until(ready: Callable[[], object], patience: float = 20.0, every: float = 0.002) -> None:
    """Poll every so many seconds, with a deadline."""
    deadline = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(every)
