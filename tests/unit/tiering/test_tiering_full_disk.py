"""A disk without a free byte: a start gets through, readers are served, what the bucket holds goes, appends go on."""

from __future__ import annotations

import asyncio
import errno

import pytest
from msgspec.structs import replace

from coldstore.stores.operations import Operation
from hotstore.errors import LogFull, OutOfOrderSequence
from hotstore.host.ballast import BALLAST_FILE, Step, next_step
from logformat.records import Record, encode_batch
from seams.rng import SeededRng
from tests.support.disk.hotstore_kit import batches_of
from tests.support.fast_loop import run_fast
from tests.support.store.faulty_store import Fault, FaultyStore
from tests.support.tier.tier_kit import DATA, LIMITS, LOG, TIER, House, Life, Opened, read_everything, settle

SIZED = replace(LIMITS, local_bytes_max=4000)
OS_LOG = replace(LOG, flush_sync=False)


SOMEBODY = "/somebody-elses"


def small_house() -> House:
    """On a file system of 64 MiB."""
    house = House()
    house.disk.capacity_bytes = 64 << 20
    return house


def fill_up(house: House, *, ballast: bool = True) -> None:
    """Somebody else takes every byte; without `ballast`, what the broker held back, too."""
    if not ballast:
        house.disk.unlink(f"{DATA}/{BALLAST_FILE}")
    house.disk.allocate(SOMEBODY, house.disk.space("/").free)
    assert house.disk.space("/").free == 0


async def lived(house: House, log: object = LOG) -> tuple[Life, Opened]:
    """A hundred records, what is sealed is in the bucket, nothing local went; no clean stop."""
    life = await house.start()
    opened = await life.open(new=True, log=log)  # type: ignore[arg-type]
    await life.fill(100)
    await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset)
    life.data_dir.checkpoints.sample([opened.log]).run()
    return life, opened


@pytest.mark.parametrize("log", [LOG, OS_LOG], ids=["sync", "os"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("ballast", [True, False])
async def test_a_machine_restart_on_a_full_disk_serves_reads_and_gives_back_what_it_may(
    log: object, clean: bool, ballast: bool
) -> None:
    """The reservation of an earlier machine run, indexes, checkpoints: nothing has to be written before readers are
    served. Under the limit's pressure copied segments go; with room again appends go on."""
    house = small_house()
    life, opened = await lived(house, log)
    await life.stop() if clean else await life.kill()
    if log is LOG or clean:
        house.boots += 1
    fill_up(house, ballast=ballast)

    life = await house.start(limits=SIZED)
    opened = await life.open(log=log)  # type: ignore[arg-type]
    assert sorted(await read_everything(house, opened)) == list(range(100))
    await settle(lambda: opened.log.local_bytes <= SIZED.local_bytes_max)
    house.disk.unlink(SOMEBODY)
    await settle(lambda: not opened.log.ballast.is_short and opened.log.reserved_end > opened.log.log_end_offset)
    assert life.append() == 100
    assert not house.failures
    await life.kill()


async def test_recovery_without_a_free_byte_owes_its_small_files() -> None:
    """Sealed segments whose indexes were not written yet, epochs, producers: owed, and written when there is space."""
    house = small_house()
    life = await house.start()
    opened = await life.open(new=True)
    for number in range(60):
        life.append(sequence=number)
    await life.kill()  # before any index or producer file
    names = [n for n in house.disk.list_dir("/data/orders-0") if n.endswith((".index", ".timeindex", ".producers"))]
    for name in names:
        house.disk.unlink(f"/data/orders-0/{name}")
    fill_up(house, ballast=False)

    life = await house.start()
    opened = await life.open()
    assert sorted(await read_everything(house, opened)) == list(range(60))
    assert opened.log.has_sealing
    house.disk.unlink(SOMEBODY)
    await settle(lambda: not opened.log.has_sealing)
    sealed = [segment.base_offset for segment in opened.log.sealed_segments()]
    found = house.disk.list_dir("/data/orders-0")
    assert [n for n in found if n.endswith(".index")] == [f"{base:020d}.index" for base in sealed]
    await life.kill()
    life = await house.start()
    opened = await life.open()
    life.append(sequence=60)
    with pytest.raises(OutOfOrderSequence):
        life.append(sequence=70)
    await life.kill()


@pytest.mark.parametrize("configured", [None, 1 << 40], ids=["share of the disk", "a limit far away"])
def test_what_the_bucket_holds_goes_from_a_disk_that_somebody_else_filled(
    configured: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Copied segments leave, sealed ones are copied, small files are written, all in what was held back; appends are
    refused meanwhile and go on by themselves. Told once when it begins and once when it ends."""

    async def scenario() -> None:
        house = small_house()
        limits = replace(LIMITS, local_bytes_max=configured, reservation_offsets=10_000)
        life = await house.start(limits=limits)
        opened = await life.open(new=True, log=replace(LOG, segment_bytes=100_000))
        for _ in range(1000):
            life.append(size=5000)
        await opened.flusher.flush()
        await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset)
        before = opened.log.local_bytes
        assert before > 4 << 20
        fill_up(house)
        with pytest.raises(LogFull):
            life.append(size=5000)
        await settle(lambda: opened.log.local_bytes < before // 4)
        await settle(lambda: not opened.log.ballast.is_short)
        assert life.append(size=5000) == 1000
        assert sorted(await read_everything(house, opened)) == list(range(1001))
        assert not house.failures
        await life.stop()

    with caplog.at_level("INFO"):
        run_fast(scenario())
    told = [record.getMessage() for record in caplog.records if record.name.startswith("tiering")]
    assert len(told) == 2 and "no space left below /data" in told[0] and "space again" in told[1], told


async def test_the_ballast_is_not_for_appends() -> None:
    """While it is given up every append is refused, however much it left; resends are still answered."""
    house = small_house()
    life = await house.start()
    opened = await life.open(new=True)
    first = life.append(sequence=0)
    fill_up(house)
    await settle(lambda: opened.log.ballast.is_short)
    free = house.disk.space("/").free
    assert free > 10_000
    with pytest.raises(LogFull, match="free space below"):
        life.append(sequence=1)
    again = encode_batch([Record(0, 1, None, b"")], producer_id=7, producer_epoch=0, base_sequence=0)
    assert opened.log.append_as_leader(*batches_of(bytearray(again)), 1, 1).base_offset == first
    assert house.disk.space("/").free == free
    house.disk.unlink(SOMEBODY)
    await settle(lambda: not opened.log.ballast.is_short)
    life.append(sequence=1)
    await life.stop()


async def test_a_seal_that_finds_no_space_is_tried_again_now_and_then() -> None:
    """What is sealed already is copied meanwhile; the loop does not spin over the seal that is due."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=replace(TIER, seal_ms=5000))
    await life.fill(3)
    house.disk.inject("create", errno.ENOSPC, ".log", times=1000)
    await asyncio.sleep(25)
    assert 10 <= house.disk.hits["fault:create"] <= 30
    house.disk.heal()
    await settle(lambda: opened.tier.remote_end_offset == 3)
    assert not house.failures
    await life.kill()


@pytest.mark.parametrize(
    ("is_held", "free", "met_full", "step"),
    [
        (True, 100, False, Step.STAY),
        (True, 50, False, Step.STAY),
        (True, 49, False, Step.GIVE_UP),
        (True, 299, True, Step.GIVE_UP),
        (True, 300, True, Step.STAY),  # what was refused then fits now, or wants something else than bytes
        (False, 299, False, Step.STAY),
        (False, 300, False, Step.MAKE),
    ],
)
def test_when_the_ballast_goes_and_comes_back(is_held: bool, free: int, met_full: bool, step: Step) -> None:
    """It goes before the last half of it is met, and comes back with twice as much left over: no to and fro."""
    assert next_step(is_held=is_held, free_bytes=free, ballast_bytes=100, met_full=met_full) is step
    assert next_step(is_held=is_held, free_bytes=free, ballast_bytes=0, met_full=met_full) is Step.STAY


# ── the limit in an outage ───────────────────────────────────────────────────────────────────────────────────────────


async def test_the_limit_holds_in_an_outage_after_a_restart() -> None:
    """What an earlier process copied may not go before it is verified again, which the store does not answer: it does
    not count as given back, so that appends stop at a tenth over the limit, not at twice of it."""
    house = House()
    life, opened = await lived(house)
    await life.kill()
    store = FaultyStore(house.memory, SeededRng(1))
    held = opened.log.local_bytes
    life = await house.start(store=store, limits=replace(LIMITS, local_bytes_max=held, reservation_offsets=10_000))
    opened = await life.open()
    await settle(lambda: opened.tier.partition_state.claimed)
    for operation in Operation:
        store.script(operation, Fault.BEFORE, times=10**9)
    while life.service.watch.local_excess_ratio <= 0.1 and opened.log.local_bytes < 3 * held:
        await life.fill(1)
        await asyncio.sleep(1)
    assert opened.log.local_bytes <= 1.15 * held
    store.calm()
    await settle(lambda: life.service.watch.local_excess_ratio == 0 and opened.log.local_bytes <= held)
    assert sorted(await read_everything(house, opened)) == list(range(opened.log.log_end_offset))
    await life.kill()


async def test_what_is_sure_goes_in_an_outage_though_the_rest_cannot_be_verified() -> None:
    """Segments whose copies were verified leave the disk while the store answers no HEAD; the next ones stay."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store, limits=SIZED)
    opened = await life.open(new=True)
    await life.fill(15)
    verified = opened.log.active_info().base_offset
    await settle(lambda: opened.tier.partition_state.sure_end_offset == verified > 0)
    store.script(Operation.HEAD, Fault.BEFORE, times=10**9)
    await life.fill(45)
    await settle(lambda: opened.log.local_log_start_offset == verified)
    await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset)
    store.calm()
    await settle(lambda: opened.log.local_bytes <= SIZED.local_bytes_max)
    assert sorted(await read_everything(house, opened)) == list(range(60))
    await life.kill()


async def test_pressure_reaches_a_topic_that_copies_no_more() -> None:
    """remote.log.copy.disable: what is in the bucket leaves a full disk, too, and stays readable."""
    house = House()
    life, opened = await lived(house)
    opened.tier.reconfigure(replace(TIER, copy_disable=True))
    opened.tier.expire_soon(1 << 30)
    await settle(lambda: opened.log.local_log_start_offset == opened.tier.remote_end_offset)
    assert opened.log.log_start_offset == 0
    assert sorted(await read_everything(house, opened)) == list(range(100))
    await life.kill()


async def test_the_name_of_a_ballast_that_was_never_made_holds_nothing_back() -> None:
    """What a kill leaves between the file and its space, or a power cut right after both: it was taken for the real
    one, and a full disk had nothing to give."""
    house = small_house()
    await (await house.start()).kill()
    path = f"{DATA}/{BALLAST_FILE}"
    size = house.disk.stat(path).size  # type: ignore[union-attr]
    assert size == 1 << 20
    house.disk.unlink(path)
    house.disk.open(path, write=True, create=True).close()
    life = await house.start()
    assert house.disk.stat(path).size == size  # type: ignore[union-attr]
    await life.kill()


def test_nothing_has_to_go_for_room_that_logs_took_ahead() -> None:
    """A disk is over its share only because the active segment has blocks beyond its end, which it fills itself."""

    async def main() -> None:
        house = House()
        life = await house.start(limits=replace(LIMITS, local_bytes_max=None))
        opened = await life.open(new=True, log=replace(LOG, segment_bytes=16_000))
        ahead = life.logs.ballast.preallocation
        ahead.unit_bytes, ahead.budget_bytes = 2_000, 1 << 20
        await life.fill(300)
        while ahead.held_bytes < 6_000:
            life.append()
        await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset)
        space = house.disk.space("/")
        used = space.total - space.free
        house.disk.capacity_bytes = int((used - ahead.held_bytes // 2) / LIMITS.local_space_ratio_max)
        await asyncio.sleep(60)
        assert ahead.held_bytes >= 6_000, "it holds them still"
        assert opened.log.local_log_start_offset == 0 and life.service.watch.local_excess_ratio == 0
        await life.stop()

    run_fast(main())
