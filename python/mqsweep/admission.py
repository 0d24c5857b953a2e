"""Whether a queue may be swept, and whether its jobs may be recovered now: what the first round trip told decides."""

from __future__ import annotations

from .dialects import Policy
from .errors import UnsupportedQueueError, WrongTypeError
from .generations import LAZY_FAILURE, UNKNOWN, Generation, generation
from .keys import QueueKeys, to_str
from .lease import Opening

REPLICA = "this server is a replica, where locks are seen late or not at all; connect to the primary"


def refuse(policy: Policy, keys: QueueKeys, opening: Opening) -> None:
    """Refuse a queue that must not be touched.

    Raises:
        UnsupportedQueueError: another protocol, or a part that mqsweep does not maintain.
        WrongTypeError: active is no list, or the marks are no set.
    """
    if opening.info.get(b"role") == b"slave" and opening.info.get(b"slave_read_only") == b"0":
        raise UnsupportedQueueError(REPLICA)  # one that takes no writes says so itself
    name = to_str(keys.of("active"))
    if opening.active_type == "zset":
        raise UnsupportedQueueError(
            f"{name!r} is a sorted set: this is an EchoMQ 2 queue, which has leases instead of locks; "
            "mqsweep sweeps EchoMQ 1 and BullMQ"
        )
    if opening.active_type not in ("list", "none"):
        raise WrongTypeError(f"{name!r} is a {opening.active_type}, not a list; nothing was changed")
    if not opening.stalled_is_set:
        raise WrongTypeError(f"{to_str(keys.of('stalled'))!r} is not a set; nothing was changed")
    if policy.dialect != "bullmq":
        return
    if opening.pro:
        raise UnsupportedQueueError(
            f"{to_str(keys.base)!r} has groups of BullMQ Pro, whose state a recovery would have to maintain; "
            "leave this queue to its own stalled check"
        )
    if opening.bull:
        raise UnsupportedQueueError(
            f"{to_str(keys.base)!r} is a queue of Bull, BullMQ's predecessor, whose jobs have other fields; "
            "leave this queue to its own stalled check, or move it to BullMQ"
        )
    owner = generation_of(policy, opening)
    if owner.eager:
        raise UnsupportedQueueError(
            f"{to_str(keys.base)!r} is of {owner}, which fails jobs inside its stalled check; "
            f"supported from {'.'.join(map(str, LAZY_FAILURE))} on; leave this queue to its own stalled check, "
            "or upgrade its workers"
        )


def generation_of(policy: Policy, opening: Opening) -> Generation:
    """Which BullMQ the queue belongs to."""
    return generation(
        policy, opening.version, paused=opening.paused, waiting=opening.waiting, in_paused=opening.in_paused
    )


def holds_back(policy: Policy, opening: Opening) -> str | None:
    """Why recoveries must wait, if they must: a paused BullMQ queue of which nobody knows where it keeps its jobs.

    BullMQ 6 leaves them in ``wait``, 5 has them in ``paused``; a job pushed to the wrong list is stranded.
    """
    if policy.dialect != "bullmq" or not opening.paused:
        return None
    return UNKNOWN if generation_of(policy, opening).paused_list is None else None
