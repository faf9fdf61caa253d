"""What a new leader may give, and whether it asks the bucket first (R21, R23): two whole brokers, the test decides."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import ListOffsetsRequest, ListOffsetsRequestPartition, ListOffsetsRequestTopic
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.stores.operations import Operation
from logformat.records import Record, encode_batch
from logformat.values import TopicPartition
from seams.rng import SeededRng
from tests.support.brokers.broker_kit import EPOCH_MS, Life, produce_request
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, Pair, both, until
from tests.support.store.faulty_store import Fault
from tiering.opening.reservation import RESERVATION_FILE


def reserved_end(pair: Pair, node_id: int) -> int:
    return pair.lives[node_id].partition(NAME).log.reserved_end


async def test_cluster_d30_a_new_leader_appends_without_asking_the_bucket() -> None:
    """It was told in this session what may be given, and where the log starts: a thousand elections wait for no
    request. It claims in the background, when the bucket answers, and then its start alone would find its copy."""
    pair = await both(remote_storage_enable="true")
    assert (await pair.lives[1].produce(NAME, b"one")).error_code == 0
    pair.store_away(True)
    pair.elect(2, (2,))
    pair.publish()
    await until(lambda: pair.leads(2), "the copy leads")
    answer = await pair.lives[2].produce(NAME, b"two")
    assert (answer.error_code, answer.base_offset) == (0, 1)
    assert (await pair.manifest()).leader_epoch == 0
    pair.store_away(False)
    tier = pair.lives[2].partition(NAME).tier
    await until(lambda: tier.partition_state.claimed, "a claim in the background, within a minute")
    manifest = await pair.manifest()
    assert manifest.leader_epoch == 1 and manifest.reserved_end_offset == reserved_end(pair, 2)
    path = f"{pair.lives[2].partition(NAME).log.path}/{RESERVATION_FILE}"
    await until(lambda: pair.places[2].disk.stat(path) is not None, "its copy of the reservation")
    await pair.stop()


async def test_a_leader_that_begins_again_goes_on_with_what_it_had_reserved() -> None:
    """Its epoch is raised when a replica of it comes with an empty disk: no reason to ask the bucket."""
    pair = await both()
    before = reserved_end(pair, 1)
    pair.store_away(True)
    pair.elect(1, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(1), "it leads again")
    assert reserved_end(pair, 1) == before
    assert (await pair.lives[1].produce(NAME, b"one", acks=1)).error_code == 0
    pair.store_away(False)
    await pair.stop()


async def test_cluster_d66_who_followed_in_an_earlier_session_asks_where_the_log_starts() -> None:
    """Records were deleted while it was away, which nobody waited to tell it: the root says so, before it serves."""
    pair = await both(remote_storage_enable="true")
    for number in range(6):
        assert (await pair.lives[1].produce(NAME, b"%d" % number)).error_code == 0
    pair.renew(2)
    pair.publish(1)  # the session that 2 still believes in is over
    await pair.lives[1].partition(NAME).tier.delete_records(4)
    pair.store_away(True)
    pair.elect(2, (2,))
    pair.publish()
    await asyncio.sleep(20)
    assert not pair.leads(2)
    pair.store_away(False)
    await until(lambda: pair.leads(2), "it leads when the root was read")
    assert pair.lives[2].partition(NAME).log_start_offset == 4
    assert await pair.lives[2].read_all(NAME, start=4) == [(4, b"4"), (5, b"5")]
    await pair.stop()


async def test_seed_92358_a_leader_below_its_minimum_shows_no_end_below_the_start_in_the_root() -> None:
    """The log start in the root is above the high watermark that the new leader knew: only committed records are
    deleted, so the high watermark follows, although its in-sync set is too small to move it (as in Kafka)."""
    pair = await both(remote_storage_enable="true", min_insync_replicas="2")
    for number in range(6):
        assert (await pair.lives[1].produce(NAME, b"%d" % number)).error_code == 0
    pair.renew(2)
    pair.publish(1)  # the session that 2 still believes in is over
    await pair.lives[1].partition(NAME).tier.delete_records(4)
    copy = pair.followed(2)
    assert copy is not None
    copy.follower.high_watermark = 2  # it heard of no more
    pair.elect(2, (2,))
    pair.publish()
    await until(lambda: pair.leads(2), "it leads")
    partition = pair.lives[2].partition(NAME)
    assert (partition.log_start_offset, partition.high_watermark, partition.last_stable_offset) == (4, 4, 4)
    await pair.stop()


async def _follows(pair: Pair, node_id: int) -> None:
    await until(lambda: pair.followed(node_id) is not None, "it follows")
    assert (await pair.lives[pair.row.leader].produce(NAME, b"x", acks=1)).error_code == 0
    end = pair.lives[pair.row.leader].partition(NAME).log.log_end_offset
    await until(lambda: pair.followed(node_id).log.flushed_end_offset == end, "it has all")  # type: ignore[union-attr]


async def test_cluster_d67_a_joiner_goes_by_what_its_leader_said_last() -> None:
    """One replica, two, one, two: what was given back meanwhile is not there, whatever the joiner heard before."""
    pair = await both(replicas=(1,), remote_storage_enable="true")
    pair.change(replicas=(1, 2))
    pair.publish()
    await _follows(pair, 2)
    told = reserved_end(pair, 1)
    pair.change(replicas=(1,), leader_epoch=1)
    pair.publish()
    await until(lambda: pair.leads(1) and pair.followed(2) is None, "alone")
    first = pair.lives[1].partition(NAME)
    await first.tier.seal_and_copy()
    assert await first.tier.partition_state.give_back()
    assert reserved_end(pair, 1) == first.log.log_end_offset < told
    pair.change(replicas=(1, 2))
    pair.publish()
    await until(lambda: pair.followed(2) is not None, "it joins again")
    assert not await first.tier.partition_state.give_back()
    await _follows(pair, 2)
    pair.change(in_sync=(1, 2))
    pair.elect(2, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(2), "the joiner leads")
    assert reserved_end(pair, 2) <= (await pair.manifest()).reserved_end_offset
    await pair.stop()


async def test_cluster_d74_a_reservation_of_an_earlier_leadership_allows_nothing() -> None:
    """It led alone, followed another who led alone and gave all back, and is alone again: its own old copy would allow
    more than the root. No gap is declared, for it lacks nothing."""
    pair = await both(replicas=(1,), remote_storage_enable="true")
    assert (await pair.lives[1].produce(NAME, b"one")).error_code == 0
    path = f"{pair.lives[1].partition(NAME).log.path}/{RESERVATION_FILE}"
    assert pair.places[1].disk.stat(path) is not None
    pair.change(replicas=(1, 2))
    pair.publish()
    await _follows(pair, 2)
    pair.elect(2, (2,))
    pair.publish()
    await _follows(pair, 1)
    assert pair.places[1].disk.stat(path) is None
    pair.change(replicas=(2,), leader_epoch=2)
    pair.publish()
    await until(lambda: pair.leads(2) and pair.followed(1) is None, "the other alone")
    second = pair.lives[2].partition(NAME)
    await second.tier.seal_and_copy()
    assert await second.tier.partition_state.give_back()
    pair.change(replicas=(2, 1))
    pair.publish()
    await _follows(pair, 1)
    pair.change(in_sync=(2, 1))
    pair.change(replicas=(1,), leader=1, leader_epoch=3, in_sync=(1,))
    pair.publish()
    await until(lambda: pair.leads(1), "the first alone")
    first = pair.lives[1].partition(NAME)
    assert first.tier.lost is None
    assert first.log.reserved_end <= (await pair.manifest()).reserved_end_offset
    await pair.stop()


@pytest.mark.parametrize("in_this_session", [True, False])
async def test_a_replica_that_ends_below_the_bucket_is_told_to_the_controller(in_this_session: bool) -> None:
    """Found when it claims, before it serves or after: it lacks what its place in the set promised (R18)."""
    pair = await both(remote_storage_enable="true")
    assert (await pair.lives[1].produce(NAME, b"one")).error_code == 0
    store = ManifestStore(pair.places[1].memory, UUID(TOPIC_ID), 0, SeededRng(3), pair.lives[1].clock)
    await store.claim(0, NAME, {"remote.storage.enable": "true"})
    await store.commit(lambda manifest: manifest.set_log_start(50))
    if not in_this_session:
        pair.renew(2)
    pair.elect(2, (1, 2))
    pair.publish()
    lost = pair.lives[2].context.registry.log_failures.lost
    await until(lambda: (TOPIC_ID, 0) in lost, "the controller hears of it")
    assert "another" in lost[TOPIC_ID, 0] and "50" in lost[TOPIC_ID, 0]
    await pair.stop()


async def test_cluster_d16_a_topic_whose_first_leader_dies_before_its_root_is_served_by_the_next() -> None:
    """Roots are made by leaders, after the record: no root stands for a topic that was never recorded, and one that
    lacks its root, and holds nothing, gets it from whoever leads."""
    pair = Pair()
    await pair.start(1)
    await pair.start(2)
    pair.places[1].store.script(Operation.PUT_ROOT, Fault.BEFORE, match=TOPIC_ID, times=10_000)
    pair.create()
    pair.publish()
    await until(lambda: pair.followed(2) is not None, "one is to lead, the other follows")
    await asyncio.sleep(20)
    assert not pair.leads(1) and not any(TOPIC_ID in key for key in pair.places[1].memory.objects)
    pair.elect(2, (2,))
    pair.publish()
    await until(lambda: pair.leads(2), "the next leader serves")
    assert (await pair.lives[2].produce(NAME, b"one")).base_offset == 0
    manifest = await pair.manifest()
    assert (manifest.leader_epoch, manifest.reserved_end_offset) == (1, reserved_end(pair, 2))
    pair.places[1].store.calm()
    await pair.stop()


@pytest.mark.parametrize("target", [(), (2,), (1, 2)])
async def test_who_alone_holds_a_partition_that_moves_goes_by_its_own_reservation_after_its_session_ended(
    target: tuple[int, ...],
) -> None:
    """Nobody else can have given anything. With a move under way its reservation went while nobody led: 2²⁰ offsets
    were burnt, readers jumped over them, and a loss was told that never was."""
    pair = await both(replicas=(1,), remote_storage_enable="true")
    for number in range(5):
        assert (await pair.lives[1].produce(NAME, b"%d" % number)).error_code == 0
    pair.change(target=target)
    pair.publish(1)
    pair.end(1)
    pair.elect(-1, (1,))
    pair.publish(1)
    await until(lambda: pair.followed(1) is not None, "nobody leads")
    pair.renew(1)
    pair.elect(1, (1,))
    pair.publish(1)
    await until(lambda: pair.leads(1), "it leads again")
    assert (await pair.lives[1].produce(NAME, b"next")).base_offset == 5
    assert pair.lives[1].partition(NAME).tier.lost is None
    await pair.stop()


async def test_what_a_leader_said_may_be_given_is_void_once_a_partition_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its files were still there when it was assigned the partition again; meanwhile the leader gave back what it had
    said, and others may have given more (R21)."""
    pair = await both(remote_storage_enable="true")
    assert (await pair.lives[1].produce(NAME, b"one")).error_code == 0
    await until(lambda: pair.followed(2) is not None and pair.followed(2).follower.end == 1, "it is copied")  # type: ignore[union-attr]
    replicas = pair.lives[2].replicas
    attached, key = replicas._tiers._attached, (UUID(TOPIC_ID), 0)
    assert key in attached._reported
    go_on = asyncio.Event()
    close_of = replicas._logs.close_of

    async def slow(place: TopicPartition, topic_id: UUID) -> None:
        await go_on.wait()
        await close_of(place, topic_id)

    monkeypatch.setattr(replicas._logs, "close_of", slow)
    pair.change(replicas=(1,), in_sync=(1,), leader_epoch=pair.row.leader_epoch + 1)
    pair.publish()
    await until(lambda: key not in attached._reported, "it is forgotten before anything of it goes")
    pair.change(replicas=(1, 2))
    pair.publish()
    go_on.set()
    await until(lambda: pair.followed(2) is not None, "it is copied on")
    await pair.stop()


@pytest.mark.parametrize(
    ("version", "code"), [(11, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)]
)
async def test_no_time_is_said_to_have_no_record_while_a_new_leader_does_not_know_the_end(
    version: int, code: ErrorCode
) -> None:
    """KIP-207, as for the latest offset: the leader before showed that record. A consumer that hears "there is none"
    goes to the end, and skips it."""

    async def by_time(life: Life, timestamp: int) -> tuple[int, int]:
        row = ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequestTopic(name=NAME, partitions=[row])])
        found = (await life.call(ApiKey.LIST_OFFSETS, request, version)).topics[0].partitions[0]
        return found.error_code, found.offset

    pair = await both()
    first, second = pair.lives[1], pair.lives[2]
    for number in range(5):
        batch = encode_batch([Record(0, EPOCH_MS + number, None, b"x")])
        answer = await first.call(ApiKey.PRODUCE, produce_request(NAME, batch, acks=-1), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    pair.elect(2, (2, 1))
    pair.publish(2)
    await until(lambda: pair.leads(2), "the copy leads")
    assert not second.partition(NAME).is_end_known
    assert await by_time(second, EPOCH_MS) == (ErrorCode.NONE, 0)
    asked = [EPOCH_MS + 4, EPOCH_MS + 9, *([-3] if version > 6 else [])]
    assert [(await by_time(second, timestamp))[0] for timestamp in asked] == [code] * len(asked)
    pair.publish()
    await until(lambda: second.partition(NAME).is_end_known, "the other one follows")
    assert await by_time(second, EPOCH_MS + 4) == (ErrorCode.NONE, 4)
    assert await by_time(second, EPOCH_MS + 9) == (ErrorCode.NONE, -1)
    await pair.stop()
