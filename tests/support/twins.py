"""The twins: what exists once in pure Python and once in the native core."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import Any

import pytest

TWINS = ("python", "rust")


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
