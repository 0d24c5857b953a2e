"""Who is measured. Each does the same: recover what is marked and has no lock, of one BullMQ queue."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from .. import engine as engines
from ..authority import Authority
from ..connect import Link, Source
from ..dialects import Policy, base_of, dialect_of
from ..drive import Commands, Steps, drive
from ..errors import ConfigurationError
from ..keys import QueueKeys
from ..lease import new_token, sweeping_ttl, take_commands
from ..plan import decide
from ..scan import Sightings, Stalled
from ..script import script_source
from ..sweeper import Sweeper
from . import BenchError
from .cases import QUEUE, Case

NAMES = ("rust", "python", "idiom", "script", "bullmq")
ONE_CALL = ("script", "bullmq")
"""Those that hold the server from beginning to end."""
MEANINGS = {
    "rust": "mqsweep, engine rust",
    "python": "mqsweep, engine python",
    "idiom": "the same sweep with its scan written as one would with redis-py's pipelines",
    "script": "mqsweep, engine script: the whole sweep in one call",
    "bullmq": "BullMQ's own stalled check, from its Python package, called once",
}

_INTERVAL_MS = 30_000
_BULLMQ_KEYS = ("stalled", "wait", "active", "stalled-check", "meta", "paused", "marker", "events", "repeat")
_WINDOW, _CHECK = 1000, 100

Work = Callable[[], int]
"""Does the sweep, and says how many jobs it recovered."""


@dataclass(frozen=True)
class Target:
    """The queue to sweep.

    Attributes:
        client: of its server.
        prefix: first part of its keys.
    """

    client: redis.Redis
    prefix: str

    @property
    def keys(self) -> QueueKeys:
        """Of the queue."""
        return queue_keys(self.prefix)


def queue_keys(prefix: str) -> QueueKeys:
    """The keys of the queue that is measured."""
    return base_of(dialect_of("bullmq"), QUEUE, prefix, None)


def lacking(name: str) -> str | None:
    """Why a contender cannot take part here; ``None`` when it can."""
    try:
        if name == "rust":
            engines.choose("rust")
        if name == "bullmq":
            bullmq_script()
    except (ConfigurationError, BenchError) as fault:
        return str(fault)
    return None


def expected(name: str, case: Case) -> float:
    """Seconds that a contender is likely to take, from measurements; good enough to announce it."""
    marks = case.dead if case.marks == "renewed" else case.active
    width = 1.6 if case.ids == "uuid" else 1.0
    if name == "bullmq":
        searched = case.dead * (case.active - case.dead / 2)  # the list gets shorter on the way
        return width * (1.5e-6 * case.active + 5e-6 * marks + 12e-9 * searched)
    each = {"idiom": 5e-6}.get(name, 2e-6)
    return width * (each * case.active + 6e-6 * marks) + 40e-6 * case.dead


def prepare(name: str, target: Target) -> Work:
    """Make a contender ready: scripts are on the server, as they are in the long run, and no connection is open.

    Raises:
        BenchError, ConfigurationError: it cannot take part.
    """
    match name:
        case "bullmq":
            work = _bullmq(target)
        case "idiom":
            work = _idiom(target)
        case _:
            work = _engine(name, target)
    target.client.connection_pool.disconnect()
    return work


def _engine(name: str, target: Target) -> Work:
    target.client.script_load(script_source())
    sweeper = Sweeper(target.client, QUEUE, dialect="bullmq", prefix=target.prefix, engine=name, timeout=3600)

    def work() -> int:
        report = sweeper.sweep()
        if report.status != "swept":
            raise BenchError(f"the sweep ended as {report.status}")
        return len(report.recovered)

    return work


def bullmq_script() -> str:
    """BullMQ's stalled check, read where its package keeps it.

    Raises:
        BenchError: the package is not installed, or its script is of another form.
    """
    # located, not imported: its modules pull in much that is not needed here
    spec = importlib.util.find_spec("bullmq")
    if spec is None or not spec.submodule_search_locations:
        raise BenchError("the package bullmq is not installed: pip install 'mqsweep[bench]'")
    folder = Path(spec.submodule_search_locations[0]) / "commands"
    found = folder / f"moveStalledJobsToWait-{len(_BULLMQ_KEYS)}.lua"
    if not found.is_file():
        raise BenchError("the installed bullmq has another stalled check: pip install -U 'mqsweep[bench]'")
    return found.read_text("utf-8")


def _bullmq(target: Target) -> Work:
    keys = [target.keys.of(name) for name in _BULLMQ_KEYS]
    client: Any = target.client
    digest = client.script_load(bullmq_script())
    arguments = (1, target.keys.base + b":", 1_700_000_100_000, _INTERVAL_MS)
    return lambda: len(client.evalsha(digest, len(keys), *keys, *arguments))


def _idiom(target: Target) -> Work:
    """Lease, plan and authority are mqsweep's own: only the scan differs, so that the two compare."""
    target.client.script_load(script_source())
    keys, token = target.keys, new_token()
    source = Source(target.client, keys, 3600)
    policy = Policy("bullmq", "lockless", "front", 1)

    def steps() -> Steps[int]:
        taken, *_ = yield Commands(take_commands(keys, token, _INTERVAL_MS / 1000))
        if not taken:
            raise BenchError("the lease was not free")
        seen = look(target.client, keys)
        authority = Authority(keys, policy, token, ttl=sweeping_ttl(30), max_pause=0.005, exceptions=source.exceptions)
        yield from authority.apply(decide(seen, policy, hold=False))
        yield from authority.expire(_INTERVAL_MS)
        return len(authority.outcome.stalled) - len(authority.outcome.failed)

    def work() -> int:
        with Link(source) as link:
            return drive(steps(), link)

    return work


def look(client: Any, keys: QueueKeys) -> Sightings:
    """A scan as one would write it: windows of 1,000, and locks asked for 100 at a time, by pipelines.

    A window is asked for together with the locks of the one before.
    """
    marks = list(client.sscan_iter(keys.of("stalled"), count=_WINDOW))
    candidates = {
        job_id
        for start in range(0, len(marks), _WINDOW)
        for job_id in _lockless(client, keys, marks[start : start + _WINDOW])[0]
    }
    left = client.llen(keys.of("active"))
    lockless: dict[bytes, set[int]] = {}
    met: set[bytes] = set()
    scanned, window = 0, client.lrange(keys.of("active"), -left, -max(1, left - _WINDOW + 1)) if left else []
    while window:
        high, left = left, max(0, left - _WINDOW)
        dead, following = _lockless(client, keys, window, (left, max(1, left - _WINDOW + 1)) if left else None)
        if dead:
            gone = set(dead)
            low = max(1, high - _WINDOW + 1)
            for index, job_id in enumerate(reversed(window)):
                if job_id in gone:
                    lockless.setdefault(job_id, set()).add(low + index)
        if candidates:
            met.update(candidates.intersection(window))
        scanned += len(window)
        window = following
    stalled = [(i, tuple(sorted(where)), i in candidates) for i, where in lockless.items()]
    stalled.sort(key=lambda sight: sight[1][0])
    locked = [i for i in marks if i not in candidates]
    return Sightings(Stalled.of(stalled), locked, [i for i in candidates if i not in met], scanned, len(marks))


def _lockless(
    client: Any, keys: QueueKeys, ids: list[bytes], following: tuple[int, int] | None = None
) -> tuple[list[bytes], list[bytes]]:
    """Those of the ids that have no lock; and the window that follows, where one is asked for."""
    groups = [ids[start : start + _CHECK] for start in range(0, len(ids), _CHECK)]
    pipe = client.pipeline(transaction=False)
    for group in groups:
        pipe.exists(*[keys.lock(job_id) for job_id in group])
    if following:
        pipe.lrange(keys.of("active"), -following[0], -following[1])
    replies = pipe.execute()
    dead: list[bytes] = []
    unclear: list[bytes] = []
    for group, alive in zip(groups, replies, strict=False):
        if alive == 0:
            dead += group
        elif alive < len(group):
            unclear += group
    for job_id in unclear:
        pipe.exists(keys.lock(job_id))
    if unclear:
        dead += [job_id for job_id, alive in zip(unclear, pipe.execute(), strict=True) if not alive]
    return dead, replies[-1] if following else []
