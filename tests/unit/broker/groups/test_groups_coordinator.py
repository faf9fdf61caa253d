"""The coordinator's shell: durability before answers, one writer a partition, restarts, limits, the end."""

from __future__ import annotations

import asyncio
import gc
import math

import pytest

from broker.error_codes import ErrorCode as E
from broker.groups.machine.classic import ClassicGroup
from broker.groups.machine.events import Leaver, Protocol
from broker.groups.offset_requests import CommitRow
from broker.groups.offsets import Wanted
from broker.groups.shard import Group
from broker.internal_topics.shard_life import ShardState
from broker.internal_topics.snapshots import Snapshots
from logformat.errors import Corrupt, Fenced, InvalidRequest, Retryable, StorageFailed
from logformat.record_batch import read_header
from seams.rng import SeededRng
from tests.support.collector import without_collector
from tests.support.conversations.group_conversation import subscription
from tests.support.fast_loop import FastClock, run_fast
from tests.support.groups.group_world import GroupWorld, commit_rows, in_world
from tests.support.groups.memory_offsets_log import MemoryOffsetsLog

# ---- commits are durable before they are answered or seen ------------------------------------------------------------


@in_world
async def test_a_commit_is_neither_answered_nor_seen_before_it_is_durable(w):
    """Else a crash would take back what a consumer was told."""
    await w.commit("g", 1)
    w.log.hold()
    commit = w.ask(w.commit("g", 2))
    fetch = w.ask(w.fetch("g"))
    await asyncio.sleep(1)
    assert not commit.done() and not fetch.done()
    w.log.release()
    assert (await commit, await fetch) == (E.NONE, 2)


@in_world
async def test_commits_that_arrive_during_an_append_share_the_next_one(w):
    """Group commit without a linger: 500 commits, two appends."""
    w.log.hold()
    w.ask(w.commit("first", 1))
    await asyncio.sleep(0.1)
    commits = [w.ask(w.commit(f"g{i}", i)) for i in range(500)]
    await asyncio.sleep(0.1)
    w.log.release()
    assert {await commit for commit in commits} == {E.NONE}
    assert w.log.appends == 2
    assert [await w.fetch(f"g{i}") for i in (0, 7, 499)] == [0, 7, 499]


@in_world
async def test_commits_of_one_batch_keep_their_order(w):
    """The last one accepted is the one that counts, in memory and in the log."""
    w.log.hold()
    commits = [w.ask(w.commit("g", i)) for i in range(20)]
    await asyncio.sleep(0.1)
    w.log.release()
    assert {await commit for commit in commits} == {E.NONE}
    assert await w.fetch("g") == 19
    await w.restart()
    assert await w.fetch("g") == 19


@in_world
async def test_a_batch_has_a_size(w):
    """append_batch_bytes_max; one write larger than that goes alone."""
    w.log.hold()
    commits = [w.ask(w.commit(f"g{i}", i, metadata="m" * 4_000)) for i in range(300)]
    await asyncio.sleep(0.1)
    w.log.release()
    await asyncio.gather(*commits)
    sizes = [len(batch) for batch in w.log.batches[0]]
    assert w.log.appends > 2 and max(sizes) < w.config.append_batch_bytes_max + 10_000


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Retryable("x"), E.COORDINATOR_NOT_AVAILABLE),
        (OSError("x"), E.COORDINATOR_NOT_AVAILABLE),
        (TimeoutError("x"), E.COORDINATOR_NOT_AVAILABLE),
        (StorageFailed("x"), E.NOT_COORDINATOR),
        (Fenced("x"), E.NOT_COORDINATOR),
        (InvalidRequest("x"), E.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_was_not_stored_is_refused_and_not_seen(failure, code):
    """With the error that makes the client do the right thing; the next commit works."""

    async def run(w: GroupWorld) -> None:
        await w.commit("g", 1)
        w.log.fail.append(failure)
        assert await w.commit("g", 2) is code
        assert await w.fetch("g") == 1
        assert await w.commit("g", 3) is E.NONE
        assert await w.fetch("g") == 3

    in_world(run)()


@in_world
async def test_a_commit_that_takes_too_long_is_refused_but_counts_when_it_lands(w):
    """offsets.commit.timeout.ms: the outcome is unknown, so it must be what the log says."""
    w.log.hold()
    assert await w.commit("g", 5) is E.COORDINATOR_NOT_AVAILABLE
    assert await w.fetch("g") is E.NOT_COORDINATOR, "it still cannot be known"
    w.log.release()
    await asyncio.sleep(0.1)
    assert await w.fetch("g") == 5


@in_world
async def test_a_client_that_goes_away_does_not_take_its_commit_along(w):
    """The request is cancelled, the append is not."""
    w.log.hold()
    commit = w.ask(w.commit("g", 5))
    await asyncio.sleep(0.1)
    commit.cancel()
    w.log.release()
    await asyncio.sleep(0.1)
    assert await w.fetch("g") == 5


@in_world
async def test_each_partition_of_a_commit_has_its_own_verdict(w):
    """What is too large is left out, the rest is stored."""
    rows = [CommitRow("t", 0, 1, -1, ""), CommitRow("t", 1, 1, -1, "m" * 5_000), CommitRow("t", 2, 1, -1, "")]
    codes = await commit_rows(w.groups, "g", rows)
    assert codes == [E.NONE, E.OFFSET_METADATA_TOO_LARGE, E.NONE]
    assert [await w.fetch("g", "t", i) for i in range(3)] == [1, -1, 1]


@in_world
async def test_a_bug_in_the_log_does_not_stop_the_writer(w):
    """The waiting commits are refused, the bug is reported, the next commit works."""
    w.log.fail.append(RuntimeError("a bug"))
    assert await w.commit("g", 1) is E.COORDINATOR_NOT_AVAILABLE
    assert await w.commit("g", 2) is E.NONE
    assert [str(failure) for failure in w.failures] == ["a bug"]
    w.failures.clear()


@in_world
async def test_a_commit_that_no_batch_can_hold_is_refused(w):
    """BATCH_BYTES_MAX is a promise to the log."""
    rows = [CommitRow("t", i, 1, -1, "m" * 4_000) for i in range(5_000)]
    assert set(await commit_rows(w.groups, "g", rows)) == {E.INVALID_COMMIT_OFFSET_SIZE}
    assert (w.log.appends, await w.fetch("g"), w.groups.group_count) == (0, -1, 0)


@in_world
async def test_when_the_log_is_too_far_behind_commits_are_refused(w):
    """append_queue_max: the queue is bounded, the refusal retriable."""
    await w.kill()
    w2 = GroupWorld(w.log, append_queue_max=10)
    await w2.ready()
    w.log.hold()
    commits = [w2.ask(w2.commit(f"g{i}", i)) for i in range(50)]
    await asyncio.sleep(0.1)
    refused = [commit for commit in commits if commit.done()]
    assert len(refused) >= 39 and {await commit for commit in refused} == {E.COORDINATOR_NOT_AVAILABLE}
    w.log.release()
    assert [await c for c in commits if c not in refused].count(E.NONE) == 50 - len(refused)
    await w2.kill()
    await w.ready()


# ---- members ---------------------------------------------------------------------------------------------------------


@in_world
async def test_a_member_lives_on_through_a_restart(w):
    """Generation, assignment, session: the group was stable and stays so."""
    me, generation = await w.member("g")
    await w.commit("g", 7, me, generation)
    await w.restart()
    assert await w.beat("g", me, generation) is E.NONE
    assert (await w.sync("g", me, generation)).assignment == b"all"
    assert await w.fetch("g") == 7
    await w.restart()
    await asyncio.sleep(10.1)
    assert await w.beat("g", me, generation) is E.UNKNOWN_MEMBER_ID, "its session started anew, and ended"
    assert (await w.join("g")).generation == generation + 2


@in_world
async def test_a_member_whose_assignment_was_not_stored_is_unknown_after_a_restart(w):
    """It was never told anything that the log does not say."""
    reply = await w.join("g")
    w.log.hold()
    sync = w.ask(w.sync("g", reply.member_id, reply.generation))
    await asyncio.sleep(0.1)
    assert not sync.done()
    await w.kill()
    w.log.release()
    await w.ready()
    assert await w.beat("g", reply.member_id, reply.generation) is E.UNKNOWN_MEMBER_ID


@in_world
async def test_sessions_end_by_themselves(w):
    """One task serves all timers."""
    members = [await w.member(f"g{i}") for i in range(300)]
    assert len(w.tasks) <= 3, "no task a member"
    await asyncio.sleep(9.9)
    for i in range(0, 300, 2):
        assert await w.beat(f"g{i}", *members[i]) is E.NONE
    await asyncio.sleep(0.2)
    beats = [await w.beat(f"g{i}", *members[i]) for i in range(300)]
    assert beats == [E.NONE, E.UNKNOWN_MEMBER_ID] * 150


@in_world
async def test_a_parked_join_whose_client_went_away_harms_nobody(w):
    """Its answer goes nowhere; its place ends with the rebalance."""
    me, _ = await w.member("g")
    joining = w.ask(w.join("g"))
    await asyncio.sleep(0.1)
    joining.cancel()
    again = w.ask(w.join("g", me))
    await asyncio.sleep(1)
    assert (await again).generation == 2


@in_world
async def test_an_assignment_that_was_not_stored_makes_members_rejoin(w):
    """The log refused: the error is Kafka's, the group prepares again."""
    reply = await w.join("g")
    w.log.fail.append(StorageFailed("full"))
    assert (await w.sync("g", reply.member_id, 1)).error is E.NOT_COORDINATOR
    assert await w.beat("g", reply.member_id, 1) is E.REBALANCE_IN_PROGRESS


@in_world
async def test_a_group_nobody_is_in_and_nothing_is_known_of_takes_no_memory(w):
    """Refused joins and asked-for ids leave nothing behind."""
    held = w.groups.held_bytes
    assert (await w.join("g", session_timeout_ms=1)).error is E.INVALID_SESSION_TIMEOUT
    assert (await w.join("g", member_id_required=True)).error is E.MEMBER_ID_REQUIRED
    assert w.groups.group_count == 1
    await asyncio.sleep(10.1)
    assert (w.groups.group_count, w.groups.held_bytes) == (0, held)


@in_world
async def test_group_ids_have_a_length(w):
    """INVALID_GROUP_ID, before anything else happens."""
    long = "g" * 2_049
    assert (await w.join(long)).error is E.INVALID_GROUP_ID
    assert (await w.sync(long, "m", 1)).error is E.INVALID_GROUP_ID
    assert await w.beat(long, "m", 1) is E.INVALID_GROUP_ID
    assert (await w.groups.members.leave(long, [Leaver("m")])).error is E.INVALID_GROUP_ID
    assert await w.commit(long, 1) is E.INVALID_GROUP_ID
    assert await w.fetch(long) is E.INVALID_GROUP_ID
    assert await w.groups.find(long) is E.INVALID_GROUP_ID


@in_world
async def test_client_ids_are_cut_not_refused(w):
    """They become part of member ids and records."""
    me, _ = await w.member("g", client_id="c" * 10_000)
    assert me.startswith("c" * 255 + "-") and len(me) == 255 + 37


# ---- loading ---------------------------------------------------------------------------------------------------------


async def test_requests_are_told_to_wait_while_groups_are_loaded():
    """COORDINATOR_LOAD_IN_PROGRESS; heartbeats are simply believed."""
    w = GroupWorld()
    await w.ready()
    await w.commit("g", 3)
    await w.kill()
    w.log.fail_replay = [Retryable("the store is away"), OSError("and the disk")]
    w.start()
    await asyncio.sleep(0)
    loading = E.COORDINATOR_LOAD_IN_PROGRESS
    assert (await w.join("g")).error is loading
    assert (await w.sync("g", "m", 1)).error is loading
    assert (await w.groups.members.leave("g", [Leaver("m")])).error is loading
    assert await w.commit("g", 4) is loading
    assert await w.fetch("g") is loading
    assert await w.beat("g", "m", 1) is E.NONE
    assert not list(w.groups.log.shards()), "half a state is no snapshot"
    await w.groups.log.wait_loaded()
    assert await w.fetch("g") == 3
    await w.kill()


@pytest.mark.parametrize("failure", [Corrupt("bit rot"), StorageFailed("EIO"), Fenced("superseded")])
async def test_a_partition_that_cannot_be_read_is_off_and_the_others_work(failure):
    """Its groups get COORDINATOR_NOT_AVAILABLE; nothing is guessed from half a log."""
    w = GroupWorld(MemoryOffsetsLog(2))
    w.log.fail_replay = [failure]
    await w.ready()
    assert [w.groups.log.state_of(i) for i in range(2)] == [ShardState.FAILED, ShardState.READY]
    codes = {await w.commit(f"g{i}", 1) for i in range(20)}
    assert codes == {E.NONE, E.COORDINATOR_NOT_AVAILABLE}
    await w.kill()


async def test_a_batch_of_nonsense_is_corrupt_not_an_exception_of_another_kind():
    """The partition is off."""
    w = GroupWorld()
    w.log.batches[0].append(bytes(100))
    await w.ready()
    assert w.groups.log.state_of(0) is ShardState.FAILED
    await w.kill()


async def test_a_broken_off_replay_starts_from_nothing():
    """What the first attempt brought is forgotten: the second sees the snapshot again."""
    w = GroupWorld()
    await w.ready()
    await w.commit("g", 3)
    await w.commit("h", 4)
    await w.kill()

    class Breaks(MemoryOffsetsLog):
        tries = 0

        async def replay(self, partition):
            self.tries += 1
            for batch in w.log.batches[0]:
                yield batch
                if self.tries == 1:
                    raise Retryable("half way")

    w2 = GroupWorld(Breaks(1))
    await w2.ready()
    assert (await w2.fetch("g"), await w2.fetch("h")) == (3, 4)
    assert w2.groups.group_count == 2
    await w2.kill()


async def test_the_topic_is_made_when_somebody_looks_for_a_coordinator():
    """Its absence is COORDINATOR_NOT_AVAILABLE to whoever looks, NOT_COORDINATOR to whoever did not look, as in Kafka;
    once it is there, the next request is served."""

    async def refuse() -> None:
        raise Retryable("no controller")

    async def refuse_for_good() -> None:
        raise InvalidRequest("no room for 50 partitions")

    w = GroupWorld()
    w.log.offline = {0}  # so that nothing is led at the start
    await w.ready()
    w.log.offline = set()

    async def make() -> None:
        w.log.created += 1
        w.groups.log.lead(w.log.shard_log(0))

    for refusal in (refuse, refuse_for_good):
        w.log.ensure_created = refusal
        assert await w.groups.find("g") is E.COORDINATOR_NOT_AVAILABLE
        assert await w.commit("g", 1) is E.NOT_COORDINATOR
    w.log.ensure_created = make
    assert await w.groups.find("g") is E.NONE and w.log.created == 1
    assert await w.commit("g", 1) is E.NONE
    await w.kill()


# ---- expiry ----------------------------------------------------------------------------------------------------------


@in_world
async def test_offsets_and_groups_expire_into_tombstones(w):
    """offsets.retention.minutes after a group emptied; what was committed later stays."""
    me, generation = await w.member("g")
    await w.commit("g", 1, me, generation)
    await w.leave("g", me)
    await w.commit("simple", 2)
    week_s = w.config.offsets_retention_ms / 1000
    await asyncio.sleep(week_s - 700)
    assert await w.fetch("g") == 1
    await w.commit("simple", 3)
    await asyncio.sleep(1_400)
    assert (await w.fetch("g"), await w.fetch("simple")) == (-1, 3)
    assert w.groups.group_count == 1
    await w.restart()
    assert (await w.fetch("g"), await w.fetch("simple")) == (-1, 3)
    assert w.groups.group_count == 1
    assert (await w.join("g")).generation == 1, "the group itself was forgotten"


@in_world
async def test_offsets_of_members_do_not_expire(w):
    """A group that reads a topic keeps its place in it, however quiet the topic is."""
    protocols = (Protocol("range", subscription("t")),)
    me, generation = await w.member("g", protocols=protocols, session_timeout_ms=1_800_000)
    await w.commit("g", 1, me, generation)
    await w.commit("g", 1, me, generation, topic="left-long-ago")
    for _ in range(8 * 48):
        await asyncio.sleep(1_800 - 1)
        assert await w.beat("g", me, generation) is E.NONE
    assert (await w.fetch("g"), await w.fetch("g", "left-long-ago")) == (1, -1)


@in_world
async def test_expiry_forgets_no_group_that_somebody_needs(w):
    """Not one with members and without offsets, nor an empty one whose offsets are young: its generation lives on."""
    protocols = (Protocol("range", subscription("t")),)
    me, generation = await w.member("busy", protocols=protocols, session_timeout_ms=1_800_000)
    gone, _ = await w.member("empty")
    await w.commit("empty", 1, gone, 1)
    await w.leave("empty", gone)
    await asyncio.sleep(1_300)
    await w.restart()
    assert await w.beat("busy", me, generation) is E.NONE
    assert (await w.join("empty")).generation == 3


@in_world
async def test_a_commit_that_arrives_with_the_expiry_is_not_lost(w):
    """The sweep never writes a tombstone behind a commit it did not see."""
    await w.commit("g", 1)
    week_s = w.config.offsets_retention_ms / 1000
    await asyncio.sleep(week_s + 600 - 0.05 - 1_000 % 600)
    w.log.hold()
    commit = w.ask(w.commit("g", 2))
    await asyncio.sleep(0.1)
    w.log.release()
    if await commit is not E.NONE:
        pytest.fail("the commit was refused")
    await asyncio.sleep(1_300)
    assert await w.fetch("g") == 2
    await w.restart()
    assert await w.fetch("g") == 2


@in_world
async def test_an_own_retention_overrides_the_brokers(w):
    """OffsetCommit v2–4 carries one."""
    await w.commit("g", 1, retention_ms=60_000)
    await asyncio.sleep(1_300)
    assert await w.fetch("g") == -1


# ---- snapshots -------------------------------------------------------------------------------------------------------


@in_world
async def test_a_snapshot_and_the_log_above_it_are_the_whole_state(w):
    """What the broker keeps in the bucket is enough to start from."""
    me, generation = await w.member("g")
    for i in range(1_200):
        await w.commit("g" if i % 3 else "h", i, *((me, generation) if i % 3 else ()), partition=i % 600)
    end_offset, batches = await w.snapshot()
    assert end_offset == w.log.ends[0]
    await w.commit("h", 77, partition=5_000)
    above = [batch for batch in w.log.batches[0] if read_header(batch).base_offset >= end_offset]
    assert len(above) == 1
    fresh = MemoryOffsetsLog(1)
    fresh.batches[0] = [batches, *above]
    fresh.ends[0] = w.log.ends[0]
    w2 = GroupWorld(fresh)
    await w2.ready()
    for i in range(600):
        for group in "gh":
            assert await w2.fetch(group, "t", i) == await w.fetch(group, "t", i)
    assert await w2.fetch("h", "t", 5_000) == 77
    assert await w2.beat("g", me, generation) is E.NONE
    snapshot_again = await w2.snapshot()
    assert snapshot_again.end_offset == end_offset + 1
    await w2.kill()


@in_world
async def test_the_offsets_of_a_snapshot_end_where_it_was_cut(w):
    """So that the log above continues it, and Kafka's tools can read it as a segment."""
    for i in range(30):
        await w.commit("g", i, partition=i % 4)
    end_offset, batches = await w.snapshot()
    assert (read_header(batches).base_offset, read_header(batches).next_offset) == (26, 30) and end_offset == 30


@in_world
async def test_a_snapshot_is_cut_at_one_moment(w):
    """Commits during its encoding are not in it: they are above its end."""
    for i in range(1_100):
        await w.commit("g", i, partition=i)
    taking = w.ask(w.snapshot())
    await asyncio.sleep(0)
    await w.commit("g", 5_000, partition=1_099)
    end_offset, batches = await taking
    assert end_offset == 1_100
    fresh = MemoryOffsetsLog(1)
    fresh.batches[0] = [batches]
    w2 = GroupWorld(fresh)
    await w2.ready()
    assert await w2.fetch("g", "t", 1_099) == 1_099
    await w2.kill()


@in_world
async def test_what_no_snapshot_holds_yet_is_known(w):
    """dirty_since: the last cut, once something changed. A write that fails leaves it; one that succeeds hides no
    later change."""
    now = asyncio.get_running_loop().time
    began = now()
    await asyncio.sleep(5)
    assert w.shard().book.dirty_since_s is None
    await w.commit("g", 1)
    assert w.shard().book.dirty_since_s == pytest.approx(began), "due at once after a quiet time"
    end_offset, _ = await w.snapshot()
    assert w.shard().book.dirty_since_s == pytest.approx(began), "taken is not written"
    first_cut = now()
    w.shard().book.written(end_offset)
    assert w.shard().book.dirty_since_s is None
    await asyncio.sleep(5)
    end_offset, _ = await w.snapshot()
    second_cut = now()
    await asyncio.sleep(5)
    await w.commit("g", 3)
    assert w.shard().book.dirty_since_s == pytest.approx(first_cut)
    w.shard().book.written(end_offset)
    assert w.shard().book.dirty_since_s == pytest.approx(second_cut)
    w.shard().book.written(12345)
    assert w.shard().book.dirty_since_s is not None
    await w.restart()
    assert w.shard().book.dirty_since_s == -math.inf, "the log may be ahead of the bucket, nobody knows for how long"
    held = w.log.snapshots[0] = tuple(await w.snapshot())
    await w.restart()
    w.log.fail_snapshot[0] = AssertionError("the snapshot found there says all")
    await Snapshots(w.groups.log, FastClock()).write_all()
    assert w.shard().book.dirty_since_s is None and w.log.snapshots[0] is held


async def test_half_a_state_is_never_a_snapshot():
    """While a partition is loaded, and when it cannot be: the one in the bucket is better, even after a close."""
    w = GroupWorld()
    w.log.fail_replay = [Corrupt("bit rot")]
    w.start()
    snapshots = Snapshots(w.groups.log, FastClock())
    for _ in range(2):
        await snapshots.write_all()
        assert not w.log.snapshots
        await w.groups.log.wait_loaded()
        await w.groups.close()
    await w.kill()


@in_world
async def test_an_empty_state_has_an_empty_snapshot(w):
    """Everything expired: nothing lives, but the end counts."""
    await w.commit("g", 1, retention_ms=1)
    await asyncio.sleep(w.config.offsets_retention_check_interval_ms / 1000 + 1)
    assert tuple(await w.snapshot()) == (2, b"")


# ---- limits ----------------------------------------------------------------------------------------------------------


async def test_memory_is_bounded_against_clients_that_only_take():
    """Groups, members, metadata, assignments and offsets end at state_bytes_max; refusals are answered; what exists
    works on."""
    limit = 3_000_000
    w = GroupWorld(MemoryOffsetsLog(2), state_bytes_max=limit, groups_max=500)
    await w.ready()
    me, generation = await w.member("mine")
    assert await w.commit("mine", 1, me, generation) is E.NONE
    fat = (Protocol("range", bytes(100_000)),)
    joins = [w.ask(w.join(f"fat{i}", protocols=fat)) for i in range(20)]
    ids = [await w.join(f"ids{i % 7}", member_id_required=True) for i in range(400)]
    commits = [await w.commit(f"many{i}", i, metadata="m" * 4_096) for i in range(1_000)]
    await asyncio.sleep(0.1)
    assert w.groups.held_bytes <= limit + 110_000
    assert w.groups.group_count <= 500
    assert E.INVALID_COMMIT_OFFSET_SIZE in commits and E.NONE in commits
    assert E.MEMBER_ID_REQUIRED in {reply.error for reply in ids}
    assert (await w.join("one more", protocols=fat)).error is E.GROUP_MAX_SIZE_REACHED
    assert await w.beat("mine", me, generation) is E.NONE
    assert await w.commit("mine", 2, me, generation) is E.NONE, "an offset that exists may always move"
    await asyncio.gather(*joins)
    await asyncio.sleep(10.1)
    assert w.groups.held_bytes < limit
    await w.kill()


async def test_a_group_keeps_a_bounded_number_of_positions():
    """group_positions_max: known ones may move, more are refused; the answer to a fetch of all stays in proportion."""
    w = GroupWorld(group_positions_max=3)
    await w.ready()
    assert [await w.commit("g", 1, partition=i) for i in range(4)] == [E.NONE] * 3 + [E.INVALID_COMMIT_OFFSET_SIZE]
    assert await w.commit("g", 2, partition=1) is E.NONE
    assert await w.commit("h", 1, partition=3) is E.NONE
    await w.kill()


async def test_the_number_of_groups_is_bounded():
    """groups_max, for joins and for commits from outside."""
    w = GroupWorld(groups_max=3)
    await w.ready()
    assert [await w.commit(f"g{i}", 1) for i in range(4)] == [E.NONE] * 3 + [E.INVALID_COMMIT_OFFSET_SIZE]
    assert (await w.join("g9")).error is E.GROUP_MAX_SIZE_REACHED
    assert (await w.join("g1")).error is E.NONE
    await w.kill()


@in_world
async def test_one_request_cannot_name_a_million_things(w):
    """commit_rows_max, fetch_rows_max, leavers_max: refused before any work is done for them."""
    rows = [CommitRow("t", i, 1, -1, "") for i in range(20_001)]
    assert set(await commit_rows(w.groups, "g", rows)) == {E.INVALID_COMMIT_OFFSET_SIZE}
    error, _ = await w.groups.offsets.fetch("g", [Wanted("t", range(100_001))])
    assert error is E.INVALID_REQUEST
    assert (await w.groups.members.leave("g", [Leaver("m")] * 10_001)).error is E.INVALID_REQUEST
    assert w.log.appends == 0


async def test_randomness_that_repeats_names_no_two_members_alike():
    """A broker whose generator starts over after a restart (a simulated one) meets its old ids again."""
    w = GroupWorld()
    await w.ready()
    me, generation = await w.member("g")
    w.rng = SeededRng(1)
    await w.restart()
    joining = w.ask(w.join("g"))
    await asyncio.sleep(0.1)
    assert (await w.join("g", me)).generation == generation + 1
    assert (await joining).member_id != me
    await w.kill()


# ---- leadership that moves -------------------------------------------------------------------------------------------


@in_world
async def test_whoever_waits_in_a_shard_that_is_resigned_looks_for_the_new_coordinator(w):
    """R11: joins, syncs, commits and reads that wait for commits; the state is not shown any more."""
    me, generation = await w.member("g")
    second, _ = await w.member("h")
    await w.commit("g", 1, me, generation)
    joining = w.ask(w.join("g"))
    await asyncio.sleep(0.1)
    w.log.hold()
    commit = w.ask(w.commit("simple", 9))
    await asyncio.sleep(0.1)
    fetch, syncing = w.ask(w.fetch("simple")), w.ask(w.sync("h", second, 1, {second: b"again"}))
    await asyncio.sleep(0.1)
    w.groups.log.resign(0)
    gone = E.NOT_COORDINATOR
    assert (await joining).error is gone and await commit is gone
    assert await fetch is gone, "not: there are no commits"
    assert (await syncing).error in (gone, E.NONE)
    assert await w.beat("g", me, generation) is gone and await w.fetch("g") is gone
    assert (w.groups.group_count, w.groups.held_bytes) == (0, 0)
    w.log.release()
    await asyncio.sleep(60)
    assert (w.groups.group_count, w.groups.held_bytes) == (0, 0), "no timer of it does anything"


@in_world
async def test_a_shard_that_is_led_again_is_what_the_log_says(w):
    """Sessions begin anew; what was refused is there only where the log has it."""
    me, generation = await w.member("g")
    await w.commit("g", 7, me, generation)
    w.groups.log.resign(0)
    w.groups.log.lead(w.log.shard_log(0, w.epoch + 1))
    assert await w.commit("g", 8, me, generation) is E.COORDINATOR_LOAD_IN_PROGRESS
    await w.groups.log.wait_loaded()
    assert await w.beat("g", me, generation) is E.NONE and await w.fetch("g") == 7
    await asyncio.sleep(10.1)
    assert await w.beat("g", me, generation) is E.UNKNOWN_MEMBER_ID


def test_what_a_shard_held_is_freed_without_pythons_collector():
    """What was loaded is never looked at by it again (`seams.world`): a cycle would stay for ever."""

    def alive() -> int:
        return sum(type(thing) in (Group, ClassicGroup) for thing in gc.get_objects())  # a dead proxy has no class

    async def run() -> None:
        w = GroupWorld()
        await w.ready()
        for i in range(20):
            me, generation = await w.member(f"g{i}")
            await w.commit(f"g{i}", 1, me, generation)
        await w.restart()
        await w.commit("simple", 1)
        gc.collect()  # the first life
        before = alive()
        w.groups.log.resign(0)
        await asyncio.sleep(1)
        assert before - alive() == 2 * 21, "each group and its machine"
        await w.kill()

    with without_collector():
        run_fast(run())


# ---- the end ---------------------------------------------------------------------------------------------------------


@in_world
async def test_closing_answers_everyone_and_lets_appends_end(w):
    """Parked members look for the new coordinator; a commit on its way is still answered truly."""
    me, generation = await w.member("g")
    joining = w.ask(w.join("g"))
    w.log.hold()
    commit = w.ask(w.commit("simple", 9))
    await asyncio.sleep(0.1)
    closing = w.ask(w.groups.close())
    await asyncio.sleep(0.1)
    w.log.release()
    await closing
    assert (await joining).error is E.NOT_COORDINATOR
    assert await commit is E.NONE
    assert await w.beat("g", me, generation) is E.NOT_COORDINATOR
    assert await w.commit("g", 1) is E.NOT_COORDINATOR
    end_offset, _ = await w.snapshot()
    assert end_offset == w.log.ends[0]
    await w.restart()
    assert await w.fetch("simple") == 9
    assert await w.beat("g", me, generation) is E.NONE, "a planned restart costs no rebalance"


@in_world
async def test_closing_does_not_wait_for_ever(w):
    """A log that hangs is left after offsets.commit.timeout.ms."""
    w.log.hold()
    w.ask(w.commit("g", 1))
    await asyncio.sleep(0.1)
    before = asyncio.get_running_loop().time()
    await w.groups.close()
    assert asyncio.get_running_loop().time() - before == pytest.approx(5, abs=0.1)
