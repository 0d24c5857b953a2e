"""The twins: what exists once in pure Python and once in the native core."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

TWINS = ("python", "rust")
BASE = b"bull:q"
"""Of the queue that the scans of these tests look at."""
ODD_IDS = (b"", b"\r\n", b"a\r\n$1\r\nb", b"\x00", b"\xff\xfe", b"1:lock", b"y" * 1500)


def native() -> Any:
    """The native core, or ``None`` where it is not built."""
    try:
        return importlib.import_module("mqsweep._core")
    except ImportError:
        return None


def twin(name: str) -> Any:
    """``ReplyReader`` and ``Scan`` of one twin.

    Skips the test where the native core is not built, and fails it under MQSWEEP_REQUIRE_RUST=1.
    """
    if name == "python":
        reply = importlib.import_module("mqsweep.reply")
        scan = importlib.import_module("mqsweep.scan")
        return SimpleNamespace(ReplyReader=reply.ReplyReader, Scan=scan.Scan)
    core = native()
    if core is None and os.environ.get("MQSWEEP_REQUIRE_RUST") == "1":
        pytest.fail("MQSWEEP_REQUIRE_RUST=1, but the native core is not installed")
    if core is None:
        pytest.skip("the native core is not installed")
    return core


def both() -> list[Any]:
    """Both twins, for tests that compare them; see `twin` for where one is missing."""
    return [twin(name) for name in TWINS]


def maker(module: Any) -> Callable[..., Any]:
    """Makes scans of the queue by one twin."""
    return lambda **how: module.Scan(stalled=BASE + b":stalled", active=BASE + b":active", base=BASE + b":", **how)


def listed(seen: Any) -> Any:
    """Sightings with everything in lists, to compare them."""
    return seen._replace(stalled=list(seen.stalled), locked_marks=list(seen.locked_marks), strays=list(seen.strays))


def commands(reader: Any, data: bytes) -> list[list[bytes]]:
    """The commands in what a scan sent."""
    reader.feed(data)
    found = []
    while (command := reader.bulks(1 << 20)) is not None:
        found.append(command)
    return found
