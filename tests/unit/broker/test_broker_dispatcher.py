"""The one road of every answer: versions, the table every client starts from, acks=0, the gate, throttled produces."""

from __future__ import annotations

import asyncio
import struct

import pytest

from broker.error_codes import ErrorCode
from broker.handlers.fetch.attempt import FetchAttempt
from broker.handlers.fetch.fetch import READ_AT_ONCE_MAX, Fetch
from broker.net.dispatch import CloseConnection, Later, Peer
from broker.wire.apis import APIS, BROKERS_ONLY, ApiKey
from broker.wire.codec import decode_response
from broker.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from seams.loop.turns import ROWS_PER_TURN
from tests.support.brokers.broker_kit import (
    Life,
    Place,
    batch_of,
    decoded,
    fetch_request,
    joined,
    parts_of,
    produce_request,
)


def header(api_key: int, version: int, correlation_id: int = 5, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, 3) + b"kit" + (b"\0" if flexible else b"")


def send(life: Life, frame: bytes) -> object:
    return life.dispatcher.dispatch(life.peer, memoryview(bytearray(frame)))


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    """KIP-511: the client of tomorrow asks with version 35 and must be able to read what we say: body v0, header 0."""
    life = await Place().start()
    parts = send(life, header(ApiKey.API_VERSIONS, 35, 77, flexible=True) + b"\x02x\x02y\0")
    frame = joined(parts)  # type: ignore[arg-type]
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 77)
    answer = decode_response(ApiKey.API_VERSIONS, 0, memoryview(frame)[8:])
    assert isinstance(answer, ApiVersionsResponse)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    shown = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    assert shown[ApiKey.API_VERSIONS] == (0, 4)
    assert shown[ApiKey.PRODUCE][0] == 0  # KAFKA-18659
    await life.stop()


@pytest.mark.parametrize(("version", "names"), [(3, []), (4, ["transaction.version"])])
async def test_clients_of_api_versions_3_see_no_feature_that_begins_at_0(version: int, names: list[str]) -> None:
    """Java's before 4.0 throw at a least version below 1, and do not connect (KAFKA-17492)."""
    life = await Place().start()
    answer = await life.call(ApiKey.API_VERSIONS, ApiVersionsRequest("kit", "1.0"), version)
    assert [feature.name for feature in answer.supported_features] == names
    assert [feature.name for feature in answer.finalized_features] == ["transaction.version"]
    await life.stop()


async def test_few_large_requests_are_in_work_at_once() -> None:
    """Regression: the objects of all large requests were kept at once, 12 MB for a frame of 190 KB. One user has three
    of the four slots at most: four of its requests that waited closed the connection of another user after a minute."""
    life = await Place().start()
    may_answer, begun = asyncio.Event(), []

    async def waits(_: object, request: DescribeGroupsRequest, __: object) -> DescribeGroupsResponse:
        begun.append(len(request.groups))
        await may_answer.wait()
        return DescribeGroupsResponse()

    life.dispatcher._handlers = {**life.dispatcher._handlers, ApiKey.DESCRIBE_GROUPS: waits}
    large = DescribeGroupsRequest(groups=[f"group-{number:040}" for number in range(2000)])
    asked = [asyncio.ensure_future(life.call(ApiKey.DESCRIBE_GROUPS, large)) for _ in range(9)]
    await asyncio.sleep(1)
    assert begun == [2000] * 3
    others = [
        life.dispatch(ApiKey.DESCRIBE_GROUPS, large, peer=Peer(9, f"10.0.0.{n}:1", life.peer.listener)) for n in (8, 9)
    ]
    await asyncio.sleep(1)
    assert begun == [2000] * 4
    small = asyncio.ensure_future(life.call(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["one"])))
    await asyncio.sleep(1)
    assert begun == [2000] * 4 + [1], "a small one does not wait"
    may_answer.set()
    await asyncio.gather(*asked, small, *map(parts_of, others))
    assert begun == [2000] * 4 + [1] + [2000] * 7
    await life.stop()


def readers_noted(monkeypatch: pytest.MonkeyPatch, may_read: asyncio.Event | None = None) -> list[Peer]:
    """The peers whose large fetches are read from now on, in order. Each read waits for `may_read`."""
    begun: list[Peer] = []
    read = Fetch.attempt_in_turns

    async def noted(self: Fetch) -> FetchAttempt:
        begun.append(self._peer)
        if may_read is not None:
            await may_read.wait()
        return await read(self)

    monkeypatch.setattr(Fetch, "attempt_in_turns", noted)
    return begun


async def test_large_fetches_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: sixty fetches of 19 900 partitions were decoded and read at once, and grew the broker by 780 MiB.
    With four at once, a turn of the loop took 55 ms instead of 9. A fetch that waits for records does not count."""
    life = await Place().start()
    await life.create("log")
    may_read = asyncio.Event()
    begun = readers_noted(monkeypatch, may_read)
    wide = fetch_request(*(("log", index, 0) for index in range(READ_AT_ONCE_MAX + 1)), max_wait_ms=30_000)
    asked = [life.dispatch(ApiKey.FETCH, wide) for _ in range(9)]
    await asyncio.sleep(1)
    assert len(begun) == 1
    assert await life.fetch("log", 0), "a small one does not wait"
    may_read.set()
    await asyncio.sleep(1)
    assert len(begun) == 9
    assert not any(isinstance(answer, list) or answer.is_done for answer in asked if answer is not None)
    asked.append(life.dispatch(ApiKey.FETCH, wide))
    await asyncio.sleep(1)
    assert len(begun) == 10, "those that wait keep nobody from reading"
    await life.produce("log", b"x")
    for answer in asked:
        assert await parts_of(answer)
    await life.stop()


async def test_large_fetches_of_clients_do_not_delay_those_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: forty clients that fetched 19 900 partitions in a loop delayed each large fetch of a replica by
    2.7 s, and a thousand closed its connection after 60 s."""
    life = await Place().start()
    await life.create("log")
    may_read = asyncio.Event()
    begun = readers_noted(monkeypatch, may_read)
    wide = fetch_request(*(("log", index, 0) for index in range(READ_AT_ONCE_MAX + 1)), max_wait_ms=0)
    broker = Peer(2, "10.0.0.2:1", life.context.config.brokers_listener)
    asked = [life.dispatch(ApiKey.FETCH, wide) for _ in range(9)]
    asked += [life.dispatch(ApiKey.FETCH, wide, peer=broker) for _ in range(9)]
    await asyncio.sleep(1)
    assert begun == [life.peer, broker]
    may_read.set()
    for answer in asked:
        assert await parts_of(answer)
    await life.stop()


@pytest.mark.parametrize("user", ["User:ANONYMOUS", "User:alice"])
async def test_clients_large_fetches_are_read_in_turn(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    """Regression: a client with a hundred connections delayed the large fetches of all others, which were read in the
    order of arrival."""
    life = await Place().start()
    await life.create("log")
    begun = readers_noted(monkeypatch)
    wide = fetch_request(*(("log", index, 0) for index in range(READ_AT_ONCE_MAX + 1)), max_wait_ms=0)
    listener = life.peer.listener
    crowd = [Peer(number, f"10.0.0.2:{number}", listener, principal=user) for number in range(9)]
    other = Peer(10, "10.0.0.3:1", listener, principal=user.replace("alice", "bob"))
    asked = [life.dispatch(ApiKey.FETCH, wide, peer=peer) for peer in (*crowd, other)]
    for answer in asked:
        assert await parts_of(answer)
    assert begun == [*crowd[:2], other, *crowd[2:]]
    await life.stop()


async def test_large_fetches_of_clients_that_went_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a client that fetched anew after its time-out waited for the reads of its earlier fetches."""
    life = await Place().start()
    await life.create("log")
    begun = readers_noted(monkeypatch)
    wide = fetch_request(*(("log", index, 0) for index in range(READ_AT_ONCE_MAX + 1)), max_wait_ms=0)
    peers = [Peer(number, f"10.0.0.2:{number}", life.peer.listener) for number in range(4)]
    asked = [life.dispatch(ApiKey.FETCH, wide, peer=peer) for peer in peers]
    for peer in peers[1:3]:
        peer.closed = True
    for answer in asked[0], asked[3]:
        assert await parts_of(answer)
    assert begun == [peers[0], peers[3]]
    await life.stop()


async def test_fetches_of_some_hundred_partitions_do_not_wait_for_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a consumer without a session, of 300 partitions, waited for each larger fetch of any client, and its
    connection was closed after 60 s."""
    life = await Place().start()
    await life.create("log")
    may_read = asyncio.Event()
    readers_noted(monkeypatch, may_read)
    wide = fetch_request(*(("log", index, 0) for index in range(READ_AT_ONCE_MAX + 1)), max_wait_ms=0)
    larger = life.dispatch(ApiKey.FETCH, wide)
    await asyncio.sleep(1)
    some = fetch_request(*(("log", index, 0) for index in range(300)), max_wait_ms=0)
    async with asyncio.timeout(1):
        assert await parts_of(life.dispatch(ApiKey.FETCH, some))
    may_read.set()
    assert await parts_of(larger)
    await life.stop()


async def test_large_fetches_that_one_record_wakes_are_read_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: forty waiting fetches of 4 900 partitions were read again together, in turns of 425 ms."""
    life = await Place().start()
    await life.create("log")
    wide = fetch_request(*(("log", index, 0) for index in range(READ_AT_ONCE_MAX + 1)), max_wait_ms=30_000)
    asked = [life.dispatch(ApiKey.FETCH, wide) for _ in range(5)]
    await asyncio.sleep(1)
    under_way, most, read = 0, 0, Fetch.attempt_in_turns

    async def noted(self: Fetch) -> FetchAttempt:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        result = await read(self)
        under_way -= 1
        return result

    monkeypatch.setattr(Fetch, "attempt_in_turns", noted)
    await life.produce("log", b"x")
    for answer in asked:
        assert await parts_of(answer)
    assert most == 1
    await life.stop()


async def test_large_sessions_are_read_in_separate_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: twenty requests of 60 bytes, in sessions of 9 000 partitions that their client may not even read,
    were read in one turn of the loop: 2.3 s, again and again."""
    life = await Place().start()
    await life.create("log")
    turn, read_in, attempt = 0, [], Fetch.attempt

    def noted(self: Fetch) -> FetchAttempt:
        read_in.append(turn)
        return attempt(self)

    rows = [("log", index, 0) for index in range(1, ROWS_PER_TURN + 2)]
    sessions = [await life.call(ApiKey.FETCH, fetch_request(*rows, session_epoch=0), 12) for _ in range(3)]
    monkeypatch.setattr(Fetch, "attempt", noted)
    asked = [
        life.dispatch(ApiKey.FETCH, fetch_request(session_id=one.session_id, session_epoch=1), 12) for one in sessions
    ]
    for _ in range(30):
        await asyncio.sleep(0)
        turn += 1
    assert len(read_in) == len(set(read_in)) == 3
    for answer in asked:
        response = decoded(ApiKey.FETCH, 12, await parts_of(answer))
        assert response.error_code == ErrorCode.NONE
        assert len(response.responses[0].partitions) == len(rows)
    await life.stop()


@pytest.mark.parametrize("is_woken", [True, False])
async def test_large_sessions_that_wait_are_read_in_separate_turns(
    monkeypatch: pytest.MonkeyPatch, is_woken: bool
) -> None:
    """Regression: one record woke twenty sessions of 9 000 partitions that do not exist, and all were read in one turn
    of the loop: 1.04 s. So did the end of their time."""
    life = await Place().start()
    await life.create("log")
    reads, in_turn, attempt = [], 0, Fetch.attempt

    def over() -> None:
        nonlocal in_turn
        in_turn = 0

    def noted(self: Fetch) -> FetchAttempt:
        nonlocal in_turn
        in_turn += 1
        reads.append(in_turn)
        asyncio.get_running_loop().call_soon(over)
        return attempt(self)

    rows = [("log", index, 0) for index in range(ROWS_PER_TURN + 2)]
    sessions = [await life.call(ApiKey.FETCH, fetch_request(*rows, session_epoch=0), 12) for _ in range(3)]
    more = {"session_epoch": 1, "max_wait_ms": 5_000}
    asked = [life.dispatch(ApiKey.FETCH, fetch_request(session_id=one.session_id, **more), 12) for one in sessions]
    await asyncio.sleep(1)
    monkeypatch.setattr(Fetch, "attempt", noted)
    if is_woken:
        life.dispatch(ApiKey.PRODUCE, produce_request("log", batch_of(b"x"), acks=1))
    await asyncio.sleep(1 if is_woken else 5)
    assert reads == [1, 1, 1]
    for answer in asked:
        response = decoded(ApiKey.FETCH, 12, await parts_of(answer))
        assert bool([part for part in response.responses[0].partitions if part.records]) is is_woken
    await life.stop()


async def test_a_large_request_does_not_wait_for_ever() -> None:
    life = await Place().start()

    async def waits(*_: object) -> None:
        await asyncio.Event().wait()

    life.dispatcher._handlers = {**life.dispatcher._handlers, ApiKey.DESCRIBE_GROUPS: waits}
    large = DescribeGroupsRequest(groups=[f"group-{number:040}" for number in range(2000)])
    asked = [asyncio.ensure_future(life.call(ApiKey.DESCRIBE_GROUPS, large)) for _ in range(4)]
    with pytest.raises(CloseConnection, match="other large requests took all places for 60 s"):
        await asked[3]
    assert not any(one.done() for one in asked[:3])
    for one in asked:
        one.cancel()


async def test_what_is_advertised_is_served() -> None:
    """Every advertised API has a handler, and each of its versions gets past the door (Produce 0-2 apart)."""
    from broker.dispatcher import HANDLERS

    life = await Place().start()
    answer = await life.call(ApiKey.API_VERSIONS, ApiVersionsRequest("kit", "1.0"))
    keys = {entry.api_key for entry in answer.api_keys}
    served = set(APIS)
    assert keys | BROKERS_ONLY == served
    assert served <= {*HANDLERS, ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.ENVELOPE}
    assert not keys & BROKERS_ONLY
    await life.stop()


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_produce_before_3_is_refused_in_its_own_format(version: int) -> None:
    """They are advertised for librdkafka's sake; the answer names every partition, and nothing is written."""
    life = await Place().start()
    await life.create("old")
    body = struct.pack(">hii", 1, 1000, 1) + struct.pack(">h3s", 3, b"old") + struct.pack(">iii", 1, 0, 4) + b"\0" * 4
    parts = send(life, header(ApiKey.PRODUCE, version) + body)
    answer = decoded(ApiKey.PRODUCE, version, parts)  # type: ignore[arg-type]
    assert [p.error_code for t in answer.responses for p in t.partition_responses] == [ErrorCode.UNSUPPORTED_VERSION]
    assert life.partition("old").log.log_end_offset == 0
    await life.stop()


@pytest.mark.parametrize(
    "frame",
    [
        header(999, 0),  # no such API
        header(ApiKey.FETCH, 3),  # below what is served
        header(ApiKey.FETCH, 99, flexible=True),
        header(ApiKey.PRODUCE, -1),
        header(ApiKey.METADATA, 1) + b"\x7f\xff\xff\xff",  # claims 2³¹ topics
        header(ApiKey.PRODUCE, 0) + b"\0",  # a refused version, and malformed beside it
        b"\0\0",
    ],
    ids=["api", "version-low", "version-high", "version-negative", "length", "old-and-short", "header"],
)
async def test_what_cannot_be_answered_closes_its_connection(frame: bytes) -> None:
    """And only its own: the next frame of another peer is answered."""
    life = await Place().start()
    with pytest.raises(CloseConnection):
        send(life, frame)
    assert (await life.call(ApiKey.METADATA, MetadataRequest(topics=None), peer=Peer(2, "", "PLAINTEXT"))).brokers
    await life.stop()


async def test_acks_0_has_no_answer_and_a_failure_closes() -> None:
    """Kafka's way to tell an acks=0 producer that it is wrong: the connection ends, so that it asks for metadata."""
    life = await Place().start()
    await life.create("log")
    assert life.dispatch(ApiKey.PRODUCE, produce_request("log", batch_of(b"a"), acks=0)) is None
    assert life.partition("log").log.log_end_offset == 1
    with pytest.raises(CloseConnection, match="acks=0"):
        life.dispatch(ApiKey.PRODUCE, produce_request("nowhere", batch_of(b"a"), acks=0))
    await life.stop()


async def test_acks_nobody_knows_are_refused_every_time() -> None:
    """INVALID_REQUIRED_ACKS must not teach the fast path that such a request is fine."""
    life = await Place().start()
    await life.create("log")
    for _ in range(3):
        assert (await life.produce("log", b"a", acks=5)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert life.partition("log").log.log_end_offset == 0
    await life.stop()


async def test_a_slept_process_answers_nothing_until_a_poll_succeeded() -> None:
    """C31's gate, through the dispatcher: reads wait, produces wait unappended; after the poll both go through."""
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.produce("log", b"a")
    place.store.down = True
    life.clock.slept_s += 3600
    waiting = [
        life.dispatch(ApiKey.METADATA, MetadataRequest(topics=None), peer=Peer(2, "", "PLAINTEXT")),
        life.dispatch(ApiKey.PRODUCE, produce_request("log", batch_of(b"b")), peer=Peer(3, "", "PLAINTEXT")),
        life.dispatch(ApiKey.FETCH, fetch_request(("log", 0, 0)), peer=Peer(4, "", "PLAINTEXT")),
    ]
    await asyncio.sleep(60)
    assert all(isinstance(answer, Later) and not answer.future.done() for answer in waiting)
    assert life.partition("log").log.log_end_offset == 1
    place.store.down = False
    for answer in waiting:
        assert await parts_of(answer)
    assert life.partition("log").log.log_end_offset == 2
    await life.stop()


async def test_a_change_of_a_client_that_went_while_the_process_slept_is_not_made() -> None:
    """Regression: it was made once the gate opened. Its client may have sent it again through another broker, and have
    made the topic again since."""
    place = Place()
    life = await place.start()
    await life.create("log")
    place.store.down = True
    life.clock.slept_s += 3600
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="log")], timeout_ms=30_000)
    gone, stays = Peer(2, "", "PLAINTEXT"), Peer(3, "", "PLAINTEXT")
    deletion = life.dispatch(ApiKey.DELETE_TOPICS, request, peer=gone)
    metadata = life.dispatch(ApiKey.METADATA, MetadataRequest(topics=None), peer=stays)
    await asyncio.sleep(60)
    gone.closed = True
    place.store.down = False
    assert await parts_of(metadata)
    with pytest.raises(CloseConnection):
        await parts_of(deletion)
    await asyncio.sleep(60)
    assert life.context.metadata.topic_named("log") is not None
    await life.stop()


async def test_a_change_that_waited_behind_another_request_of_a_client_that_went_is_not_made() -> None:
    """Regression: nothing is read while frames wait, so the connection did not count as closed yet."""
    life = await Place().start()
    await life.create("log")
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="log")], timeout_ms=30_000)
    gone = Peer(2, "", "PLAINTEXT", has_left=lambda: True)
    with pytest.raises(CloseConnection):
        await parts_of(life.dispatch(ApiKey.DELETE_TOPICS, request, peer=gone))
    assert life.context.metadata.topic_named("log") is not None
    await life.stop()


async def test_a_deletion_that_waited_behind_another_request_of_a_client_that_went_is_not_made() -> None:
    """Regression: only changes by the controller were refused. A late DeleteRecords deleted the records of the topic
    that was made again since, a late DeleteGroups or OffsetDelete the positions that were committed since."""
    life = await Place().start()
    await life.create("log")
    await life.produce("log", b"kept")
    rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    committed = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="log", partitions=rows)])
    await life.call(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=["g"]))
    (answer,) = (await life.call(ApiKey.OFFSET_COMMIT, committed, 8)).topics
    assert answer.partitions[0].error_code == ErrorCode.NONE
    records = DeleteRecordsRequestTopic(name="log", partitions=[DeleteRecordsRequestPartition(0, -1)])
    positions = OffsetDeleteRequestTopic(name="log", partitions=[OffsetDeleteRequestPartition(0)])
    late = {
        ApiKey.DELETE_RECORDS: DeleteRecordsRequest(topics=[records], timeout_ms=1_000),
        ApiKey.OFFSET_DELETE: OffsetDeleteRequest(group_id="g", topics=[positions]),
        ApiKey.DELETE_GROUPS: DeleteGroupsRequest(groups_names=["g"]),
    }
    for key, request in late.items():
        gone = Peer(2, "", "PLAINTEXT", has_left=lambda: True)
        with pytest.raises(CloseConnection):
            await parts_of(life.dispatch(key, request, peer=gone))
    assert life.context.registry.partitions["log", 0].log_start_offset == 0
    await life.stop()


async def test_an_answer_under_way_when_the_process_slept_does_not_leave() -> None:
    """A produce appended before the sleep is not acknowledged after it: the connection closes."""
    place = Place()
    life = await place.start()
    await life.create("log")
    answer = life.dispatch(ApiKey.PRODUCE, produce_request("log", batch_of(b"a")))
    assert isinstance(answer, Later)
    assert not answer.future.done()
    place.store.down = True
    life.clock.slept_s += 3600
    with pytest.raises(CloseConnection):
        await answer.future
    place.store.down = False
    await asyncio.sleep(10)
    await life.stop()


async def test_a_produce_is_slowed_down_once_and_then_decided() -> None:
    """G12: over the local limit a produce waits a moment, then goes on; far over it, it is refused, not parked."""
    life = await Place().start()
    await life.create("log")
    tiers = life.context.throttle._tiers
    tiers.local_excess_ratio = 0.05
    async with asyncio.timeout(5):
        assert (await life.produce("log", b"slow")).error_code == 0
    tiers.local_excess_ratio = 0.5
    async with asyncio.timeout(5):
        assert (await life.produce("log", b"full")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    tiers.local_excess_ratio = 0.0
    assert (await life.produce("log", b"room")).base_offset == 1
    await life.stop()


async def test_partitions_of_one_produce_are_judged_one_by_one() -> None:
    """One unknown partition fails alone; its neighbour is appended."""
    life = await Place().start()
    await life.create("log")
    data = [ProduceRequestPartition(index=at, records=memoryview(batch_of(b"x"))) for at in (0, 7)]
    request = ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[ProduceRequestTopic(name="log", partition_data=data)]
    )
    found = (await life.call(ApiKey.PRODUCE, request)).responses[0].partition_responses
    assert [part.error_code for part in found] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [part.base_offset for part in found] == [0, -1]
    await life.stop()
