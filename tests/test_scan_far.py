"""How far a sweep reads ahead: as far as the server is away."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import redis

from mqsweep import Sweeper
from mqsweep.connect import Link
from mqsweep.drive import Commands, RoundTrip, Step
from mqsweep.inspection import inspect
from support.cases import Case
from support.delay import delaying
from support.servers import Server
from support.twins import commands, twin

JOBS = 16_000


def most_ahead(sweeper: Any, wire: socket.socket, round_trip: float) -> int:
    """How many elements of active are asked for and not read, at most, when a round trip takes so long."""
    steps, reader, most, asked = inspect(sweeper._task), twin("python").ReplyReader(), 0, 0
    with Link(sweeper._source) as link:
        request = next(steps)
        try:
            while True:
                answer: Any = None
                match request:
                    case RoundTrip():
                        answer = round_trip
                    case Commands(ask):
                        answer = link.commands(ask)
                    case Step(scan):
                        out = scan.outgoing()  # type: ignore[attr-defined]
                        for command in commands(reader, out):
                            if command[0] == b"LRANGE":
                                asked = JOBS + 1 + int(command[3])
                        most = max(most, asked - scan.active_scanned)  # type: ignore[attr-defined]
                        wire.sendall(out)
                        scan.feed(wire.recv(1 << 12))
                request = steps.send(answer)
        except StopIteration:
            return most


@pytest.mark.parametrize("engine", ["python", "rust"])
def test_the_farther_the_server_the_more_is_asked_for_ahead(
    engine: str, client: redis.Redis, wire: socket.socket, usable: Any
) -> None:
    Case(client, engine, "echomq").alive(*(b"%d" % number for number in range(JOBS)))
    with Sweeper(client, "q", engine=usable(engine)) as sweeper:
        ahead = [most_ahead(sweeper, wire, round_trip) for round_trip in (0.0, 0.0004, 0.001, 0.1, float("inf"))]
    assert ahead[:3] == [1_200, 1_200, 5_200]
    assert all(9_000 < most <= 12_000 for most in ahead[3:]), ahead  # how chunks fall moves it a little


def test_round_trip_is_measured_on_the_way(server: Server, client: redis.Redis) -> None:
    Case(client, "python", "echomq").alive(b"1")
    assert server.port is not None
    with delaying(server.port, 0.01) as port, Sweeper(f"redis://127.0.0.1:{port}/0", "q") as sweeper:
        assert sweeper.sweep().status == "swept"
        assert 0.02 <= sweeper._link.round_trip < 20
