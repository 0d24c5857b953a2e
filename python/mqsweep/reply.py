"""Reading replies: RESP2, cut anywhere, of the four shapes that a scan asks for.

It is written twice, here and in Rust (``_core.ReplyReader``); fed the same bytes both say the same. Where all is well
no Python loop runs per element: a chunk is cut by one ``bytes.split``, and an array's framing is proven by mapping
lengths in C.
"""

from __future__ import annotations

from .errors import ProtocolError, ServerReplyError

LONGEST = 512 << 20
"""Bytes of one element at most, the server's own bound."""
LONGEST_LINE = 64 << 10
"""Bytes of a line that is no element (a number, a header, an error) at most."""
LONGEST_HEADER = 64
"""Bytes of an element's header at most."""
QUOTED = 40
"""Bytes of a server that an error quotes at most."""

_HEADERS = [b"$%d" % n for n in range(1024)]
_FLAGS = frozenset((b":0", b":1"))
_KNOWN_HEADERS = frozenset(_HEADERS)


class ReplyReader:
    """Takes bytes as they come and gives out replies in order.

    Each of `integer`, `bulks`, `flags` and `scanned` reads the next reply, or returns ``None`` while it is not
    complete. An error reply raises `ServerReplyError`; bytes that are not the reply asked for raise `ProtocolError`. A
    reply that was asked for as one kind is to be asked for as that kind until it is complete. Memory is bounded by what
    has arrived, never by what a header announces; no byte is looked at again for each chunk that follows it.
    """

    def __init__(self) -> None:
        # Complete lines; an element's header is one, its bytes another: more of them until the element is complete.
        self._lines: list[bytes] = []
        self._at = 0
        self._rest = b""
        self._framed = 0  # elements of the array at hand that are known to be complete: two lines each
        self._held: list[bytes] = []  # chunks of a long element, which are not worth cutting yet
        self._missing = 0  # bytes that must come before they are

    def feed(self, data: bytes) -> None:
        """Take bytes that came back."""
        if self._missing > 0:
            self._held.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._held)
            self._held.clear()
        parts = (self._rest + data).split(b"\r\n")
        self._rest = parts.pop()
        del self._lines[: self._at]
        self._at = 0
        self._lines += parts

    @property
    def pending(self) -> bool:
        """Whether bytes have arrived that no reply was read from yet."""
        return self._at < len(self._lines) or bool(self._rest)

    def integer(self) -> int | None:
        """The next reply, a number.

        Raises:
            ProtocolError: it is no number of 64 bits.
            ServerReplyError: it is an error.
        """
        line = self._head()
        if line is None:
            return None
        digits = line[1:]
        bare = digits[1:] if digits[:1] == b"-" else digits
        if line[:1] != b":" or not bare.isdigit() or len(bare) > 19 or not -(2**63) <= int(digits) < 2**63:
            raise ProtocolError(f"expected a number, got {shown(line)}")
        self._at += 1
        return int(digits)

    def bulks(self, most: int) -> list[bytes] | None:
        """The next reply, an array of bulk strings.

        Args:
            most: elements that it may have.

        Raises:
            ProtocolError: it is no such array.
            ServerReplyError: it is an error.
        """
        line = self._head()
        if line is None:
            return None
        read = self._array(self._at, most)
        if read is None:
            return None
        self._at = read[1]
        return read[0]

    def flags(self, most: int) -> list[bool] | None:
        """The next reply, an array of zeros and ones, as ``SMISMEMBER`` sends it.

        Args:
            most: elements that it may have.

        Raises:
            ProtocolError: it is no such array.
            ServerReplyError: it is an error.
        """
        line = self._head()
        if line is None:
            return None
        count = _length(line, b"*", most)
        start = self._at + 1
        flags = self._lines[start : start + count]
        if not _FLAGS.issuperset(flags):
            wrong = next(flag for flag in flags if flag not in _FLAGS)
            raise ProtocolError(f"expected 0 or 1, got {shown(wrong)}")
        if len(flags) < count:
            self._bound(LONGEST_LINE)
            return None
        self._at = start + count
        return [flag == b":1" for flag in flags]

    def scanned(self, most: int) -> tuple[bytes, list[bytes]] | None:
        """The next reply, a cursor and an array of bulk strings, as ``SSCAN`` sends it.

        Args:
            most: elements that the array may have.

        Raises:
            ProtocolError: it is no such pair.
            ServerReplyError: it is an error.
        """
        line = self._head()
        if line is None:
            return None
        if line != b"*2":
            raise ProtocolError(f"expected a cursor and elements, got {shown(line)}")
        at = self._at
        if len(self._lines) < at + 4:
            self._bound(LONGEST_LINE)
            return None
        cursor = self._lines[at + 2]
        if not cursor.isdigit() or self._lines[at + 1] != b"$%d" % len(cursor):
            raise ProtocolError(f"expected a cursor, got {shown(cursor)}")
        read = self._array(at + 3, most)
        if read is None:
            return None
        self._at = read[1]
        return cursor, read[0]

    def _head(self) -> bytes | None:
        """The line that the next reply begins with."""
        if self._at == len(self._lines):
            self._bound(LONGEST_LINE)
            return None
        line = self._lines[self._at]
        if line[:1] == b"-":
            raise ServerReplyError(line[1:])
        return line

    def _bound(self, most: int) -> None:
        if len(self._rest) > most:
            raise ProtocolError(f"a line without end: {shown(self._rest)}")

    def _array(self, at: int, most: int) -> tuple[list[bytes], int] | None:
        """An array that begins at a line. Returns its elements and the line after it."""
        if self._missing > 0:
            return None
        lines = self._lines
        count = _length(lines[at], b"*", most)
        if not self._frame(at + 1 + 2 * self._framed, at + 1 + 2 * count):
            self._frame_by_length(at, count)
        if self._framed < count:
            return None
        end = at + 1 + 2 * count
        self._framed = 0
        return lines[at + 2 : end : 2], end

    def _frame(self, start: int, end: int) -> bool:
        """Prove in C that the lines from one to another are headers and elements in turn.

        Returns whether there is nothing to look at more closely.
        """
        headers, elements = self._lines[start:end:2], self._lines[start + 1 : end : 2]
        open_header = headers.pop() if len(headers) > len(elements) else None
        try:
            framed = list(map(_HEADERS.__getitem__, map(len, elements))) == headers
        except IndexError:
            framed = False
        if not framed:
            return False
        self._framed += len(elements)
        if start + 2 * len(elements) == end:
            return True
        if open_header is None:
            return len(self._rest) <= LONGEST_HEADER
        return open_header in _KNOWN_HEADERS and len(self._rest) <= int(open_header[1:]) + 1

    def _frame_by_length(self, at: int, count: int) -> None:
        """The same for elements that hold line ends, are long, or are wrong: cut by what their headers say.

        Leaves each complete one as a single line.
        """
        first = at + 1 + 2 * self._framed
        raw = b"\r\n".join([*self._lines[first:], self._rest])
        lines: list[bytes] = []
        start = 0
        for _ in range(count - self._framed):
            stop = raw.find(b"\r\n", start)
            if stop < 0:
                if len(raw) - start > LONGEST_HEADER:
                    raise ProtocolError(f"a line without end: {shown(raw[start : start + QUOTED])}")
                break
            header = raw[start:stop]
            end = stop + 2 + _length(header, b"$", LONGEST)
            if len(raw) < end + 2:
                lines.append(header)
                start = stop + 2
                self._missing = end + 2 - len(raw)
                break
            if raw[end : end + 2] != b"\r\n":
                quoted = shown(raw[end : end + QUOTED])
                raise ProtocolError(f"an element does not end where its header says: {quoted}")
            lines += (header, raw[stop + 2 : end])
            start = end + 2
        parts = [raw[start:]] if self._missing > 0 else raw[start:].split(b"\r\n")
        self._rest = parts.pop()
        self._framed += len(lines) // 2
        self._lines[first:] = lines + parts


def shown(data: bytes) -> str:
    """Bytes of a server as an error may quote them: cut and escaped."""
    return ascii(data[:QUOTED])[1:]


def _length(line: bytes, kind: bytes, most: int) -> int:
    digits = line[1:]
    if line[:1] != kind or not digits.isdigit() or len(digits) > 10 or int(digits) > most:
        raise ProtocolError(f"expected {kind.decode()} and a number up to {most}, got {shown(line)}")
    return int(digits)
