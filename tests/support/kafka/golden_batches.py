"""Record batches that real producers wrote, and what an independent client read from them.

`tests/golden/producer_batches.tar.xz` holds an `index.json` of `Golden`s and a file of whole batches each, as Apache
Kafka 4.3.1 stored them, but for what brokers stamp outside a batch's CRC: offsets (here from 0 on), leader epoch (1).
Written by `record_batches`.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tarfile
from collections.abc import Iterable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from logformat.record_batch import read_header, walk
from tests.support.repository import GOLDEN

ARCHIVE = GOLDEN / "producer_batches.tar.xz"
LEADER_EPOCH = 1
_OFFSET_AND_TIME = struct.Struct(">qq")
_SIZE = struct.Struct(">i")

# offset, timestamp (ms), key, value, headers
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


class Golden(NamedTuple):
    """One producer, codec and batch size. `digest` is of the rows as somebody else read them."""

    name: str
    producer: str
    codec: str
    records: int
    value_bytes: int
    digest: str
    log: bytes = b""


def digest_of(rows: Iterable[Row]) -> str:
    """SHA-256 over every field of every row."""
    found = hashlib.sha256()
    for offset, timestamp, key, value, headers in rows:
        found.update(_OFFSET_AND_TIME.pack(offset, timestamp))
        found.update(_SIZE.pack(len(headers)))
        named = [part for header, content in headers for part in (header.encode(), content)]
        for part in (key, value, *named):
            found.update(_SIZE.pack(-1 if part is None else len(part)) + (part or b""))
    return found.hexdigest()


def rebased(log: bytes) -> bytes:
    """The batches with offsets from 0 on, without a hole, and leader epoch 1: what brokers stamp."""
    out, base = bytearray(log), 0
    for at, header in walk(log):
        struct.pack_into(">q", out, at, base)
        struct.pack_into(">i", out, at + 12, LEADER_EPOCH)
        base += header.last_offset_delta + 1
    return bytes(out)


def batches_of(log: bytes) -> list[bytes]:
    return [log[at : at + header.size] for at, header in walk(log)]


def write(goldens: Iterable[Golden], place: Path = ARCHIVE) -> None:
    with tarfile.open(place, "w:xz", preset=9) as archive:
        listed = list(goldens)
        index = [golden._asdict() | {"log": f"{golden.name}.log"} for golden in listed]
        files = [("index.json", json.dumps(index, indent=1).encode())]
        files += [(f"{golden.name}.log", golden.log) for golden in listed]
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, BytesIO(data))


@cache
def goldens() -> dict[str, Golden]:
    """By name."""
    found = {}
    with tarfile.open(ARCHIVE) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        index = files.pop("index.json")
        assert index is not None
        for entry in json.load(index):
            member = files[entry.pop("log")]
            assert member is not None
            found[entry["name"]] = Golden(**entry, log=member.read())
    return found


def end_of(log: bytes) -> int:
    """The offset behind the last batch."""
    at = [at for at, _ in walk(log)][-1]
    return read_header(log, at).next_offset
