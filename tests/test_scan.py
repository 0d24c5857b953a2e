"""The scan and its twin: against real servers over a raw socket, and fed bytes of any kind."""

from __future__ import annotations

import random
import socket
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from mqsweep import ProtocolError
from mqsweep.errors import ServerReplyError
from support.twins import BASE, ODD_IDS, TWINS, commands, listed, maker, twin


@pytest.fixture(params=TWINS)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a scan of the queue, by each twin in turn."""
    return maker(twin(request.param))


def step(scan: Any, wire: socket.socket, size: int = 1 << 16) -> int:
    """One exchange. Returns how many bytes were sent."""
    out = scan.outgoing()
    wire.sendall(out)
    scan.feed(wire.recv(size))
    return len(out)


def look(scan: Any, wire: socket.socket, size: int = 1 << 16) -> Any:
    """Drive a scan to its end."""
    while not scan.done:
        step(scan, wire, size)
    assert scan.outgoing() == b""
    return listed(scan.sightings())


def fill(client: redis.Redis, ids: Sequence[bytes], locked: Sequence[bytes] = (), marked: Sequence[bytes] = ()) -> None:
    """Put ids into active, the first one oldest (at the tail)."""
    pipe = client.pipeline(transaction=False)
    for job_id in ids:
        pipe.lpush(BASE + b":active", job_id)
    for job_id in locked:
        pipe.set(BASE + b":" + job_id + b":lock", b"token")
    for job_id in marked:
        pipe.sadd(BASE + b":stalled", job_id)
    pipe.execute()


def numbers(count: int) -> list[bytes]:
    """So many ids."""
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 99, 100, 101, 1015, 1016, 1017, 5000])
def test_sees_every_job_with_its_distance(
    make: Callable[..., Any], client: redis.Redis, wire: socket.socket, count: int
) -> None:
    ids = numbers(count)
    fill(client, ids)
    seen = look(make(), wire)
    assert seen.stalled == [(job_id, (place + 1,), False) for place, job_id in enumerate(ids)]
    assert (seen.active_scanned, seen.stalled_scanned, seen.strays, seen.locked_marks) == (count, 0, [], [])


@pytest.mark.parametrize("share", [0.0, 0.003, 0.05, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("marks", ["none", "all", "some"])
def test_tells_dead_from_living_at_any_share(
    make: Callable[..., Any], client: redis.Redis, wire: socket.socket, share: float, marks: str
) -> None:
    chance = random.Random(f"{share} {marks}")
    ids = numbers(3000)
    dead = {job_id for job_id in ids if chance.random() < share}
    marked = {"none": [], "all": ids, "some": [i for i in ids if chance.random() < 0.5]}[marks]
    strays, gone = numbers(3100)[3000:], [b"locked-stray"]
    fill(client, ids, [i for i in ids if i not in dead] + gone, [*marked, *strays, *gone])
    seen = look(make(), wire)
    there = set(marked)
    assert seen.stalled == [(i, (place + 1,), i in there) for place, i in enumerate(ids) if i in dead]
    assert sorted(seen.locked_marks) == sorted({i for i in marked if i not in dead} | set(gone))
    assert sorted(seen.strays) == sorted(strays)
    assert seen.stalled_scanned == len(marked) + 101


def test_marks_of_the_living_may_be_meant_to_stand(
    make: Callable[..., Any], client: redis.Redis, wire: socket.socket
) -> None:
    fill(client, [b"dead", b"alive"], [b"alive", b"gone"], [b"dead", b"alive", b"gone", b"stray"])
    seen = look(make(keep_locked=True), wire)
    assert seen.stalled == [(b"dead", (1,), True)]
    assert seen.locked_marks == []
    assert sorted(seen.strays) == [b"gone", b"stray"]  # not in active, so its mark goes, lock or no lock


def test_many_marks_are_read_in_slices(make: Callable[..., Any], client: redis.Redis, wire: socket.socket) -> None:
    """Those that matter are asked for; strays and marks of the living turn up slice by slice."""
    ids, strays = numbers(6000), [b"stray-%d" % number for number in range(500)]
    dead = ids[::50]
    fill(client, ids, [i for i in ids if i not in set(dead)], ids[::2] + strays)
    wanted = [(job_id, (place * 50 + 1,), place * 50 % 2 == 0) for place, job_id in enumerate(dead)]
    found: set[bytes] = set()
    cursor, scans = b"0", 0
    while scans == 0 or cursor != b"0":
        client.config_resetstat()
        scan = make(most_marks=1000, cursor=cursor)
        seen = look(scan, wire)
        assert seen.stalled == wanted
        assert seen.stalled_scanned <= 2100  # SSCAN answers in its own pieces
        assert client.info("commandstats")["cmdstat_sscan"]["calls"] <= 2
        found.update(seen.strays)
        cursor, scans = scan.cursor, scans + 1
    assert found == set(strays)
    assert scans > 1


def test_odd_ids_and_duplicates(make: Callable[..., Any], client: redis.Redis, wire: socket.socket) -> None:
    ids = [*ODD_IDS, b"z" * (1 << 20), b"1", *ODD_IDS[:2]]
    fill(client, ids, [b"1"], [ODD_IDS[2]])
    seen = look(make(), wire, size=997)
    assert {i: places for i, places, _ in seen.stalled} == {
        job_id: tuple(place + 1 for place, other in enumerate(ids) if other == job_id)
        for job_id in ids
        if job_id != b"1"
    }
    assert [i for i, _, marked in seen.stalled if marked] == [ODD_IDS[2]]


def test_long_ids_make_small_windows(make: Callable[..., Any], client: redis.Redis, wire: socket.socket) -> None:
    """A thousand elements of a megabyte would be a reply of a gigabyte."""
    fill(client, [b"%d" % number + b"x" * (1 << 20) for number in range(40)])
    client.config_resetstat()
    scan = make()
    most = 0
    while not scan.done:
        most = max(most, step(scan, wire, 1 << 20))
    assert len(scan.sightings().stalled) == 40
    assert most < 24 << 20  # the first window shows how long they are: its locks are asked for at once
    assert client.info("commandstats")["cmdstat_lrange"]["calls"] > 10


@pytest.mark.parametrize("long", [range(40), range(480, 520), range(960, 1000)], ids=["first", "among", "last"])
@pytest.mark.parametrize("depth", [1, 3, 100])
def test_wrong_guess_of_how_long_ids_are_costs_one_window(
    make: Callable[..., Any], client: redis.Redis, wire: socket.socket, long: range, depth: int
) -> None:
    """Never are more elements asked for and not read than a window has; after a long reply it is far fewer."""
    ids = [b"%d" % number + (b"x" * (1 << 18) if number in long else b"") for number in range(1000)]
    fill(client, ids[::-1])  # the walk meets the first one first
    scan, asked, lengths = make(window=30, depth=depth), twin("python").ReplyReader(), []
    reached = most = held = 0
    while not scan.done:
        out = scan.outgoing()
        for command in commands(asked, out):
            if command[0] == b"LRANGE":
                lengths.append(int(command[3]) - int(command[2]) + 1)
                reached = 1001 + int(command[3])
        most = max(most, reached - scan.active_scanned)
        held = max(held, sum(map(len, ids[scan.active_scanned : reached])))
        wire.sendall(out)
        scan.feed(wire.recv(1 << 16))
    assert len(scan.sightings().stalled) == 1000
    assert most <= 30
    assert held <= 30 * (1 << 18) + 1000
    assert max(lengths) == 30 // min(depth, 30)
    assert depth == 100 or 3 in lengths  # four of these are more than a megabyte


def test_healthy_queue_costs_few_commands(make: Callable[..., Any], client: redis.Redis, wire: socket.socket) -> None:
    ids = numbers(20_000)
    fill(client, ids, ids)
    client.config_resetstat()
    look(make(), wire)
    stats = client.info("commandstats")
    calls = {name: stats[f"cmdstat_{name}"]["calls"] for name in ("sscan", "llen", "lrange", "exists")}
    assert (calls["sscan"], calls["llen"]) == (1, 1)
    assert calls["lrange"] <= 20_000 / 400 + 12
    assert calls["exists"] <= 20_000 / 100 + 12


def test_nothing_that_stays_is_missed_while_the_list_changes(
    make: Callable[..., Any], client: redis.Redis, wire: socket.socket
) -> None:
    """Workers push at the head and remove anywhere between two exchanges; every id that stays is seen."""
    chance = random.Random(5)
    for _ in range(15):
        client.flushdb()
        ids = numbers(700)
        fill(client, ids)
        scan = make(window=50)
        gone: set[bytes] = set()
        new = 0
        while not scan.done:
            for job_id in chance.sample(ids, 12):
                client.lrem(BASE + b":active", 1, job_id)
                gone.add(job_id)
            for _ in range(chance.randrange(20)):
                client.lpush(BASE + b":active", b"new-%d" % new)
                new += 1
            step(scan, wire, 600)
        seen = listed(scan.sightings())
        assert {i for i, _, _ in seen.stalled} >= set(ids) - gone
        left = client.lrange(BASE + b":active", 0, -1)
        place = {job_id: len(left) - index for index, job_id in enumerate(left)}
        for job_id, distances, _ in seen.stalled:  # where it stands now is never farther than where it was seen
            assert job_id not in place or place[job_id] <= distances[0]


def look_with(scan: Any, wire: socket.socket, before_walk: Callable[[], object]) -> Any:
    """Drive a scan to its end, with something happening between its look at the marks and its walk."""
    while b"LLEN" not in (out := scan.outgoing()):
        wire.sendall(out)
        scan.feed(wire.recv(1 << 16))
    before_walk()
    wire.sendall(out)
    scan.feed(wire.recv(1 << 16))
    return look(scan, wire)


@pytest.mark.parametrize("keep_locked", [False, True])
def test_marked_job_ever_seen_with_a_lock_is_not_stalled(
    make: Callable[..., Any], client: redis.Redis, wire: socket.socket, keep_locked: bool
) -> None:
    """Whichever look saw the lock: its worker renews, or did until a moment ago."""
    ids = [b"renewed", b"lapsed", b"dead", b"unmarked"]
    fill(client, ids, [b"lapsed"], ids[:3])

    def change() -> None:
        client.set(BASE + b":renewed:lock", b"token")
        client.delete(BASE + b":lapsed:lock")

    seen = look_with(make(keep_locked=keep_locked), wire, change)
    assert seen.stalled == [(b"dead", (3,), True), (b"unmarked", (4,), False)]
    assert seen.locked_marks == ([] if keep_locked else [b"lapsed", b"renewed"])
    assert seen.strays == []


def test_marked_job_that_leaves_before_the_walk_is_a_stray(
    make: Callable[..., Any], client: redis.Redis, wire: socket.socket
) -> None:
    fill(client, [b"done", b"dead"], [], [b"done", b"dead"])
    seen = look_with(make(), wire, lambda: client.lrem(BASE + b":active", 0, b"done"))
    assert (seen.stalled, seen.strays) == ([(b"dead", (1,), True)], [b"done"])


@pytest.mark.parametrize(("share", "most"), [(0.01, 0.16), (0.1, 0.7), (0.5, 1.1), (1.0, 0.03)])
def test_finding_the_dead_costs_few_commands(
    make: Callable[..., Any], client: redis.Redis, wire: socket.socket, share: float, most: float
) -> None:
    ids = numbers(5000)
    dead = set(random.Random(3).sample(ids, int(5000 * share)))
    fill(client, ids, [i for i in ids if i not in dead])
    client.config_resetstat()
    assert len(look(make(), wire).stalled) == len(dead)
    assert client.info("commandstats")["cmdstat_exists"]["calls"] <= 5000 * most


def test_list_that_empties_under_the_walk(make: Callable[..., Any], client: redis.Redis, wire: socket.socket) -> None:
    fill(client, numbers(50_000))
    client.config_resetstat()
    scan = make()
    while scan.active_total == 0:
        step(scan, wire)
    client.delete(BASE + b":active")
    look(scan, wire)
    assert client.info("commandstats")["cmdstat_lrange"]["calls"] < 145


@pytest.mark.parametrize("key", ["stalled", "active"])
def test_wrong_type_is_the_servers_error(
    make: Callable[..., Any], client: redis.Redis, wire: socket.socket, key: str
) -> None:
    client.set(BASE + b":" + key.encode(), "x")
    scan = make()
    with pytest.raises(ServerReplyError, match="WRONGTYPE"):
        look(scan, wire)
    with pytest.raises(ServerReplyError, match="WRONGTYPE"):
        scan.feed(b"")  # it is dead, and says so again
    assert not scan.done


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"*2\r\n$1\r\n0\r\n*0\r\n:0\r\n:0\r\n",
        b"*2\r\n$1\r\n0\r\n*0\r\n:-1\r\n",
        b"*2\r\n$1\r\n0\r\n*0\r\n:1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n:2\r\n",
        b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n:-1\r\n",
    ],
)
def test_refuses_what_was_not_asked_for(make: Callable[..., Any], reply: bytes) -> None:
    scan = make()
    with pytest.raises(ProtocolError):
        scan.feed(reply)
    with pytest.raises(ProtocolError):
        scan.feed(b"")
    assert not scan.done


def test_sightings_before_the_end_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="not done"):
        make().sightings()


@pytest.mark.parametrize("how", [{"window": 0}, {"check": -1}, {"depth": 0}])
def test_sizes_below_one_are_refused(make: Callable[..., Any], how: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="window, check and depth must be 1 or more"):
        make(**how)


def test_nothing_is_kept_of_living_jobs() -> None:
    """Memory does not grow with active. (The twin's own cannot be traced from here; it keeps the same.)"""
    peaks = []
    for count in (20_000, 100_000):
        scan, reader, fake = maker(twin("python"))(), twin("python").ReplyReader(), HealthyServer(count)
        tracemalloc.start()
        while not scan.done:
            scan.feed(b"".join(map(fake.answer, commands(reader, scan.outgoing()))))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert scan.active_scanned == count
    assert peaks[1] < peaks[0] * 1.2


class HealthyServer:
    """Answers as a server does whose queue has so many active jobs, all of them with a lock, and no marks."""

    def __init__(self, count: int) -> None:
        self.count = count

    def answer(self, command: list[bytes]) -> bytes:
        if command[0] == b"SSCAN":
            return b"*2\r\n$1\r\n0\r\n*0\r\n"
        if command[0] == b"LLEN":
            return b":%d\r\n" % self.count
        if command[0] == b"EXISTS":
            return b":%d\r\n" % (len(command) - 1)
        ids = [b"%036d" % place for place in range(-int(command[2]), -int(command[3]) - 1, -1)]
        return b"*%d\r\n" % len(ids) + b"".join(b"$%d\r\n%s\r\n" % (len(i), i) for i in ids)


def test_dead_marks_do_not_make_the_walk_ask_for_fewer_locks_at_once(
    make: Callable[..., Any], client: redis.Redis, wire: socket.socket
) -> None:
    """Among the marked all may be dead, among the active one in a hundred."""
    ids = numbers(5000)
    dead = ids[::100]
    fill(client, ids, [i for i in ids if i not in set(dead)])
    calls = []
    for marked in ([], dead):
        fill(client, [], marked=marked)
        client.config_resetstat()
        assert len(look(make(), wire).stalled) == len(dead)
        calls.append(client.info("commandstats")["cmdstat_exists"]["calls"])
    assert calls[1] <= calls[0] + 5
