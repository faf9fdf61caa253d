"""Opening a partition: new, whole, or with its tail lost; what is promised to offsets through all of it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from coldstore.keys import manifest_key
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.object_store import StoreUnavailable
from coldstore.stores.metered import MeteredStore
from coldstore.stores.operations import Operation
from hotstore.errors import ReservationExhausted
from hotstore.file_names import EPOCHS_FILE, TEMPORARY
from hotstore.flush.flusher import SEAL_AGAIN_S
from hotstore.host.log_host import LogHost
from hotstore.host.open_log import OpenLog
from hotstore.host.place import Place
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.log_creation import Begin
from logformat.errors import Corrupt, Fenced, Retryable
from logformat.gap import gap_range
from logformat.producer_snapshot import ProducerState, decode_producer_state, encode_producer_state
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock
from tests.support.store.faulty_store import FaultPlan, FaultyStore
from tests.support.store.memory_store import MemoryStore
from tests.support.tier.tier_kit import (
    BLOCK,
    DATA,
    LOG,
    TIER,
    TOPIC_ID,
    House,
    Opened,
    local_bytes,
    read_everything,
    records_in,
    settle,
)
from tiering.opening import attach, tail_recovery
from tiering.opening.reservation import LocalReservation, read_reservation, remove_reservation
from tiering.opening.tail_recovery import Tail, tail_of

UNTIERED = replace(TIER, enabled=False)
OS_LOG = replace(LOG, flush_sync=False)


def test_the_tail_of_a_new_partition_is_new() -> None:
    """Whatever an interrupted creation left, a new topic's root comes first."""
    reservation = LocalReservation(TOPIC_ID, 0, 10, True, "a")
    assert tail_of(None, new=True, boot_id="a", clean=True) is Tail.NEW
    assert tail_of(reservation, new=True, boot_id="a", clean=False) is Tail.NEW


@pytest.mark.parametrize(
    ("flush_sync", "same_boot", "clean", "tail"),
    [
        (True, True, False, Tail.WHOLE),
        (True, False, False, Tail.WHOLE),  # flushed before it was visible: a power cut took nothing anyone saw
        (False, True, False, Tail.WHOLE),  # the page cache survived the kill
        (False, False, False, Tail.IN_DOUBT),  # C30: the page cache is gone
        (False, False, True, Tail.WHOLE),
    ],
)
def test_the_tail_of_a_log_depends_on_whether_it_can_be_lost(
    flush_sync: bool, same_boot: bool, clean: bool, tail: Tail
) -> None:
    """Only a log that is sure to hold all that was visible serves before the bucket answered."""
    reservation = LocalReservation(TOPIC_ID, 0, 10, flush_sync, "a")
    assert tail_of(reservation, new=False, boot_id="a" if same_boot else "b", clean=clean) is tail
    assert tail_of(None, new=False, boot_id="a", clean=True) is Tail.IN_DOUBT


async def test_a_new_partition_has_root_and_reservation_before_it_is_served() -> None:
    """Root, first reservation and its local copy exist when opening returns; appends stay below the reserved end."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    manifest = await house.manifest()
    assert manifest.reserved_end_offset == BLOCK == opened.log.reserved_end
    copy = read_reservation(house.disk.open_dir(opened.log.path), TOPIC_ID, 0)
    assert copy is not None and copy.reserved_end == BLOCK
    await life.stop()


async def test_a_new_partition_is_not_served_without_the_bucket() -> None:
    """No root, no topic: creating waits for the store."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    store.down = True
    life = await house.start(store=store)
    with pytest.raises(Retryable):
        await life.open(new=True)
    store.down = False
    opened = await life.open(new=True)
    assert opened.log.reserved_end == BLOCK
    await life.stop()


async def test_design_c01_a_zombie_is_fenced_by_a_claim_alone() -> None:
    """C1: the new leader has written nothing but its claim, and the old one can neither copy nor delete any more."""
    house, other = House(), House()
    other.memory = other.store = house.memory
    old = await house.start(epoch=1)
    zombie = await old.open(new=True)
    await old.fill(40)
    await settle(lambda: zombie.tier.remote_end_offset == zombie.log.active_info().base_offset)
    before = (await house.manifest()).remote_end_offset

    new = await other.start(epoch=2)
    await new.open(tier=replace(TIER, copy_disable=True))  # its disk is empty: it claims, and does no more
    held = await house.manifest()
    assert held.leader_epoch == 2 and held.remote_end_offset == before
    with pytest.raises(Exception, match="epoch 2") as refused:
        await zombie.tier.delete_records(before)
    assert type(refused.value).__name__ == "Fenced"
    await old.fill(40)
    await settle(lambda: bool(house.fenced))
    after = await house.manifest()
    assert (after.remote_end_offset, after.log_start_offset) == (before, 0)
    assert zombie.tier.status().blocked_by == "fenced"
    await old.kill()
    await new.kill()


async def test_a_zombie_that_reads_a_newer_leader_s_root_is_fenced_in_that_step() -> None:
    """Simulated seeds 375 and 1423: a verification read the root anew, and the zombie took the remote end of the leader
    after it for its own, above its log's end, until `cluster.json` or a commit said that it was deposed."""
    house, other = House(), House()
    other.memory = other.store = house.memory
    old = await house.start(epoch=1)
    zombie = await old.open(new=True)
    await old.fill(40)
    await settle(lambda: zombie.tier.remote_end_offset == zombie.log.active_info().base_offset)
    new = await other.start(epoch=2)
    await new.open(tier=replace(TIER, copy_disable=True))
    assert not house.fenced
    assert await zombie.tier.partition_state.manifests.reload_if_changed()
    assert len(house.fenced) == 1 and "superseded by 2" in house.fenced[0]
    assert zombie.tier.partition_state.fenced and not zombie.tier.partition_state.claimed
    await old.kill()
    await new.kill()


async def test_design_c06_offsets_are_never_given_twice_over_a_power_cut() -> None:
    """C6: only flushed bytes are copied, so that the log never ends below the remote end after a power cut."""
    for flush_sync in (True, False):
        house = House(seed=f"c6-{flush_sync}")
        life = await house.start()
        opened = await life.open(new=True, log=replace(LOG, flush_sync=flush_sync))
        for _ in range(60):
            life.append()  # nobody waits for a flush
        await settle(lambda opened=opened: opened.tier.remote_end_offset > 0)  # type: ignore[misc]
        remote_end = opened.tier.remote_end_offset
        assert remote_end <= opened.log.flushed_end_offset
        await life.power_cut()
        life = await house.start()
        opened = await life.open(log=replace(LOG, flush_sync=flush_sync))
        assert opened.log.log_end_offset >= (await house.manifest()).remote_end_offset
        if not flush_sync:
            assert opened.log.log_end_offset >= 60  # whatever may have been seen is not given again
        await life.kill()


@pytest.mark.parametrize("tier", [TIER, UNTIERED], ids=["tiered", "not tiered"])
async def test_design_c07_a_lost_disk_gives_no_offset_twice(tier: object) -> None:
    """C7: the new disk's log goes on above the reserved end; what is in the bucket is read as before."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=tier)  # type: ignore[arg-type]
    end = await life.fill(60)
    sealed = opened.log.active_info().base_offset
    if tier is TIER:
        await settle(lambda: opened.tier.remote_end_offset == sealed)
    before = await read_everything(house, opened)
    await life.lose_disk()

    life = await house.start()
    opened = await life.open(tier=tier)  # type: ignore[arg-type]
    assert opened.log.log_end_offset == BLOCK > end
    assert life.append() == BLOCK
    after = await read_everything(house, opened)
    remote_end = sealed if tier is TIER else 0
    assert {o: v for o, v in after.items() if o < BLOCK} == {o: v for o, v in before.items() if o < remote_end}
    await life.kill()


async def test_seed_105_a_log_opens_whose_last_object_was_deleted_with_its_records() -> None:
    """Regression: DeleteRecords moved the log start above the bucket's end. The last object was deleted, and the broker
    ended before the root said so. A start on another disk read its footer, and the log stayed offline for ever."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(60)
    sealed = opened.log.active_info().base_offset
    await settle(lambda: opened.tier.remote_end_offset == sealed)
    start = sealed + 1
    await opened.tier.delete_records(start)
    manifest = await house.manifest()
    assert manifest.log_start_offset == start and manifest.tail
    for entry in manifest.tail:
        del house.memory.objects[str(entry.key(TOPIC_ID, 0))]
    await life.lose_disk()
    life = await house.start()
    opened = await life.open()
    assert opened.log.log_start_offset >= start and life.append() >= BLOCK
    await life.kill()


async def test_design_c07_a_resend_is_known_after_a_lost_disk() -> None:
    """C7, C8: the producers at the cold end come from the last object's footer, its own last batch included."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    offsets = [life.append(sequence=n) for n in range(40)]
    await opened.tier.seal_and_copy()
    assert opened.tier.remote_end_offset == 40
    await life.lose_disk()

    life = await house.start()
    opened = await life.open()
    end = opened.log.log_end_offset
    for n in range(35, 40):
        life.append(sequence=n)
    assert opened.log.log_end_offset == end, "the last five batches are resends"
    producers = opened.log.producers.at(end).state().producers
    assert [b.first_offset for b in producers[0].batches] == offsets[-5:]
    assert life.append(sequence=40) == end
    await life.kill()


async def test_a_log_that_begins_within_an_object_knows_no_producer_of_later() -> None:
    """A follower begins where its leader's local log does, which segments of another leader may straddle: a state that
    names batches above its own offset can be written and never read again (simulated seed 2 of several brokers)."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    for n in range(40):
        life.append(sequence=n)
    await opened.tier.seal_and_copy()
    last = (await house.manifest()).tail[-1]
    assert last.end_offset - last.base_offset > 4
    for offset in (last.base_offset + 3, last.end_offset - 2, last.end_offset):
        epochs, producers, _ = await life.service.state_at(TOPIC_ID, 0, offset, 0)
        state = ProducerState(offset, tuple(producers))
        assert decode_producer_state(encode_producer_state(state)) == state
        ends = [batch.last_offset for producer in state.producers for batch in producer.batches]
        kept = [n for n in range(last.end_offset - 5, last.end_offset) if n < offset]
        assert ends == kept and (epochs.latest is not None)
    await life.stop()


async def test_design_c30_the_hole_of_a_lost_tail_is_closed_before_it_is_served() -> None:
    """C30: every offset of the hole is in a batch, so that a committed offset there reads on; it is copied as a
    declared gap that status names."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    end = await life.fill(60)
    sealed = opened.log.active_info().base_offset
    await settle(lambda: opened.tier.remote_end_offset == sealed)
    await life.lose_disk()

    life = await house.start()
    opened = await life.open()
    log = opened.log
    assert (log.local_log_start_offset, log.log_start_offset, log.log_end_offset) == (sealed, 0, BLOCK)
    assert log.flushed_end_offset == BLOCK, "the gap is durable before the first append"
    found = log.read(end - 1, 1 << 20, BLOCK, min_one=True)
    assert found is not None
    assert gap_range(found.file.read_at(found.position, found.length)) == (sealed, BLOCK)
    life.append()
    await opened.tier.seal_and_copy()
    assert opened.tier.status().gaps == ((sealed, BLOCK),)
    assert (await house.manifest()).gaps == ((sealed, BLOCK),)
    records = await read_everything(house, opened)
    assert sorted(records) == [*range(sealed), BLOCK]
    await life.stop()

    life = await house.start()  # and nothing is declared a second time
    opened = await life.open()
    assert opened.log.log_end_offset == BLOCK + 1
    await life.kill()


async def test_design_c30_a_power_cut_in_os_mode_loses_a_tail_that_may_have_been_seen() -> None:
    """C30: after a machine restart without the clean marker, a log of `os` mode claims first and closes the hole; a
    second start right after it, which the machine's restart no longer explains, does not skip that."""
    house = House()
    life = await house.start()
    await life.open(new=True, log=OS_LOG)
    for _ in range(30):
        life.append()
    await life.power_cut()
    store = FaultyStore(house.memory, SeededRng(1))
    store.down = True
    life = await house.start(store=store)  # notices the restart, cannot do anything about it, dies
    with pytest.raises(Retryable):
        await life.open(log=OS_LOG)
    await life.kill()

    life = await house.start()
    opened = await life.open(log=OS_LOG)
    assert opened.log.log_end_offset == BLOCK
    assert life.append() == BLOCK
    await life.kill()  # the page cache survives this one

    life = await house.start()
    opened = await life.open(log=OS_LOG)
    assert opened.log.log_end_offset == BLOCK + 1
    await life.kill()


async def cut_power_after(house: House, effects: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Let `work` change the disk so often, then everything stops. Whether it came to its end before."""
    dark = asyncio.Event()

    def count(kind: str, path: str) -> None:
        nonlocal effects
        effects -= 1
        if effects < 0:
            dark.set()
            raise OSError(5, "the power is gone", path)

    house.disk.on_effect = count
    task = asyncio.get_running_loop().create_task(work)
    waiting = asyncio.get_running_loop().create_task(dark.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    task.cancel()
    outcome = await asyncio.gather(task, return_exceptions=True)
    house.disk.on_effect = None
    return not dark.is_set() and not isinstance(outcome[0], BaseException)


async def test_a_crash_in_the_middle_of_closing_the_hole_is_finished_by_the_next_start() -> None:
    """Power goes at every effect of opening on a new disk; the next opening ends the same way."""
    done = False
    at = 0
    while not done:
        house = House(seed=at)
        life = await house.start()
        opened = await life.open(new=True)
        await life.fill(30)
        await settle(lambda opened=opened: opened.tier.remote_end_offset > 0)  # type: ignore[misc]
        sealed = opened.tier.remote_end_offset
        await life.lose_disk()

        life = await house.start()
        done = await cut_power_after(house, at, life.open())
        await life.power_cut(keep=0.5)
        life = await house.start()
        opened = await life.open()
        reserved = (await house.manifest()).reserved_end_offset
        assert opened.log.log_end_offset >= BLOCK and reserved > opened.log.log_end_offset
        assert life.append() >= BLOCK
        records = await read_everything(house, opened)
        assert sorted(o for o in records if o < BLOCK) == list(range(sealed))
        await life.kill()
        at += 1
    assert at > 10


async def test_a_clean_stop_with_everything_copied_leaves_no_hole() -> None:
    """A planned replacement: sealed, stopped, disk gone; the next broker goes on at the very next offset."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    end = await life.fill(33)
    await life.stop(seal=True)
    manifest = await house.manifest()
    assert manifest.remote_end_offset == manifest.reserved_end_offset == end
    house.lose_disk()

    life = await house.start()
    opened = await life.open()
    assert opened.log.log_end_offset == end and opened.log.reserved_end == end + BLOCK
    assert life.append() == end
    assert len(await read_everything(house, opened)) == end + 1
    await life.stop()


async def test_a_start_without_headroom_reserves_before_its_first_append() -> None:
    """After a clean stop gave the reservation back, appends wait for a new one; reads do not."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    end = await life.fill(33)
    await life.stop(seal=True)
    store = FaultyStore(house.memory, SeededRng(1))
    store.down = True
    life = await house.start(store=store)
    opened = await life.open()
    assert opened.log.read(0, 1000, end, min_one=True) is not None
    with pytest.raises(ReservationExhausted):
        life.append()
    await settle(lambda: opened.tier.status().blocked_by is not None)
    store.down = False
    await settle(lambda: opened.log.reserved_end > end)
    assert life.append() == end
    assert opened.tier.status().blocked_by is None
    await life.stop()


async def test_design_c09_a_topic_created_again_under_its_name_has_nothing_of_the_old_one() -> None:
    """C9: the directory of the old topic id is moved aside, objects lie under the id."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    await life.fill(40)
    await life.kill()
    again = UUID(int=TOPIC_ID.int + 1)
    life = await house.start()
    opened = await life.open(new=True, topic_id=again)
    assert opened.log.log_end_offset == 0 and opened.tier.remote_end_offset == 0
    assert life.append() == 0
    assert len(life.data_dir.deleted_directories()) == 1
    assert str(again) in manifest_key(again, 0) and manifest_key(again, 0) in house.memory.objects
    await life.kill()


async def test_a_directory_of_another_topic_is_refused_where_ours_was_served_before() -> None:
    """Fault D8: what is not understood is never deleted; the old topic's purge, or a person, moves it."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    await life.fill(3)
    await life.kill()
    other = House()
    other.memory = other.store = house.memory
    life = await other.start()
    again = UUID(int=TOPIC_ID.int + 1)
    await life.open(new=True, topic_id=again)
    await life.kill()
    house.lives = 1
    life = await house.start()
    with pytest.raises(Corrupt, match="belongs to topic id"):
        await life.open(topic_id=again)
    assert life.data_dir.deleted_directories() == []
    await life.kill()


async def old_copy() -> tuple[House, int]:
    """A house whose disk is an older copy of the data directory, and the end of the log in the bucket."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(5)
    old = house.disk.kill()
    await life.fill(60)
    await opened.tier.seal_and_copy()
    end = opened.tier.remote_end_offset
    await life.kill()
    house.disk = old
    return house, end


async def test_a_log_behind_the_remote_end_starts_there() -> None:
    """An old copy of the data directory, its reservation gone: the bucket's end wins."""
    house, end = await old_copy()
    house.disk.unlink(f"{DATA}/orders-0/thermocline-reservation")
    life = await house.start()
    opened = await life.open()
    assert opened.log.local_log_start_offset == end and opened.log.log_end_offset == BLOCK
    assert sorted(await read_everything(house, opened)) == list(range(end))
    await life.kill()


async def test_an_old_copy_of_the_directory_stops_taking_appends_when_the_bucket_knows_more() -> None:
    """With its reservation it serves at once, but the claim shows what it is; the next start is at the cold end."""
    house, end = await old_copy()
    life = await house.start()
    opened = await life.open()
    await settle(lambda: opened.tier.status().blocked_by == "log behind bucket")
    with pytest.raises(ReservationExhausted):
        life.append()
    await life.kill()
    life = await house.start()
    opened = await life.open()
    assert opened.log.local_log_start_offset == end
    await life.kill()


async def test_a_vanished_root_is_refused_not_replaced() -> None:
    """A partition with objects but no root is damage: starting it anew would give offsets twice."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(40)
    await opened.tier.seal_and_copy()
    await life.lose_disk()
    del house.memory.objects[manifest_key(TOPIC_ID, 0)]
    life = await house.start()
    with pytest.raises(Corrupt, match="is gone"):
        await life.open()
    await life.kill()


async def test_cluster_d16_a_creation_that_was_cut_off_before_its_root_begins_empty() -> None:
    """The topic is committed, the partition has neither root nor files: nobody can have used it."""
    house = House()
    life = await house.start()
    opened = await life.open(new=False)
    assert (opened.log.log_end_offset, opened.log.reserved_end) == (0, BLOCK)
    await life.stop()


async def test_records_survive_kill_and_power_cut_in_sync_mode() -> None:
    """Flushed records are there after every way to die, with no hole declared for them."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    for n in range(6):
        end = await life.fill(11)
        before = records_in(local_bytes(opened.log, 0, end))
        await (life.kill() if n % 2 else life.power_cut(keep=0.5))
        life = await house.start()
        opened = await life.open()
        assert opened.log.log_end_offset == end
        assert records_in(local_bytes(opened.log, 0, end)) == before
    await life.stop()


# ── an opening that fails after all ──────────────────────────────────────────────────────────────────────────────────
async def claimed_by_another(house: House, opening: asyncio.Task[Any]) -> None:
    other = House()
    other.memory = other.store = house.memory
    life = await other.start(epoch=house.lives + 1)
    await life.open()
    await life.kill()


async def damaged(house: House, opening: asyncio.Task[Any]) -> None:
    key = manifest_key(TOPIC_ID, 0)
    whole = house.memory.objects[key]
    house.memory.objects[key] = replace(whole, data=b"#" + whole.data[1:], etag="rotten")


async def cancelled(house: House, opening: asyncio.Task[Any]) -> None:
    opening.cancel()


MEANWHILE = pytest.mark.parametrize(
    ("meanwhile", "raised"),
    [(claimed_by_another, Fenced), (damaged, Corrupt), (cancelled, asyncio.CancelledError)],
)
Meanwhile = Callable[[House, asyncio.Task[Any]], Awaitable[None]]


@pytest.fixture
def opened_logs(monkeypatch: pytest.MonkeyPatch) -> list[OpenLog]:
    """Every log that was opened, also where leading it failed."""
    found: list[OpenLog] = []
    add = LogHost._add

    def noted(self: LogHost, at: Place, local: PartitionLog, *, is_bare: bool = False) -> OpenLog:
        found.append(add(self, at, local, is_bare=is_bare))
        return found[-1]

    monkeypatch.setattr(LogHost, "_add", noted)
    return found


def is_given_up(opened: OpenLog) -> bool:
    """Whether it can neither write nor sync: its flusher starts nothing, its file is closed."""
    try:
        opened.log.active_segment.file.size()
    except OSError as refused:
        return refused.errno == errno.EBADF and opened.flusher._states.is_over
    return False


class Overtaken(MemoryStore):
    """A commit to a root lands, another leader claims and reserves on top, and only then its answer is lost: the one
    that `left` reaches 0 with."""

    left = 0
    overtake: Callable[[], Awaitable[None]]

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        etag = await super().put_root(key, data, if_match)
        self.left -= 1
        if self.left == 0:
            await self.overtake()
            raise StoreUnavailable(f"PUT {key}: no answer")
        return etag


async def left_in_doubt(house: House) -> None:
    """A log that holds nothing, and lost the copy of its reservation: the root is asked first."""
    life = await house.start()
    path = (await life.open(new=True)).log.path
    await life.kill()
    remove_reservation(house.disk.open_dir(path))


@pytest.mark.parametrize(("left", "reserving"), [("new", 1), ("lost", 1), ("in doubt", 2)])
async def test_a_reservation_that_another_leader_made_is_never_ours(left: str, reserving: int) -> None:
    """Our commit landed, its answer did not; what the root says by then is the next leader's to give. `reserving`: that
    of our commits which reserves, in the claim itself, or behind it."""
    house = House()
    house.memory = house.store = store = Overtaken()
    if left == "lost":
        life = await house.start()
        await life.open(new=True)
        await life.lose_disk()
    elif left == "in doubt":
        await left_in_doubt(house)
    life = await house.start()

    async def overtake() -> None:
        other = ManifestStore(store, TOPIC_ID, 0, SeededRng(7), FastClock())
        manifest = await other.claim(life.epoch + 1, "other", {})
        await other.commit(lambda m: m.reserve(manifest.reserved_end_offset + 5000))

    store.overtake, store.left = overtake, reserving
    with pytest.raises(Fenced):
        await life.open(new=left == "new")
    assert (await house.manifest()).leader_epoch == life.epoch + 1
    await life.kill()


def copy_of(house: House, opened: Opened) -> LocalReservation | None:
    return read_reservation(house.disk.open_dir(opened.log.path), TOPIC_ID, 0)


async def test_a_log_made_again_costs_one_commit_and_notes_what_it_may_give_once_it_serves() -> None:
    """A thousand of them are made at once. Killed before that, the next start finds no copy and asks the root: what was
    acknowledged stays, and nothing that may have been given is given again."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    await life.lose_disk()
    store = MeteredStore(house.memory, FastClock())
    life = await house.start(store=store)
    with life.service.deferring_starts(is_start=True):
        opened = await life.open()
        assert store.meters[Operation.PUT_ROOT].calls == 1
        assert opened.lost == (0, BLOCK) and opened.log.reserved_end == 2 * BLOCK
        assert (await house.manifest()).reserved_end_offset == 2 * BLOCK
        assert copy_of(house, opened) is None
        end = await life.fill(3)
        await life.power_cut()
    life = await house.start()
    opened = await life.open()
    assert opened.lost == (end, 2 * BLOCK) and set(await read_everything(house, opened)) == {*range(BLOCK, end)}
    await settle(lambda: copy_of(house, opened) is not None)
    copy = copy_of(house, opened)
    assert copy is not None and copy.reserved_end == opened.log.reserved_end == 3 * BLOCK
    await life.power_cut()
    life = await house.start()
    assert (await life.open()).lost is None
    await life.kill()


async def test_a_clean_stop_notes_what_a_log_made_again_may_give() -> None:
    """Also before its tier was at work: the next start declares no gap for a log that is whole."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    await life.lose_disk()
    life = await house.start()
    with life.service.deferring_starts(is_start=True):
        await life.open()
        end = await life.fill(3)
        await life.stop()
    life = await house.start()
    opened = await life.open()
    assert opened.lost is None and opened.log.log_end_offset == end
    await life.kill()


async def test_a_claim_that_reserved_and_made_no_log_leaves_a_longer_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed behind the claim: the next start cannot tell what of it was given. The same process knows the hole."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    await life.lose_disk()

    async def away(*_: object) -> Begin:
        raise StoreUnavailable("GET of a footer: no answer")

    life = await house.start()
    with monkeypatch.context() as patched:
        patched.setattr(attach, "begin_at_end", away)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await life.open()
    opened = await life.open()
    assert opened.lost == (0, BLOCK) and opened.log.reserved_end == 2 * BLOCK
    await life.lose_disk()
    life = await house.start()
    with monkeypatch.context() as patched:
        patched.setattr(attach, "begin_at_end", away)
        with pytest.raises(StoreUnavailable):
            await life.open()
    await life.kill()
    life = await house.start()
    opened = await life.open()
    assert opened.lost == (0, 3 * BLOCK) and opened.log.reserved_end == 4 * BLOCK
    await life.kill()


def slow_after_the_gap(monkeypatch: pytest.MonkeyPatch, store: FaultyStore) -> asyncio.Event:
    """Set when the gap was appended; from then on the store takes a second to answer."""
    appended = asyncio.Event()

    def reach(point: str) -> None:
        if point == "gap.appended":
            store.plan = FaultPlan(latency_s=(1.0, 1.0))
            appended.set()

    monkeypatch.setattr(tail_recovery, "reach", reach)
    return appended


@MEANWHILE
async def test_a_log_whose_hole_was_closed_is_given_up_when_no_reservation_follows(
    meanwhile: Meanwhile,
    raised: type[BaseException],
    opened_logs: list[OpenLog],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Superseded, refused by a damaged root, or its topic deleted, while the commit of the reservation was under way:
    no task of it goes on, none of its files stays open."""
    house = House()
    await left_in_doubt(house)
    opened_logs.clear()

    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    appended = slow_after_the_gap(monkeypatch, store)
    opening = asyncio.get_running_loop().create_task(life.open())
    await appended.wait()
    (first,) = opened_logs
    assert first.log.log_end_offset == BLOCK
    await meanwhile(house, opening)
    with pytest.raises(raised):
        await opening
    assert is_given_up(first)
    await life.kill()


@MEANWHILE
async def test_a_log_without_headroom_is_given_up_when_its_first_reservation_fails(
    meanwhile: Meanwhile, raised: type[BaseException], opened_logs: list[OpenLog]
) -> None:
    """A clean stop gave the reservation back, so that opening asks the root once the log is open; only a bucket that
    does not answer is waited for."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    await life.fill(3)
    await life.stop(seal=True)
    opened_logs.clear()

    store = FaultyStore(house.memory, SeededRng(1), FaultPlan(latency_s=(1.0, 1.0)))
    life = await house.start(store=store)
    opening = asyncio.get_running_loop().create_task(life.open())
    await settle(lambda: bool(opened_logs))
    (first,) = opened_logs
    assert first.log.reserved_end == first.log.log_end_offset == 3
    await meanwhile(house, opening)
    with pytest.raises(raised):
        await opening
    assert is_given_up(first)
    await life.kill()


async def test_leading_that_waits_for_the_bucket_goes_on_with_the_log_it_opened(
    opened_logs: list[OpenLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gap is appended, the full disk does not take the epochs beside it, the bucket not the reservation. Once both
    do, the next attempt is over the same log, whose epochs are written once: there is no second log beside it."""
    house = House()
    life = await house.start()
    await life.open(new=True, log=OS_LOG, tier=UNTIERED)
    life.append()
    await life.power_cut()
    opened_logs.clear()

    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    appended = slow_after_the_gap(monkeypatch, store)
    house.disk.inject("write", errno.ENOSPC, EPOCHS_FILE + TEMPORARY, times=-1)
    opening = asyncio.get_running_loop().create_task(life.open(log=OS_LOG, tier=UNTIERED))
    await appended.wait()
    store.down = True
    with pytest.raises(Retryable):
        await opening
    assert house.disk.hits["fault:write"] > 0, "the first log's epochs wait for space"

    store.calm()
    house.disk.heal()
    opened = await life.open(log=OS_LOG, tier=UNTIERED)
    await asyncio.sleep(2 * SEAL_AGAIN_S)
    assert house.disk.stat(f"{opened.log.path}/{EPOCHS_FILE}") is not None
    assert opened_logs == [opened.open_log] and not is_given_up(opened.open_log)
    assert opened.log.log_end_offset == BLOCK and opened.log.reserved_end == 2 * BLOCK
    assert life.append() == BLOCK
    await opened.flusher.flush()
    assert sorted(records_in(local_bytes(opened.log, 0, BLOCK + 1))) == [BLOCK]
    await life.stop()
