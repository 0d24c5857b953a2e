"""BullMQ's own stalled check, from the installed ``bullmq`` package, as the oracle of equality.

The script is read where the package keeps it and run as its header says; nothing of it is copied.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import redis

NAMES = ("stalled", "wait", "active", "stalled-check", "meta", "paused", "marker", "events", "repeat")
"""KEYS[1..9] of the script, in its order."""


@cache
def source() -> str:
    """The text of BullMQ's ``moveStalledJobsToWait-9.lua``.

    Raises:
        LookupError: the ``bullmq`` package is not installed, or has another script than this one.
    """
    # Located, not imported: its modules pull in much that no test needs.
    spec = importlib.util.find_spec("bullmq")
    if spec is None or not spec.submodule_search_locations:
        raise LookupError("the package bullmq is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "commands"
    found = folder / "moveStalledJobsToWait-9.lua"
    if not found.is_file():
        others = sorted(path.name for path in folder.glob("moveStalledJobsToWait*"))
        raise LookupError(f"this bullmq package has another stalled check: {others}")
    return found.read_text(encoding="utf-8")


def run_oracle(client: redis.Redis, base: bytes, max_stalled: int, interval_ms: int, now_ms: int) -> list[bytes]:
    """One stalled check by BullMQ itself.

    Args:
        client: a client that replies in bytes.
        base: the queue's base, without a trailing colon.
        max_stalled: how many stalls a job survives.
        interval_ms: how long the check keeps others from checking.
        now_ms: what it writes into ``stalled-check``.

    Returns:
        The ids that it recovered, in the order of its choice.
    """
    keys = [base + b":" + name.encode() for name in NAMES]
    reply: Any = client.eval(
        source(),
        len(keys),
        *keys,
        str(max_stalled),
        base + b":",
        str(now_ms),
        str(interval_ms),
    )
    return list(reply)
