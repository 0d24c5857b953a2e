"""The commands behind the figures of the docs run: tiny, so their numbers say nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

BENCHES = Path(__file__).resolve().parent.parent / "benches"
FIGURES, READS = BENCHES / "figures.py", BENCHES / "reads.py"
PARTS = {"clients", "threads", "floor", "memory", "growth", "network", "asyncio"}


def test_every_part_is_measured(tmp_path: Path, usable: Callable[[str], str]) -> None:
    usable("rust")  # beside which the others are shown
    file = tmp_path / "figures.json"
    command = [sys.executable, str(FIGURES), "--jobs", "1k", "--repeat", "1", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert {row["part"] for row in found["rows"]} == PARTS
    assert all(math.isfinite(row["value"]) for row in found["rows"])
    table = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(table) == len(found["rows"]) + 1
    assert found["environment"]["server"] in done.stdout
    assert not any(row["target"] for row in found["rows"])  # those are for a million


def test_unknown_part_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(FIGURES), "flor"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "no such part: flor" in done.stderr


def test_page_of_reads_is_written_between_its_lines(tmp_path: Path) -> None:
    page = tmp_path / "reads.md"
    page.write_text("Before.\n\n<!-- figures: written by benches/reads.py -->\nold\n<!-- end of figures -->\nAfter.\n")
    command = [sys.executable, str(READS), "--jobs", "1k", "--servers", "valkey", "--ids", "int", "--page", str(page)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        written = page.read_text()
        assert written.startswith("Before.\n\n<!-- figures")
        assert written.endswith("<!-- end of figures -->\nAfter.\n")
        assert "old" not in written
        assert written.count("### Valkey") == 2
        assert "cores" in written
    page.write_text("no such lines")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert page.read_text() == "no such lines"
