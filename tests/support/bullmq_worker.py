"""Real BullMQ workers, each in a process of its own, and what they say while they work.

Run as a script it is the worker: its one argument is a JSON object, it prints its events as lines of JSON, and closes
at SIGTERM. Imported, it offers `WorkerProcess`, which starts one and listens.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 30.0
"""Seconds after which something that was waited for is not coming any more."""

Event = dict[str, Any]


class WorkerProcess:
    """A worker in another process.

    Args:
        url: of the server.
        queue: name of the queue.
        processor: what it does to a job: ``finish`` it, ``hang`` for ever, or ``work`` as its data say: ``ms`` long,
            and ``fail`` so many attempts, or ``hang``.
        install: options for `mqsweep.bullmq.install`; ``None`` = leave BullMQ as it is.
        options: BullMQ's own, on top of short times.
    """

    def __init__(
        self, url: str, queue: str, processor: str = "finish", install: Event | None = None, **options: Any
    ) -> None:
        self.events: list[Event] = []
        self._news = threading.Condition()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        given = {"url": url, "queue": queue, "processor": processor, "install": install, "options": options}
        self._process = subprocess.Popen(
            self._command(given),
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _command(self, given: Event) -> list[str]:
        return [sys.executable, "-W", "ignore", __file__, json.dumps(given)]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def count(self, name: str) -> int:
        """How many events of this name there were."""
        return sum(event["event"] == name for event in self.events)

    def ids(self, name: str) -> list[str]:
        """The jobs of the events of this name."""
        return [event["id"] for event in self.events if event["event"] == name]

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until something is so; it is asked again after every event, and often in between."""
        deadline = time.monotonic() + PATIENCE
        with self._news:
            while not ready():
                ended = self._process.poll() is not None
                assert not ended and time.monotonic() < deadline, self._story(ended)
                self._news.wait(0.02)

    def _story(self, ended: bool) -> str:
        self._errors.seek(0)
        state = f"ended with {self._process.returncode}" if ended else "did not do it in time"
        return f"the worker {state}; {self.events[-20:]}; {self._errors.read()[-2000:]}"

    def kill(self) -> None:
        """SIGKILL: no lock is given back."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def close(self) -> int:
        """Have it closed as it should be, and return its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def dispose(self) -> None:
        """Leave nothing behind."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


@contextmanager
def workers(url: str, queue: str) -> Iterator[Callable[..., WorkerProcess]]:
    """Start workers of one queue; whoever is left at the end of the block is killed."""
    started: list[WorkerProcess] = []

    def start(processor: str = "finish", install: Event | None = None, **options: Any) -> WorkerProcess:
        worker = WorkerProcess(url, queue, processor, install, **options)
        started.append(worker)
        worker.wait_for(lambda: worker.count("ready") == 1)
        return worker

    try:
        yield start
    finally:
        for worker in started:
            worker.dispose()


async def _work(given: Event) -> None:
    from bullmq import Worker

    def say(name: str, **more: Any) -> None:
        sys.stdout.write(json.dumps({"event": name, **more}) + "\n")
        sys.stdout.flush()

    async def process(job: Any, token: str) -> Any:
        if given["processor"] == "hang" or job.data.get("hang"):
            await asyncio.Event().wait()
        if given["processor"] == "work":
            await asyncio.sleep(job.data.get("ms", 0) / 1000)
            if job.attemptsMade < job.data.get("fail", 0):
                raise RuntimeError("as asked")
        return job.data

    times = {"lockDuration": 1_000, "stalledInterval": 300, "drainDelay": 1, "autorun": False}
    worker = Worker(given["queue"], process, {"connection": given["url"], **times, **given["options"]})
    worker.on("active", lambda job, _: say("active", id=job.id))
    worker.on("completed", lambda job, _: say("completed", id=job.id))
    worker.on("failed", lambda job, error: say("failed", id=job.id, reason=str(error)))
    worker.on("stalled", lambda job_id: say("stalled", id=job_id))
    worker.on("error", lambda error, *_: say("error", text=f"{type(error).__name__}: {error}"))
    check = worker.runStalledJobsCheck

    async def checked() -> None:
        await check()
        say("checked")

    worker.runStalledJobsCheck = checked
    if given["install"] is not None:
        from mqsweep.bullmq import install

        install(worker, **given["install"])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    running = asyncio.ensure_future(worker.run())
    say("ready")
    await stop.wait()
    await worker.close()
    await running
    say("closed")


if __name__ == "__main__":
    asyncio.run(_work(json.loads(sys.argv[1])))
