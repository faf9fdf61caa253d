"""Bringing objects under another key: every kind of object, in both stores, while others write and delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from coldstore.encryption.encrypted_store import EncryptedStore
from coldstore.encryption.keys import KeyRing
from coldstore.encryption.marker import TRAILER_BYTES, KeyRefused
from coldstore.encryption.rewrap import Outcome, Rewrapper, Tally
from coldstore.object_store import ObjectInfo, ReplacingStore, Upload
from coldstore.roots.root import RootStore
from coldstore.stores.directory import DirectoryStore
from coldstore.stores.metered import MeteredStore
from coldstore.stores.operations import Operation
from logformat.errors import InvalidRequest
from seams.clock import SystemClock
from seams.files.posix_disk import PosixDisk
from seams.files.syncs import WorkerSyncs
from seams.net import TcpNet
from seams.rng import SystemRng
from seams.world import World
from tests.support.store.keys import ring_of
from tests.support.store.memory_store import MemoryStore, StoredObject, upload_of
from tests.support.workers import InlineWorkers

TOPIC = "topics/00000000-0000-4000-8000-000000000001/0"
SEGMENT = f"{TOPIC}/segments/{0:020d}-1-00000000-0000-4000-8000-00000000000a.log"
PAGE = f"{TOPIC}/pages/{0:020d}-{9:020d}-1-00000000-0000-4000-8000-00000000000b.parquet"
OBJECTS = {SEGMENT: bytes(range(256)) * 2000, PAGE: b"a page"}
ROOTS = {"cluster.json": b'{"cluster": 1}', f"{TOPIC}/manifest.json": b'{"manifest": 1}'}


WORLD = World(PosixDisk(), InlineWorkers(), WorkerSyncs(InlineWorkers()), SystemClock(), SystemRng(), TcpNet())


def over(below: ReplacingStore, ring: KeyRing) -> EncryptedStore:
    return EncryptedStore(below, ring, WORLD.workers, WORLD.rng)


@pytest.fixture(params=["memory", "directory"])
def below(request: pytest.FixtureRequest, tmp_path: Path) -> ReplacingStore:
    if request.param == "memory":
        return MemoryStore()
    return DirectoryStore(WORLD.disk, WORLD.workers, str(tmp_path / "bucket"), WORLD.rng)


async def fill(store: EncryptedStore) -> None:
    for key, data in ROOTS.items():
        await store.put_root(key, data, None)
    for key, data in OBJECTS.items():
        await store.put_segment(key, upload_of(data))
    await store.put_segment("somebody/else", upload_of(b"not ours"))


async def run(below: ReplacingStore, ring: KeyRing, tmp_path: Path, *, change: bool = True) -> Tally:
    scratch, tally = tmp_path / "scratch", Tally()
    scratch.mkdir(exist_ok=True)
    async for one in Rewrapper(below, ring, WORLD, str(scratch)).run(change=change):
        tally.add(one)
    assert not list(scratch.iterdir())
    return tally


async def check(store: EncryptedStore) -> None:
    for key, data in (ROOTS | OBJECTS).items():
        assert (await store.get(key)).data == data
    assert (await store.get(SEGMENT, 70_000, 200_000)).data == OBJECTS[SEGMENT][70_000:270_000]


async def test_every_object_comes_under_the_new_key(below: ReplacingStore, tmp_path: Path) -> None:
    """Bodies of immutable objects stay byte for byte; then the old key is needed by nobody; once more changes nothing.
    A reader that knew the objects goes on."""
    await fill(over(below, ring_of("old")))
    body = (await below.get(SEGMENT)).data[:-TRAILER_BYTES]
    reader = over(below, ring_of("new", "old"))
    await check(reader)
    counted = await run(below, ring_of("new", "old"), tmp_path, change=False)
    assert (counted.outcomes[Outcome.REWRAPPED], counted.keys, counted.left) == (4, {"old": 4}, 0)
    await check(over(below, ring_of("old")))
    tally = await run(below, ring_of("new", "old"), tmp_path)
    assert (tally.outcomes, tally.left) == ({Outcome.REWRAPPED: 4, Outcome.FOREIGN: 1}, 0)
    assert (await below.get(SEGMENT)).data[:-TRAILER_BYTES] == body
    await check(over(below, ring_of("new")))
    await check(reader)
    with pytest.raises(KeyRefused):
        await check(over(below, ring_of("old")))
    assert (await run(below, ring_of("new"), tmp_path)).outcomes == {Outcome.CURRENT: 4, Outcome.FOREIGN: 1}


async def test_plain_objects_are_encrypted(below: ReplacingStore, tmp_path: Path) -> None:
    """The end of switching encryption on for a bucket with objects: afterwards plain ones may be refused."""
    await fill(over(below, ring_of("new", active=None, accepts_plain=True)))
    reader = over(below, ring_of("new", accepts_plain=True))
    await check(reader)
    tally = await run(below, ring_of("new", accepts_plain=True), tmp_path)
    assert (tally.outcomes[Outcome.ENCRYPTED], tally.keys, tally.left) == (4, {None: 4}, 0)
    await check(over(below, ring_of("new")))
    await check(reader)


async def test_damage_and_missing_keys_are_counted_and_left_alone(tmp_path: Path) -> None:
    """A body that is not what its trailer says is not given a new one; no object is lost."""
    below = MemoryStore()
    await fill(over(below, ring_of("old")))
    damaged = bytearray(below.objects[SEGMENT].data)
    damaged[100_000] ^= 1
    below.objects[SEGMENT] = StoredObject(bytes(damaged), '"d"', None)
    del below.objects[PAGE]
    await over(below, ring_of("lost")).put_segment(PAGE, upload_of(b"a page"))
    before = dict(below.objects)
    tally = await run(below, ring_of("new", "old"), tmp_path)
    assert (tally.outcomes[Outcome.DAMAGED], tally.outcomes[Outcome.NO_KEY], tally.left) == (1, 1, 2)
    assert tally.missing == {"lost": 1}
    assert {key: below.objects[key] for key in (SEGMENT, PAGE)} == {key: before[key] for key in (SEGMENT, PAGE)}


class BusyStore(MemoryStore):
    """Somebody commits to a root, or deletes an object, between the read and the write."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 3

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        if if_match is not None and self.commits:
            self.commits -= 1
            newer = MemoryStore()
            await over(newer, ring_of("old")).put_root(key, b'{"commits": %d}' % self.commits, None)
            self.objects[key] = newer.objects[key]
        return await super().put_root(key, data, if_match)

    async def replace_object(self, key: str, body: Upload, if_match: str) -> None:
        self.objects.pop(key, None)
        await super().replace_object(key, body, if_match)


async def test_a_broker_that_commits_or_deletes_meanwhile_wins(tmp_path: Path) -> None:
    """A commit is never overwritten by what was read before it; a deleted object does not come back."""
    below = BusyStore()
    await fill(over(below, ring_of("old")))
    tally = await run(below, ring_of("new", "old"), tmp_path)
    assert (tally.outcomes[Outcome.REWRAPPED], tally.outcomes[Outcome.GONE]) == (2, 2)
    assert (await over(below, ring_of("new")).get("cluster.json")).data == b'{"commits": 0}'
    assert SEGMENT not in below.objects and PAGE not in below.objects


def test_a_ring_without_an_active_key_has_nothing_to_rewrap_under() -> None:
    """It says so."""
    with pytest.raises(InvalidRequest, match="no active key"):
        Rewrapper(MemoryStore(), ring_of("a", active=None, accepts_plain=True), WORLD, "/tmp")


@pytest.mark.parametrize("length", [3, 200, 70_000])
async def test_the_end_of_an_object_that_was_encrypted_since_is_the_plaintext(
    below: ReplacingStore, tmp_path: Path, length: int
) -> None:
    """A broker read it while it was plain, and reads its footer again afterwards."""
    await fill(over(below, ring_of("new", active=None, accepts_plain=True)))
    reader, end = over(below, ring_of("new", accepts_plain=True)), OBJECTS[SEGMENT][-length:]
    assert (await reader.get(SEGMENT, -length)).data == end
    await run(below, ring_of("new", accepts_plain=True), tmp_path)
    got = await reader.get(SEGMENT, -length)
    assert (got.data, got.size) == (end, len(OBJECTS[SEGMENT]))


class RewrappedMeanwhile(MemoryStore):
    """A rewrap replaces an object behind the answer to a HEAD."""

    def __init__(self) -> None:
        super().__init__()
        self.after_head: Callable[[], Awaitable[object]] | None = None

    async def head(self, key: str) -> ObjectInfo:
        info = await super().head(key)
        if self.after_head is not None:
            replace, self.after_head = self.after_head, None
            await replace()
        return info


@pytest.mark.parametrize("before", [ring_of("old"), ring_of("new", active=None, accepts_plain=True)])
async def test_a_head_beside_a_rewrap_finds_no_damage(tmp_path: Path, before: KeyRing) -> None:
    """The answer is of one object, the old one or the new one: a copy that is verified meanwhile is not damaged."""
    below, ring = RewrappedMeanwhile(), ring_of("new", "old", accepts_plain=True)
    await fill(over(below, before))
    for reader in (over(below, ring), over(below, ring)):
        below.after_head = lambda: run(below, ring, tmp_path)
        info = await reader.head(SEGMENT)
        assert (info.size, info.crc32c) == (len(OBJECTS[SEGMENT]), crc32c(OBJECTS[SEGMENT]))


class Counter(msgspec.Struct, frozen=True):
    count: int = 0


async def test_a_root_that_was_rewrapped_is_unchanged_for_who_knew_it(below: ReplacingStore, tmp_path: Path) -> None:
    """A poll reads it once more, then costs no body again; the next commit needs no second try."""
    store = over(below, ring_of("old"))
    await RootStore(store, "cluster.json", Counter, WORLD.rng, WORLD.clock).commit(
        lambda now: now, epoch=1, claim=True, initial=Counter(1)
    )
    metered = MeteredStore(over(below, ring_of("new", "old")), WORLD.clock)
    root = RootStore(metered, "cluster.json", Counter, WORLD.rng, WORLD.clock)
    before = await root.load()
    assert await root.load_if_changed() is None
    await run(below, ring_of("new", "old"), tmp_path)
    await root.load_if_changed()
    assert await root.load_if_changed() is None
    assert before is not None and root.known is not None
    assert (root.known.version, root.known.content) == (before.version, before.content)
    await root.commit(lambda now: Counter(now.count + 1), epoch=1)
    assert metered.meters[Operation.PUT_ROOT].requests == 1
