"""What is kept by a log's name or path says nothing of the next log of that name."""

from __future__ import annotations

import asyncio
import errno

import pytest

from hotstore.host.residency import Residency
from logformat.leader_epochs import LeaderEpochs
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import LOG_PATH, ORDERS, SteppedWorkers, append, batch, settle
from tests.unit.hotstore.host.test_log_host import CONFIG, ID, OTHER, host


async def test_a_checkpoint_of_a_log_that_is_closed_changes_no_line_of_the_next_one() -> None:
    """Its recovery point was claimed of a log that ends before it, which the next start refused."""
    disk = CrashDisk()
    logs = host(disk)
    old = await logs.create(ORDERS, ID, CONFIG)
    append(old.log, batch(20))
    await old.flusher.flush()
    await logs.close(old, clean=False)
    await logs.move_stray(ORDERS, ID)
    new = await logs.create(ORDERS, OTHER, CONFIG)
    append(new.log, batch(5))
    await new.flusher.flush()
    await logs.checkpoint({old.log: 20})  # of a role that ended while this waited for its turn
    await new.flusher.close()
    found = await host(disk.crash(SeededRng(1), 0.0)).open(ORDERS, OTHER, CONFIG)
    assert found is not None and (found.log.log_end_offset, found.high_watermark) == (5, 0)


@pytest.mark.parametrize("is_asked_meanwhile", [False, True])
async def test_a_read_that_failed_in_a_file_that_is_gone_fails_no_read_of_the_next_file_at_its_path(
    is_asked_meanwhile: bool,
) -> None:
    """It was noted by path when the thread was done, and raised to whoever read there next: of another topic. Who asked
    for the next file while the thread was still at the old one waits for it, and asks again."""
    disk, workers = CrashDisk(), SteppedWorkers()
    residency = Residency(workers, report=lambda name, failure: None)
    path = f"{LOG_PATH}/00000000000000000000.log"
    disk.make_dirs(LOG_PATH)
    old = disk.open(path, write=True, create=True)
    old.write_at(0, [b"x" * 100])
    assert residency.ready(old, 0, 100) is not None
    await settle()
    disk.unlink(path)
    new = disk.open(path, write=True, create=True)
    new.write_at(0, [b"y" * 100])
    if is_asked_meanwhile:
        assert residency.ready(new, 0, 100) is not None
    disk.inject("read", errno.EIO)
    await workers.step()
    disk.heal()
    waiting = residency.ready(new, 0, 100)  # raises what the old file's thread met
    if waiting is not None:
        while workers.waiting:
            await workers.step()
        await asyncio.wait([waiting], timeout=1.0)
    await residency.close()


async def test_a_log_that_begins_elsewhere_is_checkpointed_as_it_is() -> None:
    """Refutes a suspicion: a job that was sampled before a beginning writes what is noted when it runs."""
    disk = CrashDisk()
    logs = host(disk)
    opened = await logs.create(ORDERS, ID, CONFIG)
    append(opened.log, batch(20))
    await opened.flusher.flush()
    await asyncio.gather(
        logs.checkpoint({opened.log: 20}),
        logs.lend(opened, "follower").begin_at(7, LeaderEpochs(), (), forget_start=True),
    )
    await logs.checkpoint({opened.log: 7})
    await opened.flusher.close()
    found = await host(disk.crash(SeededRng(1), 0.0)).open(ORDERS, ID, CONFIG)
    assert found is not None and found.log.log_end_offset == 7
