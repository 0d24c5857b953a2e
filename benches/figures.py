"""The figures beside the table of scenarios: client against client, floor, memory, growth, network, asyncio.

    python benches/figures.py [--json FILE]      everything; see the page for how long
    python benches/figures.py --quick            a tenth of the size, to try it
    python benches/figures.py floor network      these parts only

Prints a Markdown table. Each figure stands beside what it should be, as far as there is such a target; each ratio is
to something that ran beside it, and values are medians. Needs the extra `bench`, and a machine that is otherwise quiet.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from mqsweep import AsyncSweeper, Sweeper
from mqsweep import engine as engines
from mqsweep.bench.bystander import quantile
from mqsweep.bench.cases import Case, Jobs, number
from mqsweep.bench.contenders import queue_keys
from mqsweep.bench.environment import described, environment
from mqsweep.bench.stage import Place, PrivateHost, version_of
from mqsweep.keys import QueueKeys
from support.delay import delaying
from support.servers import start_server

PREFIX = "bull"
FULL = "1m"
PATIENCE = 600.0
ENGINES = ("rust", "python")
ROUND_TRIP = 0.001
MB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        part: which part measured it.
        what: in words.
        value: the figure.
        unit: of it; empty for a ratio.
        target: what it should not exceed; ``None`` = shown for comparison.
    """

    part: str
    what: str
    value: float
    unit: str = ""
    target: float | None = None

    def __str__(self) -> str:
        target, met = "", ""
        if self.target is not None:
            target, met = f"{self.target:g} {self.unit}".strip(), "yes" if self.value <= self.target else "**no**"
        return f"| {self.part} | {self.what} | {self.value:.3g} {self.unit}".rstrip() + f" | {target} | {met} |"


Rows = Iterator[Row]


@dataclass(frozen=True)
class Size:
    """How large, how often, on what.

    Attributes:
        jobs: active, where the design says a million.
        repeat: runs of what takes seconds.
        server: kind.
    """

    jobs: int
    repeat: int
    server: str

    def shown(self, jobs: int, dead: int, ids: str) -> str:
        """A case in words."""
        return f"{jobs:,} active, {dead:,} dead, {ids}"


# running


def cpu(client: Any) -> float:
    """Seconds of CPU that the server has used."""
    found = client.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])


def run(place: Place, contender: str) -> dict[str, Any]:
    """One sweep by a contender in a process of its own; what it and the server spent."""
    place.client.delete(place.keys.of("stalled-check"))
    helper = place.stage.helper("subject")
    helper.ask({"url": place.url, "prefix": place.prefix, "contender": contender}, PATIENCE)
    before = cpu(place.client)
    cost: dict[str, Any] = helper.ask("go", PATIENCE)
    return {**cost, "server_cpu": cpu(place.client) - before}


def runs(size: Size, case: Case, contenders: tuple[str, ...], repeat: int) -> dict[str, dict[str, float]]:
    """Medians of the contenders' runs, which take turns. Each has new data, unless a sweep changes none."""
    jobs, host = Jobs(case), PrivateHost(size.server)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    with contextlib.ExitStack() as kept:
        place: Place | None = None
        for name in contenders * repeat:
            if place is None or case.dead:
                kept.close()
                place = kept.enter_context(host.place(jobs))
                jobs.fill(place.client, place.keys)
            found[name].append(run(place, name))
    return {name: {key: median(one[key] for one in all_) for key in all_[0]} for name, all_ in found.items()}


@contextlib.contextmanager
def filled(size: Size, jobs: Jobs, prefixes: tuple[str, ...] = (PREFIX,), tcp: bool = False) -> Iterator[Any]:
    """A server with the same jobs under each prefix, and a client of it."""
    with start_server(size.server, tcp=tcp) as server, server.client(socket_timeout=None) as client:
        for prefix in prefixes:
            jobs.fill(client, queue_keys(prefix))
        yield server, client


def look(path: str, keys: QueueKeys, engine: str) -> float:
    """A scan by itself. Returns seconds."""
    make = engines.choose(engine).scan
    assert make is not None
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(path)
        began = time.perf_counter()
        scan = make(stalled=keys.of("stalled"), active=keys.of("active"), base=keys.base + b":")
        while not scan.done:
            wire.sendall(scan.outgoing())
            scan.feed(wire.recv(1 << 17))
        return time.perf_counter() - began


def sweeps(client: Any, port: int, repeat: int) -> dict[str, float]:
    """Seconds of a sweep by each engine, through a port; the least of so many, by one sweeper as a service has it."""
    found = {}
    for name in ENGINES:
        with Sweeper(f"redis://127.0.0.1:{port}/0", "bench", dialect="bullmq", engine=name) as sweeper:

            def sweep(one: Sweeper = sweeper) -> float:
                client.delete(queue_keys(PREFIX).of("stalled-check"))
                return one.sweep().duration

            found[name] = best(sweep, repeat + 1)
    return found


def best(work: Callable[[], float], repeat: int) -> float:
    """The least of so many."""
    return min(work() for _ in range(repeat))


# the parts


def clients(size: Size) -> Rows:
    """What each client spends for itself, and how long it takes."""
    for dead, ids in ((0, "int"), (0, "uuid"), (size.jobs // 100, "int"), (size.jobs // 100, "uuid")):
        case = Case(size.jobs, dead, ids)  # type: ignore[arg-type]
        got, title = runs(size, case, (*ENGINES, "idiom"), size.repeat), size.shown(size.jobs, dead, ids)
        for name, cost in got.items():
            per_million = cost["client_cpu"] * 1e6 / size.jobs
            limit = 0.2 if name == "rust" and not dead else None
            yield Row("clients", f"CPU of `{name}` per million scanned: {title}", per_million, "s", limit)
            yield Row("clients", f"wall of `{name}`: {title}", cost["seconds"], "s")
        rust, python, idiom = (got[name] for name in ("rust", "python", "idiom"))
        ratio = rust["client_cpu"] / python["client_cpu"]
        yield Row("clients", f"CPU, `rust` to `python`: {title}", ratio, "", 1 / 3)
        yield Row("clients", f"wall, `rust` to `python`: {title}", rust["seconds"] / python["seconds"], "", 1.0)
        if not dead:
            yield Row("clients", f"wall, `rust` to `idiom`: {title}", rust["seconds"] / idiom["seconds"], "", 1 / 3)


def threads(size: Size) -> Rows:
    """Four queues of a quarter each, in four threads of one process."""
    prefixes = tuple(f"bull{n}" for n in range(4))
    with filled(size, Jobs(Case(max(1, size.jobs // 4), 0, "uuid")), prefixes) as (server, client):
        for name in ENGINES:
            walls, spent = [], []
            for _ in range(size.repeat):
                before, began = cpu(client), time.perf_counter()
                with ThreadPoolExecutor(4) as pool:
                    list(pool.map(lambda prefix, e=name: look(server.socket, queue_keys(prefix), e), prefixes))  # type: ignore[misc]
                walls.append(time.perf_counter() - began)
                spent.append(cpu(client) - before)
            title = f"four queues in four threads, `{name}`: wall to the server's CPU"
            yield Row("threads", title, median(walls) / median(spent), "", 1.15 if name == "rust" else None)


def floor(size: Size) -> Rows:
    """A sweep against the server's own time for it, and that against a client that does nothing but send."""
    for ids in ("int", "uuid"):
        jobs = Jobs(Case(size.jobs, 0, ids))  # type: ignore[arg-type]
        got = runs(size, jobs.case, ("rust",), size.repeat)["rust"]
        with filled(size, jobs) as (server, client):
            bare = best(lambda s=server, c=client, j=jobs: pipelined(s.socket, c, j), size.repeat)  # type: ignore[misc]
        title = size.shown(size.jobs, 0, ids)
        yield Row("floor", f"wall of `rust` to the server's CPU: {title}", got["seconds"] / got["server_cpu"], "", 1.15)
        yield Row("floor", f"server's CPU to a bare client's: {title}", got["server_cpu"] / bare, "", 1.1)
        yield Row("floor", f"server's CPU for a bare client: {title}", bare, "s")


def pipelined(path: str, client: Any, jobs: Jobs) -> float:
    """Windows of 1,000 and checks of 100, encoded beforehand, three windows ahead. Returns the server's CPU."""
    keys, ids = queue_keys(PREFIX), [job_id.encode() for job_id in jobs.ids]
    requests = []
    for left in range(len(ids), 0, -1000):
        low = max(1, left - 999)
        window = ids[low - 1 : left]
        asks = [(b"LRANGE", keys.of("active"), b"-%d" % left, b"-%d" % low)]
        asks += [(b"EXISTS", *map(keys.lock, window[i : i + 100])) for i in range(0, len(window), 100)]
        parts = [b"*%d\r\n" % len(ask) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in ask) for ask in asks]
        requests.append(b"".join(parts) + b"*1\r\n$4\r\nPING\r\n")
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(path)
        before, sent, answered, rest = cpu(client), 0, 0, b""
        while answered < len(requests):
            while sent < min(len(requests), answered + 3):
                wire.sendall(requests[sent])
                sent += 1
            data = rest + wire.recv(1 << 17)
            answered, rest = answered + data.count(b"+PONG\r\n"), data[-6:]
    return cpu(client) - before


def memory(size: Size) -> Rows:
    """How far a sweeper's memory grows, and what each dead job costs the server."""
    spent: dict[int, float] = {}
    for dead, most in ((0, 64), (size.jobs // 100, 64), (size.jobs, 300)):
        case = Case(size.jobs, dead, "uuid")
        for name, cost in runs(size, case, ENGINES, 1).items():
            title = f"peak RSS growth of `{name}`: {size.shown(size.jobs, dead, 'uuid')}"
            yield Row("memory", title, cost["rss_growth"] / MB, "MB", most)
            spent[dead] = cost["server_cpu"]
    for dead, most in ((size.jobs, 25), (size.jobs // 100, 60)):
        each = (spent[dead] - spent[0]) / dead * 1e6
        yield Row("growth", f"server's CPU per dead job: {size.shown(size.jobs, dead, 'uuid')}", each, "µs", most)


def growth(size: Size) -> Rows:
    """Scanning time per active job, from small to large."""
    sizes = [max(1, count) for count in (size.jobs // 100, size.jobs // 10, size.jobs, 3 * size.jobs)]
    found = {}
    for count in sizes:
        with filled(size, Jobs(Case(count, 0, "uuid"))) as (server, _):
            times = max(size.repeat, min(50, size.jobs // count))
            found[count] = best(lambda s=server: look(s.socket, queue_keys(PREFIX), "rust"), times) / count  # type: ignore[misc]
        yield Row("growth", f"scan by `rust`, per job of {count:,} active", found[count] * 1e6, "µs")
    yield Row("growth", "the dearest of these to the cheapest", max(found.values()) / min(found.values()), "", 1.2)


def network(size: Size) -> Rows:
    """A sweep at a round trip of 1 ms."""
    how, found = "a delaying proxy", dict[str, float]()
    if shutil.which("tc") and shutil.which("unshare"):
        command = [sys.executable, __file__, "--far", f"{size.jobs}:{size.repeat}:{size.server}"]
        slow = f"tc qdisc add dev lo root netem delay {ROUND_TRIP * 500}ms limit 100000"
        done = subprocess.run(
            ["unshare", "-n", "sh", "-c", f'ip link set lo up && {slow} && exec "$@"', "sh", *command],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            how, found = "tc netem", json.loads(done.stdout)
    with filled(size, Jobs(Case(size.jobs, 0, "uuid")), tcp=True) as (server, client):
        near = sweeps(client, server.port, size.repeat)
        if not found:
            with delaying(server.port, ROUND_TRIP / 2) as port:
                found = sweeps(client, port, size.repeat)
    for name in ENGINES:
        title = f"a sweep by `{name}` at a round trip of 1 ms ({how}) to loopback: {size.shown(size.jobs, 0, 'uuid')}"
        yield Row("network", title, found[name] / near[name], "", 1.5 if name == "rust" else None)


def far(size: Size) -> None:
    """The sweeps themselves, in a network that is slow already."""
    with filled(size, Jobs(Case(size.jobs, 0, "uuid")), tcp=True) as (server, client):
        print(json.dumps(sweeps(client, server.port, size.repeat)))


def lateness(size: Size) -> Rows:
    """How late an event loop in the same process is while a sweep goes on."""
    with filled(size, Jobs(Case(size.jobs, 0, "uuid"))) as (server, client):
        url = f"unix://{quote(server.socket)}"
        for name in ("", *ENGINES):
            client.delete(queue_keys(PREFIX).of("stalled-check"))
            late, held = map(sorted, zip(*asyncio.run(ticking(url, name)), strict=True))
            who = f"during a sweep by `{name}`: {size.shown(size.jobs, 0, 'uuid')}" if name else "while nothing goes on"
            limit = 2 if name == "rust" else None
            yield Row("asyncio", f"p99 of an event loop's lateness {who}", quantile(late, 0.99) * 1000, "ms", limit)
            yield Row("asyncio", f"worst of it {who}", late[-1] * 1000, "ms")
            # what a busy machine does to the clock is not in this one
            yield Row(
                "asyncio", f"p99 of the loop's CPU between two ticks {who}", quantile(held, 0.99) * 1000, "ms", limit
            )


async def ticking(url: str, engine: str) -> list[tuple[float, float]]:
    """How late each tick of a millisecond was during a sweep, and what CPU the loop's thread used since the last.

    Without an engine, during half a second.
    """
    loop, found = asyncio.get_running_loop(), list[tuple[float, float]]()

    async def tick() -> None:
        while True:
            due, used = loop.time() + 0.001, time.thread_time()
            await asyncio.sleep(0.001)
            found.append((loop.time() - due, time.thread_time() - used))

    ticker = asyncio.ensure_future(tick())
    if engine:
        async with AsyncSweeper(url, "bench", dialect="bullmq", engine=engine) as sweeper:
            report = await sweeper.sweep()
            assert report.status == "swept"
    else:
        await asyncio.sleep(0.5)
    ticker.cancel()
    return found or [(0.0, 0.0)]


PARTS: dict[str, Callable[[Size], Rows]] = {
    "clients": clients,
    "threads": threads,
    "floor": floor,
    "memory": memory,
    "growth": growth,
    "network": network,
    "asyncio": lateness,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--jobs", default=FULL, help="active, where the design says a million (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="the same as --jobs 100k --repeat 1")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--server", default="valkey", choices=("valkey", "redis"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and the environment as JSON")
    parser.add_argument("--far", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.far:
        jobs, repeat, kind = options.far.split(":")
        far(Size(int(jobs), int(repeat), kind))
        return
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    size = Size(
        number("100k" if options.quick else options.jobs), 1 if options.quick else options.repeat, options.server
    )
    around, rows = environment(), list[Row]()
    with start_server(size.server) as server:
        around["server"] = version_of(server.client())
    print("\n".join(f"* {line}" for line in [*described(around), around["server"]]))
    if size.jobs < number(FULL):
        print(
            f"* {size.jobs:,} jobs instead of {number(FULL):,}: what is fixed weighs more, so the targets do not apply"
        )
    print("\n| part | what | measured | target | met |\n|---|---|---|---|---|", flush=True)
    for name in options.parts or PARTS:
        for row in PARTS[name](size):
            if size.jobs < number(FULL):
                row = replace(row, target=None)
            rows.append(row)
            print(row, flush=True)
    if options.json:
        found = {"environment": around, "jobs": size.jobs, "repeat": size.repeat, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
