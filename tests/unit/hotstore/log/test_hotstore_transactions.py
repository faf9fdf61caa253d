"""Open transactions, the last stable offset and the aborted index of a log, against a brute-force model."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hotstore.errors import (
    CoordinatorFenced,
    DamagedLog,
    InvalidProducerEpoch,
    InvalidTransactionState,
    LogFull,
    ReservationExhausted,
)
from hotstore.file_names import LOG, PRODUCERS, TRANSACTION_INDEX, offset_file
from hotstore.host.data_dir import DataDir
from hotstore.log import producer_state
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import Appended, PartitionLog
from logformat.indexes.transaction_index import AbortedIndex, AbortedTransaction, decode_aborted
from logformat.record_batch import INT64_MAX, read_header
from logformat.records import Record, encode_batch
from logformat.transaction_marker import TransactionMarker, marker_of
from logformat.values import NewerFormat
from seams.files.disk import read_file
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import (
    LOG_PATH,
    ORDERS,
    append,
    batch,
    copied,
    flush,
    new_log,
    open_log,
    read_all,
    seal,
)

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)


def in_transaction(
    log: PartitionLog, producer_id: int, sequence: int, *, count: int = 1, epoch: int = 0, now_ms: int = 10_000
) -> Appended:
    records = [Record(at, 1_000, b"k", b"v" * 10) for at in range(count)]
    data = encode_batch(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    view = memoryview(bytearray(data))
    return log.append_transactional(view, read_header(view), 0, now_ms)


def end(
    log: PartitionLog, producer_id: int, *, commit: bool, epoch: int = 0, coordinator: int = 0, version: int = 0
) -> int:
    (result,) = log.append_markers([TransactionMarker(producer_id, epoch, commit, coordinator, version)], 0, 10_000)
    if not isinstance(result, int):
        raise result
    return result


def aborted(log: PartitionLog, start: int = 0, stop: int = INT64_MAX - 1) -> set[tuple[int, int, int]]:
    found = log.aborted_between(start, stop)
    assert len({(of.producer_id, of.first_offset) for of in found}) == len(found)
    return {(of.producer_id, of.first_offset, of.last_offset) for of in found}


def test_a_transaction_keeps_the_last_stable_offset_until_its_marker_is_committed() -> None:
    """TX21: a marker that a leader change may remove decides nothing."""
    _, log = new_log(CrashDisk(), CONFIG)
    append(log, batch())
    first = in_transaction(log, 7, 0).base_offset
    append(log, batch())
    assert log.last_stable_offset(log.log_end_offset) == first == 1
    marker = end(log, 7, commit=True)
    assert log.last_stable_offset(marker) == first, "the marker itself is not committed"
    assert log.last_stable_offset(marker + 1) == marker + 1
    assert log.last_stable_offset(marker + 1) == marker + 1 and not log.producers.transactions


def test_markers_are_fenced_by_both_epochs() -> None:
    """TX2, TX29: a late marker of the transaction before does not end the next one."""
    _, log = new_log(CrashDisk(), CONFIG)
    in_transaction(log, 7, 0, epoch=3)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 7, commit=False, epoch=2)
    end(log, 7, commit=True, epoch=4, coordinator=5, version=2)  # transaction version 2 bumps the epoch with each end
    with pytest.raises(CoordinatorFenced):
        end(log, 7, commit=False, epoch=4, coordinator=4)
    in_transaction(log, 7, 0, epoch=4)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 7, commit=False, epoch=4, coordinator=5, version=2)  # of the one before, sent again
    assert log.producers.has_open(7, 4)
    marker = end(log, 7, commit=False, epoch=5, coordinator=5, version=2)
    assert aborted(log) == {(7, 2, marker)}
    end(log, 7, commit=False, epoch=5, coordinator=5, version=2)  # nothing is open: an equal epoch is a resend
    assert len(aborted(log)) == 1


def test_a_batch_outside_of_an_open_transaction_is_refused() -> None:
    """TX41. Afterwards the producer may write without one."""
    _, log = new_log(CrashDisk(), CONFIG)
    in_transaction(log, 7, 0)
    with pytest.raises(InvalidTransactionState):
        append(log, batch(producer_id=7, epoch=0, sequence=1))
    append(log, batch(producer_id=8, epoch=0, sequence=0))
    end(log, 7, commit=True)
    append(log, batch(producer_id=7, epoch=0, sequence=1))


def test_a_batch_without_sequence_opens_and_keeps_the_remembered_batches() -> None:
    """TxnOffsetCommit: its records have no sequence; a resend of an earlier batch is still known."""
    _, log = new_log(CrashDisk(), CONFIG)
    append(log, batch(producer_id=7, epoch=0, sequence=0))
    in_transaction(log, 7, -1)
    assert log.producers.transactions.first_offsets == {7: 1}
    in_transaction(log, 7, -1)
    end(log, 7, commit=True)
    assert append(log, batch(producer_id=7, epoch=0, sequence=0)).duplicate
    with pytest.raises(InvalidProducerEpoch):
        in_transaction(log, 7, -1, epoch=-1)


def test_a_resend_within_a_transaction_is_known() -> None:
    _, log = new_log(CrashDisk(), CONFIG)
    first = in_transaction(log, 7, 0)
    again = in_transaction(log, 7, 0)
    assert again.duplicate and again.base_offset == first.base_offset and log.log_end_offset == 1


def test_silence_does_not_lower_an_epoch() -> None:
    """TX28: a lower epoch of a producer that was silent for longer than it is remembered is refused."""
    _, log = new_log(CrashDisk(), LogConfig(producer_id_expiration_ms=1_000))
    append(log, batch(producer_id=7, epoch=5, sequence=0), now_ms=10_000)
    with pytest.raises(InvalidProducerEpoch):
        append(log, batch(producer_id=7, epoch=4, sequence=0), now_ms=99_000)


def test_an_open_transaction_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """TX28, TX13: neither expiry nor the bound of producers."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 20)
    _, log = new_log(CrashDisk(), LogConfig(producer_id_expiration_ms=1_000))
    in_transaction(log, 7, 0)
    log.producers.expire(10**9)
    for other in range(100, 150):
        append(log, batch(producer_id=other, epoch=0, sequence=0))
    assert log.producers.has_open(7, 0) and log.last_stable_offset(log.log_end_offset) == 0
    end(log, 7, commit=True)
    log.producers.expire(10**9)
    assert len(log.producers) == 0


def test_offsets_are_held_back_for_markers() -> None:
    """TX24: with the bucket away every open transaction can still end."""
    _, log = new_log(CrashDisk(), CONFIG)
    log.reserved_end = 5
    in_transaction(log, 1, 0)
    in_transaction(log, 2, 0)
    with pytest.raises(ReservationExhausted):
        in_transaction(log, 3, 0)  # 3 records and 3 markers are more than 5 offsets
    append(log, batch())
    with pytest.raises(ReservationExhausted):
        append(log, batch())
    assert log.assignable_end_offset == log.log_end_offset == 3
    assert [end(log, 1, commit=True), end(log, 2, commit=False)] == [3, 4]
    with pytest.raises(ReservationExhausted):
        end(log, 1, commit=True, epoch=1)


def test_a_short_disk_takes_markers() -> None:
    """TX23: on the leader and the follower. Without the marker nothing is copied, and the disk never gets space."""
    _, log = new_log(CrashDisk(), CONFIG)
    _, copy = new_log(CrashDisk(), CONFIG)
    in_transaction(log, 1, 0)
    copied(copy, read_all(log, 0))
    log.ballast.is_short = copy.ballast.is_short = True
    with pytest.raises(LogFull):
        append(log, batch())
    marker = end(log, 1, commit=True)
    copied(copy, read_all(log, marker))
    assert copy.last_stable_offset(marker + 1) == marker + 1
    log.ballast.is_short = False
    append(log, batch())
    with pytest.raises(LogFull):
        copied(copy, read_all(log, marker + 1))


def test_a_short_disk_takes_the_records_of_internal_topics() -> None:
    """TX23: a coordinator's decision, and offsets in a transaction; on the leader and the follower."""
    config = replace(CONFIG, uses_ballast=True)
    _, log = new_log(CrashDisk(), config)
    _, copy = new_log(CrashDisk(), config)
    log.ballast.is_short = copy.ballast.is_short = True
    assert append(log, batch(3)).last_offset == 2
    copied(copy, read_all(log, 0))
    assert copy.log_end_offset == 3


def test_many_markers_are_one_write_across_segments() -> None:
    _, log = new_log(CrashDisk(), LogConfig(segment_bytes=300, index_interval_bytes=100))
    for producer_id in range(6):
        in_transaction(log, producer_id, 0)
    start = log.log_end_offset
    markers = [TransactionMarker(producer_id, 0, producer_id % 2 == 0, 0) for producer_id in (*range(6), 0)]
    assert log.append_markers(markers, 0, 10_000) == list(range(start, start + 7))
    found = [marker_of(data) for data in read_all(log, start)]
    assert found == markers
    assert aborted(log) == {(of, of, start + of) for of in (1, 3, 5)}


# ── against a model ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Model:
    """What every batch of the log is."""

    batches: list[tuple[str, int, int, int]] = field(default_factory=list)  # kind, producer id, base offset, end offset

    def border(self, offset: int) -> int:
        """The last batch's end at or below `offset`."""
        return max((end for _, _, _, end in self.batches if end <= offset), default=0)

    def decided(self, high_watermark: int) -> int:
        """The last stable offset by brute force."""
        stable = high_watermark
        for first, marker, _, _ in self.transactions():
            if marker is None or marker >= high_watermark:
                stable = min(stable, first)
        return stable

    def transactions(self) -> list[tuple[int, int | None, int, str]]:
        """(first offset, marker's offset, producer id, outcome)."""
        opened: dict[int, int] = {}
        found: list[tuple[int, int | None, int, str]] = []
        for kind, producer_id, base, _ in self.batches:
            if kind == "data":
                opened.setdefault(producer_id, base)
            elif kind in ("commit", "abort") and producer_id in opened:
                found.append((opened.pop(producer_id), base, producer_id, kind))
        return found + [(first, None, producer_id, "open") for producer_id, first in opened.items()]

    def aborted(self, start: int, stop: int) -> set[tuple[int, int, int]]:
        return {
            (producer_id, first, marker)
            for first, marker, producer_id, kind in self.transactions()
            if kind == "abort" and marker is not None and first < stop and marker >= start
        }


def same(log: PartitionLog, model: Model, high_watermark: int) -> None:
    assert log.last_stable_offset(high_watermark) == model.decided(high_watermark)
    stable = model.decided(high_watermark)
    for start in range(0, stable, 3):
        for stop in (start + 1, start + 4, stable):
            if stop <= stable:
                assert aborted(log, start, stop) == model.aborted(start, stop), (start, stop)


ENDS = ("data", "commit", "abort")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 4)),
        st.tuples(st.just("plain"), st.just(0)),
        st.tuples(st.just("flush"), st.integers(0, 9)),  # and how far the high watermark stays behind
        st.tuples(st.sampled_from(["clean", "crash", "crash without small files"]), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 8)),
    ),
    max_size=60,
)


def steps_of(seed: int) -> list[tuple[str, int]]:
    """A long history: most steps append, some restart or cut."""
    rng = Random(seed)
    kinds = ["data"] * 8 + ["commit", "abort", "abort", "plain", "flush", "cut", "clean", "crash"]
    kinds.append("crash without small files")
    return [(kind, rng.randint(1, 4) if kind in ENDS else rng.randint(0, 9)) for kind in rng.choices(kinds, k=80)]


@pytest.mark.parametrize("seed", range(60))
def test_long_histories(seed: int) -> None:
    agrees(steps_of(seed))


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_a_log_agrees_with_the_model_through_restarts_and_cuts(steps: list[tuple[str, int]]) -> None:
    agrees(steps)


def agrees(steps: list[tuple[str, int]]) -> None:
    """Leader and follower, hot: last stable offset and aborted list are what the batches say, whatever was restarted
    or cut, also with a high watermark in the checkpoint that is old."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    model, mark = Model(), 0
    sequences: dict[int, int] = {}
    for what, number in steps:
        base = log.log_end_offset
        if what == "data":
            sequence = sequences.get(number, 0)
            in_transaction(log, number, sequence)
            sequences[number] = sequence + 1
            model.batches.append(("data", number, base, base + 1))
        elif what in ("commit", "abort"):
            end(log, number, commit=what == "commit")
            model.batches.append((what, number, base, base + 1))
        elif what == "plain":
            append(log, batch(2))
            model.batches.append(("plain", 0, base, base + 2))
        elif what == "flush":
            flush(log)
            seal(log)
            mark = max(mark, model.border(base - number))
            directory.checkpoints.sample((log,), {ORDERS: mark}).run()
        elif what == "cut":
            offset = model.border(max(mark, base - number))
            directory.checkpoints.lower_recovery_point(ORDERS, offset)
            log.truncate_to(offset, 10_000)
            model.batches = [of for of in model.batches if of[3] <= log.log_end_offset]
            sequences = {}
            for kind, producer_id, _, _ in model.batches:
                if kind == "data":
                    sequences[producer_id] = sequences.get(producer_id, 0) + 1
        else:
            if what == "clean":
                log.close(clean=True)
                directory.checkpoints.sample((log,), {ORDERS: mark}).run()
                directory.mark_clean()
            else:
                flush(log)
                log.close(clean=False)
            directory.close()
            if what == "crash without small files":
                names = [name for name in disk.list_dir(LOG_PATH) if name.endswith((TRANSACTION_INDEX, PRODUCERS))]
                for name in names:
                    disk.unlink(f"{LOG_PATH}/{name}")
                for name in [name for name in disk.list_dir(LOG_PATH) if name.endswith(".snapshot")]:
                    disk.unlink(f"{LOG_PATH}/{name}")
            directory, log = open_log(disk, CONFIG)
        same(log, model, min(mark, log.log_end_offset))
    _, copy = new_log(CrashDisk(), CONFIG)
    for data in read_all(log, 0):
        copied(copy, [data])
    same(copy, model, min(mark, log.log_end_offset))
    same(copy, model, log.log_end_offset)


def test_a_lost_transaction_index_is_made_from_the_log() -> None:
    """Damaged or missing beside a segment without a producer file: the markers say it all."""
    for remove in (False, True):
        disk = CrashDisk()
        directory, log = new_log(disk, CONFIG)
        in_transaction(log, 1, 0)
        marker = end(log, 1, commit=False)
        while len(log.sealed_segments()) < 2:
            append(log, batch(3))
        flush(log)
        seal(log)
        name = offset_file(0, TRANSACTION_INDEX)
        path = f"{LOG_PATH}/{name}"
        assert decode_aborted(0, read_file(disk, path)) == (AbortedTransaction(1, 0, marker, marker + 1),)
        directory.checkpoints.sample((log,), {ORDERS: log.log_end_offset}).run()
        log.close(clean=False)
        directory.close()
        if remove:
            second = log.sealed_segments()[1].base_offset
            for gone in (name, offset_file(second, PRODUCERS), offset_file(second, ".snapshot")):
                disk.unlink(f"{LOG_PATH}/{gone}")
        else:
            file = disk.open(path, write=True)
            file.write_at(0, [b"\xff" * 10])
            file.close()
        _, again = open_log(disk, CONFIG)
        assert aborted(again) == {(1, 0, marker)}


def close_sealed(directory: DataDir, log: PartitionLog) -> None:
    """Seal two segments, and stop cleanly."""
    while len(log.sealed_segments()) < 2:
        append(log, batch(3))
    flush(log)
    seal(log)
    log.close(clean=True)
    directory.checkpoints.sample((log,), {ORDERS: log.log_end_offset}).run()
    directory.mark_clean()


def test_a_flip_in_a_transaction_index_shows_no_record_of_an_aborted_transaction() -> None:
    """The file has no checksum, and was believed if it could be right: with another producer id, or a marker above the
    segment, readers, copies to the bucket and the cleaner took the records for committed ones."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    for producer_id in (1, 2):
        in_transaction(log, producer_id, 0, count=2)
        append(log, batch(1))
        end(log, producer_id, commit=False)
    close_sealed(directory, log)
    wanted = aborted(log)
    path = f"{LOG_PATH}/{offset_file(0, TRANSACTION_INDEX)}"
    for at in range(8 * len(read_file(disk, path))):
        damaged = disk.kill()
        damaged.flip_bit(path, at // 8, at % 8)
        try:
            _, log = open_log(damaged, CONFIG)
        except NewerFormat:
            continue  # refused, not believed
        assert aborted(log) == wanted, at


def test_a_flip_in_the_log_changes_no_transaction_index() -> None:
    """Regression: a damaged first batch of an aborted transaction counted as a contradiction. The index was made again
    from the damaged log, and lost the transaction, or the log was not opened at all."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    for sequence in range(2):
        in_transaction(log, 1, sequence)
    end(log, 1, commit=False)
    close_sealed(directory, log)
    wanted, path = aborted(log), f"{LOG_PATH}/{offset_file(0, LOG)}"
    opened = 0
    for at in range(8 * read_header(read_file(disk, path)).size):
        damaged = disk.kill()
        damaged.flip_bit(path, at // 8, at % 8)
        try:
            _, log = open_log(damaged, CONFIG)
        except DamagedLog:
            continue  # its place in the segment is unknown
        opened += 1
        assert aborted(log) == wanted, at
    assert opened > 500


def test_a_power_cut_in_a_seal_hides_no_aborted_transaction() -> None:
    """A power cut keeps any of the names that were not synced. It kept that of the producers at a segment's end, which
    proves the transaction index, and lost that of the index: records of aborted transactions were shown for ever."""
    wanted, cuts = cut_in_seals()
    assert len(wanted) > 3 and cuts
    for number, cut in enumerate(cuts):
        _, log = open_log(cut, CONFIG)
        assert aborted(log) == wanted, number


def test_a_power_cut_in_a_recovery_hides_no_aborted_transaction() -> None:
    """As in a seal: a start writes the same files."""
    wanted, cuts = cut_in_seals()
    disk, again = cuts[0].kill(), list[CrashDisk]()
    disk.on_effect = lambda kind, path: again.extend(disk.crash(SeededRng(seed), 0.5) for seed in range(5))
    open_log(disk, CONFIG)
    disk.on_effect = None
    assert again
    for number, cut in enumerate(again):
        _, log = open_log(cut, CONFIG)
        assert aborted(log) == wanted, number


def cut_in_seals() -> tuple[set[tuple[int, int, int]], list[CrashDisk]]:
    """The aborted transactions of a log of several synced segments, and what power cuts in the job leave that writes
    all their small files."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    while len(log.sealed_segments()) < 4:
        append(log, batch(3))
        producer_id = log.log_end_offset
        in_transaction(log, producer_id, 0)
        end(log, producer_id, commit=False)
    flush(log)
    wanted = aborted(log)
    directory.checkpoints.sample((log,), {ORDERS: log.log_end_offset}).run()
    cuts: list[CrashDisk] = []
    disk.on_effect = lambda kind, path: cuts.extend(disk.crash(SeededRng(seed), 0.5) for seed in range(5))
    seal(log)
    disk.on_effect = None
    return wanted, cuts


def test_an_index_skips_what_began_later() -> None:
    """A transaction that was open for long does not make a look-up return, or read, all that was aborted meanwhile."""
    entries = [AbortedTransaction(9, 100 + 2 * at, 101 + 2 * at, 50) for at in range(1_000)]
    index = AbortedIndex(entries)
    assert [of.first_offset for of in index.overlapping(0, 104)] == [100, 102]
    assert list(index.overlapping(2_000, 2_003)) == [of for of in entries if of.last_offset >= 2_000][:2]
    assert index.completes(50) and not index.completes(51)
    assert len(index.below(201)) == 50 and index.below(10**6) is index
