"""The figures in docs/benchmarks.md: measure them again, all or some, and write them into the page.

    python benches/publish.py                 everything; about 40 minutes on two cores
    python benches/publish.py 1m 1m-standing  these scenarios only
    python benches/publish.py --render        measure nothing, write the page and the pictures again

Each scenario is one call of `mqsweep bench`, which the page shows. Needs the extra `bench`, and a machine that is
otherwise quiet: the load average is written next to the figures.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from mqsweep.bench.environment import described
from mqsweep.bench.plot import draw
from mqsweep.bench.record import Report
from mqsweep.bench.table import notes, tables
from mqsweep.cli import main as mqsweep

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
RESULTS = PAGE.with_suffix("")
BEGIN, END = "<!-- figures: written by benches/publish.py -->", "<!-- end of figures -->"

SCENARIOS = {
    "100k": (
        "100,000 active (S1, S4, S5)",
        "--active 100k --dead 0,1%,10%,100% --server redis,valkey --repeat 1 --limit 180s",
    ),
    "100k-uuid": ("100,000 active, UUIDs (S1)", "--active 100k --dead 0 --ids uuid --server redis,valkey"),
    "1m": ("1,000,000 active, all well (S2)", "--active 1m --dead 0 --ids int,uuid --server redis,valkey --repeat 1"),
    "1m-standing": (
        "1,000,000 active, all well, but every id still marked (S2m)",
        "--active 1m --dead 0 --ids int,uuid --marks standing --server redis,valkey --repeat 1",
    ),
    "1m-1-percent": (
        "1,000,000 active, 1 % dead (S3)",
        "--active 1m --dead 1% --server redis,valkey --repeat 1 --limit 400s",
    ),
    "1m-1-percent-uuid": (
        "1,000,000 active, 1 % dead, UUIDs (S3)",
        "--active 1m --dead 1% --ids uuid --server redis,valkey --contenders rust,python,script --repeat 1",
    ),
    "1m-all": (
        "1,000,000 active, all dead (S6)",
        "--active 1m --dead 100% --server redis,valkey --contenders rust,python --repeat 1 --limit 180s",
    ),
    "growth": ("From 1,000 to 1,000,000 active", "--active 1k,10k,100k,1m --dead 0,1% --server valkey --repeat 1"),
}
PICTURE = ("100k", "1m", "1m-1-percent", "1m-all")
"""Shown against size, those with integer ids."""


def measure(name: str) -> None:
    """One scenario, into its file."""
    _, arguments = SCENARIOS[name]
    code = mqsweep(["bench", *arguments.split(), "--json", str(RESULTS / f"{name}.json")])
    if code:
        raise SystemExit(f"{name}: mqsweep bench ended with {code}")


def render() -> None:
    """The page's figures, and the pictures, from the files."""
    page = PAGE.read_text("utf-8")
    if BEGIN not in page or END not in page:
        raise SystemExit(f"{PAGE.name} lacks the lines between which its figures go: {BEGIN} ... {END}")
    found = {name: Report.read(path) for name in SCENARIOS if (path := RESULTS / f"{name}.json").exists()}
    drawn = [
        replace(found[name], cases=[c for c in found[name].cases if c.case.ids == "int"])
        for name in PICTURE
        if name in found
    ]
    draw(drawn, RESULTS / "sizes.svg")
    blocks = ["![Total time, and the worst wait of a bystander, against size](benchmarks/sizes.svg)"]
    for name, report in found.items():
        title, arguments = SCENARIOS[name]
        command = f"```console\n$ mqsweep bench {arguments} --json {name}.json\n```"
        blocks += [f"## {title}", command, "\n".join(f"* {line}" for line in described(report.environment))]
        blocks.append(tables(report))
    reading = dict.fromkeys(line for report in found.values() for line in notes(report))
    blocks += ["## What the columns say", "\n".join(f"* {line}" for line in reading)]
    figures = f"{BEGIN}\n\n" + "\n\n".join(blocks) + f"\n\n{END}"
    written = re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: figures, page, flags=re.DOTALL)
    PAGE.write_text(written, "utf-8")


if __name__ == "__main__":
    wanted = sys.argv[1:] or list(SCENARIOS)
    if unknown := set(wanted) - {*SCENARIOS, "--render"}:
        raise SystemExit(f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    for each in wanted:
        if each != "--render":
            measure(each)
    render()
