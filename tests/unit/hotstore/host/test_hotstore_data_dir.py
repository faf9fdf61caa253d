"""The data directory: one process, whose it is, what checkpoints say, how a log is deleted."""

from __future__ import annotations

import errno
import json

import pytest

from hotstore.errors import DamagedLog, DataDirLocked
from hotstore.host.data_dir import DataDir
from hotstore.host.offset_checkpoints import CHECKPOINTS
from hotstore.log.log_config import LogConfig
from hotstore.recovery.log_loading import make_log, recover_log
from logformat.checkpoints import LOG_START_FILE, RECOVERY_POINT_FILE, REPLICATION_FILE, decode_offsets
from logformat.errors import Corrupt
from logformat.values import NewerFormat, TopicPartition
from seams.files.disk import read_file
from seams.files.posix_disk import PosixDisk
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import (
    DATA,
    LOG_PATH,
    META,
    TOPIC_ID,
    append,
    batch,
    flush,
    new_log,
    open_log,
    read_all,
    seal,
)

CONFIG = LogConfig()
ORDERS = TopicPartition("orders", 0)


def test_a_second_process_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The lock is real on a real disk, and goes with `close`."""
    path = str(tmp_path_factory.mktemp("data"))
    first = DataDir.open(PosixDisk(), path)
    with pytest.raises(DataDirLocked, match="in use"):
        DataDir.open(PosixDisk(), path)
    first.close()
    DataDir.open(PosixDisk(), path).close()


def test_identity_is_kept_and_a_newer_one_refused() -> None:
    """meta.properties says whose the directory is; a version we do not know is not opened, and not changed."""
    disk = CrashDisk()
    directory = DataDir.open(disk, DATA)
    assert directory.meta is None
    directory.format(META)
    directory.close()
    again = DataDir.open(disk.crash(SeededRng(1), 0.0), DATA)
    assert again.meta == META
    newer = META.to_bytes().replace(b"version=1", b"version=2")
    file = disk.open(f"{DATA}/meta.properties", write=True)
    file.write_at(0, [newer])
    with pytest.raises(NewerFormat):
        DataDir.open(disk, DATA)
    assert read_file(disk, f"{DATA}/meta.properties") == newer
    file.write_at(0, [META.to_bytes()])
    DataDir.open(disk, DATA).close()  # the refusal let go of the lock


def test_the_clean_marker_stays_until_logs_may_be_written_and_then_goes_durably() -> None:
    """A crash of a process that wrote must not find the marker of the one before; one that was refused before it wrote
    leaves it. What was found at open is told all along."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    log.close(clean=True)
    directory.checkpoints.sample([log]).run()
    directory.mark_clean(broker_epoch=7)
    assert json.loads(read_file(disk, f"{DATA}/.kafka_cleanshutdown")) == {"version": 0, "brokerEpoch": 7}
    directory.close()
    after = disk.crash(SeededRng(1), 0.0)
    DataDir.open(after, DATA).close()
    after = after.crash(SeededRng(1), 0.0)
    directory = DataDir.open(after, DATA)
    assert directory.was_clean and directory.has_clean_marker
    directory.remove_clean_marker()
    assert directory.was_clean and not directory.has_clean_marker
    assert not DataDir.open(after.crash(SeededRng(1), 0.0), DATA).was_clean


def test_a_marker_that_could_not_be_taken_away_lets_no_log_be_opened() -> None:
    """The unlink may be undone by a power cut where the directory's sync failed."""
    disk = CrashDisk()
    directory = DataDir.open(disk, DATA)
    directory.mark_clean()
    directory.close()
    directory = DataDir.open(disk, DATA)
    disk.inject("sync_dir", errno.EIO)
    with pytest.raises(OSError):
        directory.remove_clean_marker()
    assert directory.has_clean_marker


def test_a_clean_stop_needs_no_scan() -> None:
    """No batch is read again; everything is there."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    batches: list[bytes] = []
    for count in (1, 2, 3):
        data = batch(count)
        append(log, data)
        batches.append(bytes(data))
    log.close(clean=True)
    directory.checkpoints.sample([log]).run()
    directory.mark_clean()
    _, again = open_log(disk.crash(SeededRng(1), 0.0), CONFIG)
    assert again.recovery.scanned_bytes == 0
    assert read_all(again, 0) == batches


def test_checkpoints_are_kafkas_and_hold_every_log() -> None:
    """Recovery point, log start and high watermark, a line each."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(5))
    flush(log)
    log.advance_log_start(2)
    directory.checkpoints.sample([log], {ORDERS: 4}).run()
    start, checksum = read_file(disk, f"{DATA}/log-start-offset-checkpoint").split(b"__thermocline.crc32c 0 ")
    assert start == b"0\n2\norders 0 2\n" and checksum.strip().isdigit()
    assert decode_offsets(read_file(disk, f"{DATA}/replication-offset-checkpoint"), "") == {ORDERS: 4}
    again = DataDir.open(disk.crash(SeededRng(1), 0.0), DATA)
    assert again.checkpoints.high_watermark(ORDERS) == 4
    assert recover_log(again, ORDERS, CONFIG, 0).log_start_offset == 2


def test_the_recovery_point_waits_for_the_epoch_checkpoint() -> None:
    """A sync alone does not make a new epoch durable: until its file is written, recovery must read the batches."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    append(log, batch(5), leader_epoch=3)
    flush(log)
    assert (log.flushed_end_offset, log.recovery_point) == (5, 0)
    job = log.durability.begin_seal(log.epochs)
    assert job is not None
    append(log, batch(1), leader_epoch=4)
    flush(log)
    job.run()
    log.durability.finish_seal(job, log.epochs)
    assert (log.flushed_end_offset, log.recovery_point) == (6, 5)


def test_entries_of_a_refused_log_stay() -> None:
    """Its recovery point is what tells damage from a torn tail at the next start as well."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(50))
    flush(log)
    seal(log)
    directory.checkpoints.sample([log]).run()
    other = make_log(directory, TopicPartition("other", 1), bytes(range(1, 17)), CONFIG)
    disk.flip_bit(f"{LOG_PATH}/{0:020d}.log", 100, 3)
    after = disk.kill()
    for _ in range(2):
        directory = DataDir.open(after, DATA)
        with pytest.raises(DamagedLog):
            recover_log(directory, ORDERS, CONFIG, 0)
        directory.checkpoints.sample([other]).run()
        directory.close()
        points = decode_offsets(read_file(after, f"{DATA}/recovery-point-offset-checkpoint"), "")
        assert points == {ORDERS: 50, TopicPartition("other", 1): 0}


def test_a_damaged_recovery_checkpoint_means_a_longer_scan_and_damaged_log_starts_a_refusal() -> None:
    """Forgetting log starts would bring deleted records back."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    directory.checkpoints.sample([log]).run()
    directory.close()
    disk.flip_bit(f"{DATA}/recovery-point-offset-checkpoint", 0, 7)
    directory = DataDir.open(disk, DATA)
    assert directory.checkpoints.damaged == ["recovery-point-offset-checkpoint"]
    directory.close()
    disk.flip_bit(f"{DATA}/log-start-offset-checkpoint", 0, 7)
    with pytest.raises(Corrupt):
        DataDir.open(disk, DATA)


def test_checkpoint_jobs_that_overtake_each_other_write_the_newest() -> None:
    """The broker and tiering make jobs independently: a late old one must not bring an older log start back."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(9))
    flush(log)
    older = directory.checkpoints.sample([log])
    log.advance_log_start(5)
    directory.checkpoints.sample([log]).run()
    older.run()
    assert decode_offsets(read_file(disk, f"{DATA}/log-start-offset-checkpoint"), "") == {ORDERS: 5}


def test_only_logs_are_listed() -> None:
    """Deleted directories apart, foreign names not at all."""
    disk = CrashDisk()
    directory, _ = new_log(disk, CONFIG)
    make_log(directory, TopicPartition("a-b.c", 12), bytes(range(1, 17)), CONFIG)
    for name in ("lost+found", "orders", "orders-x", "orders-01", "x-0.deadbeef-delete"):
        disk.make_dirs(f"{DATA}/{name}")
    disk.open(f"{DATA}/file-0", write=True, create=True)
    assert directory.partitions() == [TopicPartition("a-b.c", 12), ORDERS]


def test_a_deleted_topic_is_renamed_then_removed() -> None:
    """As Kafka does; a crash in between leaves a name that no start opens, and a new topic of that name is new."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(9))
    flush(log)
    directory.checkpoints.sample([log]).run()
    path = directory.mark_deleted("orders", 0, "ab" * 16)
    assert path == f"{DATA}/orders-0.{'ab' * 16}-delete"
    after = disk.crash(SeededRng(1), 0.0)
    directory = DataDir.open(after, DATA)
    assert directory.partitions() == [] and directory.deleted_directories() == [path]
    fresh = make_log(directory, ORDERS, bytes(range(1, 17)), CONFIG)
    assert fresh.log_end_offset == 0
    directory.remove_deleted(path)
    assert directory.deleted_directories() == []
    directory = DataDir.open(after.kill(), DATA)
    again = recover_log(directory, ORDERS, CONFIG, 0)
    assert again.log_end_offset == 0, "the old log's recovery point does not count for the new one"


def test_a_topic_created_again_after_its_deletion_opens_after_a_power_cut() -> None:
    """Its directory was renamed in this life, so its checkpoint lines were dropped from memory already: they have to
    go from the files too, or the new log is measured against the old one's recovery point and refused."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(9))
    flush(log)
    seal(log)
    directory.checkpoints.sample([log]).run()
    assert decode_offsets(read_file(disk, f"{DATA}/recovery-point-offset-checkpoint"), "") == {ORDERS: 9}
    directory.mark_deleted("orders", 0, "ab" * 16)
    fresh = make_log(directory, ORDERS, bytes(range(1, 17)), CONFIG)
    append(fresh, batch(2))
    flush(fresh)
    again = recover_log(DataDir.open(disk.crash(SeededRng(1), 0.0), DATA), ORDERS, CONFIG, 0)
    assert again.log_end_offset == 2


@pytest.mark.parametrize("file", [RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE])
def test_a_job_beside_a_deletion_does_not_take_entries_in_the_files_for_removed(file: str) -> None:
    """The deletion runs in a worker. A checkpoint job of another worker, between two of its steps, took the entries for
    removed, and the new log of that name began beside them: after a power cut the old log's high watermark counted."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(9))
    flush(log)
    seal(log)
    log.advance_log_start(3)
    checkpoints = directory.checkpoints
    checkpoints.sample([log], {ORDERS: 9}).run()

    class Dropped(set[TopicPartition]):
        def add(self, key: TopicPartition) -> None:
            super().add(key)
            checkpoints.save()

    for name in CHECKPOINTS:
        if name != file:
            checkpoints._offsets[name].pop(ORDERS, None)
    checkpoints._dropped = Dropped()
    directory.mark_deleted("orders", 0, "ab" * 16)
    checkpoints.forget(ORDERS)
    assert decode_offsets(read_file(disk, f"{DATA}/{file}"), "") == {}


def test_a_recovery_point_that_could_not_be_lowered_is_lowered_by_the_next_attempt() -> None:
    """A disk that was full for a moment: memory knows the lower one, the file does not yet."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(9))
    flush(log)
    seal(log)
    log.advance_log_start(3)
    directory.checkpoints.sample([log]).run()
    disk.inject("rename", errno.ENOSPC)
    with pytest.raises(OSError):
        directory.checkpoints.lower_recovery_point(ORDERS, 4)
    directory.checkpoints.lower_recovery_point(ORDERS, 4)
    assert decode_offsets(read_file(disk, f"{DATA}/recovery-point-offset-checkpoint"), "") == {ORDERS: 4}
    disk.inject("rename", errno.ENOSPC)
    with pytest.raises(OSError):
        directory.checkpoints.forget_log_start(ORDERS)
    directory.checkpoints.forget_log_start(ORDERS)
    assert decode_offsets(read_file(disk, f"{DATA}/log-start-offset-checkpoint"), "") == {}


def test_a_long_topic_name_is_cut_when_deleted() -> None:
    """A directory name has 255 bytes at most."""
    disk = CrashDisk()
    directory = DataDir.open(disk, DATA)
    topic = "t" * 249
    make_log(directory, TopicPartition(topic, 0), TOPIC_ID, CONFIG)
    path = directory.mark_deleted(topic, 0, "0" * 32)
    assert len(path.rsplit("/", 1)[1]) == 255
    assert directory.deleted_directories() == [path]


def test_an_interrupted_creation_is_finished_or_begun_again() -> None:
    """A directory without segments and without anything durable is a creation that a crash stopped."""
    disk = CrashDisk()
    directory, _ = new_log(disk, CONFIG)
    disk.unlink(f"{LOG_PATH}/{0:020d}.log")
    log = recover_log(directory, ORDERS, CONFIG, 0, TOPIC_ID)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    append(log, batch())


def test_nothing_of_a_removed_log_is_in_the_one_made_in_its_place_when_the_power_goes() -> None:
    """Of the simulated disk (seed 2049 of three brokers): the directory that was renamed takes its files with it, so a
    directory made anew under its name begins empty, whatever survives of what nothing synced."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(3))
    flush(log)
    log.close(clean=True)
    removed = directory.mark_deleted("orders", 0, "0" * 32)
    directory.remove_deleted(removed)
    disk.make_dirs(LOG_PATH)
    disk.open(f"{LOG_PATH}/{255:020d}.log", create=True, write=True).close()
    disk.sync_dir(LOG_PATH)
    disk.sync_dir(DATA)
    for keep in (0.0, 0.5, 1.0):
        for seed in range(5):
            after = disk.crash(SeededRng(seed), keep)
            assert after.list_dir(LOG_PATH) == [f"{255:020d}.log"]
