"""Which BullMQ a queue belongs to, and how that is told.

Releases differ in where a job past its ceiling goes, and in where a paused queue keeps its jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .dialects import Policy, parse_version

LAZY_FAILURE = (5, 53, 2)
"""The first release that leaves a job past its ceiling to the next worker (``defa``). Those before fail it inside their
stalled check, with parents, ``removeOnFail`` and deduplication in other queues' keys: they are refused."""
NEWEST = 6
"""The newest major release that is known, and the first whose paused queues keep their jobs in ``wait``."""

UNKNOWN = (
    "the queue is paused, and nobody says whether BullMQ 5 or 6 owns it, which keep its jobs in different lists; "
    "set bullmq_version (--bullmq-version), or resume the queue"
)

ToldBy = Literal["option", "meta.version", "lists", "nothing"]


@dataclass(frozen=True)
class Generation:
    """What is known of a queue's BullMQ.

    Attributes:
        version: its numbers, as many as are known; only the major one where the lists told it.
        told_by: ``option`` (the user), ``meta.version`` (its own ports), ``lists`` (a paused queue has jobs in only one
            of ``wait`` and ``paused``), or ``nothing``.
        paused_list: whether a paused queue keeps its jobs in ``paused``; ``None`` = nobody knows.
    """

    version: tuple[int, ...] | None
    told_by: ToldBy
    paused_list: bool | None

    @property
    def eager(self) -> bool:
        """Whether its stalled check fails jobs itself."""
        return self.version is not None and self.version < LAZY_FAILURE[: len(self.version)]

    def __str__(self) -> str:
        if self.version is None:
            return "unknown"
        return f"BullMQ {'.'.join(map(str, self.version))} ({self.told_by})"


def generation(policy: Policy, version: str | None, *, paused: bool, waiting: bool, in_paused: bool) -> Generation:
    """Tell a queue's generation; the script tells it the same way at the instant when it matters.

    Args:
        policy: says what the user knows.
        version: ``meta.version``, if it is set.
        paused: whether the queue is paused.
        waiting: whether ``wait`` has jobs.
        in_paused: whether ``paused`` has.
    """
    by_lists = in_paused if paused and waiting != in_paused else None
    told_by: ToldBy = "option"
    numbers = policy.bullmq_version
    if numbers is None and version is not None and version.startswith("bullmq:"):
        told_by, numbers = "meta.version", parse_version(version.removeprefix("bullmq:"))
    if numbers is not None:
        return Generation(numbers, told_by, numbers[0] < NEWEST if numbers[0] <= NEWEST else by_lists)
    if by_lists is not None:
        return Generation((5,) if by_lists else (6,), "lists", by_lists)
    return Generation(None, "nothing", None)
