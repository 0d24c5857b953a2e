"""One look at a queue: its marks, then active from head to tail. Reads only, does no I/O.

A `Scan` says which bytes to send, is fed the bytes that came back, and tells at the end what it saw. It is written
twice, here and in Rust (``_core.Scan``); fed the same bytes both say the same.

Where all is well no Python loop runs per id: replies are cut in C (see `mqsweep.reply`), a window's lock checks are
encoded by one ``join``, and each is settled by one small number.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from typing import NamedTuple, Self, overload

from .errors import ProtocolError, ServerReplyError
from .reply import ReplyReader

MARKS = 1000
"""``COUNT`` of ``SSCAN``."""
FIRST_WINDOW = 16
REPLY_GOAL = 1 << 20
"""Bytes that a window's reply should not exceed: what one did tells how large the next may be."""
PIECES = 8
"""Into how many a check of mixed locks is split."""
MARKS_MOST = 1 << 24
"""Elements that one reply to ``SSCAN`` may have; a compactly stored set comes whole."""
MEMORY = 16_384
"""Jobs over which the share of dead ones is remembered."""
SHORT = 1024
"""Ids of fewer bytes are encoded without a Python loop."""

_SIZES = (1000, 500, 200, 100, 50, 25, 12, 6, 3)


Sight = tuple[bytes, tuple[int, ...], bool]
"""An id in active without a lock, its distances from the tail (1 = the tail, ascending), and whether it is marked."""


_Several = dict[bytes, list[int]]
_OTHERS = bytes([1, 0]) + bytes(254)


class Stalled(Sequence[Sight]):
    """Stalled jobs, oldest first, kept compactly: each becomes an object when it is asked for.

    Args:
        ids: of the jobs.
        distances: of each the one nearest to the tail.
        marked: of each 1 or 0.
        several: all distances of those that were seen at several.
    """

    def __init__(self, ids: list[bytes], distances: array[int], marked: bytearray, several: _Several) -> None:
        self._ids, self._distances, self._marked, self._several = ids, distances, marked, several

    @classmethod
    def of(cls, sights: Iterable[Sight]) -> Self:
        """The same of sights in their order."""
        given = list(sights)
        several = {job_id: list(places) for job_id, places, _ in given if len(places) > 1}
        ids, marked = [sight[0] for sight in given], bytearray(sight[2] for sight in given)
        return cls(ids, array("q", (sight[1][0] for sight in given)), marked, several)

    def part(self, marked: bool) -> Stalled:
        """Those that are marked, or those that are not."""
        if self._marked.count(marked) == len(self):
            return self
        chosen = self._marked if marked else self._marked.translate(_OTHERS)
        ids, distances = list(compress(self._ids, chosen)), array("q", compress(self._distances, chosen))
        return Stalled(ids, distances, bytearray([marked]) * len(ids), self._several)

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> Sight: ...

    @overload
    def __getitem__(self, at: slice) -> list[Sight]: ...

    def __getitem__(self, at: int | slice) -> Sight | list[Sight]:
        if isinstance(at, slice):
            return list(map(self._sight, self._ids[at], self._distances[at], self._marked[at]))
        return self._sight(self._ids[at], self._distances[at], self._marked[at])

    def __iter__(self) -> Iterator[Sight]:
        return map(self._sight, self._ids, self._distances, self._marked)

    def _sight(self, job_id: bytes, distance: int, marked: int) -> Sight:
        several = self._several and self._several.get(job_id)
        return job_id, tuple(sorted(several)) if several else (distance,), bool(marked)


class Sightings(NamedTuple):
    """What a scan saw. An id is in one list only.

    Attributes:
        stalled: jobs in active without a lock, oldest first.
        locked_marks: marked ids whose lock was seen.
        strays: marked ids that a complete walk did not meet in active.
        active_scanned: elements of active that were read, doubles counted.
        stalled_scanned: marks that were read.
    """

    stalled: Stalled
    locked_marks: Sequence[bytes]
    strays: Sequence[bytes]
    active_scanned: int
    stalled_scanned: int


class _Check:
    """Locks asked for at once: keys of these ids."""

    __slots__ = ("distances", "ids")

    def __init__(self, ids: list[bytes], distances: range | list[int] | None) -> None:
        self.ids = ids
        self.distances = distances  # None: these are marks


class _Marked:
    """Marks asked for at once: of these ids, which have no lock."""

    __slots__ = ("ids",)

    def __init__(self, ids: list[bytes]) -> None:
        self.ids = ids


class Scan:
    """One pass over a queue.

    Args:
        stalled: key of the set of marks.
        active: key of the list.
        base: what precedes an id in a job's key, the colon included.
        window: elements of active asked for and not read yet, at most. How long they are shows only in the reply, so
            this bounds what a wrong guess costs: so many of the longest ids. A reply over `REPLY_GOAL` makes those
            asked for next smaller in proportion.
        check: locks asked for at once.
        depth: into how many requests a window is parted, so that the server has the next while one is read.
        keep_locked: marks of living jobs are meant to stand (``mark="active"``): do not report them.
        most_marks: read about so many marks and no more; of the rest only those are asked for whose jobs have no
            lock. Then marks of living jobs and strays are found in slices, some each sweep.
        cursor: where the slice begins: what `cursor` said after the scan before.

    Raises:
        ValueError: ``window``, ``check`` or ``depth`` is less than 1.
    """

    def __init__(
        self,
        *,
        stalled: bytes,
        active: bytes,
        base: bytes,
        window: int = 1200,
        check: int = 100,
        depth: int = 3,
        keep_locked: bool = False,
        most_marks: int | None = None,
        cursor: bytes = b"0",
    ) -> None:
        if min(window, check, depth) < 1:
            raise ValueError("window, check and depth must be 1 or more")
        self._stalled_key, self._active_key = stalled, active
        self._check, self._depth = check, min(depth, window)
        self._most = window // self._depth  # elements that one request asks for, at most
        self._keep_locked = keep_locked
        self._overhead = len(base) + len(b":lock")
        self._heads = [b":lock\r\n$%d\r\n%s" % (n + self._overhead, base) for n in range(SHORT)]
        self._base = base
        self._out: list[bytes] = []
        self._expected: deque[str | tuple[int, int] | _Check | _Marked] = deque()
        self._replies = ReplyReader()
        self._fault: Exception | None = None
        self._seen: set[bytes] = set()  # marks read; empty once the walk has begun
        self._marks_read = False  # SSCAN came to its end
        self._walking = False
        self._marks_open = 0  # checks of marks that are not settled
        self._left = 0  # distance from which on active has not been asked for
        self._windows_open = self._windows_read = 0
        self._size = min(FIRST_WINDOW, self._most)
        self._settled = self._dead = 0  # of the jobs looked at lately, and how many of them had no lock
        self._watched: dict[bytes, None] = {}  # marks whose place in active matters
        self._candidates: set[bytes] = set()  # marks without a lock
        self._unmet: dict[bytes, None] = {}  # the watched that the walk did not meet
        self._locked: dict[bytes, None] = {}  # marks whose lock was seen
        # Where an id was seen, nearest to the tail; all places of those seen at several. Never two at one distance,
        # for windows do not overlap.
        self._lockless: dict[bytes, int] = {}
        self._several: _Several = {}
        self.active_scanned = self.active_total = self.stalled_scanned = 0
        self._range_head = b"*4\r\n$6\r\nLRANGE\r\n" + _bulk(active)
        self._most_marks = most_marks
        self._slice = cursor != b"0"  # whether some marks are not read
        self.cursor = cursor
        self._ask_marks(cursor)

    @property
    def done(self) -> bool:
        """Whether all has been seen."""
        return self._walking and not self._expected and self._fault is None

    def outgoing(self) -> bytes:
        """Bytes to send now; each is given out once."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def feed(self, data: bytes) -> None:
        """Take bytes that came back, cut anywhere.

        Raises:
            ProtocolError: they are no reply to what was asked; the scan is dead.
            ServerReplyError: the server answered with an error; the scan is dead.
        """
        if self._fault is not None:
            raise self._fault
        try:
            self._replies.feed(data)
            self._read()
        except (ProtocolError, ServerReplyError) as fault:
            self._fault = fault
            raise

    def sightings(self) -> Sightings:
        """What was seen; to be asked when the scan is done."""
        if not self.done:
            raise RuntimeError("the scan is not done")
        lockless, candidates = self._lockless, self._candidates
        ids = sorted(lockless, key=lockless.__getitem__)
        # seen with a lock at another look: locked, or watched for a place in active alone
        if other := self._locked.keys() | (self._watched.keys() - candidates):
            ids = [i for i in ids if i not in other]
        distances, marked = array("q", map(lockless.__getitem__, ids)), bytearray(map(candidates.__contains__, ids))
        stalled = Stalled(ids, distances, marked, self._several)
        strays = [i for i in self._unmet if i not in self._locked]
        locked = [] if self._keep_locked else list(self._locked)
        return Sightings(stalled, locked, strays, self.active_scanned, self.stalled_scanned)

    # asking

    def _ask_marks(self, cursor: bytes) -> None:
        self._out.append(
            b"*5\r\n$5\r\nSSCAN\r\n%s%s$5\r\nCOUNT\r\n%s"
            % (_bulk(self._stalled_key), _bulk(cursor), _bulk(b"%d" % MARKS))
        )
        self._expected.append("marks")

    def _ask_windows(self) -> None:
        depth = self._depth if self._windows_read else 1  # how long ids are shows in the first reply
        while self._left and self._windows_open < depth:
            low = max(1, self._left - self._size + 1)
            self._out.append(self._range_head + _bulk(b"-%d" % self._left) + _bulk(b"-%d" % low))
            self._expected.append((self._left, low))
            self._windows_open += 1
            self._left = low - 1

    def _ask_locks(self, ids: list[bytes], distances: range | None) -> None:
        size = self._check_size()
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            self._ask_check(_Check(ids[part], distances and distances[part]))

    def _check_size(self) -> int:
        """How many locks to ask for at once: fewer, the more often a check would come back mixed.

        With a share p of the rarer kind about 1 / sqrt(p) is best: group testing.
        """
        rare = min(self._dead, self._settled - self._dead)
        return next((n for n in _SIZES if n <= self._check and n * n * rare <= self._settled), 1)

    def _ask_check(self, check: _Check) -> None:
        if check.distances is None:
            self._marks_open += 1
        self._out.append(self._encode(check.ids))
        self._expected.append(check)

    def _ask_marked(self, ids: list[bytes]) -> None:
        parts = [_bulk(job_id) for job_id in ids]
        self._out.append(b"*%d\r\n$10\r\nSMISMEMBER\r\n%s" % (len(ids) + 2, _bulk(self._stalled_key) + b"".join(parts)))
        self._expected.append(_Marked(ids))

    def _encode(self, ids: list[bytes]) -> bytes:
        try:
            heads = list(map(self._heads.__getitem__, map(len, ids)))
        except IndexError:
            heads = [b":lock\r\n$%d\r\n%s" % (len(i) + self._overhead, self._base) for i in ids]
        first = heads[0]
        if heads.count(first) == len(heads):
            body = first[7:] + first.join(ids)
        else:
            body = b"".join(chain.from_iterable(zip(heads, ids, strict=True)))[7:]
        return b"*%d\r\n$6\r\nEXISTS\r\n%s:lock\r\n" % (len(ids) + 1, body)

    # reading

    def _read(self) -> None:
        while self._expected and self._take(self._expected[0]):
            pass
        if not self._expected and self._replies.pending:
            raise ProtocolError("the server sent a reply that was not asked for")

    def _take(self, asked: str | tuple[int, int] | _Check | _Marked) -> bool:
        """Read the reply to what was asked. Returns whether it was complete."""
        if isinstance(asked, tuple):
            ids = self._replies.bulks(asked[0] - asked[1] + 1)
            if ids is None:
                return False
            self._expected.popleft()
            self._window_read(ids, *asked)
            return True
        if isinstance(asked, _Marked):
            flags = self._replies.flags(len(asked.ids))
            if flags is None:
                return False
            if len(flags) != len(asked.ids):
                raise ProtocolError(f"SMISMEMBER of {len(asked.ids)} members answered {len(flags)}")
            self._expected.popleft()
            self._candidates.update(compress(asked.ids, flags))
            return True
        if asked == "marks":
            read = self._replies.scanned(MARKS_MOST)
            if read is None:
                return False
            self._expected.popleft()
            self._marks_read_on(*read)
            return True
        number = self._replies.integer()
        if number is None:
            return False
        self._expected.popleft()
        if isinstance(asked, _Check):
            self._settle(asked, number)
        else:
            self._measured(number)
        return True

    # what replies mean

    def _marks_read_on(self, cursor: bytes, ids: list[bytes]) -> None:
        fresh = list(dict.fromkeys(ids))
        if not self._seen.isdisjoint(fresh):
            fresh = [i for i in fresh if i not in self._seen]
        self._seen.update(fresh)
        self.stalled_scanned += len(fresh)
        self.cursor = cursor
        if cursor != b"0" and (self._most_marks is None or self.stalled_scanned < self._most_marks):
            self._ask_marks(cursor)
        else:
            self._slice = self._slice or cursor != b"0"
            self._marks_read = True
        self._ask_locks(fresh, None)
        self._walk_if_ready()

    def _measured(self, length: int) -> None:
        if length < 0:
            raise ProtocolError(f"LLEN answered {length}")
        self._left = self.active_total = length
        self._ask_windows()

    def _window_read(self, ids: list[bytes], high: int, low: int) -> None:
        self._windows_open -= 1
        self._windows_read += 1
        self.active_scanned += len(ids)
        size = sum(map(len, ids))
        if size > REPLY_GOAL:
            self._size = max(1, len(ids) * REPLY_GOAL // size)
        elif size < REPLY_GOAL // 8 and high - low + 1 >= self._size:
            self._size = min(self._most, self._size * 4)
        if self._unmet:
            deque(map(self._unmet.__delitem__, self._unmet.keys() & ids), maxlen=0)
        self._ask_windows()
        self._ask_locks(ids, range(low + len(ids) - 1, low - 1, -1))

    def _settle(self, check: _Check, alive: int) -> None:
        ids, distances = check.ids, check.distances
        if not 0 <= alive <= len(ids):
            raise ProtocolError(f"EXISTS of {len(ids)} keys answered {alive}")
        if distances is None:
            self._marks_open -= 1
        if 0 < alive < len(ids):
            piece = -(-len(ids) // PIECES)
            for start in range(0, len(ids), piece):
                part = slice(start, start + piece)
                self._ask_check(_Check(ids[part], distances and distances[part]))
            self._walk_if_ready()
            return
        self._settled += len(ids)
        self._dead += 0 if alive else len(ids)
        if self._settled > MEMORY:
            self._settled //= 2
            self._dead //= 2
        if distances is None:
            self._watched.update(dict.fromkeys(ids) if self._keep_locked or not alive else ())
            if alive:
                self._locked.update(dict.fromkeys(ids) if not self._keep_locked else ())
            else:
                self._candidates.update(ids)
        elif not alive:
            self._sight(ids, distances)
            if self._slice:
                self._ask_marked(ids)
        elif self._candidates:
            self._locked.update(dict.fromkeys(i for i in ids if i in self._candidates))
        self._walk_if_ready()

    def _sight(self, ids: list[bytes], distances: range | list[int]) -> None:
        """Remember where ids without a lock are, without a Python loop where each is met for the first time."""
        sights = dict(zip(ids, distances, strict=True))
        if len(sights) == len(ids) and self._lockless.keys().isdisjoint(sights):
            self._lockless.update(sights)
            return
        for job_id, distance in zip(ids, distances, strict=True):
            known = self._lockless.get(job_id)
            if known is None:
                self._lockless[job_id] = distance
            else:
                self._lockless[job_id] = min(known, distance)
                self._several.setdefault(job_id, [known]).append(distance)

    def _walk_if_ready(self) -> None:
        """The walk begins when every mark is settled: only then is it known which ids to look out for."""
        if self._marks_read and not self._marks_open and not self._walking:
            self._walking = True
            self._seen.clear()
            self._unmet = dict.fromkeys(self._watched)
            self._settled = self._dead = 0  # how many of the marked are dead says nothing about active
            self._out.append(b"*2\r\n$4\r\nLLEN\r\n" + _bulk(self._active_key))
            self._expected.append("length")


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)
