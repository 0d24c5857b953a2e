"""From options to a report: every case, every contender, run after run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import redis

from ..dialects import choice, seconds, whole_number
from ..errors import ConfigurationError
from . import BenchError, contenders
from .cases import Case, Jobs, dead_of, number
from .environment import environment
from .gauge import Gauge
from .record import CaseResult, Report, Result, Run, Waits, together
from .stage import GivenHost, Host, OverLimit, Place, PrivateHost, binary, load, version_of
from .subject import CLIENT_NAME

SERVERS = ("valkey", "redis")
LIMIT, LIMIT_GIVEN = 60.0, 5.0
"""Seconds that a run may take on a server of ours, and on one that was given: others may need that one."""
SLOW = 10.0
"""Seconds: a contender that takes longer is run once, its figures do not wander by much."""
ANNOUNCED = 10.0
QUIET = 0.3
"""Seconds for which the bystander is watched before each run."""
REPLY_PATIENCE = 120.0


@dataclass(frozen=True)
class Options:
    """What to measure; the cases are all combinations.

    Attributes:
        active: sizes, as in `mqsweep.bench.cases.number`.
        dead: shares or numbers, as in `mqsweep.bench.cases.dead_of`.
        ids: kinds.
        marks: of the living.
        servers: private ones; none = the first of `SERVERS` that is there.
        url: of a server to use instead.
        contenders: none = all that can run here.
        repeat: runs of each.
        limit: seconds a run may take; ``None`` = 60, or 5 on a given server.
        seed: of the ids.
    """

    active: Sequence[str] = ("100k",)
    dead: Sequence[str] = ("0", "1%")
    ids: Sequence[str] = ("int",)
    marks: Sequence[str] = ("renewed",)
    servers: Sequence[str] = ()
    url: str | None = None
    contenders: Sequence[str] = ()
    repeat: int = 3
    limit: float | None = None
    seed: int = 1


@dataclass
class Listener:
    """Who wants to know how it goes.

    Attributes:
        live: told what is going on, many times a second.
        say: told what should be known.
        case_done: given each case when it is complete.
    """

    live: Callable[[str], object] = lambda text: None
    say: Callable[[str], object] = lambda text: None
    case_done: Callable[[CaseResult], object] = lambda case: None


@dataclass
class _Bench:
    options: Options
    listener: Listener
    names: list[str]
    hosts: list[Host]
    limit: float
    total: int
    done: int = 0
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self.report = Report(environment(), self.limit, self.options.repeat)

    def case(self, host: Host, case: Case) -> None:
        """Measure one case on one server."""
        host.check(case)
        self.listener.live(f"{case.title}: drawing ids")
        jobs = Jobs(case)
        found = CaseResult(case, host.name, host.private, None, [Result(name) for name in self.names])
        self.report.cases.append(found)
        quiet: list[Waits] = []
        for result in found.results:
            self._announce(host, case, result)
        for turn in range(self.options.repeat):
            for result in found.results:
                self.done += 1
                if result.outcome != "measured" or (turn and result.runs[0].seconds > SLOW):
                    continue
                self._run(host, jobs, found, result, quiet)
        found.quiet = together(quiet) if quiet else None
        self.report.environment["load_after"] = round(load(), 2)
        self.listener.case_done(found)

    def _announce(self, host: Host, case: Case, result: Result) -> None:
        name = result.contender
        took = contenders.expected(name, case)
        if name not in contenders.ONE_CALL or took < ANNOUNCED:
            return
        if took > self.limit and not host.private:
            # such a call cannot be ended from outside, and others may be using that server
            result.outcome, result.note = (
                "skipped",
                f"would take about {took:,.0f} s, in which the server serves nobody",
            )
            self.listener.say(f"{name}: skipped on {case.title}: {result.note}; the limit is {self.limit:g} s")
            return
        ended = f"; it is ended after {self.limit:g} s" if took > self.limit * 0.7 else ""
        self.listener.say(f"{name} on {case.title} takes about {took:,.0f} s{ended}")

    def _run(self, host: Host, jobs: Jobs, found: CaseResult, result: Result, quiet: list[Waits]) -> None:
        where = f"run {self.done} of {self.total}: {result.contender}, {jobs.case.title}, {host.name}"
        try:
            with host.place(jobs) as place:
                found.server = f"{version_of(place.client)}"
                run, before = _Measurement(place, jobs, self.limit, self.listener, where).take(result.contender)
        except OverLimit:
            result.outcome, result.note = "over", f"ended after {self.limit:g} s"
        except (BenchError, redis.RedisError) as fault:
            if not host.private and isinstance(fault, redis.ConnectionError):
                raise
            result.outcome, result.note = "failed", str(fault)
            self.listener.say(f"{result.contender} failed: {result.note}")
        else:
            quiet.append(before)
            result.runs.append(run)


@dataclass
class _Measurement:
    """One run."""

    place: Place
    jobs: Jobs
    limit: float
    listener: Listener
    where: str

    def take(self, contender: str) -> tuple[Run, Waits]:
        """Fill, run, check.

        Returns:
            The run, and what the bystander waited before it.

        Raises:
            OverLimit: it took longer than it may.
            BenchError: it failed, or lost a job.
        """
        place, jobs = self.place, self.jobs
        jobs.fill(place.client, place.keys, lambda done: self._tell(f"filling, {done:,} of {jobs.case.active:,}"))
        subject, bystander = place.stage.helper("subject"), place.stage.helper("bystander")
        subject.tell({"url": place.url, "prefix": place.prefix, "contender": contender})
        keys = {name: place.keys.of(of).decode() for name, of in (("key", "bystander"), ("marker", "marker"))}
        bystander.tell({"url": place.url, **keys})
        for helper in (subject, bystander):
            helper.hear(REPLY_PATIENCE)
        gauge = Gauge(place.client, CLIENT_NAME)
        with gauge.set_up():
            bystander.ask("start")
            self._tell("watching a bystander")
            time.sleep(QUIET)
            quiet = Waits(**bystander.ask("read")["waits"])
            before = load()
            gauge.start()
            bystander.ask("start")
            subject.tell("go")
            began = time.monotonic()
            answer = subject.hear(self.limit, lambda: self._tell(f"{time.monotonic() - began:,.0f} s"))
            stood_by = bystander.ask("read", REPLY_PATIENCE)
            waits = Waits(**stood_by["waits"])
            reading = gauge.stop()
        p999, longest = reading.longest(answer["commands"])
        run = Run(
            **answer,
            executed=reading.executed - waits.commands,
            server_cpu=reading.cpu,
            longest_command=longest,
            p999_command=p999,
            server_memory=reading.memory,
            load=round(before, 2),
            first_job=stood_by["first_job"],
            waits=waits,
        )
        self._check(run)
        return run, quiet

    def _tell(self, text: str) -> None:
        self.listener.live(f"{self.where}: {text}")

    def _check(self, run: Run) -> None:
        self._tell("counting")
        if complaint := self.jobs.complaint(self.place.client, self.place.keys):
            raise BenchError(f"the queue is not as it must be: {complaint}")
        if run.recovered != self.jobs.case.dead:
            raise BenchError(f"it says that it recovered {run.recovered:,} of {self.jobs.case.dead:,}")


def perform(options: Options, listener: Listener | None = None, report: Callable[[Report], object] = id) -> Report:
    """Measure.

    Args:
        options: what.
        listener: told how it goes.
        report: given the report at the beginning, which then fills case by case, so that what was measured can be
            kept whatever happens.

    Raises:
        ConfigurationError: options that cannot work, or a contender or server that is not there.
        BenchError: no measurement can be made.
        redis.exceptions.RedisError: faults of a server that was given.
    """
    listener = listener or Listener()
    limit = options.limit if options.limit is not None else LIMIT_GIVEN if options.url else LIMIT
    seconds("limit", limit)
    whole_number("repeat", options.repeat, 1)
    names = _contenders(options, listener)
    hosts = _hosts(options, listener)
    cases = list(_cases(options))
    bench = _Bench(options, listener, names, hosts, limit, len(hosts) * len(cases) * len(names) * options.repeat)
    report(bench.report)
    if options.url:
        listener.say(
            f"scratch keys on {hosts[0].name}: {getattr(hosts[0], 'prefix', '')}:*, removed after each run; "
            "figures of the server include whatever else it does meanwhile"
        )
    for host, case in product(hosts, cases):
        bench.case(host, case)
    return bench.report


def _cases(options: Options) -> Iterator[Case]:
    whole_number("seed", options.seed, 0)
    for ids, marks in product(options.ids, options.marks):
        choice("ids", ids, ("int", "uuid"))
        choice("marks", marks, ("renewed", "standing"))
        for size in options.active:
            active = number(size)
            if active < 1:
                raise ConfigurationError(f"active={size!r}: must be 1 or more")
            for share in options.dead:
                yield Case(active, dead_of(share, active), ids, marks, options.seed)  # type: ignore[arg-type]


def _contenders(options: Options, listener: Listener) -> list[str]:
    wanted = [choice("contenders", name, contenders.NAMES) for name in dict.fromkeys(options.contenders)]
    names = []
    for name in wanted or contenders.NAMES:
        why = contenders.lacking(name)
        if why and wanted:
            raise ConfigurationError(f"contender {name}: {why}")
        if why:
            listener.say(f"without {name}: {why}")
        else:
            names.append(name)
    return names


def _hosts(options: Options, listener: Listener) -> list[Host]:
    if os.name != "posix":
        raise ConfigurationError("the bench needs a POSIX system: its processes are ended by group")
    if options.url:
        if options.servers:
            raise ConfigurationError("a server of our own, or the one at the URL: not both")
        return [GivenHost(options.url)]
    found: dict[str, Any] = {}
    for kind in options.servers or SERVERS:
        try:
            binary(choice("servers", kind, SERVERS))
            found[kind] = PrivateHost(kind)
        except BenchError as fault:
            if options.servers:
                raise ConfigurationError(str(fault)) from None
            listener.say(str(fault))
    if not found:
        raise ConfigurationError("no server to measure on: pip install 'mqsweep[bench]', or name one with -u")
    return list(found.values()) if options.servers else [next(iter(found.values()))]
