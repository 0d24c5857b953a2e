"""Where a queue's keys lie: names, the job keys and the lock keys below one base."""

from __future__ import annotations

from dataclasses import dataclass

ORDER = ("stalled", "wait", "active", "failed", "stalled-check", "meta", "paused", "marker")
"""The script's KEYS[1..8], in its order."""


def to_bytes(text: str) -> bytes:
    """Encode an id or a name as it lies in Redis (UTF-8, ``surrogateescape``)."""
    return text.encode("utf-8", "surrogateescape")


def to_str(raw: bytes) -> str:
    """Decode an id for reports; any bytes survive the round trip through `to_bytes`."""
    return raw.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class QueueKeys:
    """The keys of one queue.

    Args:
        base: the queue's base without a trailing colon, e.g. ``b"emq:{orders}"``.
    """

    base: bytes

    def of(self, name: str) -> bytes:
        """The key of a part of the queue, e.g. ``of("active")``."""
        return self.base + b":" + name.encode()

    def job(self, job_id: bytes) -> bytes:
        """The key of a job's hash."""
        return self.base + b":" + job_id

    def lock(self, job_id: bytes) -> bytes:
        """The key of a job's lock."""
        return self.base + b":" + job_id + b":lock"

    @property
    def script_keys(self) -> tuple[bytes, ...]:
        """The script's first eight keys."""
        return tuple(self.of(name) for name in ORDER)

    @property
    def hash_tag(self) -> bytes | None:
        """What Redis Cluster hashes of every key of this queue; ``None`` when keys would spread over slots."""
        start = self.base.find(b"{")
        end = self.base.find(b"}", start + 1)
        return self.base[start + 1 : end] if start >= 0 and end > start + 1 else None
