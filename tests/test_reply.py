"""The reply reader and its twin: RESP2 cut anywhere, hostile bytes included."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqsweep import ProtocolError
from mqsweep.errors import ServerReplyError
from mqsweep.reply import LONGEST, LONGEST_HEADER, LONGEST_LINE
from support.twins import TWINS, both, twin

ODD = (b"", b"\r\n", b"\r", b"\n", b"$1\r\na", b"\x00\xff", b"x" * 2000, b"a\r\n$1\r\nb", b"*2", b"-ERR")
SAMPLE = (b"1", b"23", *ODD, b"last")


@pytest.fixture(params=TWINS)
def reader(request: pytest.FixtureRequest) -> Any:
    """A fresh reader of each twin in turn."""
    return twin(request.param).ReplyReader()


def bulks(ids: Sequence[bytes]) -> bytes:
    """An array of bulk strings as a server sends it."""
    return b"*%d\r\n" % len(ids) + b"".join(b"$%d\r\n%s\r\n" % (len(i), i) for i in ids)


def scanned(cursor: bytes, ids: Sequence[bytes]) -> bytes:
    """A reply to SSCAN."""
    return b"*2\r\n$%d\r\n%s\r\n" % (len(cursor), cursor) + bulks(ids)


@pytest.mark.parametrize("text", [b"0", b"-1", b"100", b"9223372036854775807", b"-9223372036854775808"])
def test_reads_numbers(reader: Any, text: bytes) -> None:
    reader.feed(b":" + text + b"\r\n")
    assert reader.integer() == int(text)
    assert reader.integer() is None
    assert not reader.pending


@pytest.mark.parametrize(
    "line",
    [
        *(b":", b":-", b":1a", b":+1", b": 1", b":--1", b":1_0", b":\xb2"),
        *(b":9223372036854775808", b":-9223372036854775809", b":" + b"0" * 20, b"$1", b"*0", b"+OK", b"", b"_"),
    ],
)
def test_refuses_what_is_no_number(reader: Any, line: bytes) -> None:
    reader.feed(line + b"\r\n")
    with pytest.raises(ProtocolError, match="expected a number, got"):
        reader.integer()


def test_reads_arrays_and_scans(reader: Any) -> None:
    reader.feed(bulks(SAMPLE) + scanned(b"17", SAMPLE) + bulks([]) + scanned(b"0", []))
    assert reader.bulks(len(SAMPLE)) == list(SAMPLE)
    assert reader.scanned(len(SAMPLE)) == (b"17", list(SAMPLE))
    assert reader.bulks(0) == []
    assert reader.scanned(0) == (b"0", [])
    assert not reader.pending


def test_every_cut_of_a_stream_reads_the_same(reader: Any) -> None:
    stream = bulks(ODD[:8]) + scanned(b"17", SAMPLE[:3]) + b":42\r\n"
    for cut in range(1, len(stream)):
        found = []
        for chunk in (stream[:cut], stream[cut:]):
            reader.feed(chunk)
            for read in (lambda: reader.bulks(8), lambda: reader.scanned(3), reader.integer)[len(found) :]:
                value = read()
                if value is None:
                    break
                found.append(value)
        assert found == [list(ODD[:8]), (b"17", list(SAMPLE[:3])), 42], cut
        assert not reader.pending


def test_byte_by_byte(reader: Any) -> None:
    stream = bulks(SAMPLE)
    for byte in stream[:-1]:
        reader.feed(bytes([byte]))
        assert reader.bulks(len(SAMPLE)) is None
    reader.feed(stream[-1:])
    assert reader.bulks(len(SAMPLE)) == list(SAMPLE)


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"*3\r\n", "expected * and a number up to 2"),
        (b"*-1\r\n", "expected * and a number up to 2"),
        (b"*99999999999\r\n", "expected * and a number up to 2"),
        (b"*x\r\n", "expected * and a number up to 2"),
        (b":1\r\n", "expected * and a number up to 2"),
        (b"*1\r\n$-1\r\n", "expected $ and a number up to"),
        (b"*1\r\n:1\r\n", "expected $ and a number up to"),
        (b"*2\r\n$1\r\na\r\n*0\r\n", "expected $ and a number up to"),
        (b"*1\r\n$%d\r\n" % (LONGEST + 1), "expected $ and a number up to"),
        (b"*1\r\n$1\r\nab\r\n", "an element does not end where its header says"),
        (b"*1\r\n$1\r\nabc", "an element does not end where its header says"),
        (b"*1\r\n$3\r\nab\r\n\r\n", "an element does not end where its header says"),
        (b"*1\r\n$" + b"1" * LONGEST_HEADER, "a line without end"),
        (b"*" + b"1" * LONGEST_LINE, "a line without end"),
    ],
)
def test_refuses_broken_arrays(reader: Any, stream: bytes, words: str) -> None:
    reader.feed(stream)
    with pytest.raises(ProtocolError) as caught:
        reader.bulks(2)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "stream",
    [
        b"*1\r\n",
        b"*3\r\n",
        b"*2\r\n:1\r\n$0\r\n\r\n",
        b"*2\r\n$1\r\nx\r\n*0\r\n",
        b"*2\r\n$2\r\n1\r\n*0\r\n",
        b":1\r\n",
    ],
)
def test_refuses_broken_scans(reader: Any, stream: bytes) -> None:
    reader.feed(stream)
    with pytest.raises(ProtocolError):
        reader.scanned(10)


def test_reads_flags(reader: Any) -> None:
    for byte in b"*3\r\n:1\r\n:0\r\n:1\r":
        reader.feed(bytes([byte]))
        assert reader.flags(3) is None
    reader.feed(b"\n*0\r\n")
    assert reader.flags(3) == [True, False, True]
    assert reader.flags(0) == []
    assert not reader.pending


@pytest.mark.parametrize("stream", [b"*4\r\n", b"*2\r\n:2\r\n", b"*2\r\n:0\r\n$1\r\n", b"*1\r\n:01\r\n", b":1\r\n"])
def test_refuses_broken_flags(reader: Any, stream: bytes) -> None:
    reader.feed(stream)
    with pytest.raises(ProtocolError):
        reader.flags(3)


@pytest.mark.parametrize("read", ["integer", "bulks", "flags", "scanned"])
def test_error_replies_are_the_servers(reader: Any, read: str) -> None:
    reader.feed(b"-LOADING \xff it is\r\n")
    with pytest.raises(ServerReplyError) as caught:
        getattr(reader, read)(*() if read == "integer" else (5,))
    assert caught.value.message == b"LOADING \xff it is"


def test_announced_sizes_allocate_nothing(reader: Any) -> None:
    tracemalloc.start()
    reader.feed(b"*1000000\r\n$500000000\r\nx")
    assert reader.bulks(1_000_000) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize("element", [b"x" * (32 << 20), b"\r\n" * (8 << 20)], ids=["plain", "line-ends"])
def test_long_elements_are_not_read_anew_for_each_chunk(reader: Any, element: bytes) -> None:
    """It would take minutes: a hostile id must not hold up a sweep."""
    stream = bulks([b"1", element, b"2"])
    for start in range(0, len(stream), 2048):
        assert reader.bulks(3) is None
        reader.feed(stream[start : start + 2048])
    assert reader.bulks(3) == [b"1", element, b"2"]


@pytest.mark.timeout(60)
def test_long_arrays_are_not_read_anew_for_each_chunk(reader: Any) -> None:
    ids = [b"%d" % number for number in range(300_000)]
    stream = scanned(b"0", ids)
    for start in range(0, len(stream), 512):
        assert reader.scanned(300_000) is None
        reader.feed(stream[start : start + 512])
    assert reader.scanned(300_000) == (b"0", ids)


@pytest.mark.parametrize("lengths", [(1023, 1024, 1025), (5, 1024, 5), (0, 70, 0)])
def test_elements_around_the_bounds_of_the_fast_path(reader: Any, lengths: tuple[int, ...]) -> None:
    ids = [b"x" * length for length in lengths]
    stream = b"".join(bulks(some) + b":1\r\n" for some in (ids, ids[::-1], ids[:1]))
    for size in (1, 3, 64, 1000, 1029, len(stream)):
        found = []
        for start in range(0, len(stream), size):
            reader.feed(stream[start : start + size])
            while (value := reader.integer() if len(found) % 2 else reader.bulks(3)) is not None:
                found.append(value)
        assert found == [ids, 1, ids[::-1], 1, ids[:1], 1], size


def said(reader: Any, chunks: Sequence[bytes], reads: Sequence[str]) -> list[object]:
    """All that a reader says to these chunks, asked for these kinds of reply in turn; errors in their words."""
    found: list[object] = []
    kinds = cycle(reads)
    kind = next(kinds)
    try:
        for chunk in chunks:
            reader.feed(chunk)
            while True:
                value = getattr(reader, kind)(*() if kind == "integer" else (6,))
                found.append((kind, value, reader.pending))
                if value is None:
                    break
                kind = next(kinds)
    except (ProtocolError, ServerReplyError) as error:
        found.append((type(error).__name__, str(error)))
    return found


LIKELY = st.one_of(
    st.sampled_from(
        (
            b"*2\r\n",
            b"*1\r\n",
            b"$1\r\n",
            b"$0\r\n\r\n",
            b"$3\r\na\r\n\r\n",
            b":1\r\n",
            b":0\r\n",
            b"-E'\"\\\t\r\n",
            b"\r\n",
            b"\r",
            b"$",
        )
    ),
    st.lists(st.binary(max_size=12), max_size=6).map(bulks),
    st.lists(st.binary(max_size=12), max_size=6).map(lambda ids: scanned(b"5", ids)),
    st.binary(max_size=20),
)


@given(
    pieces=st.lists(LIKELY, max_size=8),
    size=st.integers(1, 40),
    reads=st.lists(st.sampled_from(("integer", "bulks", "flags", "scanned")), min_size=1, max_size=4),
)
def test_twins_say_the_same(pieces: list[bytes], size: int, reads: list[str]) -> None:
    stream = b"".join(pieces)
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    pure, native = (said(one.ReplyReader(), chunks, reads) for one in both())
    assert pure == native
