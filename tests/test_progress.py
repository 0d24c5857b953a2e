"""What a terminal, a log and nobody see of a long sweep."""

from __future__ import annotations

import sys

import pytest

from mqsweep.cli import progress as shown
from mqsweep.sweep import Progress


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """It says 100 s."""
    return Clock()


def test_log_has_a_line_every_ten_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with shown.Ticker("mails", clock) as ticker:
        for second in range(31):
            clock.now = 100.0 + second
            if second < 15:
                ticker.update(Progress("scan", 1_000 * second, 15_000))
            else:
                ticker.update(Progress("recover", 2_000 * (second - 15), 50_000, 0.0042))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "mqsweep: mails: looking at active jobs: 10,000 of 15,000 (1,000/s), 10 s so far",
        "mqsweep: mails: recovering: 10,000 of 50,000 (2,000/s, longest call 4.2 ms), 20 s so far",
        "mqsweep: mails: recovering: 30,000 of 50,000 (2,000/s, longest call 4.2 ms), 30 s so far",
    ]


@pytest.mark.parametrize("rich", [True, False])
def test_terminal_sees_rate_and_longest_call_and_then_nothing(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rich: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setattr(shown, "bar", lambda: None)
    with shown.Ticker("mails", clock) as ticker:
        ticker.update(Progress("recover", 1, 50_000, 0.003))
        assert capsys.readouterr().err == ""  # what is over at once needs no progress
        clock.now += 2
        ticker.update(Progress("recover", 4_000, 50_000, 0.0051))
        ticker.close()
        seen = capsys.readouterr().err
    assert "2,000/s, longest call 5.1 ms" in seen
    assert ("4,000 of 50,000" if not rich else "4000/50000") in seen.replace("\x1b[0m", "")
    assert seen.endswith(("\x1b[K", "\x1b[2K", "\x1b[?25h"))


def test_short_sweep_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with shown.Ticker("mails", clock) as ticker:
        clock.now += 9
        ticker.update(Progress("scan", 5, 9))
    assert capsys.readouterr().err == ""
