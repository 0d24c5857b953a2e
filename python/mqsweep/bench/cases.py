"""What is measured: a queue with so many active jobs, and how to see afterwards that none was lost."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from ..errors import ConfigurationError
from ..keys import QueueKeys

IdKind = Literal["int", "uuid"]
Marks = Literal["renewed", "standing"]

CHUNK = 1000
LOCK_MS = 86_400_000
QUEUE = "bench"
OWN = ("wait", "active", "stalled", "stalled-check", "meta", "events", "marker", "bystander")
"""Keys that a run leaves besides those of its jobs."""
JOB_BYTES = 600
"""What a job with its lock takes on the server, roughly and rather too much."""

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}

# ARGV: base, lock's TTL, now, for each id one digit (1 = its worker lives), ids. Oldest first, as workers take them.
# A dead job looks as BullMQ's workers leave it at pick-up. The hash of a living one is read by nobody, so it has none:
# that halves the filling, and if anything it favours the checks in one call, which suffer most from a larger memory.
_FILL = """
local base, ttl, now, living = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ids = {unpack(ARGV, 5)}
for i, id in ipairs(ids) do
  local key = base .. ':' .. id
  if string.byte(living, i) == 49 then
    redis.call('SET', key .. ':lock', '7f3c1d52-9a04-4b7e-8f26-0f6f1c2b9d3e:' .. i % 16, 'PX', ttl)
  else
    redis.call('HSET', key, 'name', 'send', 'data', '{"to":"someone@example.com","template":"welcome","tries":[1,2]}',
      'opts', '{"attempts":3,"backoff":{"type":"exponential","delay":1000}}', 'timestamp', now, 'delay', '0',
      'priority', '0', 'processedOn', now, 'ats', '1', 'pb', 'worker-' .. i % 16)
  end
end
redis.call('LPUSH', base .. ':active', unpack(ids))
"""


def number(text: str) -> int:
    """A size: ``20000``, ``20_000``, ``100k``, ``1m``, ``2.5m``.

    Raises:
        ConfigurationError: no such thing.
    """
    found = re.fullmatch(r"(\d[\d_]*(?:\.\d+)?)([km]?)", text.strip().lower())
    value = float(found[1]) * _UNITS[found[2]] if found else 0.5
    if value != int(value):
        raise ConfigurationError(f"{text!r} is no number of jobs; write 20000, 100k or 1m")
    return int(value)


def dead_of(text: str, active: int) -> int:
    """How many of so many active jobs are dead: ``0``, ``1%``, ``100%``, or a number as in `number`.

    Raises:
        ConfigurationError: no such thing, or more than there are.
    """
    share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    dead = round(active * float(share[1]) / 100) if share else number(text)
    if dead > active:
        raise ConfigurationError(f"dead={text!r}: more than the {active:,} active jobs")
    return dead


@dataclass(frozen=True)
class Case:
    """One queue.

    Attributes:
        active: jobs in active.
        dead: how many of them have no lock; they are marked, and spread evenly over the list.
        ids: ``int`` or ``uuid``.
        marks: of the living: ``renewed``, they have none, since every worker renewed since the last check (the best
            case for a check that clears all marks); ``standing``, every id is still marked.
        seed: of the ids.
    """

    active: int
    dead: int
    ids: IdKind = "int"
    marks: Marks = "renewed"
    seed: int = 1

    @property
    def title(self) -> str:
        """In words."""
        share = 100 * self.dead / self.active
        dead = "all dead" if share == 100 else f"{self.dead:,} dead ({share:.3g} %)" if self.dead else "0 dead"
        return f"{self.active:,} active, {dead}, ids {self.ids}, marks {self.marks}"


class Jobs:
    """The jobs of a case, the same for every contender.

    Args:
        case: which.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        chance = random.Random(case.seed)
        draw = _uuids(chance) if case.ids == "uuid" else map(str, range(1, case.active + 1))
        self.ids = list(islice(draw, case.active))

    def _is_dead(self, index: int) -> bool:
        active, dead = self.case.active, self.case.dead
        return (index + 1) * dead // active > index * dead // active

    @property
    def dead(self) -> list[str]:
        """The ids without a lock, oldest first."""
        return [job_id for i, job_id in enumerate(self.ids) if self._is_dead(i)]

    def fill(self, client: Any, keys: QueueKeys, progress: Callable[[int], object] = lambda done: None) -> None:
        """Make the queue. Its keys must not exist yet.

        Args:
            client: of the server.
            keys: of the queue.
            progress: told how many jobs are there.
        """
        now = 1_700_000_000_000
        client.hset(keys.of("meta"), mapping={"opts.maxLenEvents": 10_000, "version": "bullmq:6.2.0"})
        script = client.register_script(_FILL)
        for start in range(0, len(self.ids), CHUNK):
            ids = self.ids[start : start + CHUNK]
            living = "".join("01"[not self._is_dead(start + i)] for i in range(len(ids)))
            script(args=[keys.base, LOCK_MS, now, living, *ids])
            progress(start + len(ids))
        marked = self.dead if self.case.marks == "renewed" else self.ids
        for part in parts(marked):
            client.sadd(keys.of("stalled"), *part)

    def remove(self, client: Any, keys: QueueKeys) -> None:
        """Take away all that a run left: by name, so that nothing else on the server is looked at."""
        client.unlink(*(keys.of(name) for name in OWN))
        for part in parts(self.ids):
            names = [job_id.encode() for job_id in part]
            client.unlink(*map(keys.job, names), *map(keys.lock, names))

    def complaint(self, client: Any, keys: QueueKeys) -> str:
        """What is wrong after a sweep; empty when every id is exactly where it belongs and every counter is right."""
        dead = set(self.dead)
        living = set(self.ids) - dead
        said = []
        for name, expected in (("active", living), ("wait", dead)):
            found = [job_id.decode() for job_id in _elements(client, keys.of(name))]
            faults = {
                "missing from": len(expected.difference(found)),
                "twice in": len(found) - len(set(found)),
                "strange in": len(set(found) - expected),
            }
            said += [f"{count:,} {what} {name}" for what, count in faults.items() if count]
        wrong = sum(
            fields != [b"1", None]
            for part in parts(self.dead)
            for fields in _fields(client, [keys.job(i.encode()) for i in part])
        )
        return ", ".join([*said, *([f"{wrong:,} counters wrong"] if wrong else [])])


def parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """The ids in parts that one command can take."""
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))


def _uuids(chance: random.Random) -> Iterator[str]:
    while True:
        h = f"{chance.getrandbits(128):032x}"
        yield f"{h[:8]}-{h[8:12]}-4{h[13:16]}-a{h[17:20]}-{h[20:]}"


def _elements(client: Any, key: bytes) -> Iterator[bytes]:
    start = 0
    while found := client.lrange(key, start, start + 10 * CHUNK - 1):
        yield from found
        start += len(found)


def _fields(client: Any, keys: Sequence[bytes]) -> Any:
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.hmget(key, "stc", "defa")
    return pipe.execute()
