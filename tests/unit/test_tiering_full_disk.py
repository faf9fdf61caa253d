"""A disk without a free byte: a start gets through, readers are served, what the bucket holds goes, appends go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotstore.errors import OutOfOrderSequence
from tests.support.crash_disk import CAPACITY_BYTES
from tests.support.fast_loop import run_fast
from tests.support.tier_kit import LIMITS, LOG, House, Life, read_everything, settle
from tiering.service import Opened

SIZED = replace(LIMITS, local_bytes_max=4000)
OS_LOG = replace(LOG, flush_sync=False)


def fill_up(house: House) -> None:
    """Somebody else takes every byte."""
    space = house.disk.space("/")
    house.disk.capacity_bytes = space.total - space.free


async def lived(house: House, log: object = LOG) -> tuple[Life, Opened]:
    """A hundred records, what is sealed is in the bucket, nothing local went; no clean stop."""
    life = await house.start()
    opened = await life.open(new=True, log=log)  # type: ignore[arg-type]
    await life.fill(100)
    await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset)
    life.data_dir.checkpoint([opened.log]).run()
    return life, opened


@pytest.mark.parametrize("log", [LOG, OS_LOG], ids=["sync", "os"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_machine_restart_on_a_full_disk_serves_reads_and_gives_back_what_it_may(log: object, clean: bool) -> None:
    """The reservation of an earlier machine run, indexes, checkpoints: nothing has to be written before readers are
    served. Under the limit's pressure copied segments go, and then appends go on."""

    async def scenario() -> None:
        house = House()
        life, opened = await lived(house, log)
        await life.stop() if clean else await life.kill()
        if log is LOG or clean:
            house.boot = "boot-2"
        fill_up(house)

        life = await house.start(limits=SIZED)
        opened = await life.open(log=log)  # type: ignore[arg-type]
        assert sorted(await read_everything(house, opened)) == list(range(100))
        await settle(lambda: opened.log.local_bytes <= SIZED.local_bytes_max)
        await settle(lambda: opened.log.reserved_end > opened.log.log_end_offset)
        assert life.append() == 100
        assert not house.failures
        await life.kill()

    run_fast(scenario())


def test_recovery_without_a_free_byte_owes_its_small_files() -> None:
    """Sealed segments whose indexes were not written yet, epochs, producers: owed, and written when there is space."""

    async def scenario() -> None:
        house = House()
        life = await house.start()
        opened = await life.open(new=True)
        for number in range(60):
            life.append(sequence=number)
        await life.kill()  # before any index or producer file
        names = [n for n in house.disk.list_dir("/data/orders-0") if n.endswith((".index", ".timeindex", ".producers"))]
        for name in names:
            house.disk.unlink(f"/data/orders-0/{name}")
        fill_up(house)

        life = await house.start()
        opened = await life.open()
        assert sorted(await read_everything(house, opened)) == list(range(60))
        assert opened.log.has_sealing
        house.disk.capacity_bytes = CAPACITY_BYTES
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

    run_fast(scenario())
