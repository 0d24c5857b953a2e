"""What a sweep decides: a pure function of what was seen and the policy. Read this to know what mqsweep does.

Marks come before recoveries. The two never touch the same job (a job is recovered only if it was marked before the
walk), and a recovery moves elements about in active, after which a mark's recorded position would no longer hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .dialects import Policy


class Entry(NamedTuple):
    """A stalled job and where it was seen.

    Attributes:
        job_id: the id.
        distances: places in active counted from the tail (1 = the tail), ascending; more than one when the walk
            met the id more than once.
    """

    job_id: bytes
    distances: tuple[int, ...]


class Seen(Protocol):
    """What a scan saw (`mqsweep.scan.Sightings`)."""

    @property
    def stalled(self) -> Sequence[tuple[bytes, tuple[int, ...], bool]]:
        """Ids in active without a lock, their distances, whether marked; oldest first."""

    @property
    def locked_marks(self) -> Sequence[bytes]:
        """Marked ids whose lock was seen."""

    @property
    def strays(self) -> Sequence[bytes]:
        """Marked ids that are not in active."""


@dataclass(frozen=True)
class Plan:
    """What the script shall be asked to do, in this order.

    Attributes:
        mark: jobs seen stalled for the first time, oldest first; with ``cover`` they are marked by that.
        recover: jobs seen stalled for the second time, oldest first.
        clear: ids whose lock was seen: their marks go.
        strays: ids not in active: their marks go.
        cover: mark everything in active (``mark="active"``).
        held: ids that would be recovered, had recoveries not been held back.
    """

    mark: tuple[Entry, ...]
    recover: tuple[Entry, ...]
    clear: tuple[bytes, ...]
    strays: tuple[bytes, ...]
    cover: bool
    held: tuple[bytes, ...]


def decide(seen: Seen, policy: Policy, *, hold: bool) -> Plan:
    """Decide what to do about what was seen.

    Args:
        seen: what the scan saw.
        policy: the queue's policy.
        hold: leave recoveries out; marks and clears are still done.
    """
    cover = policy.mark == "active"
    second = tuple(Entry(job_id, places) for job_id, places, marked in seen.stalled if marked)
    first = tuple(Entry(job_id, places) for job_id, places, marked in seen.stalled if not marked)
    return Plan(
        mark=first,
        recover=() if hold else second,
        clear=() if cover else tuple(seen.locked_marks),
        strays=tuple(seen.strays),
        cover=cover,
        held=tuple(entry.job_id for entry in second) if hold else (),
    )
