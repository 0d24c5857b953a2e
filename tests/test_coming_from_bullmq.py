"""The page for those who come from BullMQ's own check: its table of latencies, measured in steps of a second."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from mqsweep.dialects import DIALECTS
from support import oracle
from support.cases import Case
from support.ways import next_interval

PAGE = Path(__file__).resolve().parent.parent / "docs" / "coming-from-bullmq.md"


class Row(NamedTuple):
    """A row of the page's table; times in seconds."""

    check: str
    mark: str
    ttl: int
    interval: int
    earliest: int
    latest: int


def rows() -> Iterator[Row]:
    """Of the page."""
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and all(re.fullmatch(r"\d+", cell) for cell in cells[2:]):
            check, mark, *times = cells
            yield Row(check, mark, *map(int, times))


TABLE = list(rows()) if PAGE.is_file() else []


def test_table_has_both_policies_and_bullmqs_own() -> None:
    assert {row.mark for row in TABLE} == {"lockless", "active"}
    assert any(row.check.startswith("BullMQ's own") for row in TABLE)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.check.split(',')[0]}-{row.mark}-{row.interval}")
def test_table_says_what_the_page_says_in_words(row: Row) -> None:
    """With ``lockless`` the lock's TTL and one to two intervals; with ``active`` the TTL and up to one."""
    sooner = 1 if row.mark == "lockless" else 0
    assert row.earliest == row.ttl + sooner * row.interval
    assert row.latest == row.ttl + (sooner + 1) * row.interval


def test_intervals_of_the_table_are_the_defaults() -> None:
    """Of both dialects; a latest moment as BullMQ's own is why the one of ``bullmq`` is what it is."""
    (bullmqs_own,) = [row for row in TABLE if row.check.startswith("BullMQ's own")]
    (bullmq,) = [row for row in TABLE if row.check == "mqsweep, its defaults"]
    (echomq,) = [row for row in TABLE if row.check == "mqsweep, EchoMQ's defaults"]
    assert (bullmq.interval, bullmq.mark) == (DIALECTS["bullmq"].interval, "lockless")
    assert (echomq.interval, echomq.mark) == (DIALECTS["echomq"].interval, "lockless")
    assert bullmq.latest == bullmqs_own.latest


@pytest.mark.parametrize("server", ["redis"], indirect=True)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.check.split(',')[0]}-{row.mark}-{row.interval}")
def test_job_of_a_dead_worker_is_back_when_the_page_says(client: redis.Redis, row: Row) -> None:
    """The worker renewed at 0 and died. Sweeps come at any second of the first interval, and then at each interval."""
    back = [seconds_until_back(client, row, first) for first in range(1, row.interval + 1)]
    assert row.earliest <= min(back) <= row.earliest + 1
    assert row.latest - 1 <= max(back) <= row.latest


def seconds_until_back(client: redis.Redis, row: Row, first: int) -> int:
    """When the job is in wait again, if the first sweep comes at that second."""
    client.flushdb()
    dialect = "echomq" if "EchoMQ" in row.check else "bullmq"
    case = Case(client, "python", dialect)
    case.alive(b"j")
    for now in range(first, 10 * row.interval + row.ttl, row.interval):
        if now >= row.ttl:
            case.lapse(b"j")
        if row.check.startswith("BullMQ's own"):
            next_interval(client, case.base)
            oracle.run_oracle(client, case.base, 1, 1000 * row.interval, now)
        else:
            case.sweep(mark=row.mark, interval=row.interval)
        if case.wait():
            return now
    raise AssertionError("it never came back")


def test_files_that_the_page_names_are_there() -> None:
    text = PAGE.read_text("utf-8")
    tree = PAGE.parent.parent
    assert all((tree / name).is_file() for name in re.findall(r"`(tests/[a-z_]+\.py)`", text))
    assert all((PAGE.parent / name).is_file() for name in re.findall(r"\]\(([a-z-]+\.md)\)", text))
