"""What can go wrong on the command line, and what it must never print."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from mqsweep.cli.options import duration, hidden
from mqsweep.cli.output import escape, listed, span
from mqsweep.sweeper import Sweeper
from support.commands import call, fill
from support.servers import Server

NOWHERE = "unix:///nonexistent/mqsweep.sock"
SECRETS = ("s3cret", "p@ss/w:rd", "hash#mark?", "per%cent", "sp ace", "12/34", "[brackets]")


@pytest.mark.parametrize("command", ["sweep", "run", "inspect"])
def test_redis_not_reachable_is_3_and_one_line(command: str) -> None:
    ran = call("-u", NOWHERE, command, "q", "other")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.count("\n") == 1
    assert "unix://***@/nonexistent/mqsweep.sock is not reachable" in ran.err


def test_the_environment_is_asked_for_the_url_and_the_option_wins(
    server: Server, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, b"1")
    monkeypatch.setenv("MQSWEEP_REDIS_URL", NOWHERE)
    assert call("inspect", "q").code == 3
    assert call("inspect", "q", "--url", server.url).code == 0
    monkeypatch.setenv("MQSWEEP_REDIS_URL", server.url)
    assert call("inspect", "q").code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "COMMAND"),
        (("sweep",), "mqsweep sweep QUEUE"),
        (("swoop", "q"), "swoop"),
        (("sweep", "q", "--interval", "0"), "interval=0.0"),
        (("sweep", "q", "--interval=-5s"), "-5s"),
        (("sweep", "q", "--interval", "soon"), "soon"),
        (("sweep", "q", "--max-stalled-count", "-1"), "max_stalled_count=-1"),
        (("sweep", "q", "--max-stalled-count", "many"), "many"),
        (("sweep", "q", "--max-attempts", "0"), "max_attempts=0"),
        (("sweep", "q", "--dialect", "sidekiq"), "sidekiq"),
        (("sweep", "q", "--engine", "diesel"), "diesel"),
        (("sweep", "q", "--grace", "strict"), "not built yet"),
        (("sweep", "q", "--hold", "mass-stall", "--hold", "clock"), "('mass-stall', 'clock')"),
        (("sweep", "q", "--bullmq-version", "6"), "bullmq_version='6'"),
        (("sweep", ""), "queue=''"),
        (("sweep", "q", "-u", "http://localhost"), "redis://"),
        (("sweep", "q", "--inter", "5"), "--inter"),
        (("demo", "--jobs", "3"), "jobs=3"),
    ],
)
def test_bad_usage_is_2_and_names_the_value(arguments: tuple[str, ...], says: str) -> None:
    ran = call(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_version_says_the_engine() -> None:
    ran = call("--version")
    assert ran.code == 0
    assert ran.out.startswith("mqsweep ")
    assert "engine " in ran.out


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("2", 2),
        ("0.25", 0.25),
        ("1h1m1s", 3661),
        ("1.5m", 90),
        ("2m5ms", 120.005),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


def test_small_words() -> None:
    assert [span(s) for s in (0.0042, 0.045, 2.5, 30, 252, 11_100)] == [
        "4.2 ms",
        "45 ms",
        "2.5 s",
        "30 s",
        "4m12s",
        "3h05m",
    ]
    assert listed([str(i) for i in range(12)], 100).endswith("8, 9 ... and 2 more")
    assert listed(["x" * 60, "y" * 60], 70) == "x" * 60 + " ... and 1 more"
    assert escape("") == "''"
    assert len(escape("\x00" * 1000)) <= 64


# no password, ever -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS)
def test_a_password_is_never_printed(servers: dict[str, Server], secret: str) -> None:
    server = servers["redis"]
    where = f"{quote(secret, safe='')}@127.0.0.1"
    with server.client() as client:
        client.flushall()
        client.acl_setuser("keeper", enabled=True, passwords=[f"+{secret}"], keys=["*"], categories=["+@all"])
        try:
            fill(client, b"1")
            client.set("emq:{odd}:active", "no list")
            runs = [
                (0, call("-u", f"redis://keeper:{where}:{server.port}/0", "sweep", "q")),
                (4, call("-u", f"redis://keeper:{where}:{server.port}/0", "sweep", "q", "-v")),
                (1, call("-u", f"redis://keeper:{where}:{server.port}/0", "sweep", "odd")),
                (3, call("-u", f"redis://stranger:{where}:{server.port}/0", "inspect", "q")),
                (3, call("-u", f"redis://keeper:{where}:1/0", "run", "q")),
            ]
        finally:
            client.acl_deluser("keeper")
    for code, ran in runs:
        assert ran.code == code, ran
        assert secret not in ran.said
        assert quote(secret, safe="") not in ran.said
    assert "refused the login" in runs[3][1].err
    assert "redis://***@127.0.0.1:1/0" in runs[4][1].err


@pytest.mark.parametrize(
    "arguments",
    [
        ("-u", "{}", "swoop"),
        ("{}", "sweep", "q"),
        ("sweep", "{}"),
        ("sweep", "q", "--ur", "{}"),
        ("sweep", "q", "--u={}"),
        ("sweep", "q", "--interval", "{}"),
        ("sweep", "q", "--dialect={}"),
        ("-u{}", "sweep", "q", "--interval", "0"),
    ],
)
@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@host/0",
        "redis://:s3c ret@host",
        "redis://:12/s3cret@host/0",
        "http://s3cret@host",
        "redis://:s3c'ret@h:x/",
    ],
)
def test_a_password_at_the_wrong_place_is_not_quoted(arguments: tuple[str, ...], url: str) -> None:
    ran = call(*(argument.format(url) for argument in arguments))
    assert ran.code == 2
    assert "s3c" not in ran.said


@pytest.mark.parametrize(
    "url",
    ["redis://:12/s3cret@127.0.0.1:1/0", "redis://:12#s3cret@h/0", "redis://:12?s3cret@h", "unix://:p/s3cret@/run/s"],
)
def test_a_url_that_would_be_misread_is_refused(url: str) -> None:
    ran = call("-u", url, "sweep", "q")
    assert ran.code == 2
    assert "%2F" in ran.err
    assert "12" not in ran.said
    assert "s3cret" not in ran.said
    assert hidden(url) == "***"


def test_a_bug_of_ours_shows_its_traceback_without_the_url(
    monkeypatch: pytest.MonkeyPatch, server: Server, client: Any
) -> None:
    fill(client, b"1")
    url = server.url.replace("unix://", "unix://user:s%2F3cret@")

    def broken(self: Sweeper) -> None:
        raise RuntimeError(f"cannot parse {url} with s/3cret or s%2F3cret")

    monkeypatch.setattr(Sweeper, "exists", broken)
    ran = call("-u", url, "sweep", "q")
    assert ran.code == 1
    assert "RuntimeError: cannot parse unix://***@" in ran.err
    assert "3cret" not in ran.said
