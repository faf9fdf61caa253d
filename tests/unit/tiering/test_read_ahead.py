"""What is read of lost logs before anybody may lead them: it saves requests, and decides nothing."""

from __future__ import annotations

import pytest

from coldstore.stores.metered import MeteredStore
from coldstore.stores.operations import Operation
from logformat.errors import Fenced
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock
from tests.support.store.faulty_store import FaultyStore
from tests.support.tier.tier_kit import BLOCK, TOPIC_ID, House, Life, Opened, read_everything, settle
from tiering.opening.read_ahead import ReadAhead

PARTITIONS = 3
KEYS = [(TOPIC_ID, partition) for partition in range(PARTITIONS)]


async def filled(house: House, batches: int = 40) -> Life:
    """Partitions of which most is in the bucket."""
    life = await house.start(epoch=1)
    for partition in range(PARTITIONS):
        await life.open(new=True, partition=partition)
        for number in range(batches):
            life.append(partition=partition, sequence=number, timestamp=number)
        await life.opened[partition].flusher.flush()
        await copied(life.opened[partition])
    return life


async def copied(opened: Opened) -> None:
    await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset)


def ahead_of(house: House, store: MeteredStore | FaultyStore | None = None) -> ReadAhead:
    return ReadAhead(store or house.memory, house.world(), 10.0)


def gets(store: MeteredStore) -> int:
    return store.meters[Operation.GET].calls + store.meters[Operation.GET_IF_CHANGED].calls


def begun(opened: Opened) -> tuple[object, ...]:
    log = opened.log
    kept = log.producers.at(log.log_end_offset).state().producers
    producers = [
        (entry.producer_id, batch.first_sequence, batch.last_offset) for entry in kept for batch in entry.batches
    ]
    return log.log_start_offset, log.log_end_offset, log.epochs, producers, opened.lost, log.reserved_end


async def restored(house: House, ahead: ReadAhead | None, epoch: int = 2) -> tuple[list[tuple[object, ...]], int]:
    """What its partitions begin with after all was lost, and how often the bucket was read for it."""
    store = MeteredStore(house.memory, FastClock())
    life = await house.start(epoch=epoch, store=store, ahead=ahead)
    with life.service.deferring_starts(is_start=True):
        try:
            found = [begun(await life.open(partition=partition)) for partition in range(PARTITIONS)]
            asked = gets(store)
        finally:
            await life.lose_disk()
    return found, asked


async def test_what_was_read_ahead_is_not_read_again() -> None:
    """Roots and footers: with them only the claim and the reservation are left to ask of the bucket."""
    houses = House(), House()
    for house in houses:
        await (await filled(house)).lose_disk()
    ahead = ahead_of(houses[0])
    await ahead.read(KEYS)
    (found, asked), (otherwise, asked_then) = await restored(houses[0], ahead), await restored(houses[1], None)
    assert found == otherwise
    assert asked == 0 and asked_then == 2 * PARTITIONS
    ahead.forget()
    assert not ahead.cold and all(ahead.take(key) is None for key in KEYS)


async def test_what_the_old_leader_committed_after_it_was_read_counts() -> None:
    """A zombie goes on until a claim fences it: the claim does not replace the root that was read, so it is read again,
    and the log begins behind the newer object, with what that says of producers; nothing acknowledged and copied is
    stepped over, no offset given twice."""
    house, other = House(), House()
    other.memory = other.store = house.memory
    old = await filled(house)
    zombie = old.opened[0]
    ahead = ahead_of(other)
    await ahead.read(KEYS)
    read_end = zombie.tier.remote_end_offset
    for number in range(40, 80):
        old.append(sequence=number)
    await zombie.flusher.flush()
    await copied(zombie)
    assert zombie.tier.remote_end_offset > read_end
    new = await other.start(epoch=2, ahead=ahead)
    again = await new.open()
    log, end = again.log, zombie.tier.remote_end_offset
    assert again.lost == (end, BLOCK) and log.log_end_offset == BLOCK
    (producer,) = log.producers.at(end).state().producers
    assert producer.batches[-1].last_offset == end - 1
    assert [epoch.start_offset for epoch in log.epochs.entries] == [0, end]
    assert set(await read_everything(other, again)) == set(range(end))
    with pytest.raises(Fenced):
        await zombie.tier.delete_records(1)
    await new.stop()
    await old.kill()


async def test_a_root_of_a_higher_epoch_that_was_read_fences() -> None:
    """Somebody else leads by now: what was read says so without another question."""
    house = House()
    await (await filled(house)).lose_disk()
    await restored(house, None, epoch=5)
    ahead = ahead_of(house)
    await ahead.read(KEYS)
    with pytest.raises(Fenced):
        await restored(house, ahead, epoch=4)


async def test_what_cannot_be_read_ahead_is_read_when_it_is_opened() -> None:
    """The store is away, or a root is none: who opens the log asks again, and says what is wrong."""
    house = House()
    await (await filled(house)).lose_disk()
    store = FaultyStore(house.memory, SeededRng(1))
    store.down = True
    ahead = ahead_of(house, store)
    await ahead.read([*KEYS, (TOPIC_ID, 77)])
    found, asked = await restored(house, ahead)
    assert asked == 2 * PARTITIONS and len(found) == PARTITIONS


async def test_a_root_without_its_footer_is_a_start_too() -> None:
    """The object that it names is read again by whoever opens the log."""
    house = House()
    await (await filled(house)).lose_disk()
    ahead = ahead_of(house)
    await ahead.read(KEYS)
    ahead.cold.clear()
    _, asked = await restored(house, ahead)
    assert asked == PARTITIONS
