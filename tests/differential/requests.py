"""Produce requests of versions 3 to 9, byte by byte and without the code under test, and some others between them.

Owns the shapes of frames: how today's clients write them, and how nobody should (varints longer than need be, tags,
bytes behind the end, names of no topic). Always true: a frame says what it carries (`Part`s), so that what became of
each batch can be asked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from broker.wire.apis import ApiKey
from broker.wire.codec import encode_request
from broker.wire.framing import request_frame
from broker.wire.messages import (
    ApiVersionsRequest,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
)
from tests.differential.batches import uvarint

FLEXIBLE_SINCE: Final = 9
VERSIONS: Final = (3, 4, 5, 6, 7, 8, 9)


class Part(NamedTuple):
    """What a request carries for one partition; None: null records."""

    topic: str
    index: int
    batch: bytes | None


@dataclass(slots=True)
class Frame:
    """One request, its length prefix included. `version` −1: not a Produce that anybody could read."""

    data: bytes
    label: str
    version: int = -1
    acks: int = 0
    correlation_id: int = 0
    parts: Sequence[Part] = field(default=())


class Style(NamedTuple):
    """What a client repeats from request to request."""

    version: int
    client_id: str | None
    acks: int
    timeout_ms: int
    transactional_id: str | None = None


class Oddity(NamedTuple):
    """Bytes that mean the same, or nothing, where a plain request has others."""

    padded_length: bool = False
    tags_at: int = -1  # 0: header, 1: request, 2: topic, 3: partition
    behind: bytes = b""


PLAIN: Final = Oddity()


def _string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    data = text.encode()
    return uvarint(len(data) + 1) + data if flexible else struct.pack(">h", len(data)) + data


def _padded(value: int) -> bytes:
    """The same number in a byte more than it needs."""
    out = bytearray(uvarint(value))
    out[-1] |= 0x80
    out.append(0)
    return bytes(out)


def produce(style: Style, parts: Sequence[Part], correlation_id: int, oddity: Oddity = PLAIN) -> bytes:
    """The frame; parts of one topic that follow each other share it, as clients write them."""
    flexible = style.version >= FLEXIBLE_SINCE
    tagged = b"\1\x7f\2hi" if flexible else b""
    none = b"\0" if flexible else b""

    def tags(level: int) -> bytes:
        return tagged if oddity.tags_at == level else none

    def array(count: int) -> bytes:
        return uvarint(count + 1) if flexible else struct.pack(">i", count)

    topics: list[tuple[str, list[Part]]] = []
    for part in parts:
        if topics and topics[-1][0] == part.topic:
            topics[-1][1].append(part)
        else:
            topics.append((part.topic, [part]))
    out = bytearray(struct.pack(">hhi", 0, style.version, correlation_id))
    out += _string(style.client_id, False) + tags(0)
    out += _string(style.transactional_id, flexible) + struct.pack(">hi", style.acks, style.timeout_ms)
    out += array(len(topics))
    for name, of_topic in topics:
        out += _string(name, flexible) + array(len(of_topic))
        for part in of_topic:
            out += struct.pack(">i", part.index)
            if part.batch is None:
                out += b"\0" if flexible else b"\xff\xff\xff\xff"
            elif flexible:
                size = len(part.batch) + 1
                out += (_padded(size) if oddity.padded_length else uvarint(size)) + part.batch
            else:
                out += struct.pack(">i", len(part.batch)) + part.batch
            out += tags(3)
        out += tags(2)
    out += tags(1) + oddity.behind
    return struct.pack(">i", len(out)) + bytes(out)


def _other(key: int, version: int, correlation_id: int, message: object) -> bytes:
    parts = request_frame(key, version, correlation_id, "other", encode_request(key, version, message))  # type: ignore[arg-type]
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def other(rng: Random, correlation_id: int, topic: str, index: int, *, reads: bool) -> Frame:
    """A request that is no Produce; with `reads` also those whose answers depend on what is visible."""
    which = rng.randrange(6 if reads else 3)
    if which == 0:
        data = _other(ApiKey.API_VERSIONS, 0, correlation_id, ApiVersionsRequest())
        return Frame(data, "ApiVersions")
    if which in (1, 2):
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        return Frame(_other(ApiKey.METADATA, 4, correlation_id, asked), "Metadata")
    if which == 3:
        rows = [ListOffsetsRequestPartition(partition_index=index, timestamp=rng.choice((-1, -2)))]
        listed = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequestTopic(name=topic, partitions=rows)])
        return Frame(_other(ApiKey.LIST_OFFSETS, 2, correlation_id, listed), "ListOffsets")
    wanted = FetchRequestPartition(
        partition=index, fetch_offset=0, partition_max_bytes=rng.choice((100, 5000, 1 << 20))
    )
    fetched = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[FetchRequestTopic(topic=topic, partitions=[wanted])]
    )
    return Frame(_other(ApiKey.FETCH, 11, correlation_id, fetched), "Fetch")


def hostile(rng: Random, like: Frame) -> Frame:
    """A frame that is wrong as a frame, made of one that is not: most close the connection."""
    which = rng.randrange(7)
    body = bytearray(like.data[4:])
    if which == 0:  # cut: lengths in it point beyond its end
        del body[rng.randrange(1, len(body)) :]
    elif which == 1:  # any byte of what comes before the records
        at = rng.randrange(min(len(body), 60))
        body[at] ^= 1 << rng.randrange(8)
    elif which == 2:
        body += bytes(rng.randrange(1, 5))
    elif which == 3:  # a version nobody serves
        body[2:4] = struct.pack(">h", rng.choice((-1, 0, 1, 2, 10, 11, 13, 99)))
    elif which == 4:  # an API nobody has
        body[0:2] = struct.pack(">h", rng.choice((-1, 99, 256, 0x0100)))
    elif which == 5:  # a varint without an end
        at = rng.randrange(8, len(body))
        body[at : at + 6] = b"\xff" * 6
    else:  # a length that no frame has
        return Frame(struct.pack(">i", rng.choice((0, -1, 2**31 - 1, 200 << 20))) + bytes(body), "hostile length")
    return Frame(struct.pack(">i", len(body)) + bytes(body), f"hostile {which}")
