"""A shard's log is rewritten: what lives is in it again, whatever is committed, deleted and resigned meanwhile."""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from broker.error_codes import ErrorCode as E
from broker.internal_topics.batches import batches_in, is_begin_of_rewrite
from broker.internal_topics.led_shard import GROWTH_BYTES, Growth
from broker.internal_topics.rewriting import Rewrites
from broker.internal_topics.snapshots import Snapshots
from logformat.errors import Retryable
from logformat.record_batch import read_header
from tests.support.fast_loop import FastClock
from tests.support.groups.group_world import GroupWorld, in_world


def log_of(w: GroupWorld) -> list[bytes]:
    """From the log start on."""
    return [batch for batch in w.log.batches[0] if read_header(batch).next_offset > w.log.starts[0]]


async def rewritten(w: GroupWorld) -> None:
    w.shard().growth.is_whole = False  # as after a load that needed the bucket: due at once
    await Rewrites(w.groups.log).write_due()


@pytest.mark.parametrize(
    ("log_bytes", "live_bytes", "is_whole", "is_due"),
    [
        (GROWTH_BYTES, None, True, False),
        (GROWTH_BYTES + 1, None, True, True),
        (GROWTH_BYTES + 1, 1, True, False),
        (GROWTH_BYTES + 2_000_000, 1_000_000, True, False),
        (GROWTH_BYTES + 2_000_001, 1_000_000, True, True),
        (0, 0, False, True),
    ],
)
def test_a_log_is_rewritten_when_it_grew_beyond_twice_what_lives(log_bytes, live_bytes, is_whole, is_due):
    """So a rewrite costs at most as much as was written since the last; one that needs the bucket is due at once."""
    assert Growth(log_bytes, is_whole=is_whole, live_bytes=live_bytes).is_due is is_due


@in_world
async def test_a_rewritten_log_holds_what_lives_from_its_start_on(w):
    """Newest positions, groups and members; not what they replaced, nor what was deleted."""
    me, generation = await w.member("members")
    for offset in range(50):
        assert await w.commit("often", offset) is E.NONE
    assert await w.commit("gone", 1) is E.NONE and await w.groups.admin.delete("gone") is E.NONE
    assert await w.commit("members", 7, me, generation) is E.NONE
    await rewritten(w)
    held = log_of(w)
    records = sum(len(list(found.records)) for batch in held for found in batches_in(batch))
    assert is_begin_of_rewrite(held[0]) and records == 1 + 3, "a first record, one group, two positions"
    await w.restart()
    assert w.shard().growth.is_whole and not w.shard().growth.is_due
    assert (await w.fetch("often"), await w.fetch("members"), await w.fetch("gone")) == (49, 7, -1)
    assert await w.beat("members", me, generation) is E.NONE


@in_world
async def test_a_log_in_which_nothing_lives_is_rewritten_too(w):
    """It would grow for ever by groups that come and go."""
    assert await w.commit("g", 1) is E.NONE and await w.groups.admin.delete("g") is E.NONE
    await rewritten(w)
    await w.restart()
    assert len(log_of(w)) == 1 and w.shard().growth.is_whole and w.groups.group_count == 0
    assert await w.commit("g", 2) is E.NONE
    await w.restart()
    assert await w.fetch("g") == 2


@pytest.mark.parametrize("seed", range(20))
def test_what_is_committed_and_deleted_during_a_rewrite_counts(seed):
    """A value that was looked at before its turn, and changed since, would be the newest one in the log."""

    async def run(w):
        rng = random.Random(seed)
        names = [f"g{i}" for i in range(450)]  # of several batches
        for name in names:
            w.ask(w.commit(name, 0))
        await asyncio.sleep(1)
        writing = asyncio.create_task(rewritten(w))
        turn = 0
        while not writing.done():
            turn += 1
            for name in rng.sample(names, 20):
                if rng.random() < 0.3:
                    w.ask(w.groups.admin.delete(name))
                else:
                    w.ask(w.commit(name, turn))
            w.log.hold()
            await asyncio.sleep(0.01)
            w.log.release()
            await asyncio.sleep(0)
        await writing
        await asyncio.sleep(1)
        assert turn > 3 and w.log.starts[0] > 0
        before = {name: await w.fetch(name) for name in names}
        await w.restart()
        assert {name: await w.fetch(name) for name in names} == before
        assert 0 < sum(offset > 0 for offset in before.values()) < len(names)

    in_world(run)()


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_rewrite_that_fails_has_changed_nothing_and_is_made_anew(failing):
    """The log start moves only when all of it is committed."""

    async def run(w):
        commits = [w.ask(w.commit(f"g{i}", i)) for i in range(450)]
        assert {await commit for commit in commits} == {E.NONE}
        appends = w.log.appends

        async def fail_then() -> None:
            while w.log.appends < appends + failing:
                await asyncio.sleep(0)
            w.log.fail_after.append(Retryable("not committed in time"))

        failing_then = w.ask(fail_then())
        await rewritten(w)
        await failing_then
        assert w.log.starts[0] == 0 and not w.shard().growth.is_whole
        await Rewrites(w.groups.log).write_due()
        assert w.log.starts[0] > 450 and w.shard().growth.is_whole
        await w.restart()
        assert [await w.fetch(f"g{i}") for i in (0, 449)] == [0, 449]

    in_world(run)()


@in_world
async def test_a_shard_that_is_resigned_during_its_rewrite_ends_it(w):
    """The next leader loads the whole log, and what of the rewrite is in it changes nothing."""
    commits = [w.ask(w.commit(f"g{i}", i)) for i in range(450)]
    assert {await commit for commit in commits} == {E.NONE}
    w.log.hold()
    writing = w.ask(rewritten(w))
    await asyncio.sleep(0.1)
    assert not writing.done()
    w.move_leadership()
    w.log.release()
    async with asyncio.timeout(10):
        await writing
        await w.groups.log.wait_loaded()
    assert w.log.starts[0] == 0
    assert [await w.fetch(f"g{i}") for i in (0, 449)] == [0, 449]


@in_world
async def test_a_stop_ends_a_rewrite_behind_the_batch_that_is_under_way(w):
    """It would hold up the stop, and append to logs that are being closed."""
    commits = [w.ask(w.commit(f"g{i}", i)) for i in range(450)]
    assert {await commit for commit in commits} == {E.NONE}
    appends = w.log.appends
    w.log.hold()
    writing = w.ask(rewritten(w))
    await asyncio.sleep(0.1)
    closing = w.ask(w.groups.close())
    await asyncio.sleep(0.1)
    w.log.release()
    async with asyncio.timeout(10):
        await asyncio.gather(writing, closing)
    assert (w.log.appends, w.log.starts[0]) == (appends + 1, 0)


@in_world
async def test_a_start_that_cannot_move_is_moved_later_and_nothing_is_written_again(w):
    """With the store away a log of several replicas was rewritten at every look: it grew by what lives every 5 s."""
    commits = [w.ask(w.commit(f"g{i}", i)) for i in range(450)]
    assert {await commit for commit in commits} == {E.NONE}
    w.log.fail_start = Retryable("the store is away")
    rewrites = Rewrites(w.groups.log)
    w.shard().growth.is_whole = False
    await rewrites.write_due()
    appends = w.log.appends
    for _ in range(3):
        await rewrites.write_due()
    assert (w.log.appends, w.log.starts[0]) == (appends, 0)
    assert await w.commit("g0", 7) is E.NONE
    w.log.fail_start = None
    await rewrites.write_due()
    assert (w.log.appends, w.log.starts[0]) == (appends + 1, 450) and w.shard().growth.is_whole
    await w.restart()
    assert [await w.fetch(f"g{i}") for i in (0, 449)] == [7, 449]


@in_world
async def test_the_start_of_a_log_with_replicas_waits_for_a_snapshot_that_reaches_it(w):
    """Who loses every disk begins at the root's log start, and needs what lived there; the snapshot is due at once."""
    w.log.is_shared = True
    commits = [w.ask(w.commit(f"g{i}", i)) for i in range(450)]
    assert {await commit for commit in commits} == {E.NONE}
    snapshots, rewrites = Snapshots(w.groups.log, FastClock()), Rewrites(w.groups.log)
    await snapshots.write_changed()
    assert await w.commit("g0", 7) is E.NONE
    await rewritten(w)
    appends = w.log.appends
    assert w.log.starts[0] == 0 and w.shard().book.dirty_since_s == -math.inf
    await rewrites.write_due()
    assert (w.log.starts[0], w.log.appends) == (0, appends), "nothing is written again for that"
    await snapshots.write_changed()
    await rewrites.write_due()
    assert 0 < w.log.starts[0] <= w.log.snapshots[0][0] and w.log.appends == appends
