"""New epochs, cuts and starts elsewhere: what a log is afterwards, on disk too, and what its readers get."""

from __future__ import annotations

import pytest

from hotstore.errors import DamagedLog, LeaderEpochFenced
from hotstore.local_files import producer_files_above
from hotstore.log.locator import LogSlice
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from logformat.leader_epochs import EpochEnd, EpochStart, LeaderEpochs
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk, CrashFile
from tests.support.disk.hotstore_kit import LOG_PATH, ORDERS, append, batch, flush, new_log, open_log, read_all, seal

CONFIG = LogConfig(segment_bytes=600, tiered=True)
NOW_MS = 1_700_000_000_000


def log_of_epochs(disk: CrashDisk, *epochs: int, config: LogConfig = CONFIG) -> PartitionLog:
    """A log with one batch of 4 records by each of `epochs`; by `CONFIG` each has a segment of its own."""
    _, log = new_log(disk, config)
    for epoch in epochs:
        append(log, batch(4, size=60), epoch)
    return log


def taken(log: PartitionLog, offset: int) -> LogSlice:
    found = log.read(offset, 1 << 20, log.log_end_offset, min_one=True)
    assert found is not None
    return found


def bytes_of(found: LogSlice) -> bytes:
    return found.file.read_at(found.position, found.length)


# ── epochs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_epoch_enters_the_lineage_before_its_first_record() -> None:
    """KIP-279: asked for it, the log answers its end; the epoch before ends where it begins."""
    log = log_of_epochs(CrashDisk(), 2)
    log.begin_epoch(5)
    assert log.leader_epoch == 5 and log.epochs.entries == ((2, 0), (5, 4))
    assert log.epochs.end_offset_for(5, log.log_end_offset) == EpochEnd(5, 4)
    assert log.epochs.end_offset_for(4, log.log_end_offset) == EpochEnd(2, 4)
    append(log, batch(2), 5)
    assert log.epochs.entries == ((2, 0), (5, 4)) and log.log_end_offset == 6


def test_an_epoch_without_records_gives_way_to_the_next() -> None:
    """Leaderships that wrote nothing leave no trace; an older leader is refused, the same one again changes nothing."""
    log = log_of_epochs(CrashDisk(), 2)
    log.begin_epoch(5)
    log.begin_epoch(5)
    log.begin_epoch(7)
    assert log.epochs.entries == ((2, 0), (7, 4))
    with pytest.raises(LeaderEpochFenced):
        log.begin_epoch(6)
    with pytest.raises(LeaderEpochFenced):
        append(log, batch(), 6)


def test_an_epoch_that_the_checkpoint_names_survives_every_opening() -> None:
    """It begins at the log's end, where recovery finds no batch of it: after a stop, after kill -9 and a power cut."""
    disk = CrashDisk()
    log = log_of_epochs(disk, 2)
    flush(log)
    log.begin_epoch(5)
    log.roll()  # what makes the checkpoint be written
    flush(log)
    seal(log)
    for cut in (disk.kill(), disk.crash(SeededRng(1), 0.0)):
        directory, found = open_log(cut, CONFIG)
        assert found.epochs.entries == ((2, 0), (5, 4)) and found.leader_epoch == 5
        found.close(clean=True)
        directory.checkpoints.sample([found]).run()
        directory.mark_clean()
        directory.close()
        directory, found = open_log(cut.crash(SeededRng(2), 0.0), CONFIG)
        assert directory.was_clean and found.epochs.entries == ((2, 0), (5, 4))


def test_to_begin_an_epoch_costs_no_sync_and_a_stop_does_not_either() -> None:
    """5 000 partitions begin to lead at every start, and most of them are not written to before the next."""
    disk = CrashDisk()
    log_of_epochs(disk, 2).close(clean=True)
    disk = disk.kill()
    _, log = open_log(disk, CONFIG)
    before = disk.hits["sync"]
    log.begin_epoch(5)
    log.close(clean=True)
    assert disk.hits["sync"] == before


@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_an_epoch_that_a_power_cut_forgot_changes_no_answer(keep: float) -> None:
    """Whoever leads next has a later epoch; what it answers is the same whether the forgotten one stands or not."""
    disk = CrashDisk()
    log = log_of_epochs(disk, 2)
    flush(log)
    log.begin_epoch(5)
    told = [log.epochs.end_offset_for(epoch, log.log_end_offset).end_offset for epoch in range(2, 6)]
    _, found = open_log(disk.crash(SeededRng(3), keep), CONFIG)
    found.begin_epoch(6)
    log.begin_epoch(6)
    assert found.epochs == log.epochs
    assert [found.epochs.end_offset_for(e, found.log_end_offset).end_offset for e in range(2, 6)] == told


def test_epochs_below_the_log_start_go_and_the_log_opens_without_reading_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked for one of them, the log answers where it starts, as Kafka does; recovery believes the short checkpoint."""
    disk = CrashDisk()
    directory, log = new_log(disk, LogConfig(segment_bytes=60_000))
    for epoch in (1, 2, 2, 3):
        for _ in range(100):
            append(log, batch(4, size=60), epoch)
        log.roll()
    log.advance_log_start(601)
    assert log.epochs.entries == ((2, 601), (3, 1200))
    assert log.epochs.end_offset_for(1, log.log_end_offset) == EpochEnd(1, 601)
    log.close(clean=True)
    directory.checkpoints.sample([log]).run()
    directory.mark_clean()
    directory.close()
    whole_bytes, read_bytes = log.local_bytes, 0
    read_at = CrashFile.read_at

    def counted(file: CrashFile, position: int, length: int) -> bytes:
        nonlocal read_bytes
        found = read_at(file, position, length)
        read_bytes += len(found)
        return found

    monkeypatch.setattr(CrashFile, "read_at", counted)
    _, found = open_log(disk, LogConfig(segment_bytes=60_000))
    assert found.epochs == log.epochs
    assert read_bytes < whole_bytes / 2, (read_bytes, whole_bytes)


# ── cuts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("above", [0, 3])
def test_a_cut_to_the_end_takes_the_epochs_that_begin_there(above: int) -> None:
    """KAFKA-10706: who led without writing would look diverged for ever. The file loses the epoch as well."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    log.start_at(40, LeaderEpochs((EpochStart(2, 0), EpochStart(4, 40))), ())
    log.truncate_to(40 + above, NOW_MS)
    assert log.epochs.entries == ((2, 0),) and log.log_end_offset == 40
    append(log, batch(), 3)
    _, found = open_log(disk.crash(SeededRng(1), 0.0), CONFIG)
    assert found.leader_epoch == 2, "durable when it returned"


def test_a_cut_takes_epochs_and_brings_everything_down() -> None:
    """Log start, flushed end and recovery point never lie above the log's end."""
    disk = CrashDisk()
    log = log_of_epochs(disk, 1, 2, 3)
    flush(log)
    log.advance_log_start(9)
    log.truncate_to(6, NOW_MS)
    assert (log.log_start_offset, log.flushed_end_offset, log.recovery_point, log.log_end_offset) == (4, 4, 4, 4)
    assert log.epochs.entries == () and log.dirty_bytes == 0
    append(log, batch(4), 2)
    assert log.epochs.entries == ((2, 4),) and log.log_end_offset == 8


def test_a_cut_to_the_first_local_batch_keeps_the_producers() -> None:
    """The log starts anew at its local start: a producer's resend of what lies below is still known."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    first = batch(4, size=60, producer_id=9, epoch=0, sequence=0)
    append(log, bytearray(first))
    append(log, batch(4, size=60, producer_id=9, epoch=0, sequence=4))
    log.roll()
    append(log, batch(4, size=60, producer_id=9, epoch=0, sequence=8))
    flush(log)
    seal(log)
    log.delete_local_before(8)
    log.unlink()
    log.advance_log_start(8)
    assert log.local_log_start_offset == 8
    log.truncate_to(8, NOW_MS)
    again = append(log, bytearray(first))
    assert again.duplicate and again.base_offset == 0
    _, found = open_log(disk.crash(SeededRng(1), 0.0), CONFIG)
    assert append(found, bytearray(first)).duplicate


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_cut_to_where_a_segment_begins_keeps_the_producers_there(is_lost: bool) -> None:
    """Their files stay. Where they were lost they are written again, or a restart of a log whose older segments went
    knew nobody, and appended a resend."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    first = batch(4, size=60, producer_id=9, epoch=0, sequence=0)
    append(log, bytearray(first))
    log.roll()
    append(log, batch(4, size=60, producer_id=8, epoch=0, sequence=0))
    flush(log)
    seal(log)
    if is_lost:
        for name in producer_files_above(log.directory.list(), 0):
            log.directory.unlink(name)
    log.truncate_to(4, NOW_MS)
    kept = log.producer_snapshot_at(4)
    assert kept is not None and [entry.producer_id for entry in kept.producers] == [9]
    seal(log)
    log.delete_local_before(4)
    log.unlink()
    assert log.local_log_start_offset == 4
    _, found = open_log(disk.kill(), CONFIG)
    assert append(found, bytearray(first)).duplicate


def test_a_cut_below_the_local_start_starts_there() -> None:
    """Nothing local is left: the log goes on empty at the offset it was cut to."""
    log = log_of_epochs(CrashDisk(), 1, 2, 3)
    flush(log)
    seal(log)
    log.delete_local_before(8)
    log.unlink()
    assert log.local_log_start_offset >= 4
    log.truncate_to(3, NOW_MS)
    assert (log.log_end_offset, log.local_log_start_offset, log.local_bytes) == (3, 3, 0)
    assert log.epochs.entries == ((1, 0),)


# ── readers that were there ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("config", [CONFIG, LogConfig(segment_bytes=60_000)], ids=["three segments", "one"])
@pytest.mark.parametrize("cut", range(13))
def test_cluster_d26_a_slice_taken_before_a_cut_never_shows_what_came_after_it(cut: int, config: LogConfig) -> None:
    """D26: a connection may still be sending it. It gets the bytes it was answered, or the file ends before them."""
    log = log_of_epochs(CrashDisk(), 1, 1, 1, config=config)
    before = {offset: taken(log, offset) for offset in (0, 4, 8)}
    answered = {offset: bytes_of(found) for offset, found in before.items()}
    log.truncate_to(cut, NOW_MS)
    end = log.log_end_offset
    for _ in range(4):
        append(log, batch(4, size=60, fill=b"n"), 2)
    for offset, found in before.items():
        now = bytes_of(found)
        assert now == answered[offset][: len(now)], "only what was answered"
        assert now or offset >= end, "what stays is sent on"


def test_a_file_that_lost_its_end_is_not_written_to_again() -> None:
    """The log goes on in a new segment, and both are opened again as they are."""
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(segment_bytes=60_000))
    for _ in range(3):
        append(log, batch(4), 1)
    flush(log)
    log.truncate_to(8, NOW_MS)
    append(log, batch(4), 2)
    assert [segment.base_offset for segment in log.sealed_segments()] == [0] and log.active_info().base_offset == 8
    assert disk.stat(f"{LOG_PATH}/{8:020d}.log") is not None
    kept = read_all(log, 0)
    flush(log)
    seal(log)
    for cut in (disk.kill(), disk.crash(SeededRng(4), 0.0)):
        _, found = open_log(cut, LogConfig(segment_bytes=60_000))
        assert read_all(found, 0) == kept and found.epochs.entries == ((1, 0), (2, 8))


def test_what_is_resent_after_a_cut_is_known() -> None:
    """A producer whose last batch stays, in a segment that has no snapshot behind it, sends that batch again: it was
    counted as seen at 0, forgotten as silent for fifty years, and its batch was written twice (simulated seed 8 of
    several brokers)."""
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(segment_bytes=60_000))
    for number in range(3):
        append(log, batch(2, producer_id=7, epoch=0, sequence=2 * number), 1, NOW_MS)
    flush(log)
    log.truncate_to(4, NOW_MS + 5)
    log.producers.expire(NOW_MS + 10)
    again = append(log, batch(2, producer_id=7, epoch=0, sequence=2), 2, NOW_MS + 10)
    assert again.duplicate and again.base_offset == 2 and log.log_end_offset == 4
    assert not append(log, batch(2, producer_id=7, epoch=0, sequence=4), 2, NOW_MS + 10).duplicate


def test_a_log_is_cut_where_a_read_found_it_damaged_and_is_sound_then() -> None:
    """An unclean start keeps what lies before the damage. The cut looked for its place by walking over it, and was
    refused for ever; and what was written since counted as damaged for as long as the process lived."""
    disk, config = CrashDisk(), LogConfig(index_interval_bytes=50)
    directory, log = new_log(disk, config)
    for _ in range(10):
        append(log, batch(1))
    flush(log)
    log.close(True)
    directory.checkpoints.sample([log]).run()
    directory.mark_clean()
    directory.close()
    path = f"{LOG_PATH}/{0:020}.log"
    stat = disk.stat(path)
    assert stat is not None
    disk.flip_bit(path, stat.size // 10 * 5 + 7, 3)  # in the base offset of the sixth batch
    directory, log = open_log(disk, config)
    with pytest.raises(DamagedLog):
        log.check(taken(log, 0))
    assert log.sound_end_offset == 5
    directory.checkpoints.lower_recovery_point(ORDERS, 5)
    log.truncate_to(5, NOW_MS)
    assert log.log_end_offset == log.sound_end_offset == 5
    for _ in range(20):
        append(log, batch(1), 1)
    flush(log)
    assert log.sound_end_offset == log.log_end_offset == 25
    log.check(taken(log, 0))
