"""What a sweep decides: a pure function of what was seen and the policy. Read this to know what mqsweep does.

Marks come before recoveries. The two never touch the same job (a job is recovered only if it was marked before the
walk), and a recovery moves elements about in active, after which a mark's recorded position would no longer hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, overload

from .dialects import Policy
from .scan import Sight

CHUNK = 1000
"""Jobs that become objects at once."""


class Entry(NamedTuple):
    """A stalled job and where it was seen.

    Attributes:
        job_id: the id.
        distances: places in active counted from the tail (1 = the tail), ascending; more than one when the walk
            met the id more than once.
    """

    job_id: bytes
    distances: tuple[int, ...]


class Sights(Protocol):
    """Stalled jobs (`mqsweep.scan.Stalled`)."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: slice, /) -> list[Sight]: ...

    def part(self, marked: bool) -> Sights:
        """Those that are marked, or those that are not."""


class Seen(Protocol):
    """What a scan saw (`mqsweep.scan.Sightings`)."""

    @property
    def stalled(self) -> Sights:
        """Jobs in active without a lock, oldest first."""

    @property
    def locked_marks(self) -> Sequence[bytes]:
        """Marked ids whose lock was seen."""

    @property
    def strays(self) -> Sequence[bytes]:
        """Marked ids that are not in active."""


class Entries(Sequence[Entry]):
    """Entries of stalled jobs, made when they are asked for: a million of them at once would show.

    Args:
        sights: the jobs.
    """

    def __init__(self, sights: Sights) -> None:
        self._sights = sights

    def __len__(self) -> int:
        return len(self._sights)

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...

    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        if isinstance(at, int):
            return self[at : at + 1 or None][0]
        return [Entry(job_id, places) for job_id, places, _ in self._sights[at]]

    def __iter__(self) -> Iterator[Entry]:
        for start in range(0, len(self), CHUNK):
            yield from self[start : start + CHUNK]


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

    mark: Sequence[Entry]
    recover: Sequence[Entry]
    clear: Sequence[bytes]
    strays: Sequence[bytes]
    cover: bool
    held: Sequence[bytes]


def decide(seen: Seen, policy: Policy, *, hold: bool) -> Plan:
    """Decide what to do about what was seen.

    Args:
        seen: what the scan saw.
        policy: the queue's policy.
        hold: leave recoveries out; marks and clears are still done.
    """
    cover = policy.mark == "active"
    first, second = Entries(seen.stalled.part(False)), Entries(seen.stalled.part(True))
    return Plan(
        mark=first,
        recover=() if hold else second,
        clear=() if cover else seen.locked_marks,
        strays=seen.strays,
        cover=cover,
        held=[entry.job_id for entry in second] if hold else (),
    )
