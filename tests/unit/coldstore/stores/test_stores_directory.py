"""What only a directory bucket must do: order of system calls, crashes, races of processes, litter, a lost mount."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from coldstore.inspection.probe import StoreCondition, StoreRefused, probe
from coldstore.object_store import (
    AccessRefused,
    ConditionalConflict,
    ObjectMissing,
    ObjectStore,
    StoreAway,
    StoreError,
    StoreUnavailable,
)
from coldstore.stores.directory import DirectoryDeadlines, DirectoryStore
from coldstore.stores.directory_files import SMALL_BYTES_MAX, DirectoryFiles
from logformat.errors import InvalidRequest
from seams.clock import SystemClock
from seams.files.disk import Buffer
from seams.files.part_writer import PART_MAX, PART_MIN
from seams.files.posix_disk import PosixDisk
from seams.loop.workers import ThreadWorkers
from seams.rng import SeededRng, SystemRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.store.memory_store import upload_of
from tests.support.workers import InlineWorkers

BIG = os.urandom(SMALL_BYTES_MAX + 1)


class WatchedDisk(PosixDisk):
    """A disk that notes every effect, in order, and can fail the n-th one before or after it took place."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, str]] = []
        self.fail_at = -1
        self.after = False

    def _effect(self, name: str, path: str, act: Callable[[], Any]) -> Any:
        number = len(self.effects)
        self.effects.append((name, path))
        if number == self.fail_at and not self.after:
            raise OSError(errno.EIO, "made up, before", path)
        result = act()
        if number == self.fail_at:
            raise OSError(errno.EIO, "made up, after", path)
        return result

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> Any:
        if not write:
            return super().open(path)
        file = self._effect("create", path, lambda: super(WatchedDisk, self).open(path, write=True, create=True))
        return WatchedFile(self, file)

    def rename(self, source: str, target: str) -> None:
        self._effect("rename", target, lambda: super(WatchedDisk, self).rename(source, target))

    def link(self, source: str, target: str) -> None:
        self._effect("link", target, lambda: super(WatchedDisk, self).link(source, target))

    def make_dirs(self, path: str) -> None:
        self._effect("make_dirs", path, lambda: super(WatchedDisk, self).make_dirs(path))

    def sync_dir(self, path: str) -> None:
        self._effect("sync_dir", path, lambda: super(WatchedDisk, self).sync_dir(path))

    def unlink(self, path: str) -> None:
        self._effect("unlink", path, lambda: super(WatchedDisk, self).unlink(path))


class WatchedFile:
    def __init__(self, disk: WatchedDisk, file: Any) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> Any:
        return self._disk._effect("write", self._file.path, lambda: self._file.write_at(position, buffers))

    def sync(self) -> None:
        self._disk._effect("sync", self._file.path, self._file.sync)


@pytest.fixture
def workers() -> Iterator[ThreadWorkers]:
    workers = ThreadWorkers()
    yield workers
    workers.close()


def run(store: ObjectStore, scenario: Callable[[ObjectStore], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario(store)
            await store.close()

    asyncio.run(main())


def test_an_object_has_its_name_only_when_its_bytes_are_durable(tmp_path: Path, workers: ThreadWorkers) -> None:
    """write → sync → link or rename → every directory up to the bucket's parent, before the answer."""
    disk = WatchedDisk()
    root = str(tmp_path / "bucket")
    store = DirectoryStore(disk, workers, root, SystemRng())

    async def scenario(store: ObjectStore) -> None:
        await store.put_segment("topics/t/0/segments/s", upload_of(BIG))
        names = [(name, path) for name, path in disk.effects if "/.thermocline/locks" not in path]
        order = [name for name, _ in names]
        assert order.index("write") < order.index("sync") < order.index("link")
        linked = names.index(("link", f"{root}/topics/t/0/segments/s"))
        synced = {path for name, path in names[linked:] if name == "sync_dir"}
        chain = {f"{root}{part}" for part in ("", "/topics", "/topics/t", "/topics/t/0", "/topics/t/0/segments")}
        assert chain <= synced
        assert ("sync_dir", str(tmp_path)) in names[:linked], "the bucket's own name"
        etag = await store.put_root("topics/t/0/manifest.json", b"1", None)
        disk.effects.clear()
        await store.put_root("topics/t/0/manifest.json", b"2", etag)
        assert [name for name, _ in disk.effects] == ["create", "write", "sync", "rename", "sync_dir", "unlink"]

    run(store, scenario)


def test_a_large_object_is_synced_as_it_is_written(tmp_path: Path, workers: ThreadWorkers) -> None:
    """The sync of a produce waited until 64 MiB of a copied segment were written."""
    disk = WatchedDisk()

    async def scenario(store: ObjectStore) -> None:
        await store.put_segment("topics/t/0/segments/s", upload_of(bytes(3 * PART_MAX + 5), PART_MAX))
        order = [name for name, path in disk.effects if name in ("write", "sync", "link") and "/locks" not in path]
        syncs = order.count("sync")
        assert order[-2:] == ["sync", "link"]
        assert 4 <= syncs <= 3 * PART_MAX // PART_MIN + 1

    run(DirectoryStore(disk, workers, str(tmp_path / "bucket"), SystemRng()), scenario)


def test_directories_known_to_be_durable_are_not_synced_again(tmp_path: Path, workers: ThreadWorkers) -> None:
    """Roots that were there before this process: for each the names up to one that is known, thousands at a start."""
    root = str(tmp_path / "bucket")
    keys = [f"topics/{place}/manifest.json" for place in ("t/0", "t/1", "u/0")]
    etags: dict[str, str] = {}

    async def before(store: ObjectStore) -> None:
        etags.update({key: await store.put_root(key, b"1", None) for key in keys})

    async def after(store: ObjectStore) -> None:
        await store.put_root("lease.json", b"1", None)  # and all that a first write does
        synced = []
        for key in keys:
            disk.effects.clear()
            await store.put_root(key, b"2", etags[key])
            below = [path.removeprefix(root) for name, path in disk.effects if name == "sync_dir"]
            synced.append([path for path in below if path == "" or path.startswith("/topics")])
        assert synced == [
            ["/topics/t/0", "/topics/t", "/topics", ""],
            ["/topics/t/1", "/topics/t"],
            ["/topics/u/0", "/topics/u", "/topics"],
        ]

    run(DirectoryStore(WatchedDisk(), workers, root, SystemRng()), before)
    disk = WatchedDisk()
    run(DirectoryStore(disk, workers, root, SystemRng()), after)


def test_a_root_is_read_only_once_it_is_durable(tmp_path: Path, workers: ThreadWorkers) -> None:
    """C3: the directory sync after a rename failed; the read-back must not report a commit that a power cut undoes."""
    disk = WatchedDisk()
    store = DirectoryStore(disk, workers, str(tmp_path), SystemRng())

    async def scenario(store: ObjectStore) -> None:
        etag = await store.put_root("root", b"1", None)
        disk.effects.clear()
        disk.fail_at = 4  # sync_dir after the rename
        with pytest.raises(StoreUnavailable):
            await store.put_root("root", b"2", etag)
        assert disk.effects[4] == ("sync_dir", str(tmp_path))
        disk.effects.clear()
        disk.fail_at = 0
        with pytest.raises(StoreUnavailable):
            await store.get("root")
        disk.effects.clear()
        with pytest.raises(StoreUnavailable):
            await store.get_if_changed("root", etag)
        disk.effects.clear()
        disk.fail_at = -1
        assert (await store.get("root")).data == b"2"
        assert disk.effects == [("sync_dir", str(tmp_path))]

    run(store, scenario)


@pytest.mark.parametrize("after", [False, True])
def test_a_failure_at_any_effect_leaves_old_or_new(tmp_path: Path, workers: ThreadWorkers, after: bool) -> None:
    """EIO at each system call of create, replace and segment: the object is as before or whole, the call an error,
    and the next writer is not hindered by what is left."""
    counted = 0

    async def attempt(number: int) -> bool:
        """One scenario with the failure at effect `number`; False when it was not reached."""
        nonlocal counted
        disk = WatchedDisk()
        root = f"{tmp_path}/{number}"
        store = DirectoryStore(disk, workers, root, SystemRng())
        disk.fail_at, disk.after = number, after
        failed = False
        etag = None
        for data in (b"first", b"second"):
            try:
                etag = await store.put_root("a/root", data, etag)
            except StoreError:
                failed = True
                break
        try:
            await store.put_segment("a/b/segment", upload_of(BIG))
        except StoreError:
            failed = True
        disk.fail_at = -1
        await store.close()
        fresh = DirectoryStore(PosixDisk(), workers, root, SystemRng())
        seen = {info.key: (await fresh.get(info.key)).data async for info in fresh.list("")}
        assert seen.get("a/root") in (None, b"first", b"second")
        assert seen.get("a/b/segment") in (None, BIG)
        found = await fresh.head("a/root") if "a/root" in seen else None
        await fresh.put_root("a/root", b"third", found.etag if found else None)
        await fresh.close()
        assert os.listdir(f"{root}/.thermocline/tmp") == []
        reached = len(disk.effects) > number
        counted += reached
        assert failed or not reached or disk.effects[number][0] == "unlink"
        return reached

    async def main() -> None:
        number = 0
        while await attempt(number):
            number += 1

    asyncio.run(main())
    assert counted >= 25


@pytest.mark.not_fast
def test_a_power_cut_clean_up_never_touches_a_living_writer(tmp_path: Path, workers: ThreadWorkers) -> None:
    """Temporary files of killed writers go at the next writer's start; those of one that lives stay."""
    program = (
        f"import sys; sys.path.insert(0, {os.getcwd()!r})\n"
        "from coldstore.stores.directory_files import DirectoryFiles\n"
        "from seams.clock import SystemClock; from seams.rng import SystemRng\n"
        "from seams.files.posix_disk import PosixDisk\n"
        f"files = DirectoryFiles(PosixDisk(), {str(tmp_path)!r}, SystemRng(), 5.0, SystemClock())\n"
        "files.prepare(); open(files._temporary(), 'wb').write(b'half')\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    dead, living = (
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    )
    for process in (dead, living):
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    tmp = tmp_path / ".thermocline" / "tmp"
    assert len(list(tmp.iterdir())) == 4
    files = DirectoryFiles(PosixDisk(), str(tmp_path), SystemRng(), 5.0, SystemClock())
    files.prepare()
    left = sorted(path.name for path in tmp.iterdir())
    assert len(left) == 3 and f"{files._writer}.lock" in left
    assert any(not name.endswith(".lock") for name in left), "the living writer's temporary file is still there"
    living.communicate()
    files.forget_writer()


class PowerCut(BaseException):
    """Raised in the middle of a system call; nothing above catches it."""


async def write_history(store: ObjectStore, acked: dict[str, bytes | None], tried: dict[str, bytes | None]) -> None:
    """A short life of a bucket: `tried` before each write, `acked` after its answer."""

    async def root(key: str, data: bytes, etag: str | None) -> str:
        tried[key] = data
        answer = await store.put_root(key, data, etag)
        acked[key] = data
        return answer

    first = await root("cluster.json", b"c1" * 400, None)
    second = await root("t/0/manifest.json", b"m1" * 400, None)
    for number in (1, 2):
        key = f"t/0/segments/{number}"
        tried[key] = BIG
        await store.put_segment(key, upload_of(BIG, 100_000))
        acked[key] = BIG
        second = await root("t/0/manifest.json", f"m2{number}".encode() * 400, second)
    tried["t/0/segments/1"] = None
    await store.delete(["t/0/segments/1"])
    acked["t/0/segments/1"] = None
    await root("cluster.json", b"c2" * 400, first)


def test_a_power_cut_at_every_effect_takes_nothing_back() -> None:
    """What was answered is there after the cut, what was read before the cut too, and nothing is half there."""
    cuts = 0

    async def content(store: ObjectStore, key: str) -> bytes | None:
        try:
            return (await store.get(key)).data
        except ObjectMissing:
            return None

    async def one_cut(effect: int) -> bool:
        nonlocal cuts
        left = [effect]

        def count_down(_kind: str, _path: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise PowerCut

        disk = CrashDisk(on_effect=count_down)
        acked: dict[str, bytes | None] = {}
        tried: dict[str, bytes | None] = {}
        done = False
        try:
            await write_history(DirectoryStore(disk, InlineWorkers(), "/data/bucket", SeededRng(1)), acked, tried)
            done = True
        except PowerCut:
            pass
        left[0] = 1 << 30
        # SIGKILL instead: another process reads the roots and acts on them; only then the power goes.
        killed = disk.kill()
        reader = DirectoryStore(killed, InlineWorkers(), "/data/bucket", SeededRng(2))
        read = {key: await content(reader, key) for key in ("cluster.json", "t/0/manifest.json")}
        for probability in (0.0, 0.3, 0.7):
            for source, must in ((disk, acked), (killed, acked | {k: v for k, v in read.items() if v is not None})):
                after = source.crash(SeededRng(f"{effect} {probability}"), probability)
                store = DirectoryStore(after, InlineWorkers(), "/data/bucket", SeededRng(3))
                for key, data in tried.items():
                    assert await content(store, key) in (must.get(key), data), (effect, probability, key)
                etag = (await store.head("cluster.json")).etag if await content(store, "cluster.json") else None
                await store.put_root("cluster.json", b"c3", etag)
                cuts += 1
        return not done

    async def main() -> None:
        effect = 0
        while await one_cut(effect):
            effect += 1

    asyncio.run(main())
    assert cuts > 400


RACER = """
import asyncio, sys
sys.path.insert(0, {repo!r})
from coldstore.object_store import ConditionalConflict, PreconditionFailed
from coldstore.stores.directory import DirectoryStore
from seams.files.posix_disk import PosixDisk
from seams.loop.workers import ThreadWorkers
from seams.rng import SystemRng

async def main():
    workers = ThreadWorkers()
    store = DirectoryStore(PosixDisk(), workers, {root!r}, SystemRng())
    async def one(key, etag):
        try:
            # A fresh uuid, as roots have a fresh commit id: equal bytes would be the same ETag again.
            return await store.put_root(key, SystemRng().uuid().bytes * 500, etag)
        except (PreconditionFailed, ConditionalConflict):
            return None
    await one('warm/' + sys.argv[1], None)
    print('ready', flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        key, etag = line.split()
        answers = await asyncio.gather(*(one(key, None if etag == '-' else etag) for _ in range(10)))
        print(' '.join(answer for answer in answers if answer), flush=True)
    await store.close(); workers.close()
asyncio.run(main())
"""


@pytest.mark.not_fast
def test_50_writers_in_5_processes_have_one_winner_each_round(tmp_path: Path, workers: ThreadWorkers) -> None:
    """Creating and replacing: check-then-rename without the lock had several."""
    program = RACER.format(repo=os.getcwd(), root=str(tmp_path))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(5)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
        for number in range(10):
            etag = "-"
            for _ in ("create", "replace", "replace"):
                for racer in racers:
                    assert racer.stdin is not None
                    racer.stdin.write(f"roots/{number} {etag}\n")
                    racer.stdin.flush()
                won = " ".join(racer.stdout.readline() for racer in racers if racer.stdout is not None).split()
                assert len(won) == 1
                etag = won[0]
    finally:
        for racer in racers:
            racer.communicate()


class _PrunedMeanwhile(PosixDisk):
    """A directory that is there when it is to be made, and gone when makedirs looks what is there."""

    def __init__(self, times: int) -> None:
        self.left = times

    def make_dirs(self, path: str) -> None:
        if self.left and path.endswith("segments"):
            self.left -= 1
            raise FileExistsError(17, "File exists", path)
        super().make_dirs(path)


def test_a_put_survives_a_directory_that_goes_while_it_is_made(tmp_path: Path) -> None:
    disk = _PrunedMeanwhile(2)
    files = DirectoryFiles(disk, str(tmp_path), SystemRng(), 5.0, SystemClock())
    files.prepare()
    files.write_segment("topics/t/0/segments/1", upload_of(b"x" * 10))
    assert files.read_range("topics/t/0/segments/1", 0, 10).data == b"x" * 10
    assert disk.left == 0


def test_puts_survive_the_pruning_of_their_directories(tmp_path: Path) -> None:
    """A deleter removes empty directories while others put into them: no put fails, none is lost."""
    stores = [DirectoryFiles(PosixDisk(), str(tmp_path), SystemRng(), 5.0, SystemClock()) for _ in range(3)]
    for files in stores:
        files.prepare()

    def put_and_delete(files: DirectoryFiles, who: int) -> None:
        for number in range(150):
            key = f"topics/t/0/segments/{who}-{number}"
            files.write_segment(key, upload_of(b"x" * 10))
            assert files.read_range(key, 0, 10).data == b"x" * 10
            files.unlink_all([key])

    with ThreadPoolExecutor(3) as pool:
        for result in [pool.submit(put_and_delete, files, who) for who, files in enumerate(stores)]:
            result.result()
    assert [path.name for path in tmp_path.iterdir()] == [".thermocline"]


def test_a_bucket_that_went_away_is_an_outage_not_an_empty_bucket(tmp_path: Path, workers: ThreadWorkers) -> None:
    """Moved aside or unmounted under a broker: nothing is "missing", nothing is written into the void, and
    each call says what happened to the bucket, not to a file of ours in it."""
    root = tmp_path / "bucket"
    store = DirectoryStore(PosixDisk(), workers, str(root), SystemRng())

    async def scenario(store: ObjectStore) -> None:
        with pytest.raises(ObjectMissing):
            await store.get("cluster.json")  # before the first write there is no bucket yet
        etag = await store.put_root("cluster.json", b"1", None)
        await store.put_segment("s", upload_of(BIG))
        root.rename(tmp_path / "aside")
        for empty in (False, True):  # gone, or an empty mount point
            if empty:
                root.mkdir()
            with pytest.raises(StoreUnavailable, match="directory is gone; mount it or move it back"):
                await store.get("cluster.json")
            with pytest.raises(StoreUnavailable, match="directory is gone; mount it or move it back"):
                await store.get("s", 0, 10)
            with pytest.raises(StoreUnavailable, match="directory is gone; mount it or move it back"):
                store.open_local("s")
            with pytest.raises(StoreUnavailable, match="directory is gone; mount it or move it back"):
                [info async for info in store.list("")]
            with pytest.raises(StoreUnavailable, match="directory is gone; mount it or move it back"):
                await store.put_segment("s2", upload_of(b"x"))
            with pytest.raises(StoreUnavailable, match="directory is gone; mount it or move it back"):
                await store.put_root("cluster.json", b"2", etag)
        assert list(root.iterdir()) == []
        root.rmdir()
        (tmp_path / "aside").rename(root)
        assert (await store.get("cluster.json")).data == b"1"

    run(store, scenario)


def test_an_object_opens_as_a_file_to_send_from(tmp_path: Path, workers: ThreadWorkers) -> None:
    """open_local gives the object itself, which stays readable when it is deleted under its reader."""
    store = DirectoryStore(PosixDisk(), workers, str(tmp_path), SystemRng())

    async def scenario(store: ObjectStore) -> None:
        await store.put_segment("a/s", upload_of(BIG))
        file = store.open_local("a/s")
        assert file is not None and file.descriptor() is not None
        await store.delete(["a/s"])
        assert file.read_at(0, len(BIG)) == BIG
        file.close()
        for key in ("a/s", "a"):
            with pytest.raises(ObjectMissing):
                store.open_local(key)
        with pytest.raises(InvalidRequest):
            store.open_local("../etc/passwd")

    run(store, scenario)


def test_nothing_lies_beside_the_objects(tmp_path: Path, workers: ThreadWorkers) -> None:
    """`<root>/<key>` is the object, byte for byte, and the system directory is never listed."""
    store = DirectoryStore(PosixDisk(), workers, str(tmp_path), SystemRng())

    async def scenario(store: ObjectStore) -> None:
        await store.put_root("cluster.json", b"{}", None)
        await store.put_segment("topics/t/s", upload_of(BIG))
        assert (tmp_path / "topics/t/s").read_bytes() == BIG
        assert [info.key async for info in store.list("")] == ["cluster.json", "topics/t/s"]
        assert [info.key async for info in store.list(".thermocline")] == []
        assert sorted(os.listdir(tmp_path)) == [".thermocline", "cluster.json", "topics"]
        assert os.stat(tmp_path / "topics/t/s").st_nlink == 1, "no hard link is left (C22)"

    run(store, scenario)


def test_a_key_below_an_object_is_refused(tmp_path: Path, workers: ThreadWorkers) -> None:
    """`a` excludes `a/b` on a file system; it is the caller's error, not an outage to wait for."""
    store = DirectoryStore(PosixDisk(), workers, str(tmp_path), SystemRng())

    async def scenario(store: ObjectStore) -> None:
        await store.put_segment("a", upload_of(b"x"))
        for key in ("a/b", "a/b/c"):
            with pytest.raises(InvalidRequest):
                await store.put_segment(key, upload_of(b"y"))
            with pytest.raises(InvalidRequest):
                await store.put_root(key, b"y", None)

    run(store, scenario)


def test_a_held_lock_is_a_conflict(tmp_path: Path, workers: ThreadWorkers) -> None:
    """A writer that hangs with the lock costs the others a bounded wait, and "undecided", never a wrong answer."""
    deadlines = DirectoryDeadlines(lock_s=0.05)
    store = DirectoryStore(PosixDisk(), workers, str(tmp_path), SystemRng(), deadlines)

    async def scenario(store: ObjectStore) -> None:
        etag = await store.put_root("root", b"1", None)
        held = [PosixDisk().lock(str(path)) for path in (tmp_path / ".thermocline/locks").iterdir()]
        with pytest.raises(ConditionalConflict):
            await store.put_root("root", b"2", etag)
        for lock in held:
            lock.release()
        await store.put_root("root", b"2", etag)

    run(store, scenario)


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EACCES, AccessRefused), (errno.EROFS, AccessRefused), (errno.ENOSPC, StoreUnavailable)],
)
def test_the_disks_errors_say_what_to_do(
    tmp_path: Path, workers: ThreadWorkers, number: int, error: type[Exception]
) -> None:
    """Permissions are an operator's, a full disk may be emptied."""

    class Failing(PosixDisk):
        def link(self, source: str, target: str) -> None:
            raise OSError(number, os.strerror(number), target)

    store = DirectoryStore(Failing(), workers, str(tmp_path), SystemRng())

    async def scenario(store: ObjectStore) -> None:
        with pytest.raises(error):
            await store.put_segment("s", upload_of(b"x"))
        assert [info async for info in store.list("")] == []

    run(store, scenario)


def test_a_stuck_disk_costs_a_deadline(tmp_path: Path, workers: ThreadWorkers) -> None:
    """NFS away, a dying disk: the call ends as "unknown"; the loop was never blocked."""
    gate = threading.Event()

    class Stuck(PosixDisk):
        def sync_dir(self, path: str) -> None:
            gate.wait(10)
            super().sync_dir(path)

    store = DirectoryStore(Stuck(), workers, str(tmp_path), SystemRng(), DirectoryDeadlines(small_s=0.1))

    async def scenario(store: ObjectStore) -> None:
        with pytest.raises(StoreUnavailable):
            await store.put_root("root", b"1", None)
        gate.set()

    run(store, scenario)


def test_a_close_ends_without_the_disk(
    tmp_path: Path, workers: ThreadWorkers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression, seed 515 of the simulation: a broker that stopped cleanly ended by an exception."""
    gate = threading.Event()
    deadlines = DirectoryDeadlines(small_s=0.2)
    store = DirectoryStore(PosixDisk(), workers, str(tmp_path / "bucket"), SystemRng(), deadlines)

    async def scenario(store: ObjectStore) -> None:
        await store.put_root("root", b"1", None)
        monkeypatch.setattr(DirectoryFiles, "forget_writer", lambda _: gate.wait())
        await store.close()
        gate.set()

    run(store, scenario)
    assert "the next writer removes it" in caplog.text


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_probe_waits_for_a_full_or_failing_disk(tmp_path: Path, workers: ThreadWorkers, code: int) -> None:
    """Reads go through, no root can be written: nothing of that is the store's way to say that it cannot."""

    class Full(PosixDisk):
        def rename(self, source: str, target: str) -> None:
            raise OSError(code, os.strerror(code), target)

        def link(self, source: str, target: str) -> None:
            raise OSError(code, os.strerror(code), target)

    async def scenario(store: ObjectStore) -> None:
        with pytest.raises(StoreAway):
            await probe(store, SystemRng())

    run(DirectoryStore(Full(), workers, str(tmp_path / "bucket"), SystemRng()), scenario)


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, workers: ThreadWorkers) -> None:
    """By the condition's name, and not waited for."""

    class NoLinks(PosixDisk):
        def link(self, source: str, target: str) -> None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), target)

    async def scenario(store: ObjectStore) -> None:
        with pytest.raises(StoreRefused, match=StoreCondition.CREATE.value):
            (await probe(store, SystemRng())).require()

    run(DirectoryStore(NoLinks(), workers, str(tmp_path / "bucket"), SystemRng()), scenario)
