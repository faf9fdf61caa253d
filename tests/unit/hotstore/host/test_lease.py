"""What a role holds of a log ends with it: no effect comes later, and the next role waits for what is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from hotstore.host.data_dir import DataDir
from hotstore.host.lease import Lease, LeaseOver
from hotstore.host.log_host import LogHost
from hotstore.host.log_owner import UNOWNED
from hotstore.log.log_config import LogConfig
from logformat.errors import Fenced
from logformat.leader_epochs import LeaderEpochs
from logformat.record_batch import INT64_MAX
from seams.files.syncs import WorkerSyncs
from seams.rng import SeededRng
from seams.world import World
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import DATA, META, ORDERS, SteppedWorkers, append, batch
from tests.support.fast_loop import FastClock
from tests.unit.hotstore.host.test_place import HeldWorkers, turns

ID = UUID(int=1)


class Scene:
    """An open log of ten records; `late` has what was told of late effects."""

    def __init__(self, workers: Any = None) -> None:
        self.late: list[str] = []
        at_once: Any = SteppedWorkers(immediate=True)
        net: Any = None
        disk = CrashDisk()
        world = World(
            disk, workers or at_once, WorkerSyncs(at_once), FastClock(), SeededRng(1), net, late_effect=self.late.append
        )
        directory = DataDir.open(disk, DATA)
        directory.format(META)
        directory.remove_clean_marker()
        self.logs = LogHost(directory, world)

    async def lent(self) -> Lease:
        opened = await self.logs.create(ORDERS, ID, LogConfig())
        append(opened.log, batch(10))
        await opened.flusher.flush()
        return self.logs.lend(opened, "leader epoch 1")


EFFECTS: dict[str, Callable[[Lease], Any]] = {
    "append as leader": lambda lease: lease.append_as_leader((), (), 1, 0),
    "append as follower": lambda lease: lease.append_as_follower((), (), 0),
    "gap": lambda lease: lease.append_gap(b"", 0),
    "roll": lambda lease: lease.roll(),
    "epoch": lambda lease: lease.begin_epoch(2),
    "log start": lambda lease: lease.advance_log_start(5),
    "log start, lower": lambda lease: lease.set_log_start(0),
    "reservation": lambda lease: lease.reserve(100),
    "high watermark": lambda lease: lease.move_high_watermark(1),
    "seen epoch": lambda lease: lease.saw_epoch(2),
    "retention": lambda lease: lease.delete_local_before(5),
    "owner": lambda lease: lease.listen(UNOWNED),
    "blocking call": lambda lease: lease.call(print),
    "unlink": lambda lease: lease.unlink(),
    "cut": lambda lease: lease.truncate(5),
    "begin elsewhere": lambda lease: lease.begin_at(20, LeaderEpochs(), (), forget_start=True),
    "checkpoint of the start": lambda lease: lease.checkpoint_start(),
    "checkpoint": lambda lease: lease.checkpoint(),
    "note of a seen epoch": lambda lease: lease.note_seen_epoch(3),
}


@pytest.mark.parametrize("effect", EFFECTS)
async def test_an_effect_through_a_lease_that_is_over_is_refused_and_told(effect: str) -> None:
    scene = Scene()
    lease = await scene.lent()
    lease.end()
    log = lease.log
    before = log.log_start_offset, log.log_end_offset, log.leader_epoch, log.reserved_end, log.local_bytes
    with pytest.raises(LeaseOver):
        done = EFFECTS[effect](lease)
        if asyncio.iscoroutine(done):
            await done
    assert len(scene.late) == 1 and "orders-0: leader epoch 1" in scene.late[0]
    assert before == (
        log.log_start_offset, log.log_end_offset, log.leader_epoch, log.reserved_end, log.local_bytes
    )  # fmt: skip
    assert issubclass(LeaseOver, Fenced)


async def test_its_end_takes_owner_and_offsets_away_at_once() -> None:
    """What might be given when it ended is said to whoever leads next."""
    lease = await Scene().lent()
    owner: Any = object()
    lease.listen(owner)
    lease.reserve(500)
    assert lease.log.owner is owner and lease.reserved_end == 500
    lease.check()
    lease.end()
    assert lease.log.owner is UNOWNED and lease.log.reserved_end == 10 and lease.reserved_end == 500
    lease.end()
    assert lease.reserved_end == 500, "a second end changes nothing"
    with pytest.raises(LeaseOver):
        lease.check()


async def test_the_next_role_waits_until_the_calls_of_the_one_before_are_over() -> None:
    """Also of those whose caller was cut off."""
    workers = HeldWorkers()
    scene = Scene()
    lease = await scene.lent()
    lease.opened.at.workers = workers
    done: list[str] = []
    caller = asyncio.ensure_future(lease.call(done.append, "late"))
    await turns()
    caller.cancel()
    lease.end()
    returned = asyncio.ensure_future(lease.returned())
    await asyncio.sleep(60.0)
    assert not returned.done() and not lease.is_returned
    with pytest.raises(AssertionError):
        scene.logs.lend(lease.opened, "follower epoch 2")
    while workers.under_way:  # small files beside the log among them
        await workers.finish()
    await returned
    after = scene.logs.lend(lease.opened, "follower epoch 2")
    assert done == ["late"] and not after.is_over and scene.late == []


async def test_a_log_has_one_lease_that_lasts() -> None:
    scene = Scene()
    lease = await scene.lent()
    with pytest.raises(AssertionError):
        scene.logs.lend(lease.opened, "another")
    with pytest.raises(AssertionError):
        await lease.returned()
    lease.end()
    second = scene.logs.lend(lease.opened, "another")
    second.reserve(INT64_MAX)
    lease.end()
    assert second.log.reserved_end == INT64_MAX, "the end of the one before is over"
    second.end()
    await scene.logs.close(second.opened, clean=True)
    with pytest.raises(AssertionError):
        scene.logs.lend(second.opened, "of a closed log")


async def test_a_cut_that_waited_for_its_turn_is_not_made_for_a_role_that_is_over() -> None:
    """The log is as the next role finds it."""
    scene = Scene()
    lease = await scene.lent()
    turn, goes_on = lease.opened.at, asyncio.Event()

    async def hold() -> None:
        await goes_on.wait()

    held = asyncio.ensure_future(turn.alone(hold))
    cut = asyncio.ensure_future(lease.truncate(5))
    begin = asyncio.ensure_future(lease.begin_at(20, LeaderEpochs(), (), forget_start=True))
    await turns()
    lease.end()
    goes_on.set()
    await held
    for work in (cut, begin):
        with pytest.raises(LeaseOver):
            await work
    await lease.returned()
    assert lease.log.log_end_offset == 10 and not lease.opened.is_torn and scene.late == []


async def test_a_cut_under_way_goes_to_its_end_though_its_role_is_over_and_the_next_role_waits_for_it() -> None:
    """A log that is half cut is in nobody's hand: who cut it learns that he is cut off, and no more."""
    workers = HeldWorkers()
    scene = Scene()
    lease = await scene.lent()
    lease.opened.at.workers = workers
    cut = asyncio.ensure_future(lease.truncate(5))
    while not any(function == lease.log.truncate_to for function, _, _ in workers.under_way):
        await workers.finish() if workers.under_way else await turns()
    lease.end()
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    returned = asyncio.ensure_future(lease.returned())
    await asyncio.sleep(60.0)
    assert lease.opened.is_torn and not returned.done()
    while workers.under_way:
        await workers.finish()
    await returned
    assert lease.log.log_end_offset == 0 and not lease.opened.is_torn and scene.late == []
    assert not scene.logs.lend(lease.opened, "follower epoch 2").is_over


def test_a_broker_that_runs_says_a_late_effect_in_its_log_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """As a defect, with whose it is; the effect is refused all the same."""
    nothing: Any = None
    World(nothing, nothing, nothing, nothing, nothing, nothing).late_effect("a roll of orders-0: leader epoch 1")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].getMessage() == "a defect, please report it: a roll of orders-0: leader epoch 1"
