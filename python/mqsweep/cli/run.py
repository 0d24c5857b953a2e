"""``mqsweep run``: the service. One thread per queue, until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from types import FrameType

from ..report import SweepReport
from .faults import EXPECTED, Exit, explain, explain_for
from .output import escape, listed, moved, say, span, summary
from .queues import Queue, opened

Happening = Queue | None
"""A queue whose thread has ended; ``None`` = a signal came."""


def run(options: argparse.Namespace) -> Exit:
    """Sweep until a signal comes."""
    happenings: SimpleQueue[Happening] = SimpleQueue()
    with opened(options) as queues, _signals(happenings):
        try:
            for queue in queues:
                if queue.missing():
                    say(f"{escape(queue.name)}: it will be swept as soon as it is there")
        except EXPECTED as fault:
            code, text = explain(fault, options.url)
            say(text)
            return code
        return _Service(queues, options, happenings).run()


@contextlib.contextmanager
def _signals(happenings: SimpleQueue[Happening]) -> Iterator[None]:
    """SIGINT and SIGTERM become a happening; a second one ends the process as it would have."""
    watched = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in watched}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        happenings.put(None)  # reentrant, unlike Event.set, which may be what was interrupted

    for number in watched:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


class _Service:
    def __init__(self, queues: list[Queue], options: argparse.Namespace, happenings: SimpleQueue[Happening]) -> None:
        self._queues = queues
        self._options = options
        self._happenings = happenings
        self._stop = threading.Event()
        self._printing = threading.Lock()
        self._states: dict[str, object] = {}
        self._codes: list[Exit] = []

    def run(self) -> Exit:
        """Start a thread per queue and wait for a signal, or for all of them to end."""
        # daemons, so that a second signal need not wait for them
        threads = [threading.Thread(target=self._sweep, args=(q,), daemon=True) for q in self._queues]
        for thread in threads:
            thread.start()
        running = len(threads)
        if not self._options.json:
            names = ", ".join(escape(q.name) for q in self._queues)
            say(f"sweeping {names} every {span(self._queues[0].sweeper.interval)}; SIGINT or SIGTERM ends it")
        while running:
            if self._happenings.get() is None:
                self._stop.set()
                say("stopping after the current batch")
            else:
                running -= 1
        for thread in threads:
            thread.join()
        return next((code for code in self._codes if code), Exit.DONE)

    def _sweep(self, queue: Queue) -> None:
        try:
            queue.sweeper.run(self._stop, self._tell)
        except EXPECTED as fault:
            code, text = explain_for(queue.name, fault, self._options.url)
            others = len(self._queues) > 1
            say(f"{text}{'; this queue is not swept any more, the others are' if others else ''}")
            self._codes.append(Exit.FAILED if code is Exit.UNREACHABLE else code)
        except BrokenPipeError:
            self._stop.set()  # nobody reads the results any more
            self._codes.append(Exit.BROKEN_PIPE)
        finally:
            self._happenings.put(queue)

    def _tell(self, report: SweepReport) -> None:
        with self._printing:
            state = (report.status, report.guards, report.held, tuple(report.refused))
            changed = self._states.get(report.queue) != state
            self._states[report.queue] = state
            if self._options.json:
                print(report.to_json(), flush=True)
            elif changed or moved(report) or self._options.verbose:
                print(_line(report), flush=True)


def _line(report: SweepReport) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report.started_at))
    what = summary(report)
    if report.status == "throttled":
        until = "" if report.retry_after is None else f" for {span(report.retry_after)} more"
        what = f"waiting, another sweeper holds the lease{until}"
    elif report.status == "swept":
        what = what or "nothing stalled"
    else:
        what = f"{report.status}; {what}" if what else report.status
    if report.failed:
        what += f"; failed: {listed(report.failed, 80)}"
    if report.refused:
        what += f"; refused: {listed(tuple(report.refused), 80)}"
    cost = f"{report.active_scanned:,} active, {span(report.duration)}"
    return f"{at} {escape(report.queue)}: {what} ({cost})"
