"""Every single bit of a data directory's files, flipped: detected, repaired or harmless, never served wrong (fault D7).

The door is the real one: `DataDir.open`, `open_log`, then reads from several offsets, look-ups by time, a resend. Each
kind prints a row: bits, refused (a clear error), repaired (the file is what it was again), harmless (the answers are).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from crc32c import crc32c

from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from logformat.errors import Corrupt, InvalidRequest
from logformat.leader_epochs import LeaderEpochs
from logformat.record_batch import ATTRIBUTES_AT, read_header
from seams.files.disk import read_file
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import DATA, LOG_PATH, META, append, batch, flush, new_log, open_log, seal

pytestmark = pytest.mark.not_fast

CONFIG = LogConfig(segment_bytes=420, index_interval_bytes=100)
COUNT = 9


@dataclass
class Row:
    """One kind of file."""

    kind: str
    bits: int = 0
    refused: int = 0
    repaired: int = 0
    harmless: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kind:44} {self.bits:7} bits: {self.refused:6} refused, {self.repaired:6} repaired, "
            f"{self.harmless:6} harmless, {len(self.wrong)} wrong"
        )


def written(*, clean: bool) -> CrashDisk:
    """Three segments of three batches, two epochs, an idempotent producer; stopped in order, or killed."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    for number in range(COUNT):
        data = batch(2, size=10, timestamp=1000 * number, producer_id=3, epoch=0, sequence=2 * number)
        append(log, data, leader_epoch=number // 5, now_ms=number)
    flush(log)
    seal(log)
    if clean:
        log.close(clean=True)
    directory.checkpoints.sample([log], {}).run()
    if clean:
        directory.mark_clean()
    return disk.crash(SeededRng(1), 0.0)


@dataclass(frozen=True)
class Served:
    """What clients got of a log before one of them refused something (`refusal`), or all of it."""

    log_start: int
    log_end: int
    reads: tuple[tuple[int, int, bytes], ...]  # (where its reader began, base offset, what the CRC covers)
    rest: tuple[object, ...] = ()
    refusal: str = ""

    def wrong_beside(self, truth: Served) -> bool:
        """Whether anything was served that is not so."""
        if self.refusal and (self.log_start, self.log_end) == (truth.log_start, truth.log_end):
            return not set(self.reads) <= set(truth.reads)
        return self != truth


def served(log: PartitionLog) -> Served:
    """Everything that clients accept: they check the CRC, and go on behind what they got."""
    reads: list[tuple[int, int, bytes]] = []
    start, end = log.log_start_offset, log.log_end_offset
    try:
        for first, bytes_max in ((0, 1 << 20), (0, 1), (7, 300)):
            _read(log, first, bytes_max, reads)
    except (Corrupt, InvalidRequest) as refusal:
        return Served(start, end, tuple(reads), (), str(refusal) or "refused")
    return Served(start, end, tuple(reads), _the_rest(log))


def _read(log: PartitionLog, first: int, bytes_max: int, reads: list[tuple[int, int, bytes]]) -> None:
    offset = first
    while offset < log.log_end_offset:
        piece = log.read(offset, bytes_max, log.log_end_offset, min_one=True)
        if piece is None:
            raise Corrupt(f"nothing at {offset}")
        piece = log.sound(piece)
        if not log.is_checked(piece):
            log.check(piece)
        data = piece.file.read_at(piece.position, piece.length)
        at = 0
        while at < len(data):
            header = read_header(data, at)
            body = data[at + ATTRIBUTES_AT : at + header.size]
            if header.magic != 2 or crc32c(body) != header.crc or header.next_offset <= offset:
                raise Corrupt(f"a client refuses the batch at {offset}")
            reads.append((first, header.base_offset, body))
            offset = header.next_offset
            at += header.size


def _the_rest(log: PartitionLog) -> tuple[object, ...]:
    """Look-ups by time, and a resend of the last batch."""
    times = tuple(log.offset_for_timestamp(1000 * number + 1) for number in range(0, COUNT, 2))
    again = batch(2, size=10, timestamp=1000 * (COUNT - 1), producer_id=3, epoch=0, sequence=2 * COUNT - 2)
    resend = append(log, again).base_offset
    return (tuple(t and t[:2] for t in times), resend)


def flips(disk: CrashDisk, path: str) -> Iterator[tuple[str, CrashDisk]]:
    for position in range(len(read_file(disk, path))):
        for bit in range(8):
            damaged = disk.kill()
            damaged.flip_bit(path, position, bit)
            yield f"{path} byte {position} bit {bit}", damaged


def try_all(row: Row, disk: CrashDisk, path: str, truth: Served) -> None:
    original = read_file(disk, path)
    for where, damaged in flips(disk, path):
        row.bits += 1
        try:
            directory, log = open_log(damaged, CONFIG)
            if directory.meta != META:
                raise Corrupt("another identity than the bucket's: exit 3")
        except Corrupt as refusal:
            assert str(refusal)
            row.refused += 1
            continue
        found = served(log)
        if found.wrong_beside(truth):
            row.wrong.append(f"{where}: {found} instead of {truth}"[:400])
        elif found.refusal:
            row.refused += 1
        elif damaged.stat(path) is None or read_file(damaged, path) == original:
            row.repaired += 1
        else:
            row.harmless += 1


def truth_of(disk: CrashDisk) -> Served:
    _, log = open_log(disk.kill(), CONFIG)
    return served(log)


KINDS = {
    "offset index": ".index",
    "time index": ".timeindex",
    "producer snapshot (Kafka's)": ".snapshot",
    "producer snapshot (ours)": ".producers",
    "leader-epoch checkpoint": "leader-epoch-checkpoint",
    "partition.metadata": "partition.metadata",
}


@pytest.mark.parametrize("clean", [True, False])
def test_every_bit_of_a_segment(clean: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Every bit of the first, a middle and the last segment.

    What no CRC of Kafka's format covers is the base offset of a batch: readers of a segment that nobody has read since
    a clean stop are told of its damage because the batches' offsets follow each other.
    """
    disk = written(clean=clean)
    truth = truth_of(disk)
    names = [name for name in disk.list_dir(LOG_PATH) if name.endswith(".log")]
    row = Row(f"segment, {'clean stop' if clean else 'killed'}")
    for name in (names[0], names[len(names) // 2], names[-1]):
        path = f"{LOG_PATH}/{name}"
        try_all(row, disk, path, truth)
    with capsys.disabled():
        print(f"\n  {row}", end="")
    assert not row.wrong, "\n".join(row.wrong[:10])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_of_a_logs_files(kind: str, clean: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the first, a middle and the last file of each kind."""
    disk = written(clean=clean)
    truth = truth_of(disk)
    names = [name for name in disk.list_dir(LOG_PATH) if name.endswith(KINDS[kind])]
    assert names
    row = Row(f"{kind}, {'clean stop' if clean else 'killed'}")
    for name in dict.fromkeys((names[0], names[len(names) // 2], names[-1])):
        try_all(row, disk, f"{LOG_PATH}/{name}", truth)
    with capsys.disabled():
        print(f"\n  {row}", end="")
    assert not row.wrong, "\n".join(row.wrong[:10])
    assert row.bits == row.refused + row.repaired + row.harmless


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "meta.properties",
        ".kafka_cleanshutdown",
    ],
)
def test_every_bit_of_the_directorys_files(name: str, clean: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Identity, checkpoints, marker. An identity that differs is refused by the cluster's own (`admission`)."""
    disk = written(clean=clean)
    if name == ".kafka_cleanshutdown" and not clean:
        pytest.skip("only a clean stop leaves one")
    truth = truth_of(disk)
    path = f"{DATA}/{name}"
    row = Row(f"{name}, {'clean stop' if clean else 'killed'}")
    try_all(row, disk, path, truth)
    with capsys.disabled():
        print(f"\n  {row}", end="")
    assert not row.wrong, "\n".join(row.wrong[:10])


def test_every_bit_of_the_epochs_changes_no_lineage() -> None:
    """The epochs themselves, which `served` does not show: as written, or refused."""
    disk = written(clean=True)
    _, log = open_log(disk.kill(), CONFIG)
    wanted: LeaderEpochs = log.epochs
    for _, damaged in flips(disk, f"{LOG_PATH}/leader-epoch-checkpoint"):
        try:
            _, log = open_log(damaged, CONFIG)
        except Corrupt:
            continue
        assert log.epochs == wanted
