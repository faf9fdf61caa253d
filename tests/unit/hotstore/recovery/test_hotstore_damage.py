"""One flipped bit anywhere, missing and foreign files: repaired or refused, not served, not deleted (faults D7, D8)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hotstore.errors import DamagedLog, ForeignLog
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.log_loading import recover_log
from logformat.errors import Corrupt
from logformat.record_batch import LEADER_EPOCH_AT, read_header
from logformat.values import NewerFormat
from seams.files.disk import read_file
from seams.rng import SeededRng
from tests.support.disk.crash_disk import PIECE_BYTES, CrashDisk
from tests.support.disk.hotstore_kit import (
    DATA,
    LOG_PATH,
    ORDERS,
    TOPIC_ID,
    append,
    batch,
    flush,
    new_log,
    open_log,
    read_all,
    seal,
)

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150)
COUNT = 24


def written(config: LogConfig = CONFIG, *, clean: bool) -> tuple[CrashDisk, list[bytes]]:
    """A log of several segments, everything durable; stopped in order, or killed."""
    disk = CrashDisk()
    directory, log = new_log(disk, config)
    batches: list[bytes] = []
    for number in range(COUNT):
        data = batch(2, size=20, timestamp=1000 * number, producer_id=3, epoch=0, sequence=2 * number)
        append(log, data, leader_epoch=number // 9, now_ms=number)
        batches.append(bytes(data))
    flush(log)
    seal(log)
    if clean:
        log.close(clean=True)
    directory.checkpoints.sample([log]).run()
    if clean:
        directory.mark_clean()
    return disk.crash(SeededRng(1), 0.0), batches


def flips(disk: CrashDisk, path: str) -> Iterator[CrashDisk]:
    """A copy of the disk for every byte of the file, one bit of it flipped."""
    chance = SeededRng(path)
    for position in range(len(read_file(disk, path))):
        damaged = disk.kill()
        damaged.flip_bit(path, position, chance.randrange(8))
        yield damaged


def without_epochs(batches: list[bytes]) -> list[bytes]:
    """The leader epoch is the one field that neither a CRC nor the order of offsets protects."""
    return [data[:LEADER_EPOCH_AT] + data[LEADER_EPOCH_AT + 4 :] for data in batches]


def test_a_flip_in_a_scanned_log_is_refused() -> None:
    """Below the recovery point nothing is cut: every byte of every header and payload is noticed."""
    one = LogConfig(segment_bytes=1 << 20, index_interval_bytes=150)
    disk, batches = written(one, clean=False)
    refused = 0
    for damaged in flips(disk, f"{LOG_PATH}/{0:020d}.log"):
        try:
            _, log = open_log(damaged, one)
        except DamagedLog:
            refused += 1
        else:
            assert without_epochs(read_all(log, 0)) == without_epochs(batches)
    assert refused > 0.97 * sum(map(len, batches))


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", ".producers"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_flip_beside_the_log_is_repaired_silently(suffix: str, clean: bool) -> None:
    """Indexes and snapshots can be rebuilt: whatever they say, reads and lookups by time answer the same."""
    disk, batches = written(clean=clean)
    names = [name for name in disk.list_dir(LOG_PATH) if name.endswith(suffix)]
    assert len(names) >= 3
    for name in (names[0], names[-1]):
        for damaged in flips(disk, f"{LOG_PATH}/{name}"):
            try:
                _, log = open_log(damaged, CONFIG)
            except NewerFormat:  # a version field that says so: refused, not overwritten
                continue
            check(log, batches)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_flip_in_the_greatest_time_of_an_early_record_is_noticed(suffix: str) -> None:
    """The greatest time was believed unless a record behind the last index entry was younger: with a lower one,
    retention deleted a segment that was not due, and look-ups by time passed it over."""
    disk, greatest_ms = CrashDisk(), 1_750_000_000_000
    directory, log = new_log(disk, CONFIG)
    append(log, batch(1, size=100, timestamp=greatest_ms))
    for _ in range(4):
        append(log, batch(1, size=100, timestamp=50))
    log.roll()
    append(log, batch(1, timestamp=50))
    flush(log)
    seal(log)
    log.close(clean=True)
    directory.checkpoints.sample([log]).run()
    directory.mark_clean()
    path = f"{LOG_PATH}/{0:020d}{suffix}"
    for position in range(len(read_file(disk, path))):
        for bit in range(8):
            damaged = disk.kill()
            damaged.flip_bit(path, position, bit)
            _, log = open_log(damaged, CONFIG)
            assert log.sealed_segments()[0].max_timestamp_ms == greatest_ms, (position, bit)
            found = log.offset_for_timestamp(3000)
            assert found is not None and found.offset == 0, (position, bit)


def test_a_flip_in_the_record_with_the_greatest_time_refuses_no_log() -> None:
    """Regression: a damaged batch with the greatest time contradicted the time index. The start then read the segment,
    found the damage and refused the log, although only this batch cannot be read."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    for number in range(5):
        append(log, batch(2, size=100, timestamp=9_000 if number == 1 else 50))
    log.roll()
    append(log, batch(1, timestamp=50))
    flush(log)
    seal(log)
    log.close(clean=True)
    directory.checkpoints.sample([log]).run()
    directory.mark_clean()
    path = f"{LOG_PATH}/{0:020d}.log"
    size = read_header(read_file(disk, path)).size
    greatest_ms = log.sealed_segments()[0].max_timestamp_ms
    for at in range(8 * size, 16 * size):
        damaged = disk.kill()
        damaged.flip_bit(path, at // 8, at % 8)
        _, log = open_log(damaged, CONFIG)
        assert log.sealed_segments()[0].max_timestamp_ms == greatest_ms, at


def check(log: PartitionLog, batches: list[bytes]) -> None:
    assert read_all(log, 0, max_bytes=200) == batches
    for offset in range(0, 2 * COUNT, 5):
        found = log.read(offset, 1, log.log_end_offset, min_one=True)
        assert found is not None
        assert found.file.read_at(found.position, found.length) == batches[offset // 2]
    for number in range(0, COUNT, 3):
        answer = log.offset_for_timestamp(1000 * number + 1)
        assert answer is not None and answer[:2] == (1000 * number + 1, 2 * number + 1)


def test_a_flip_in_the_epochs_is_noticed() -> None:
    """Epoch starts are compared with the batches they name; a file that lies is made again from the log."""
    disk, _ = written(clean=True)
    _, log = open_log(disk.kill(), CONFIG)
    wanted = log.epochs
    for damaged in flips(disk, f"{LOG_PATH}/leader-epoch-checkpoint"):
        try:
            _, log = open_log(damaged, CONFIG)
        except Corrupt as refusal:  # a version digit that says: newer than this program
            assert "version" in str(refusal)
        else:
            assert log.epochs == wanted


@pytest.mark.parametrize("name", ["meta.properties", "log-start-offset-checkpoint"])
def test_a_flip_in_identity_or_log_start_loses_nothing(name: str) -> None:
    """Either the directory is refused, or the log opens with all its bytes still there."""
    disk, batches = written(clean=False)
    size = len(read_file(disk, f"{LOG_PATH}/{0:020d}.log"))
    for damaged in flips(disk, f"{DATA}/{name}"):
        try:
            _, log = open_log(damaged, CONFIG)
        except Corrupt:
            pass
        else:
            assert read_all(log, log.local_log_start_offset)[-1] == batches[-1]
        assert len(read_file(damaged, f"{LOG_PATH}/{0:020d}.log")) == size


def test_a_flip_in_the_recovery_point_never_cuts_what_was_durable() -> None:
    """Sealed segments prove themselves by their five-batch files, whatever the checkpoint says."""
    disk, batches = written(clean=False)
    for damaged in flips(disk, f"{DATA}/recovery-point-offset-checkpoint"):
        try:
            _, log = open_log(damaged, CONFIG)
        except Corrupt:
            continue
        assert read_all(log, 0) == batches


def remove(disk: CrashDisk, name: str) -> None:
    disk.unlink(f"{LOG_PATH}/{name}")


def bases(disk: CrashDisk) -> list[str]:
    return [name for name in disk.list_dir(LOG_PATH) if name.endswith(".log")]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_segment_is_refused(clean: bool, which: int) -> None:
    """First, middle or last: the log is not opened around a hole, and nothing else is touched."""
    disk, _ = written(clean=clean)
    remove(disk, bases(disk)[which])
    before = disk.list_dir(LOG_PATH)
    with pytest.raises(DamagedLog):
        open_log(disk, CONFIG)
    assert disk.list_dir(LOG_PATH) == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("cut", [1, 70, 300])
def test_a_shorter_segment_is_refused(clean: bool, which: int, cut: int) -> None:
    """A file that lost its tail below the recovery point is damage, not a torn write."""
    disk, _ = written(clean=clean)
    path = f"{LOG_PATH}/{bases(disk)[which]}"
    file = disk.open(path, write=True)
    file.truncate(max(file.size() - cut, 0))
    file.sync()
    with pytest.raises(DamagedLog) as refusal:
        open_log(disk, CONFIG)
    assert refusal.value.file.startswith(LOG_PATH)


def test_missing_index_files_are_written_again() -> None:
    """All indexes gone: the log reads as before, and the files of sealed segments are back, byte for byte."""
    disk, batches = written(clean=False)
    names = [name for name in disk.list_dir(LOG_PATH) if name.endswith("index")]
    before = {name: read_file(disk, f"{LOG_PATH}/{name}") for name in names}
    for name in names:
        remove(disk, name)
    _, log = open_log(disk, CONFIG)
    check(log, batches)
    assert {name: read_file(disk, f"{LOG_PATH}/{name}") for name in names} == before


def test_zeros_are_not_the_end_of_the_log() -> None:
    """A file that grew by zeros is cut where they begin, when that is above the recovery point."""
    disk, batches = written(clean=False)
    path = f"{LOG_PATH}/{bases(disk)[-1]}"
    file = disk.open(path, write=True)
    file.write_at(file.size(), [bytes(4096)])
    file.sync()
    _, log = open_log(disk, CONFIG)
    assert log.log_end_offset == 2 * COUNT and log.recovery.truncated_bytes == 4096
    assert read_all(log, 0) == batches


def test_what_is_not_understood_stays() -> None:
    """Foreign names survive an opening, a roll and a clean stop; our own leftovers go."""
    disk, _ = written(clean=False)
    foreign = ["notes.txt", "00000000000000000000.log.bak", "42.log", "x.deleted", ".hidden", "a.tmp"]
    leftovers = [f"{0:020d}.log.deleted", f"{7:020d}.index", f"{7:020d}.timeindex.tmp", "leader-epoch-checkpoint.tmp"]
    for name in (*foreign, *leftovers):
        disk.open(f"{LOG_PATH}/{name}", write=True, create=True)
    _, log = open_log(disk, CONFIG)
    log.roll()
    log.close(clean=True)
    names = disk.list_dir(LOG_PATH)
    assert set(foreign) <= set(names)
    assert not set(leftovers) & set(names)


def test_a_half_finished_compaction_of_kafka_is_refused() -> None:
    """`.swap` files are the only copy of what they replace."""
    disk, _ = written(clean=False)
    disk.open(f"{LOG_PATH}/{0:020d}.log.swap", write=True, create=True)
    with pytest.raises(DamagedLog, match="Kafka"):
        open_log(disk, CONFIG)


def test_the_log_of_another_topic_is_refused() -> None:
    """A directory that carries another topic id holds another topic's records (C9)."""
    disk, _ = written(clean=False)
    directory, _ = open_log(disk, CONFIG)
    with pytest.raises(ForeignLog, match="topic id"):
        recover_log(directory, ORDERS, CONFIG, 0, bytes(reversed(TOPIC_ID)))


def test_recovery_starts_from_what_sealed_segments_prove() -> None:
    """With a recovery point that is far behind, only the active segment is read again."""
    disk, batches = written(clean=False)
    disk.unlink(f"{DATA}/recovery-point-offset-checkpoint")
    _, log = open_log(disk, CONFIG)
    assert read_all(log, 0) == batches
    assert log.recovery.scanned_bytes == log.active_info().bytes


def test_a_torn_batch_that_lost_its_base_offset_alone_is_cut_off() -> None:
    """No CRC covers a base offset, so what is left of the batch is a valid one at offset 0. A log ends where no batch
    with the expected offset follows: what was durable stays, and the torn batch is not served at another offset."""
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig())
    size = next(size for size in range(PIECE_BYTES) if len(batch(size=size)) == PIECE_BYTES - 8)
    kept = batch(size=size)
    append(log, kept)
    flush(log)
    append(log, batch(2))
    inode = disk._names[log.active_segment.file.path]
    inode.dirty.remove(0)  # the piece that ends with the second batch's base offset: the disk did not write it
    _, after = open_log(disk.crash(SeededRng(1), 1.0), LogConfig())
    assert after.log_end_offset == 1 and read_all(after, 0) == [bytes(kept)]
    assert "has offsets from 0 to 1, expected from 1 on" in after.recovery.truncated_reason
