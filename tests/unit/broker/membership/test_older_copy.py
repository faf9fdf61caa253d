"""An older copy of a directory that nobody else holds anything of gives no offset a second time (G2, R22)."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from coldstore.keys import CLUSTER_KEY
from coldstore.object_store import StoreUnavailable
from hotstore.file_names import INCARNATIONS_FILE
from hotstore.host.data_dir import DataDir, Process
from seams.rng import SeededRng
from tests.support.brokers.broker_kit import Place
from tests.support.disk.crash_disk import CrashDisk


@pytest.mark.parametrize("settings", [(), ("thermocline.flush=os",)], ids=["sync", "os"])
async def test_a_volume_that_is_put_back_gives_no_offset_again(settings: tuple[str, ...]) -> None:
    """Found by reading: with one replica the copy's reservation still vouched for its logs, so offsets that consumers
    had seen showed other records. What is lost is a declared gap, as where a disk is lost; also where the first start
    from the copy is killed at once."""
    place = Place(*settings)
    life = await place.start()
    await life.create("log", remote_storage_enable="false")
    await life.produce("log", b"a", b"b")
    await life.crash()
    place.kill()
    yesterday = place.disk.kill()
    life = await place.start()
    assert (await life.produce("log", b"c", b"d")).error_code == 0
    await life.crash()
    place.disk = yesterday
    for value in (b"e", b"f"):
        life = await place.start()
        assert (await life.produce("log", value)).error_code == 0
        found = dict(await life.read_all("log"))
        assert found[0] == b"a" and found[1] == b"b", "what the copy holds is served"
        assert not found.keys() & {2, 3} and min(found.keys() - {0, 1}) >= 4
        await life.crash()
        place.kill()


async def test_a_doubt_that_was_cut_off_before_it_was_durable_is_made_durable_by_the_next_start() -> None:
    """The reservation was removed and the sync of its directory refused. The next start found none, synced nothing and
    was noted here; after a power cut the reservation was back, no start could tell that this is an older copy, and
    offsets that consumers had seen showed other records."""
    place = Place()
    life = await place.start()
    await life.create("log", remote_storage_enable="false")
    await life.produce("log", b"a", b"b")
    await life.crash()
    place.power_cut(keep=1.0)
    yesterday = place.disk.kill()
    life = await place.start()
    assert (await life.produce("log", b"c", b"d")).error_code == 0
    await life.crash()
    place.disk = yesterday
    place.disk.inject("sync_dir", errno.EIO, "/log-0")
    with pytest.raises(OSError, match="injected"):
        await place.start()
    place.kill()
    life, notes, cuts = place.make(), list[str](), list[CrashDisk]()
    disk, watch = place.disk, place.disk.on_effect
    assert watch is not None

    def cut_once_noted(kind: str, path: str) -> None:
        if kind == "rename" and path.endswith(INCARNATIONS_FILE):
            notes.append(path)  # the second one drops the earlier processes
        elif len(notes) == 2 and path.startswith("/data/a/log-0"):
            cuts.append(disk.crash(SeededRng(1), 0.0))
        watch(kind, path)

    disk.on_effect = cut_once_noted
    await life.start()
    await life.crash()
    place.disk, place.boots = cuts[0], place.boots + 1
    life = await place.start()
    assert (await life.produce("log", b"e")).error_code == 0
    found = dict(await life.read_all("log"))
    assert not found.keys() & {2, 3} and min(found.keys() - {0, 1}) >= 4
    await life.crash()


async def test_a_hundred_starts_that_came_to_nothing_make_no_older_copy_of_a_directory() -> None:
    """A supervisor's loop while the bucket was away: each start is noted before it may serve, and the last that did
    serve was forgotten for them. The directory was taken for an older copy: a loss was told that never was."""
    place = Place()
    life = await place.start()
    await life.create("log", remote_storage_enable="false")
    await life.produce("log", b"a", b"b")
    await life.crash()
    place.kill()
    for number in range(150):
        directory = DataDir.open(place.disk, "/data/a")
        assert directory.processes is not None
        directory.note_processes((*directory.processes, Process(f"tried-{number}", flushes=True)))
        assert len(directory.processes) < 160
        directory.close()
    life = await place.start()
    assert (await life.produce("log", b"c")).error_code == 0
    assert await life.read_all("log") == [(0, b"a"), (1, b"b"), (2, b"c")]
    await life.crash()


async def test_a_claim_whose_answer_was_lost_makes_no_older_copy_of_its_own_directory() -> None:
    """The claim of a start landed, and the bucket went away before its answer. The next attempt read this same process
    in `cluster.json`; it was not among the processes noted before the start, so the directory was taken for an older
    copy: every reservation was removed, and a loss was told that never was."""
    place = Place()
    life = await place.start()
    await life.create("log", remote_storage_enable="false")
    await life.produce("log", b"a", b"b")
    await life.crash()
    place.kill()
    store: Any = place.store
    put_root = store.put_root

    async def goes_away(key: str, *more: Any) -> Any:
        etag = await put_root(key, *more)
        if key != CLUSTER_KEY:
            return etag
        store.down = True
        raise StoreUnavailable("the answer is lost")

    async def back() -> None:
        await asyncio.sleep(60)
        store.put_root, store.down = put_root, False

    store.put_root = goes_away
    life, _ = await asyncio.gather(place.start(), back())
    assert (await life.produce("log", b"c")).error_code == 0
    assert await life.read_all("log") == [(0, b"a"), (1, b"b"), (2, b"c")]
    await life.crash()
