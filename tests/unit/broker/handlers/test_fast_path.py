"""The fast path of Produce says, byte for byte, what the general path says, and steps aside for everything else."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.handlers.produce import routes as produce_routes
from broker.handlers.produce.frame_parser import BATCHES_MAX, Head, alike_head, head_bytes, rows, walk_alike
from broker.handlers.produce.responses import ALIKE_SINCE, AlikeAnswer, AnswerRow, Outcome, answer
from broker.net.dispatch import CloseConnection, Peer
from broker.wire.apis import ApiKey, response_header_version
from broker.wire.codec import decode_request, encode_request, encode_response
from broker.wire.errors import MalformedFrame
from broker.wire.framing import FRAME_PREFIX_SIZE, parse_request_header, request_frame, response_frame
from broker.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from logformat.errors import Corrupt
from logformat.record_batch import Fields
from tests.support.brokers.broker_kit import Place, batch_of, joined, parts_of, produce_request

VERSIONS = range(3, 10)
SIZES = (61, 62, 126, 127, 128, 16_382, 16_383, 16_384, 100_000)
FIELDS: Fields = (0,) * 13

Wanted = Sequence[tuple[str, int, bytes]]
"""Topic, partition and records of each row of a request."""


def frame_of(version: int, wanted: Wanted, correlation_id: int = 7) -> bytearray:
    """A produce request with its length prefix; rows of one topic that follow each other are one topic's."""
    request = ProduceRequest(acks=-1, timeout_ms=1500)
    for topic, index, records in wanted:
        if not request.topic_data or request.topic_data[-1].name != topic:
            request.topic_data.append(ProduceRequestTopic(name=topic, partition_data=[]))
        data = ProduceRequestPartition(index=index, records=memoryview(records))
        request.topic_data[-1].partition_data.append(data)
    body = encode_request(ApiKey.PRODUCE, version, request)
    return bytearray(joined(request_frame(ApiKey.PRODUCE, version, correlation_id, "client", body)))


def head_of(version: int, frame: bytearray, *topics: str) -> Head:
    body = memoryview(frame)[FRAME_PREFIX_SIZE:]
    begins = head_bytes(body, parse_request_header(body)[1], version)
    assert begins is not None
    head = Head(version, -1, 1500, *begins)
    head.topics.update((topic.encode(), topic) for topic in topics)
    return head


def walked(version: int, frame: bytearray, *topics: str) -> list[tuple[str, int, bytes]] | None:
    """What a walk finds in a frame, between bytes of others."""
    head = head_of(version, frame, *topics)
    view = memoryview(b"before" + frame + b"behind")
    found = rows(head, view, 6 + head.size, 6 + len(frame))
    return None if found is None else [(topic, index, bytes(view[at:to])) for topic, index, at, to in found]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", SIZES)
def test_the_records_are_found_where_the_codec_put_them(version: int, size: int) -> None:
    """Whatever the length's coding, the walk cuts out exactly the batches, one alone or several."""
    records = (bytes(range(256)) * (size // 256 + 1))[:size]
    long = "n" * 249
    for wanted in (
        [("orders", 3, records)],
        [("orders", 3, records), ("orders", 0, b"x" * 100), (long, 1, records), ("orders", 2, records)],
    ):
        assert walked(version, frame_of(version, wanted), "orders", long) == wanted


@pytest.mark.parametrize("version", range(ALIKE_SINCE, 10))
@pytest.mark.parametrize("size", SIZES)
def test_requests_alike_are_taken_until_one_differs(version: int, size: int) -> None:
    """Correlation id and batch may vary; topic, partition, a refused batch or a part of a frame end it."""

    def one(number: int, records: bytes, topic: str = "orders", index: int = 3) -> bytearray:
        return frame_of(version, [(topic, index, records)], number)

    first = one(1, b"f" * 100)
    head = head_of(version, first, "orders", "arders")
    found = rows(head, memoryview(first), head.size, len(first))
    assert found is not None
    known = alike_head(head, memoryview(first), 0, found[0])
    batches = [b"a" * size, b"b" * 61, b"c" * size]
    run = b"".join(one(2 + at, batch) for at, batch in enumerate(batches))

    def check(view: memoryview, at: int, to: int) -> Fields:
        if bytes(view[at : at + 1]) == b"!":
            raise Corrupt("refused")
        return FIELDS

    for last in (one(9, b"d", "arders"), one(9, b"d", index=4), one(9, b"!" * 61), one(9, b"d" * 61)[:-1], b"\0\0"):
        window = memoryview(b"x" + run + bytes(last))
        assert known.begins(window, 1, len(window)) and not known.begins(memoryview(one(9, b"d", "arders")), 0, 200)
        pos, ids, taken, headers = walk_alike(known, check, window, 1, len(window), 1 << 20)
        assert (pos, ids, [bytes(batch) for batch in taken]) == (1 + len(run), [2, 3, 4], batches)
        assert len(headers) == 3
    too_large = walk_alike(known, check, memoryview(run), 0, len(run), len(first) - FRAME_PREFIX_SIZE - 50)
    assert too_large[0] == 0


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VERSIONS), st.data())
def test_a_walk_believes_no_more_than_the_codec(version: int, data: st.DataObject) -> None:
    """Bytes changed, added or taken away anywhere behind the head: what the codec refuses is not taken, and what is
    taken is what the codec reads."""
    wanted = [("orders", 3, b"x" * 61), ("orders", 4, b"y" * 130), ("arders", 0, b"z" * 61)]
    frame = frame_of(version, wanted)
    head = head_of(version, frame, "orders", "arders")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(head.size, len(frame) - 1))
        change = data.draw(st.integers(0, 2))
        if change == 0:
            frame[at] = data.draw(st.sampled_from((0, 1, 2, 3, 0x7F, 0x80, 0xFF)))
        elif change == 1:
            frame.insert(at, data.draw(st.integers(0, 255)))
        else:
            del frame[at]
    found = rows(head, memoryview(bytes(frame) + b"\0" * 300), head.size, len(frame))
    if found is None:
        return
    body = memoryview(frame)[FRAME_PREFIX_SIZE:]
    try:
        request = decode_request(ApiKey.PRODUCE, version, body[parse_request_header(body)[1] :])
    except MalformedFrame:
        pytest.fail(f"taken, but malformed: {bytes(frame)!r}")
    read = [(t.name, p.index, bytes(p.records)) for t in request.topic_data for p in t.partition_data]  # type: ignore
    assert [(topic, index, bytes(frame[at:to])) for topic, index, at, to in found] == read


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_walk_does_not_take(version: int) -> None:
    """Null records, no partitions or topics, more partitions than a run has, names that nobody let through, and bytes
    behind the last field."""
    good = frame_of(version, [("orders", 3, b"x" * 61)])
    assert walked(version, good, "orders") is not None
    assert walked(version, good, "arders") is None
    assert walked(version, good + b"\0", "orders") is None
    assert walked(version, good[:-1], "orders") is None
    many = [("orders", 0, b"x")] * (BATCHES_MAX + 1)
    assert walked(version, frame_of(version, many), "orders") is None
    assert len(walked(version, frame_of(version, many[1:]), "orders") or ()) == BATCHES_MAX
    for topics in (
        [],
        [ProduceRequestTopic(name="orders", partition_data=[])],
        [ProduceRequestTopic(name="orders", partition_data=[ProduceRequestPartition(index=0, records=None)])],
    ):
        request = ProduceRequest(acks=-1, timeout_ms=1500, topic_data=topics)
        body = encode_request(ApiKey.PRODUCE, version, request)
        odd = bytearray(joined(request_frame(ApiKey.PRODUCE, version, 7, "client", body)))
        assert walked(version, odd, "orders") is None


def encoded(version: int, correlation_id: int, told: Sequence[AnswerRow]) -> bytes:
    """The answer as the codec makes it."""
    response = ProduceResponse()
    for topic, index, (error, base_offset, time_ms, start, message) in told:
        if not response.responses or response.responses[-1].name != topic:
            response.responses.append(ProduceResponseTopic(name=topic, partition_responses=[]))
        response.responses[-1].partition_responses.append(
            ProduceResponsePartition(index, error, base_offset, time_ms, start, error_message=message)
        )
    body = encode_response(ApiKey.PRODUCE, version, response)
    return joined(response_frame(response_header_version(ApiKey.PRODUCE, version), correlation_id, body))


OUTCOMES = st.one_of(
    st.tuples(st.just(0), st.integers(0, 2**62), st.sampled_from((-1, 5)), st.integers(0, 2**62), st.none()),
    st.tuples(st.integers(1, 100), st.just(-1), st.just(-1), st.just(-1), st.text(max_size=300)),
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(VERSIONS), st.lists(st.tuples(st.sampled_from(("a", "b" * 200)), st.integers(0, 9), OUTCOMES)))
def test_an_answer_is_the_codecs(version: int, told: list[tuple[str, int, Outcome]]) -> None:
    """The packed answer equals what the codec encodes for the same facts."""
    assert answer(version, 99, told) == encoded(version, 99, told)


@pytest.mark.parametrize("version", range(ALIKE_SINCE, 10))
def test_answers_to_requests_for_one_partition_are_the_codecs(version: int) -> None:
    """The same, of those that are packed at once."""
    for topic in ("o", "orders", "n" * 249):
        said = AlikeAnswer(version, topic, 3).joined([99, -1], [2**40, 2**40 + 7], 1234, 17)
        outcomes: list[Outcome] = [(0, 2**40, 1234, 17, None), (0, 2**40 + 7, 1234, 17, None)]
        wanted = zip((99, -1), outcomes, strict=True)
        assert said == b"".join(encoded(version, number, [(topic, 3, outcome)]) for number, outcome in wanted)


@pytest.mark.parametrize(("acks", "learned"), [(-1, True), (1, True), (0, True), (2, False), (-2, False)])
async def test_only_known_acks_are_learned(acks: int, learned: bool) -> None:
    """The general path refuses `acks` nobody knows; the fast path, which does not look at it, must not append next."""
    life = await Place().start()
    await life.create("orders")
    request = produce_request("orders", batch_of(b"x"), acks=acks)
    with contextlib.suppress(CloseConnection):  # acks=0 of what is refused
        await life.call(ApiKey.PRODUCE, request, 9)
    assert (life.peer.produce_route is not None) is learned
    await life.stop()


@pytest.mark.parametrize("differs", ["listener", "principal"])
async def test_what_one_peer_was_allowed_is_not_taken_for_another(differs: str) -> None:
    """The same bytes by another principal, or on another listener, go the general path, past the authorizer; a topic
    that one of them was allowed is not known of the other."""
    life = await Place().start()
    for topic in ("orders", "secret"):
        await life.create(topic)
    peer, same, other = (Peer(number, "", "PLAINTEXT") for number in range(3))
    setattr(other, differs, "another")

    def together(peer: Peer, topic: str) -> int:
        request = produce_request(topic, batch_of(b"x"), acks=1)
        return life.dispatch_run([life.frame(ApiKey.PRODUCE, 9, request)], peer)[0]

    for one, topics in ((peer, ("orders", "secret")), (same, ("orders",)), (other, ("orders",))):
        for topic in topics:
            await life.call(ApiKey.PRODUCE, produce_request(topic, batch_of(b"x"), acks=1), 9, one)
    found = [together(one, topic) for one in (peer, same, other) for topic in ("orders", "secret")]
    assert found == [1, 1, 1, 1, 1, 0]
    same.principal = "User:somebody"  # who asks on this connection changed
    assert together(same, "orders") == 0
    await life.call(ApiKey.PRODUCE, produce_request("orders", batch_of(b"x"), acks=1), 9, same)
    assert [together(same, topic) for topic in ("orders", "secret")] == [1, 0]
    await life.stop()


async def test_refused_requests_are_not_remembered() -> None:
    """Names that nobody knows, of 60 KB each, and known ones behind client ids as long: 2 000 frames kept 250 MB."""
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


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ever new client ids and topics: all is forgotten when the table is full, and learned anew."""
    monkeypatch.setattr(produce_routes, "_TOPICS_MAX", 6)
    life = await Place().start()
    for topic in ("a", "b"):
        await life.create(topic)
    known, peers = life.dispatcher.fast_path.routes, [Peer(number, "", "PLAINTEXT") for number in range(10)]
    for peer in peers:
        for topic in ("a", "b", "a"):
            request = produce_request(topic, batch_of(b"x"), acks=1)
            frame = life.frame(ApiKey.PRODUCE, 9, request, f"client-{peer.connection_id}")
            await parts_of(life.dispatch_frame(peer, frame))
            heads = known._heads.values()
            assert sum(len(head.topics) for head in heads) == known._topics_count <= 6
    routes = [peer.produce_route for peer in peers]
    assert sum(len(route.head.topics) for route in routes if isinstance(route, produce_routes.ProduceRoute)) <= 6
    assert len(await life.read_all("a")) == 20
    await life.stop()
