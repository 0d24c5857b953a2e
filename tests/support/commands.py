"""Running the command line: in this process, or as a process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mqsweep.cli import main

BASE = b"emq:{q}"


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def call(*arguments: str) -> Ran:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return Ran(code, out.getvalue(), err.getvalue())


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MQSWEEP_REDIS")}
    return {**kept, **more}


def start(*arguments: str, **env: str) -> subprocess.Popen[str]:
    """Start a command as a process of its own, as a shell does."""
    return subprocess.Popen(
        [sys.executable, "-m", "mqsweep", *arguments],
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def on_terminal(columns: int, *arguments: str, **env: str) -> str:
    """What a terminal so wide is sent by a command, both streams, with ``\\n`` as line ends."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        unset = {name: value for name, value in environment(**env).items() if name not in ("COLUMNS", "LINES")}
        process = subprocess.Popen(
            [sys.executable, "-m", "mqsweep", *arguments], env=unset, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        sent = b""
        with contextlib.suppress(OSError):  # how Linux says that nobody holds the other end any more
            while chunk := screen.read(4096):
                sent += chunk
        process.wait(timeout=30)
    return sent.decode().replace("\r\n", "\n")


def spawn(*arguments: str, **env: str) -> Ran:
    """Run a command as a process of its own, to its end."""
    process = start(*arguments, **env)
    out, err = process.communicate(timeout=30)
    return Ran(process.returncode, out, err)


def fill(client: Any, *job_ids: bytes, base: bytes = BASE) -> None:
    """Active jobs without a lock."""
    for job_id in job_ids:
        client.hset(base + b":" + job_id, mapping={"name": "x", "data": "{}", "timestamp": 1, "pb": "host-1"})
        client.lpush(base + b":active", job_id)


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Poll until something is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value
