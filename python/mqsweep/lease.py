"""The lease: who may sweep this queue now. The key is ``stalled-check``, which every BullMQ port obeys."""

from __future__ import annotations

import os
import re
import secrets
import socket
from dataclasses import dataclass
from typing import Any

from .connect import Command
from .errors import ProtocolError, WrongTypeError
from .guards import parse_info
from .keys import QueueKeys

LEAST_TTL = 10.0
"""Seconds: while a sweep runs its lease lives at least this long, so that no walk fences itself."""

BULLMQ_META = ("paused", "concurrency", "version")


def new_token() -> bytes:
    """A token that says who holds the lease, and that nobody else ever had."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"mqsweep:{host}:{os.getpid()}:{secrets.token_hex(16)}".encode()


def sweeping_ttl(interval: float) -> int:
    """Milliseconds that the lease is kept at while a sweep of this interval (seconds) runs."""
    return round(max(interval, LEAST_TTL) * 1000)


@dataclass(frozen=True)
class Opening:
    """What the first round trip of a sweep told.

    Attributes:
        holder: the token or timestamp in ``stalled-check`` after our try.
        ttl: milliseconds that it still lives.
        server_time: the server's clock, seconds since the epoch.
        active_type: Redis type of active, ``none`` when there is no such key.
        active: length of active.
        marks: number of marks; -1 when the server would not say.
        stalled_is_set: whether the marks' key is a set, if there is one.
        paused: whether the queue is paused.
        version: ``meta.version``, if it is set.
        waiting: whether ``wait`` has jobs.
        in_paused: whether ``paused`` has.
        pro: whether BullMQ Pro keeps groups here.
        bull: whether this is a queue of Bull, BullMQ's predecessor.
        info: fields of ``INFO``, see `guards.parse_info`.
    """

    holder: bytes | None
    ttl: int
    server_time: float
    active_type: str
    active: int
    marks: int
    stalled_is_set: bool
    paused: bool
    version: str | None
    waiting: bool
    in_paused: bool
    pro: bool
    bull: bool
    info: dict[bytes, bytes]

    @property
    def foreign_check(self) -> bool:
        """Whether the key holds a bare timestamp: a BullMQ check that has finished, so nobody is sweeping."""
        return self.holder is not None and self.holder.isdigit()


def look_commands(keys: QueueKeys) -> list[Command]:
    """Ask how a queue is, changing nothing."""
    return [
        ("GET", keys.of("stalled-check")),
        ("PTTL", keys.of("stalled-check")),
        ("TIME",),
        ("TYPE", keys.of("active")),
        ("LLEN", keys.of("active")),
        ("SCARD", keys.of("stalled")),
        ("HMGET", keys.of("meta"), *BULLMQ_META),
        ("EXISTS", keys.of("wait")),
        ("EXISTS", keys.of("paused")),
        ("EXISTS", keys.of("groups")),
        ("EXISTS", keys.of("meta")),
        ("EXISTS", keys.of("meta-paused"), keys.of("priority")),
        ("INFO",),
    ]


def take_commands(keys: QueueKeys, token: bytes, interval: float) -> list[Command]:
    """Try to take the lease for one interval (seconds), and ask how the queue is, in one round trip."""
    take: Command = ("SET", keys.of("stalled-check"), token, "NX", "PX", round(interval * 1000))
    return [take, *look_commands(keys)]


def read_opening(replies: list[Any]) -> Opening:
    """Read the replies to `look_commands`.

    Raises:
        WrongTypeError: the lease's key is no string.
        ProtocolError: a reply is of another form than its command's replies are.
        redis.exceptions.ResponseError: the server refused a command that a sweep cannot do without.
    """
    holder, ttl, time, active_type, active, _, meta, *signs, _ = replies
    if _is_wrong_type(holder):
        raise WrongTypeError("stalled-check is not a string; nothing was changed")
    for reply in (holder, ttl, time, active_type, active, meta, *signs):
        # what is of a wrong type is refused by name, by its TYPE or by the script
        if isinstance(reply, Exception) and not _is_wrong_type(reply):
            raise reply
    try:
        return _opening(replies)
    except (TypeError, ValueError, AttributeError, IndexError) as fault:
        raise ProtocolError("the server's replies are not those to the commands that were sent") from fault


def _opening(replies: list[Any]) -> Opening:
    holder, ttl, time, active_type, active, marks, meta, waiting, in_paused, pro, has_meta, of_bull, info = replies
    if not isinstance(ttl, int) or not isinstance(holder, bytes | None) or not isinstance(info, bytes | Exception):
        raise TypeError  # INFO is the last: one reply too many or too few shows there
    paused, _, version = (None, None, None) if isinstance(meta, Exception) else meta
    return Opening(
        holder=holder,
        ttl=ttl,
        server_time=int(time[0]) + int(time[1]) / 1e6,
        active_type=active_type.decode(),
        active=active if isinstance(active, int) else 0,
        marks=marks if isinstance(marks, int) else -1,
        stalled_is_set=not _is_wrong_type(marks),
        paused=paused is not None,
        version=None if version is None else version.decode("utf-8", "replace"),
        waiting=waiting == 1,
        in_paused=in_paused == 1,
        pro=pro == 1,
        bull=has_meta == 0 and isinstance(of_bull, int) and of_bull > 0,
        info=parse_info(info),
    )


def _is_wrong_type(reply: object) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith("WRONGTYPE")
