"""What went wrong, as an exit code and one line that says what to do."""

from __future__ import annotations

from enum import IntEnum

import redis

from ..errors import ConfigurationError, MQSweepError
from .options import hidden
from .output import escape

TEXT_LIMIT = 400


class Exit(IntEnum):
    """The exit codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    BUSY = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141


EXPECTED = (MQSweepError, redis.RedisError)
"""What a command may meet; anything else is a bug of ours."""


def explain(fault: Exception, url: str) -> tuple[Exit, str]:
    """The exit code for a fault, and a line for it.

    Args:
        fault: one of `EXPECTED`.
        url: where Redis was looked for; printed masked.
    """
    text = escape(str(fault).removeprefix("mqsweep: "), TEXT_LIMIT)  # the script says whose error it is
    if isinstance(fault, ConfigurationError):
        return Exit.USAGE, text
    if isinstance(fault, (redis.AuthenticationError, redis.exceptions.AuthorizationError)):
        return Exit.UNREACHABLE, f"Redis at {hidden(url)} refused the login: {text}; check user and password in the URL"
    if isinstance(fault, redis.BusyLoadingError):
        return Exit.UNREACHABLE, f"Redis at {hidden(url)} is still loading its data: {text}; try again later"
    if isinstance(fault, redis.TimeoutError):
        return Exit.UNREACHABLE, f"Redis at {hidden(url)} did not answer: {text}; check its load, or raise --timeout"
    if isinstance(fault, redis.ConnectionError):
        return (
            Exit.UNREACHABLE,
            f"Redis at {hidden(url)} is not reachable: {text}; check that it runs there, and the URL",
        )
    return Exit.FAILED, text


def explain_for(queue: str, fault: Exception, url: str) -> tuple[Exit, str]:
    """As `explain`, for one queue of several."""
    code, text = explain(fault, url)
    return code, text if code in (Exit.USAGE, Exit.UNREACHABLE) else f"{escape(queue)}: {text}"
