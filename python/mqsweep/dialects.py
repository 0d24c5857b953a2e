"""What each dialect does: key layout, defaults and recovery policy."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Literal, cast

from .errors import ConfigurationError
from .keys import QueueKeys, to_bytes

DialectName = Literal["echomq", "bullmq"]
Mark = Literal["lockless", "active"]
Requeue = Literal["back", "front"]


@dataclass(frozen=True)
class Dialect:
    """The defaults of one queue library.

    Attributes:
        prefix: first part of every key.
        hash_tag: whether the queue's name is put in braces.
        interval: seconds between the starts of two sweeps.
        requeue: where a recovered job joins ``wait``.
    """

    name: DialectName
    prefix: str
    hash_tag: bool
    interval: float
    requeue: Requeue


DIALECTS = {
    "echomq": Dialect("echomq", "emq", True, 30.0, "back"),
    "bullmq": Dialect("bullmq", "bull", False, 15.0, "front"),
}


@dataclass(frozen=True)
class Policy:
    """What is decided for one queue before a sweep looks at it; the script gets it with every call."""

    dialect: DialectName
    mark: Mark
    requeue: Requeue
    max_stalled_count: int
    max_attempts: int | None = None
    bullmq_version: tuple[int, ...] | None = None

    def to_json(self, *, status: bool = False) -> bytes:
        """The script's fifth argument.

        Args:
            status: ask the whole-queue form to say how the sweep ended.
        """
        fields: dict[str, object] = {"dialect": self.dialect, "mark": self.mark, "requeue": self.requeue}
        if self.max_attempts is not None:
            fields["max_attempts"] = self.max_attempts
        if self.bullmq_version is not None:
            fields["version"] = ".".join(map(str, self.bullmq_version))
        if status:
            fields["status"] = True
        return json.dumps(fields, separators=(",", ":")).encode()


def choice(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """The value, if it is one of the allowed words.

    Raises:
        ConfigurationError: it is not.
    """
    if value not in allowed:
        raise ConfigurationError(f"{name}={value!r}: must be one of {', '.join(map(repr, allowed))}")
    return str(value)


def whole_number(name: str, value: object, least: int) -> int:
    """The value, if it is an integer of at least ``least`` that a double can hold.

    Raises:
        ConfigurationError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**53:
        raise ConfigurationError(f"{name}={value!r}: must be a whole number of {least} or more")
    return value


def seconds(name: str, value: object, least: float = 0.001) -> float:
    """The value, if it is a finite number of seconds of at least ``least``.

    Raises:
        ConfigurationError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigurationError(f"{name}={value!r}: must be a number of seconds")
    if not least <= value <= 10 * 365 * 86400:
        raise ConfigurationError(f"{name}={value!r}: must be {least} seconds or more")
    return float(value)


def dialect_of(name: object) -> Dialect:
    """The dialect of that name.

    Raises:
        ConfigurationError: there is none.
    """
    return DIALECTS[choice("dialect", name, tuple(DIALECTS))]


def base_of(dialect: Dialect, queue: object, prefix: object, hash_tag: object) -> QueueKeys:
    """The queue's keys.

    Args:
        dialect: whose layout.
        queue: the queue's name.
        prefix: first part of every key; ``None`` = the dialect's.
        hash_tag: put the name in braces; ``None`` = as the dialect does.

    Raises:
        ConfigurationError: a name that is empty or no text.
    """
    if not isinstance(queue, str) or not queue:
        raise ConfigurationError(f"queue={queue!r}: must be the queue's name, a string that is not empty")
    if prefix is not None and (not isinstance(prefix, str) or not prefix):
        raise ConfigurationError(f"prefix={prefix!r}: must be a string that is not empty, or None")
    if hash_tag is not None and not isinstance(hash_tag, bool):
        raise ConfigurationError(f"hash_tag={hash_tag!r}: must be True, False or None")
    braces = dialect.hash_tag if hash_tag is None else hash_tag
    name = "{" + queue + "}" if braces else queue
    return QueueKeys(to_bytes(f"{prefix or dialect.prefix}:{name}"))


def parse_version(text: str) -> tuple[int, ...] | None:
    """The numbers of a version such as ``6.2.0``, ``6`` or ``v5.81.3-beta.1``; ``None`` if there are none."""
    found = re.fullmatch(r"v?(\d+(?:\.\d+){0,2})(?:[-+.].*)?", text.strip())
    return tuple(int(part) for part in found.group(1).split(".")) if found else None


def policy_of(
    dialect: Dialect,
    *,
    mark: object,
    requeue: object,
    max_stalled_count: object,
    max_attempts: object,
    bullmq_version: object,
) -> Policy:
    """Check what a user asked for.

    Raises:
        ConfigurationError: a value that cannot work, or an option that the dialect does not know.
    """
    stalls = whole_number("max_stalled_count", max_stalled_count, 0)
    attempts = None if max_attempts is None else whole_number("max_attempts", max_attempts, 1)
    if attempts is not None and dialect.name == "bullmq":
        raise ConfigurationError(
            f"max_attempts={max_attempts!r}: BullMQ's ceiling is stalls alone; leave it out and set max_stalled_count"
        )
    version = None
    if bullmq_version is not None:
        version = parse_version(str(bullmq_version))
        if dialect.name != "bullmq" or version is None:
            raise ConfigurationError(
                f"bullmq_version={bullmq_version!r}: must be a version such as '6.2.0', with dialect='bullmq'"
            )
    return Policy(
        dialect=dialect.name,
        mark=cast(Mark, choice("mark", mark, ("lockless", "active"))),
        requeue=dialect.requeue if requeue is None else cast(Requeue, choice("requeue", requeue, ("back", "front"))),
        max_stalled_count=stalls,
        max_attempts=attempts,
        bullmq_version=version,
    )
