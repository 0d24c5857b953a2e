"""A worker process: takes jobs, holds their locks, renews them half-way, finishes them when told to.

It works as EchoMQ's workers do, many jobs at a time: after a pause it sets its locks again and takes the marks
back. Commands come on stdin, each is answered with one line: ``take N``, ``finish N``.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import deque
from typing import Any, NamedTuple

import redis

POISON = "poison"
CHUNK = 500

# From the right end of wait to the head of active, with a lock each.
_TAKE = """
local base, token, ttl, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ids = {}
for i = 1, tonumber(ARGV[5]) do
  local id = redis.call('LMOVE', base .. ':wait', base .. ':active', 'RIGHT', 'LEFT')
  if not id then break end
  redis.call('SET', base .. ':' .. id .. ':lock', token, 'PX', ttl)
  redis.call('HSET', base .. ':' .. id, 'pb', token, 'processedOn', now)
  redis.call('HINCRBY', base .. ':' .. id, 'ats', 1)
  ids[i] = id
end
return ids
"""

# A job is finished by whoever holds its lock, and by nobody else.
_FINISH = """
local base, token, now = ARGV[1], ARGV[2], ARGV[3]
local finished = 0
for i = 4, #ARGV do
  local id = ARGV[i]
  local lock = base .. ':' .. id .. ':lock'
  if redis.call('GET', lock) == token and redis.call('LREM', base .. ':active', -1, id) == 1 then
    redis.call('DEL', lock)
    redis.call('SREM', base .. ':stalled', id)
    redis.call('ZADD', base .. ':completed', now, id)
    redis.call('HINCRBY', base .. ':' .. id, 'completions', 1)
    finished = finished + 1
  end
end
return finished
"""


class Portion(NamedTuple):
    """Some of the jobs in hand.

    Attributes:
        ids: of the jobs.
        renewal: the bytes that renew their locks, made once.
        replies: how many come back.
    """

    ids: list[str]
    renewal: list[bytes]
    replies: int


class Worker:
    """Holds many jobs.

    Args:
        socket: of the server.
        base: the queue's base.
        name: of this worker; also its token.
        ttl: milliseconds that a lock lives.
    """

    def __init__(self, socket: str, base: str, name: str, ttl: int) -> None:
        self._client: Any = redis.Redis(unix_socket_path=socket, decode_responses=True, protocol=2, socket_timeout=None)
        self._connection: Any = self._client.connection_pool.get_connection()
        self._base, self._name, self._ttl = base, name, ttl
        self._held: deque[Portion] = deque()
        self.due = 0.0

    def take(self, most: int) -> int:
        """Take jobs from wait. A poison job ends the process that runs it."""
        self.due = self.due or time.monotonic() + self._ttl / 2000
        taken = 0
        while taken < most:
            now = round(time.time() * 1000)
            want = min(CHUNK, most - taken)
            ids = self._client.eval(_TAKE, 0, self._base, self._name, self._ttl, now, want)
            if POISON in ids:
                os.kill(os.getpid(), signal.SIGKILL)
            if ids:
                self._held.append(self._portion(ids))
            taken += len(ids)
            if len(ids) < want:
                break
            self._renew_if_due()
        return taken

    def _portion(self, ids: list[str]) -> Portion:
        commands: list[tuple[object, ...]] = [
            ("SET", f"{self._base}:{job_id}:lock", self._name, "PX", self._ttl) for job_id in ids
        ]
        commands.append(("SREM", f"{self._base}:stalled", *ids))
        return Portion(ids, self._connection.pack_commands(commands), len(commands))

    def renew(self) -> None:
        """Set all locks again, and take the marks of these jobs back."""
        self.due = time.monotonic() + self._ttl / 2000
        for portion in self._held:
            self._send(portion)

    def _send(self, portion: Portion) -> None:
        self._connection.send_packed_command(portion.renewal, check_health=False)
        for _ in range(portion.replies):
            self._connection.read_response()

    def _renew_if_due(self) -> None:
        if time.monotonic() > self.due:
            self.renew()

    def finish(self, most: int) -> int:
        """Finish jobs in hand that are still ours, the oldest first; all of a portion at a time."""
        tried = finished = 0
        while self._held and tried < most:
            self._renew_if_due()
            portion = self._held.popleft()
            self._send(portion)
            for start in range(0, len(portion.ids), CHUNK // 5):
                ids = portion.ids[start : start + CHUNK // 5]
                finished += self._client.eval(_FINISH, 0, self._base, self._name, round(time.time() * 1000), *ids)
            tried += len(portion.ids)
        return finished


def main() -> None:
    """Obey until stdin ends."""
    socket, base, name, ttl = sys.argv[1:]
    worker = Worker(socket, base, name, int(ttl))
    while True:
        patience = max(0.0, worker.due - time.monotonic()) if worker.due else None
        readable, _, _ = select.select([sys.stdin], [], [], patience)
        if not readable:
            worker.renew()
            continue
        word, _, number = sys.stdin.readline().strip().partition(" ")
        if not word:
            return
        done = (worker.take if word == "take" else worker.finish)(int(number))
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
