"""The ways to sweep a queue: each engine through a ``Sweeper``, and the bare script."""

from __future__ import annotations

from typing import Any

import redis

from support.model import Outcome, Policy

QUEUE = "q"
BASES = {"echomq": b"emq:{q}", "bullmq": b"bull:q"}

_KEYS = ("stalled", "wait", "active", "failed", "stalled-check", "meta", "paused", "marker")

# What the whole-queue script can tell.
_SCRIPT_TELLS = ("status", "recovered", "failed", "stalled")


def next_interval(client: redis.Redis, base: bytes) -> None:
    """Let the next sweep begin now, as if the interval of the last one had passed.

    The lease is a key with a TTL, and its end is all that an interval is to the next sweep. Deleting it
    is that very moment; waiting for it would make every test as slow as an interval.
    """
    client.delete(base + b":stalled-check")


def sweeper(client: redis.Redis, engine: str, policy: Policy, **options: Any) -> Any:
    """A ``Sweeper`` of the queue ``q`` by this engine and policy."""
    from mqsweep import Sweeper

    given = {
        "mark": policy.mark,
        "requeue": policy.requeue,
        "max_stalled_count": policy.max_stalled_count,
        "max_attempts": policy.max_attempts,
        **({} if policy.bullmq_version is None else {"bullmq_version": policy.bullmq_version}),
        **options,
    }
    return Sweeper(client, QUEUE, dialect=policy.dialect, engine=engine, **given)


def script_keys(base: bytes) -> list[bytes]:
    """The script's KEYS[1..8]."""
    return [base + b":" + name.encode() for name in _KEYS]


def bare_script(
    client: redis.Redis,
    base: bytes,
    *,
    max_stalled: int = 1,
    now_ms: int = 0,
    interval_ms: int | None = None,
    trailing: bytes = b"",
) -> tuple[list[bytes], list[bytes]]:
    """The script as any language calls it: three arguments, or four. Replies failed and recovered ids."""
    from mqsweep.script import script_source

    anything: Any = client
    last = [] if interval_ms is None else [interval_ms]
    arguments = [base + trailing, max_stalled, now_ms, *last]
    failed, recovered = anything.eval(script_source(), 8, *script_keys(base), *arguments)
    return failed, recovered


def told(report: Any) -> dict[str, object]:
    """What a report says, in the words of the model."""
    words: dict[str, object] = {
        "status": report.status,
        "recovered": _raw(report.recovered),
        "failed": _raw(report.failed),
        "stalled": set(_raw(report.stalled)),
        "marked": _raw(report.marked),
        "cleared": sorted(_raw(report.cleared)),
        "strays": sorted(_raw(report.strays)),
        "ghosts": _raw(report.ghosts),
        "missed": _raw(report.missed),
        "held": _raw(report.held),
        "refused": sorted(_raw(report.refused)),
        "marks_placed": report.marks_placed,
        "guards": report.guards,
    }
    return _known(words, report.engine)


def expected(outcome: Outcome, engine: str) -> dict[str, object]:
    """What a report must say."""
    words: dict[str, object] = {
        "status": outcome.status,
        "recovered": outcome.recovered,
        "failed": outcome.failed,
        "stalled": set(outcome.stalled),
        "marked": outcome.marked,
        "cleared": sorted(outcome.cleared),
        "strays": sorted(outcome.strays),
        "ghosts": outcome.ghosts,
        "missed": [],
        "held": outcome.held,
        "refused": sorted(outcome.refused),
        "marks_placed": outcome.marks_placed,
        "guards": (),
    }
    return _known(words, engine)


def _raw(ids: Any) -> list[bytes]:
    return [job_id.encode("utf-8", "surrogateescape") for job_id in ids]


def _known(words: dict[str, object], engine: str) -> dict[str, object]:
    return {name: words[name] for name in (_SCRIPT_TELLS if engine == "script" else words)}
