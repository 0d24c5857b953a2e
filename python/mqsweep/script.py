"""The one Lua script: where its text is, and how it is called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from .connect import Command, Packed
from .drive import Commands, Steps
from .errors import ScriptError, WrongTypeError

SCRIPT_NAME = "moveStalledJobsToWait-8.lua"

_DENIED = re.compile(r"ACL failure in script|The user executing the script can't")
"""How servers tell that the user may not run a command inside a script; redis-py knows only what begins with NOPERM."""


@cache
def script_source() -> str:
    """The script's text: the tree's own in a development checkout, else the package's.

    Raises:
        ScriptError: the installation lacks it.
    """
    tree = Path(__file__).resolve().parents[2]
    if (tree / "pyproject.toml").is_file() and (tree / "lua" / SCRIPT_NAME).is_file():
        return (tree / "lua" / SCRIPT_NAME).read_text("utf-8")
    packaged = resources.files("mqsweep") / "lua" / SCRIPT_NAME
    if not packaged.is_file():
        raise ScriptError(f"{SCRIPT_NAME} is missing from this installation; install mqsweep again")
    return packaged.read_text("utf-8")


@cache
def script_digest() -> str:
    """The SHA-1 by which the server knows the script."""
    return hashlib.sha1(script_source().encode(), usedforsecurity=False).hexdigest()


def evaluate(
    keys: Packed,
    arguments: Sequence[bytes | str | int],
    exceptions: Any,
    meanwhile: Callable[[], object] | None = None,
) -> Steps[Any]:
    """Call the script by its digest, and by its text where the server does not know it.

    Args:
        keys: KEYS.
        arguments: ARGV.
        exceptions: the client's exceptions module.
        meanwhile: what to do while the server is busy.

    Raises:
        WrongTypeError: one of the queue's keys is of another type.
        ScriptError: the script failed or refused its arguments.
        redis.exceptions.ResponseError: the server refused (``NOPERM``, ``OOM``, ``READONLY``, ...).
    """
    tail: Command = (keys.count, keys, *arguments)
    (reply,) = yield Commands([("EVALSHA", script_digest(), *tail)], meanwhile)
    if isinstance(reply, exceptions.NoScriptError):
        (reply,) = yield Commands([("EVAL", script_source(), *tail)])
    if isinstance(reply, Exception):
        text = str(reply)
        if text.startswith("WRONGTYPE"):
            raise WrongTypeError(text.removeprefix("WRONGTYPE ")) from reply
        if _DENIED.search(text):
            raise exceptions.NoPermissionError(text) from reply
        if type(reply) is exceptions.ResponseError and not text.startswith("BUSY"):
            raise ScriptError(text) from reply
        raise reply
    return reply
