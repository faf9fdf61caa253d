"""What went wrong on other people's local disks (T27, T28): not understood is never deleted; a rename is
durable only with its directory; a full disk is told."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import partial

import pytest
from msgspec.structs import replace

from hotstore.log.log_config import LogConfig
from logformat.errors import Corrupt
from seams.files.disk import read_file, replace_file
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.crash_disk import Fault as DiskFault
from tests.support.disk.hotstore_kit import DATA, LOG_PATH, append, batch, flush, new_log, open_log, read_all, seal
from tests.support.disk.power_cut import cut_off

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150)
TIERED = replace(CONFIG, tiered=True)


def written(*, clean: bool) -> tuple[CrashDisk, list[bytes]]:
    """Several segments and three epochs, everything durable."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    batches: list[bytes] = []
    for number in range(24):
        data = batch(2, timestamp=1000 * number, producer_id=3, epoch=0, sequence=2 * number)
        append(log, data, leader_epoch=number // 9, now_ms=number)
        batches.append(bytes(data))
    flush(log)
    seal(log)
    directory.checkpoints.sample([log]).run()
    if clean:
        log.close(clean=True)
        directory.mark_clean()
    return disk.crash(SeededRng(1), 0.0), batches


def small_files(disk: CrashDisk) -> list[str]:
    """Everything but segments, indexes and locks."""
    paths = [f"{DATA}/{name}" for name in disk.list_dir(DATA)] + [f"{LOG_PATH}/{n}" for n in disk.list_dir(LOG_PATH)]
    return [path for path in paths if not path.endswith((".log", "index", ".lock", "orders-0"))]


def wrecked(content: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "half", content[: len(content) // 2]
    yield "noise", bytes(SeededRng("noise").randrange(256) for _ in range(max(len(content), 64)))
    yield "zeros", bytes(len(content))
    yield (
        "newer",
        content.replace(b"0\n", b"9\n", 1).replace(b"version=1", b"version=9").replace(b"\x00\x01", b"\x00\x63"),
    )
    yield "twice", content + content


@pytest.mark.parametrize("clean", [True, False])
def test_peer_t27_what_is_not_recognised_is_refused_and_never_deleted(clean: bool) -> None:
    """NATS #7549, #7556: a corrupt snapshot made an "orphaned stream", whose data was deleted; a bit flip in a minority
    took data out of the middle. Each small file of a data directory is wrecked in six ways: the log opens with all its
    records or is refused by name, and no byte of a segment and no foreign file is ever touched."""
    disk, batches = written(clean=clean)
    disk.open(f"{LOG_PATH}/stream.meta", write=True, create=True).write_at(0, [b"somebody's"])
    segments = {
        name: read_file(disk, f"{LOG_PATH}/{name}") for name in disk.list_dir(LOG_PATH) if name.endswith(".log")
    }
    refused = opened = 0
    files = small_files(disk)
    assert len(files) >= 8, files
    for path in files:
        if path.endswith("stream.meta"):
            continue
        for how, content in wrecked(read_file(disk, path)):
            damaged = disk.kill()
            file = damaged.open(path, write=True)
            file.truncate(0)
            file.write_at(0, [content])
            file.sync()
            try:
                _, log = open_log(damaged, CONFIG)
            except Corrupt as refusal:
                refused += 1
                assert str(refusal)
            else:
                opened += 1
                assert read_all(log, log.log_start_offset) == batches[log.log_start_offset // 2 :], (path, how)
                assert log.log_start_offset == 0 or path.endswith("log-start-offset-checkpoint"), (path, how)
            after = {name: read_file(damaged, f"{LOG_PATH}/{name}") for name in segments}
            assert after == segments, (path, how)
            assert read_file(damaged, f"{LOG_PATH}/stream.meta") == b"somebody's"
    assert refused > 5 and opened > 20


def test_peer_t28_a_replaced_file_is_old_or_new_at_every_power_cut() -> None:
    """litestream #1344: a rename without a sync of its directory was lost by a power cut. A power cut before each
    effect of `replace_file` finds the old file or the new one, whole; one after its return finds the new one."""
    for keep in (0.0, 0.3, 0.7, 1.0):
        cut_at = 0
        while True:
            disk = CrashDisk()
            disk.make_dirs("/data")
            disk.sync_dir("/")
            replace_file(disk, "/data/f", b"old" * 400)
            done = cut_off(disk, cut_at, partial(replace_file, disk, "/data/f", b"newer" * 400))
            after = disk.crash(SeededRng(f"{keep}/{cut_at}"), keep)
            found = read_file(after, "/data/f")
            assert found in ((b"newer" * 400,) if done else (b"old" * 400, b"newer" * 400)), (keep, cut_at)
            if done:
                break
            cut_at += 1
        assert cut_at >= 4, "write, sync, rename, sync of the directory"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["create", "truncate", "write", "sync", "rename", "sync_dir"])
def test_peer_t28_a_full_disk_is_told_and_leaves_the_old_file(operation: str, code: int) -> None:
    """litestream 4e3f0c0: disk-full was swallowed. Whatever step of `replace_file` fails, its caller hears of it, and
    the old content or the new one is there, whole."""
    disk = CrashDisk()
    disk.make_dirs("/data")
    disk.sync_dir("/")
    replace_file(disk, "/data/f", b"old" * 400)
    before = disk.hits.copy()
    replace_file(disk, "/data/f", b"old" * 400)
    assert disk.hits[operation] > before[operation], "it takes this step"
    disk.faults.append(DiskFault(operation, code))
    with pytest.raises(OSError) as told:
        replace_file(disk, "/data/f", b"newer" * 400)
    assert told.value.errno == code
    for keep in (0.0, 0.5, 1.0):
        assert read_file(disk.crash(SeededRng(keep), keep), "/data/f") in (b"old" * 400, b"newer" * 400)


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_restart_at_the_buckets_end_cut_off_anywhere_leaves_a_log_that_opens(keep: float) -> None:
    """Our own, by a random walk (seed 93): the file that proves where a restarted log ends was written before its old
    segments were gone, and a crash in between left a log that was refused. Cut before every effect: old or new."""
    ends = set()
    cut_at = 0
    while True:
        disk, _ = written(clean=False)
        _, log = open_log(disk, TIERED)
        done = cut_off(disk, cut_at, partial(log.start_at, 1000, log.epochs, ()))
        after = disk.crash(SeededRng(f"{keep}/{cut_at}"), keep)
        _, again = open_log(after, TIERED)
        assert again.log_end_offset == 1000 if done else again.log_end_offset in (48, 1000)
        ends.add(again.log_end_offset)
        if done:
            break
        cut_at += 1
    assert ends == {48, 1000} and cut_at > 10
