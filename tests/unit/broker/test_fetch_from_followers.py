"""Consumers that read from the replica in their rack (KIP-392): whole brokers in virtual time, hot and cold."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.net.dispatch import Later, Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import FetchResponsePartition
from logformat.record_batch import walk
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, decoded, fetch_request, parts_of
from tests.support.brokers.house import House, house
from tests.support.brokers.shared_bucket import NAME, Pair, both
from tests.support.brokers.shared_bucket import until as happens
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.waiting import until

SELECTOR = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"
STALE = ErrorCode.NOT_LEADER_OR_FOLLOWER
RACKS = {1: ("broker.rack=a",), 2: ("broker.rack=b",), 3: ("broker.rack=c",)}


def racks(*settings: str) -> Any:
    """Three brokers in racks a, b, c; `log-0` on all of them."""
    return house(1, SELECTOR, *settings, own=RACKS)


def follower_of(it: House) -> int:
    return next(node_id for node_id in it.lives if node_id != it.row().leader)


def rack_of(node_id: int) -> str:
    return " abc"[node_id]


def parked(life: Life, offset: int, wait_ms: int = 30_000, **how: Any) -> Later:
    """A fetch of `log-0` that waits."""
    answer = life.dispatch(ApiKey.FETCH, fetch_request((NAME, 0, offset), max_wait_ms=wait_ms, **how))
    assert isinstance(answer, Later)
    return answer


async def answer_of(waiting: Later) -> FetchResponsePartition:
    response = decoded(ApiKey.FETCH, 12, await parts_of(waiting))
    found: FetchResponsePartition = response.responses[0].partitions[0]
    return found


_connections = count(100)


async def anew(life: Life, offset: int, **how: Any) -> FetchResponsePartition:
    """A fetch of `log-0` over a connection of its own."""
    peer = Peer(next(_connections), "127.0.0.1:50000", "PLAINTEXT")
    response = await life.call(ApiKey.FETCH, fetch_request((NAME, 0, offset), **how), None, peer)
    found: FetchResponsePartition = response.responses[0].partitions[0]
    return found


# ── the leader sends ─────────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_leader_sends_a_consumer_to_the_replica_in_its_rack() -> None:
    """Kafka's answer: no records, the node, and the offsets of the log, at once."""
    async with racks() as it:
        leader = it.lives[it.row().leader]
        assert (await leader.produce(NAME, b"one", b"two")).error_code == 0
        for node_id in it.lives:
            answer = await anew(leader, 0, rack_id=rack_of(node_id), max_wait_ms=10_000)
            assert answer.error_code == 0 and answer.high_watermark == 2 and answer.log_start_offset == 0
            if node_id == it.row().leader:
                assert answer.preferred_read_replica == -1 and answer.records
            else:
                assert answer.preferred_read_replica == node_id and not answer.records
        for rack in ("", "nowhere"):
            answer = await anew(leader, 0, rack_id=rack)
            assert answer.preferred_read_replica == -1 and answer.records
        beyond = await anew(leader, 3, rack_id=rack_of(follower_of(it)))
        assert (beyond.error_code, beyond.preferred_read_replica) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert leader.context.metrics.sent_to_nearest == 2


async def test_who_comes_back_from_its_replica_unserved_reads_at_the_leader() -> None:
    """Its replica's broker was killed a moment ago, or does not reach the bucket: the same connection asks for the same
    offset, and is not sent there again for ten seconds."""
    async with racks() as it:
        leader, rack = it.lives[it.row().leader], rack_of(follower_of(it))
        await leader.produce(NAME, b"one", b"two")
        sent = [await leader.fetch(NAME, 0, rack_id=rack) for _ in range(3)]
        assert [answer.preferred_read_replica >= 0 for answer in sent] == [True, False, False]
        assert sent[1].records and sent[2].records
        assert (await leader.fetch(NAME, 1, rack_id=rack)).records, "also further on"
        await asyncio.sleep(11)
        assert (await leader.fetch(NAME, 1, rack_id=rack)).preferred_read_replica >= 0


async def test_without_the_selector_everybody_reads_from_the_leader() -> None:
    """Kafka's default."""
    async with house(1, own=RACKS) as it:
        leader = it.lives[it.row().leader]
        await leader.produce(NAME, b"one")
        answer = await leader.fetch(NAME, 0, rack_id=rack_of(follower_of(it)))
        assert answer.preferred_read_replica == -1 and answer.records


# ── the follower serves ──────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_follower_serves_what_its_leader_would_and_counts_it() -> None:
    """The same bytes, to its own high watermark; to consumers that know of followers alone; ListOffsets stays the
    leader's."""
    async with racks() as it:
        leader, follower = it.lives[it.row().leader], it.lives[follower_of(it)]
        for number in range(5):
            await leader.produce(NAME, b"%d" % number)
        copy = follower.context.registry.followed[NAME, 0]
        await until(lambda: copy.high_watermark == 5, 10)
        mine, theirs = await follower.fetch(NAME, 2), await leader.fetch(NAME, 2)
        assert bytes(mine.records) == bytes(theirs.records) and mine.high_watermark == 5
        assert await follower.read_all(NAME) == [(at, b"%d" % at) for at in range(5)]
        old = await follower.call(ApiKey.FETCH, fetch_request((NAME, 0, 0)), 10)
        assert old.responses[0].partitions[0].error_code == STALE
        read = copy.reads
        assert read is not None and read.fetched_bytes > 0
        assert follower.context.metrics.followed_fetch_bytes == read.fetched_bytes
        assert (await follower.fetch(NAME, 6)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        newer = await follower.fetch(NAME, 0, current_leader_epoch=it.row().leader_epoch + 1)
        assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_a_fetch_parked_at_a_follower_wakes_with_its_high_watermark() -> None:
    """Full, and of a session, which is told of nothing twice."""
    async with racks() as it:
        leader, follower = it.lives[it.row().leader], it.lives[follower_of(it)]
        await leader.produce(NAME, b"one")
        await until(lambda: follower.context.registry.followed[NAME, 0].high_watermark == 1, 10)
        waiting = parked(follower, 1)
        begun = await follower.call(ApiKey.FETCH, fetch_request((NAME, 0, 1), session_epoch=0))
        assert begun.session_id
        more = fetch_request(max_wait_ms=30_000, session_id=begun.session_id, session_epoch=1)
        of_session = asyncio.ensure_future(follower.call(ApiKey.FETCH, more))
        began_s = asyncio.get_running_loop().time()
        await leader.produce(NAME, b"two")
        answer = await answer_of(waiting)
        assert answer.high_watermark == 2 and answer.records
        found = (await of_session).responses[0].partitions[0]
        assert found.high_watermark == 2 and found.records
        assert asyncio.get_running_loop().time() - began_s < 1.0, "a round behind its leader, not a poll"


async def test_a_follower_shows_nothing_above_its_high_watermark() -> None:
    """Its leader has more, and it has the bytes: what the other replica lacks is not committed."""
    async with racks() as it:
        row = it.row()
        leader, (one, other) = it.lives[row.leader], [n for n in it.lives if n != row.leader]
        await leader.produce(NAME, b"one")
        copy = it.lives[one].context.registry.followed[NAME, 0]
        await until(lambda: copy.high_watermark == 1, 10)
        it.stop(other)
        lost = asyncio.ensure_future(leader.produce(NAME, b"two"))
        await until(lambda: copy.log.log_end_offset == 2, 10)
        answer = await it.lives[one].fetch(NAME, 0)
        assert answer.high_watermark == 1 and await it.lives[one].read_all(NAME) == [(0, b"one")]
        waiting = parked(it.lives[one], 1)
        it.go_on(other)
        assert (await answer_of(waiting)).records
        await lost


# ── roles that end ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_what_is_parked_at_a_follower_is_told_at_once_when_its_role_ends() -> None:
    """NOT_LEADER_OR_FOLLOWER, of a full fetch and of a session, whether it leads next or follows in another epoch."""

    async def scenario(leads_next: bool) -> None:
        pair = await both()
        await pair.lives[1].produce(NAME, b"one")
        follower = pair.lives[2]
        followed = pair.followed(2)
        assert followed is not None
        await happens(lambda: followed.high_watermark == 1, "it shows what is committed")
        waiting = parked(follower, 1)
        begun = await follower.call(ApiKey.FETCH, fetch_request((NAME, 0, 1), session_epoch=0))
        more = fetch_request(max_wait_ms=30_000, session_id=begun.session_id, session_epoch=1)
        of_session = asyncio.ensure_future(follower.call(ApiKey.FETCH, more))
        await asyncio.sleep(0)
        began_s = asyncio.get_running_loop().time()
        pair.elect(2 if leads_next else 1, (1, 2))
        pair.publish()
        assert (await answer_of(waiting)).error_code == STALE
        assert (await of_session).responses[0].partitions[0].error_code == STALE
        assert asyncio.get_running_loop().time() - began_s < 0.01
        await pair.stop()

    run_fast(scenario(leads_next=True), timeout_s=HOUR_S)
    run_fast(scenario(leads_next=False), timeout_s=HOUR_S)


async def test_cluster_d24_nothing_is_served_before_the_first_clean_answer_of_an_epoch() -> None:
    """A follower whose leader it does not reach yet may hold what is about to be cut (KAFKA-14704): it serves again
    when its log was found to agree."""
    pair = await both()
    await pair.lives[1].produce(NAME, b"one")
    follower = pair.lives[2]
    followed = pair.followed(2)
    assert followed is not None
    await happens(lambda: followed.high_watermark == 1, "it shows what is committed")
    pair.elect(1, (1, 2))
    pair.publish(2)  # its leader does not know of the epoch: it answers UNKNOWN_LEADER_EPOCH
    await happens(lambda: pair.followed(2) not in (None, followed), "it follows in the next epoch")
    again = pair.followed(2)
    assert again is not None and again.high_watermark == 1
    for _ in range(20):
        assert (await follower.fetch(NAME, 0)).error_code == STALE
        await asyncio.sleep(0.05)
    pair.publish(1)
    await happens(lambda: again.readable() is not None, "its log agrees")
    assert (await follower.fetch(NAME, 0, current_leader_epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert await follower.read_all(NAME) == [(0, b"one")]
    await pair.stop()


# ── the bucket ───────────────────────────────────────────────────────────────────────────────────────────────────────
async def sunk(pair: Pair) -> list[tuple[int, bytes | None]]:
    """Records, most of which are in the bucket alone, at both brokers."""
    values = [b"%03d" % number + b"x" * 100 for number in range(60)]
    for value in values:
        assert (await pair.lives[1].produce(NAME, value)).error_code == 0
    followed = pair.followed(2)
    assert followed is not None
    await happens(lambda: followed.log.local_log_start_offset > 20, "the copy dropped what the bucket holds")
    await happens(lambda: followed.high_watermark == len(values), "it shows all")
    return list(enumerate(values))


async def test_a_follower_reads_what_only_the_bucket_holds_by_itself() -> None:
    """Through its own cache, by GETs of its own; it writes nothing and its leader serves nothing."""
    pair = await both(**SMALL_SEGMENTS)
    wanted = await sunk(pair)
    before = pair.lives[1].context.metrics.requests[ApiKey.FETCH], pair.lives[1].partition(NAME).fetched_bytes
    assert await pair.lives[2].read_all(NAME) == wanted
    assert pair.lives[1].partition(NAME).fetched_bytes == before[1]
    await pair.lives[1].produce(NAME, b"more" * 100)
    await pair.stop()


def test_a_follower_whose_manifest_is_behind_reads_it_again() -> None:
    """What was copied since it looked is found, though nobody tells it of commits."""

    async def scenario() -> None:
        pair = await both(**SMALL_SEGMENTS)
        wanted = await sunk(pair)
        assert await pair.lives[2].read_all(NAME) == wanted
        more = await sunk_again(pair, wanted)
        assert await pair.lives[2].read_all(NAME) == more
        await pair.stop()

    async def sunk_again(pair: Pair, wanted: list[tuple[int, bytes | None]]) -> list[tuple[int, bytes | None]]:
        more = list(wanted)
        followed = pair.followed(2)
        assert followed is not None
        for number in range(60):
            value = b"again %03d" % number + b"y" * 100
            assert (await pair.lives[1].produce(NAME, value)).error_code == 0
            more.append((len(more), value))
        await happens(lambda: followed.log.local_log_start_offset > len(wanted) + 20, "dropped, too")
        await happens(lambda: followed.high_watermark == len(more), "it shows all")
        return more

    run_fast(scenario(), timeout_s=HOUR_S)


async def test_a_store_that_is_away_refuses_cold_reads_at_a_follower_and_they_succeed_later() -> None:
    """Its client asks again; hot reads go on."""
    pair = await both(**SMALL_SEGMENTS)
    wanted = await sunk(pair)
    pair.store_away(True)
    answer = await pair.lives[2].fetch(NAME, 0, max_wait_ms=60_000)
    while answer.error_code == 0:
        answer = await pair.lives[2].fetch(NAME, 0, max_wait_ms=60_000)
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await pair.lives[2].fetch(NAME, 59)).records
    pair.store_away(False)
    assert await pair.lives[2].read_all(NAME) == wanted
    await pair.stop()


async def test_a_follower_cut_off_from_its_leader_refuses_no_offset_that_the_bucket_has() -> None:
    """It reads the root itself, so an answer from the bucket may end above all that its leader told it. The reader goes
    on there: OFFSET_OUT_OF_RANGE would make some clients begin again at one end of the log."""
    pair = await both(**SMALL_SEGMENTS)
    wanted = await sunk(pair)
    followed = pair.followed(2)
    assert followed is not None
    pair.end(2)
    pair.change(in_sync=(1,))
    pair.publish(1)
    for number in range(60):
        assert (await pair.lives[1].produce(NAME, b"more %03d" % number + b"x" * 100)).error_code == 0
    leader = pair.lives[1].partition(NAME)
    await happens(lambda: leader.tier.remote_end_offset > len(wanted) + 40, "the bucket has more than the copy")
    assert followed.log.log_end_offset == len(wanted) and followed.readable() is not None
    offset = 0
    while offset < followed.log.local_log_start_offset:
        answer = await pair.lives[2].fetch(NAME, offset, max_wait_ms=60_000)
        *_, (_, last) = walk(bytes(answer.records))
        offset = last.next_offset
        await asyncio.sleep(1)  # the reader is slower than what is fetched ahead for it
    assert offset > followed.log.log_end_offset
    assert (await pair.lives[2].fetch(NAME, offset)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    await pair.stop()


async def test_deleted_records_are_out_of_range_at_a_follower_too() -> None:
    """DeleteRecords is answered when the replicas in sync know the start, so none of them shows what was deleted."""
    pair = await both(**SMALL_SEGMENTS)
    wanted = await sunk(pair)
    assert await pair.lives[2].read_all(NAME) == wanted
    assert (await pair.delete_records(1, 10)).error_code == 0
    assert (await pair.lives[2].fetch(NAME, 9)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await pair.lives[2].read_all(NAME, start=10) == wanted[10:]
    await pair.stop()


@pytest.mark.parametrize("text", ["com.example.Mine", "org.apache.kafka.common.replica.LeaderSelector"])
def test_another_selector_is_refused(text: str) -> None:
    from broker.config.resolve import resolve
    from broker.config.sources import ConfigError

    with pytest.raises(ConfigError, match="RackAwareReplicaSelector is served"):
        resolve({"log.dirs": "/data"}, [f"replica.selector.class={text}"], {}, None)
