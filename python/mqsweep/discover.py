"""Which queues a server has, and how each is. Reads only, in pipelines: thousands of queues are no thousands of trips."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .admission import generation_of, refuse
from .connect import Command, Link
from .dialects import DIALECTS, DialectName, Policy
from .errors import MQSweepError
from .generations import Generation, ToldBy
from .keys import QueueKeys, to_bytes, to_str
from .lease import Opening, look_commands, read_opening

SIGNS = (b"meta", b"active", b"stalled", b"stalled-check")
"""Names of keys by which a queue is known."""
_PATTERN = b"*:[ams][ect][tai]*"  # covers the signs, and little else
SCANNED = 1000
"""``COUNT`` of ``SCAN``: keys looked at by one command, a fraction of a millisecond."""
TOGETHER = 100
"""Queues asked about in one write."""


@dataclass(frozen=True)
class QueueState:
    """One queue as it was found.

    Attributes:
        name: the queue's name, without prefix and braces.
        base: what all its keys begin with.
        dialect: ``echomq`` or ``bullmq``, by the prefix.
        generation: version of the BullMQ that owns it, as far as it is known; ``None`` otherwise and for EchoMQ.
        told_by: how the generation was told: ``meta.version``, ``lists``, ``nothing``.
        active: jobs in active.
        marked: jobs in the set of marks.
        waiting: jobs in ``wait``.
        in_paused: jobs in ``paused``.
        paused: whether it is paused.
        holder: what ``stalled-check`` holds, ``None`` = nothing.
        holder_ttl: seconds that it still lives; ``None`` = it does not, or for good.
        checked_at: when a check last set that key, in seconds since the epoch, if it says so: BullMQ's own writes the
            time, a sweeper of mqsweep who it is.
        refused: why mqsweep would not touch it (EchoMQ 2, BullMQ Pro, Bull, ...); ``None`` otherwise.
    """

    name: str
    base: str
    dialect: str
    generation: str | None
    told_by: ToldBy
    active: int
    marked: int
    waiting: int
    in_paused: int
    paused: bool
    holder: str | None
    holder_ttl: float | None
    checked_at: float | None
    refused: str | None

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


def bases(link: Link, progress: Callable[[int], object] = lambda keys: None) -> Iterator[bytes]:
    """The bases of all queues, none twice, as they are found.

    Args:
        link: to the server.
        progress: told how many keys `SCAN` has gone over, roughly.

    Raises:
        redis.exceptions.RedisError: faults of the connection and refusals of the server.
    """
    seen: set[bytes] = set()
    cursor, over = b"0", 0
    while True:
        (reply,) = _asked(link, [("SCAN", cursor, "MATCH", _PATTERN, "COUNT", SCANNED)])
        cursor, keys = reply
        over += SCANNED
        progress(over)
        for key in keys:
            base, _, name = key.rpartition(b":")
            if base and name in SIGNS and base not in seen:
                seen.add(base)
                yield base
        if int(cursor) == 0:
            return


def look(link: Link, found: Iterable[bytes]) -> Iterator[QueueState]:
    """How the queues with these bases are.

    Raises:
        redis.exceptions.RedisError: faults of the connection and refusals of the server.
    """
    waiting = list(found)
    for start in range(0, len(waiting), TOGETHER):
        part = [QueueKeys(base) for base in waiting[start : start + TOGETHER]]
        commands = [_commands(keys) for keys in part]
        replies = link.commands([command for ask in commands for command in ask])
        for keys, ask in zip(part, commands, strict=True):
            mine, replies = replies[: len(ask)], replies[len(ask) :]
            yield _state(link, keys, mine)


def _commands(keys: QueueKeys) -> list[Command]:
    lengths: list[Command] = [("LLEN", keys.of("wait")), ("LLEN", keys.of("paused"))]
    return [*look_commands(keys)[:-1], *lengths]  # without INFO, which says the same for each


def _state(link: Link, keys: QueueKeys, replies: list[Any]) -> QueueState:
    prefix, name = _split(keys.base)
    dialect: DialectName = "echomq" if prefix == DIALECTS["echomq"].prefix else "bullmq"
    policy = Policy(dialect, "lockless", "back", 1)
    *looks, waiting, in_paused = replies
    try:
        opening = read_opening([*looks, b""])
        refused = _refusal(policy, keys, opening)
    except MQSweepError as fault:
        return _unreadable(keys, name, dialect, str(fault))
    owner = generation_of(policy, opening) if dialect == "bullmq" else Generation(None, "nothing", True)
    bare = opening.holder is not None and opening.foreign_check and len(opening.holder) < 16
    return QueueState(
        name=name,
        base=to_str(keys.base),
        dialect=dialect,
        generation=None if owner.version is None else ".".join(map(str, owner.version)),
        told_by=owner.told_by,
        active=opening.active,
        marked=max(0, opening.marks),
        waiting=waiting if isinstance(waiting, int) else 0,
        in_paused=in_paused if isinstance(in_paused, int) else 0,
        paused=opening.paused,
        holder=None if opening.holder is None else to_str(opening.holder),
        holder_ttl=opening.ttl / 1000 if opening.ttl >= 0 else None,
        checked_at=int(opening.holder or 0) / 1000 if bare else None,
        refused=refused,
    )


def _refusal(policy: Policy, keys: QueueKeys, opening: Opening) -> str | None:
    """Why a queue would be refused; ``None`` when it would not."""
    try:
        refuse(policy, keys, opening)
    except MQSweepError as fault:
        return str(fault)
    return None


def _unreadable(keys: QueueKeys, name: str, dialect: str, why: str) -> QueueState:
    return QueueState(name, to_str(keys.base), dialect, None, "nothing", 0, 0, 0, 0, False, None, None, None, why)


def _split(base: bytes) -> tuple[str, str]:
    """Prefix and name, the name without braces. No queue's name has a colon."""
    prefix, _, name = to_str(base).rpartition(":")
    if name.startswith("{") and name.endswith("}") and len(name) > 2:
        name = name[1:-1]
    return prefix, name


def _asked(link: Link, commands: Sequence[Command]) -> list[Any]:
    replies = link.commands(commands)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def look_alikes(link: Link, keys: QueueKeys, name: str, most: int = 5, patience: int = 200_000) -> list[str]:
    """Bases of queues that a user may have meant, the likeliest first.

    That is: of the same name under another dialect, prefix or brace form, or of nearly the same name.

    Args:
        link: to the server.
        keys: where nothing was found.
        name: of the queue that was meant.
        most: so many at most.
        patience: keys that are gone over, roughly, before it is given up.

    Raises:
        redis.exceptions.RedisError: faults of the connection and refusals of the server.
    """
    same: list[bytes] = []
    others: dict[str, list[bytes]] = {}
    forms = {to_bytes(f"{d.prefix}:{form}") for d in DIALECTS.values() for form in (name, "{" + name + "}")}
    ask = [*(forms - {keys.base})]
    for base, reply in zip(ask, _asked(link, [_any_of(QueueKeys(base)) for base in ask]), strict=True):
        if reply:
            same.append(base)
    gone_over = [0]
    for base in bases(link, lambda over: gone_over.__setitem__(0, over)):
        found = _split(base)[1]
        if found == name and base not in same:
            same.append(base)
        elif found != name:
            others.setdefault(found, []).append(base)
        if gone_over[0] >= patience:
            break
    near = difflib.get_close_matches(name, others, n=most, cutoff=0.7)
    near += [found for found in others if found.lower() == name.lower() and found not in near]
    return [to_str(base) for base in [*sorted(same), *(base for n in near for base in others[n])]][:most]


def _any_of(keys: QueueKeys) -> Command:
    return ("EXISTS", *(keys.of(name.decode()) for name in SIGNS))


def command_for(base: str) -> str:
    """How a queue with that base is named on the command line: options and name."""
    prefix, name = _split(to_bytes(base))
    braces = base.endswith("}")
    dialect = DIALECTS["echomq" if prefix == DIALECTS["echomq"].prefix else "bullmq"]
    options = [f"--dialect {dialect.name}"]
    if prefix != dialect.prefix:
        options.append(f"--prefix {prefix}")
    if braces != dialect.hash_tag:
        options.append("--hash-tag" if braces else "--no-hash-tag")
    return " ".join([*options, name])
