"""The engines and BullMQ's own script on the same data, with pytest-benchmark: make bench.

MQSWEEP_BENCH_JOBS sets how many jobs are active (20,000). Larger queues, more measures: mqsweep bench.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from mqsweep import ConfigurationError, Sweeper
from support import oracle
from support.servers import KINDS, start_server

JOBS = int(os.environ.get("MQSWEEP_BENCH_JOBS", "20000"))
BASE = b"bull:q"
FILL = """
for i = 2, #ARGV do
  local id, job = ARGV[i], KEYS[1] .. ':' .. ARGV[i]
  redis.call('LPUSH', KEYS[1] .. ':active', id)
  if ARGV[1] ~= '0' and tonumber(id) % tonumber(ARGV[1]) == 0 then
    redis.call('HSET', job, 'name', 'paint', 'data', '{}', 'opts', '{}', 'timestamp', '1700000000000', 'ats', '1')
    redis.call('SADD', KEYS[1] .. ':stalled', id)
  else
    redis.call('SET', job .. ':lock', '0123456789abcdef0123456789abcdef:1', 'PX', 100000000)
  end
end
"""


@pytest.fixture(scope="module", params=KINDS)
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client of a private server, each kind in turn."""
    with start_server(request.param) as server, server.client(socket_timeout=None) as client:
        yield client


def fill(client: redis.Redis, every: int) -> None:
    """JOBS active jobs, of which every so many is dead and marked (0: none)."""
    client.flushall()
    script = client.register_script(FILL)
    for start in range(1, JOBS + 1, 5000):
        script(keys=[BASE], args=[every, *range(start, min(start + 5000, JOBS + 1))])


def checker(client: redis.Redis, contender: str) -> tuple[Callable[[], Any], Callable[[], None]]:
    """What makes one stalled check, and what closes it."""
    if contender == "bullmq":
        return lambda: oracle.run_oracle(client, BASE, 1, 30_000, round(time.time() * 1000)), lambda: None
    try:
        sweeper = Sweeper(client, "q", dialect="bullmq", engine=contender)
    except ConfigurationError as error:
        pytest.skip(str(error))
    return lambda: sweeper.sweep().stalled, sweeper.close


@pytest.mark.parametrize("contender", ["rust", "python", "script", "bullmq"])
@pytest.mark.parametrize("every", [0, 100, 10], ids=["0 dead", "1 % dead", "10 % dead"])
def test_stalled_check(benchmark: Any, client: redis.Redis, every: int, contender: str) -> None:
    check, close = checker(client, contender)
    benchmark.group = f"{JOBS:,} active, {every and JOBS // every:,} dead"
    stalled = benchmark.pedantic(check, setup=lambda: fill(client, every), rounds=3)
    close()
    assert len(stalled) == (JOBS // every if every else 0)
    assert client.llen(BASE + b":active") + client.llen(BASE + b":wait") == JOBS
