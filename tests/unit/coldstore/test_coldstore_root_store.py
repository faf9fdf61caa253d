"""`RootStore` against a store that answers wrongly, late, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from coldstore.object_store import AccessRefused, ConditionalConflict, PreconditionFailed, StoreUnavailable
from coldstore.roots.root import (
    ROOT_BYTES_MAX,
    NewerFormat,
    RootCodec,
    RootStore,
    RootTooLarge,
    RootVanished,
    Unsettled,
)
from logformat.errors import Corrupt, Fenced, Retryable
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock
from tests.support.store.memory_store import MemoryStore, StoredObject

KEY = "cluster.json"


class Names(msgspec.Struct, frozen=True):
    names: tuple[str, ...] = ()


def add(name: str) -> Callable[[Names], Names]:
    return lambda content: Names(tuple(sorted({*content.names, name})))


class ScriptedStore(MemoryStore):
    """Each PUT of a root takes the next word of `script` (then "ok"): see `put_root`."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[str] = []
        self.late: list[tuple[str, bytes, str | None]] = []
        self.puts = 0
        self.read_failures = 0
        self.between: Callable[[], object] | None = None

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        self.puts += 1
        word = self.script.pop(0) if self.script else "ok"
        if word == "409":
            raise ConditionalConflict("in flight")
        if word == "412":
            raise PreconditionFailed("says the store")
        if word == "403":
            raise AccessRefused("policy")
        if word == "hang":
            await asyncio.sleep(1e9)
        if word == "late":  # the answer times out; the request lands when somebody calls land_late
            self.late.append((key, data, if_match))
            raise StoreUnavailable("time-out")
        etag = await super().put_root(key, data, if_match)
        if word == "lost":  # it landed, nobody hears of it
            if self.between is not None:
                between, self.between = self.between, None
                result = between()
                if asyncio.iscoroutine(result):
                    await result
            raise StoreUnavailable("reset after commit")
        return "" if word == "empty" else etag

    async def get(self, key: str, start: int = 0, length: int | None = None):  # type: ignore[no-untyped-def]
        if self.read_failures:
            self.read_failures -= 1
            raise StoreUnavailable("503")
        return await super().get(key, start, length)

    async def land_late(self) -> bool:
        """The delayed request reaches the store; whether its condition still held."""
        try:
            await super().put_root(*self.late.pop(0))
        except PreconditionFailed:
            return False
        return True


def roots(store: MemoryStore, seed: int = 0, deadline_s: float = 30.0) -> RootStore[Names]:
    return RootStore(store, KEY, Names, SeededRng(seed), FastClock(), deadline_s=deadline_s)


async def started(store: MemoryStore, seed: int = 0, deadline_s: float = 30.0) -> RootStore[Names]:
    root = roots(store, seed, deadline_s)
    await root.commit(add("seed"), epoch=1, initial=Names())
    return root


async def test_commit_then_load_gives_the_same_root() -> None:
    store = ScriptedStore()
    mine = await started(store)
    committed = await mine.commit(add("a"), epoch=1)
    assert (committed.version, committed.epoch, committed.content.names) == (2, 1, ("a", "seed"))
    assert await roots(store).load() == committed
    assert await mine.load_if_changed() is None


@pytest.mark.parametrize("word", ["lost", "empty", "409", "412", "late", "hang"])
async def test_every_unknown_answer_ends_in_one_commit(word: str) -> None:
    """Whatever one PUT answers, the edit is in the root exactly once and the commit says so."""
    store = ScriptedStore()
    mine = await started(store, deadline_s=60.0)
    store.script = [word]
    task = asyncio.get_running_loop().create_task(mine.commit(add("a"), epoch=1))
    if word == "hang":
        # The store's own deadline is inside the call; without one, ours ends it with the outcome open.
        with pytest.raises(Unsettled):
            await task
        assert not mine.settled
        task = asyncio.get_running_loop().create_task(mine.commit(add("a"), epoch=1))
    committed = await task
    assert committed.version == 2 and committed.content.names == ("a", "seed") and mine.settled
    if store.late:
        assert not await store.land_late()


async def test_design_c03_a_lost_answer_with_others_on_top_is_still_committed() -> None:
    """Our CAS lands, its answer is lost, three others commit on top before we read back."""
    store = ScriptedStore()
    mine = await started(store)
    other = roots(store, 1)

    async def others() -> None:
        for name in "bcd":
            await other.commit(add(name), epoch=1)

    store.script, store.between = ["lost"], others
    committed = await mine.commit(add("a"), epoch=1)
    assert committed.version == 5 and committed.content.names == ("a", "b", "c", "d", "seed")
    assert store.puts == 5  # a second PUT of ours would have been a second commit


async def test_design_c03_a_put_that_lands_after_we_gave_up_is_known_to_be_open() -> None:
    """Old root read, deadline over: Unsettled, `settled` False; the next commit finds what landed meanwhile."""
    store = ScriptedStore()
    mine = await started(store, deadline_s=5.0)
    store.script = ["late"] * 100
    with pytest.raises(Unsettled):
        await mine.commit(add("a"), epoch=1)
    assert not mine.settled
    await mine.load()
    assert not mine.settled  # the root still stands where the attempt started
    store.script = []
    assert await store.land_late()
    found = await mine.load()
    assert mine.settled and found is not None and found.content.names == ("a", "seed")
    while store.late:
        assert not await store.land_late()
    assert (await mine.commit(add("a"), epoch=1)).version == 2


async def test_a_cancelled_commit_is_remembered_as_open() -> None:
    store = ScriptedStore()
    mine = await started(store)
    store.script = ["hang"]
    task = asyncio.get_running_loop().create_task(mine.commit(add("a"), epoch=1))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not mine.settled
    await mine.commit(add("b"), epoch=1)
    assert mine.settled


async def test_design_c29_a_writer_that_slept_through_33_commits_goes_on() -> None:
    """Its PUT landed, 33 commits follow, its id left the ring: no "lost", no second effect of an idempotent edit."""
    store = ScriptedStore()
    mine = await started(store)
    other = roots(store, 1)

    async def others() -> None:
        for n in range(33):
            await other.commit(add(f"n{n:02d}"), epoch=1)

    store.script, store.between = ["lost"], others
    committed = await mine.commit(add("a"), epoch=1)
    assert committed.version == 35 and committed.commit_at(2) is None
    assert committed.content.names.count("a") == 1 and len(committed.content.names) == 35


async def test_design_c01_a_claim_fences_a_writer_that_holds_the_current_etag() -> None:
    """The zombie's cached root is current up to the claim; its next commit is Fenced and changes nothing."""
    store = ScriptedStore()
    zombie = await started(store)
    await roots(store, 1).commit(lambda c: c, epoch=2, claim=True)
    before = store.objects[KEY].data
    with pytest.raises(Fenced):
        await zombie.commit(add("late"), epoch=1)
    assert store.objects[KEY].data == before


async def test_failing_reads_are_retried() -> None:
    store = ScriptedStore()
    mine = await started(store)
    store.script, store.read_failures = ["lost"], 5
    assert (await mine.commit(add("a"), epoch=1)).version == 2


async def test_concurrent_commits_of_many_writers_all_land_once() -> None:
    """Eight writers, five commits each, a third of the answers wrong: 40 names, versions without a hole."""
    store = ScriptedStore()
    await started(store)
    rng = SeededRng(7)
    store.script = [("ok", "ok", "lost", "409", "ok", "empty")[rng.randrange(6)] for _ in range(400)]
    writers = [roots(store, seed, deadline_s=600.0) for seed in range(1, 9)]

    async def write(n: int) -> None:
        for k in range(5):
            await writers[n].commit(add(f"{n}.{k}"), epoch=1)

    await asyncio.gather(*(write(n) for n in range(8)))
    found = await roots(store, 99).load()
    assert found is not None and len(found.content.names) == 41 and found.version == 41


async def test_access_refused_goes_to_the_operator() -> None:
    store = ScriptedStore()
    mine = await started(store)
    store.script = ["403"]
    with pytest.raises(AccessRefused):
        await mine.commit(add("a"), epoch=1)


async def test_a_newer_format_is_neither_read_nor_written_over() -> None:
    store = ScriptedStore()
    mine = await started(store)
    newer = b'{"format_version":2,"something":"else"}'
    store.objects[KEY] = StoredObject(newer, '"n"', None)
    for act in (mine.load(), mine.commit(add("a"), epoch=1), roots(store).commit(add("a"), epoch=9, claim=True)):
        with pytest.raises(NewerFormat):
            await act
    assert store.objects[KEY].data == newer


async def test_a_root_deleted_behind_our_back_stops_us() -> None:
    store = ScriptedStore()
    mine = await started(store)
    await store.delete([KEY])
    for act in (mine.load(), mine.load_if_changed(), mine.commit(add("a"), epoch=1, initial=Names())):
        with pytest.raises(RootVanished):
            await act
    assert KEY not in store.objects


async def test_a_root_beyond_64_kib_is_refused_before_it_is_sent() -> None:
    store = ScriptedStore()
    mine = await started(store)
    with pytest.raises(RootTooLarge):
        await mine.commit(add("x" * ROOT_BYTES_MAX), epoch=1)
    assert store.puts == 1 and mine.settled


HOSTILE = [
    b"",
    b"{}",
    b"[" * 60000,
    b'{"format_version":1}',
    b'{"format_version":"1"}',
    b'{"format_version":1,"version":0,"epoch":1,"ring":[],"content":{"names":[]}}',
    b'{"format_version":1,"version":1,"epoch":1,"ring":[],"content":{"names":[]}}',
    b'{"format_version":1,"version":2,"epoch":1,"ring":[[1,"' + b"0" * 32 + b'"]],"content":{"names":[]}}',
    b'{"format_version":1,"version":1,"epoch":1,"ring":[[1,"zz"]],"content":{"names":[]}}',
    b'{"format_version":1,"version":1,"epoch":1,"ring":[[1,"' + b"0" * 32 + b'"]],"content":{"names":[1]}}',
    b'{"format_version":1,"version":1,"epoch":1e400,"ring":[],"content":{}}',
    b'{"format_version":1,"version":1' + b" " * ROOT_BYTES_MAX + b"}",
    b"\xff\xfe" * 10,
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_roots_are_corrupt(data: bytes) -> None:
    """Whatever lies there: Corrupt, never another exception, never a commit on top."""
    store = ScriptedStore()
    store.objects[KEY] = StoredObject(data, '"h"', None)
    with pytest.raises(Corrupt):
        await roots(store).load()
    with pytest.raises(Corrupt):
        await roots(store).commit(add("a"), epoch=1, claim=True, initial=Names())
    assert store.objects[KEY].data == data


async def test_commits_of_one_process_take_turns() -> None:
    """A second commit waits for the first one's end (here: out of time), then settles what that left open."""
    store = ScriptedStore()
    mine = await started(store, deadline_s=5.0)
    store.script = ["hang"]
    first = asyncio.get_running_loop().create_task(mine.commit(add("a"), epoch=1))
    await asyncio.sleep(0.1)
    second = asyncio.get_running_loop().create_task(mine.commit(add("b"), epoch=1))
    with pytest.raises(Unsettled):
        await first
    assert (await second).content.names == ("b", "seed") and mine.settled


async def test_waiting_for_ones_turn_ends_with_the_deadline() -> None:
    store = ScriptedStore()
    mine = await started(store, deadline_s=5.0)
    store.script = ["409"] * 1000
    first = asyncio.get_running_loop().create_task(mine.commit(add("a"), epoch=1))
    await asyncio.sleep(0)
    second = asyncio.get_running_loop().create_task(mine.commit(add("b"), epoch=1))
    for commit in (first, second):
        with pytest.raises(Retryable):
            await commit


class UnreliableStore(MemoryStore):
    """Seeded: PUTs are refused, lose their answers, or land any time later; reads fail."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = SeededRng(seed)
        self.late: list[asyncio.Task[None]] = []
        self.faults: dict[str, int] = {}

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        await asyncio.sleep(self.rng.uniform(0, 0.2))
        kind = ("ok", "ok", "ok", "409", "lost", "late", "nothing")[self.rng.randrange(7)]
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if kind == "409":
            raise ConditionalConflict("in flight")
        if kind == "late":
            delay_s = self.rng.uniform(0.1, 40)
            self.late.append(asyncio.get_running_loop().create_task(self._land(delay_s, key, data, if_match)))
        if kind in ("late", "nothing"):
            raise StoreUnavailable("time-out")
        etag = await super().put_root(key, data, if_match)
        if kind == "lost":
            raise StoreUnavailable("reset")
        return etag

    async def _land(self, delay_s: float, key: str, data: bytes, if_match: str | None) -> None:
        await asyncio.sleep(delay_s)
        try:
            await super().put_root(key, data, if_match)
        except PreconditionFailed:
            return

    async def get(self, key: str, start: int = 0, length: int | None = None):  # type: ignore[no-untyped-def]
        await asyncio.sleep(self.rng.uniform(0, 0.2))
        if not self.rng.randrange(6):
            raise StoreUnavailable("503")
        return await super().get(key, start, length)


@pytest.mark.parametrize("seed", range(40))
async def test_design_c03_any_mix_of_faults_keeps_the_three_promises(seed: int) -> None:
    """Several writers, a claim in the middle, PUTs that land up to 40 s late. What was acknowledged is in the root for
    good; what was given up while settled never appears, however late (so its objects could be deleted); nothing of
    the old epoch lands after the claim."""
    store = UnreliableStore(seed)
    acked: set[str] = set()
    dead: set[str] = set()
    claimed_with: set[str] = set()

    async def commit(writer: RootStore[Names], name: str, epoch: int, claim: bool = False) -> bool:
        try:
            await writer.commit(add(name), epoch=epoch, claim=claim, initial=Names())
        except (Retryable, Fenced) as failed:
            known = writer.known
            if writer.settled and (known is None or name not in known.content.names):
                dead.add(name)
            return not isinstance(failed, Fenced)
        acked.add(name)
        return True

    async def write(n: int) -> None:
        writer = roots(store, 1000 * seed + n, deadline_s=3.0)
        for k in range(12):
            if not await commit(writer, f"old{n}.{k}", 1):
                return

    async def take_over() -> None:
        await asyncio.sleep(store.rng.uniform(2, 12))
        writer = roots(store, 1000 * seed + 77, deadline_s=120.0)
        assert await commit(writer, "claim", 2, claim=True)
        assert writer.known is not None
        claimed_with.update(writer.known.content.names)
        for k in range(5):
            await commit(writer, f"new.{k}", 2)

    await asyncio.gather(take_over(), *(write(n) for n in range(4)))
    await asyncio.gather(*store.late)
    raw = await MemoryStore.get(store, KEY)
    final = RootCodec(Names).decode(KEY, raw)
    assert acked <= set(final.content.names)
    assert not dead & set(final.content.names)
    assert {name for name in final.content.names if name.startswith("old")} <= claimed_with
    assert final.version <= len(final.content.names) and final.epoch == 2
    assert len(store.faults) == 5
