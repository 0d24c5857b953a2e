"""A proxy before a server's unix socket that loses replies, at the byte or at the call that a test says."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

CHUNK = 1 << 16


class Proxy:
    """Carries bytes between clients and one server.

    Args:
        upstream: path of the server's socket.
        path: where to listen.

    Attributes:
        requests: chunks that clients sent, each a write of theirs as long as it is no larger than `CHUNK`.
        replied: bytes of replies that were carried.
        cuts: replies that were lost.
    """

    def __init__(self, upstream: str, path: str) -> None:
        self.requests = self.replied = self.cuts = 0
        self._upstream, self._path = upstream, path
        self._lock = threading.Lock()
        self._left: int | None = None
        self._word: bytes | None = None
        self._times = 0
        self._silent = False
        self._open: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        """For clients."""
        return f"unix://{self._path}?db=0"

    def cut_after(self, count: int | None) -> None:
        """Let so many more bytes of replies pass, then close the connection that the next would go to.

        Args:
            count: of bytes; ``None`` = all may pass.
        """
        with self._lock:
            self._left = count

    def lose_reply_to(self, word: bytes, times: int = 1, *, silently: bool = False) -> None:
        """Lose the reply to the next requests that contain the word, after the server has done them.

        Args:
            word: to look for.
            times: how many replies.
            silently: keep the connection open, so that the client waits in vain.
        """
        with self._lock:
            self._word, self._times, self._silent = word, times, silently

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._upstream)
            with self._lock:
                self._open |= {client, server}
            marked = threading.Event()
            for source, sink, asks in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._pump, args=(source, sink, asks, marked), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, asks: bool, marked: threading.Event) -> None:
        try:
            while data := source.recv(CHUNK):
                passing = self._asked(data, marked) if asks else self._answered(data, marked)
                if passing is None:
                    break
                sink.sendall(passing)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _asked(self, data: bytes, marked: threading.Event) -> bytes:
        with self._lock:
            self.requests += 1
            if self._times and self._word is not None and self._word in data:
                self._times -= 1
                marked.set()
        return data

    def _answered(self, data: bytes, marked: threading.Event) -> bytes | None:
        """What is passed on; ``None`` = cut here."""
        with self._lock:
            if marked.is_set():
                marked.clear()
                self.cuts += 1
                return b"" if self._silent else None
            if self._left is not None:
                if len(data) >= self._left:
                    self._left = None
                    self.cuts += 1
                    return None
                self._left -= len(data)
            self.replied += len(data)
            return data

    def close(self) -> None:
        """Close everything."""
        self._listener.close()
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(10)
        for end in ends:
            end.close()


Kind = TypeVar("Kind", bound=Proxy)


@contextlib.contextmanager
def proxy_of(kind: type[Kind], upstream: str) -> Iterator[Kind]:
    """A proxy of this kind before a server's socket, for the length of a ``with`` block."""
    with tempfile.TemporaryDirectory(prefix="mqs-") as directory:
        proxy = kind(upstream, str(Path(directory) / "p"))
        try:
            yield proxy
        finally:
            proxy.close()
