"""The clean-shutdown marker goes when a start got the right to serve, and before anything it vouches for is written."""

from __future__ import annotations

import pytest

from broker.membership.session import Refused
from coldstore.keys import cluster_key
from hotstore.host.data_dir import DataDir
from logformat.values import NewerFormat
from seams.files.disk import Disk, read_file
from tests.support.brokers.broker_kit import Life, Place
from tests.support.store.memory_store import StoredObject

MARKER = "/data/a/.kafka_cleanshutdown"
NOTED = "/data/a/thermocline-incarnations"
BEFORE = {"/data/a/.lock", NOTED, f"{NOTED}.tmp"}  # all that a start may write while the marker stands
ORDERS = [(0, b"x"), (1, b"y")]


async def stopped() -> Place:
    """A place with one topic, left in order."""
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.produce("log", b"x", b"y")
    await life.stop()
    return place


async def scanned(life: Life) -> int:
    """Bytes of its log that the start read again; what was written is there."""
    assert await life.read_all("log") == ORDERS
    return life.partition("log").log.recovery.scanned_bytes


def files(disk: Disk, path: str = "/data/a") -> dict[str, bytes]:
    """Every file below `path`, with what it holds."""
    found = disk.stat(path)
    if found is None or not found.is_dir:
        return {path: read_file(disk, path)}
    return {file: data for name in disk.list_dir(path) for file, data in files(disk, f"{path}/{name}").items()}


async def serves_unscanned(place: Place) -> None:
    assert place.disk.stat(MARKER) is not None
    life = await place.start()
    assert place.disk.stat(MARKER) is None
    assert await scanned(life) == 0
    await life.stop()


async def test_a_start_with_another_clusters_bucket_keeps_the_marker() -> None:
    """It took the marker before it looked at whose directory it is: the next start read every log again."""
    place, other = await stopped(), Place(seed=2)
    other.disk = place.disk
    life = await other.start(directory="b")
    await life.stop()
    with pytest.raises(Refused, match="the data directory belongs to cluster"):
        await other.start()
    await serves_unscanned(place)


async def test_a_start_that_finds_a_newer_cluster_json_keeps_the_marker() -> None:
    place = await stopped()
    old = place.memory.objects[cluster_key()]
    newer = old.data.replace(b'"format_version":2', b'"format_version":3')
    place.memory.objects[cluster_key()] = StoredObject(newer, "newer", None)
    with pytest.raises(NewerFormat, match="has format 3, but this version knows 2"):
        await place.start()
    place.memory.objects[cluster_key()] = old
    await serves_unscanned(place)


async def test_a_start_refused_for_its_configuration_after_it_registered_keeps_the_marker() -> None:
    """The last refusal there is: the bucket has tiered topics, this broker no tiering."""
    place = Place()
    life = await place.start()
    await life.create("log", remote_storage_enable="true")
    await life.produce("log", b"x", b"y")
    await life.stop()
    with pytest.raises(Refused, match="their history is in the bucket"):
        await place.start("remote.log.storage.system.enable=false")
    await serves_unscanned(place)


async def test_nothing_that_the_marker_vouches_for_is_written_before_it_went_durably() -> None:
    """Everything a start does to the disk, in order: the lock, who tries to serve, the marker, its directory's sync,
    then the rest."""
    place = await stopped()
    effects: list[tuple[str, str]] = []
    place.disk.on_effect = lambda kind, path: effects.append((kind, path))
    life = await place.start()
    place.disk.on_effect = None
    at = effects.index(("unlink", MARKER))
    assert effects[at + 1] == ("sync_dir", "/data/a")
    changed = {path for kind, path in effects[:at] if kind != "sync_dir"}
    assert changed <= BEFORE, changed
    assert effects[at + 2 :], "it serves, and writes"
    await life.stop()


class Cut(Exception):
    """The process ends here."""


@pytest.mark.parametrize("power", [False, True])
async def test_a_start_cut_off_before_the_marker_went_leaves_it_true(power: bool) -> None:
    """Registered, and gone: every file but the lock is as it was, and the next start scans nothing."""
    place = await stopped()
    before, registered = files(place.disk), place.memory.objects[cluster_key()]

    def cut(kind: str, path: str) -> None:
        if (kind, path) == ("unlink", MARKER):
            place.disk.on_effect = None
            raise Cut

    place.disk.on_effect = cut
    with pytest.raises(Cut):
        await place.start()
    place.power_cut() if power else place.kill()
    after = files(place.disk)
    assert place.memory.objects[cluster_key()] != registered, "it had the right to serve"
    assert {path for path in before | after if before.get(path) != after.get(path)} <= BEFORE
    await serves_unscanned(place)


async def test_a_start_killed_after_the_marker_went_scans() -> None:
    """The other side of it: it may have written, so the next start trusts nothing."""
    place = await stopped()
    life = await place.start()
    await life.crash()
    place.power_cut()
    assert not DataDir.open(place.disk, "/data/a").was_clean
    place.kill()
    life = await place.start()
    assert await life.read_all("log") == ORDERS
    await life.stop()
