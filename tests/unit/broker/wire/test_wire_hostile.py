"""Frames that lie: whatever the bytes, decoding ends in a message or `MalformedFrame`, and costs what they cost."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire import codec
from broker.wire import messages as m
from broker.wire.apis import APIS, Api, ApiKey
from broker.wire.decoder import TRAILING_BYTES_TAKEN, build_decoder
from broker.wire.encoder import build_encoder
from broker.wire.errors import MalformedFrame
from broker.wire.framing import parse_request_header, parse_response_header
from broker.wire.primitives import (
    REQUEST_UNITS_MAX,
    STRING_BYTES_MAX,
    STRUCTURE_UNITS,
    TAGS_MAX,
    read_uvarint,
    uvarint,
)
from broker.wire.schema import Schema
from broker.wire.table import MESSAGES
from logformat.errors import InvalidRequest
from tests.support.wire.random_messages import random_message

SCHEMAS = [
    pytest.param(schema, version, id=f"{schema.name}-v{version}")
    for schema in MESSAGES.values()
    for version in range(schema.versions.low, schema.versions.high + 1)
]
CLAIMS = (  # counts and lengths no frame backs: int32, int16, compact (2^31 - 1, 2^32 - 1, endless)
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\x00\x0f\x42\x40",
    b"\x7f\xff",
    b"\xff\xfe",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
)


def body_of(schema: Schema, version: int, rng: random.Random, size_max: int = 20_000) -> bytes:
    """A valid body at random, not longer than `size_max`."""
    encode = build_encoder(schema, version)
    while True:
        body = b"".join(encode(random_message(rng, schema, version)))
        if len(body) <= size_max:
            return body


def decodes_or_refuses(decode, body: bytes) -> None:
    """Anything but `MalformedFrame` escapes and fails the test."""
    with contextlib.suppress(MalformedFrame):
        decode(memoryview(body))


@pytest.mark.parametrize(("schema", "version"), SCHEMAS)
def test_damaged_bytes_are_refused_or_read(schema: Schema, version: int) -> None:
    """Flipped, cut, repeated and random bytes raise nothing but `MalformedFrame`."""
    rng = random.Random(f"damage {schema.name} {version}")
    decode = build_decoder(schema, version)
    for _ in range(4):
        body = body_of(schema, version, rng, 4_000)
        for _ in range(12):
            damaged = bytearray(body)
            for _ in range(rng.choice((1, 1, 2, 5))):
                if not damaged:
                    break
                at = rng.randrange(len(damaged))
                match rng.randrange(4):
                    case 0:
                        damaged[at] ^= 1 << rng.randrange(8)
                    case 1:
                        damaged[at : at + 4] = rng.choice(CLAIMS)
                    case 2:
                        del damaged[at : at + rng.choice((1, 2, 40))]
                    case _:
                        damaged[at:at] = damaged[: rng.choice((1, 7))]
            decodes_or_refuses(decode, bytes(damaged))
    for size in (0, 1, 2, 3, 7, 20, 100, 500):
        decodes_or_refuses(decode, rng.randbytes(size))


@pytest.mark.parametrize(("schema", "version"), SCHEMAS)
def test_every_cut_and_every_tail_is_refused(schema: Schema, version: int) -> None:
    """No proper prefix of a body is a body, and nothing may follow one."""
    decode = build_decoder(schema, version)
    body = body_of(schema, version, random.Random(f"cut {schema.name} {version}"), 600)
    decode(memoryview(body))
    for end in range(len(body)):
        with pytest.raises(MalformedFrame):
            decode(memoryview(body)[:end])
    if schema.name in TRAILING_BYTES_TAKEN:
        assert decode(memoryview(body + b"\0")) == decode(memoryview(body))
        return
    with pytest.raises(MalformedFrame, match="1 bytes after the last field"):
        decode(memoryview(body + b"\0"))


@pytest.mark.parametrize("schema", [pytest.param(schema, id=name) for name, schema in MESSAGES.items()])
def test_claims_allocate_nothing(schema: Schema) -> None:
    """A count or length of up to 2^32 - 1, anywhere in a body, costs memory in proportion to the bytes there."""
    rng = random.Random(f"claims {schema.name}")
    for version in {schema.versions.low, schema.versions.high}:
        decode = build_decoder(schema, version)
        body = body_of(schema, version, rng, 400)
        decodes_or_refuses(decode, body)
        tracemalloc.start()
        try:
            for at in range(0, len(body), max(1, len(body) // 40)):
                for claim in CLAIMS:
                    tracemalloc.reset_peak()
                    before = tracemalloc.get_traced_memory()[0]
                    decodes_or_refuses(decode, body[:at] + claim + body[at + len(claim) :])
                    assert tracemalloc.get_traced_memory()[1] - before < 100_000
        finally:
            tracemalloc.stop()


def log_dirs_v1(topics: list[list[int]]) -> memoryview:
    """A DescribeLogDirs v1 body: one topic per list of partitions."""
    parts = [struct.pack(">i", len(topics))]
    parts += [struct.pack(f">h1si{len(p)}i", 1, b"t", len(p), *p) for p in topics]
    return memoryview(b"".join(parts))


def test_array_elements_are_bounded_per_message() -> None:
    """Arrays within arrays share one allowance, so that nesting does not multiply it; structures cost more of it."""
    decode: Any = build_decoder(MESSAGES["DescribeLogDirsRequest"], 1)
    topics = REQUEST_UNITS_MAX // 1000
    inner = [0] * (1000 - STRUCTURE_UNITS)
    assert len(decode(log_dirs_v1([inner] * topics)).topics) == topics  # the limit exactly
    with pytest.raises(MalformedFrame, match=f"at most {1000 - STRUCTURE_UNITS} here"):
        decode(log_dirs_v1([inner] * (topics - 1) + [[*inner, 0]]))
    with pytest.raises(MalformedFrame, match=f"at most {REQUEST_UNITS_MAX // STRUCTURE_UNITS} here"):
        decode(log_dirs_v1([[]] * (REQUEST_UNITS_MAX // STRUCTURE_UNITS + 1)))
    with pytest.raises(MalformedFrame):
        decode(log_dirs_v1([[0] * REQUEST_UNITS_MAX]))


def api_versions_v3(tags: bytes) -> memoryview:
    return memoryview(b"\x02a\x02b" + tags)


def tag(number: int, value: bytes = b"") -> bytes:
    return uvarint(number) + uvarint(len(value)) + value


def test_unknown_tags_are_skipped() -> None:
    """Tags from the future change nothing, whatever their content."""
    tags = uvarint(3) + tag(0, b"x") + tag(7) + tag(2**32 - 1, bytes(300))
    request = codec.decode_request(ApiKey.API_VERSIONS, 3, api_versions_v3(tags))
    assert request == m.ApiVersionsRequest(client_software_name="a", client_software_version="b")


@pytest.mark.parametrize(
    ("tags", "what"),
    [
        (uvarint(2) + tag(1) + tag(1), "ascend"),
        (uvarint(2) + tag(5) + tag(1), "ascend"),
        (uvarint(1) + uvarint(0) + uvarint(9) + b"short", "left"),
        (uvarint(5) + tag(1), "tagged fields"),
        (uvarint(TAGS_MAX + 1) + b"".join(tag(n) for n in range(TAGS_MAX + 1)), "at most"),
        (uvarint(1), "tagged fields"),
        (b"", "end before"),
        (b"\xff\xff\xff\xff\xff\x01", "longer than 5"),
        (b"\xff\xff\xff\xff\x10", "32 bits"),
    ],
)
def test_bad_tagged_sections_are_refused(tags: bytes, what: str) -> None:
    """Duplicate and descending tags, sizes and counts beyond the frame, too many of them, endless varints."""
    with pytest.raises(MalformedFrame, match=what):
        codec.decode_request(ApiKey.API_VERSIONS, 3, api_versions_v3(tags))


def test_the_most_tags_are_accepted() -> None:
    """`TAGS_MAX` itself is allowed."""
    tags = uvarint(TAGS_MAX) + b"".join(tag(n) for n in range(TAGS_MAX))
    codec.decode_request(ApiKey.API_VERSIONS, 3, api_versions_v3(tags))


def deletions_v6(count: int, tags: bytes) -> memoryview:
    """DeleteTopics by id, with these tags in each topic."""
    topic = b"\0" + bytes(16) + tags
    return memoryview(uvarint(count + 1) + topic * count + bytes(4) + b"\0")


def test_unknown_tags_are_bounded_per_request() -> None:
    """Found by a penetration test: 400 000 empty tags in the structures of one request took 0.25 s to skip."""
    count, tags = 100, REQUEST_UNITS_MAX // STRUCTURE_UNITS // 100 - 1
    section = uvarint(tags) + b"".join(tag(n) for n in range(tags))
    request = codec.decode_request(ApiKey.DELETE_TOPICS, 6, deletions_v6(count, section))
    assert isinstance(request, m.DeleteTopicsRequest)
    assert len(request.topics) == count
    with pytest.raises(MalformedFrame, match="tagged fields"):
        codec.decode_request(ApiKey.DELETE_TOPICS, 6, deletions_v6(count + 1, section))


def test_known_tags_are_free() -> None:
    """A follower's fetch of the most partitions has two tags in each."""
    partition = m.FetchRequestPartition(high_watermark=1, replica_directory_id=UUID(int=1))
    count = REQUEST_UNITS_MAX // STRUCTURE_UNITS - 1
    request = m.FetchRequest(topics=[m.FetchRequestTopic(partitions=[partition] * count)])
    body = b"".join(bytes(part) for part in codec.encode_request(ApiKey.FETCH, 18, request))  # type: ignore[arg-type]
    read = codec.decode_request(ApiKey.FETCH, 18, memoryview(body))
    assert isinstance(read, m.FetchRequest)
    assert len(read.topics[0].partitions) == count


def test_a_known_tag_must_be_as_long_as_it_says() -> None:
    """A cluster id that ends before or after its tag's size is refused: two readers would disagree about the rest."""
    for size, ok in ((3, True), (4, False), (2, False)):
        fixed = struct.pack(">iiiibii", -1, 500, 1, 1 << 20, 0, 0, -1)
        body = fixed + b"\x01\x01\x01" + b"\x01\x00" + bytes((size,)) + b"\x03ab" + b"\0" * (size - 3)
        if ok:
            request: Any = codec.decode_request(ApiKey.FETCH, 12, memoryview(body))
            assert request.cluster_id == "ab"
        else:
            with pytest.raises(MalformedFrame):
                codec.decode_request(ApiKey.FETCH, 12, memoryview(body))


@pytest.mark.parametrize(
    ("api_key", "version", "body", "what"),
    [
        (ApiKey.HEARTBEAT, 0, b"\xff\xff" + bytes(8), "group_id must not be null"),
        (ApiKey.HEARTBEAT, 4, b"\x00" + bytes(8), "group_id must not be null"),
        (ApiKey.HEARTBEAT, 0, b"\xff\xfe" + bytes(8), "impossible length -2"),
        (ApiKey.HEARTBEAT, 0, b"\x00\x09abc", "claims 9 bytes, but only 3 are left"),
        (ApiKey.HEARTBEAT, 0, b"\x00\x02\xc3\x28\x00\x00\x00\x00\x00\x00", "UTF-8"),
        (ApiKey.HEARTBEAT, 0, b"\x00\x03\xed\xa0\x80\x00\x00\x00\x00\x00\x00", "UTF-8"),  # a lone surrogate
        (ApiKey.METADATA, 0, b"\xff\xff\xff\xff", "topics must not be null"),
        (ApiKey.METADATA, 1, b"\xff\xff\xff\xfe", "impossible count -2"),
        (ApiKey.METADATA, 1, b"\x00\x00\x00\x02\x00\x00", "claims 2 elements, 2 bytes are left"),
        (ApiKey.PRODUCE, 3, b"\xff\xfe" + bytes(10), "impossible length -2"),
        (ApiKey.PRODUCE, 9, b"\xff\xff\xff\xff\x0f" + bytes(10), "transactional_id claims"),
    ],
)
def test_nulls_lengths_and_text(api_key: int, version: int, body: bytes, what: str) -> None:
    """Null where it is not allowed, negative and oversized lengths, invalid UTF-8: refused, the field named."""
    with pytest.raises(MalformedFrame, match=what):
        codec.decode_request(api_key, version, memoryview(body))


@given(st.integers(0, 2**32 - 1))
def test_varints_round_trip(value: int) -> None:
    """Every 32-bit value reads back, in at most 5 bytes."""
    encoded = uvarint(value)
    assert len(encoded) <= 5
    assert read_uvarint(encoded, 0) == (value, len(encoded))


@given(st.binary(max_size=40))
def test_headers_never_crash(frame: bytes) -> None:
    """Random bytes as a request or response header: a header or `MalformedFrame`."""
    for parse in (parse_request_header, lambda view: parse_response_header(view, ApiKey.FETCH, 12)):
        with contextlib.suppress(MalformedFrame):
            parse(memoryview(frame))


@pytest.mark.parametrize("api", [pytest.param(api, id=api.name) for api in APIS.values()])
def test_versions_outside_the_table_are_refused(api: Api) -> None:
    """Neither a version too high nor one too low reaches a decoder."""
    for version in (api.version_max + 1, api.advertised_min - 1, 32_767, -1):
        with pytest.raises(InvalidRequest, match="unknown"):
            codec.decode_request(api.key, version, memoryview(bytes(100)))
    with pytest.raises(InvalidRequest, match="api key 999"):
        codec.decode_request(999, 0, memoryview(b""))


def test_librdkafka_null_topics_metadata_12_is_read() -> None:
    """librdkafka 2.16's request for all topics carries three stray bytes behind its last field; Kafka ignores them."""
    request = codec.decode_request(3, 12, memoryview(bytes.fromhex("00000000010000")))
    assert request == m.MetadataRequest(topics=None, allow_auto_topic_creation=False)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_string_of_a_request_has_at_most_what_kafka_reads(version: int) -> None:
    """Found by a penetration test: a group id of 100 MB, whose hash took the event loop a minute and a half."""
    longest = "g" * STRING_BYTES_MAX

    def decoded(key: str) -> m.Message:
        request = m.FindCoordinatorRequest(key=key) if version < 4 else m.FindCoordinatorRequest(coordinator_keys=[key])
        (body,) = codec.encode_request(ApiKey.FIND_COORDINATOR, version, request)
        assert isinstance(body, bytes)
        return codec.decode_request(ApiKey.FIND_COORDINATOR, version, memoryview(body))

    assert longest in str(decoded(longest))
    with pytest.raises((MalformedFrame, struct.error)) as refused:  # old versions cannot even say it
        decoded(longest + "g")
    assert version < 3 or f"a string has at most {STRING_BYTES_MAX}" in str(refused.value)
