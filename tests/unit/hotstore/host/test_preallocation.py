"""Room that logs take ahead of their writes: how much, who gives it back, and that no append fails for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hotstore.errors import LogFull
from hotstore.host.ballast import Ballast
from hotstore.host.preallocation import SHARE_OF_FREE, UNIT_BYTES, step_bytes
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import LogState, PartitionLog
from seams.files.posix_disk import PosixDisk
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import LOG_PATH, TOPIC_ID, append, batch, flush, new_log, open_log, read_all, seal

MB = 1 << 20
CONFIG = LogConfig(segment_bytes=32 * MB)


def real_log(directory: Path, name: str = "orders-0", config: LogConfig = CONFIG) -> tuple[Ballast, PartitionLog]:
    disk = PosixDisk()
    ballast = Ballast(disk, str(directory))
    ballast.preallocation.budget_bytes = 64 * MB
    path = f"{directory}/{name}"
    log = PartitionLog.create(disk, path, "orders", 0, TOPIC_ID, config, staged=f"{path}.new", ballast=ballast)
    return ballast, log


def held_bytes(log_directory: Path) -> int:
    """What the segments' files take of the disk."""
    return sum(os.stat(path).st_blocks * 512 for path in log_directory.glob("*.log"))


@pytest.mark.parametrize(
    ("end", "segment_bytes", "left", "expected"),
    [
        (MB, 1 << 30, 1 << 30, MB),  # as much as it has
        (3 * MB, 1 << 30, 1 << 30, 3 * MB),
        (500 * MB, 1 << 30, 1 << 30, 4 * MB),  # but no more than that
        (30 * MB, 32 * MB, 1 << 30, 2 * MB),  # never beyond segment.bytes
        (32 * MB - 100, 32 * MB, 1 << 30, 0),
        (40 * MB, 32 * MB, 1 << 30, 0),  # a follower's segment may be larger than its configuration
        (8 * MB, 1 << 30, MB, MB),  # what is left of the budget
        (8 * MB, 1 << 30, 100, 0),
        (8 * MB, 1 << 30, -5 * MB, 0),  # the disk got fuller meanwhile
    ],
)
def test_how_much_is_taken(end: int, segment_bytes: int, left: int, expected: int) -> None:
    assert step_bytes(end, segment_bytes, left) == expected


def test_a_log_that_grows_holds_a_step_and_gives_it_back_when_it_rolls_and_closes(tmp_path: Path) -> None:
    """On the file system of this machine: blocks of the files, beside their sizes."""
    ballast, log = real_log(tmp_path)
    path = tmp_path / "orders-0"
    piece = batch(size=200_000)
    while log.local_bytes < 10 * MB:
        append(log, bytearray(piece))
    assert ballast.preallocation.held_bytes == 4 * MB
    assert log.active_info().bytes + 1 * MB < held_bytes(path) <= log.active_info().bytes + 5 * MB
    log.roll()
    assert ballast.preallocation.held_bytes == 0
    flush(log)
    seal(log)
    assert held_bytes(path) <= log.local_bytes + 8192
    while log.local_bytes < 20 * MB:
        append(log, bytearray(piece))
    assert held_bytes(path) > log.local_bytes + MB
    log.close(clean=True)
    assert held_bytes(path) <= log.local_bytes + 2 * 8192 and ballast.preallocation.held_bytes == 0


def test_idle_logs_hold_nothing(tmp_path: Path) -> None:
    """Thousands of partitions that get a little each: room is taken by those that grow."""
    ballast, log = real_log(tmp_path)
    for _ in range(4):
        append(log, batch(size=200_000))
    assert ballast.preallocation.held_bytes == 0 and held_bytes(tmp_path / "orders-0") <= log.local_bytes + 8192
    flush(log)
    log.close(clean=True)
    again = PartitionLog.open(
        PosixDisk(), log.path, "orders", 0, CONFIG,
        recovery_point=4, log_start=0, clean=True, now_ms=5, ballast=ballast,
    )  # fmt: skip
    append(again, batch(size=300_000))
    assert again.local_bytes > MB, "large by what it had"
    assert ballast.preallocation.held_bytes == 0


def test_no_call_an_append(tmp_path: Path) -> None:
    """A hundred appends, a handful of calls; all of them together keep to the budget."""
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(segment_bytes=1 << 30))
    ahead = log.ballast.preallocation
    ahead.unit_bytes, ahead.budget_bytes = UNIT_BYTES, 3 * MB
    for _ in range(100):
        append(log, batch(size=100_000))
        assert ahead.held_bytes <= 3 * MB
    assert 2 <= disk.hits["allocate_ahead"] <= 6


def test_the_budget_is_a_share_of_what_is_free() -> None:
    disk = CrashDisk(capacity_bytes=1 << 40)
    directory, _ = new_log(disk, CONFIG)
    directory.ballast.check_space()
    assert directory.ballast.preallocation.budget_bytes == disk.space("/").free // SHARE_OF_FREE
    disk.capacity_bytes = (1 << 40) - disk.space("/").free  # somebody fills it
    directory.ballast.check_space()
    assert directory.ballast.is_short and directory.ballast.preallocation.budget_bytes == 0


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOSPC, errno.EINTR])
def test_a_refusal_is_no_trouble_of_the_append(code: int) -> None:
    """File systems without fallocate, and those without room: the append finds its own blocks."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    disk.inject("allocate_ahead", code, ".log", times=-1)
    for number in range(40):
        append(log, batch(size=100, timestamp=number))
    assert disk.hits["fault:allocate_ahead"] > 1, "asked again after another step"
    assert log.state is LogState.ONLINE and log.ballast.preallocation.held_bytes == 0 and len(read_all(log, 0)) == 40


def test_what_a_refusal_for_lack_of_room_took_goes_back_too() -> None:
    """A full file system gives some of the blocks before it says no: with the roll they are somebody else's."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    disk.inject("allocate_ahead", errno.ENOSPC, ".log", times=-1)
    for number in range(40):
        append(log, batch(size=100, timestamp=number))
    assert disk.hits["fault:allocate_ahead"]
    log.roll()
    flush(log)
    disk.inject("truncate", errno.EIO, ".log")
    with pytest.raises(OSError, match="injected"):
        seal(log)
    assert disk.hits["fault:truncate"] == 1, "of the log, not of the small files beside it"
    seal(log)


def test_a_full_disk_takes_the_append_that_fits_its_room_and_refuses_the_next() -> None:
    """What was taken is there to be used; only what needs more than that finds no space."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    for _ in range(4):
        append(log, batch(size=100))
    room = log.ballast.preallocation.held_bytes
    assert room > 200
    taken = disk.capacity_bytes - disk.space("/").free
    disk.capacity_bytes = taken
    before = log.local_bytes
    with pytest.raises(LogFull):
        while True:
            append(log, batch(size=10))
    assert log.local_bytes > before and log.ballast.preallocation.held_bytes == 0
    disk.capacity_bytes = 1 << 39
    append(log, batch(size=100))
    assert log.state is LogState.ONLINE


def test_what_a_kill_left_goes_back_when_the_log_is_opened() -> None:
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    for _ in range(4):
        append(log, batch(size=100))
    flush(log)
    left = disk.kill()
    taken = left.space("/").free
    _, found = open_log(left, CONFIG)
    assert left.space("/").free >= taken + 100
    assert read_all(found, 0) == read_all(log, 0)
    name = next(name for name in left.list_dir(LOG_PATH) if name.endswith(".log"))
    stat = left.stat(f"{LOG_PATH}/{name}")
    assert stat is not None and stat.size == found.local_bytes


def test_what_a_kill_left_to_a_rolled_segment_goes_back_when_the_log_is_opened() -> None:
    """Synced and checkpointed, so that recovery has no reason to read it; but nobody had trimmed it yet."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(size=100))
    flush(log)
    seal(log)  # the epoch
    for _ in range(3):
        append(log, batch(size=100))
    assert log.ballast.preallocation.held_bytes > 100
    log.roll()
    append(log, batch(size=20))
    flush(log)
    assert log.recovery_point == log.log_end_offset
    directory.checkpoints.sample([log]).run()
    left = disk.kill()
    _, found = open_log(left, CONFIG)
    assert read_all(found, 0) == read_all(log, 0)
    assert logs_held(left) == found.local_bytes


def logs_held(disk: CrashDisk) -> int:
    """What the files of segments take of the disk."""
    return sum(disk.taken(f"{LOG_PATH}/{name}") for name in disk.list_dir(LOG_PATH) if name.endswith(".log"))


def test_what_a_kill_left_goes_back_on_the_file_system_of_this_machine(tmp_path: Path) -> None:
    """The log is opened over the files of one that never closed; its size alone says where it ends."""
    _, log = real_log(tmp_path)
    for _ in range(15):
        append(log, batch(size=200_000))
    path = tmp_path / "orders-0"
    assert held_bytes(path) > log.local_bytes + (1 << 19)
    found = PartitionLog.open(
        PosixDisk(), log.path, "orders", 0, CONFIG, recovery_point=0, log_start=0, clean=False, now_ms=5
    )
    assert found.local_bytes == log.local_bytes and found.recovery.truncated_bytes == 0
    assert held_bytes(path) <= log.local_bytes + 8192
    assert read_all(found, 0) == read_all(log, 0)
