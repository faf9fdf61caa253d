"""The last data batch of each known producer stays in a compacted log, without records if all are superseded. So a copy
of the log, and snapshots that are made anew from it, know the producer's last sequence (G4; Kafka's LogCleaner,
lastRecordsOfActiveProducers)."""

from __future__ import annotations

from uuid import UUID

import pytest

from hotstore.errors import OutOfOrderSequence
from hotstore.file_names import PRODUCERS, SNAPSHOT
from hotstore.flush.durability import PendingSeal
from hotstore.host.lease import Lease
from hotstore.log.partition_log import PartitionLog
from hotstore.log.producer_state import Producers
from logformat.indexes.transaction_index import AbortedTransaction
from logformat.producer_snapshot import BatchRecord, ProducerEntry
from logformat.record_batch import BatchHeader, Codec, read_header, walk
from logformat.records import Record, encode_batch
from logformat.transaction_marker import TransactionMarker
from logformat.values import TopicPartition
from tests.support.disk.hotstore_kit import append, read_all
from tests.unit.hotstore.cleaning.test_log_cleaner import CONFIG, TABLE, Scene, table

PRODUCER = 9
PADS = [(b"k", b"newest%d" % n) for n in range(60)]


def batch_of(sequence: int, *, records: int = 1, codec: Codec = Codec.NONE, transactional: bool = False) -> bytearray:
    """A batch whose keys the pads supersede."""
    return bytearray(
        encode_batch(
            [Record(n, 900_000, b"k", b"p%d" % (sequence + n)) for n in range(records)],
            codec=codec,
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def send(log: PartitionLog, data: bytearray) -> int:
    """A transactional batch, by the leader; its offset."""
    view = memoryview(bytearray(data))
    return log.append_transactional(view, read_header(view), 1, 0).base_offset


def headers(lease: Lease) -> list[BatchHeader]:
    return [header for data in read_all(lease.log, 0) for _, header in walk(data)]


def empty(lease: Lease) -> list[int]:
    """Base offsets of the batches without records."""
    return sorted({header.base_offset for header in headers(lease) if header.record_count == 0})


async def copy_of(scene: Scene, source: Lease) -> Lease:
    """A replica that gets the log through fetch."""
    target = await scene.lent(TopicPartition("copy", 0), topic_id=UUID(int=6))
    for data in read_all(source.log, 0):
        fetched = [header for _, header in walk(data)]
        target.log.append_as_follower((bytes(data),), fetched, 0)
    assert target.log.log_end_offset == source.log.log_end_offset
    target.log.reserved_end = 10_000
    return target


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_a_resend_to_a_copy_of_a_cleaned_log_is_not_appended_twice(codec: Codec) -> None:
    scene = Scene()
    lease = await scene.lent()
    for sequence in (0, 3, 6):
        append(lease.log, batch_of(sequence, records=3, codec=codec), 1, scene.clock.wall_ms())
    before = headers(lease)[2]
    await scene.put(lease, PADS)
    assert await scene.clean()
    assert empty(lease) == [6]
    kept = next(header for header in headers(lease) if header.base_offset == 6)
    assert kept == before._replace(length=49, attributes=0, record_count=0, leader_epoch=1, crc=kept.crc)
    copy = await copy_of(scene, lease)
    for log in (lease.log, copy.log):
        resent = append(log, batch_of(6, records=3, codec=codec), 2, 5)
        assert resent.duplicate and (resent.base_offset, resent.last_offset) == (6, 8)
        assert not append(log, batch_of(9), 2, 5).duplicate


async def test_a_version_1_transaction_goes_on_at_a_copy_of_a_cleaned_log() -> None:
    scene = Scene()
    lease = await scene.lent()
    send(lease.log, batch_of(0, transactional=True))
    lease.log.append_markers([TransactionMarker(PRODUCER, 0, False, 0)], 1, 0)
    await scene.put(lease, PADS)
    assert await scene.clean()
    assert empty(lease) == [0]  # aborted
    copy = await copy_of(scene, lease)
    for log in (lease.log, copy.log):
        assert log.aborted_between(0, 5) == [AbortedTransaction(PRODUCER, 0, 1, 2)]
        send(log, batch_of(1, transactional=True))


async def test_snapshots_made_anew_from_a_cleaned_log_know_the_last_sequence() -> None:
    scene = Scene()
    lease = await scene.lent()
    append(lease.log, batch_of(0), 1, scene.clock.wall_ms())
    await scene.put(lease, PADS)
    assert await scene.clean()
    lease.end()
    await lease.returned()
    await scene.logs.close(lease.opened, clean=False)
    place = lease.log.directory.path
    for name in scene.disk.list_dir(place):
        if name.endswith((SNAPSHOT, PRODUCERS)):
            scene.disk.unlink(f"{place}/{name}")
    opened = await scene.logs.open(TABLE, lease.opened.topic_id, CONFIG)
    assert opened is not None
    again = scene.lend(opened)
    again.log.reserved_end = 10_000
    assert append(again.log, batch_of(0), 1, 5).duplicate


async def test_an_empty_batch_goes_when_its_producer_has_a_newer_one() -> None:
    scene = Scene()
    lease = await scene.lent()
    append(lease.log, batch_of(0), 1, scene.clock.wall_ms())
    await scene.put(lease, PADS)
    assert await scene.clean()
    assert empty(lease) == [0]
    newer = append(lease.log, batch_of(1), 1, scene.clock.wall_ms()).base_offset
    await scene.put(lease, PADS)
    assert await scene.clean()
    assert empty(lease) == [newer]
    lease.log.producers.expire(1 << 60)  # the log does not know the producer any more
    await scene.put(lease, PADS)
    assert await scene.clean()
    assert empty(lease) == []


async def test_a_lookup_by_time_passes_an_empty_batch() -> None:
    """The batch's greatest timestamp stays, as in Kafka; the record is gone."""
    scene = Scene()
    lease = await scene.lent()
    append(lease.log, batch_of(0), 1, scene.clock.wall_ms())
    await scene.put(lease, PADS)
    assert await scene.clean()
    assert empty(lease) == [0]
    first = table(lease)[0][0]
    found = lease.log.offset_for_timestamp(1_000)
    assert found is not None and found.offset == first
    assert lease.log.offset_for_timestamp(900_000) is None
    newest = lease.log.max_timestamp()
    assert newest is not None and (newest.timestamp, newest.offset) == (900_000, 0)


def test_the_last_offset_of_a_producer_is_that_of_its_newest_batch_below_the_end() -> None:
    """Batches at or above the end may be truncated."""

    def of(producer_id: int, *last_offsets: int) -> ProducerEntry:
        batches = tuple(BatchRecord(at, at, at, at, 0) for at in last_offsets)
        return ProducerEntry(producer_id, 0, batches, 0)

    producers = Producers(1_000, [of(1, 70, 75), of(2, 3, 40, 90), of(3), of(4, 99), of(5, 5), of(6, 80)])
    frozen = producers.at(100)
    assert frozen.last_offsets(80) == (5, 40, 75)
    assert frozen.last_offsets(100) == (5, 75, 80, 90, 99)


async def test_an_earlier_resend_to_a_copy_of_a_cleaned_log_is_refused() -> None:
    """As in Apache Kafka: the copy knows the last batch alone. Nothing is appended twice, and the producer goes on."""
    scene = Scene()
    lease = await scene.lent()
    for sequence in (0, 3, 6):
        append(lease.log, batch_of(sequence, records=3), 1, scene.clock.wall_ms())
    await scene.put(lease, PADS)
    assert await scene.clean()
    copy = await copy_of(scene, lease)
    assert append(lease.log, batch_of(3, records=3), 2, 5).base_offset == 3
    end = copy.log.log_end_offset
    with pytest.raises(OutOfOrderSequence):
        append(copy.log, batch_of(3, records=3), 2, 5)
    assert copy.log.log_end_offset == end
    assert append(copy.log, batch_of(9), 2, 5).base_offset == end


async def test_a_cut_back_to_a_cleaned_segment_forgets_no_batch_of_a_producer() -> None:
    """The segment that begins there goes. The producers at its base are kept: the cleaned batches below tell less."""
    scene = Scene()
    lease = await scene.lent()
    log = lease.log
    for sequence in (0, 3, 6):
        append(log, batch_of(sequence, records=3), 1, scene.clock.wall_ms())
    await scene.put(lease, PADS[:10])
    roll_point = log.active_info().base_offset
    assert log.log_end_offset > roll_point
    assert await scene.clean()
    assert [segment.base_offset for segment in log.sealed_runs()] == [0]
    assert empty(lease) == [6]
    await lease.truncate(roll_point)
    assert log.log_end_offset == roll_point
    for sequence in (0, 3, 6):
        resent = append(log, batch_of(sequence, records=3), 2, 5)
        assert resent.duplicate and resent.base_offset == sequence


async def test_a_segment_whose_producers_are_not_written_yet_is_not_cleaned() -> None:
    """A full disk may let recovery write a segment's indexes and not the producers at its end. A pass would remove
    batches that a start after a crash makes them from."""
    scene = Scene()
    lease = await scene.lent()
    log = lease.log
    append(log, batch_of(0), 1, scene.clock.wall_ms())
    await scene.put(lease, PADS)
    sealed = log.sealed_runs()
    assert len(sealed) > 2
    log.durability.add_seals([PendingSeal(None, log.producers.at(sealed[1].end_offset))])
    assert log.sealed_runs() == sealed[:1]
