"""Topics with a codec of their own (`compression.type`): what is stored, in which order, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.handlers.produce.recompression import BATCHES_MAX, Job, Recompressor
from broker.net.dispatch import Later, Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    DeleteTopicsRequest,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from logformat.compression import compress
from logformat.errors import Retryable
from logformat.record_batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, Codec, read_header
from logformat.records import Record, encode_batch, iter_records
from seams.loop.workers import Lane
from tests.fuzz.targets.record_batch import resealed
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.broker_kit import NEWEST, Life, Place, batches_of, decoded, parts_of, produce_request
from tests.unit.broker.handlers.test_broker_admin import TOPIC, altered

NAMES = {
    Codec.NONE: "uncompressed",
    Codec.GZIP: "gzip",
    Codec.SNAPPY: "snappy",
    Codec.LZ4: "lz4",
    Codec.ZSTD: "zstd",
}
HEADERS = (("trace", b"1"), ("empty", None))
RECORDS = [Record(at, EPOCH_MS - 7 * at, b"k%d" % at, b"v" * 300, HEADERS) for at in range(20)]
PRODUCER = {"producer_id": 5, "producer_epoch": 0}


async def started(name: str, *settings: str, **configs: str) -> Life:
    life = await Place(*settings).start()
    await life.create("log", compression_type=name, **configs)
    await asyncio.sleep(1)
    return life


async def sent(life: Life, batch: bytes, version: int = 9, **how: Any) -> Any:
    response = await life.call(ApiKey.PRODUCE, produce_request("log", batch, **how), version)
    return response.responses[0].partition_responses[0]


async def stored(life: Life) -> list[bytes]:
    return batches_of(await life.fetch("log", 0))


class Held:
    """Workers whose recompressions wait until they are let go."""

    def __init__(self, life: Life) -> None:
        self.open = asyncio.Event()
        self.begun = 0
        self.lanes: list[Lane] = []
        run = life.workers.run

        async def held(function: Any, *arguments: Any, lane: Lane = Lane.FILES) -> Any:
            self.lanes.append(lane)
            if lane is Lane.COMPRESS:
                self.begun += 1
                await self.open.wait()
            return await run(function, *arguments, lane=lane)

        life.workers.run = held  # type: ignore[method-assign]


@asynccontextmanager
async def held(life: Life) -> AsyncIterator[Held]:
    hold = Held(life)
    yield hold
    hold.open.set()
    await life.stop()


@pytest.mark.parametrize("sent_in", Codec)
@pytest.mark.parametrize("kept_in", Codec)
async def test_a_batch_is_stored_in_the_codec_of_its_topic(sent_in: Codec, kept_in: Codec) -> None:
    """With its offsets, timestamps, keys, headers, producer id and sequences; in its own codec its bytes stay."""
    life = await started(NAMES[kept_in])
    for sequence in (0, 20):
        batch = encode_batch(RECORDS, codec=sent_in, base_sequence=sequence, **PRODUCER)
        answer = await sent(life, batch)
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, sequence, -1)
    for at, found in enumerate(await stored(life)):
        header = read_header(found)
        assert header.codec is kept_in
        assert (header.base_offset, header.last_offset_delta, header.record_count) == (20 * at, 19, 20)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 0, 20 * at)
        assert header.max_timestamp == EPOCH_MS and not header.is_transactional
        assert list(iter_records(found)) == [one._replace(offset=20 * at + one.offset) for one in RECORDS]
        if sent_in is kept_in:
            assert found[HEADER_SIZE:] == batch[HEADER_SIZE:]
    resent = await sent(life, encode_batch(RECORDS, codec=sent_in, base_sequence=20, **PRODUCER))
    assert (resent.error_code, resent.base_offset) == (0, 20)
    assert life.partition("log").log.log_end_offset == 40
    await life.stop()


async def test_the_brokers_clock_is_stamped_after_it() -> None:
    life = await started("zstd", message_timestamp_type="LogAppendTime")
    answer = await sent(life, encode_batch(RECORDS, codec=Codec.GZIP))
    (found,) = await stored(life)
    assert answer.log_append_time_ms > EPOCH_MS
    assert {record.timestamp for record in iter_records(found)} == {answer.log_append_time_ms}
    await life.stop()


async def test_a_compacted_topic_reads_the_keys_first() -> None:
    life = await started("lz4", cleanup_policy="compact")
    assert (await sent(life, encode_batch(RECORDS))).error_code == 0
    refused = await sent(life, encode_batch([*RECORDS[:3], Record(3, EPOCH_MS, None, b"v")]))
    assert refused.error_code == ErrorCode.INVALID_RECORD and [at.batch_index for at in refused.record_errors] == [3]
    assert [read_header(found).codec for found in await stored(life)] == [Codec.LZ4]
    await life.stop()


async def test_only_batches_in_another_codec_cost_a_worker() -> None:
    """Runs of requests in the topic's codec are answered together, and end before one in another."""
    life = await started("zstd")
    hold = Held(life)
    hold.open.set()
    peer = Peer(7, "127.0.0.1:50001", "PLAINTEXT")
    own, other = (produce_request("log", encode_batch(RECORDS, codec=codec)) for codec in (Codec.ZSTD, Codec.LZ4))
    for _ in range(3):
        await life.call(ApiKey.PRODUCE, own, peer=peer)
    count, _ = life.dispatch_run(
        [life.frame(ApiKey.PRODUCE, NEWEST[ApiKey.PRODUCE], one) for one in (own, own, other, own)], peer
    )
    assert count == 2 and Lane.COMPRESS not in hold.lanes
    await life.call(ApiKey.PRODUCE, other, peer=peer)
    assert hold.lanes.count(Lane.COMPRESS) == 1
    assert len(await stored(life)) == 6
    await life.stop()


async def test_a_connection_goes_on_once_its_batch_is_appended() -> None:
    """Not after the sync that its acks wait for: the request blocks while it is recompressed, and no longer."""
    life = await started("zstd")
    async with held(life) as hold:
        answer = life.dispatch(ApiKey.PRODUCE, produce_request("log", encode_batch(RECORDS)), 9)
        assert isinstance(answer, Later) and answer.blocks
        released: list[int] = []
        answer.when_released(lambda _: released.append(life.partition("log").log.log_end_offset))
        while not hold.begun:
            await asyncio.sleep(0.001)
        assert answer.blocks
        hold.open.set()
        assert decoded(ApiKey.PRODUCE, 9, await parts_of(answer)).responses[0].partition_responses[0].error_code == 0
        assert released == [20] and not answer.blocks


@pytest.mark.parametrize("deleted", [False, True])
async def test_nothing_is_appended_after_its_leadership(deleted: bool) -> None:
    """The batch is refused, also when this broker leads again, or leads another topic of the name."""
    life = await started("zstd")
    async with held(life) as hold:
        answer = life.dispatch(ApiKey.PRODUCE, produce_request("log", encode_batch(RECORDS)), 9)
        while not hold.begun:
            await asyncio.sleep(0.001)
        if deleted:
            await life.call(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=["log"], timeout_ms=5000), 5)
            await life.create("log", compression_type="zstd")
        else:
            partition = life.partition("log")
            partition.leader_epoch += 1  # what the batch's request began under is an epoch of before
        await asyncio.sleep(1)
        hold.open.set()
        part = decoded(ApiKey.PRODUCE, 9, await parts_of(answer)).responses[0].partition_responses[0]
        assert (part.error_code, part.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert life.partition("log").log.log_end_offset == 0
        if not deleted:
            partition.leader_epoch -= 1


async def test_a_damaged_batch_is_not_given_a_new_checksum() -> None:
    life = await started("zstd")
    batch = bytearray(encode_batch(RECORDS))
    batch[-1] ^= 1
    assert (await sent(life, bytes(batch))).error_code == ErrorCode.CORRUPT_MESSAGE
    broken = resealed(encode_batch(RECORDS, codec=Codec.GZIP)[:-4] + b"abcd")
    assert (await sent(life, broken)).error_code == ErrorCode.INVALID_RECORD
    assert life.partition("log").log.log_end_offset == 0
    await life.stop()


def bomb(decompressed: int, codec: Codec = Codec.ZSTD) -> bytes:
    """A batch whose records decompress to so many bytes."""
    batch = encode_batch(RECORDS[:1], codec=codec)
    body = compress(codec, bytes(decompressed))
    header = read_header(batch)._replace(length=HEADER_SIZE - LOG_OVERHEAD + len(body))
    return resealed(HEADER.pack(*header) + body)


@pytest.mark.parametrize(("name", "code"), [("gzip", ErrorCode.INVALID_RECORD), ("uncompressed", 10)])
async def test_a_bomb_is_refused_by_its_limit(name: str, code: int) -> None:
    """32 MiB decompressed, or max.message.bytes where the topic stores it so (MESSAGE_TOO_LARGE)."""
    life = await started(name)
    assert (await sent(life, bomb(33 << 20))).error_code == code
    assert life.partition("log").log.log_end_offset == 0
    await life.stop()


async def test_what_grows_beyond_the_largest_message_is_refused() -> None:
    life = await started("uncompressed", max_message_bytes="5000")
    assert (await sent(life, encode_batch(RECORDS, codec=Codec.ZSTD))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await sent(life, encode_batch(RECORDS[:10], codec=Codec.ZSTD))).error_code == 0
    await life.stop()


async def test_zstd_still_wants_produce_7() -> None:
    """The codec that the client sent counts, not the topic's."""
    life = await started("gzip")
    answer = await sent(life, encode_batch(RECORDS, codec=Codec.ZSTD), 6)
    assert answer.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    await life.stop()
    life = await started("zstd")
    assert (await sent(life, encode_batch(RECORDS, codec=Codec.GZIP), 6)).error_code == 0
    await life.stop()


def wide(count: int) -> ProduceRequest:
    rows = [
        ProduceRequestPartition(index=at, records=memoryview(bytearray(encode_batch(RECORDS)))) for at in range(count)
    ]
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[ProduceRequestTopic(name="log", partition_data=rows)])


async def test_sixteen_batches_at_most_are_in_work() -> None:
    """Of all requests together; one that waited for its turn until its timeout is refused, and holds nothing."""
    life = await Place().start()
    await life.create("log", 40, compression_type="zstd")
    await asyncio.sleep(1)
    async with held(life) as hold:
        many = life.dispatch(ApiKey.PRODUCE, wide(40), 9)
        late = life.dispatch(ApiKey.PRODUCE, produce_request("log", encode_batch(RECORDS), timeout_ms=2000), 9)
        await asyncio.sleep(1)
        assert hold.begun == BATCHES_MAX
        part = decoded(ApiKey.PRODUCE, 9, await parts_of(late)).responses[0].partition_responses[0]
        assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
        hold.open.set()
        response = decoded(ApiKey.PRODUCE, 9, await parts_of(many))
        assert [part.index for part in response.responses[0].partition_responses] == list(range(40))
        assert {part.error_code for part in response.responses[0].partition_responses} == {0}
        assert {life.partition("log", at).log.log_end_offset for at in range(40)} == {20}
        assert life.dispatcher._produce_flow._recompressor._slots.taken == 0


async def test_users_recompress_in_turn() -> None:
    """A user with many connections does not take all the slots before the next user has one."""
    life = await Place().start()
    await life.create("log", BATCHES_MAX, compression_type="zstd")
    await asyncio.sleep(1)
    done: list[str] = []
    async with held(life) as hold:
        for name, host, count in (("a1", 2, 16), ("a2", 2, 16), ("a3", 2, 16), ("b", 3, 1)):
            peer = Peer(len(name), f"10.0.0.{host}:1", life.peer.listener)
            answer = life.dispatch(ApiKey.PRODUCE, wide(count), 9, peer=peer)
            assert isinstance(answer, Later)
            answer.when_done(lambda _, name=name: done.append(name))
        await asyncio.sleep(1)
        hold.open.set()
        await asyncio.sleep(1)
        assert done == ["a1", "a2", "b", "a3"]


async def test_the_codec_changes_on_a_living_topic() -> None:
    """For a connection that knows the topic: batches are stored in the codec that is set when they come."""
    life = await started("producer")
    for name in ("producer", "zstd", "producer", "gzip", "uncompressed"):
        assert await altered(life, (TOPIC, "log", [("compression.type", 0, name)])) == [(0, None)]
        await asyncio.sleep(1)
        for _ in range(2):
            assert (await sent(life, encode_batch(RECORDS, codec=Codec.LZ4))).error_code == 0
    codecs = [read_header(found).codec for found in await stored(life)]
    assert codecs[::2] == codecs[1::2] == [Codec.LZ4, Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.NONE]
    await life.stop()


async def test_a_batch_for_which_memory_is_too_short_leaves_the_others_their_slots() -> None:
    """Regression: all slots of the request were free while its other batches were in work, and took their memory."""
    goes_on = asyncio.Event()
    results: list[Any] = [MemoryError("too short"), memoryview(b"sound")]

    async def run(*_: object, **__: object) -> memoryview:
        result = results.pop(0)
        if isinstance(result, MemoryError):
            raise result
        await goes_on.wait()
        found: memoryview = result
        return found

    context: Any = SimpleNamespace(world=SimpleNamespace(workers=SimpleNamespace(run=run)))
    any_one: Any = SimpleNamespace()
    data, other_data = ProduceRequestPartition(index=0), ProduceRequestPartition(index=1)
    recompressor, job = Recompressor(context), Job(data, any_one, any_one, 0, any_one, 1)
    other = job._replace(data=other_data)
    working = asyncio.ensure_future(recompressor.run([job, other], asyncio.get_running_loop().time() + 9, "owner"))
    await asyncio.sleep(1)
    assert not working.done() and recompressor._slots.taken == 2
    goes_on.set()
    found = await working
    assert isinstance(found[id(job.data)].batch, Retryable) and found[id(other.data)].batch == b"sound"
    recompressor.release([job, other], "owner")
    assert not recompressor._slots.taken
