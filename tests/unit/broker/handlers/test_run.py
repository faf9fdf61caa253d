"""Requests that arrived together: appended as one where they can be, and then nobody can tell the difference."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.handlers.produce.frame_parser import REQUESTS_MAX
from broker.net.dispatch import Answer, CloseConnection
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)
from logformat.record_batch import read_header, stamp_max_timestamp
from logformat.records import Record, encode_batch
from tests.support.brokers.broker_kit import (
    EPOCH_MS,
    Life,
    Place,
    batch_of,
    batches_of,
    decoded,
    parts_of,
    produce_request,
)

VERSION = 9


def frames(life: Life, *batches: bytes, topic: str = "log", acks: int = 1, index: int = 0) -> list[memoryview]:
    """A produce request each."""
    return [
        life.frame(ApiKey.PRODUCE, VERSION, produce_request(topic, batch, acks=acks, index=index)) for batch in batches
    ]


def together(life: Life, run: list[memoryview]) -> tuple[int, Answer]:
    """As the connection does with frames that came in one read."""
    return life.dispatch_run(run)


async def answers(answer: Answer) -> list[ProduceResponsePartition]:
    """The partitions' answers in the joined responses."""
    parts = await parts_of(answer)
    assert parts is not None
    data = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
    found = []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        response: ProduceResponse = decoded(ApiKey.PRODUCE, VERSION, [data[:size]])
        found.append(response.responses[0].partition_responses[0])
        data = data[size:]
    return found


async def stage(**configs: Any) -> Life:
    """A broker, a topic of two partitions, and a peer whose requests have a known prefix."""
    life = await Place().start(**configs)
    await life.create("log", 2)
    assert (await life.produce("log", b"first", acks=1)).base_offset == 0
    return life


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_run_is_one_append_and_every_request_gets_its_own_answer(acks: int) -> None:
    """Offsets follow each other, each answer carries its request's correlation id, the log holds each record once."""
    life = await stage()
    await life.produce("log", b"known", acks=acks)
    run = frames(life, batch_of(b"a"), batch_of(b"b", b"c"), batch_of(b"d"), acks=acks)
    ids = [int.from_bytes(frame[4:8], "big") for frame in run]
    count, answer = together(life, run)
    assert count == 3
    parts = await parts_of(answer)
    assert parts is not None
    joined = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
    size = len(joined) // 3
    assert [int.from_bytes(joined[at + 4 : at + 8], "big") for at in range(0, len(joined), size)] == ids
    assert [one.base_offset for one in await answers([joined])] == [2, 3, 5]
    assert [value for _, value in await life.read_all("log")] == [b"first", b"known", b"a", b"b", b"c", b"d"]
    await life.stop()


async def test_a_run_ends_before_the_first_batch_that_is_refused() -> None:
    """A broken batch: what stands before it is appended, it goes the general way."""
    life = await stage()
    good, broken = batch_of(b"a"), batch_of(b"b")[:-1] + b"?"
    count, answer = together(life, frames(life, good, good, broken, good))
    assert (count, [one.base_offset for one in await answers(answer)]) == (2, [1, 2])
    assert together(life, frames(life, broken, good)) == (0, None)
    assert life.partition("log").log.log_end_offset == 3
    await life.stop()


async def test_requests_for_several_partitions_are_one_append_a_partition() -> None:
    """A producer that spreads its records, a request a partition: all answered together, each in its place."""
    life = await stage()
    writes = [life.partition("log", index).log for index in (0, 1)]
    run = [frame for value in (b"a", b"b", b"c") for at in (1, 0) for frame in frames(life, batch_of(value), index=at)]
    count, answer = together(life, run)
    found = await answers(answer)
    assert (count, [(one.index, one.base_offset) for one in found]) == (
        6,
        [(1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3)],
    )
    assert [log.log_end_offset for log in writes] == [4, 3]
    assert [value for _, value in await life.read_all("log", 1)] == [b"a", b"b", b"c"]
    assert together(life, frames(life, batch_of(b"d"), batch_of(b"e"), index=0))[0] == 2
    await life.stop()


def wide_request(acks: int, *rows: tuple[str, int, bytes]) -> ProduceRequest:
    """A batch for each partition that is named, in this order; topics that follow each other are one."""
    request = ProduceRequest(acks=acks, timeout_ms=5000)
    for topic, index, batch in rows:
        if not request.topic_data or request.topic_data[-1].name != topic:
            request.topic_data.append(ProduceRequestTopic(name=topic, partition_data=[]))
        data = ProduceRequestPartition(index=index, records=memoryview(batch))
        request.topic_data[-1].partition_data.append(data)
    return request


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("version", range(3, 10))
async def test_requests_that_name_several_partitions_and_topics(version: int, acks: int) -> None:
    """In every version and with any acks: the run says, byte for byte, what the general way says of the same logs."""
    told = []
    for together_ in (True, False):
        life = await Place().start()
        for topic in ("log", "other"):
            await life.create(topic, 2)
        a, b = batch_of(b"a", b"b"), batch_of(b"c")
        request = wide_request(acks, ("log", 1, a), ("log", 0, b), ("other", 1, a), ("log", 1, b))
        await parts_of(life.dispatcher.dispatch(life.peer, life.frame(ApiKey.PRODUCE, version, request)))
        run = [life.frame(ApiKey.PRODUCE, version, request) for _ in range(3)]
        if together_:
            # With acks=0 each by itself: a refusal must keep the next one from being appended.
            runs = [[frame] for frame in run] if acks == 0 else [run]
            answered = [together(life, one) for one in runs]
            assert [count for count, _ in answered] == [len(one) for one in runs]
            parts = await parts_of(answered[0][1])
        else:
            general = [await parts_of(life.dispatcher.dispatch(life.peer, frame)) for frame in run]
            parts = None if acks == 0 else [part for one in general for part in one or ()]
        assert (parts is None) is (acks == 0)
        values = [await life.read_all(topic, index) for topic in ("log", "other") for index in (0, 1)]
        assert [len(one) for one in values] == [4, 12, 0, 8]
        told.append((parts and b"".join(bytes(part) for part in parts), values))  # type: ignore[arg-type]
        await life.stop()
    assert told[0] == told[1]


async def test_a_request_of_which_one_batch_is_refused_goes_the_general_way_whole() -> None:
    """Nothing of it was appended before: the general way takes the good ones and says what is wrong with the other."""
    life = await stage()
    good, broken = batch_of(b"a"), batch_of(b"b")[:-1] + b"?"
    run = [
        life.frame(ApiKey.PRODUCE, VERSION, wide_request(1, ("log", 0, good), ("log", 1, last)))
        for last in (good, broken)
    ]
    count, _ = together(life, run)
    assert count == 1
    assert [life.partition("log", index).log.log_end_offset for index in (0, 1)] == [2, 1]
    assert together(life, run[1:]) == (0, None)
    answer = decoded(ApiKey.PRODUCE, VERSION, await parts_of(life.dispatch_frame(life.peer, run[1])))
    said = [(one.index, one.error_code, one.base_offset) for one in answer.responses[0].partition_responses]
    assert said == [(0, 0, 2), (1, ErrorCode.CORRUPT_MESSAGE, -1)]
    await life.stop()


async def test_unacknowledged_requests_are_taken_together_and_a_refusal_closes() -> None:
    """acks=0 has no answer; what the log refuses can be told by closing the connection only, and what came behind it
    is not appended (it was: the run went on)."""
    life = await stage()
    (first,) = frames(life, batch_of(b"known"), acks=0)
    assert life.dispatch_frame(life.peer, first) is None
    for known in (b"a", b"b"):
        assert together(life, frames(life, batch_of(known), acks=0)) == (1, None)
    assert together(life, frames(life, batch_of(b"c"), batch_of(b"d"), acks=0)) == (2, None)
    assert life.partition("log").log.log_end_offset == 6
    ahead = batch_of(b"x", producer_id=5, producer_epoch=0, base_sequence=0)
    skipped = batch_of(b"y", producer_id=5, producer_epoch=0, base_sequence=7)
    with pytest.raises(CloseConnection, match="acks=0 failed"):
        together(life, frames(life, ahead, skipped, batch_of(b"z"), acks=0))
    assert life.partition("log").log.log_end_offset == 7
    await life.stop()


@pytest.mark.parametrize("acks", [1, -1])
async def test_resends_in_a_run_are_answered_one_by_one(acks: int) -> None:
    """An idempotent producer that resends what was appended gets each batch's own old offset, and nothing twice."""
    life = await stage()
    await life.produce("log", b"known", acks=acks)

    def sent(*sequences: int) -> list[memoryview]:
        batches = [batch_of(b"%d" % n, producer_id=5, producer_epoch=0, base_sequence=n) for n in sequences]
        return frames(life, *batches, acks=acks)

    async def offsets_of(run: list[memoryview]) -> list[tuple[int, int]]:
        count, answer = together(life, run)
        assert count == len(run)
        return [(one.error_code, one.base_offset) for one in await answers(answer)]

    assert await offsets_of(sent(0, 1)) == [(0, 2), (0, 3)]
    assert await offsets_of(sent(0, 1)) == [(0, 2), (0, 3)]
    assert await offsets_of(sent(0, 1, 2)) == [(0, 2), (0, 3), (0, 4)]
    out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await offsets_of(sent(3, 7, 4)) == [(0, 5), (out_of_order, -1), (0, 6)]
    assert await offsets_of(sent(2, 9)) == [(0, 4), (out_of_order, -1)]
    assert [value for _, value in await life.read_all("log", start=2)] == [b"0", b"1", b"2", b"3", b"4"]
    await life.stop()


async def test_kafkajs_batches_get_the_maximum_of_their_records() -> None:
    """Finding of 2026-11-21: 100, 300, 200 with 200 in the header hid the record of 300 from every look by time."""
    life = await stage()
    records = [Record(at, EPOCH_MS + ms, None, b"v") for at, ms in enumerate((100, 300, 200))]
    sent = bytearray(encode_batch(records, producer_epoch=0, base_sequence=0))
    stamp_max_timestamp(sent, 0, EPOCH_MS + 200)
    count, answer = together(life, frames(life, bytes(sent)))
    assert (count, [one.base_offset for one in await answers(answer)]) == (1, [1])
    (stored,) = batches_of(await life.fetch("log", 1, max_wait_ms=500))
    assert read_header(stored).max_timestamp == EPOCH_MS + 300
    await life.stop()


@pytest.mark.parametrize("configs", [{}, {"message_timestamp_type": "LogAppendTime"}])
async def test_a_run_that_the_disk_refuses_leaves_the_requests_as_they_were_sent(configs: dict[str, str]) -> None:
    """ENOSPC: nothing is appended, each request hears it, and the same frames go in once there is room."""
    place = Place()
    life = await place.start()
    await life.create("log", 1, **configs)
    await life.produce("log", b"first", acks=1)
    run = frames(life, batch_of(b"a"), batch_of(b"b"))
    before = [bytes(frame) for frame in run]
    place.disk.inject("write", errno.ENOSPC, suffix=".log", times=3)  # the run, then each of its batches
    count, answer = together(life, run)
    said = [(one.error_code, one.base_offset, one.log_start_offset) for one in await answers(answer)]
    assert (count, said) == (2, [(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1)] * 2)
    assert [bytes(frame) for frame in run] == before
    assert life.context.metrics.failed_produce_requests == 2
    place.disk.heal()
    count, answer = together(life, run)
    assert (count, [one.base_offset for one in await answers(answer)]) == (2, [1, 2])
    await life.stop()


async def test_a_run_waits_for_nobody_where_offsets_or_room_have_to_be_waited_for() -> None:
    """Offsets beyond the reservation, a log that drains: the general way waits, so the run leaves them to it."""
    life = await stage()
    log, throttle = life.partition("log").log, life.context.throttle

    def taken(offsets: int) -> int:
        reserved, log.reserved_end = log.reserved_end, log.log_end_offset + offsets
        count, _ = together(life, frames(life, batch_of(b"a"), batch_of(b"b")))
        log.reserved_end = reserved
        return count

    assert [taken(offsets) for offsets in (0, 1, 2)] == [0, 1, 2]
    # Now requests for this partition are expected.
    assert [taken(offsets) for offsets in (0, 1, 2)] == [0, 0, 2]
    throttle.is_draining = True
    assert taken(2) == 0
    throttle.is_draining = False
    assert taken(2) == 2
    await life.stop()


async def test_a_run_is_bounded() -> None:
    """Requests and batches of one run, and names nobody let through: what is beyond them waits its turn."""
    life = await stage()
    assert together(life, frames(life, *[batch_of(b"a")] * 40))[0] == REQUESTS_MAX
    row = ("log", 0, batch_of(b"a"))
    for rows, taken in ((50, 2), (126, 1), (127, 0)):
        run = [life.frame(ApiKey.PRODUCE, VERSION, wide_request(1, *[row] * rows)) for _ in range(3)]
        assert together(life, run)[0] == taken
    await life.create("strange")
    strange = wide_request(1, row, ("strange", 0, row[2]))
    known = [life.frame(ApiKey.PRODUCE, VERSION, strange) for _ in range(2)]
    assert together(life, known) == (0, None)
    await parts_of(life.dispatch_frame(life.peer, known[0]))
    assert together(life, known[1:])[0] == 1
    await life.stop()
