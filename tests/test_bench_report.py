"""The bench without a server: its data, its quantiles, its tables and pictures."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest

from mqsweep.bench.bystander import missed, quantile
from mqsweep.bench.cases import Case, Jobs, dead_of, number
from mqsweep.bench.gauge import THRESHOLD, Reading
from mqsweep.bench.record import CaseResult, Report, Result, Run, Waits
from mqsweep.bench.table import markdown, plain, time_of
from mqsweep.errors import ConfigurationError

# the same data


def test_data_is_the_same_for_the_same_seed() -> None:
    first, same, other = (Jobs(Case(1000, 10, "uuid", "renewed", seed)) for seed in (1, 1, 2))
    assert first.ids == same.ids != other.ids
    assert len(set(first.ids)) == 1000


@pytest.mark.parametrize(("active", "dead"), [(10, 0), (10, 3), (10, 10), (1000, 7), (1, 1)])
def test_the_dead_are_spread_evenly_and_exactly_so_many(active: int, dead: int) -> None:
    jobs = Jobs(Case(active, dead))
    where = [jobs.ids.index(job_id) for job_id in jobs.dead]
    assert len(where) == dead
    gaps = {b - a for a, b in itertools.pairwise(where)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_sizes_and_shares() -> None:
    assert [number(text) for text in ("7", "100k", "1m", "2.5M", "1_000")] == [7, 100_000, 1_000_000, 2_500_000, 1000]
    assert [dead_of(text, 1000) for text in ("0", "1%", "100%", "12", "0.1 %")] == [0, 10, 1000, 12, 1]
    for text in ("", "1.5", "-1", "1g", "k"):
        with pytest.raises(ConfigurationError):
            number(text)


# measuring


def test_a_freeze_counts_as_every_command_that_it_kept_waiting() -> None:
    waits = [0.0001] * 100 + [1.0]
    samples = sorted(waits + missed(waits))
    assert len(samples) == pytest.approx(100 + 1000, abs=2)
    assert quantile(samples, 0.5) == pytest.approx(0.45, abs=0.01)
    assert samples[-1] == 1.0


def test_quantiles() -> None:
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0.0, 0.25, 0.5, 0.75, 0.76, 1.0)] == [1, 1, 2, 3, 4, 4]


def test_the_longest_commands_are_ranked_among_all_of_them() -> None:
    slow = [0.001 * i for i in range(1, 6)]
    assert Reading(slow=slow).longest(4) == (0.005, 0.005)
    assert Reading(slow=slow).longest(3000) == (0.002, 0.005)
    assert Reading(slow=slow).longest(1_000_000) == (THRESHOLD / 1e6, 0.005)
    assert Reading(slow=[]).longest(10) == (THRESHOLD / 1e6, THRESHOLD / 1e6)
    assert Reading(slow=None).longest(10) == (None, None)


# showing


def waits_of(worst: float) -> Waits:
    return Waits(10, 10, 0.0001, 0.0002, 0.0003, worst)


def run_of(seconds: float, worst: float = 0.001) -> Run:
    return Run(seconds, 0, 1, 1, 1, 1, 0.1, 0.1, 0.001, 0.0002, 1_000_000, 0, 0.5, 0.05, waits_of(worst))


def report_of() -> Report:
    cases = []
    for active in (1000, 1_000_000):
        results = [
            Result("rust", runs=[run_of(0.1), run_of(0.3, 0.5), run_of(0.2)]),
            Result("script", "failed", "1 missing from wait"),
            Result("bullmq", runs=[run_of(0.4)]) if active == 1000 else Result("bullmq", "over", "ended after 60 s"),
        ]
        cases.append(CaseResult(Case(active, 0), "Valkey 9", True, waits_of(0.002), results))
    said = dict.fromkeys(("cpu", "cores", "system", "python", "mqsweep", "date", "load_before"), "x")
    return Report({**said, "build_profile": "debug"}, 60.0, 3, cases)


def test_medians_are_shown_but_the_worst_is_the_worst_of_all() -> None:
    row = next(line for line in plain(report_of().cases[0], 60.0).splitlines() if line.startswith("rust"))
    assert "200 ms" in row
    assert "2.0x" in row
    assert row.endswith("500 ms")


def test_more_than_the_limit_is_said_of_the_ratio_too() -> None:
    text = plain(report_of().cases[1], 60.0)
    assert "> 300x" in text
    assert "> 60 s" in text
    assert "failed" in text


def test_markdown_says_what_was_not_measured_and_that_a_debug_build_counts_for_nothing() -> None:
    text = markdown([report_of()])
    assert "1 missing from wait" in text
    assert "DEBUG BUILD" in text
    assert "without one where" not in text


def test_durations_have_three_figures() -> None:
    shown = {
        0.00021: "0.21 ms",
        0.0043: "4.30 ms",
        0.0123: "12.3 ms",
        0.2134: "213 ms",
        1.234: "1.23 s",
        130.9: "131 s",
    }
    assert {seconds: time_of(seconds) for seconds in shown} == shown
    assert time_of(None) == "-"


def test_rich_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    console = pytest.importorskip("rich.console")
    from mqsweep.bench.table import rich_table

    out = io.StringIO()
    console.Console(file=out, width=200).print(rich_table(report_of().cases[1], 60.0))
    assert "> 300x" in out.getvalue()


@pytest.mark.parametrize("name", ["x.svg", "x.png"])
@pytest.mark.parametrize("sizes", [1, 2])
def test_a_picture_is_drawn(tmp_path: Path, name: str, sizes: int) -> None:
    pytest.importorskip("matplotlib")
    from mqsweep.bench.plot import draw

    report = report_of()
    report.cases = report.cases[-sizes:]
    draw([report], tmp_path / name)
    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
    if name.endswith("svg"):
        assert b"&gt; 60 s" in drawn
        assert b"rust" in drawn
