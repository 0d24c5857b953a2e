"""The demo's queue: filled, copied, and counted at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .worker import POISON

CHUNK = 1000
PLACES = ("wait", "active", "failed", "completed")

# The jobs of one queue for another, each with a lock that stands if it has one now.
_COPY = """
local from, to = ARGV[1], ARGV[2]
for i = 3, #ARGV do
  local job, copy = from .. ':' .. ARGV[i], to .. ':' .. ARGV[i]
  redis.call('COPY', job, copy)
  if redis.call('EXISTS', job .. ':lock') == 1 then redis.call('SET', copy .. ':lock', 'copy') end
end
"""


def chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """The ids in parts that one command can take."""
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))


@dataclass(frozen=True)
class Census:
    """Where the jobs are, all of them counted.

    Attributes:
        places: how many ids lie in each list or set.
        lost: ids that are nowhere.
        twice: ids that are in more than one place, or more than once in one.
        redone: ids that were completed more than once.
        strangers: ids that never were a job.
    """

    places: dict[str, int]
    lost: int
    twice: int
    redone: int
    strangers: int

    @property
    def right(self) -> bool:
        """Whether every id is exactly once in one place, and no job was completed twice."""
        return not (self.lost or self.twice or self.redone or self.strangers)


class Jobs:
    """An EchoMQ queue with this many jobs.

    Args:
        client: of the scene's server.
        name: of the queue.
        active: how many jobs the workers will take, the poison job among them.
        waiting: how many will be left in wait.
    """

    def __init__(self, client: Any, name: str, active: int, waiting: int) -> None:
        self._client = client
        self.name = name
        self.base = f"emq:{{{name}}}"
        self.waiting = [str(active + i) for i in range(waiting)]
        self.ids = [POISON, *map(str, range(1, active)), *self.waiting]

    def key(self, name: str) -> str:
        """A key of the queue."""
        return f"{self.base}:{name}"

    def fill(self, attempts: int) -> None:
        """Put all jobs into wait, the poison job first; it may be attempted so many times."""
        for part in chunks(self.ids):
            pipe = self._client.pipeline(transaction=False)
            for job_id in part:
                options = {"attempts": attempts} if job_id == POISON else {}
                fields = {"name": "demo", "data": "{}", "opts": json.dumps(options), "timestamp": 0}
                pipe.hset(self.key(job_id), mapping=fields)
            pipe.lpush(self.key("wait"), *part)
            pipe.execute()

    def copy_of(self, other: Jobs) -> None:
        """Become what the other queue is at this moment."""
        for name in ("wait", "active", "stalled"):
            self._client.copy(other.key(name), self.key(name))
        for part in chunks(other.ids):
            self._client.eval(_COPY, 0, other.base, self.base, *part)

    def locks(self) -> int:
        """How many jobs have a lock."""
        pipe = self._client.pipeline(transaction=False)
        for part in chunks(self.ids):
            pipe.exists(*(self.key(f"{job_id}:lock") for job_id in part))
        return sum(pipe.execute())

    def marks(self) -> int:
        """How many jobs are marked."""
        return int(self._client.scard(self.key("stalled")))

    def at_front(self) -> list[str]:
        """The ids that will be taken next, as many as were left in wait at the beginning, the next one first."""
        ids = self._client.lrange(self.key("wait"), -len(self.waiting), -1)
        return [job_id.decode() for job_id in reversed(ids)]

    def next_sweep(self) -> float:
        """Seconds until the next sweep may begin."""
        return max(0, int(self._client.pttl(self.key("stalled-check")))) / 1000

    def census(self) -> Census:
        """Look for every job in every place."""
        wait, active = (self._client.lrange(self.key(name), 0, -1) for name in ("wait", "active"))
        failed, completed = (self._client.zrange(self.key(name), 0, -1) for name in ("failed", "completed"))
        found = dict(zip(PLACES, (wait, active, failed, completed), strict=True))
        seen = Counter(job_id.decode() for ids in found.values() for job_id in ids)
        done = dict(zip(self.ids, self._completions(), strict=True))
        return Census(
            places={name: len(ids) for name, ids in found.items()},
            lost=sum(seen[job_id] == 0 for job_id in self.ids),
            twice=sum(n > 1 for n in seen.values()),
            redone=sum(n > 1 for n in done.values()),
            strangers=len(set(seen) - set(self.ids)),
        )

    def _completions(self) -> Iterator[int]:
        for part in chunks(self.ids):
            pipe = self._client.pipeline(transaction=False)
            for job_id in part:
                pipe.hget(self.key(job_id), "completions")
            yield from (int(value or 0) for value in pipe.execute())
