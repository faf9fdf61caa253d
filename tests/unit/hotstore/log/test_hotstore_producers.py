"""Idempotence: sequences, epochs, resends of the last five, wraparound, expiry, and that state survives."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstore.errors import DuplicateSequence, InvalidProducerEpoch, OutOfOrderSequence
from hotstore.file_names import PRODUCERS, SNAPSHOT, TEMPORARY, offset_file
from hotstore.flush.durability import write_producer_files, write_whole
from hotstore.local_files import remove_files
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from hotstore.log.producer_state import Producers, Resent
from hotstore.log.segment import IndexCache
from hotstore.recovery.producer_files import load_producers, read_own_producers
from logformat.producer_snapshot import ProducerEntry, decode_kafka_snapshot, encode_producer_state
from logformat.record_batch import INT32_MAX, BatchHeader, read_header
from seams.files.disk import read_file
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import LOG_PATH, append, batch, flush, new_log, open_log, seal

CONFIG = LogConfig(segment_bytes=700, producer_id_expiration_ms=1_000)


def header(sequence: int, count: int = 1, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return read_header(batch(count, producer_id=producer_id, epoch=epoch, sequence=sequence))


def check(producers: Producers, one: BatchHeader, now_ms: int) -> Resent | None:
    """None: it may be appended."""
    found = producers.admit([one], 0, now_ms)
    return found if isinstance(found, Resent) else None


def remember(producers: Producers, one: BatchHeader, base_offset: int, now_ms: int) -> None:
    producers.replay(one._replace(base_offset=base_offset), now_ms)


def test_the_first_batch_of_an_unknown_producer_may_have_any_sequence() -> None:
    """As Kafka since KIP-360: the log may have forgotten the producer, retention takes records away."""
    assert check(Producers(1_000), header(42), 0) is None


def test_sequences_go_on_and_wrap_at_two_to_the_31() -> None:
    """After 2^31−1 comes 0, also inside a batch."""
    producers = Producers(1_000)
    remember(producers, header(INT32_MAX - 1, count=3), 10, 0)  # 2^31−2, 2^31−1, 0
    assert check(producers, header(1), 0) is None
    with pytest.raises(OutOfOrderSequence):
        check(producers, header(2), 0)
    found = check(producers, header(INT32_MAX - 1, count=3), 0)
    assert found is not None and found == (10, 12)
    remember(producers, header(INT32_MAX), 20, 0)
    assert check(producers, header(0), 0) is None


def test_the_last_five_are_answered_and_older_ones_named() -> None:
    """A resend of any of five gets its offsets; one before them is a duplicate without offset; one ahead is a gap."""
    producers = Producers(1_000)
    for number in range(8):
        remember(producers, header(2 * number, count=2), 100 + 2 * number, 0)
    for number in range(3, 8):
        found = check(producers, header(2 * number, count=2), 0)
        assert found is not None and found.first_offset == 100 + 2 * number
    for number in range(3):
        with pytest.raises(DuplicateSequence):
            check(producers, header(2 * number, count=2), 0)
    with pytest.raises(OutOfOrderSequence):
        check(producers, header(18), 0)
    with pytest.raises(OutOfOrderSequence):
        check(producers, header(14, count=1), 0)  # a known sequence, but not the batch it came in


def test_what_was_refused_before_the_first_batch_is_no_duplicate() -> None:
    """A new producer has five in flight, the first is refused (too large, a full disk) and the others are taken: told
    "duplicate" for its first one a client calls it written, and its records are nowhere. Kafka says out of order."""
    producers = Producers(1_000)
    for number in range(1, 5):
        assert check(producers, header(2 * number, count=2), 0) is None
        remember(producers, header(2 * number, count=2), 2 * number, 0)
        for refused in (header(0, count=2), header(1)):  # as it was, and the second half of it, split
            with pytest.raises(OutOfOrderSequence):
                check(producers, refused, 0)


def test_epochs_fence() -> None:
    """A lower epoch is refused, a higher one begins at 0 and forgets the older batches."""
    producers = Producers(1_000)
    remember(producers, header(0, epoch=3), 0, 0)
    with pytest.raises(InvalidProducerEpoch):
        check(producers, header(1, epoch=2), 0)
    with pytest.raises(OutOfOrderSequence):
        check(producers, header(1, epoch=4), 0)
    assert check(producers, header(0, epoch=4), 0) is None
    remember(producers, header(0, epoch=4), 1, 0)
    assert check(producers, header(1, epoch=4), 0) is None


def test_silent_producers_are_forgotten() -> None:
    """By the time since they were seen, whatever their records' timestamps say."""
    producers = Producers(1_000)
    remember(producers, read_header(batch(timestamp=1, producer_id=7, epoch=0, sequence=0)), 0, 5_000)
    assert check(producers, header(0), 6_000) is not None
    assert check(producers, header(9), 6_001) is None
    assert producers.expire(6_000) == 0 and producers.expire(6_001) == 1


def test_batches_of_one_append_are_checked_together() -> None:
    """Each after the ones before it; nothing is remembered by asking; all resent is a resend, some is refused."""
    producers = Producers(1_000)
    assert not isinstance(producers.admit([header(0, 2), header(2, 2)], 0, 0), Resent)
    assert len(producers) == 0
    with pytest.raises(OutOfOrderSequence):
        producers.admit([header(0, 2), header(3)], 0, 0)
    remember(producers, header(0, 2), 0, 0)
    remember(producers, header(2, 2), 2, 0)
    assert producers.admit([header(0, 2), header(2, 2)], 4, 0) == Resent(0, 3)
    for beside in (header(4), read_header(batch())):
        with pytest.raises(OutOfOrderSequence):
            producers.admit([header(2, 2), beside], 4, 0)


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(-1, 1), st.integers(0, 1), st.integers(0, 12), st.integers(1, 3)),
            min_size=1,
            max_size=8,
        ),
        max_size=12,
    ),
    st.integers(0, 300),
)
def test_a_run_is_judged_as_its_batches_one_by_one(runs: list[list[tuple[int, int, int, int]]], apart_ms: int) -> None:
    """Producers by turns, epochs that go on and back, resends inside a run, long silences: what a run leaves is what
    its batches leave, and it is refused where one of them is, or where some are resends and some are not."""
    runs_of, singly = Producers(1_000), Producers(1_000)
    end, now_ms = 0, 0
    for run in runs:
        now_ms += apart_ms
        headers = [
            header(sequence, count, epoch, producer) if producer >= 0 else read_header(batch(count))
            for producer, epoch, sequence, count in run
        ]
        trial = Producers(1_000, singly.at(0).state().producers)
        answers: list[Resent | None] = []
        offset = end
        try:
            for one in headers:
                found = trial.admit([one], offset, now_ms) if one.producer_id >= 0 else {}
                if not isinstance(found, Resent):
                    trial.record(found)
                answers.append(found if isinstance(found, Resent) else None)
                offset += one.last_offset_delta + 1
        except (OutOfOrderSequence, InvalidProducerEpoch, DuplicateSequence) as refusal:
            if not any(answers):
                with pytest.raises(type(refusal)):
                    runs_of.admit(headers, end, now_ms)
            continue
        if any(answers) and not all(answers):
            with pytest.raises(OutOfOrderSequence):
                runs_of.admit([tuple(one) for one in headers], end, now_ms)  # type: ignore[misc]
            continue
        found = runs_of.admit(headers, end, now_ms)
        if isinstance(found, Resent):
            assert answers[0] is not None and answers[-1] is not None
            assert found == (answers[0].first_offset, answers[-1].last_offset)
            continue
        runs_of.record(found)
        singly, end = trial, offset
        assert runs_of.at(end) == singly.at(end)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(0, INT32_MAX), st.integers(0, 11))
def test_any_recent_resend_gets_its_first_offsets(counts: list[int], first: int, which: int) -> None:
    """Against a list: wherever the sequences begin, also across the wrap."""
    producers = Producers(1_000)
    sequence, offset = first, 0
    sent: list[tuple[BatchHeader, int]] = []
    for count in counts:
        data = header(sequence, count)
        assert check(producers, data, 0) is None
        remember(producers, data, offset, 0)
        sent.append((data, offset))
        sequence = (sequence + count) & INT32_MAX
        offset += count
    data, base = sent[which % len(sent)]
    if (len(sent) - which % len(sent)) <= 5:
        found = check(producers, data, 0)
        assert found is not None and found.first_offset == base
    else:
        with pytest.raises(DuplicateSequence):
            check(producers, data, 0)


def produce(log: PartitionLog, numbers: range) -> None:
    for number in numbers:
        append(log, batch(2, producer_id=7, epoch=1, sequence=2 * number), now_ms=100)


def resends_are_known(log: PartitionLog, newest: int) -> None:
    for number in range(newest - 4, newest + 1):
        done = append(log, batch(2, producer_id=7, epoch=1, sequence=2 * number), now_ms=100)
        assert (done.duplicate, done.base_offset) == (True, 2 * number)


def test_resends_are_known_after_a_roll_a_kill_and_a_clean_stop() -> None:
    """G4: five batches back, whatever happened in between; Kafka's own snapshot would know one."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    produce(log, range(14))
    resends_are_known(log, 13)
    flush(log)
    seal(log)
    _, killed = open_log(disk.kill(), CONFIG, now_ms=100)
    resends_are_known(killed, 13)
    log.close(clean=True)
    directory.mark_clean()
    _, stopped = open_log(disk.kill(), CONFIG, now_ms=100)
    resends_are_known(stopped, 13)
    produce(stopped, range(14, 15))


def test_both_snapshot_files_are_kept_for_every_roll_point() -> None:
    """Named by the new segment's base offset: the state before it (C8), in Kafka's format and in ours."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    produce(log, range(12))
    base = log.sealed_segments()[0].end_offset
    pending = log.producer_snapshot_at(base)
    flush(log)
    seal(log)
    written = log.producer_snapshot_at(base)
    assert pending == written and written is not None and written.end_offset == base
    (entry,) = written.producers
    assert len(entry.batches) == min(5, base // 2) and entry.batches[-1].last_offset == base - 1
    (kafka,) = decode_kafka_snapshot(read_file(disk, f"{LOG_PATH}/{base:020d}.snapshot"))
    assert kafka.batches == entry.batches[-1:] and kafka.producer_id == 7
    assert log.producer_snapshot_at(base + 1) is None


def test_recovery_writes_the_state_of_every_roll_point_below_the_recovery_point_too() -> None:
    """G4, C8: a kill after a flush and a checkpoint, but before the small files of the segments that had rolled. Found
    under load: the copy of such a segment carried no producers, so a resend after a lost disk would be appended."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    produce(log, range(2))
    flush(log)
    seal(log)  # the epoch checkpoint is written: the recovery point follows the flushed end from here
    produce(log, range(2, 40))
    rolled = [segment.end_offset for segment in log.sealed_segments()]
    assert len(rolled) >= 3
    expected = [log.producer_snapshot_at(end) for end in rolled]
    produce(log, range(40, 41))
    flush(log)
    assert log.recovery_point == log.log_end_offset and log.durability.pending_seals
    directory.checkpoints.sample([log], {}).run()
    _, killed = open_log(disk.kill(), CONFIG, now_ms=100)
    assert [segment.end_offset for segment in killed.sealed_segments()] == rolled
    for end, known in zip(rolled, expected, strict=True):
        found = killed.producer_snapshot_at(end)
        assert known is not None and found is not None, end
        assert [entry.batches for entry in found.producers] == [entry.batches for entry in known.producers]


@pytest.mark.parametrize("lost", [".producers", ".snapshot"])
def test_resends_are_known_when_one_of_two_producer_files_was_written(lost: str) -> None:
    """G4. Found by seed 10742 of three brokers with late work: a full disk kept `.snapshot` only, which knows one batch
    of each producer. After a kill the leader refused a resend of the last but two, and a copy held no more."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    produce(log, range(40))
    flush(log)
    seal(log)
    rolled = [segment.end_offset for segment in log.sealed_segments()]
    expected = [log.producer_snapshot_at(end) for end in rolled]
    assert rolled[-1] - rolled[-2] >= 10 and log.log_end_offset - rolled[-1] < 10  # the newest files decide
    assert log.recovery_point == log.log_end_offset
    directory.checkpoints.sample([log], {}).run()
    disk = disk.kill()
    remove_files(disk.open_dir(LOG_PATH), [offset_file(rolled[-1], lost)])
    _, killed = open_log(disk, CONFIG, now_ms=100)
    resends_are_known(killed, 39)
    for end, known in zip(rolled, expected, strict=True):
        found = killed.producer_snapshot_at(end)
        assert known is not None and found is not None
        assert [entry.batches for entry in found.producers] == [entry.batches for entry in known.producers]


def test_a_full_disk_between_the_two_producer_files_keeps_the_one_that_knows_five() -> None:
    """Of a log whose older segments retention removed there is no older file to begin from."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    produce(log, range(14))
    end = log.log_end_offset
    disk.inject("write", errno.ENOSPC, offset_file(end, SNAPSHOT) + TEMPORARY)
    with pytest.raises(OSError, match="snapshot"):
        write_producer_files(log.directory, log.producers.at(end))
    assert read_own_producers(log.directory, end) == log.producers.at(end).state()


def test_our_file_at_no_segments_base_may_be_stale() -> None:
    """ADR 9: Kafka ran on the directory meanwhile. It truncates a log, and our files above the end stay."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    produce(log, range(12))
    flush(log)
    seal(log)
    base = log.sealed_segments()[-1].end_offset
    stale = Producers(1_000)
    remember(stale, header(0, producer_id=8), base, 0)
    write_whole(log.directory, offset_file(base + 1, PRODUCERS), encode_producer_state(stale.at(base + 1).state()))
    names, segments = log.directory.list(), [*log.sealed_segments(), log.active_segment]
    producers = load_producers(log.directory, names, segments, log.log_end_offset, 1_000, 0, IndexCache())
    assert len(producers) == 1
    assert check(producers, header(22, count=2, epoch=1), 0) is not None


def test_producers_are_bounded() -> None:
    """A client that invents producer ids makes the log forget the oldest ones, not run out of memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotstore.log.producer_state.PRODUCERS_MAX", 100)
        producers = Producers(1_000)
        for number in range(1_000):
            remember(producers, header(0, producer_id=number), number, number)
            assert len(producers) <= 100
        assert check(producers, header(0, producer_id=999), 999) is not None


def test_those_silent_for_longest_are_forgotten_first() -> None:
    """Also of those that a snapshot brought, which are in the order of their ids."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotstore.log.producer_state.PRODUCERS_MAX", 100)
        producers = Producers(1_000, [ProducerEntry(number, 0, (), 100 - number) for number in range(100)])
        for number in (99, 97):
            remember(producers, header(0, producer_id=number), number, 200)
        remember(producers, header(0, producer_id=500), 500, 300)
        kept = set(producers.at(0).entries)
        assert set(range(101)) - kept == {100, 98, 96, 95, 94, 93, 92, 91, 90, 89, 88}


def test_entries_come_back_as_they_went() -> None:
    """A frozen copy encodes what was there when it was taken, not what came later."""
    producers = Producers(1_000)
    remember(producers, header(0), 5, 77)
    frozen = producers.at(6)
    remember(producers, header(1), 6, 78)
    (entry,) = frozen.state().producers
    assert isinstance(entry, ProducerEntry)
    assert (entry.producer_id, entry.last_timestamp, entry.batches[-1].last_offset) == (7, 77, 5)
    again = Producers(1_000, frozen.state().producers)
    assert again.at(6) == frozen
