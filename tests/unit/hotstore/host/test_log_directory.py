"""A log works in the directory that it opened, wherever that lies, and lets go of it."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hotstore.errors import DamagedLog, ForeignLog
from hotstore.file_names import EPOCHS_FILE
from hotstore.host.data_dir import DataDir
from hotstore.log.log_config import LogConfig
from hotstore.recovery.log_loading import make_log, recover_log
from logformat.checkpoints import PARTITION_METADATA_FILE
from logformat.values import NewerFormat
from seams.files.posix_disk import PosixDisk
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import LOG_PATH, ORDERS, TOPIC_ID, append, batch, flush, new_log, seal

CONFIG = LogConfig()
OTHER_ID = bytes(15) + b"\x01"


def descriptors(below: Path) -> list[str]:
    """What this process has open there."""
    gc.collect()  # a refused opening's files hang on its exception
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    found = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(path for path in found if path.startswith(f"{below}/") and not path.endswith("/.lock"))


def damaged(path: Path) -> None:
    (path / f"{0:020}.log").unlink()


def of_a_newer_version(path: Path) -> None:
    (path / EPOCHS_FILE).write_text("9\n0\n")


def unreadable(path: Path) -> None:
    (path / PARTITION_METADATA_FILE).unlink()
    (path / PARTITION_METADATA_FILE).mkdir()


@pytest.mark.parametrize(
    ("spoil", "topic_id", "refusal"),
    [
        (damaged, TOPIC_ID, DamagedLog),
        (lambda path: None, OTHER_ID, ForeignLog),
        (of_a_newer_version, TOPIC_ID, NewerFormat),
        (unreadable, TOPIC_ID, IsADirectoryError),
    ],
)
def test_no_descriptor_of_a_log_stays_open(
    tmp_path: Path, spoil: Callable[[Path], object], topic_id: bytes, refusal: type[Exception]
) -> None:
    """Of one that was made, closed clean or not, opened, or refused."""
    data_dir = DataDir.open(PosixDisk(), str(tmp_path))
    path = str(tmp_path / "orders-0")
    log = make_log(data_dir, ORDERS, TOPIC_ID, CONFIG)
    append(log, batch(3))
    assert descriptors(tmp_path) == [path, f"{path}/{0:020}.log"]
    log.close(clean=True)
    data_dir.checkpoints.sample([log]).run()
    del log
    assert descriptors(tmp_path) == []
    log = recover_log(data_dir, ORDERS, CONFIG, 10_000, TOPIC_ID)
    assert descriptors(tmp_path) == [path, f"{path}/{0:020}.log"]
    log.close(clean=False)
    del log
    assert descriptors(tmp_path) == []
    spoil(tmp_path / "orders-0")
    try:
        recover_log(data_dir, ORDERS, CONFIG, 10_000, topic_id)
        raise AssertionError("it opened")
    except refusal:
        assert path not in descriptors(tmp_path), "closed, also while the exception is being handled"
    assert descriptors(tmp_path) == []
    data_dir.close()


def test_a_log_lets_go_of_its_directory_also_where_closing_fails() -> None:
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    append(log, batch(3))
    disk.inject("sync", errno.EIO, ".log")
    with pytest.raises(OSError, match="injected"):
        log.close(clean=True)
    with pytest.raises(OSError, check=lambda error: error.errno == errno.EBADF):
        log.directory.list()


def test_a_log_is_told_by_the_place_where_it_was_made() -> None:
    """Not by the name under which its directory was staged: operators look there."""
    _, log = new_log(CrashDisk(), CONFIG)
    assert log.path == LOG_PATH and log.active_segment.file.path == f"{LOG_PATH}/{0:020}.log"


def test_what_a_log_does_late_lands_in_its_own_directory_whatever_has_its_name_by_then() -> None:
    """A roll, the small files beside it and a clean close, after another topic's log took the name."""
    disk = CrashDisk()
    data_dir, old = new_log(disk, CONFIG)
    append(old, batch(3))
    flush(old)
    moved = data_dir.mark_deleted(*ORDERS, "f" * 32)
    new = make_log(data_dir, ORDERS, OTHER_ID, CONFIG)
    append(new, batch(1))
    flush(new)
    before = {name: disk.stat(f"{LOG_PATH}/{name}") for name in disk.list_dir(LOG_PATH)}

    assert old.roll()
    flush(old)
    seal(old)
    old.close(clean=True)

    assert {name: disk.stat(f"{LOG_PATH}/{name}") for name in disk.list_dir(LOG_PATH)} == before
    late = {f"{0:020}.index", f"{0:020}.timeindex", f"{3:020}.log", f"{3:020}.snapshot"}
    assert late <= set(disk.list_dir(moved))
