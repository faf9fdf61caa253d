"""The fast path of Produce says, byte for byte, what the general path says, and steps aside for everything else."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest

from broker.handlers.produce_fast_path import _key, _prefix_end, _records, _route
from broker.net.dispatch import CloseConnection, Peer
from broker.wire.apis import ApiKey, response_header_version
from broker.wire.codec import encode_request, encode_response
from broker.wire.framing import FRAME_PREFIX_SIZE, request_frame, response_frame
from broker.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from tests.support.broker_kit import Place, batch_of, parts_of, play, produce_request

VERSIONS = range(5, 10)
SIZES = (61, 62, 126, 127, 128, 16_382, 16_383, 16_384, 100_000)


def frame_of(version: int, records: bytes, topic: str = "orders", correlation_id: int = 7) -> memoryview:
    """A produce request for one partition, without its length prefix."""
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1500,
        topic_data=[
            ProduceRequestTopic(
                name=topic, partition_data=[ProduceRequestPartition(index=3, records=memoryview(records))]
            )
        ],
    )
    body = encode_request(ApiKey.PRODUCE, version, request)
    parts = request_frame(ApiKey.PRODUCE, version, correlation_id, "client", body)
    return memoryview(bytearray(b"".join(bytes(part) for part in parts)[FRAME_PREFIX_SIZE:]))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", SIZES)
def test_the_records_are_found_where_the_codec_put_them(version: int, size: int) -> None:
    """Whatever the length's coding, the fast path cuts out exactly the batch."""
    records = bytes(range(256)) * (size // 256 + 1)
    frame = frame_of(version, records[:size])
    at = _prefix_end(frame, version, size)
    assert at is not None
    found = _records(frame, at, version)
    assert found is not None
    assert bytes(found) == records[:size]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_prefix_is_the_same_for_another_batch_and_differs_for_another_topic(version: int) -> None:
    """Correlation id and batch may vary within a route; topic, partition, acks and client may not."""
    first, second = frame_of(version, b"x" * 100), frame_of(version, b"y" * 90, correlation_id=8)
    other = frame_of(version, b"x" * 100, topic="arders")
    at = _prefix_end(first, version, 100)
    assert at is not None
    peer = Peer(1, "", "PLAINTEXT")
    assert _key(peer, first, at) == _key(peer, second, at) != _key(peer, other, at)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_with_bytes_behind_its_batch_is_not_taken(version: int) -> None:
    """Trailing bytes, or a length that does not fit, go to the general path, which refuses them."""
    frame = frame_of(version, b"x" * 100)
    at = _prefix_end(frame, version, 100)
    assert at is not None
    assert _records(memoryview(bytes(frame) + b"\0"), at, version) is None
    assert _records(frame[:-1], at, version) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_the_codecs(version: int) -> None:
    """The packed answer equals what the codec encodes for the same facts."""
    request = ProduceRequest(acks=1, timeout_ms=1)
    route = _route(version, "orders", 3, request)
    packed = route.answer.pack(
        route.answer.size - FRAME_PREFIX_SIZE, 99, *route.before_error, 0, 2**40, -1, 17, *route.after_start
    )
    answer = ProduceResponsePartition(index=3, base_offset=2**40, log_append_time_ms=-1, log_start_offset=17)
    response = ProduceResponse(responses=[ProduceResponseTopic(name="orders", partition_responses=[answer])])
    body = encode_response(ApiKey.PRODUCE, version, response)
    frame = response_frame(response_header_version(ApiKey.PRODUCE, version), 99, body)
    assert packed == b"".join(bytes(part) for part in frame)  # type: ignore[arg-type]


@pytest.mark.parametrize(("acks", "learned"), [(-1, True), (1, True), (0, False), (2, False), (-2, False)])
def test_only_known_acks_are_learned(acks: int, learned: bool) -> None:
    """The general path refuses `acks` nobody knows; the fast path, which does not look at it, must not append next."""

    async def scenario() -> None:
        life = await Place().start()
        await life.create("orders")
        request = produce_request("orders", batch_of(b"x"), acks=acks)
        with contextlib.suppress(CloseConnection):  # acks=0 of what is refused
            await life.call(ApiKey.PRODUCE, request, 9)
        assert (life.peer.produce_route is not None) is learned
        await life.stop()

    play(scenario())


@pytest.mark.parametrize("differs", ["listener", "principal"])
def test_what_one_peer_was_allowed_is_not_taken_for_another(differs: str) -> None:
    """The same bytes by another principal, or on another listener, go the general path, past the authorizer."""

    async def scenario() -> None:
        life = await Place().start()
        await life.create("orders")
        request = produce_request("orders", batch_of(b"x"), acks=1)
        same, other = Peer(2, "", "PLAINTEXT"), Peer(3, "", "PLAINTEXT")
        setattr(other, differs, "another")
        await life.call(ApiKey.PRODUCE, request, 9)
        for peer, together in ((same, 1), (other, 0)):
            peer.produce_route = life.peer.produce_route
            frame = life.frame(ApiKey.PRODUCE, 9, produce_request("orders", batch_of(b"x"), acks=1))
            assert life.dispatch_run([frame], peer)[0] == together
        assert [offset for offset, _ in await life.read_all("orders")] == [0, 1]
        await life.stop()

    play(scenario())


def test_refused_requests_are_not_remembered() -> None:
    """Names that nobody knows, of 60 KB each, and known ones behind client ids as long: 2 000 frames kept 250 MB."""

    async def scenario() -> None:
        life = await Place("auto.create.topics.enable=false").start()
        await life.create("orders")
        tracemalloc.start()
        try:
            for number in range(200):
                peer = Peer(number, "", "PLAINTEXT")
                for topic, client in ((f"{number}" + "n" * 30_000, "c"), ("orders", f"{number}" + "c" * 30_000)):
                    request = produce_request(topic, batch_of(b"x"), acks=1)
                    frame = life.frame(ApiKey.PRODUCE, 9, request, client)
                    await parts_of(life.dispatch_frame(peer, frame))
                    assert peer.produce_route is None
            del frame, request
            assert tracemalloc.get_traced_memory()[0] < 2 << 20
        finally:
            tracemalloc.stop()
        assert (await life.produce("orders", b"x", acks=1)).base_offset == 200
        assert life.peer.produce_route is not None
        await life.stop()

    play(scenario())
