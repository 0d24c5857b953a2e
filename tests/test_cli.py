"""The command line's results: what each command does, prints and ends with."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.commands import BASE, call, fill, spawn, start, until
from support.servers import Server

# sweep ---------------------------------------------------------------------------------------------------


def test_sweep_marks_then_recovers_as_processes_of_their_own(server: Server, client: Any) -> None:
    fill(client, b"1", b"2")
    first = spawn("sweep", "q", "--json", "--max-stalled-count", "1", MQSWEEP_REDIS_URL=server.url)
    assert (first.code, first.err) == (0, "")
    assert first.objects[0]["marked"] == ["1", "2"]
    client.delete(BASE + b":stalled-check")
    second = spawn("-u", server.url, "sweep", "q")
    assert second.code == 0
    assert "recovered        2  put back to work" in second.out
    assert client.lrange(BASE + b":wait", 0, -1) == [b"2", b"1"]


def test_sweep_says_what_happens_next(server: Server, client: Any) -> None:
    fill(client, b"1", b"2")
    ran = call("-u", server.url, "sweep", "q", "--interval", "1m30s")
    assert "next: a sweep 1m30s after this one, or later, recovers those of the 2 marked" in ran.out


def test_a_throttled_queue_is_4_and_names_the_holder(server: Server, client: Any) -> None:
    fill(client, b"1")
    call("-u", server.url, "sweep", "q")
    ran = call("-u", server.url, "sweep", "q")
    assert ran.code == 4
    assert f"mqsweep on {socket.gethostname()}, process {os.getpid()}; try again in " in ran.out
    client.set(BASE + b":stalled-check", "1700000000000", px=9000)
    ran = call("-u", server.url, "sweep", "q")
    assert ran.code == 4
    assert "a whole-queue check of" in ran.out


def test_one_queue_that_was_swept_makes_it_0(server: Server, client: Any) -> None:
    fill(client, b"1")
    fill(client, b"1", base=b"emq:{other}")
    call("-u", server.url, "sweep", "q")
    assert call("-u", server.url, "sweep", "q", "other").code == 0
    assert call("-u", server.url, "sweep", "q", "other").code == 4


def test_a_sweep_that_raises_is_1_and_the_others_go_on(server: Server, client: Any) -> None:
    client.set(BASE + b":active", "no list")
    fill(client, b"1", base=b"emq:{other}")
    ran = call("-u", server.url, "sweep", "q", "other", "--json")
    assert ran.code == 1
    assert ran.err == "mqsweep: q: 'emq:{q}:active' is a string, not a list; nothing was changed\n"
    assert [o["queue"] for o in ran.objects] == ["other"]


def test_a_held_queue_is_1_and_says_what_to_do(server: Server, client: Any) -> None:
    fill(client, b"1", base=b"bull:q")
    client.hset("bull:q:meta", "paused", 1)
    client.sadd("bull:q:stalled", "1")
    ran = call("-u", server.url, "sweep", "q", "--dialect", "bullmq")
    assert ran.code == 1
    assert "--bullmq-version" in ran.out
    assert client.lrange("bull:q:active", 0, -1) == [b"1"]


def test_refused_jobs_are_results(server: Server, client: Any) -> None:
    fill(client, b"1")
    client.hset(BASE + b":1", "stc", "many")
    client.sadd(BASE + b":stalled", "1")
    ran = call("-u", server.url, "sweep", "q")
    assert ran.code == 0
    assert "1: the counter stc is no number" in ran.out


@pytest.mark.parametrize("command", ["sweep", "inspect"])
def test_a_queue_without_any_key_is_said_and_stays_so(server: Server, client: Any, command: str) -> None:
    for arguments in ((), ("--json",)):
        ran = call("-u", server.url, command, "q", "--no-hash-tag", "--prefix", "mine", *arguments)
        assert ran.code == 0
        assert "no key of mine:q:*" in ran.err
        assert all(name in ran.err for name in ("--dialect", "--prefix", "--no-hash-tag"))
        assert [o["exists"] for o in ran.objects] == ([False] if arguments else [])
    assert client.keys("*") == []


def test_the_dry_run_is_inspect_and_changes_nothing(server: Server, client: Any) -> None:
    fill(client, b"1", b"2")
    client.sadd(BASE + b":stalled", "1")
    before = {key: client.dump(key) for key in client.keys("*")}
    dry = call("-u", server.url, "sweep", "q", "--dry-run", "--json").objects
    seen = call("-u", server.url, "inspect", "q", "--json").objects
    for each in (*dry, *seen):
        each.pop("duration")
    assert dry == seen
    assert [(job["id"], job["marked"], job["worker"]) for job in seen[0]["jobs"]] == [
        ("1", True, "host-1"),
        ("2", False, "host-1"),
    ]
    assert {key: client.dump(key) for key in client.keys("*")} == before


def test_inspect_lists_who_is_stalled(server: Server, client: Any) -> None:
    fill(client, *(f"job-{i}".encode() for i in range(12)))
    client.sadd(BASE + b":stalled", "job-0", "gone")
    client.hset(BASE + b":job-0", mapping={"processedOn": round(time.time() * 1000) - 65_000, "atm": 2, "stc": 1})
    ran = call("-u", server.url, "inspect", "q")
    assert "q: 12 active jobs, 12 without a lock, 1 of them marked" in ran.out
    assert "job-0  yes     1m05s  host-1  2      1       past its ceiling next" in ran.out
    assert "... and 2 more, younger ones" in ran.out
    assert "marks that the next sweep takes back: 1 whose job is not active" in ran.out
    assert "lease: nobody" in ran.out


def test_odd_ids_are_escaped_and_cut(server: Server, client: Any) -> None:
    odd = (b"\x1b[31mred\x07", b"line\nbreak", b"\xff\xfe", "\u202eevil".encode(), b"x" * 100, b"[bold]", b"a\\b")
    fill(client, *odd)
    for command in ("inspect", "sweep"):
        ran = call("-u", server.url, command, "q")
        assert ran.code == 0
        assert all(character.isprintable() for character in ran.out.replace("\n", ""))
    for shown in (
        "\\x1b[31mred\\x07",
        "line\\nbreak",
        "\\xff\\xfe",
        "\\u202eevil",
        "x" * 61 + "...",
        "[bold]",
        "a\\\\b",
    ):
        assert shown in call("-u", server.url, "inspect", "q").out
    client.delete(BASE + b":stalled", BASE + b":stalled-check")
    (report,) = call("-u", server.url, "sweep", "q", "--json").objects
    assert [job_id.encode("utf-8", "surrogateescape") for job_id in report["marked"]] == list(odd)


def test_a_queue_of_the_real_bullmq_package(servers: dict[str, Server]) -> None:
    server = servers["redis"]
    with server.client() as client:
        client.flushall()
        worker = subprocess.Popen([sys.executable, "-c", BULLMQ, server.tcp_url], stdout=subprocess.PIPE)
        try:
            assert worker.stdout is not None
            job_id = worker.stdout.readline().strip().decode()
            assert job_id
        finally:
            worker.kill()
            worker.communicate()
        until(lambda: not client.exists(f"bull:mail:{job_id}:lock"))
        client.delete("bull:mail:stalled", "bull:mail:stalled-check")  # the worker's own check, as if it never ran
        command = ("sweep", "--dialect", "bullmq", "--json", "mail")
        first = spawn(*command, MQSWEEP_REDIS_URL=server.tcp_url)
        assert (first.code, first.objects[0]["marked"]) == (0, [job_id]), first.err
        client.delete("bull:mail:stalled-check")
        second = spawn(*command, MQSWEEP_REDIS_URL=server.tcp_url)
        assert (second.code, second.objects[0]["recovered"]) == (0, [job_id]), second.err
        assert client.lrange("bull:mail:wait", 0, -1) == [job_id.encode()]
        assert client.hget(f"bull:mail:{job_id}", "stc") == b"1"


BULLMQ = """
import asyncio, sys
from bullmq import Queue, Worker

async def main():
    options = {"connection": sys.argv[1]}
    queue = Queue("mail", options)
    await queue.add("send", {})

    async def process(job, token):
        print(job.id, flush=True)
        await asyncio.sleep(60)

    Worker("mail", process, {**options, "lockDuration": 1000})
    await asyncio.sleep(60)

asyncio.run(main())
"""


# run -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = start("run", *arguments, **env)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_ends_with_0_and_lets_the_lease_expire(server: Server, client: Any, number: signal.Signals) -> None:
    fill(client, b"1")
    with running("q", "--json", "--interval", "1s", MQSWEEP_REDIS_URL=server.url) as process:
        assert process.stdout is not None
        reports = [json.loads(process.stdout.readline()) for _ in range(2)]  # flushed line by line
        assert [report["marked"] for report in reports] == [["1"], []]
        assert reports[1]["recovered"] == ["1"]
        assert f":{process.pid}:".encode() in client.get(BASE + b":stalled-check")
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert all(json.loads(line) for line in out.splitlines())
    assert "stopping" in err
    left = client.pttl(BASE + b":stalled-check")
    assert left == -2 or 0 < left <= 1000  # what is left of one interval, then the built-in checks are free
    until(lambda: not client.exists(BASE + b":stalled-check"), 2)


def test_run_prints_what_moved_and_nothing_else(server: Server, client: Any) -> None:
    fill(client, b"1")
    with running("q", "other", "--interval", "500ms", MQSWEEP_REDIS_URL=server.url) as process:
        assert process.stdout is not None
        until(lambda: client.llen(BASE + b":wait"))
        # throttled at some time is a change of status, a sweep that finds nothing is not
        lines = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        rest, err = process.communicate(timeout=10)
    assert process.returncode == 0
    own = [line for line in lines if " q: " in line]
    assert len(own) == 2
    assert "1 marked" in own[0]
    assert "1 recovered" in own[1]
    assert sum("other: nothing stalled" in line for line in lines) == 1
    assert rest == ""
    assert "no key of emq:{other}:*" in err


def test_a_queue_that_cannot_be_swept_ends_run_with_1(server: Server, client: Any) -> None:
    client.zadd(BASE + b":active", {"1": 1})
    ran = spawn("run", "q", MQSWEEP_REDIS_URL=server.url)
    assert ran.code == 1
    assert ran.err.count("EchoMQ 2") == 1
    assert client.keys("*") == [BASE + b":active"]
    assert "Traceback" not in ran.err


def test_run_goes_on_with_the_other_queues(server: Server, client: Any) -> None:
    client.zadd(BASE + b":active", {"1": 1})
    fill(client, b"1", base=b"emq:{other}")
    with running("q", "other", "--interval", "500ms", MQSWEEP_REDIS_URL=server.url) as process:
        until(lambda: client.llen("emq:{other}:wait"))
        process.terminate()
        out, err = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "1 recovered" in out
    assert "this queue is not swept any more, the others are" in err


def test_run_ends_when_nobody_reads_it_any_more(server: Server, client: Any) -> None:
    fill(client, b"1")
    with running("q", "--json", "-v", "--interval", "200ms", MQSWEEP_REDIS_URL=server.url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=10) == 141
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_sweep_whose_output_nobody_reads(server: Server, client: Any) -> None:
    fill(client, b"1")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "mqsweep", "-u", server.url, "sweep", "q"]
        ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=30, check=False)
    finally:
        os.close(writing)
    assert ran.returncode == 141
    assert ran.stderr == b""


def test_ctrl_c_during_a_sweep_is_130(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        listener.settimeout(20)
        process = start("sweep", "q", MQSWEEP_REDIS_URL=f"unix://{tmp_path}/s")
        try:
            connection, _ = listener.accept()  # it waits for an answer now, which never comes
            with connection:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=8)
        finally:
            process.kill()
            process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err.startswith("mqsweep: interrupted")
    assert err.count("\n") == 1
