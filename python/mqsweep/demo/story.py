"""The demo's acts: what happens to jobs whose workers die or pause, told while it happens on a real server."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..engine import engine_info
from ..report import SweepReport
from ..sweep import Progress
from ..sweeper import Sweeper
from .jobs import Jobs
from .scene import Actor, DemoError, Scene
from .screen import Screen
from .worker import POISON

WAITING = 5
PATIENCE = 20.0
POLL = 0.05


@dataclass(frozen=True)
class Options:
    """How the demo is run.

    Attributes:
        jobs: how many are active at the beginning.
        attempts: how many the poison job may have.
        interval: seconds between two sweeps; also a lock's life.
    """

    jobs: int
    attempts: int
    interval: float


@dataclass
class Result:
    """What the demo saw, for machines.

    Attributes:
        sweeps: the reports of the sweeps, with counts in the place of ids.
        script: the same of the one-call script.
        ping: the longest wait of a bystander's PING, in seconds: while nobody swept, during sweep 2, and while
            the script did the same work.
        places: where the jobs lie at the end.
        lost: jobs that are nowhere at the end.
        twice: jobs that are in two places, or were completed twice.
        right: whether all counts are as they must be.
    """

    sweeps: list[dict[str, Any]] = field(default_factory=list)
    script: dict[str, Any] = field(default_factory=dict)
    ping: dict[str, float] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    twice: int = 0
    right: bool = False


def _counted(report: SweepReport) -> dict[str, Any]:
    return {name: len(v) if isinstance(v, (list, dict)) else v for name, v in report.to_dict().items()}


def ms(seconds: float) -> str:
    """Milliseconds, as many digits as matter."""
    return f"{seconds * 1000:,.1f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"


class Story:
    """One performance.

    Args:
        scene: with its server running.
        screen: to tell it on.
        options: of this run.
        on_report: called with each report, after what is told of it.
    """

    def __init__(
        self,
        scene: Scene,
        screen: Screen,
        options: Options,
        on_report: Callable[[SweepReport], None] = lambda report: None,
    ) -> None:
        self._scene, self._screen, self._options, self._on_report = scene, screen, options, on_report
        self._client = scene.client()
        self._jobs = Jobs(self._client, "demo", options.jobs, WAITING)
        self._copy = Jobs(self._client, "copy", options.jobs, WAITING)
        chosen = engine_info().engine
        self._sweeper = self._sweeper_of(self._jobs, "python" if chosen == "script" else chosen)
        self.result = Result()

    def _sweeper_of(self, jobs: Jobs, engine: str) -> Sweeper:
        return Sweeper(
            self._client,
            jobs.name,
            interval=self._options.interval,
            max_stalled_count=self._options.attempts,  # the poison job's own "attempts" are reached first
            engine=engine,
            on_progress=self._progress,
        )

    def tell(self) -> Result:
        """All acts, in order.

        Raises:
            DemoError: something did not go as it must.
        """
        try:
            self._begin()
            self._two_go_away()
            self._first_sweep()
            self._one_comes_back()
            self._second_sweep()
            self._beside_it()
            self._take_over()
            self._poison()
            self._count()
        finally:
            self._screen.clear()
            self._sweeper.close()
            self._client.close()
        return self.result

    def _begin(self) -> None:
        options, screen = self._options, self._screen
        version = self._client.info("server").get("valkey_version", "")
        screen.title(f"mqsweep demo: engine {self._sweeper.engine}, Valkey {version} on a private socket")
        screen.live("starting worker processes", now=True)
        self._bystander = self._scene.actor("bystander", "bystander")
        self._workers = {name: self._worker(name) for name in "DABC"}
        self._jobs.fill(options.attempts)
        shares = {"D": 1, "A": options.jobs // 2, "B": options.jobs // 4}
        shares["C"] = options.jobs - sum(shares.values())
        self._die_of_poison(self._workers["D"])
        self._held = {name: int(self._workers[name].ask(f"take {shares[name]}")) for name in "ABC"}
        a, b, c = self._held.values()
        screen.act("The queue", f"{options.jobs:,} jobs active, {WAITING} more wait. A holds {a:,}, B {b:,},")
        screen.line(f"C {c:,}; D held 1, '{POISON}', which kills whoever runs it.")
        screen.line(
            f"A job has a lock of {options.interval:g} s; its worker renews it every {options.interval / 2:g} s."
        )

    def _worker(self, name: str) -> Actor:
        life = round(self._options.interval * 1000)
        return self._scene.actor(name, "worker", self._jobs.base, name, str(life))

    def _die_of_poison(self, worker: Actor) -> None:
        """Have the worker take one job, which is the poison job."""
        worker.tell("take 1")
        answer = worker.answer()
        if answer is not None:
            raise DemoError(f"worker {worker.name} survived the poison job: {answer}")

    def _two_go_away(self) -> None:
        a, b = self._workers["A"], self._workers["B"]
        self._bystander.ask("start")
        a.signal(signal.SIGKILL)
        b.signal(signal.SIGSTOP)
        gone = time.monotonic()
        self._screen.act("Two go away", f"kill -KILL {a.pid}: A is dead")
        self._screen.line(f"kill -STOP {b.pid}: B is paused and cannot renew")
        alive = self._held["C"]
        self._wait(lambda: self._jobs.locks() - alive, "of their locks are left")
        self._screen.line(f"{time.monotonic() - gone:.1f} s later all their locks have lapsed")
        self.result.ping["no_sweep"] = float(self._bystander.ask("read"))

    def _wait(self, rest: Callable[[], int], words: str) -> None:
        """Wait until nothing is left, and show how much is."""
        patience = PATIENCE + 2 * self._options.interval
        deadline = time.monotonic() + patience
        while (left := rest()) > 0:
            if time.monotonic() > deadline:
                raise DemoError(f"after {patience:g} s still {left:,} {words}")
            self._screen.live(f"{left:,} {words}")
            time.sleep(POLL)

    def _wait_for_interval(self) -> None:
        while (left := self._jobs.next_sweep()) > 0:
            self._screen.live(f"the next sweep may begin in {left:.1f} s")
            time.sleep(min(left, POLL))

    def _sweep(self) -> SweepReport:
        """One sweep, as soon as the interval allows it."""
        while True:
            self._wait_for_interval()
            report = self._sweeper.sweep()
            if report.status != "throttled":
                self.result.sweeps.append(_counted(report))
                return report

    def _progress(self, progress: Progress) -> None:
        words = {"scan": "looked at", "recover": "recovered"}[progress.phase]
        self._screen.live(f"{words} {progress.done:,} of {progress.total:,}")

    def _say_cost(self, report: SweepReport) -> None:
        looked = f"{report.active_scanned:,} looked at in {ms(report.duration)}"
        self._screen.line(f"{looked}; longest call {ms(report.longest_call)}")
        self._on_report(report)

    def _first_sweep(self) -> None:
        report = self._sweep()
        self._screen.act("Sweep 1", f"{len(report.marked):,} jobs have no lock. All are marked, none is moved:")
        self._screen.line(f"their workers get one interval ({self._options.interval:g} s) of grace.")
        self._say_cost(report)

    def _one_comes_back(self) -> None:
        b = self._workers["B"]
        before, dead = self._jobs.marks(), self._held["A"] + 1
        b.signal(signal.SIGCONT)
        self._wait(lambda: self._jobs.marks() - dead, "marks")
        off = before - self._jobs.marks()
        self._screen.act("B comes back", f"kill -CONT {b.pid}: B renews, which takes {off:,} marks off")
        self._screen.live("copying the queue for the one-call script", now=True)
        self._copy.copy_of(self._jobs)

    def _second_sweep(self) -> None:
        self._wait_for_interval()
        waited = self._jobs.at_front()
        self._bystander.ask("start")
        report = self._sweep()
        self.result.ping["sweep_2"] = float(self._bystander.ask("read"))
        moved = f"{len(report.recovered):,} jobs still have no lock: recovered, to the"
        self._screen.act("Sweep 2", f"{moved} back of wait")
        if self._jobs.at_front() != waited:
            raise DemoError("recovered jobs overtook the ones that waited")
        if report.failed:
            self._screen.line(f"{', '.join(report.failed[:3])}: failed, at the ceiling of its attempts")
        self._say_cost(report)

    def _beside_it(self) -> None:
        """The work of sweep 2 once more, by the script alone."""
        screen, ping = self._screen, self.result.ping
        screen.live("the same work by the one-call script", now=True)
        self._bystander.ask("start")
        with self._sweeper_of(self._copy, "script") as sweeper:
            report = sweeper.sweep()
        ping["script"] = float(self._bystander.ask("read"))
        self.result.script = _counted(report)
        same = f"{len(report.stalled):,} on a copy of the queue"
        screen.line(f"the one-call script moves {same}: {ms(report.longest_call)}", "beside it")
        screen.line("a bystander's PINGs, one a millisecond, waited at most", "the freeze")
        no_sweep, sweep_2, script = (ms(ping[name]) for name in ("no_sweep", "sweep_2", "script"))
        screen.line(f"{sweep_2} in sweep 2, {script} in the script ({no_sweep} with no sweep)")

    def _take_over(self) -> None:
        """The jobs that waited and those of A find workers; what is next after the former is the poison job."""
        waited = int(self._workers["C"].ask(f"take {WAITING}"))
        if self._options.attempts > 1:
            self._workers["E"] = self._worker("E")
            self._screen.live("starting another worker", now=True)
            self._die_of_poison(self._workers["E"])
        taken = [
            int(self._workers["B"].ask(f"take {self._held['A'] // 2}")),
            int(self._workers["C"].ask(f"take {self._options.jobs}")),
        ]
        self._screen.act("Work goes on", f"B and C took the {waited} that waited, and {sum(taken):,} recovered ones")

    def _poison(self) -> None:
        """The poison job kills those that take it, up to its ceiling."""
        attempts = self._options.attempts
        if attempts == 1:
            self._screen.act("The poison", f"'{POISON}' had one attempt: sweep 2 has failed it")
            return
        say = self._screen.act
        for attempt in range(2, attempts + 1):
            name = chr(ord("C") + attempt)
            if attempt > 2:
                self._die_of_poison(self._worker(name))
            text = f"{name} took '{POISON}', attempt {attempt} of {attempts}, and died"
            if attempt == 2:
                say("The poison", text)
            else:
                self._screen.line(text)
            self._stall_again()

    def _stall_again(self) -> None:
        lock = self._jobs.key(f"{POISON}:lock")
        self._wait(lambda: int(self._client.exists(lock)), f"lock of '{POISON}' is left")
        marking, report = self._sweep(), self._sweep()
        number = len(self.result.sweeps)
        then = (
            "recovered" if POISON in report.recovered else "failed, at its ceiling" if POISON in report.failed else "?"
        )
        self._screen.line(f"sweep {number - 1}: {len(marking.marked)} marked; sweep {number}: {then}")
        for each in (marking, report):
            self._on_report(each)

    def _count(self) -> None:
        self._screen.live("B and C finish their jobs", now=True)
        for most in (self._held["B"], self._options.jobs):  # in turns, the oldest first, as they would
            for name in "BC":
                self._workers[name].ask(f"finish {most}")
        census, result = self._jobs.census(), self.result
        result.places, result.lost, result.twice = census.places, census.lost, census.twice + census.redone
        result.right = census.right and census.places["failed"] == 1
        self._screen.act("The count", f"B and C have finished. Where are the {len(self._jobs.ids):,} jobs?")
        self._screen.line(", ".join(f"{n:,} {name}" for name, n in reversed(census.places.items())))
        if result.right:
            self._screen.verdict("every id exactly once: nothing lost, nothing twice", good=True)
        else:
            self._screen.verdict(f"NOT as it must be: {result.lost:,} lost, {result.twice:,} twice", good=False)
