"""Fixtures over servers and engines, and how hard hypothesis tries."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest
import redis
from hypothesis import HealthCheck, settings

from support.cases import Case
from support.fleet import Fleet, fleet_on, why_no_node
from support.servers import KINDS, Server, start_server

# What is started in the background ignores Ctrl-C, and so does all that it starts; the tests start commands as a
# terminal does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ENGINES = ("python", "script", "rust")

_EXAMPLES = {"quick": 100, "ci": 150, "full": 2_000, "nightly": 10_000}

for _name, _examples in _EXAMPLES.items():
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,  # machines are shared; a test that never ends meets pytest-timeout
        # What lands was tried as it stands: the same examples each time. New ones are the long profiles' work.
        derandomize=_name in ("quick", "ci"),
        database=None,  # leaves no files behind; a failure prints how to repeat it
        print_blob=True,
        # The server is emptied by the tests themselves, before each example.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("MQSWEEP_HYPOTHESIS", "quick"))


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, Server]]:
    """One private server of each kind, for the whole session."""
    with contextlib.ExitStack() as stack:
        yield {kind: stack.enter_context(start_server(kind, tcp=True)) for kind in KINDS}


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    """An empty server, each kind in turn: no data, no cached scripts. Tests that change its configuration start their own."""
    chosen = servers[request.param]
    with chosen.client() as client:
        client.flushall()
        client.script_flush()
    return chosen


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain client (bytes) of ``server``."""
    with server.client() as client:
        yield client


@pytest.fixture
def wire(server: Server) -> Iterator[socket.socket]:
    """A raw connection to the server."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(20)
        raw.connect(server.socket)
        yield raw


def _why_no_rust() -> str | None:
    """What ``engine="rust"`` says when it is asked for; ``None`` when it works."""
    from mqsweep import ConfigurationError, Sweeper

    try:
        # An address where nothing listens: construction does not connect.
        Sweeper("redis://127.0.0.1:1/0", "probe", engine="rust").close()
    except ConfigurationError as error:
        return str(error)
    return None


def _usable(name: str) -> str:
    """Skip the test where the native core is not built; fail it under MQSWEEP_REQUIRE_RUST=1."""
    if name == "rust":
        reason = _why_no_rust()
        if reason and os.environ.get("MQSWEEP_REQUIRE_RUST") == "1":
            pytest.fail(f"MQSWEEP_REQUIRE_RUST=1, but: {reason}")
        if reason:
            pytest.skip(reason)
    return name


@pytest.fixture
def usable() -> Callable[[str], str]:
    """Skips, or fails, a test whose engine is not built here."""
    return _usable


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn; ``rust`` is skipped where it is not built, unless MQSWEEP_REQUIRE_RUST=1."""
    return _usable(request.param)


@pytest.fixture(params=["python", "rust"])
def looking(request: pytest.FixtureRequest) -> str:
    """The engines that look before the script acts, each in turn."""
    return _usable(request.param)


@pytest.fixture(params=(*ENGINES, "bare"))
def way(request: pytest.FixtureRequest) -> str:
    """Each engine in turn, and the bare script with three arguments."""
    return _usable(request.param)


@pytest.fixture(params=(*ENGINES, "bare"))
def other_way(request: pytest.FixtureRequest) -> str:
    """As ``way``, for tests where two of them meet."""
    return _usable(request.param)


@pytest.fixture(params=["echomq", "bullmq"])
def dialect(request: pytest.FixtureRequest) -> str:
    """Each dialect in turn."""
    name: str = request.param
    return name


@pytest.fixture
def case(client: redis.Redis, engine: str, dialect: str) -> Case:
    """A queue with nothing in it."""
    return Case(client, engine, dialect)


@pytest.fixture
def fleet(server: Server) -> Iterator[Fleet]:
    """Workers in Node and Python on an empty server; skipped where Node is missing, unless MQSWEEP_REQUIRE_NODE=1."""
    pytest.importorskip("bullmq")
    reason = why_no_node()
    if reason and os.environ.get("MQSWEEP_REQUIRE_NODE") == "1":
        pytest.fail(f"MQSWEEP_REQUIRE_NODE=1, but: {reason}")
    if reason:
        pytest.skip(reason)
    with fleet_on(server) as fleet:
        yield fleet
