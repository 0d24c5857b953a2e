"""The command behind the page's figures runs: tiny, so its numbers say nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

FIGURES = Path(__file__).resolve().parent.parent / "benches" / "figures.py"
PARTS = {"clients", "threads", "floor", "memory", "growth", "network", "asyncio"}


def test_every_part_is_measured(tmp_path: Path) -> None:
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
