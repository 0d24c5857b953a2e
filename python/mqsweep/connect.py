"""Getting a connection: from a user's client or URL to sockets of our own.

redis-py (or valkey-py) opens every connection, so that TLS, ACL, credential providers, unix sockets and Sentinel
are theirs. The user's client is only asked for its settings; it is never closed, reconfigured or shared.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, Self, cast
from urllib.parse import urlsplit

import redis

from .errors import ConfigurationError, ProtocolError, ServerReplyError, UnsupportedQueueError, WrongTypeError
from .keys import QueueKeys, to_bytes, to_str


@dataclass(frozen=True)
class Packed:
    """Arguments of a command, encoded beforehand.

    Attributes:
        count: how many they are.
        data: their bytes on the wire.
    """

    count: int
    data: bytes

    @classmethod
    def of(cls, parts: Iterable[bytes]) -> Packed:
        """Encode some arguments."""
        encoded = [b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]
        return cls(len(encoded), b"".join(encoded))

    def __add__(self, other: Packed) -> Packed:
        """These, then those."""
        return Packed(self.count + other.count, self.data + other.data)


Command = tuple[bytes | str | int | Packed, ...]


def pack(command: Command) -> bytes:
    """A command as it goes over the wire."""
    parts = [part if isinstance(part, Packed) else Packed.of([_raw(part)]) for part in command]
    return b"*%d\r\n" % sum(part.count for part in parts) + b"".join(part.data for part in parts)


def _raw(part: bytes | str | int) -> bytes:
    return part if isinstance(part, bytes) else to_bytes(str(part))


SCHEMES = ("redis://", "rediss://", "unix://")
READ_SIZE = 1 << 17
"""Bytes asked of the socket at once while scanning."""

_PASSING = {
    *("ConnectionError", "TimeoutError", "OutOfMemoryError", "ReadOnlyError", "TryAgainError", "ClusterDownError"),
    *("MasterDownError", "MovedError", "AskError"),
}
_PASSING_CODES = ("BUSY ", "MISCONF ", "NOREPLICAS ", "UNBLOCKED ")

_NOT_OURS = re.compile(r"maint|orig_|oss_cluster|event_dispatcher|himport|legacy_responses|cache")
"""Pool settings that belong to the user's own connections (push notifications, caching)."""


def mask_url(url: str) -> str:
    """The URL as it may be shown: no user, no password, no options."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "***"
    # an @ behind the host: a password with a bare / or ? or # in it, of which the rest looks like host and path
    late = "@" in url.partition("://")[2].removeprefix(parts.netloc)
    if late or not parts.scheme:
        return "***"
    if parts.scheme == "unix":
        return f"unix://***@{parts.path}"
    if not parts.netloc:
        return "***"
    shown = f"[{host}]" if ":" in host else host
    database = parts.path.strip("/")
    return f"{parts.scheme}://***@{shown or 'localhost'}:{port or 6379}/{database if database.isdigit() else '0'}"


class Scanner(Protocol):
    """The side of a scan that a connection sees."""

    @property
    def done(self) -> bool:
        """Whether all has been seen."""

    def outgoing(self) -> bytes:
        """Bytes to send now."""

    def feed(self, data: bytes) -> None:
        """Take bytes that came back."""


def is_passing(error: Exception) -> bool:
    """Whether an error of the client library is likely to pass by itself, so that trying again later makes sense."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _PASSING) or str(error).startswith(_PASSING_CODES)


def _modules(client: Any) -> list[str]:
    """Where the client's class comes from; a user's own class leads to the library's."""
    return [kind.__module__ for kind in type(client).__mro__]


def client_of(client: Any, flavour: ModuleType = redis) -> tuple[Any, bool]:
    """A client, and whether it was made here from a URL.

    Args:
        client: the user's client, or a URL.
        flavour: ``redis`` for blocking clients, ``redis.asyncio`` for the others.

    Raises:
        ConfigurationError: neither a client of that flavour nor a URL that ``Redis.from_url`` takes.
    """
    if isinstance(client, str):
        if not client.startswith(SCHEMES):
            raise ConfigurationError(
                f"client={mask_url(client)!r}: the URL must begin with {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}"
            )
        try:
            return flavour.Redis.from_url(client), True
        except (ValueError, TypeError) as fault:
            # the fault's own text may quote the URL's options
            raise ConfigurationError(f"client={mask_url(client)!r}: not a usable URL") from fault
    name = type(client).__name__
    if not hasattr(client, "get_node_from_key") and not hasattr(client, "connection_pool"):
        raise ConfigurationError(f"client={name}: must be a redis.Redis, a redis.RedisCluster or a URL")
    asynchronous = any(".asyncio." in f"{module}." for module in _modules(client))
    if asynchronous != (flavour is not redis):
        raise ConfigurationError(
            f"client={name}: Sweeper takes a blocking client, AsyncSweeper one of redis.asyncio; or give a URL"
        )
    return client, False


class Source:
    """Knows how to connect to the server that holds one queue.

    Args:
        client: the user's client, or a URL.
        keys: the queue's keys.
        timeout: seconds that a reply may take; ``None`` = no bound.
        flavour: ``redis`` for blocking clients, ``redis.asyncio`` for the others.

    Raises:
        ConfigurationError: not a client.
        UnsupportedQueueError: a cluster client, and keys that would spread over slots.
    """

    def __init__(self, client: Any, keys: QueueKeys, timeout: float | None, flavour: ModuleType = redis) -> None:
        self.client, self.owned = client_of(client, flavour)
        self._keys = keys
        self.timeout = timeout
        self._cluster = hasattr(self.client, "get_node_from_key")
        if self._cluster and keys.hash_tag is None:
            raise UnsupportedQueueError(
                f"the keys of {to_str(keys.base)!r} spread over cluster slots: "
                "put the prefix or the queue's name in braces, e.g. prefix='{bull}'"
            )
        roots = {module.split(".", 1)[0] for module in _modules(self.client)}
        root = "valkey" if "valkey" in roots else "redis"
        self._retry = importlib.import_module(f"{root}.{'asyncio.' if flavour is not redis else ''}retry")
        self._backoff = importlib.import_module(f"{root}.backoff")
        self.exceptions: Any = importlib.import_module(f"{root}.exceptions")

    def connection(self) -> Any:
        """A new connection, not yet connected: bytes, RESP2, no silent retries."""
        pool = self._pool()
        settings = {name: v for name, v in pool.connection_kwargs.items() if not _NOT_OURS.search(name)}
        settings |= {
            "decode_responses": False,
            "protocol": 2,
            "retry": self._retry.Retry(self._backoff.NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "socket_timeout": self.timeout,
        }
        return pool.connection_class(**settings)

    def _pool(self) -> Any:
        """What holds the connection class and settings: a pool, or a node of a cluster."""
        if not self._cluster:
            return self.client.connection_pool
        node = self.client.get_node_from_key(self._keys.of("active"))
        return node if hasattr(node, "connection_kwargs") else self.client.get_redis_connection(node).connection_pool

    def translate(self, fault: BaseException, connection: Any) -> BaseException:
        """The exception that users know for what happened on a connection: mostly the client library's own."""
        if isinstance(fault, ServerReplyError):
            text = fault.message.decode("utf-8", "backslashreplace")
            if text.startswith("WRONGTYPE"):
                return WrongTypeError(text.removeprefix("WRONGTYPE "))
            return cast(Exception, connection._parser.parse_error(text))
        if isinstance(fault, TimeoutError):
            return cast(Exception, self.exceptions.TimeoutError("Timeout reading from socket"))
        if isinstance(fault, OSError):
            return cast(Exception, self.exceptions.ConnectionError(f"Error while scanning: {fault}"))
        if isinstance(fault, self.exceptions.InvalidResponse):
            return ProtocolError(f"the server sent something that is not RESP2: {str(fault)[:100]}")
        return fault


class Link:
    """Two blocking connections to one server: one for commands, one that a scan's bytes flow through.

    A connection is closed after any timeout or protocol error and never used again; the next call opens a new one.

    Args:
        source: where connections come from.

    Attributes:
        round_trip: seconds that commands took to be answered, at least.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.round_trip = float("inf")
        self._talk: Any = None
        self._read: Any = None
        self._pid = os.getpid()
        self._idle = False  # whether the scan's connection waits for the next scan

    def _ready(self, connection: Any, *, idle: bool) -> Any:
        """The connection, or a new one; an idle one that has come to its end, or has something to say, is dropped."""
        if self._pid != os.getpid():  # a fork's sockets belong to the parent: leave them, do not shut them down
            self._talk = self._read = None
            self._pid = os.getpid()
            connection = None
        if connection is not None and idle and self._is_stale(connection):
            connection.disconnect()
            connection = None
        if connection is None:
            connection = self.source.connection()
            connection.connect()
        return connection

    def _is_stale(self, connection: Any) -> bool:
        try:
            return bool(connection.can_read(0))
        except (self.source.exceptions.ConnectionError, self.source.exceptions.TimeoutError):
            return True

    def commands(self, commands: Sequence[Command], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        """Send commands in one write and read their replies.

        Args:
            commands: what to send.
            meanwhile: called when they are sent, before their replies are waited for.

        Returns:
            One value per command; an error reply is an exception instance among them.

        Raises:
            redis.exceptions.ConnectionError, redis.exceptions.TimeoutError: the outcome is unknown.
            ProtocolError: the server sent no RESP2.
        """
        self._talk = connection = self._ready(self._talk, idle=True)
        replies: list[Any] = []
        began = time.perf_counter()
        try:
            connection.send_packed_command([b"".join(map(pack, commands))], check_health=False)
            if meanwhile is not None:
                meanwhile()
            for _ in commands:
                try:
                    replies.append(connection.read_response())
                except self.source.exceptions.ResponseError as error:
                    replies.append(error)
                except ValueError as error:  # a length that is no number
                    raise self.source.exceptions.InvalidResponse(str(error)) from error
        except BaseException as fault:
            self._talk = None
            connection.disconnect()
            raise self.source.translate(fault, connection) from fault
        self.round_trip = min(self.round_trip, time.perf_counter() - began)
        return replies

    def step(self, scan: Scanner) -> None:
        """Write what the scan wants to send, read one chunk, feed it.

        Raises:
            redis.exceptions.RedisError: the client's own class for an error reply or a fault of the connection.
            ProtocolError: the server sent no RESP2.
        """
        self._read = connection = self._ready(self._read, idle=self._idle)
        try:
            outgoing = scan.outgoing()
            if outgoing:
                connection._sock.sendall(outgoing)
            chunk = connection._sock.recv(READ_SIZE)
            if not chunk:
                raise self.source.exceptions.ConnectionError("Connection closed by server.")
            scan.feed(chunk)
            self._idle = scan.done
        except BaseException as fault:
            self.abandon()
            raise self.source.translate(fault, connection) from fault

    def abandon(self) -> None:
        """Drop the scan's connection: replies of an unfinished scan may still be on it."""
        connection, self._read = self._read, None
        if connection is not None:
            connection.disconnect()

    def close(self) -> None:
        """Close both connections."""
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.disconnect()
        self.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
