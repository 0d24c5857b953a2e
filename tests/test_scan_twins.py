"""The twins of the scan, fed the same bytes, send and say the same."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mqsweep import ProtocolError
from mqsweep.errors import ServerReplyError
from support.twins import ODD_IDS, both, commands, listed, maker


class FakeServer:
    """Answers a scan's requests from random data, to compare the twins on streams that no server would send.

    It is no stand-in for Redis: what a scan makes of real servers is tested in ``test_scan.py``.
    """

    def __init__(self, seed: int, hostile: bool) -> None:
        self.chance = random.Random(seed)
        self.hostile = hostile
        self.marks = self.chance.randrange(0, 30)

    def ids(self, most: int) -> list[bytes]:
        kinds = (b"%d" % self.chance.randrange(40), self.chance.choice(ODD_IDS), self.chance.randbytes(3))
        return [self.chance.choice(kinds) for _ in range(self.chance.randint(0, most))]

    def answer(self, command: list[bytes]) -> bytes:
        if self.hostile and self.chance.random() < 0.01:
            return self.chance.choice(
                (b"-ERR odd\r\n", b"*1\r\n", b":7\r\n", b"$-1\r\n", b"\r\n", self.chance.randbytes(9))
            )
        if command[0] == b"LLEN":
            return b":%d\r\n" % self.chance.choice((0, 1, 60, 300))
        if command[0] == b"EXISTS":
            count = len(command) - 1
            return b":%d\r\n" % self.chance.choice((0, count, count, self.chance.randint(0, count)))
        if command[0] == b"SMISMEMBER":
            flags = [self.chance.randint(0, 1) for _ in command[2:]]
            return b"*%d\r\n" % len(flags) + b"".join(b":%d\r\n" % flag for flag in flags)
        if command[0] == b"LRANGE":
            ids = self.ids(int(command[3]) - int(command[2]) + 1)
            return b"*%d\r\n" % len(ids) + b"".join(b"$%d\r\n%s\r\n" % (len(i), i) for i in ids)
        ids = self.ids(20)
        self.marks -= len(ids)
        cursor = b"%d" % max(0, self.marks)
        body = b"*%d\r\n" % len(ids) + b"".join(b"$%d\r\n%s\r\n" % (len(i), i) for i in ids)
        return b"*2\r\n$%d\r\n%s\r\n" % (len(cursor), cursor) + body


def story(module: Any, seed: int, hostile: bool, how: dict[str, Any]) -> list[object]:
    """All that a scan sends and says, fed by a server of this seed in chunks of random sizes."""
    scan, fake, reader = maker(module)(**how), FakeServer(seed, hostile), module.ReplyReader()
    cuts = random.Random(seed)
    told: list[object] = []
    pending = b""
    try:
        for _ in range(3000):
            out = scan.outgoing()
            pending += b"".join(fake.answer(command) for command in commands(reader, out))
            told.append((out, scan.active_scanned, scan.active_total, scan.stalled_scanned, scan.cursor, scan.done))
            if scan.done:
                told.append(listed(scan.sightings()))
                break
            size = cuts.choice((1, 7, 100, 10_000))
            chunk, pending = pending[:size], pending[size:]
            scan.feed(chunk)
    except (ProtocolError, ServerReplyError) as error:
        told.append((type(error).__name__, str(error)))
    return told


@given(
    seed=st.integers(0, 2**32),
    hostile=st.booleans(),
    how=st.fixed_dictionaries(
        {
            "window": st.sampled_from((1, 5, 64, 1000)),
            "check": st.sampled_from((1, 3, 100)),
            "depth": st.sampled_from((1, 3)),
            "keep_locked": st.booleans(),
            "most_marks": st.sampled_from((None, 1, 25)),
            "cursor": st.sampled_from((b"0", b"7")),
        }
    ),
)
def test_twins_send_and_say_the_same(seed: int, hostile: bool, how: dict[str, Any]) -> None:
    pure, native = (story(module, seed, hostile, how) for module in both())
    assert pure == native
