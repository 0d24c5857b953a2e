"""BullMQ's own stalled check, from the installed ``bullmq`` packages, as the oracle of equality.

The script is read where the package keeps it and run as its header says; nothing of it is copied. The newest comes with
the package for Python, those of single releases with the packages for Node that ``make test`` installs.
"""

from __future__ import annotations

import importlib.util
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import redis

NAMES = ("stalled", "wait", "active", "stalled-check", "meta", "paused", "marker", "events", "repeat")
"""KEYS of the script, in its order; releases before 5.78.1 take the first eight."""

RELEASES = {"6.7.0": "bullmq6", "5.81.5": "bullmq5", "5.70.4": "bullmq-5.70.4", "5.53.2": "bullmq-5.53.2"}
"""One of each generation that is swept, and the name under which it is installed."""
EAGER = {"5.53.1": "bullmq-5.53.1"}
"""The newest release that fails jobs itself; its script takes ``failed`` as its fourth key."""

_PRINT = "process.stdout.write(require(process.argv[1]).moveStalledJobsToWait.content)"


@cache
def source(release: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The text of BullMQ's ``moveStalledJobsToWait``, and the names of its keys.

    Args:
        release: one of `RELEASES` or `EAGER`; ``None`` = the package for Python that is installed.

    Raises:
        LookupError: it is not installed.
    """
    if release is None:
        return _of_python(), NAMES
    folder = Path(__file__).parent / "node" / "node_modules" / (RELEASES | EAGER)[release] / "dist" / "cjs" / "scripts"
    found = [*folder.glob("moveStalledJobsToWait-*.js")]
    if not found:
        raise LookupError(f"BullMQ {release} for Node is not installed: make node")
    text = subprocess.run(["node", "-e", _PRINT, found[0]], capture_output=True, text=True, check=True).stdout
    names = NAMES if release in RELEASES else (*NAMES[:3], "failed", *NAMES[3:])
    return text, names[: int(found[0].stem.rsplit("-", 1)[1])]


def _of_python() -> str:
    """What the package for Python has.

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


def run_oracle(
    client: redis.Redis, base: bytes, max_stalled: int, interval_ms: int, now_ms: int, release: str | None = None
) -> list[bytes]:
    """One stalled check by BullMQ itself.

    Args:
        client: a client that replies in bytes.
        base: the queue's base, without a trailing colon.
        max_stalled: how many stalls a job survives.
        interval_ms: how long the check keeps others from checking.
        now_ms: what it writes into ``stalled-check``.
        release: whose script, see `source`.

    Returns:
        The ids that it recovered, in the order of its choice.
    """
    text, names = source(release)
    keys = [base + b":" + name.encode() for name in names]
    reply: Any = client.eval(
        text,
        len(keys),
        *keys,
        str(max_stalled),
        base + b":",
        str(now_ms),
        str(interval_ms),
    )
    return list(reply)
