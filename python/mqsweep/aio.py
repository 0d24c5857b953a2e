"""The front door for asyncio: `AsyncSweeper`, the names of `Sweeper` with ``await``, over ``redis.asyncio``."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import redis.asyncio

from . import inspection
from .connect import Command, Scanner, Source, pack
from .drive import Abandon, Commands, Request, RoundTrip, Step, Steps, Tell, Wait
from .errors import ProtocolError
from .lease import new_token
from .report import Inspection, SweepReport
from .service import serve
from .sweep import Round, sweep
from .sweeper import Front

READ_SIZE = 1 << 16
"""Bytes fed to a scan at once: half of what the blocking link takes, to hold the event loop up for half as long."""

Result = TypeVar("Result")
Listener = Callable[[SweepReport], Awaitable[None] | None]


class AsyncLink:
    """Two asyncio connections to one server: one for commands, one that a scan's bytes flow through.

    A connection is closed after any timeout, cancellation or protocol error and never used again.

    Args:
        source: where connections come from.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.round_trip = float("inf")
        self._talk: Any = None
        self._read: Any = None
        self._pid = os.getpid()
        self._idle = False  # whether the scan's connection waits for the next scan

    async def _ready(self, connection: Any, *, idle: bool) -> Any:
        if self._pid != os.getpid():  # a fork's sockets belong to the parent
            self._talk = self._read = connection = None
            self._pid = os.getpid()
        if connection is not None and idle and await self._is_stale(connection):
            await connection.disconnect(nowait=True)
            connection = None
        if connection is None:
            connection = self.source.connection()
            await connection.connect()
        return connection

    async def _is_stale(self, connection: Any) -> bool:
        # the second is what older clients call it; what it reads is lost, and so is the connection then
        look = getattr(connection, "can_read", None) or connection.can_read_destructive
        try:
            return bool(await look())
        except (self.source.exceptions.ConnectionError, self.source.exceptions.TimeoutError):
            return True

    async def commands(self, commands: Sequence[Command], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        """Send commands in one write and read their replies; see `mqsweep.connect.Link.commands`."""
        self._talk = connection = await self._ready(self._talk, idle=True)
        replies: list[Any] = []
        began = time.perf_counter()
        try:
            await connection.send_packed_command([b"".join(map(pack, commands))], check_health=False)
            if meanwhile is not None:
                meanwhile()
            for _ in commands:
                try:
                    replies.append(await connection.read_response())
                except self.source.exceptions.ResponseError as error:
                    replies.append(error)
                except ValueError as error:
                    raise self.source.exceptions.InvalidResponse(str(error)) from error
        except BaseException as fault:
            self._talk = None
            await connection.disconnect(nowait=True)
            raise self.source.translate(fault, connection) from fault
        self.round_trip = min(self.round_trip, time.perf_counter() - began)
        return replies

    async def step(self, scan: Scanner) -> None:
        """Write what the scan wants to send, read one chunk, feed it; see `mqsweep.connect.Link.step`."""
        self._read = connection = await self._ready(self._read, idle=self._idle)
        try:
            outgoing = scan.outgoing()
            async with asyncio.timeout(self.source.timeout):
                if outgoing:
                    connection._writer.write(outgoing)
                    await connection._writer.drain()
                chunk = await connection._reader.read(READ_SIZE)
            if not chunk:
                raise self.source.exceptions.ConnectionError("Connection closed by server.")
            scan.feed(chunk)
            self._idle = scan.done
        except BaseException as fault:
            await self.abandon()
            raise self.source.translate(fault, connection) from fault

    async def abandon(self) -> None:
        """Drop the scan's connection: replies of an unfinished scan may still be on it."""
        connection, self._read = self._read, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close both connections."""
        talk, self._talk = self._talk, None
        if talk is not None:
            await talk.disconnect(nowait=True)
        await self.abandon()


async def drive(
    steps: Steps[Result],
    link: AsyncLink,
    stop: asyncio.Event | None = None,
    on_report: Listener | None = None,
) -> Result:
    """Run a generator of requests to its end over an asyncio link; the twin of `mqsweep.drive.drive`."""
    try:
        request = next(steps)
        while True:
            try:
                answer = await _perform(request, link, stop, on_report)
            except Exception as fault:  # noqa: BLE001 - it is thrown on
                request = steps.throw(fault)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    except ProtocolError:
        await link.close()
        raise


async def _perform(request: Request, link: AsyncLink, stop: asyncio.Event | None, on_report: Listener | None) -> Any:
    match request:
        case Step(scan):
            return await link.step(scan)
        case Commands(commands, meanwhile):
            return await link.commands(commands, meanwhile)
        case Abandon():
            return await link.abandon()
        case RoundTrip():
            return link.round_trip
        case Tell(report):
            answer = on_report(report) if on_report else None
            return await answer if answer is not None else None
        case Wait(seconds):
            assert stop is not None
            try:
                async with asyncio.timeout(seconds):
                    return await stop.wait()
            except TimeoutError:
                return False


class AsyncSweeper(Front):
    """Finds and recovers the stalled jobs of one queue, from an asyncio program.

    Recovery is at-least-once: a worker thought dead may finish its side effects while its job runs again.

    The arguments are those of `Front`; the client is one of ``redis.asyncio`` (or of ``valkey.asyncio``).
    """

    _flavour = redis.asyncio

    def _prepare(self) -> None:
        self._link = AsyncLink(self._source)
        self._busy = asyncio.Lock()

    async def sweep(self) -> SweepReport:
        """One sweep; see `mqsweep.Sweeper.sweep`."""
        async with self._busy:
            this = Round(new_token(), self._memory)
            return await drive(sweep(self._task, this), self._link)

    async def run(self, stop: asyncio.Event, on_report: Listener | None = None) -> None:
        """Sweep at a fixed rate until the event is set; see `mqsweep.Sweeper.run`.

        Args:
            stop: ends the run after the current batch.
            on_report: called (and awaited, if it is a coroutine function) with each report.
        """
        link = AsyncLink(self._source)  # its own: a `sweep` may go on in another task
        try:
            await drive(serve(self._task, stop.is_set), link, stop, on_report)
        finally:
            await link.close()

    async def inspect(self) -> Inspection:
        """Who is stalled now; see `mqsweep.Sweeper.inspect`."""
        async with self._busy:
            return await drive(inspection.inspect(self._looking()), self._link)

    async def exists(self) -> bool:
        """Whether any key of the queue exists; see `mqsweep.Sweeper.exists`."""
        async with self._busy:
            (reply,) = await self._link.commands([self._exists_command()])
        if isinstance(reply, Exception):
            raise reply
        return bool(reply)

    async def close(self) -> None:
        """Close our own connections, and the client if it was made from a URL. Can be called twice."""
        await self._link.close()
        if self._source.owned:
            await self._source.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
