"""Fleets: workers of BullMQ for Node and for Python on one queue, the service beside them, and what a user's program does.

Everything here is a process of its own, and is gone at the end of the block that started it.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.bullmq_worker import PATIENCE, Event, WorkerProcess
from support.cases import until
from support.servers import Server

NODE = ("bullmq5", "bullmq6")
"""BullMQ for Node, by the names that tests/support/node/package.json gives its versions."""

PYTHON = "python"

_DIRECTORY = Path(__file__).parent / "node"


def why_no_node() -> str | None:
    """Why tests with workers in Node cannot run; ``None`` when they can."""
    if shutil.which("node") is None:
        return "no node on PATH"
    if not all((_DIRECTORY / "node_modules" / name).is_dir() for name in (*NODE, "ioredis")):
        return "the packages for Node are not installed (make node)"
    return None


def node_command(program: str, given: Event) -> list[str]:
    """How a program of tests/support/node is started."""
    return ["node", str(_DIRECTORY / program), json.dumps(given)]


class Hand(WorkerProcess):
    """A worker of either language.

    Args:
        server: where the queue is.
        queue: its name.
        package: one of `NODE`, or `PYTHON`.
        processor: as for `WorkerProcess`.
        install: as for `WorkerProcess`; Python only.
        options: BullMQ's own.
    """

    def __init__(
        self,
        server: Server,
        queue: str,
        package: str,
        processor: str = "work",
        install: Event | None = None,
        **options: Any,
    ) -> None:
        self.package = package
        self._socket = server.socket
        super().__init__(server.url, queue, processor, install, **options)

    def _command(self, given: Event) -> list[str]:
        if self.package == PYTHON:
            return super()._command(given)
        return node_command("worker.js", {**given, "package": self.package, "socket": self._socket})

    def running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def freeze(self) -> None:
        """SIGSTOP: its locks lapse while it knows nothing of it."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def holding(self) -> set[str]:
        """The jobs that it has begun and not ended, as far as it said so."""
        begun: set[str] = set()
        for event in list(self.events):
            if event["event"] == "active":
                begun.add(event["id"])
            elif event["event"] in ("completed", "failed"):
                begun.discard(event["id"])
        return begun


class Control:
    """A user's program, on BullMQ for Node: adds jobs, pauses the queue, and so on.

    Args:
        server: where the queue is.
        queue: its name.
        package: one of `NODE`.
        options: of the ``Queue`` and the ``FlowProducer``.
    """

    def __init__(self, server: Server, queue: str, package: str, **options: Any) -> None:
        given = {"socket": server.socket, "queue": queue, "package": package, "options": options}
        self._process = subprocess.Popen(
            node_command("control.js", given), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        # so that a program that hangs fails the test in words
        self._alarm = threading.Timer(4 * PATIENCE, self._process.kill)
        self._alarm.daemon = True
        self._alarm.start()

    def __call__(self, target: str, method: str, *arguments: Any) -> Any:
        """Call a method of the ``queue`` or the ``flow``; jobs come back as their ids."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([target, method, *arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program ended with {self._process.wait(PATIENCE)}"
        error, *result = json.loads(line)
        assert error is None, error
        return result[0]

    def add(self, count: int, data: Event | None = None, **options: Any) -> list[str]:
        """Add so many jobs; their ids, oldest first."""
        jobs = [{"name": "paint", "data": data or {}, "opts": options}] * count
        ids: list[str] = self("queue", "addBulk", jobs)
        return ids

    def close(self) -> None:
        """Leave nothing behind."""
        self._alarm.cancel()
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)


class Service:
    """``mqsweep run``, the real command.

    Args:
        server: where the queue is.
        queue: its name.
        interval: seconds.
        arguments: more of them.
    """

    def __init__(self, server: Server, queue: str, interval: float, *arguments: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the service
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mqsweep", "-u", server.url, "run", queue, "--json"),
                *("--dialect", "bullmq", "--interval", f"{interval}s", *arguments),
            ],
            stdout=self._output,
            stderr=self._errors,
        )
        self.token = b":%d:" % self._process.pid
        """What the values of its leases have and no others'."""

    def reports(self) -> list[Event]:
        """What it has said so far."""
        with open(f"/dev/fd/{self._output.fileno()}") as output:
            return [json.loads(line) for line in output if line.endswith("\n")]

    def wait(self) -> int:
        """Its exit code, when it has ended by itself."""
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self._process.terminate()
        return self._process.wait(PATIENCE)

    def dispose(self) -> None:
        """Leave nothing behind."""
        self.kill()
        self._output.close()
        self._errors.close()


class Fleet:
    """All that works on one queue.

    Args:
        server: where it is.
        queue: its name.
    """

    def __init__(self, server: Server, queue: str = "q") -> None:
        self.server, self.queue = server, queue
        self.client: Any = server.client()
        self.hands: list[Hand] = []
        self._closing: list[Callable[[], None]] = []

    def key(self, name: str) -> str:
        """A key of the queue."""
        return f"bull:{self.queue}:{name}"

    def begin(self, package: str, processor: str = "work", install: Event | None = None, **options: Any) -> Hand:
        """Start a worker."""
        hand = Hand(self.server, self.queue, package, processor, install, **options)
        self._closing.append(hand.dispose)
        self.hands.append(hand)
        return hand

    def until_ready(self) -> None:
        """Wait until all workers work."""
        for hand in self.hands:
            hand.wait_for(lambda hand=hand: hand.count("ready") == 1)

    def hire(self, package: str, processor: str = "work", install: Event | None = None, **options: Any) -> Hand:
        """Start a worker and wait until it works."""
        hand = self.begin(package, processor, install, **options)
        hand.wait_for(lambda: hand.count("ready") == 1)
        return hand

    def take_and_die(self, package: str, count: int) -> list[str]:
        """A new worker takes so many jobs of those that wait, and is killed."""
        doomed = self.hire(package, "hang", concurrency=count, skipStalledCheck=True)
        doomed.wait_for(lambda: doomed.count("active") == count)
        doomed.kill()
        self.hands.remove(doomed)
        return doomed.ids("active")

    def lose(self, package: str, count: int, program: Control) -> list[str]:
        """A new worker takes so many jobs of those that are added, and is killed; the others have the rest to do."""
        doomed = self.hire(package, "hang", concurrency=count, stalledInterval=60_000)
        while doomed.count("active") < count:
            program.add(count, {"ms": 10})
            until(lambda: doomed.count("active") == count or not self.ids("wait"), PATIENCE)
        doomed.kill()
        self.hands.remove(doomed)
        return doomed.ids("active")

    def until_completed(self, ids: Iterable[str]) -> None:
        """Wait until these jobs are."""
        wanted = set(ids)
        until(lambda: wanted <= set(self.ids("completed")), PATIENCE, 0.02)

    def control(self, package: str, **options: Any) -> Control:
        """Start a user's program."""
        control = Control(self.server, self.queue, package, **options)
        self._closing.append(control.close)
        return control

    def sweep(self, interval: float, *arguments: str) -> Service:
        """Start the service."""
        service = Service(self.server, self.queue, interval, *arguments)
        self._closing.append(service.dispose)
        return service

    def holder(self) -> bytes:
        """The value of the lease."""
        value: bytes = self.client.get(self.key("stalled-check")) or b""
        return value

    def until_held(self, service: Service) -> None:
        """Wait until this service holds the lease."""
        until(lambda: service.token in self.holder(), PATIENCE, 0.01)

    def ids(self, name: str) -> list[str]:
        """The jobs in a list, a set or a sorted set of the queue, and none where there is nothing."""
        key = self.key(name)
        commands = {b"list": ("LRANGE", key, 0, -1), b"zset": ("ZRANGE", key, 0, -1), b"set": ("SMEMBERS", key)}
        command = commands.get(self.client.type(key))
        found = self.client.execute_command(*command) if command else ()
        return [job_id.decode() for job_id in found]

    def count(self, event: str) -> int:
        """How many events of this name the workers told of."""
        return sum(hand.count(event) for hand in self.hands)

    def close(self) -> None:
        """End everything."""
        for close in reversed(self._closing):
            close()


@contextmanager
def fleet_on(server: Server, queue: str = "q") -> Iterator[Fleet]:
    """A fleet for the length of a ``with`` block."""
    fleet = Fleet(server, queue)
    try:
        yield fleet
    finally:
        fleet.close()


def for_nodes(test: Any) -> Any:
    """Run a test with each version of BullMQ for Node."""
    return pytest.mark.parametrize("package", NODE)(test)
