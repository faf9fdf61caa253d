"""What a leader gives a follower, and what it takes from its question (R3, R5, R16)."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

from msgspec.structs import replace

from broker.context import Call
from broker.error_codes import ErrorCode
from broker.following.publisher import Publisher
from broker.handlers.fetch.fetch import Fetch
from broker.handlers.fetch.long_poll import await_records
from broker.metadata.records import MetadataRecord, RowsSet
from broker.net.dispatch import Later, Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponsePartition,
)
from tests.support.brokers.broker_kit import Life, Place, batches_of, decoded, parts_of
from tests.support.brokers.cluster_kit import session

VERSION = 17
SESSION = 50
STALE = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Leading:
    """A broker that leads `log-0`, which node 2 holds too: both are in the in-sync set."""

    def __init__(self, life: Life, topic_id: Any) -> None:
        self.life = life
        self.topic_id = topic_id
        self.peer = Peer(7, "", life.context.config.brokers_listener)
        topic = life.context.metadata.topic("log")
        self.row = replace(topic.rows[0], replicas=(1, 2), in_sync=(1, 2), partition_epoch=5)
        self.obey(session(node_id=2, broker_epoch=SESSION), RowsSet(topic.topic_id, ((0, self.row),)))

    def obey(self, *records: MetadataRecord) -> None:
        context, replicas = self.life.context, self.life.replicas
        assert replicas is not None
        publisher = Publisher(replicas, context.metadata, context.live, 1)
        publisher.publish(context.metadata.image.with_records(records), context.metadata.controller)

    def request(self, offset: int | None, last_epoch: int = -1, **how: Any) -> FetchRequest:
        """Of node 2; `offset` None: nothing but the session's."""
        asked = {"replica": (2, SESSION), "leader_epoch": self.row.leader_epoch, "wait_ms": 0, "min_bytes": 1} | how
        wanted = FetchRequestPartition(
            partition=0,
            current_leader_epoch=asked["leader_epoch"],
            fetch_offset=offset or 0,
            last_fetched_epoch=last_epoch,
            partition_max_bytes=1 << 20,
            clean_end=asked.get("clean_end", 0),
        )
        topics = [FetchRequestTopic(topic_id=self.topic_id, partitions=[wanted])]
        return FetchRequest(
            replica_state=FetchRequestReplicaState(*asked["replica"]),
            max_wait_ms=asked["wait_ms"],
            min_bytes=asked["min_bytes"],
            max_bytes=1 << 20,
            session_id=asked.get("session_id", 0),
            session_epoch=asked.get("session_epoch", -1),
            topics=[] if offset is None else topics,
        )

    async def fetch(self, offset: int, last_epoch: int = -1, **how: Any) -> FetchResponsePartition:
        response = await self.life.call(ApiKey.FETCH, self.request(offset, last_epoch, **how), VERSION, self.peer)
        return response.responses[0].partitions[0]

    def asked(self, offset: int | None, last_epoch: int = -1, **how: Any) -> Later:
        """A question that is parked."""
        found = self.life.dispatch(ApiKey.FETCH, self.request(offset, last_epoch, **how), VERSION, self.peer)
        assert isinstance(found, Later)
        return found


async def leading() -> Leading:
    life = await Place().start()
    return Leading(life, await life.create("log", 1))


async def test_a_replica_is_served_to_the_logs_end_and_its_next_offset_commits() -> None:
    """Above the high watermark a consumer sees nothing; acks=all waits for the follower's question, not its answer."""
    at = await leading()
    life = at.life
    waiting = asyncio.ensure_future(life.produce("log", b"one", b"two"))
    while life.partition("log").log.flushed_end_offset < 2:
        await asyncio.sleep(0.01)
    assert not waiting.done() and (await life.fetch("log", 0)).records in (b"", None)
    first = await at.fetch(0)
    assert (first.error_code, first.high_watermark, len(batches_of(first))) == (0, 0, 1)
    assert first.reserved_end == life.partition("log").log.reserved_end > 2
    assert not waiting.done(), "what was sent is not flushed there yet"
    second = await at.fetch(2, at.row.leader_epoch)
    assert (await waiting).error_code == 0 and second.high_watermark == 2
    assert len(batches_of(await life.fetch("log", 0))) == 1
    await life.stop()


async def test_a_replica_of_a_cluster_on_a_copy_of_the_bucket_is_another_one() -> None:
    """Its node id and broker epoch may be the same: what it has would count as flushed by the one that is in sync."""
    at = await leading()
    ours = at.life.context.metadata.image.nodes[2].incarnation
    waiting = asyncio.ensure_future(at.life.produce("log", b"one"))
    await asyncio.sleep(0.1)
    assert (await at.fetch(1, at.row.leader_epoch, replica=(2, SESSION, "copy"))).error_code == STALE
    assert not waiting.done()
    assert (await at.fetch(1, at.row.leader_epoch, replica=(2, SESSION, ours))).error_code == 0
    assert (await waiting).error_code == 0
    await at.life.stop()


async def test_a_parked_replica_hears_of_an_append_and_of_the_high_watermark() -> None:
    """At once, each in one answer of its session: else acks=all would wait for the poll's end, consumers for more."""
    at = await leading()
    life, epoch = at.life, at.row.leader_epoch
    begun = await life.call(ApiKey.FETCH, at.request(0, session_epoch=0, min_bytes=0), VERSION, at.peer)
    of = {"session_id": begun.session_id, "wait_ms": 60_000}
    parked = at.asked(None, session_epoch=1, **of)
    began_s = asyncio.get_running_loop().time()
    waiting = asyncio.ensure_future(life.produce("log", b"one"))
    told = decoded(ApiKey.FETCH, VERSION, await parts_of(parked)).responses[0].partitions[0]
    assert len(batches_of(told)) == 1 and told.high_watermark == 0
    told = decoded(ApiKey.FETCH, VERSION, await parts_of(at.asked(1, epoch, session_epoch=2, **of)))
    assert told.responses[0].partitions[0].high_watermark == 1
    assert (await waiting).error_code == 0
    assert asyncio.get_running_loop().time() < began_s + 1.0
    quiet = at.asked(None, session_epoch=3, **of)
    await asyncio.sleep(1.0)
    assert not quiet.is_done and not life.partition("log").waiters._watchers
    await life.stop()


async def test_a_high_watermark_alone_waits_for_records_that_it_can_leave_with() -> None:
    """A hundredth of a second at most: under load a quarter of all answers brought nothing else."""
    at = await leading()
    life, epoch = at.life, at.row.leader_epoch
    loop = asyncio.get_running_loop()
    begun = await life.call(ApiKey.FETCH, at.request(0, session_epoch=0, min_bytes=0), VERSION, at.peer)
    of = {"session_id": begun.session_id, "wait_ms": 60_000}
    parked = at.asked(None, session_epoch=1, **of)
    produced = [asyncio.ensure_future(life.produce("log", b"one"))]
    await parts_of(parked)
    began_s = loop.time()
    parked = at.asked(1, epoch, session_epoch=2, **of)  # commits it
    assert (await produced[0]).error_code == 0 and not parked.is_done
    produced.append(asyncio.ensure_future(life.produce("log", b"two")))
    told = decoded(ApiKey.FETCH, VERSION, await parts_of(parked)).responses[0].partitions[0]
    assert told.high_watermark == 1 and len(batches_of(told)) == 1 and loop.time() - began_s < 0.01
    parked = at.asked(2, epoch, session_epoch=3, **of)
    began_s = loop.time()
    told = decoded(ApiKey.FETCH, VERSION, await parts_of(parked)).responses[0].partitions[0]
    assert told.high_watermark == 2 and not told.records and 0.005 < loop.time() - began_s < 0.1
    assert (await produced[1]).error_code == 0
    await life.stop()


async def test_a_full_fetch_of_a_replica_hears_of_an_append_too() -> None:
    """A leader without room for another session must not make every acks=all wait."""
    at = await leading()
    parked = at.asked(0, wait_ms=60_000)
    began_s = asyncio.get_running_loop().time()
    waiting = asyncio.ensure_future(at.life.produce("log", b"one"))
    told = decoded(ApiKey.FETCH, VERSION, await parts_of(parked))
    assert len(batches_of(told.responses[0].partitions[0])) == 1
    assert asyncio.get_running_loop().time() < began_s + 1.0 and not at.life.partition("log").waiters.at_tail
    waiting.cancel()
    await at.life.stop()


async def test_a_tombstone_stays_in_the_bucket_until_every_replicas_log_is_clean_above_it() -> None:
    """A follower whose cleaner lags serves the old record (KIP-392), and may lead next. Its reader needs the tombstone
    in the bucket when that log starts above both. A replica that has not reported counts as not clean at all."""
    at = await leading()
    life, epoch = at.life, at.row.leader_epoch
    waiting = asyncio.ensure_future(life.produce("log", b"one", b"two"))
    partition = life.partition("log")
    while partition.log.flushed_end_offset < 2:
        await asyncio.sleep(0.01)
    await partition.lease.checkpoint_cleaned(2, lambda: None)
    state = partition.tier.partition_state
    assert (partition.lease.clean_end, state.clean_end()) == (2, 0)
    assert (await at.fetch(2, epoch, clean_end=1)).error_code == 0 and (await waiting).error_code == 0
    assert state.clean_end() == 1
    assert (await at.fetch(2, epoch, clean_end=9)).error_code == 0
    assert state.clean_end() == 2
    at.obey(session("again", node_id=2, broker_epoch=SESSION + 1))
    assert state.clean_end() == 0, "its disk may be another"
    await life.stop()


async def test_cluster_d04_who_asks_in_another_session_or_epoch_reports_nothing() -> None:
    """Each is refused, and nothing it says is counted."""
    at = await leading()
    life, epoch = at.life, at.row.leader_epoch
    waiting = asyncio.ensure_future(life.produce("log", b"one"))
    while life.partition("log").log.flushed_end_offset < 1:
        await asyncio.sleep(0.01)
    assert (await at.fetch(1, epoch, replica=(2, SESSION - 1))).error_code == STALE
    assert (await at.fetch(1, epoch, replica=(3, SESSION))).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (await at.fetch(1, epoch, replica=(3, 9), leader_epoch=-1)).error_code == STALE
    assert (await at.fetch(1, epoch, leader_epoch=epoch + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    await at.fetch(1, epoch, leader_epoch=-1)
    assert (await at.fetch(2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    diverging = await at.fetch(9, epoch)
    assert diverging.diverging_epoch is not None and diverging.diverging_epoch.end_offset == 1
    assert not waiting.done() and life.partition("log").high_watermark == 0
    at.obey(session("again", node_id=2, broker_epoch=SESSION + 1))
    assert (await at.fetch(1, epoch)).error_code == STALE, "that session is over"
    assert not waiting.done()
    assert (await at.fetch(1, epoch, replica=(2, SESSION + 1))).error_code == 0
    assert (await waiting).error_code == 0
    await life.stop()


async def test_who_asks_below_what_is_left_here_is_sent_to_the_bucket() -> None:
    """KIP-405: it begins at the verified end instead, which it is told."""
    at = await leading()
    partition = at.life.partition("log")
    waiting = asyncio.ensure_future(at.life.produce("log", b"one"))
    while partition.log.log_end_offset < 1:
        await asyncio.sleep(0.01)
    partition.log.roll()
    await partition.flusher.flush()
    while not partition.log.delete_local_before(1):
        await asyncio.sleep(0.01)  # its index files are being written
    moved = await at.fetch(0)
    assert moved.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    await at.fetch(1, at.row.leader_epoch)
    assert (await waiting).error_code == 0
    await at.life.stop()


async def test_a_replica_is_answered_in_every_leader_epoch_anew() -> None:
    """The first answer without divergence is what it waits for (R3), though the offsets are those told before: an idle
    partition under the same leader would else stay unreconciled."""
    at = await leading()
    life, epoch = at.life, at.row.leader_epoch
    begun = await life.call(ApiKey.FETCH, at.request(0, session_epoch=0, min_bytes=0), VERSION, at.peer)
    at.row = replace(at.row, leader_epoch=epoch + 1, partition_epoch=6)
    topic = life.context.metadata.topic("log")
    at.obey(RowsSet(topic.topic_id, ((0, at.row),)))
    while ("log", 0) not in life.context.registry.partitions:
        await asyncio.sleep(0.01)
    asked = at.request(0, session_id=begun.session_id, session_epoch=1, wait_ms=60_000)
    began_s = asyncio.get_running_loop().time()
    told = await life.call(ApiKey.FETCH, asked, VERSION, at.peer)
    assert told.responses[0].partitions[0].error_code == 0
    assert asyncio.get_running_loop().time() < began_s + 1.0
    await life.stop()


async def test_a_replica_is_told_how_long_no_producer_came() -> None:
    """So it copies what is far behind as fast as it goes where there are none. Consumers are not told."""
    at = await leading()
    life = at.life

    async def told(request: FetchRequest) -> int:
        return (await life.call(ApiKey.FETCH, request, VERSION, at.peer)).quiet_ms

    assert await told(at.request(0)) == 0, "it is not known yet"
    await asyncio.sleep(30)
    assert 29_000 < await told(at.request(0)) < 31_000
    waiting = asyncio.ensure_future(life.produce("log", b"one"))
    while life.partition("log").log.flushed_end_offset < 1:
        await asyncio.sleep(0.01)
    assert await told(at.request(0)) == 0
    await told(at.request(1, at.row.leader_epoch))
    assert (await waiting).error_code == 0
    await asyncio.sleep(2)
    assert await told(at.request(1, at.row.leader_epoch)) >= 1_000, "questions of replicas are none"
    assert await told(replace(at.request(0), replica_state=FetchRequestReplicaState(-1, -1))) == -1
    await life.stop()


async def test_a_wide_fetch_of_a_replica_sees_what_came_before_it_waits() -> None:
    """Regression: only a move of the high watermark counted, and acks=all waited for the end of the poll."""
    at = await leading()
    life, context = at.life, at.life.context
    call = Call(VERSION, at.peer, "", life.dispatcher.clients.of(at.peer))
    fetching = Fetch(context, at.request(0, wait_ms=30_000), call)
    result = fetching.attempt()  # as in turns: the last partitions are read later
    waiting = asyncio.ensure_future(life.produce("log", b"one"))
    while life.partition("log").log.log_end_offset < 1:
        await asyncio.sleep(0)
    async with asyncio.timeout(5.0):
        response = await await_records(context, fetching, result, nullcontext)
    assert len(response.responses[0].partitions[0].records or b"") > 0
    waiting.cancel()
    await life.stop()
