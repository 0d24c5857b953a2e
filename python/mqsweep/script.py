"""The one Lua script: where its text is, and how it is called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from .connect import Command, Packed
from .drive import Commands, Steps
from .errors import MQSweepError, ProtocolError, ScriptError, WrongTypeError
from .keys import to_str

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


class Fenced(MQSweepError):
    """The lease is not ours any more; nothing was changed by the call that found out."""


class Answer(NamedTuple):
    """What a batch call says that it did; the script's header has the meanings.

    Attributes:
        consumed: entries that were dealt with.
        micros: how long it took, by the clock that the script has.
        drift: how far distances have fallen by now; of ``cover``, the distance to go on from.
        letters: one for each consumed entry.
        texts: ``[entry, text, ...]``, entries counted from 1.
        placed: members that were added to the marks.
        lost: events that could not be written.
        moved: ``[id, distance, ...]`` of elements that were moved beyond the entries consumed.
    """

    consumed: int
    micros: int
    drift: int
    letters: bytes
    texts: list[Any]
    placed: int
    lost: int
    moved: list[Any]


def answer_to(reply: Any) -> Answer | None:
    """Read the reply to a batch call; ``None`` = recoveries are held back.

    Raises:
        Fenced: the lease is not ours.
        ProtocolError: no such reply.
    """
    match reply:
        case [b"ok", int(), int(), int(), bytes(), list(), int(), int(), list()]:
            return Answer(*reply[1:])
        case [b"held"]:
            return None
        case [b"fenced", bytes(holder)]:
            raise Fenced(f"the lease is held by {to_str(holder)[:100]!r}")
    raise ProtocolError("the server's reply to a batch is none that the script gives")
