"""What was measured, as it is written and read again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any, Literal, Self

from ..errors import ConfigurationError
from .cases import Case

FORMAT = 2

Outcome = Literal["measured", "over", "skipped", "failed"]


@dataclass(frozen=True)
class Waits:
    """How long a bystander's commands waited, in seconds.

    Attributes:
        commands: that it sent.
        samples: with those that it could not send in time.
        p50, p99, p999, worst: quantiles of the samples.
    """

    commands: int
    samples: int
    p50: float
    p99: float
    p999: float
    worst: float


@dataclass(frozen=True)
class Run:
    """One run of one contender.

    Attributes:
        seconds: from the first byte to the last.
        recovered: jobs, by the contender's own word; that it is true was checked.
        commands: requests that the contender sent.
        executed: commands that the server ran, those inside scripts included, the bystander's not.
        sent, received: bytes, by the contender.
        server_cpu: seconds, user and system; the bystander's share (a few per cent of a second) included.
        client_cpu: seconds, user and system, of the contender's process.
        longest_command: seconds on the server by SLOWLOG, of the contender's commands; ``None`` = not to be had. A
            value of the log's threshold means that or less.
        p999_command: the same, of all commands but one in a thousand.
        rss_growth: bytes by which the contender's peak memory grew.
        server_memory: bytes by which the server's data grew.
        load: the machine's load average before the run.
        first_job: seconds until a worker asleep on the marker was woken; ``None`` = nothing was recovered.
        waits: of the bystander.
    """

    seconds: float
    recovered: int
    commands: int
    executed: int
    sent: int
    received: int
    server_cpu: float
    client_cpu: float
    longest_command: float | None
    p999_command: float | None
    rss_growth: int
    server_memory: int
    load: float
    first_job: float | None
    waits: Waits


@dataclass
class Result:
    """All runs of one contender on one case.

    Attributes:
        contender: its name.
        outcome: ``measured``; ``over`` the limit; ``skipped``, since it was sure to be or cannot run here; or
            ``failed``.
        note: why, where it was not measured.
        runs: those that were.
    """

    contender: str
    outcome: Outcome = "measured"
    note: str = ""
    runs: list[Run] = field(default_factory=list)

    @property
    def measured(self) -> bool:
        """Whether there are figures."""
        return self.outcome == "measured" and bool(self.runs)

    def middle(self, name: str) -> float:
        """The median of a figure over the runs."""
        return float(median(getattr(run, name) for run in self.runs))

    def most(self, name: str) -> float | None:
        """The greatest of a figure over the runs; ``None`` where one of them lacks it."""
        found = [getattr(run, name) for run in self.runs]
        return None if not found or None in found else max(found)

    def waits(self) -> Waits:
        """Of all runs: see `together`."""
        return together([run.waits for run in self.runs])


def together(waits: Sequence[Waits]) -> Waits:
    """Several measurements as one: medians, but the worst is the worst of all."""
    middle = {f.name: median(getattr(w, f.name) for w in waits) for f in fields(Waits)}
    middle |= {name: sum(getattr(w, name) for w in waits) for name in ("commands", "samples")}
    return Waits(**{**middle, "worst": max(w.worst for w in waits)})


@dataclass
class CaseResult:
    """All contenders on one case on one server.

    Attributes:
        case: what was measured.
        server: name and version.
        private: whether the server was ours, new for each run.
        quiet: how long the bystander waited while nobody swept.
        results: one per contender.
    """

    case: Case
    server: str
    private: bool
    quiet: Waits | None = None
    results: list[Result] = field(default_factory=list)

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.server}: {self.case.title}"

    def result(self, contender: str) -> Result | None:
        """Of one contender."""
        return next((r for r in self.results if r.contender == contender), None)


@dataclass
class Report:
    """Everything that one call of the bench found out.

    Attributes:
        environment: machine, versions and date, see `mqsweep.bench.environment`.
        limit: seconds that a run may take.
        repeat: runs of each contender; one that takes long is run once.
        cases: in the order in which they were measured.
    """

    environment: dict[str, Any]
    limit: float
    repeat: int
    cases: list[CaseResult] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a contender failed, or lost a job."""
        return any(r.outcome == "failed" for case in self.cases for r in case.results)

    def to_json(self) -> str:
        """Everything, every single run included."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """A report as `to_json` wrote it.

        Raises:
            ConfigurationError: the file is not that.
        """
        try:
            found = json.loads(path.read_text("utf-8"))
            if found.pop("format") != FORMAT:
                raise ValueError("another format")
            return cls(**{**found, "cases": [_case(each) for each in found["cases"]]})
        except OSError as fault:
            raise ConfigurationError(f"{path}: {fault.strerror}") from fault
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise ConfigurationError(f"{path}: not written by 'mqsweep bench --json' of this version") from fault


def _case(found: dict[str, Any]) -> CaseResult:
    quiet = found["quiet"] and Waits(**found["quiet"])
    results = [Result(**{**r, "runs": [_run(run) for run in r["runs"]]}) for r in found["results"]]
    return CaseResult(**{**found, "case": Case(**found["case"]), "quiet": quiet, "results": results})


def _run(found: dict[str, Any]) -> Run:
    return Run(**{**found, "waits": Waits(**found["waits"])})
