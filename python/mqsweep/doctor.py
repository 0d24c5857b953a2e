"""Can this server, and these queues, be swept well? Findings, each with its remedy. Nothing is changed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .admission import REPLICA
from .connect import Command, Link
from .discover import TOGETHER, QueueState
from .engine import EngineInfo
from .generations import UNKNOWN
from .keys import QueueKeys, to_bytes, to_str
from .report import Inspection
from .script import script_digest, script_source

Level = Literal["ok", "note", "serious"]

OLDEST_REDIS = (6, 2)

# What a recovery and a scan need, in a form that would do nothing; KEY stands for a key of the queue.
NEEDS: tuple[tuple[str, ...], ...] = (
    *(("GET", "KEY"), ("PTTL", "KEY"), ("TIME",), ("TYPE", "KEY"), ("LLEN", "KEY"), ("SCARD", "KEY"), ("INFO",)),
    *(("HMGET", "KEY", "x"), ("EXISTS", "KEY"), ("SSCAN", "KEY", "0"), ("LRANGE", "KEY", "0", "0")),
    *(("SMISMEMBER", "KEY", "x"), ("SET", "KEY", "x"), ("EVALSHA", "x", "1", "KEY"), ("EVAL", "x", "1", "KEY")),
    *(("PEXPIRE", "KEY", "1"), ("DEL", "KEY"), ("SADD", "KEY", "x"), ("SREM", "KEY", "x"), ("LINDEX", "KEY", "0")),
    *(("LSET", "KEY", "0", "x"), ("LTRIM", "KEY", "0", "-1"), ("LPUSH", "KEY", "x"), ("RPUSH", "KEY", "x")),
    *(("HSET", "KEY", "x", "x"), ("HGET", "KEY", "x"), ("HSTRLEN", "KEY", "x"), ("ZADD", "KEY", "0", "x")),
    *(("ZMSCORE", "KEY", "x"), ("ZSCORE", "KEY", "x"), ("XADD", "KEY", "*", "x", "x"), ("XTRIM", "KEY", "MAXLEN", "1")),
)

RUNAWAY = 1_000
"""Stalls from which on a job is past any ceiling, where nobody says which ceiling its queue has."""
END = 50
"""Jobs of each end of active whose stalls are looked at: what is taken again and again is found near the head."""
AT_ONCE = 5_000
"""Jobs asked about in one write."""

# which of the commands this user may not run, there where they will be run
_RIGHTS = """
local check = redis.acl_check_cmd
if not check then return false end
local denied = {}
for _, need in ipairs(cjson.decode(ARGV[1])) do
  for i, part in ipairs(need) do if part == 'KEY' then need[i] = ARGV[2] end end
  if not check(unpack(need)) then denied[#denied + 1] = need[1] end
end
return denied
"""

_COMPILES = "local _, why = loadstring(ARGV[1]); return why or 'fine'"

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
    asked: tuple[Command, ...] = (("INFO",), ("ROLE",), ("EVAL", _CLOCK, 0), ("EVAL", _COMPILES, 0, script_source()))
    info_reply, role, clock, compiled = link.commands(asked)
    if isinstance(info_reply, Exception):
        yield Finding("serious", "server", "rights", f"INFO is refused: {info_reply}", "allow INFO to this user")
        return
    info = _fields(info_reply)
    yield _version(info)
    yield _role(role)
    yield from _memory(info)
    yield from _saving(info)
    yield from _cluster(info, bases)
    if isinstance(clock, Exception):
        yield Finding("serious", "server", "script", f"scripts do not run: {clock}", "allow EVAL and EVALSHA")
    else:
        yield from _rights(link, bases)
        yield _script(compiled)
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


def _saving(info: dict[str, str]) -> Iterator[Finding]:
    failed = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(name, "ok") != "ok"]
    if failed:
        text = (
            f"its last save failed ({', '.join(failed)}): by default it then takes no writes, so nothing can be swept"
        )
        yield Finding("serious", "server", "saving", text, "see the server's log; mostly the disk is full")


def _cluster(info: dict[str, str], bases: Sequence[str]) -> Iterator[Finding]:
    if info.get("cluster_enabled") != "1":
        return
    spread = [base for base in bases if QueueKeys(to_bytes(base)).hash_tag is None]
    for base in spread:
        text = "its keys spread over the cluster's slots, so no script can touch them together"
        yield Finding("serious", base, "cluster", text, "put the prefix or the name in braces, e.g. prefix {bull}")
    if not spread:
        yield Finding("ok", "server", "cluster", "a cluster; the queues' keys stay together")


def _rights(link: Link, bases: Sequence[str]) -> Iterator[Finding]:
    denied: dict[tuple[bytes, ...], list[str]] = {}
    needs = json.dumps(NEEDS)
    tried = bases or ["bull:any"]
    for start in range(0, len(tried), TOGETHER):
        part = tried[start : start + TOGETHER]
        # a queue's keys end in anything, so one of a job stands for them
        ask: list[Command] = [("EVAL", _RIGHTS, 0, needs, to_bytes(base) + b":1") for base in part]
        for base, reply in zip(part, link.commands(ask), strict=True):
            if not isinstance(reply, list):
                why = f": {reply}" if reply is not None else " before Redis 7"
                yield Finding("note", "server", "rights", f"what this user may do is not to be told{why}")
                return
            if reply:
                denied.setdefault(tuple(reply), []).append(base)
    for names, those in denied.items():
        text = f"this user may not run {', '.join(map(to_str, names))} on its keys"
        if len(those) > 1:
            text += f", nor on those of {len(those) - 1:,} more"
        yield Finding("serious", those[0] if bases else "server", "rights", text, "see SECURITY.md for the ACL line")
    if not denied:
        yield Finding("ok", "server", "rights", "this user may do all that a sweep needs")


def _script(compiled: Any) -> Finding:
    if compiled == b"fine":
        return Finding("ok", "server", "script", f"mqsweep's script compiles here; its digest is {script_digest()}")
    if isinstance(compiled, Exception):
        return Finding(
            "note", "server", "script", f"whether mqsweep's script compiles here is not to be told: {compiled}"
        )
    text = f"mqsweep's script does not compile here: {to_str(compiled)}"
    return Finding("serious", "server", "script", text, "use Redis 6.2 or newer, or Valkey")


def _clock(clock: Any) -> Finding:
    if clock in (b"TIME", b"os.clock"):
        return Finding("ok", "server", "clock", f"scripts see time pass ({clock.decode()}), so calls end by themselves")
    text = "no clock moves inside scripts here, so batches are kept at 32 jobs instead of being timed"
    return Finding("note", "server", "clock", text)


def _engine(engine: EngineInfo) -> Finding:
    text = f"{engine.engine} ({engine.reason})"
    if engine.build_profile == "debug":
        return Finding("note", "server", "engine", f"{text}; the native core is a debug build", "build it for release")
    if engine.engine == "python":
        return Finding("note", "server", "engine", text, "install a native wheel: looking takes a third of the CPU")
    return Finding("ok", "server", "engine", text)


def runaways(link: Link, states: Sequence[QueueState], limit: int = RUNAWAY) -> dict[str, dict[str, int]]:
    """Jobs near the ends of active, locked ones too, that stalled as often as no ceiling allows: by base, by id.

    Args:
        link: to the server.
        states: the queues.
        limit: stalls from which on a job is one of these.

    Raises:
        redis.exceptions.RedisError: faults of the connection.
    """
    found: dict[str, dict[str, int]] = {}
    looked = [state for state in states if state.active and state.refused is None]
    for start in range(0, len(looked), TOGETHER):
        part = [QueueKeys(to_bytes(state.base)) for state in looked[start : start + TOGETHER]]
        ends: list[Command] = [
            ("LRANGE", keys.of("active"), *span) for keys in part for span in ((0, END - 1), (-END, -1))
        ]
        replies = [reply if isinstance(reply, list) else [] for reply in link.commands(ends)]
        jobs = [
            (keys, job_id)
            for keys, head, tail in zip(part, replies[::2], replies[1::2], strict=True)
            for job_id in dict.fromkeys([*head, *tail])
        ]
        for first in range(0, len(jobs), AT_ONCE):
            those = jobs[first : first + AT_ONCE]
            stalls = link.commands([("HGET", keys.job(job_id), "stc") for keys, job_id in those])
            for (keys, job_id), count in zip(those, stalls, strict=True):
                if isinstance(count, bytes) and count.isdigit() and len(count) < 16 and int(count) >= limit:
                    found.setdefault(to_str(keys.base), {})[to_str(job_id)] = int(count)
    return found


def examine_queue(
    state: QueueState, seen: Inspection | None, running: Mapping[str, int] | None = None, now: float | None = None
) -> Iterator[Finding]:
    """What stands out about one queue.

    Args:
        state: how it was found.
        seen: what an inspection says; ``None`` where there was none.
        running: what `runaways` found there.
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
    stalls = dict(running or {}) | ({job.id: job.stalls or 0 for job in seen.jobs if job.runaway} if seen else {})
    if stalls:
        yield _runaway(state, stalls)
    if seen is not None:
        marked = sum(job.marked for job in seen.jobs)
        text = f"{state.active:,} active, {len(seen.jobs):,} without a lock, {marked:,} of them marked"
        yield Finding("note" if seen.jobs else "ok", state.base, "stalled", text)


def _runaway(state: QueueState, stalls: Mapping[str, int]) -> Finding:
    most = max(stalls, key=lambda job_id: stalls[job_id])
    text = (
        f"{_jobs(len(stalls))} past every ceiling, again and again ({most[:64]!r}: {stalls[most]:,} stalls): "
        "their workers ignore defa"
    )
    remedy = "upgrade those workers to BullMQ 5.53.2 or newer"
    if state.dialect == "echomq":
        text, remedy = text.partition(": their workers")[0], "see with which ceilings its sweepers run"
    return Finding("serious", state.base, "runaway", text, remedy)


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
            if state.marked:
                stand = "1 mark stands" if state.marked == 1 else f"{state.marked:,} marks stand"
                text += f"; {stand} from an earlier one"
            return Finding("note", state.base, "lease", text, "mqsweep run, or workers with their own check")
        return Finding("ok", state.base, "lease", "free, and nothing is active")
    if state.holder_ttl is None:
        text = f"stalled-check holds {state.holder[:80]!r} without a TTL: no check will ever run again"
        return Finding("serious", state.base, "lease", text, f"DEL {state.base}:stalled-check")
    if state.checked_at is not None:
        ago = max(0.0, now - state.checked_at)
        text = f"a whole-queue check ran {ago:.0f} s ago, so built-in checks are at work; they rest {left}"
        return Finding("note", state.base, "lease", text, "mqsweep run takes over by itself")
    parts = state.holder.split(":")
    if parts[0] == "mqsweep" and len(parts) == 4:
        text = f"held by mqsweep on {parts[1]}, process {parts[2]}, {left}: built-in checks rest"
        return Finding("ok", state.base, "lease", text)
    return Finding("note", state.base, "lease", f"held by {state.holder[:80]!r} {left}")
