"""A log's start moves without an append too, and a checkpoint says so: the next one, or the one before it is shown."""

from __future__ import annotations

import asyncio
import errno

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import DeleteRecordsRequest, DeleteRecordsRequestPartition, DeleteRecordsRequestTopic
from coldstore.stores.operations import Operation
from logformat.checkpoints import decode_offsets
from logformat.values import TopicPartition
from seams.files.disk import read_file
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Place
from tests.support.fast_loop import run_fast
from tests.support.store.faulty_store import Fault


def test_a_start_that_retention_moved_in_the_bucket_is_in_the_next_checkpoint() -> None:
    """Nothing is appended and no local segment goes: a broker killed later must not show the older start until it has
    read the root."""

    async def scenario() -> None:
        place = Place()
        life = await place.start()
        await life.create("log", **SMALL_SEGMENTS)
        for _ in range(30):
            await life.produce("log", b"x" * 200)
        await asyncio.sleep(300.0)
        log = life.partition("log").log
        assert log.log_start_offset == 0 < log.local_log_start_offset
        configs = {**life.context.registry.topics["log"].configs, "retention.bytes": "1500"}
        await life.context.controller.set_configs("log", lambda _: configs)
        await asyncio.sleep(300.0)
        assert 0 < log.log_start_offset < log.local_log_start_offset
        starts = decode_offsets(read_file(place.disk, "/data/a/log-start-offset-checkpoint"), "")
        assert starts[TopicPartition("log", 0)] == log.log_start_offset
        await life.stop()

    run_fast(scenario(), timeout_s=7200.0)


async def test_a_start_that_could_not_be_made_durable_is_shown_to_nobody() -> None:
    """The disk was full: DeleteRecords was answered with an error, and readers saw the new start all the same. A broker
    killed then showed the deleted records again (G9)."""
    place = Place()
    life = await place.start()
    await life.create("log", remote_storage_enable="false")
    for value in (b"a", b"b", b"c"):
        await life.produce("log", value)
    wanted = DeleteRecordsRequestTopic("log", [DeleteRecordsRequestPartition(0, 2)])
    place.disk.inject("write", errno.ENOSPC, "log-start-offset-checkpoint.tmp", times=-1)
    answer = await life.call(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[wanted], timeout_ms=1000))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    shown = (await life.fetch("log", 2)).log_start_offset
    await life.crash()
    place.kill()
    life = await place.start()
    assert (await life.fetch("log", 2)).log_start_offset >= shown == 0
    answer = await life.call(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[wanted], timeout_ms=1000))
    assert answer.topics[0].partitions[0].error_code == 0
    await life.crash()
    place.power_cut()
    life = await place.start()
    assert (await life.fetch("log", 2)).log_start_offset == 2
    await life.crash()


async def test_a_checkpoint_beside_a_start_that_becomes_durable_does_not_take_it_back() -> None:
    """Sampled while the new start was being written, with the old one; written last, it was what a kill left."""
    place = Place()
    life = await place.start()
    await life.create("log", remote_storage_enable="false")
    for value in (b"a", b"b", b"c"):
        await life.produce("log", value)
    replicas, partition = life.replicas, life.partition("log")
    raising = asyncio.get_running_loop().create_task(partition.tier.delete_records(2))
    while partition.log.pending_start_offset != 2:
        await asyncio.sleep(0)
    assert partition.log_start_offset == 0
    await asyncio.gather(raising, replicas.checkpointing.checkpoint())
    assert partition.log_start_offset == 2
    await life.crash()
    place.power_cut()
    life = await place.start()
    assert (await life.fetch("log", 2)).log_start_offset == 2
    await life.crash()


async def test_a_start_that_only_the_root_holds_is_made_durable_here_before_it_is_answered() -> None:
    """The first DeleteRecords moved the root's start and failed after that. The second found nothing to move and was
    answered at once; a broker killed then showed the deleted records again, until it had read the root (G9)."""
    place = Place()
    life = await place.start()
    await life.create("log", remote_storage_enable="true")
    for value in (b"a", b"b", b"c"):
        await life.produce("log", value)
    wanted = DeleteRecordsRequestTopic("log", [DeleteRecordsRequestPartition(0, 2)])
    place.disk.inject("write", errno.ENOSPC, "log-start-offset-checkpoint.tmp")
    codes = []
    for _ in range(2):
        answer = await life.call(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[wanted], timeout_ms=1000))
        codes.append(answer.topics[0].partitions[0].error_code)
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
    await life.crash()
    place.power_cut()
    place.store.script(Operation.GET, Fault.BEFORE, match="/0/manifest.json", times=100)
    life = await place.start()
    assert (await life.fetch("log", 2)).log_start_offset == 2
    await life.crash()
