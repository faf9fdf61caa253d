"""Acks, visibility, refusals and pressure: what a produce is told, over whole brokers (C10, C11, C21, C24, C27)."""

from __future__ import annotations

import asyncio
import errno

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.net.dispatch import Later, Peer
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.leading.produce_backpressure import ProduceBackpressure
from broker.replication.leader import Leader
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from hotstore.flush.durability import SealJob
from logformat.errors import StorageFailed
from logformat.record_batch import ATTRIBUTES_AT, CRC_AT, HEADER, TRANSACTIONAL_BIT, Codec, read_header
from seams.loop.tasks import Tasks
from seams.loop.workers import Lane
from tests.support.brokers.broker_kit import (
    Life,
    Place,
    batch_of,
    decoded,
    fetch_request,
    parts_of,
    produce_request,
    values_of,
)


def resealed(batch: bytes, **fields: int) -> bytes:
    """`batch` with header fields replaced and a right CRC: a client's lie, not damage."""
    header = read_header(batch)._replace(**fields)
    changed = bytearray(HEADER.pack(*header) + batch[HEADER.size :])
    changed[CRC_AT:ATTRIBUTES_AT] = crc32c(memoryview(changed)[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(changed)


async def produced(life: Life, batch: bytes | None, topic: str = "log", **how: int) -> tuple[int, int]:
    """(error code, base offset) of one batch sent with acks=all, by a peer of its own: the general way answers it."""
    response = await life.call(ApiKey.PRODUCE, produce_request(topic, batch, **how), peer=Peer(9, "", "PLAINTEXT"))
    part = response.responses[0].partition_responses[0]
    return part.error_code, part.base_offset


# --- acks and visibility --------------------------------------------------------------------------------------------


async def test_acks_1_answers_after_the_write_acks_all_after_the_flush() -> None:
    """With `sync`, on a slow disk: acks=1 at once, acks=all when its bytes are durable, in one connection's order."""
    life = await Place().start()
    await life.create("log")
    life.workers.slow = True
    assert not isinstance(life.dispatch(ApiKey.PRODUCE, produce_request("log", batch_of(b"a"), acks=1)), Later)
    answer = life.dispatch(
        ApiKey.PRODUCE, produce_request("log", batch_of(b"b"), acks=-1), peer=Peer(2, "", "PLAINTEXT")
    )
    assert isinstance(answer, Later)
    assert not answer.blocks
    partition = life.partition("log")
    assert (partition.log.log_end_offset, partition.high_watermark) == (2, 0)
    part = decoded(ApiKey.PRODUCE, 9, await parts_of(answer)).responses[0].partition_responses[0]
    assert (part.error_code, part.base_offset) == (0, 1)
    assert partition.high_watermark == 2
    await life.stop()


async def test_with_os_the_page_cache_counts() -> None:
    """`thermocline.flush=os`: acks=all is answered while it is dispatched, and the record is visible."""
    life = await Place("thermocline.flush=os").start()
    await life.create("log")
    life.workers.slow = True
    answer = life.dispatch(ApiKey.PRODUCE, produce_request("log", batch_of(b"a")))
    assert not isinstance(answer, Later)
    assert values_of(await life.fetch("log", 0)) == [b"a"]
    assert life.partition("log").log.flushed_end_offset == 0
    await life.stop()


async def test_an_ack_that_takes_too_long_is_timed_out_and_may_still_come_true() -> None:
    """REQUEST_TIMED_OUT about timeout_ms later; the record stays, and becomes visible with the flush."""
    life = await Place().start()
    await life.create("log")
    run = life.workers.run
    gate = asyncio.Event()

    async def stuck(function: object, *args: object, **how: object) -> object:
        if how.get("lane") is Lane.FLUSH:
            await gate.wait()
        return await run(function, *args, **how)  # type: ignore[arg-type]

    life.workers.run = stuck  # type: ignore[method-assign,assignment]
    began = asyncio.get_running_loop().time()
    answer = life.dispatch(ApiKey.PRODUCE, produce_request("log", batch_of(b"a"), timeout_ms=3000))
    part = decoded(ApiKey.PRODUCE, 9, await parts_of(answer)).responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert 3.0 <= asyncio.get_running_loop().time() - began <= 5.0
    gate.set()
    await asyncio.sleep(2)
    assert values_of(await life.fetch("log", 0)) == [b"a"]
    await life.stop()


async def test_a_resend_whose_ack_never_comes_is_timed_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes nothing, so nothing but its own wait has its deadline looked at: without an end it kept every later
    answer of its connection behind it."""
    life = await Place().start()
    await life.create("log")
    monkeypatch.setattr(Leader, "_advance", lambda _: False)  # as while a member is silent
    batch = batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    loop = asyncio.get_running_loop()
    for _ in range(2):
        began = loop.time()
        async with asyncio.timeout(20):
            code, _ = await produced(life, batch, timeout_ms=3000)
        assert code == ErrorCode.REQUEST_TIMED_OUT
        assert 3.0 <= loop.time() - began <= 5.0
        await asyncio.sleep(5)  # until no tick looks at the log
    await life.crash()


async def test_the_high_watermark_never_falls_and_wakes_each_waiter_once() -> None:
    """`advance` with an older end does nothing; waiters up to the end are done, later ones stay."""
    life = await Place().start()
    await life.create("log")
    await life.produce("log", b"a", b"b")
    partition: LeaderReplica = life.partition("log")
    assert partition.visible(2, 0.0) is None
    near, far = partition.visible(3, 1e9), partition.visible(9, 1e9)
    assert near is not None
    assert far is not None
    woken: list[int] = []
    partition.watch(lambda: woken.append(partition.high_watermark))
    partition.flushed(1)
    assert (partition.high_watermark, woken) == (2, [])
    partition.flushed(5)
    assert near.done()
    assert not far.done()
    assert woken == [5]
    partition.waiters.fail(StorageFailed("gone"))
    with pytest.raises(StorageFailed):
        await far
    await life.crash()


# --- C10: a failed disk ---------------------------------------------------------------------------------------------


async def test_design_c10_a_failed_fsync_acknowledges_nothing_and_is_not_tried_again() -> None:
    """EIO once: whoever waits gets KAFKA_STORAGE_ERROR, later produces and reads too, until a restart."""
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.create("other")
    assert await produced(life, batch_of(b"safe")) == (0, 0)
    place.disk.inject("sync", errno.EIO, suffix=".log")
    assert (await produced(life, batch_of(b"lost")))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    place.disk.heal()
    for _ in range(3):  # the page cache says it is clean now; that is the trap
        assert (await produced(life, batch_of(b"again")))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await life.fetch("log", 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR  # offline, not half
    assert await produced(life, batch_of(b"x"), "other") == (0, 0)
    await life.crash()
    life = await place.start()
    code, offset = await produced(life, batch_of(b"new"))
    assert code == 0
    found = await life.read_all("log")
    assert found[0] == (0, b"safe")
    assert found[-1] == (offset, b"new")
    await life.stop()


async def test_a_full_disk_refuses_writes_and_goes_on_by_itself() -> None:
    """ENOSPC on write: refused, nothing half written, reads fine; with space again the next produce is taken."""
    place = Place()
    life = await place.start()
    await life.create("log")
    assert await produced(life, batch_of(b"a")) == (0, 0)
    place.disk.inject("write", errno.ENOSPC, suffix=".log", times=10)
    assert (await produced(life, batch_of(b"b")))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert values_of(await life.fetch("log", 0)) == [b"a"]
    place.disk.heal()
    await asyncio.sleep(2)
    assert await produced(life, batch_of(b"c")) == (0, 1)
    assert await life.read_all("log") == [(0, b"a"), (1, b"c")]
    await life.stop()


async def test_a_repeating_producer_whose_ack_fails_is_told_so() -> None:
    """The fast path answers a failed ack by its error too, and the connection stays."""
    place = Place()
    life = await place.start()
    await life.create("log")
    assert (await life.produce("log", b"a")).error_code == 0
    place.disk.inject("sync", errno.EIO, suffix=".log")
    for value in (b"b", b"c"):
        answer = await life.produce("log", value)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    place.disk.heal()
    await life.crash()


# --- C21, C24: what a client may not put into the log ---------------------------------------------------------------

GOOD = batch_of(b"one", b"two", b"three")


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (GOOD[:60], ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
        (GOOD + b"\0", ErrorCode.INVALID_RECORD),
        (GOOD + GOOD, ErrorCode.INVALID_RECORD),
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), ErrorCode.CORRUPT_MESSAGE),
        (resealed(GOOD, magic=1), ErrorCode.INVALID_RECORD),
        (resealed(GOOD, record_count=4), ErrorCode.INVALID_RECORD),
        (resealed(GOOD, record_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
        (resealed(GOOD, last_offset_delta=2_000_000_000), ErrorCode.INVALID_RECORD),
        (resealed(GOOD, attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (resealed(GOOD, producer_id=5), ErrorCode.INVALID_RECORD),
        (resealed(GOOD, length=2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
        (resealed(GOOD, length=-1), ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=[
        "none",
        "empty",
        "header-cut",
        "body-cut",
        "byte-behind",
        "two-batches",
        "bit-flip",
        "magic",
        "count-more",
        "count-none",
        "delta",
        "codec",
        "half-a-producer",
        "length-huge",
        "length-negative",
    ],
)
async def test_design_c21_a_batch_with_a_false_header_is_refused_and_breaks_nobody(
    batch: bytes | None, code: int
) -> None:
    """Count, length, magic, CRC, codec, producer fields: refused before a byte is written; the next one is fine."""
    life = await Place().start()
    await life.create("log")
    assert await produced(life, batch) == (code, -1)
    assert life.partition("log").log.log_end_offset == 0
    assert await produced(life, GOOD) == (0, 0)
    assert values_of(await life.fetch("log", 0)) == [b"one", b"two", b"three"]
    await life.stop()


async def test_design_c24_a_transactional_batch_of_nobody_is_refused() -> None:
    """Without a transactional id no coordinator is asked, so nobody would end it. A plain batch needs none."""
    life = await Place().start()
    await life.create("log")
    batch = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    assert read_header(batch).attributes & TRANSACTIONAL_BIT
    assert await produced(life, batch) == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
    request = produce_request("log", batch_of(b"a"))
    request.transactional_id = "tx"
    part = (await life.call(ApiKey.PRODUCE, request)).responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.NONE
    control = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0, control=True)
    assert (await produced(life, control))[0] == ErrorCode.INVALID_RECORD
    assert life.partition("log").log.log_end_offset == 1
    await life.stop()


async def test_zstd_needs_produce_7() -> None:
    """KIP-110: an older client could not read it back."""
    life = await Place().start()
    await life.create("log")
    request = produce_request("log", batch_of(b"a", codec=Codec.ZSTD))
    for version, code in ((6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)):
        part = (await life.call(ApiKey.PRODUCE, request, version)).responses[0].partition_responses[0]
        assert part.error_code == code
    await life.stop()


async def test_idempotence_over_resends_and_a_restart() -> None:
    """A resend gets its original offset, also after a crash; a gap is out of order; an older epoch is refused."""
    place = Place()
    life = await place.start()
    await life.create("log")

    def batch(sequence: int, epoch: int = 0) -> bytes:
        return batch_of(b"%d" % sequence, producer_id=7, producer_epoch=epoch, base_sequence=sequence)

    for at in range(5):
        assert await produced(life, batch(at)) == (0, at)
    assert await produced(life, batch(2)) == (0, 2)
    assert (await produced(life, batch(9)))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    await life.crash()
    life = await place.start()
    assert await produced(life, batch(4)) == (0, 4)
    assert await produced(life, batch(5)) == (0, 5)
    assert await produced(life, batch(0, epoch=1)) == (0, 6)
    assert (await produced(life, batch(6)))[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(await life.read_all("log")) == 7
    await life.stop()


async def test_more_in_sync_replicas_than_there_are_replicas_mean_all_of_them() -> None:
    """As Apache Kafka 4.3.1 does: with one replica, acks=all is that one's, whatever min.insync.replicas says. It was
    refused, also with the whole set in sync."""
    life = await Place().start()
    await life.create("log", min_insync_replicas="2")
    assert (await produced(life, batch_of(b"a"))) == (0, 0)
    assert (await produced(life, batch_of(b"a"), acks=1)) == (0, 1)
    await life.stop()


# --- C27: writes never meet a throttling kernel ---------------------------------------------------------------------


async def test_design_c27_a_log_over_its_dirty_budget_makes_its_own_producers_wait() -> None:
    """They wait for a flush before they get offsets; other logs and readers go on."""
    life = await Place("thermocline.flush=os").start()
    await life.create("full")
    await life.create("other")
    tiers = life.tiers
    throttle = ProduceBackpressure(life.broker._tasks, tiers.watch, dirty_bytes_max=3000)
    life.dispatcher.serve(replace(life.context, throttle=throttle))
    life.workers.slow = True
    sent = 0
    while not throttle.is_busy:
        assert await produced(life, batch_of(b"x" * 900), "full") == (0, sent)
        sent += 1
    assert life.partition("full").log.dirty_bytes > 3000
    waiting = [
        life.dispatch(ApiKey.PRODUCE, produce_request("full", batch_of(b"w%d" % at)), peer=Peer(at, "", "PLAINTEXT"))
        for at in range(3)
    ]
    assert all(isinstance(answer, Later) and answer.blocks for answer in waiting)
    assert life.partition("full").log.log_end_offset == sent  # no offset is given before there is room
    assert await produced(life, batch_of(b"y"), "other") == (0, 0)
    assert len(values_of(await life.fetch("full", 0))) == sent
    offsets = []
    for answer in waiting:
        part = decoded(ApiKey.PRODUCE, 9, await parts_of(answer)).responses[0].partition_responses[0]
        assert part.error_code == 0
        offsets.append(part.base_offset)
    assert offsets == [sent, sent + 1, sent + 2]
    assert life.partition("full").log.dirty_bytes <= 3000
    assert throttle.throttled_count == 3
    assert not throttle.is_busy
    await life.stop()


async def test_design_c27_a_log_that_fails_while_producers_wait_refuses_them() -> None:
    """They are told KAFKA_STORAGE_ERROR; their connections stay."""
    place = Place("thermocline.flush=os")
    life = await place.start()
    await life.create("full")
    tiers = life.tiers
    throttle = ProduceBackpressure(life.broker._tasks, tiers.watch, dirty_bytes_max=1000)
    life.dispatcher.serve(replace(life.context, throttle=throttle))
    place.disk.inject("sync", errno.EIO, suffix=".log")
    while not throttle.is_busy:
        await produced(life, batch_of(b"x" * 900), "full")
    assert (await produced(life, batch_of(b"w"), "full"))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    place.disk.heal()
    await life.crash()


async def test_a_throttle_without_pressure_costs_nothing_and_forgets() -> None:
    """No log over budget: nothing to wait for, nothing remembered."""

    class Calm:
        local_excess_ratio = 0.0

    throttle = ProduceBackpressure(Tasks(), Calm())
    assert throttle.wait(produce_request("log", b"x")) is None
    throttle.check_room()
    assert not throttle.is_busy


# --- the offsets topic ----------------------------------------------------------------------------------------------


async def test_group_offsets_survive_a_lost_disk_by_their_snapshot() -> None:
    """C7: commits older than the snapshot interval come back from the bucket alone."""
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.produce("log", b"a", b"b", b"c")

    async def committed(life: Life) -> int:
        request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="log", partition_indexes=[0])])
        for _ in range(100):
            answer = await life.call(ApiKey.OFFSET_FETCH, request, 5)
            if answer.error_code == 0:
                return int(answer.topics[0].partitions[0].committed_offset)
            await asyncio.sleep(0.1)
        raise AssertionError(answer)

    commit = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name="log", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=2)]
            )
        ],
    )
    assert await life.context.groups.find("g") is ErrorCode.NONE
    assert await committed(life) == -1
    assert (await life.call(ApiKey.OFFSET_COMMIT, commit, 8)).topics[0].partitions[0].error_code == 0
    assert await committed(life) == 2
    await asyncio.sleep(15)
    await life.crash()
    life = await place.start()
    assert await committed(life) == 2
    await life.crash()
    place.lose_disk()
    life = await place.start()
    assert await committed(life) == 2
    await life.stop()


async def test_a_clean_start_leaves_nothing_to_recover() -> None:
    """stop, start: the marker is read and taken away, the log serves the same bytes."""
    place = Place()
    life = await place.start()
    await life.create("log")
    for at in range(3):
        await produced(life, batch_of(b"%d" % at))
    await life.stop()
    assert place.disk.stat("/data/a/.kafka_cleanshutdown") is not None
    life = await place.start()
    assert place.disk.stat("/data/a/.kafka_cleanshutdown") is None
    assert [value for _, value in await life.read_all("log")] == [b"0", b"1", b"2"]
    request = fetch_request(("log", 0, 3), max_wait_ms=100)
    assert (await life.call(ApiKey.FETCH, request)).responses[0].partitions[0].error_code == 0
    await life.stop()


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("leader-epoch-checkpoint.tmp", []),  # sealing fails in the background, and only the log knows
        ("00000000000000000000.index.tmp", ["close log-0"]),
    ],
    ids=["sealing", "closing"],
)
async def test_a_stop_is_not_clean_when_the_disk_fails_after_the_flush(file: str, told: list[str]) -> None:
    """The records are durable, the small files beside them are not: with the marker the next start would believe
    these. It recovers instead, and has every record."""
    place = Place()
    life = await place.start()
    await life.create("log")
    run = life.workers.run

    async def seals_late(function: object, *args: object, **how: object) -> object:
        if isinstance(getattr(function, "__self__", None), SealJob):
            await asyncio.sleep(5.0)  # until after the flush of the stop
        return await run(function, *args, **how)  # type: ignore[arg-type]

    life.workers.run = seals_late  # type: ignore[method-assign,assignment]
    assert (await life.produce("log", b"a")).error_code == ErrorCode.NONE
    host = life.replicas
    assert host is not None
    reported: list[str] = []
    host._report = lambda name, failure: reported.append(name)
    place.disk.inject("write", errno.EIO, f"/log-0/{file}")
    await life.stop()
    assert place.disk.hits["fault:write"] == 1 and reported == told
    assert place.disk.stat("/data/a/.kafka_cleanshutdown") is None
    life = await place.start()
    assert [value for _, value in await life.read_all("log")] == [b"a"]
    await life.stop()
    assert place.disk.stat("/data/a/.kafka_cleanshutdown") is not None
