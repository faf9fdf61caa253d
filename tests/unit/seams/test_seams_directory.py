"""What a `Directory` must do, asked of the disk of this machine and of the simulated one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from seams.files.disk import Directory, Disk, FileStat, read_file, read_in, replace_in
from seams.files.posix_disk import PosixDisk
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk


class Stage:
    """A disk with an empty directory `at`, open."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk, self.root = disk, root
        self.at = f"{root}/log-0"
        disk.make_dirs(self.at)
        self.directory = disk.open_dir(self.at)


@pytest.fixture(params=["posix", "simulated"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    if request.param == "posix":
        return Stage(PosixDisk(), str(tmp_path))
    return Stage(CrashDisk(), "/data")


def put(directory: Directory, name: str, data: bytes) -> None:
    file = directory.open(name, write=True, create=True)
    file.write_at(0, [data])
    file.close()


def test_names_are_made_read_moved_and_removed(stage: Stage) -> None:
    directory = stage.directory
    assert directory.path == stage.at and directory.list() == []
    put(directory, "b", b"two")
    put(directory, "a", b"one")
    assert directory.list() == ["a", "b"]
    assert directory.stat("b") == FileStat(3, is_dir=False) and directory.stat("c") is None
    assert read_in(directory, "b") == read_file(stage.disk, f"{stage.at}/b") == b"two"
    directory.rename("b", "a")
    assert directory.list() == ["a"] and read_in(directory, "a") == b"two"
    replace_in(directory, "a", b"three")
    assert directory.list() == ["a"] and read_in(directory, "a") == b"three"
    directory.sync()
    directory.unlink("a")
    assert directory.list() == []


def test_a_file_and_its_errors_say_the_whole_path(stage: Stage) -> None:
    directory = stage.directory
    put(directory, "a", b"")
    assert directory.open("a").path == f"{stage.at}/a"
    calls: list[Callable[[], object]] = [lambda: directory.open("b"), lambda: directory.unlink("b")]
    for call in [*calls, lambda: directory.rename("b", "c")]:
        with pytest.raises(FileNotFoundError) as refused:
            call()
        assert refused.value.filename == f"{stage.at}/b"
    with pytest.raises(FileExistsError):
        directory.open("a", write=True, create=True, exclusive=True)


def test_a_directory_below_is_told_from_a_file(stage: Stage) -> None:
    stage.disk.make_dirs(f"{stage.at}/below")
    found = stage.directory.stat("below")
    assert found is not None and found.is_dir


def test_only_a_directory_is_opened_as_one(stage: Stage) -> None:
    put(stage.directory, "a", b"")
    with pytest.raises(NotADirectoryError):
        stage.disk.open_dir(f"{stage.at}/a")
    with pytest.raises(FileNotFoundError):
        stage.disk.open_dir(f"{stage.at}/b")


def test_what_comes_late_lands_in_the_renamed_directory_and_never_in_the_new_one_of_its_name(stage: Stage) -> None:
    disk, directory, moved = stage.disk, stage.directory, f"{stage.root}/log-0.deleted"
    for name in ("goes", "moves", "stays"):
        put(directory, name, b"old")
    disk.rename(stage.at, moved)
    disk.make_dirs(stage.at)
    new = disk.open_dir(stage.at)
    for name in ("goes", "moves"):
        put(new, name, b"new")

    put(directory, "made", b"late")
    replace_in(directory, "stays", b"late")
    directory.unlink("goes")
    directory.rename("moves", "moved")
    directory.sync()

    assert disk.list_dir(moved) == directory.list() == ["made", "moved", "stays"]
    assert read_file(disk, f"{moved}/stays") == read_in(directory, "stays") == b"late"
    assert directory.stat("goes") is None and directory.stat("moved") == FileStat(3, is_dir=False)
    assert new.list() == disk.list_dir(stage.at) == ["goes", "moves"]
    assert read_in(new, "moves") == b"new"
    assert directory.path == stage.at, "where it lay when it was opened"


def test_a_directory_is_followed_where_one_above_it_moves_and_moves_again(stage: Stage) -> None:
    disk = stage.disk
    disk.make_dirs(f"{stage.root}/above/log-0")
    directory = disk.open_dir(f"{stage.root}/above/log-0")
    for number in range(2):
        disk.rename(f"{stage.root}/above" if not number else f"{stage.root}/moved0", f"{stage.root}/moved{number}")
        put(directory, f"{number}", b"")
    assert disk.list_dir(f"{stage.root}/moved1/log-0") == ["0", "1"]


def test_in_a_removed_directory_nothing_is_found_or_made(stage: Stage) -> None:
    """Also where another one has its name by then."""
    directory = stage.directory
    put(directory, "a", b"")
    directory.unlink("a")
    stage.disk.remove_dir(stage.at)
    stage.disk.make_dirs(stage.at)
    put(stage.disk.open_dir(stage.at), "a", b"new")
    calls: list[Callable[[], object]] = [
        lambda: directory.open("a"),
        lambda: directory.open("b", write=True, create=True),
        lambda: directory.unlink("a"),
        lambda: directory.rename("a", "b"),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError):
            call()
    assert directory.stat("a") is None and directory.list() == []
    directory.sync()
    assert stage.disk.list_dir(stage.at) == ["a"]


def test_after_close_every_call_is_refused(stage: Stage) -> None:
    directory = stage.directory
    put(directory, "a", b"")
    file = directory.open("a")
    directory.close()
    directory.close()
    calls: list[Callable[[], object]] = [
        lambda: directory.open("a"),
        lambda: directory.stat("a"),
        directory.list,
        lambda: directory.rename("a", "b"),
        lambda: directory.unlink("a"),
        directory.sync,
    ]
    for call in calls:
        with pytest.raises(OSError, check=lambda error: error.errno == errno.EBADF):
            call()
    assert directory.path == stage.at
    assert file.read_at(0, 1) == b"", "files that were opened in it stay open"
    assert stage.disk.list_dir(stage.at) == ["a"]


# --- the simulated disk alone -----------------------------------------------------------------------------------------


def simulated() -> tuple[CrashDisk, Directory]:
    disk = CrashDisk()
    disk.make_dirs("/data/log-0")
    disk.sync_dir("/")
    disk.sync_dir("/data")
    return disk, disk.open_dir("/data/log-0")


def test_names_survive_a_power_cut_once_their_directory_is_synced_also_where_it_was_renamed() -> None:
    disk, directory = simulated()
    put(directory, "before", b"")
    directory.sync()
    disk.rename("/data/log-0", "/data/gone")
    disk.sync_dir("/data")
    put(directory, "synced", b"")
    directory.sync()
    put(directory, "unsynced", b"")
    after = disk.crash(SeededRng(1), 0.0)
    assert after.list_dir("/data") == ["gone"] and after.list_dir("/data/gone") == ["before", "synced"]


def test_effects_and_faults_go_by_where_the_directory_lies_now() -> None:
    disk, directory = simulated()
    disk.rename("/data/log-0", "/data/gone")
    disk.make_dirs("/data/log-0")
    effects: list[tuple[str, str]] = []
    disk.on_effect = lambda kind, path: effects.append((kind, path))
    put(directory, "a", b"x")
    directory.rename("a", "b")
    directory.sync()
    directory.unlink("b")
    at = "/data/gone"
    assert effects == [
        ("create", f"{at}/a"), ("write", f"{at}/a"), ("rename", f"{at}/b"), ("sync_dir", at), ("unlink", f"{at}/b"),
    ]  # fmt: skip
    disk.inject("create", errno.EIO, below="/data/log-0", times=-1)
    put(directory, "c", b"")
    disk.inject("unlink", errno.EIO, "/gone/c")
    with pytest.raises(OSError, match="injected"):
        directory.unlink("c")


@pytest.mark.parametrize("after", [CrashDisk.kill, lambda disk: disk.crash(SeededRng(1), 1.0)])
def test_a_handle_means_nothing_to_the_disk_after_a_kill_or_a_power_cut(
    after: Callable[[CrashDisk], CrashDisk],
) -> None:
    disk, directory = simulated()
    found = after(disk)
    put(directory, "late", b"")
    assert directory.list() == ["late"] and found.list_dir("/data/log-0") == []
