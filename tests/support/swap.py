"""A proxy that puts other bytes in the place of one reply, in the middle of a pipeline."""

from __future__ import annotations

import socket
import threading

from support.proxy import Proxy


class Stream:
    """One connection of a client.

    Attributes:
        asked: all that the client sent.
        over: whether it has ended.
    """

    def __init__(self) -> None:
        self.asked = b""
        self.over = False
        self.held = b""  # replies, while they are counted
        self.countdown = 0


class Swap(Proxy):
    """Carries bytes between clients and one server, and swaps a reply.

    Args:
        upstream: path of the server's socket.
        path: where to listen.

    Attributes:
        streams: the connections that were used.
        swapped: the one whose reply was swapped.
    """

    def __init__(self, upstream: str, path: str) -> None:
        self._streams: dict[threading.Event, Stream] = {}
        self.swapped: Stream | None = None
        self._after, self._number, self._bytes = b"", 0, b""
        super().__init__(upstream, path)

    @property
    def url(self) -> str:
        """For a client whose user is ``u`` and whose password is `PASSWORD`."""
        return f"unix://u:{PASSWORD}@{self._path}?db=0"

    @property
    def streams(self) -> list[Stream]:
        """In their order."""
        return list(self._streams.values())

    def swap(self, after: bytes, number: int, reply: bytes | None) -> None:
        """Put these bytes in the place of one reply; `swapped` tells when it was done.

        Args:
            after: replies are counted from the one to the first request with this word, on its connection.
            number: of the reply, from 1.
            reply: what comes instead of it; ``None`` = the connection is closed there.
        """
        with self._lock:
            self.swapped = None
            self._after, self._number, self._bytes = after, number, reply

    def _pump(self, source: socket.socket, sink: socket.socket, asks: bool, marked: threading.Event) -> None:
        super()._pump(source, sink, asks, marked)
        with self._lock:
            self._stream(marked).over = True

    def _stream(self, marked: threading.Event) -> Stream:
        return self._streams.setdefault(marked, Stream())

    def _asked(self, data: bytes, marked: threading.Event) -> bytes:
        with self._lock:
            stream = self._stream(marked)
            stream.asked += data
            if self._number and self._after in data:
                stream.countdown, self._number = self._number, 0
        return data

    def _answered(self, data: bytes, marked: threading.Event) -> bytes | None:
        with self._lock:
            stream = self._stream(marked)
            passing = b""
            stream.held += data
            while stream.countdown and (end := reply_end(stream.held)) is not None:
                stream.countdown -= 1
                if stream.countdown:
                    passing += stream.held[:end]
                else:
                    self.swapped = stream
                    if self._bytes is None:
                        return None
                    passing += self._bytes
                stream.held = stream.held[end:]
            if not stream.countdown:
                passing, stream.held = passing + stream.held, b""
            return passing


PASSWORD = "Tr0ub4dor-3"


def reply_end(data: bytes, at: int = 0) -> int | None:
    """Where a reply that begins there ends; ``None`` while it is not complete."""
    stop = data.find(b"\r\n", at)
    if stop < 0:
        return None
    kind, number, end = data[at : at + 1], data[at + 1 : stop], stop + 2
    if kind == b"$" and int(number) >= 0:
        end += int(number) + 2
    elif kind == b"*":
        for _ in range(int(number)):
            found = reply_end(data, end)
            if found is None:
                return None
            end = found
    return end if end <= len(data) else None
