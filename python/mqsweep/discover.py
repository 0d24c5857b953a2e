"""Which queues a server has, and how each is. Reads only, in pipelines: thousands of queues are no thousands of trips."""

from __future__ import annotations

import difflib
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .admission import generation_of, refuse
from .connect import Command, Link
from .dialects import DIALECTS, Dialect, Policy, policy_of
from .errors import MQSweepError
from .generations import Generation, ToldBy
from .keys import QueueKeys, to_bytes, to_str
from .lease import Opening, look_commands, read_opening

SIGNS = (b"meta", b"active", b"stalled", b"stalled-check", b"wait")
"""Names of keys by which a queue is known."""
_PATTERN = b"*:[amsw][ecta][tai]*"  # covers the signs, and little else
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
        dialect: ``echomq`` or ``bullmq``: as the user said, else by the prefix.
        generation: version of the BullMQ that owns it, as far as it is known; ``None`` otherwise and for EchoMQ.
        told_by: how the generation was told: ``option``, ``meta.version``, ``lists``, ``nothing``.
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
    """The bases of all queues, none twice, as they are found; `look` says which are queues indeed.

    Args:
        link: to the server.
        progress: told how many keys `SCAN` has gone over, roughly; a true value from it ends the search.

    Raises:
        redis.exceptions.RedisError: faults of the connection and refusals of the server.
    """
    seen: set[bytes] = set()
    cursor, over = b"0", 0
    while True:
        (reply,) = link.commands([("SCAN", cursor, "MATCH", _PATTERN, "COUNT", SCANNED)])
        if isinstance(reply, Exception):
            raise reply
        cursor, keys = reply
        over += SCANNED
        enough = progress(over)
        for key in keys:
            base, _, name = key.rpartition(b":")
            if b":" in base and name in SIGNS and base not in seen:
                seen.add(base)
                yield base
        if int(cursor) == 0 or enough:
            return


def look(link: Link, found: Iterable[bytes], named: Mapping[bytes, Policy] | None = None) -> Iterator[QueueState]:
    """How the queues with these bases are; what only looks like a queue is left out.

    Args:
        link: to the server.
        found: the bases.
        named: for those that the user named: what is known of them. None of these is left out.

    Raises:
        redis.exceptions.RedisError: faults of the connection.
    """
    named = named or {}
    waiting = list(found)
    for start in range(0, len(waiting), TOGETHER):
        part = [QueueKeys(base) for base in waiting[start : start + TOGETHER]]
        commands = [_commands(keys) for keys in part]
        replies = link.commands([command for ask in commands for command in ask])
        for keys, ask in zip(part, commands, strict=True):
            mine, replies = replies[: len(ask)], replies[len(ask) :]
            state = _state(link, keys, mine, named.get(keys.base))
            if state is not None:
                yield state


def reading_policy(dialect: Dialect, bullmq_version: str | None = None) -> Policy:
    """What is known of a queue before it is looked at, as `look` takes it.

    Raises:
        ConfigurationError: no version, or one of an EchoMQ queue.
    """
    return policy_of(
        dialect,
        mark="lockless",
        requeue=None,
        max_stalled_count=1,
        max_attempts=None,
        bullmq_version=bullmq_version,
    )


def in_cluster(link: Link) -> bool:
    """Whether the server is a node of a cluster, of whose queues `bases` finds only those that lie there."""
    (reply,) = link.commands([("INFO", "cluster")])
    return isinstance(reply, bytes) and b"cluster_enabled:1" in reply


def _commands(keys: QueueKeys) -> list[Command]:
    more: list[Command] = [
        ("HGET", keys.of("meta"), "opts.maxLenEvents"),
        ("LLEN", keys.of("wait")),
        ("LLEN", keys.of("paused")),
    ]
    return [*look_commands(keys)[:-1], *more]  # without INFO, which says the same for each


def _state(link: Link, keys: QueueKeys, replies: list[Any], given: Policy | None) -> QueueState | None:
    """How a queue is; ``None`` where another program has keys of such names."""
    prefix, name = _split(keys.base)
    policy = given or reading_policy(_owner(prefix))
    *looks, trims, waiting, in_paused = replies
    try:
        opening = read_opening([*looks, b""])
        if given is None and prefix.strip("{}") not in _PREFIXES and not _is_queue(opening, trims):
            return None
        refused = _refusal(policy, keys, opening)
    except (MQSweepError, link.source.exceptions.ResponseError) as fault:
        return _unreadable(keys, name, policy.dialect, str(fault))
    owner = generation_of(policy, opening) if policy.dialect == "bullmq" else Generation(None, "nothing", True)
    bare = opening.holder is not None and opening.foreign_check and len(opening.holder) < 16
    return QueueState(
        name=name,
        base=to_str(keys.base),
        dialect=policy.dialect,
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


_PREFIXES = {dialect.prefix for dialect in DIALECTS.values()}


def _owner(prefix: str) -> Dialect:
    """Whose prefix it is; one of the user's own is BullMQ's."""
    return DIALECTS["echomq" if prefix.strip("{}") == DIALECTS["echomq"].prefix else "bullmq"]


def _is_queue(opening: Opening, trims: Any) -> bool:
    """Whether keys under a prefix of the user's own are a queue's: ``user:7:meta`` need not be one.

    BullMQ writes ``opts.maxLenEvents`` with the first job, in every language, and says its version in most.
    """
    ours = opening.version is not None or opening.paused or isinstance(trims, bytes)
    return ours or opening.active_type == "list" or opening.marks > 0 or opening.holder is not None


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
    """Prefix and name, the name without braces. Only a name in braces may have a colon."""
    text = to_str(base)
    if text.endswith("}") and ":{" in text[:-2]:
        prefix, _, name = text[:-1].rpartition(":{")
        return prefix, name
    prefix, _, name = text.rpartition(":")
    return prefix, name


def look_alikes(
    link: Link, keys: QueueKeys, name: str, most: int = 5, patience: int = 200_000, seconds: float = 2.0
) -> list[str]:
    """Bases of queues that a user may have meant, the likeliest first.

    That is: of the same name under another dialect, prefix or brace form, or of nearly the same name. What the user of
    this connection may not read is not among them.

    Args:
        link: to the server.
        keys: where nothing was found.
        name: of the queue that was meant.
        most: so many at most.
        patience: keys that are gone over, roughly, before it is given up.
        seconds: after which it is given up too.

    Raises:
        redis.exceptions.RedisError: faults of the connection.
    """
    forms = (f"{d.prefix}:{form}" for d in DIALECTS.values() for form in (name, "{" + name + "}"))
    ask = [base for base in map(to_bytes, forms) if base != keys.base]
    there = link.commands([_any_of(QueueKeys(base)) for base in ask])
    # a reply that is an error: not for this user, or of another node of the cluster
    same = [base for base, reply in zip(ask, there, strict=True) if isinstance(reply, int) and reply]
    near: dict[str, list[bytes]] = {}
    for base in _within(link, patience, seconds):
        found = _split(base)[1]
        if found != name:
            near.setdefault(found, []).append(base)
        elif base not in (*same, keys.base):
            same.append(base)
    close = difflib.get_close_matches(name, near, n=most, cutoff=0.7)
    close += [found for found in near if found.lower() == name.lower() and found not in close]
    likely = [*same, *(base for found in close for base in near[found])]
    return [state.base for state in look(link, likely[: 4 * most])][:most]


def _within(link: Link, patience: int, seconds: float) -> list[bytes]:
    """What `bases` finds before it has gone over so many keys, or for so long; nothing if this user may not look."""
    late = time.monotonic() + seconds
    try:
        return list(bases(link, lambda over: over >= patience or time.monotonic() > late))
    except link.source.exceptions.ResponseError:
        return []


def _any_of(keys: QueueKeys) -> Command:
    return ("EXISTS", *(keys.of(name.decode()) for name in SIGNS))


def command_for(base: str) -> str:
    """How a queue with that base is named on the command line: options and name, as a shell takes them."""
    prefix, name = _split(to_bytes(base))
    braces = base.endswith("}")
    dialect = _owner(prefix)
    options = [f"--dialect {dialect.name}"]
    if prefix != dialect.prefix:
        options.append(f"--prefix {shlex.quote(prefix)}")
    if braces != dialect.hash_tag:
        options.append("--hash-tag" if braces else "--no-hash-tag")
    return " ".join([*options, shlex.quote(name)])
