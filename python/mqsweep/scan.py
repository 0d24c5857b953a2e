"""One look at a queue: its marks, then active from head to tail. Reads only, does no I/O.

A `Scan` says which bytes to send, is fed the bytes that came back, and tells at the end what it saw. It is written
twice, here and in Rust (``_core.Scan``); fed the same bytes both say the same.

Where all is well no Python loop runs per id: a chunk is cut by one ``bytes.split``, a window's framing is proven by
mapping lengths in C, its lock checks are encoded by one ``join``, and each is settled by one small number.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import NamedTuple

from .errors import ProtocolError, ServerReplyError

MARKS = 1000
"""``COUNT`` of ``SSCAN``."""
FIRST_WINDOW = 16
REPLY_GOAL = 1 << 20
"""Bytes of a window's reply from which on windows get smaller."""
PIECES = 8
"""Into how many a check of mixed locks is split."""
LIMIT = 512 << 20
"""Bytes of one element, the server's own bound."""
_HEADERS = [b"$%d" % n for n in range(1024)]


class Sightings(NamedTuple):
    """What a scan saw. An id is in one list only.

    Attributes:
        stalled: ids in active without a lock, their distances from the tail (1 = the tail, ascending), and whether
            they are marked; oldest first.
        locked_marks: marked ids whose lock was seen.
        strays: marked ids that a complete walk did not meet in active.
        active_scanned: elements of active that were read, doubles counted.
        stalled_scanned: marks that were read.
    """

    stalled: list[tuple[bytes, tuple[int, ...], bool]]
    locked_marks: list[bytes]
    strays: list[bytes]
    active_scanned: int
    stalled_scanned: int


class _Check:
    """Locks asked for at once: keys of these ids."""

    __slots__ = ("distances", "ids")

    def __init__(self, ids: list[bytes], distances: range | list[int] | None) -> None:
        self.ids = ids
        self.distances = distances  # None: these are marks


class Scan:
    """One pass over a queue.

    Args:
        stalled: key of the set of marks.
        active: key of the list.
        base: what precedes an id in a job's key, the colon included.
        window: elements of active asked for at once, at most.
        check: locks asked for at once.
        depth: windows asked for ahead of their replies.
        keep_locked: marks of living jobs are meant to stand (``mark="active"``): do not report them.
    """

    def __init__(
        self,
        *,
        stalled: bytes,
        active: bytes,
        base: bytes,
        window: int = 1000,
        check: int = 100,
        depth: int = 3,
        keep_locked: bool = False,
    ) -> None:
        self._stalled_key, self._active_key = stalled, active
        self._window, self._check, self._depth = window, check, depth
        self._keep_locked = keep_locked
        self._overhead = len(base) + len(b":lock")
        self._heads = [b":lock\r\n$%d\r\n%s" % (n + self._overhead, base) for n in range(len(_HEADERS))]
        self._base = base
        self._out: list[bytes] = []
        self._expected: deque[str | tuple[int, int] | _Check] = deque()
        self._lines: list[bytes] = []
        self._rest = b""
        self._fault: Exception | None = None
        self._seen: set[bytes] = set()  # marks read
        self._marks_read = False  # SSCAN came to its end
        self._walking = False
        self._marks_open = 0  # checks of marks that are not settled
        self._left = 0  # distance from which on active has not been asked for
        self._windows_open = 0
        self._size = min(FIRST_WINDOW, window)
        self._watched: dict[bytes, None] = {}  # marks whose place in active matters
        self._candidates: set[bytes] = set()  # marks without a lock
        self._met: set[bytes] = set()  # the watched that the walk met
        self._locked: dict[bytes, None] = {}  # marks whose lock was seen
        self._lockless: dict[bytes, set[int]] = {}
        self.active_scanned = self.active_total = 0
        self._range_head = b"*4\r\n$6\r\nLRANGE\r\n" + _bulk(active)
        self._ask_marks(b"0")

    @property
    def done(self) -> bool:
        """Whether all has been seen."""
        return self._walking and not self._expected and self._fault is None

    @property
    def stalled_scanned(self) -> int:
        """Marks read so far, none counted twice."""
        return len(self._seen)

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
            self._feed(data)
        except (ProtocolError, ServerReplyError) as fault:
            self._fault = fault
            raise

    def sightings(self) -> Sightings:
        """What was seen; to be asked when the scan is done."""
        if not self.done:
            raise RuntimeError("the scan is not done")
        stalled = []
        for job_id, distances in self._lockless.items():
            marked = job_id in self._candidates
            if job_id in self._locked or (not marked and job_id in self._watched):
                continue
            stalled.append((job_id, tuple(sorted(distances)), marked))
        stalled.sort(key=lambda sight: (sight[1][0], sight[0]))
        strays = [i for i in self._watched if i not in self._met and i not in self._locked]
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
        depth = self._depth if self.active_scanned else 1  # how long ids are shows in the first reply
        while self._left and self._windows_open < depth:
            low = max(1, self._left - self._size + 1)
            self._out.append(self._range_head + _bulk(b"-%d" % self._left) + _bulk(b"-%d" % low))
            self._expected.append((self._left, low))
            self._windows_open += 1
            self._left = low - 1

    def _ask_locks(self, ids: list[bytes], distances: range | None) -> None:
        for start in range(0, len(ids), self._check):
            self._ask_check(
                _Check(ids[start : start + self._check], distances and distances[start : start + self._check])
            )

    def _ask_check(self, check: _Check) -> None:
        if check.distances is None:
            self._marks_open += 1
        self._out.append(self._encode(check.ids))
        self._expected.append(check)

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

    def _feed(self, data: bytes) -> None:
        parts = (self._rest + data).split(b"\r\n")
        self._rest = parts.pop()
        self._lines += parts
        at = 0
        while self._expected and at < len(self._lines):
            after = self._take(at)
            if after is None:
                break
            at = after
        del self._lines[:at]
        if len(self._rest) > LIMIT:
            raise ProtocolError("an element is longer than 512 MiB")
        if not self._expected and (self._lines or self._rest):
            raise ProtocolError("the server sent a reply that was not asked for")

    def _take(self, at: int) -> int | None:
        """Read the next reply, if it is complete. Returns the line after it."""
        asked = self._expected[0]
        line = self._lines[at]
        if line[:1] == b"-":
            raise ServerReplyError(line[1:])
        if isinstance(asked, _Check):
            self._expected.popleft()
            self._settle(asked, _integer(line))
            return at + 1
        if asked == "length":
            self._expected.popleft()
            self._left = self.active_total = _integer(line)
            self._ask_windows()
            return at + 1
        if isinstance(asked, tuple):
            read = self._array(at, asked[0] - asked[1] + 1)
            if read is None:
                return None
            self._expected.popleft()
            self._window_read(read[0], asked[1])
            return read[1]
        return self._take_marks(at)

    def _take_marks(self, at: int) -> int | None:
        if self._lines[at] != b"*2":
            raise ProtocolError(f"unexpected reply to SSCAN: {_shown(self._lines[at])}")
        if len(self._lines) < at + 4:
            return None
        cursor = self._lines[at + 2]
        if not cursor.isdigit() or self._lines[at + 1] != b"$%d" % len(cursor):
            raise ProtocolError(f"SSCAN's cursor is no number: {_shown(cursor)}")
        read = self._array(at + 3, 1 << 24)
        if read is None:
            return None
        self._expected.popleft()
        fresh = [i for i in dict.fromkeys(read[0]) if i not in self._seen]
        self._seen.update(fresh)
        if cursor != b"0":
            self._ask_marks(cursor)
        else:
            self._marks_read = True
        self._ask_locks(fresh, None)
        self._walk_if_ready()
        return read[1]

    def _array(self, at: int, most: int) -> tuple[list[bytes], int] | None:
        """Read an array of bulk strings. Returns its elements and the line after it, or None: not complete."""
        lines = self._lines
        count = _length(lines[at], b"*", most)
        end = at + 1 + 2 * count
        if len(lines) < end:
            return None
        headers, ids = lines[at + 1 : end : 2], lines[at + 2 : end : 2]
        try:
            if list(map(_HEADERS.__getitem__, map(len, ids))) == headers:
                return ids, end
        except IndexError:
            pass
        return self._array_slowly(at, count)

    def _array_slowly(self, at: int, count: int) -> tuple[list[bytes], int] | None:
        """The same for ids that hold line ends or are long: cut by their lengths."""
        raw = b"\r\n".join(self._lines[at + 1 :]) + b"\r\n" + self._rest
        if at + 1 == len(self._lines):
            raw = self._rest
        ids: list[bytes] = []
        start = 0
        for _ in range(count):
            stop = raw.find(b"\r\n", start)
            if stop < 0:
                return None
            end = stop + 2 + _length(raw[start:stop], b"$", LIMIT)
            if len(raw) < end + 2:
                return None
            if raw[end : end + 2] != b"\r\n":
                raise ProtocolError("an element is longer than its header says")
            ids.append(raw[stop + 2 : end])
            start = end + 2
        parts = raw[start:].split(b"\r\n")
        self._rest = parts.pop()
        self._lines[at + 1 :] = parts
        return ids, at + 1

    # what replies mean

    def _window_read(self, ids: list[bytes], low: int) -> None:
        self._windows_open -= 1
        self.active_scanned += len(ids)
        size = sum(map(len, ids))
        if size > REPLY_GOAL:
            self._size = max(1, self._size // 2)
        elif size < REPLY_GOAL // 8 and len(ids) >= self._size:
            self._size = min(self._window, self._size * 4)
        if self._watched:
            self._met.update(self._watched.keys() & ids)
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
        elif distances is None:
            self._watched.update(dict.fromkeys(ids) if self._keep_locked or not alive else ())
            if alive:
                self._locked.update(dict.fromkeys(ids) if not self._keep_locked else ())
            else:
                self._candidates.update(ids)
        elif not alive:
            for job_id, distance in zip(ids, distances, strict=True):
                self._lockless.setdefault(job_id, set()).add(distance)
        elif self._candidates:
            self._locked.update(dict.fromkeys(i for i in ids if i in self._candidates))
        self._walk_if_ready()

    def _walk_if_ready(self) -> None:
        """The walk begins when every mark is settled: only then is it known which ids to look out for."""
        if self._marks_read and not self._marks_open and not self._walking:
            self._walking = True
            self._out.append(b"*2\r\n$4\r\nLLEN\r\n" + _bulk(self._active_key))
            self._expected.append("length")


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


def _shown(data: bytes) -> str:
    return ascii(data[:40])[1:]


def _integer(line: bytes) -> int:
    digits = line[1:]
    if line[:1] != b":" or not digits.lstrip(b"-").isdigit() or len(digits) > 20:
        raise ProtocolError(f"expected a number, got {_shown(line)}")
    return int(digits)


def _length(line: bytes, kind: bytes, most: int) -> int:
    digits = line[1:]
    if line[:1] != kind or not digits.isdigit() or len(digits) > 10 or int(digits) > most:
        raise ProtocolError(f"expected {kind.decode()} and a length of at most {most}, got {_shown(line)}")
    return int(digits)
