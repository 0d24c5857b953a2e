"""A proxy on a loopback port that passes everything on a little later."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

CHUNK = 1 << 17


@contextlib.contextmanager
def delaying(port: int, delay: float) -> Iterator[int]:
    """A port that leads to another, so many seconds away in each direction.

    Args:
        port: where the server listens.
        delay: seconds.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port, delay), daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, port: int, delay: float) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_carry, args=(client, port, delay), daemon=True).start()


def _carry(client: socket.socket, port: int, delay: float) -> None:
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ways = ((client, server), (server, client))
        threads = [threading.Thread(target=_pump, args=(*way, delay), daemon=True) for way in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _pump(source: socket.socket, sink: socket.socket, delay: float) -> None:
    due: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    sender = threading.Thread(target=_send, args=(due, sink), daemon=True)
    sender.start()
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            due.put((time.perf_counter() + delay, data))
    due.put((0.0, b""))
    sender.join()


def _send(due: queue.SimpleQueue[tuple[float, bytes]], sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            when, data = due.get()
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            time.sleep(max(0.0, when - time.perf_counter()))
            sink.sendall(data)
