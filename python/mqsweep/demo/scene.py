"""A private Valkey and the processes around it, of which nothing is left, however the demo ends.

A small shell, the guardian, holds the reading end of a pipe and leads a process group that everything else joins.
When the pipe closes, because the demo is over or because it was killed, the guardian removes the directory and
kills its group, processes that are stopped included. The usual end takes the same way as the worst one.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_TIMEOUT = 20.0
REPLY_TIMEOUT = 60.0
END_TIMEOUT = 10.0
LONGEST_BASE = 70
"""Characters: a unix socket's path holds 104 bytes on some systems."""

_GUARDIAN = """
trap '' INT TERM HUP QUIT
directory=$(mktemp -d "$1/mqsweep-demo.XXXXXX") || exit 1
echo "$directory"
read -r end
rm -rf -- "$directory"
kill -9 0
"""


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


class Actor:
    """A process of the scene that takes commands on stdin and answers each with a line on stdout.

    Args:
        name: what it is called in the story.
        process: with pipes for stdin and stdout.
        complaints: the file that its stderr goes to.
    """

    def __init__(self, name: str, process: subprocess.Popen[str], complaints: Path) -> None:
        self.name = name
        self.process = process
        self._complaints = complaints

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def ask(self, command: str) -> str:
        """Have something done, and wait for the answer.

        Raises:
            DemoError: it died instead, or did not answer in time.
        """
        self.tell(command)
        answer = self.answer()
        if answer is None:
            with contextlib.suppress(OSError):
                raise DemoError(f"worker {self.name} ended: {self._complaints.read_text()[-500:]}")
            raise DemoError(f"worker {self.name} ended")
        return answer

    def tell(self, command: str) -> None:
        """Have something done."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its death shows where the answer is missing
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()

    def answer(self) -> str | None:
        """Its next line; ``None`` when it has died.

        Raises:
            DemoError: neither came in time.
        """
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], REPLY_TIMEOUT)
        if not readable:
            raise DemoError(f"worker {self.name} does not answer")
        return self.process.stdout.readline().strip() or None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; after SIGKILL it is waited for."""
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(END_TIMEOUT)


class Scene:
    """The stage: a directory, a server in it, and actors."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[str]] = []
        self._guardian: subprocess.Popen[str] | None = None
        self.directory = Path()

    def __enter__(self) -> Self:
        base = tempfile.gettempdir()
        self._guardian = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDIAN, "mqsweep-demo", base if len(base) <= LONGEST_BASE else "/tmp"],  # noqa: S108
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # its own: a Ctrl-C at the terminal is for the demo alone
            text=True,
        )
        assert self._guardian.stdout is not None
        made = self._guardian.stdout.readline().strip()
        if not made:
            self.close()
            raise DemoError(f"no directory could be made in {base}")
        self.directory = Path(made)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything and wait until it has ended."""
        guardian, self._guardian = self._guardian, None
        if guardian is None:
            return
        assert guardian.stdin is not None
        assert guardian.stdout is not None
        guardian.stdin.close()
        guardian.wait(END_TIMEOUT)
        guardian.stdout.close()
        for child in self._children:
            child.kill()  # does nothing, unless somebody killed the guardian
            child.wait(END_TIMEOUT)
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()
        if self.directory.is_absolute():
            shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, arguments: Sequence[str], complaints: Path, *, talks: bool) -> subprocess.Popen[str]:
        assert self._guardian is not None
        pipe = subprocess.PIPE if talks else subprocess.DEVNULL
        with complaints.open("wb") as stderr:
            child = subprocess.Popen(
                arguments, stdin=pipe, stdout=pipe, stderr=stderr, text=True, process_group=self._guardian.pid
            )
        self._children.append(child)
        return child

    @property
    def socket(self) -> str:
        """Path of the server's socket."""
        return str(self.directory / "s")

    def client(self) -> redis.Redis:
        """A client of the server, without retries; waits as long as it takes, for freezing the server is our trade."""
        return redis.Redis(unix_socket_path=self.socket, retry=Retry(NoBackoff(), 0), socket_timeout=None)

    def start_server(self, binary: str) -> None:
        """Start the server and wait until it answers.

        Raises:
            DemoError: it does not.
        """
        log = self.directory / "log"
        options = {"port": "0", "unixsocket": self.socket, "save": "", "dir": str(self.directory), "logfile": str(log)}
        options["lua-time-limit"] = (
            "600000"  # let clients wait for a long script, not get BUSY: the wait is what we show
        )
        arguments = [binary, *(part for name, value in options.items() for part in (f"--{name}", value))]
        process = self._start(arguments, self.directory / "server.err", talks=False)
        deadline = time.monotonic() + START_TIMEOUT
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError as fault:
                    if process.poll() is not None or time.monotonic() > deadline:
                        said = log.read_text(errors="replace")[-500:] if log.exists() else str(fault)
                        raise DemoError(f"Valkey does not start: {said}") from fault
                time.sleep(0.01)

    def actor(self, name: str, module: str, *arguments: str) -> Actor:
        """Start a module of this package as a process; it connects while others start."""
        complaints = self.directory / f"{name}.err"
        command = [sys.executable, "-m", f"{__package__}.{module}", self.socket, *arguments]
        return Actor(name, self._start(command, complaints, talks=True), complaints)
