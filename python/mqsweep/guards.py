"""Signs that missing locks may not mean dead workers: each sweep is compared with the one before it."""

from __future__ import annotations

import re
from dataclasses import dataclass

MASS_STALL_LEAST = 100
MASS_STALL_FROM = 0.01
MASS_STALL_TO = 0.20
CLOCK_SLACK = 2.0
CLOCK_SHARE = 0.05
LONG_SWEEP = 5.0
LONG_SWEEP_LEAST = 1.0

_FIELDS = re.compile(rb"^(run_id|master_replid|maxmemory|evicted_keys|role|slave_read_only):(\S*)", re.MULTILINE)


@dataclass(frozen=True)
class Vitals:
    """What one sweep saw of the server and the queue.

    Attributes:
        info: the fields of ``INFO`` that matter; empty when the user may not ask.
        server_time: the server's clock at the sweep's start, seconds.
        monotonic: our clock at the same moment, seconds.
        active: elements of active that were read.
        lockless: jobs among them without a lock.
        duration: seconds that the sweep took.
    """

    info: dict[bytes, bytes]
    server_time: float
    monotonic: float
    active: int = 0
    lockless: int = 0
    duration: float = 0.0


def parse_info(reply: object) -> dict[bytes, bytes]:
    """The fields of an ``INFO`` reply that the guards look at; nothing where the server refused it."""
    return dict(_FIELDS.findall(reply)) if isinstance(reply, bytes) else {}


def raised(before: Vitals | None, now: Vitals) -> tuple[str, ...]:
    """The names of the guards that speak up, by name.

    Args:
        before: the sweep before; ``None`` at the first, which can compare nothing.
        now: this sweep.
    """
    if before is None:
        return ()
    checks = {
        "clock": _clock(before, now),
        "eviction": _moved(before, now, b"evicted_keys") and now.info.get(b"maxmemory", b"0") != b"0",
        "failover": _moved(before, now, b"run_id") or _moved(before, now, b"master_replid"),
        "mass-stall": _mass_stall(before, now),
    }
    return tuple(name for name, up in checks.items() if up)


def _moved(before: Vitals, now: Vitals, field: bytes) -> bool:
    return field in before.info and field in now.info and before.info[field] != now.info[field]


def _mass_stall(before: Vitals, now: Vitals) -> bool:
    return (
        now.lockless >= MASS_STALL_LEAST
        and now.lockless > MASS_STALL_TO * now.active
        and before.lockless <= MASS_STALL_FROM * before.active
    )


def _clock(before: Vitals, now: Vitals) -> bool:
    ours = now.monotonic - before.monotonic
    theirs = now.server_time - before.server_time
    jumped = abs(theirs - ours) > CLOCK_SLACK + CLOCK_SHARE * ours
    slow = now.duration > LONG_SWEEP_LEAST and now.duration > LONG_SWEEP * before.duration
    return jumped or slow
