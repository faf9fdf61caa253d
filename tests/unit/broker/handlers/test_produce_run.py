"""Requests that arrived together: appended as one where they can be, and then nobody can tell the difference."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from broker.net.dispatch import Answer
from broker.wire.apis import ApiKey
from broker.wire.messages import ProduceResponse, ProduceResponsePartition
from logformat.record_batch import read_header, stamp_max_timestamp
from logformat.records import Record, encode_batch
from tests.support.broker_kit import (
    EPOCH_MS,
    Life,
    Place,
    batch_of,
    batches_of,
    decoded,
    parts_of,
    play,
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
def test_a_run_is_one_append_and_every_request_gets_its_own_answer(acks: int) -> None:
    """Offsets follow each other, each answer carries its request's correlation id, the log holds each record once."""

    async def scenario() -> None:
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

    play(scenario())


def test_a_run_ends_before_the_first_request_that_is_not_like_it() -> None:
    """Another partition, a broken batch: what stands before it is appended, it goes the general way."""

    async def scenario() -> None:
        life = await stage()
        good, broken = batch_of(b"a"), batch_of(b"b")[:-1] + b"?"
        mixed = [*frames(life, good, good), *frames(life, good, index=1), *frames(life, good)]
        assert together(life, mixed)[0] == 2
        count, answer = together(life, frames(life, good, broken, good))
        assert (count, [one.base_offset for one in await answers(answer)]) == (1, [3])
        assert together(life, frames(life, broken, good)) == (0, None)
        assert life.partition("log").log.log_end_offset == 4
        await life.stop()

    play(scenario())


def test_resends_in_a_run_are_answered_one_by_one() -> None:
    """An idempotent producer that resends what was appended gets each batch's own old offset, and nothing twice."""

    async def scenario() -> None:
        life = await stage()
        sent = [
            batch_of(value, producer_id=5, producer_epoch=0, base_sequence=n) for n, value in enumerate((b"a", b"b"))
        ]
        count, answer = together(life, frames(life, *sent))
        assert (count, [one.base_offset for one in await answers(answer)]) == (2, [1, 2])
        again = frames(life, *sent, batch_of(b"c", producer_id=5, producer_epoch=0, base_sequence=2))
        assert together(life, again) == (0, None)
        resent = [(await answers(life.dispatch_frame(life.peer, frame)))[0].base_offset for frame in again]
        assert resent == [1, 2, 3]
        assert [value for _, value in await life.read_all("log")] == [b"first", b"a", b"b", b"c"]
        await life.stop()

    play(scenario())


def test_kafkajs_batches_get_the_maximum_of_their_records() -> None:
    """Finding of 2026-11-21: 100, 300, 200 with 200 in the header hid the record of 300 from every look by time."""

    async def scenario() -> None:
        life = await stage()
        records = [Record(at, EPOCH_MS + ms, None, b"v") for at, ms in enumerate((100, 300, 200))]
        sent = bytearray(encode_batch(records, producer_epoch=0, base_sequence=0))
        stamp_max_timestamp(sent, 0, EPOCH_MS + 200)
        count, answer = together(life, frames(life, bytes(sent)))
        assert (count, [one.base_offset for one in await answers(answer)]) == (1, [1])
        (stored,) = batches_of(await life.fetch("log", 1, max_wait_ms=500))
        assert read_header(stored).max_timestamp == EPOCH_MS + 300
        await life.stop()

    play(scenario())


def test_a_run_that_the_disk_refuses_leaves_the_requests_as_they_were_sent() -> None:
    """ENOSPC at the one write: nothing is appended, and the same frames go in once there is room."""

    async def scenario() -> None:
        place = Place()
        life = await place.start()
        await life.create("log")
        await life.produce("log", b"first", acks=1)
        run = frames(life, batch_of(b"a"), batch_of(b"b"))
        before = [bytes(frame) for frame in run]
        place.disk.inject("write", errno.ENOSPC, suffix=".log")
        assert together(life, run) == (0, None)
        assert [bytes(frame) for frame in run] == before
        place.disk.heal()
        count, answer = together(life, run)
        assert (count, [one.base_offset for one in await answers(answer)]) == (2, [1, 2])
        await life.stop()

    play(scenario())
