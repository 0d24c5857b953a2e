"""The script called as EchoMQ's ``Scripts.move_stalled_jobs_to_wait/4`` calls it, from another language than Python."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from mqsweep.script import SCRIPT_NAME, script_source
from support.bullmq_worker import PATIENCE
from support.cases import Case
from support.fleet import Fleet, node_command
from support.servers import Server


def call(server: Server, tmp_path: Any, base: str) -> list[list[str]]:
    """One call, in a process of its own: failed and recovered ids."""
    script = tmp_path / SCRIPT_NAME
    script.write_text(script_source(), "utf-8")
    given = {"socket": server.socket, "script": str(script), "base": base, "maxStalledCount": 1}
    ran = subprocess.run(node_command("script.js", given), capture_output=True, text=True, timeout=PATIENCE, check=True)
    answer = json.loads(ran.stdout)
    return [answer["failed"], answer["recovered"]]


@pytest.mark.parametrize(("base", "colon"), [("emq:{q}", ":"), ("emq:q", "")])
def test_two_calls_an_interval_apart_mark_and_recover(fleet: Fleet, tmp_path: Any, base: str, colon: str) -> None:
    case = Case(fleet.client, "script", "echomq")
    case.base = base.encode()
    case.dead(b"1", b"2")
    case.dead(b"3", stc="1")
    case.alive(b"4")
    assert call(fleet.server, tmp_path, base + colon) == [[], []]
    assert case.marks() == {b"1", b"2", b"3"}
    assert 29_000 < fleet.client.pttl(case.key("stalled-check")) <= 30_000
    assert call(fleet.server, tmp_path, base + colon) == [[], []]  # too early
    assert len(case.active()) == 4
    case.client.delete(case.key("stalled-check"))  # an interval later
    assert call(fleet.server, tmp_path, base + colon) == [["3"], ["1", "2"]]
    assert case.active() == [b"4"]
    assert case.wait() == [b"2", b"1"]
    assert fleet.client.zrange(case.key("failed"), 0, -1) == [b"3"]
    assert fleet.client.exists(case.key("stalled")) == 0
