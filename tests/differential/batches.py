"""Record batches as producers send them, and as they should not: bytes, put together without the code under test.

Owns the pool of bodies (what follows the 61-byte header): made here, or by Java's, librdkafka's and franz-go's
producers (`tests/golden/producer_batches.tar.xz`). Always true: the same draw gives the same bytes; `sound` says what
no rule of a topic or of a producer's sequence could refuse.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Final, NamedTuple

from crc32c import crc32c

from tests.support.kafka.golden_batches import goldens

HEADER: Final = struct.Struct(">qiiBIhiqqqhii")
SIZE: Final = 61
ATTRIBUTES_AT: Final = 21
GOLDEN_BYTES_MAX: Final = 40_000


class Body(NamedTuple):
    """Records of a batch as they lie behind its header; `span_ms`: from the first timestamp to the greatest."""

    records: bytes
    count: int
    codec: int
    span_ms: int
    origin: str


class Producer(NamedTuple):
    """Of an idempotent batch; −1 in all three: of no producer."""

    id: int = -1
    epoch: int = -1
    sequence: int = -1


NOBODY: Final = Producer()


def varint(value: int) -> bytes:
    """Zigzag, as in records."""
    return uvarint((value << 1) ^ (value >> 63))


def uvarint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def plain(count: int, value_bytes: int, step_ms: int, keyed: bool) -> Body:
    """`count` uncompressed records; every third value is null where `keyed`."""
    out = bytearray()
    for at in range(count):
        key = b"key-%d" % at if keyed else None
        value = None if keyed and at % 3 == 2 else (b"%d-" % at * (value_bytes // 2 + 1))[:value_bytes]
        record = bytearray(b"\0") + varint(at * step_ms) + varint(at)
        for part in (key, value):
            record += varint(-1) if part is None else varint(len(part)) + part
        record += varint(1) + varint(1) + b"h" + varint(-1) if keyed and at == 0 else varint(0)
        out += varint(len(record)) + record
    return Body(bytes(out), count, 0, (count - 1) * step_ms, "made here")


@cache
def pool() -> tuple[Body, ...]:
    """All bodies there are, smaller ones more often."""
    made = [
        plain(count, size, step, keyed)
        for count in (1, 1, 1, 2, 3, 5, 12)
        for size in (0, 1, 10, 52, 53, 54, 55, 100, 300)
        for step, keyed in ((0, False), (3, True))
    ]
    made += [plain(1, size, 0, False) for size in (16_250, 16_300, 16_310, 16_311, 16_312, 16_313, 16_320)]
    made += [plain(101, 5, 1, False), plain(130, 0, 0, True), plain(1001, 1, 1, False)]
    golden = []
    for one in goldens().values():
        at = 0
        while at < len(one.log):
            fields = HEADER.unpack_from(one.log, at)
            end = at + 12 + fields[1]
            if end - at <= GOLDEN_BYTES_MAX:
                body = Body(
                    one.log[at + SIZE : end], fields[12], fields[5] & 7, max(0, fields[8] - fields[7]), one.name
                )
                golden.append(body)
                break
            at = end
    return tuple(made + golden)


def batch(body: Body, first_ms: int, producer: Producer = NOBODY, max_ms: int | None = None) -> bytearray:
    """The batch a client sends: offset 0, leader epoch −1, a CRC that is right."""
    greatest = first_ms + body.span_ms if max_ms is None else max_ms
    out = bytearray(SIZE) + body.records
    length = len(out) - 12
    HEADER.pack_into(
        out, 0, 0, length, -1, 2, 0, body.codec, body.count - 1, first_ms, greatest, *producer, body.count
    )  # fmt: skip
    seal(out)
    return out


def seal(batch: bytearray) -> None:
    """Renew the CRC."""
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))


def _put(batch: bytearray, form: str, at: int, value: int) -> None:
    struct.pack_into(form, batch, at, value)
    seal(batch)


# What is done to a sound batch; each leaves the CRC right unless it says otherwise.
def _bad_crc(batch: bytearray, rng: Random) -> None:
    batch[rng.randrange(17, len(batch))] ^= 1 << rng.randrange(8)


def _magic(batch: bytearray, rng: Random) -> None:
    _put(batch, ">b", 16, rng.choice((0, 1, 3, -1)))


def _attributes(batch: bytearray, rng: Random) -> None:
    (was,) = struct.unpack_from(">h", batch, 21)
    _put(batch, ">h", 21, was ^ rng.choice((0x05, 0x06, 0x07, 0x08, 0x10, 0x20, 0x40, 0x100, -0x8000)))


def _count(batch: bytearray, rng: Random) -> None:
    (was,) = struct.unpack_from(">i", batch, 57)
    _put(batch, ">i", 57, rng.choice((0, -1, was + 1, 2**31 - 1)))


def _delta(batch: bytearray, rng: Random) -> None:
    (was,) = struct.unpack_from(">i", batch, 23)
    _put(batch, ">i", 23, rng.choice((was + 1, -1, 2**31 - 1, -(2**31))))


def _many(batch: bytearray, rng: Random) -> None:
    """Count and delta agree, and claim what no batch of these bytes can hold. No more than is reserved: such a batch is
    refused once, and whether the bucket gave more until the next one came is each broker's own turns."""
    count = rng.choice((70_000, 30_000, 3_000))
    _put(batch, ">i", 57, count)
    _put(batch, ">i", 23, count - 1)


def _base_offset(batch: bytearray, rng: Random) -> None:
    struct.pack_into(">q", batch, 0, rng.choice((1, -1, 2**62)))


def _length(batch: bytearray, rng: Random) -> None:
    (was,) = struct.unpack_from(">i", batch, 8)
    struct.pack_into(">i", batch, 8, rng.choice((was - 1, was + 1, 0, 48, -1, 2**31 - 1, -(2**31))))


def _trailing(batch: bytearray, rng: Random) -> None:
    batch += rng.choice((b"\0", b"\0" * 61, bytes(batch[:70]), bytes(batch)))


def _twice(batch: bytearray, rng: Random) -> None:
    batch += bytes(batch)


def _short(batch: bytearray, rng: Random) -> None:
    del batch[rng.randrange(len(batch)) :]


def _times(batch: bytearray, rng: Random) -> None:
    first, greatest = struct.unpack_from(">qq", batch, 27)
    hours = rng.choice((-48, -2, 2, 48, 24 * 365 * 60)) * 3_600_000
    which = rng.randrange(4)
    first, greatest = (
        (first + hours, greatest + hours),
        (-1, -1),
        (-2, greatest),
        (first, greatest + abs(hours)),
    )[which]
    struct.pack_into(">qq", batch, 27, first, greatest)
    seal(batch)


def _no_max(batch: bytearray, rng: Random) -> None:
    """Sarama before 2025 leaves −1; others may say anything below the first."""
    (first,) = struct.unpack_from(">q", batch, 27)
    _put(batch, ">q", 35, rng.choice((-1, first - 1, 0, -2)))


def _kafkajs(batch: bytearray, rng: Random) -> None:
    """Sequence 0 and epoch 0 without a producer id, the last record's timestamp as the greatest."""
    _put(batch, ">h", 51, 0)
    _put(batch, ">i", 53, 0)


def _producer(batch: bytearray, rng: Random) -> None:
    struct.pack_into(">qhi", batch, 43, *rng.choice(((-2, -1, -1), (5, -1, 0), (5, 0, -1), (-1, 3, 7), (5, -2, -5))))
    seal(batch)


def _record_bytes(batch: bytearray, rng: Random) -> None:
    """Records that are none, under a CRC that is right: believed, unless records are validated."""
    if len(batch) > SIZE:
        at = rng.randrange(SIZE, len(batch))
        batch[at : at + 10] = rng.choice((b"\xff" * 10, b"\x80" * 10, b"\0" * 10))
        _put(batch, ">i", 8, len(batch) - 12)


SPOILERS: Final[dict[str, Callable[[bytearray, Random], None]]] = {
    "wrong CRC": _bad_crc,
    "wrong magic": _magic,
    "attribute bits": _attributes,
    "record count": _count,
    "last offset delta": _delta,
    "claims many": _many,
    "base offset": _base_offset,
    "wrong length": _length,
    "trailing bytes": _trailing,
    "two batches": _twice,
    "cut short": _short,
    "timestamps": _times,
    "no max timestamp": _no_max,
    "as KafkaJS": _kafkajs,
    "producer fields": _producer,
    "hostile varints": _record_bytes,
}
