"""A rewrite that ends in its middle changes nothing (TX12): what it repeated stands behind the open offset of a
transaction, and is no later commit to a replay that began before it."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from broker.error_codes import ErrorCode as E
from broker.internal_topics import rewriting
from broker.internal_topics.rewriting import Rewrites
from logformat.errors import Retryable
from tests.support.groups.group_world import in_world
from tests.unit.broker.groups.test_groups_open_offsets import mark, put, settle


@pytest.mark.parametrize("moment", ["before", "while"])
def test_a_position_that_was_repeated_wins_over_no_open_offset(moment):
    async def run(w):
        for number in range(450):
            w.ask(w.commit(f"g{number}", 1))
        await asyncio.sleep(1)
        assert await put(w, "g0", 5, 7) == E.NONE  # open: 1 is committed, 5 is pending
        w.shard().growth.is_whole = False
        appends = w.log.appends
        writing = w.ask(Rewrites(w.groups.log).write_due())
        while w.log.appends < appends + 2:  # the first batch of the rewrite is committed: g0's 1 is in it
            await asyncio.sleep(0)
        if moment == "while":
            mark(w, 7)
        else:
            w.log.hold()
            await settle()
        w.move_leadership()
        w.log.release()
        async with asyncio.timeout(10):
            await writing
            await w.groups.log.wait_loaded()
        if moment == "before":
            mark(w, 7)
        await settle()
        assert w.log.starts[0] == 0, "the rewrite did not end"
        assert await w.fetch("g0") == 5, "the transaction is committed, its offset is gone"

    in_world(run)()


@pytest.mark.parametrize("repeated", [2, 3, 4])
@pytest.mark.parametrize("first", [7, 8])
def test_open_offsets_of_one_position_keep_their_order(first, repeated, monkeypatch):
    """The newer record counts if both commit. The older one was repeated, and the rewrite ended before the newer."""
    monkeypatch.setattr(rewriting, "_RECORDS_PER_BATCH", 1)

    async def run(w):
        assert await w.commit("g", 1) is E.NONE
        assert await put(w, "g", 5, 7) == await put(w, "g", 6, 8) == E.NONE
        w.shard().growth.is_whole = False
        appends = w.log.appends
        writing = w.ask(Rewrites(w.groups.log).write_due())
        while w.log.appends < appends + 1 + repeated:
            await asyncio.sleep(0)
        w.log.hold()
        await settle()
        w.move_leadership()
        w.log.release()
        async with asyncio.timeout(10):
            await writing
            await w.groups.log.wait_loaded()
        assert w.log.starts[0] == 0, "the rewrite did not end"
        mark(w, first)
        mark(w, 15 - first)
        await settle()
        assert await w.fetch("g") == 6

    in_world(run)()


@pytest.mark.parametrize("turns", range(12))
def test_what_a_marker_commits_meanwhile_is_in_no_other_transaction(turns):
    """It was put into the batch of the producer that was repeated last, and went when that one aborted."""

    async def run(w):
        w.log.writes_first = True
        assert await put(w, "g", 5, 7) == await put(w, "h", 6, 8) == E.NONE
        w.shard().growth.is_whole = False
        writing = w.ask(Rewrites(w.groups.log).write_due())
        for _ in range(turns):
            await asyncio.sleep(0)
        mark(w, 7)
        await writing
        await settle()
        assert w.log.starts[0] > 0
        await w.restart()
        mark(w, 8, is_commit=False)
        await settle()
        assert (await w.fetch("g"), await w.fetch("h")) == (5, -1)

    in_world(run)()


def test_a_failed_rewrite_that_is_collected_later_does_not_disturb_the_next_one():
    """Regression: its generator lived in a cycle with the failure. When the garbage collector ended it, the rewrite
    that ran then forgot what markers committed meanwhile, and a committed offset was lost with the old records."""

    async def run(w):
        for number in range(450):
            w.ask(w.commit(f"g{number}", 1))
        await asyncio.sleep(1)
        assert await put(w, "g0", 5, 7) == E.NONE
        w.shard().growth.is_whole = False
        gc.collect()
        gc.disable()
        try:
            w.log.fail_after.append(Retryable("not committed in time"))
            await Rewrites(w.groups.log).write_due()
            assert w.log.starts[0] == 0
            appends = w.log.appends
            writing = w.ask(Rewrites(w.groups.log).write_due())
            while w.log.appends < appends + 2:
                await asyncio.sleep(0)
            gc.collect()
        finally:
            gc.enable()
        mark(w, 7)
        await writing
        await settle()
        assert w.log.starts[0] > 450
        await w.restart()
        assert await w.fetch("g0") == 5

    logging.disable()  # pytest would keep the failure
    try:
        in_world(run)()
    finally:
        logging.disable(logging.NOTSET)
