"""Positions in topics that were deleted, and made again, whatever became of the tombstones."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from broker.error_codes import ErrorCode as E
from broker.groups.offset_requests import CommitRow
from broker.groups.records import CommittedOffset, OffsetKey, offset_record
from broker.internal_topics.batches import Producer, batch_of
from broker.metadata.image import TopicFacts
from logformat.errors import Retryable
from tests.support.fast_loop import run_fast
from tests.support.groups.group_world import GroupWorld, commit_rows, parse_batches
from tests.unit.broker.groups.test_groups_open_offsets import mark, put

OLD, NEW = TopicFacts(UUID(int=1), 1), TopicFacts(UUID(int=2), 1)


def in_topics(test):
    """On a world whose topics `t` and `u` exist."""

    def run() -> None:
        async def whole() -> None:
            w = GroupWorld()
            w.topics = {"t": OLD, "u": OLD}
            await w.ready()
            await test(w)
            await w.kill()
            assert not w.failures

        run_fast(whole())

    run.__doc__, run.__name__ = test.__doc__, test.__name__
    return run


def tombstones(w: GroupWorld) -> list[tuple[str, str]]:
    """(group, topic) of every tombstone in the log."""
    records = [record for batch in w.log.batches[0] for _, found in parse_batches(batch) for record in found]
    return [(record.key.group_id, record.key.topic) for record in records if record.value is None]


@in_topics
async def test_a_position_is_gone_with_its_topic_at_once(w):
    """Before any tombstone is written, and in what asks for everything; the tombstone follows by itself."""
    await w.commit("g", 1)
    await w.commit("g", 1, topic="u")
    w.log.hold()
    del w.topics["t"]
    w.groups.withdrawn("t")
    assert (await w.fetch("g"), await w.fetch("g", "u")) == (-1, 1)
    _, rows = await w.groups.offsets.fetch("g", None)
    assert [row.topic for row in rows] == ["u"]
    w.log.release()
    await asyncio.sleep(0.1)
    assert tombstones(w) == [("g", "t")]


@pytest.mark.parametrize("made_again", [False, True])
def test_a_broker_killed_before_the_tombstones_shows_none(made_again):
    """After the restart; and its shard writes the tombstone then."""

    @in_topics
    async def scenario(w):
        await w.commit("g", 42)
        await w.commit("own", 42, retention_ms=10**9)
        await w.kill()
        del w.topics["t"]
        if made_again:
            w.topics["t"] = NEW
        await w.ready()
        assert [await w.fetch(group) for group in ("g", "own")] == [-1, -1]
        await asyncio.sleep(0.1)
        assert sorted(tombstones(w)) == [("g", "t"), ("own", "t")]

    scenario()


@in_topics
async def test_no_position_goes_with_a_topic_that_a_rebuild_did_not_name(w):
    """Before the operator says done the image may lack topics. A second rebuild brought the topic back, and the group
    had no position in it."""
    await w.commit("g", 42)
    await w.commit("g", 7, topic="u")
    await w.kill()
    del w.topics["t"]
    w.is_complete = False
    await w.ready()
    await asyncio.sleep(w.config.offsets_retention_check_interval_ms / 1000 + 1)
    assert await w.fetch("g") == -1 and tombstones(w) == []
    w.topics["t"] = OLD
    await w.restart()
    assert (await w.fetch("g"), await w.fetch("g", "u")) == (42, 7)
    del w.topics["t"]
    w.is_complete = True
    await asyncio.sleep(w.config.offsets_retention_check_interval_ms / 1000 + 1)
    assert tombstones(w) == [("g", "t")]


@in_topics
async def test_what_a_snapshot_says_of_a_topic_is_compared_too(w):
    """A position with a retention of its own keeps its topic id in the snapshot; in Kafka's version 1 it would not."""
    await w.commit("g", 42)
    await w.commit("own", 42, retention_ms=10**9)
    _, batches = await w.snapshot()
    await w.kill()
    w.log.batches[0] = [batches]
    w.topics["t"] = NEW
    await w.ready()
    assert [await w.fetch(group) for group in ("g", "own")] == [-1, -1]


@in_topics
async def test_an_own_retention_survives_with_the_topic_id(w):
    """And still ends the position."""
    await w.commit("own", 42, retention_ms=1_200_000)
    await w.restart()
    assert await w.fetch("own") == 42
    await asyncio.sleep(2_000)
    assert await w.fetch("own") == -1


@in_topics
async def test_tombstones_that_could_not_be_written_change_nothing(w):
    """The position stays hidden, and the next round tries again."""
    await w.commit("g", 42)
    w.log.fail = [Retryable("full")]
    w.topics["t"] = NEW
    w.groups.withdrawn("t")
    await asyncio.sleep(0.1)
    assert await w.fetch("g") == -1 and tombstones(w) == []
    await w.commit("h", 7)
    await asyncio.sleep(w.config.offsets_retention_check_interval_ms / 1000 + 1)
    assert tombstones(w) == [("g", "t")] and await w.fetch("h") == 7


@in_topics
async def test_a_commit_to_the_old_topic_that_lands_late_is_not_the_new_ones(w):
    """It was accepted, then the topic was deleted and made again, then it became durable."""
    w.log.hold()
    late = w.ask(w.commit("g", 42))
    await asyncio.sleep(0.1)
    w.topics["t"] = NEW
    w.groups.withdrawn("t")
    await asyncio.sleep(0.1)
    w.log.release()
    assert await late is E.NONE
    assert await w.fetch("g") == -1
    await w.restart()
    assert await w.fetch("g") == -1


@in_topics
async def test_a_commit_to_the_new_topic_survives_the_tombstone_of_the_old(w):
    """In whatever order they come to the log, also after a restart."""
    await w.commit("g", 42)
    w.log.hold()
    w.topics["t"] = NEW
    w.groups.withdrawn("t")
    commit = w.ask(w.commit("g", 3))
    await asyncio.sleep(0.1)
    w.log.release()
    assert await commit is E.NONE
    await asyncio.sleep(0.1)
    assert await w.fetch("g") == 3
    await w.restart()
    assert await w.fetch("g") == 3


def _without_id(w: GroupWorld, group: str, topic: str, **more: int) -> None:
    """A record as Kafka writes it for a client with a retention of its own, or did before it knew topic ids."""
    record = offset_record(OffsetKey(group, topic, 0), CommittedOffset(42, -1, "", 0, **more))
    assert record.value is not None and record.value[1] in (1, 3)
    w.log.batches[0].append(batch_of([record], 0, w.log.ends[0]))
    w.log.ends[0] += 1


@pytest.mark.parametrize("expiry", [{}, {"expire_at_ms": 10**14}])
async def test_a_position_without_an_id_is_its_topics_for_good(expiry):
    """From the first load on, durably: a topic made again later does not inherit it, also after restarts."""
    w = GroupWorld()
    w.topics = {"t": OLD}
    _without_id(w, "g", "t", **expiry)
    await w.ready()
    assert await w.fetch("g") == 42
    await asyncio.sleep(0.1)
    await w.restart()
    assert await w.fetch("g") == 42
    await w.kill()
    w.topics = {"t": NEW}
    await w.ready()
    assert await w.fetch("g") == -1
    await w.kill()
    assert not w.failures


async def test_a_position_without_an_id_is_not_given_to_a_successor():
    """The deleted topic is still being removed: the position is most likely its own. One of no topic is nobody's."""
    w = GroupWorld()
    w.topics, w.leaving = {"t": NEW}, {"t"}
    _without_id(w, "g", "t")
    _without_id(w, "g", "gone")
    await w.ready()
    assert (await w.fetch("g"), await w.fetch("g", "gone")) == (-1, -1)
    await asyncio.sleep(0.1)
    assert sorted(tombstones(w)) == [("g", "gone"), ("g", "t")]
    w.leaving.clear()
    await w.restart()
    assert await w.fetch("g") == -1
    await w.kill()


@in_topics
async def test_many_groups_lose_a_topic_without_pushing_commits_out(w):
    """1 000 tombstones beside a commit: it is not refused, and all of them are written."""
    rows = [CommitRow("t", 0, 1, -1, ""), CommitRow("u", 0, 1, -1, "")]
    for i in range(1_000):
        assert await commit_rows(w.groups, f"g{i}", rows) == [E.NONE, E.NONE]
    del w.topics["t"]
    w.groups.withdrawn("t")
    assert await w.commit("g1", 2, topic="u") is E.NONE
    await asyncio.sleep(10)
    assert len(set(tombstones(w))) == 1_000
    assert {await w.fetch(f"g{i}", "u") for i in (0, 999)} == {1}


@in_topics
async def test_a_group_of_many_positions_loses_a_topic_in_turns(w):
    """More than the cleaner writes at once, and more than a batch of the log takes in one write."""
    rows = [CommitRow("t", partition, 1, -1, "") for partition in range(20_000)]
    w.topics["t"] = TopicFacts(UUID(int=1), 20_000)
    assert set(await commit_rows(w.groups, "g", rows)) == {E.NONE}
    del w.topics["t"]
    w.groups.withdrawn("t")
    await asyncio.sleep(60)
    assert len(tombstones(w)) == 20_000
    assert w.groups.group_count == 0


@in_topics
async def test_a_commit_that_names_the_topic_by_id_means_that_topic(w):
    """OffsetCommit 10: not the one that was made under its name since the request was read."""
    by_id = [CommitRow("t", 0, 42, -1, "", OLD.topic_id)]
    w.topics["t"] = NEW
    assert await commit_rows(w.groups, "g", by_id) == [E.UNKNOWN_TOPIC_ID]
    w.topics["t"] = OLD
    assert await commit_rows(w.groups, "g", by_id) == [E.NONE]
    assert await w.fetch("g") == 42


@in_topics
async def test_many_tombstones_that_cannot_be_written_wait_for_the_next_round(w):
    """A log that takes nothing, e.g. on a full disk, was asked again without end: a busy loop of refused appends."""
    rows = [CommitRow("t", partition, 1, -1, "") for partition in range(3_000)]
    w.topics["t"] = TopicFacts(UUID(int=1), 3_000)
    assert set(await commit_rows(w.groups, "g", rows)) == {E.NONE}
    w.log.fail = [Retryable("full") for _ in range(1_000)]
    del w.topics["t"]
    w.groups.withdrawn("t")
    await asyncio.sleep(60)
    assert len(w.log.fail) > 990
    w.log.fail = []
    await asyncio.sleep(w.config.offsets_retention_check_interval_ms / 1000 + 1)
    assert len(tombstones(w)) == 3_000


@in_topics
async def test_a_tombstone_of_the_topic_before_leaves_the_open_offset_of_this_one(w):
    """It is a plain record: it would win over the offset of a transaction, which is then committed to nothing."""
    await w.commit("g", 42)
    w.topics["t"] = NEW
    assert await put(w, "g", 5, 7) is E.NONE
    w.groups.withdrawn("t")
    await asyncio.sleep(0.1)
    assert tombstones(w) == [] and await w.fetch("g") == -1
    mark(w, 7)
    await asyncio.sleep(0.1)
    assert await w.fetch("g") == 5
    await w.restart()
    assert await w.fetch("g") == 5


@in_topics
async def test_a_position_of_the_topic_before_goes_when_the_transaction_aborts(w):
    await w.commit("g", 42)
    w.topics["t"] = NEW
    assert await put(w, "g", 5, 7) is E.NONE
    w.groups.withdrawn("t")
    await asyncio.sleep(0.1)
    mark(w, 7, is_commit=False)
    await asyncio.sleep(w.config.offsets_retention_check_interval_ms / 1000 + 1)
    assert tombstones(w) == [("g", "t")] and await w.fetch("g") == -1


@in_topics
async def test_an_adopted_position_leaves_the_open_offset_alone(w):
    """The topic id of a position without one is written as a plain record, behind the offset of a transaction."""
    await w.kill()
    key = OffsetKey("g", "t", 0)
    open_record = offset_record(key, CommittedOffset(5, -1, "", 0, topic_id=OLD.topic_id))
    for record in (
        offset_record(key, CommittedOffset(1, -1, "", 0)),
        open_record._replace(producer=Producer(7, 0)),
    ):
        await w.log.shard_log(0).append(batch_of([record], 0))
    await w.ready()
    await asyncio.sleep(0.1)
    assert await w.fetch("g") == 1
    mark(w, 7)
    await asyncio.sleep(0.1)
    assert await w.fetch("g") == 5
