"""Can this server, and these queues, be swept well? Findings, each with its remedy. Nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .admission import REPLICA
from .connect import Command, Link
from .discover import QueueState
from .engine import EngineInfo
from .generations import UNKNOWN
from .keys import QueueKeys, to_bytes
from .report import Inspection

Level = Literal["ok", "note", "serious"]

OLDEST_REDIS = (6, 2)

# What a recovery and a scan need, in a form that would do nothing; KEY stands for a key of the queue.
_NEEDS: tuple[tuple[str, ...], ...] = (
    *(("GET", "KEY"), ("PTTL", "KEY"), ("TIME",), ("TYPE", "KEY"), ("LLEN", "KEY"), ("SCARD", "KEY"), ("INFO",)),
    *(("HMGET", "KEY", "x"), ("EXISTS", "KEY"), ("SSCAN", "KEY", "0"), ("LRANGE", "KEY", "0", "0")),
    *(("SMISMEMBER", "KEY", "x"), ("SET", "KEY", "x"), ("EVALSHA", "x", "1", "KEY"), ("EVAL", "x", "1", "KEY")),
    *(("PEXPIRE", "KEY", "1"), ("DEL", "KEY"), ("SADD", "KEY", "x"), ("SREM", "KEY", "x"), ("LINDEX", "KEY", "0")),
    *(("LSET", "KEY", "0", "x"), ("LTRIM", "KEY", "0", "-1"), ("LPUSH", "KEY", "x"), ("RPUSH", "KEY", "x")),
    *(("HSET", "KEY", "x", "x"), ("HGET", "KEY", "x"), ("HSTRLEN", "KEY", "x"), ("ZADD", "KEY", "0", "x")),
    *(("ZMSCORE", "KEY", "x"), ("ZSCORE", "KEY", "x"), ("XADD", "KEY", "*", "x", "x"), ("XTRIM", "KEY", "MAXLEN", "1")),
)

_CLOCK = """
if pcall(function() return os.clock end) then return 'os.clock' end
local before = redis.call('TIME')
for i = 1, 200000 do before[3] = i end
local after = redis.call('TIME')
return (before[1] ~= after[1] or before[2] ~= after[2]) and 'TIME' or 'none'
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: ``ok``; ``note`` (worth knowing); ``serious`` (jobs may be lost sight of, or cannot be swept).
        about: ``server``, or the queue's base.
        topic: what was looked at, one word.
        text: what was found, and why it matters.
        remedy: what to do; empty where nothing is to be done.
    """

    level: Level
    about: str
    topic: str
    text: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """All fields as plain values."""
        return asdict(self)


def examine_server(link: Link, engine: EngineInfo, bases: Sequence[str]) -> Iterator[Finding]:
    """What the server is, and what this user may do there.

    Args:
        link: to the server.
        engine: what would be used here.
        bases: of the queues that are meant; rights are tried on their keys.

    Raises:
        redis.exceptions.RedisError: faults of the connection.
    """
    asked = (("INFO",), ("ROLE",), ("ACL", "WHOAMI"), ("EVAL", _CLOCK, 0))
    info_reply, role, user, clock = link.commands(asked)
    if isinstance(info_reply, Exception):
        yield Finding("serious", "server", "rights", f"INFO is refused: {info_reply}", "allow INFO to this user")
        return
    info = _fields(info_reply)
    yield _version(info)
    yield _role(role)
    yield from _memory(info)
    yield from _cluster(info, bases)
    yield from _rights(link, user, bases)
    yield _clock(clock)
    yield _engine(engine)


def _fields(reply: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, _, value in pairs if value}


def _version(info: dict[str, str]) -> Finding:
    if "valkey_version" in info:
        return Finding("ok", "server", "version", f"Valkey {info['valkey_version']}")
    shown = info.get("redis_version", "?")
    numbers = tuple(int(part) for part in shown.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_REDIS:
        text = f"Redis {shown} lacks commands that the script needs (ZMSCORE, SMISMEMBER)"
        return Finding("serious", "server", "version", text, "upgrade to Redis 6.2 or newer, or to Valkey")
    return Finding("ok", "server", "version", f"Redis {shown}")


def _role(role: Any) -> Finding:
    if isinstance(role, list) and role and role[0] in (b"slave", b"replica"):
        return Finding("serious", "server", "role", REPLICA, "give the primary's address, or use Sentinel")
    if isinstance(role, Exception):
        return Finding("note", "server", "role", f"ROLE is refused, so a replica would not be noticed: {role}")
    return Finding("ok", "server", "role", "primary")


def _memory(info: dict[str, str]) -> Iterator[Finding]:
    limit, policy = int(info.get("maxmemory", "0") or 0), info.get("maxmemory_policy", "noeviction")
    remedy = "set maxmemory-policy to noeviction, as BullMQ asks for too"
    if policy == "noeviction":
        yield Finding("ok", "server", "eviction", "maxmemory-policy is noeviction: no lock is evicted")
    elif limit:
        text = f"maxmemory-policy is {policy}: under memory pressure locks of living workers are evicted, and jobs run twice"
        yield Finding("serious", "server", "eviction", text, remedy)
    else:
        text = f"maxmemory-policy is {policy}: harmless only as long as maxmemory is not set"
        yield Finding("note", "server", "eviction", text, remedy)
    if evicted := int(info.get("evicted_keys", "0") or 0):
        yield Finding("note", "server", "eviction", f"{evicted:,} keys were evicted since the server started", remedy)


def _cluster(info: dict[str, str], bases: Sequence[str]) -> Iterator[Finding]:
    if info.get("cluster_enabled") != "1":
        return
    spread = [base for base in bases if QueueKeys(to_bytes(base)).hash_tag is None]
    for base in spread:
        text = "its keys spread over the cluster's slots, so no script can touch them together"
        yield Finding("serious", base, "cluster", text, "put the prefix or the name in braces, e.g. prefix {bull}")
    if not spread:
        yield Finding("ok", "server", "cluster", "a cluster; the queues' keys stay together")


def _rights(link: Link, user: Any, bases: Sequence[str]) -> Iterator[Finding]:
    if isinstance(user, Exception):
        yield Finding("note", "server", "rights", f"not to be told which user this is: {user}")
        return
    # a queue's keys end in anything, so one of a job stands for them
    tried = bases or ["bull:any"]
    for base in tried:
        key = to_bytes(base) + b":1"
        commands: list[Command] = [
            ("ACL", "DRYRUN", user, *(key if part == "KEY" else part for part in need)) for need in _NEEDS
        ]
        replies = link.commands(commands)
        if any(isinstance(reply, Exception) for reply in replies):
            fault = next(reply for reply in replies if isinstance(reply, Exception))
            yield Finding("note", "server", "rights", f"what this user may do is not to be told: {fault}")
            return
        denied = [need[0] for need, reply in zip(_NEEDS, replies, strict=True) if reply != b"OK"]
        if denied:
            text = f"the user {user.decode('utf-8', 'replace')!r} may not run {', '.join(denied)} on its keys"
            yield Finding("serious", base if bases else "server", "rights", text, "see SECURITY.md for the ACL line")
            return
    yield Finding(
        "ok", "server", "rights", f"the user {user.decode('utf-8', 'replace')!r} may do all that a sweep needs"
    )


def _clock(clock: Any) -> Finding:
    if clock in (b"TIME", b"os.clock"):
        return Finding("ok", "server", "clock", f"scripts see time pass ({clock.decode()}), so calls end by themselves")
    if isinstance(clock, Exception):
        return Finding("serious", "server", "script", f"scripts do not run: {clock}", "allow EVAL and EVALSHA")
    text = "no clock moves inside scripts here, so batches are kept at 32 jobs instead of being timed"
    return Finding("note", "server", "clock", text)


def _engine(engine: EngineInfo) -> Finding:
    text = f"{engine.engine} ({engine.reason})"
    if engine.build_profile == "debug":
        return Finding("note", "server", "engine", f"{text}; the native core is a debug build", "build it for release")
    if engine.engine == "python":
        return Finding("note", "server", "engine", text, "install a native wheel: looking takes a third of the CPU")
    return Finding("ok", "server", "engine", text)


def examine_queue(state: QueueState, seen: Inspection | None, now: float | None = None) -> Iterator[Finding]:
    """What stands out about one queue.

    Args:
        state: how it was found.
        seen: what an inspection says; ``None`` where there was none.
        now: seconds since the epoch; ``None`` = the clock's.
    """
    if state.refused is not None:
        yield Finding("serious", state.base, "queue", state.refused, "it is left alone: its own check must do the work")
        return
    yield _generation(state)
    if state.paused and state.waiting and state.in_paused:
        text = (
            f"paused, with {_jobs(state.waiting)} in wait and {_jobs(state.in_paused)} in paused: where BullMQ 5 owns it, "
            "resuming renames paused over wait, and what is in wait is lost"
        )
        remedy = f"before resuming, move them: LMOVE {state.base}:wait {state.base}:paused RIGHT RIGHT, once for each"
        yield Finding("serious", state.base, "paused", text, remedy)
    yield _lease(state, time.time() if now is None else now)
    runaways = [job for job in seen.jobs if job.runaway] if seen else []
    if runaways:
        most = max(runaways, key=lambda job: job.stalls or 0)
        text = f"{_jobs(len(runaways))} past every ceiling, again and again ({most.id[:64]!r}: {most.stalls:,} times): their workers ignore defa"
        yield Finding("serious", state.base, "runaway", text, "upgrade those workers to BullMQ 5.53.2 or newer")
    if seen is not None:
        marked = sum(job.marked for job in seen.jobs)
        text = f"{state.active:,} active, {len(seen.jobs):,} without a lock, {marked:,} of them marked"
        yield Finding("note" if seen.jobs else "ok", state.base, "stalled", text)


def _jobs(number: int) -> str:
    return f"{number:,} job{'' if number == 1 else 's'}"


def _generation(state: QueueState) -> Finding:
    if state.dialect == "echomq":
        return Finding("ok", state.base, "dialect", "EchoMQ 1")
    if state.generation is not None:
        return Finding("ok", state.base, "dialect", f"BullMQ {state.generation}, told by {state.told_by}")
    if state.paused:
        return Finding("serious", state.base, "dialect", f"recoveries are held: {UNKNOWN}")
    text = "BullMQ of a release that nobody says: held while it is paused, and workers before 5.53.2 are not told from newer ones"
    return Finding("note", state.base, "dialect", text, "give --bullmq-version")


def _lease(state: QueueState, now: float) -> Finding:
    left = "for good" if state.holder_ttl is None else f"for {state.holder_ttl:.0f} s more"
    if state.holder is None:
        if state.marked or state.active:
            text = "nobody sweeps now: no check has run within the last interval"
            return Finding("note", state.base, "lease", text, "mqsweep run, or workers with their own check")
        return Finding("ok", state.base, "lease", "free, and nothing is active")
    if state.holder_ttl is None:
        text = f"stalled-check holds {state.holder[:80]!r} without a TTL: no check will ever run again"
        return Finding("serious", state.base, "lease", text, f"DEL {state.base}:stalled-check")
    if state.checked_at is not None:
        ago = max(0.0, now - state.checked_at)
        text = f"a built-in check ran {ago:.0f} s ago, so built-in checks are at work; they rest {left}"
        return Finding("note", state.base, "lease", text, "mqsweep run takes over by itself")
    parts = state.holder.split(":")
    if parts[0] == "mqsweep" and len(parts) == 4:
        text = f"held by mqsweep on {parts[1]}, process {parts[2]}, {left}: built-in checks rest"
        return Finding("ok", state.base, "lease", text)
    return Finding("note", state.base, "lease", f"held by {state.holder[:80]!r} {left}")
