"""Two whole brokers: one leads, one copies, and they change places (R3). The test is the controller."""

from __future__ import annotations

import asyncio
import errno

import pytest

from broker.error_codes import ErrorCode
from broker.metadata.records import NO_LEADER
from broker.partition.leading.leader_replica import LeaderReplica
from broker.replication.leader import Report
from coldstore.stores.operations import Operation
from logformat.record_batch import walk
from seams.files.disk import read_file
from seams.rng import SeededRng
from tests.support.brokers.broker_kit import SMALL_SEGMENTS
from tests.support.brokers.shared_bucket import NAME, Pair, both, until
from tests.support.store.faulty_store import Fault

LOG = f"/data/a/{NAME}-0/{0:020}.log"


async def test_acks_all_waits_for_the_copy_and_both_logs_are_the_same() -> None:
    """Byte for byte, with the leader's offsets and epochs; the follower learns the high watermark."""
    pair = await both()
    began_s = asyncio.get_running_loop().time()
    for number in range(20):
        answer = await pair.lives[1].produce(NAME, b"%d" % number, b"more")
        assert answer.error_code == 0 and answer.base_offset == 2 * number
    assert asyncio.get_running_loop().time() - began_s < 5.0
    followed = pair.followed(2)
    assert followed is not None and followed.log.flushed_end_offset == 40
    await until(lambda: followed.high_watermark == 40, "the follower's high watermark")
    assert pair.bytes_of(1) == pair.bytes_of(2)
    assert (await pair.lives[2].produce(NAME, b"x")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(await pair.lives[2].read_all(NAME)) == 40, "consumers may read it there (KIP-392)"
    for life in pair.lives.values():
        await life.stop()


async def test_acks_all_stands_while_the_copy_does_not_come() -> None:
    """The other's process is gone, its session is not over: nothing is committed without it."""
    pair = await both()
    await pair.lives[1].produce(NAME, b"one")
    await pair.lives[2].crash()
    answer = await pair.lives[1].produce(NAME, b"two")
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert await pair.lives[1].read_all(NAME) == [(0, b"one")]
    pair.change(in_sync=(1,))
    pair.publish(1)
    assert (await pair.lives[1].produce(NAME, b"three")).error_code == 0
    assert await pair.lives[1].read_all(NAME) == [(0, b"one"), (1, b"two"), (2, b"three")]
    await pair.lives[1].stop()


@pytest.mark.parametrize("flush", ["sync", "os"])
async def test_the_copy_leads_with_all_that_was_acknowledged_and_the_old_leader_follows_it(flush: str) -> None:
    """And back again, over the same open logs. What the old leader wrote and nobody else had is cut; no gap is
    declared, for nobody saw what might have been there."""
    pair = await both(f"thermocline.flush={flush}")
    first, second = pair.lives[1], pair.lives[2]
    for number in range(5):
        assert (await first.produce(NAME, b"%d" % number)).error_code == 0
    pair.elect(2, (2,))
    pair.publish(2)  # the old leader does not know yet
    await until(lambda: pair.leads(2), "the copy leads")
    lost = asyncio.ensure_future(first.produce(NAME, b"never acknowledged"))
    assert (await second.produce(NAME, b"five")).base_offset == 5
    pair.publish(1)
    assert (await lost).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    wanted = [(number, b"%d" % number) for number in range(5)] + [(5, b"five")]
    assert await second.read_all(NAME) == wanted
    await until(lambda: pair.followed(1) is not None and pair.bytes_of(1) == pair.bytes_of(2), "the cut, the copy")
    partition = second.partition(NAME)
    await until(lambda: 1 in partition.leader.in_sync.union, "it lacks nothing: its joining is proposed")
    pair.change(in_sync=(2, 1))
    pair.publish()
    assert (await second.produce(NAME, b"six")).error_code == 0
    pair.elect(1, (2, 1))
    pair.publish()
    await until(lambda: pair.leads(1) and pair.followed(2) is not None, "and back")
    assert (await first.produce(NAME, b"seven")).base_offset == 7
    assert await first.read_all(NAME) == [*wanted, (6, b"six"), (7, b"seven")]
    await until(lambda: pair.bytes_of(1) == pair.bytes_of(2), "the same again")
    for life in (first, second):
        await life.stop()
    for place in pair.places.values():
        assert place.disk.stat("/data/a/.kafka_cleanshutdown") is not None


async def test_cluster_d65_what_an_old_leader_reports_survives_a_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk is slow, its tail is in the page cache, another one leads: the offset of its first question counts as
    its flushed end, so the tail is on the disk by then."""
    reports: list[tuple[int, int]] = []
    taken = LeaderReplica.reported
    pair = await both()
    first, second = pair.lives[1], pair.lives[2]
    assert (await first.produce(NAME, b"0")).error_code == 0

    def durable_end() -> int:
        disk = pair.places[1].disk.crash(SeededRng("cut"), 0.0)
        return max(header.next_offset for _, header in walk(read_file(disk, LOG)))

    def reported(partition: LeaderReplica, node_id: int, report: Report, leader_epoch: int) -> None:
        if node_id == 1 and leader_epoch == pair.row.leader_epoch:
            reports.append((report.end_offset, durable_end()))
        taken(partition, node_id, report, leader_epoch)

    monkeypatch.setattr(LeaderReplica, "reported", reported)
    first.workers.slow = True
    for number in range(1, 5):
        assert (await first.produce(NAME, b"%d" % number, acks=1)).error_code == 0
    copy = pair.followed(2)
    assert copy is not None
    await until(lambda: copy.log.flushed_end_offset == 5, "the other has the tail on its disk")
    assert durable_end() < 5, "the leader has not"
    pair.elect(2, (2, 1))
    pair.publish()
    await until(lambda: pair.leads(2) and (5, 5) in reports, "the old leader reports its tail")
    assert all(end <= durable for end, durable in reports), reports
    assert second.partition(NAME).high_watermark == 5
    await pair.stop()


async def test_a_copy_that_was_killed_is_waited_for_and_catches_up_in_its_next_session() -> None:
    """The old session's reports are void; what was appended meanwhile is acknowledged when the new one has it."""
    pair = await both()
    await pair.lives[1].produce(NAME, b"one")
    await pair.lives[2].crash()
    pair.places[2].kill()
    waiting = asyncio.ensure_future(pair.lives[1].produce(NAME, b"two"))
    await pair.start(2)
    pair.publish()
    assert (await waiting).error_code == 0
    assert pair.bytes_of(1) == pair.bytes_of(2)
    for life in pair.lives.values():
        await life.stop()


async def led_in_both_tiers() -> Pair:
    """1 leads 40 records alone, and the first segments are only in the bucket."""
    pair = Pair()
    await pair.start(1)
    await pair.start(2)
    pair.create((1,), **SMALL_SEGMENTS)
    pair.publish()
    await until(lambda: pair.leads(1), "one leads")
    for number in range(40):
        assert (await pair.lives[1].produce(NAME, b"%03d" % number + b"x" * 100)).error_code == 0
    log = pair.lives[1].partition(NAME).log
    await until(lambda: log.local_log_start_offset > 10, "segments left the disk")
    return pair


async def test_an_empty_replica_begins_at_the_verified_end_and_leads_with_both_tiers() -> None:
    """What only the bucket has is not copied: a bootstrap costs the hot tail. Its lineage comes with the footer."""
    pair = await led_in_both_tiers()
    log = pair.lives[1].partition(NAME).log
    pair.change(replicas=(1, 2))
    pair.publish()
    await until(lambda: pair.followed(2) is not None and pair.followed(2).log.log_end_offset == 40, "the copy")  # type: ignore[union-attr]
    followed = pair.followed(2)
    assert followed is not None
    copy = followed.log
    assert copy.local_log_start_offset > 10 and copy.log_start_offset == 0
    assert copy.epochs == log.epochs.truncate_from_start(copy.epochs.entries[0].start_offset)
    await until(lambda: pair.lives[1].partition(NAME).leader.in_sync.union == {1, 2}, "it is proposed")
    pair.change(in_sync=(1, 2))
    pair.publish()
    assert (await pair.lives[1].produce(NAME, b"last")).error_code == 0
    await until(lambda: followed.high_watermark == 41, "the follower's high watermark")
    pair.elect(2, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(2), "the copy leads")
    found = await pair.lives[2].read_all(NAME)
    assert [offset for offset, _ in found] == list(range(41))
    for life in pair.lives.values():
        await life.stop()


async def starting_at_4() -> Pair:
    """1 leads alone, of six records the first four were deleted."""
    pair = await both(replicas=(1,))
    for number in range(6):
        await pair.lives[1].produce(NAME, b"%d" % number)
    pair.lives[1].partition(NAME).log.advance_log_start(4)
    return pair


async def test_a_replica_below_the_log_start_begins_there() -> None:
    """Records were deleted, and the topic has no bucket: nothing below the leader's log start comes back (D36)."""
    pair = await starting_at_4()
    pair.change(replicas=(1, 2))
    pair.publish()
    await until(lambda: pair.followed(2) is not None and pair.followed(2).log.log_end_offset == 6, "the copy")  # type: ignore[union-attr]
    followed = pair.followed(2)
    assert followed is not None and followed.log.log_start_offset == followed.log.local_log_start_offset == 4
    for life in pair.lives.values():
        await life.stop()


async def test_a_replica_whose_log_start_is_inside_a_batch_begins_with_that_batch() -> None:
    """Its leader sends the whole batch, which begins below the fetch offset."""
    pair = await both(replicas=(1,), remote_storage_enable="false")
    for _ in range(3):
        await pair.lives[1].produce(NAME, b"one", b"two", b"three")
    pair.lives[1].partition(NAME).log.advance_log_start(4)
    pair.change(replicas=(1, 2))
    pair.publish()
    await until(lambda: pair.followed(2) is not None and pair.followed(2).log.log_end_offset == 9, "the copy")  # type: ignore[union-attr]
    followed = pair.followed(2)
    assert followed is not None and followed.log.log_start_offset == 4 and not followed.failure
    assert followed.log.active_segment.base_offset == 3 and not pair.lives[2].context.registry.log_failures.unfit
    for life in pair.lives.values():
        await life.stop()


@pytest.mark.parametrize(
    ("operation", "where"),
    [("write", ".restart.tmp"), ("write", "leader-epoch-checkpoint.tmp"), ("create", f"{4:020}.log")],
)
async def test_a_copy_that_met_a_full_disk_as_it_began_elsewhere_goes_on_when_there_is_room(
    operation: str, where: str
) -> None:
    """It was given up, and stayed out of its set, until its process began anew (seed 200 of three brokers)."""
    pair = await starting_at_4()
    disk = pair.places[2].disk
    fault = disk.inject(operation, errno.ENOSPC, where, times=-1)
    pair.change(replicas=(1, 2))
    pair.publish()
    await until(lambda: disk.hits[f"fault:{operation}"] >= 3, "it tried, and tried again")
    assert pair.followed(2) is None or pair.followed(2).log.log_end_offset == 0  # type: ignore[union-attr]
    fault.times = 0
    await until(lambda: pair.followed(2) is not None and pair.followed(2).log.log_end_offset == 6, "the copy")  # type: ignore[union-attr]
    await until(lambda: pair.bytes_of(1)[-50:] == pair.bytes_of(2)[-50:], "the same bytes")
    await pair.stop()
    assert disk.stat("/data/a/.kafka_cleanshutdown") is not None


@pytest.mark.parametrize(
    ("operation", "where"),
    [("read", f"{4:020}.restart"), ("sync", ".restart.tmp"), ("unlink", f"{0:020}.log"), ("create", f"{4:020}.log")],
)
async def test_a_copy_whose_disk_failed_as_it_began_elsewhere_is_told_and_goes_on_when_the_disk_lets_it(
    operation: str, where: str
) -> None:
    """As one that the disk refuses to open: it was given up half way, out of its set until its process began anew (seed
    3392 of three brokers, late). It is not tried without a pause: each time its log is opened."""
    pair = await starting_at_4()
    disk, now_s = pair.places[2].disk, asyncio.get_running_loop().time
    unfit = pair.lives[2].context.registry.log_failures.unfit
    fault = disk.inject(operation, errno.EIO, where, times=-1, below="/data/a/log-0")
    pair.change(replicas=(1, 2))
    pair.publish()
    began_s = now_s()
    await until(lambda: disk.hits[f"fault:{operation}"] >= 5, "it tried, and tried again")
    assert now_s() - began_s > 3 and unfit
    assert pair.followed(2) is None or pair.followed(2).log.log_end_offset == 0  # type: ignore[union-attr]
    fault.times = 0
    await until(lambda: pair.followed(2) is not None and pair.followed(2).log.log_end_offset == 6, "the copy")  # type: ignore[union-attr]
    await until(lambda: pair.bytes_of(1)[-50:] == pair.bytes_of(2)[-50:], "the same bytes")
    assert not unfit
    await pair.stop()


async def test_a_copy_of_an_idle_partition_hears_how_far_the_bucket_is_verified() -> None:
    """It heard with the next append only: after the last write its local bytes stayed for ever."""
    pair = await both(**SMALL_SEGMENTS)
    followed = pair.followed(2)
    assert followed is not None
    for operation in (Operation.HEAD, Operation.GET):
        pair.places[1].store.script(operation, Fault.BEFORE, match="/segments/", times=100_000)
    for _ in range(40):
        assert (await pair.lives[1].produce(NAME, b"x" * 100)).error_code == 0
    leader = pair.lives[1].partition(NAME)
    sealed_end = leader.log.active_info().base_offset
    await until(lambda: leader.tier.remote_end_offset == sealed_end, "the root names all that is sealed")
    await asyncio.sleep(10)
    assert followed.verified_end == 0
    pair.places[1].store.calm()
    await until(lambda: leader.tier.partition_state.sure_end_offset == sealed_end, "all that is sealed is verified")
    await until(lambda: followed.log.local_log_start_offset == sealed_end, "the copy lets go of it")
    assert leader.log.log_end_offset == 40
    await pair.stop()


async def test_a_copy_drops_what_the_bucket_verifiably_holds() -> None:
    """R6: by its own local retention, below the verified end that its leader tells; what is deleted goes, too."""
    pair = await both(**SMALL_SEGMENTS)
    followed = pair.followed(2)
    assert followed is not None

    def dropped_below() -> int:
        return followed.log.local_log_start_offset

    async def produced(count: int) -> None:
        for _ in range(count):
            assert (await pair.lives[1].produce(NAME, b"x" * 100)).error_code == 0

    await produced(40)
    await until(lambda: pair.lives[1].partition(NAME).log.local_log_start_offset > 10, "the leader drops")
    await produced(1)
    await until(lambda: dropped_below() > 10, "the copy drops")
    assert dropped_below() <= followed.verified_end and followed.log.log_start_offset == 0
    assert len(pair.bytes_of(2)) > 100
    pair.lives[1].partition(NAME).log.advance_log_start(41)
    await produced(20)
    await until(lambda: followed.log.log_start_offset == 41 and dropped_below() >= 41, "deleted records")
    for life in pair.lives.values():
        await life.stop()


async def test_the_only_replica_keeps_its_reservation_while_nobody_leads() -> None:
    """Its session ended and began again, nobody else can have given an offset: no gap is declared, nothing told lost
    (R21)."""
    pair = Pair()
    await pair.start(1)
    pair.create((1,))
    pair.publish()
    await until(lambda: pair.leads(1), "it leads")
    assert (await pair.lives[1].produce(NAME, b"one")).error_code == 0
    pair.elect(NO_LEADER, (1,))
    pair.publish()
    await until(lambda: pair.followed(1) is not None, "nobody leads")
    pair.elect(1, (1,))
    pair.publish()
    await until(lambda: pair.leads(1), "it leads again")
    assert pair.lives[1].partition(NAME).tier.lost is None
    assert (await pair.lives[1].produce(NAME, b"two")).base_offset == 1
    await pair.lives[1].stop()


async def test_cluster_d29_a_reservation_stands_while_others_are_assigned_the_partition() -> None:
    """A clean stop gives it back where the leader is alone: what a copy holds may end higher, and be what is left."""

    async def reserved_after_stop(replicas: tuple[int, ...]) -> int:
        pair = Pair()
        await pair.start(1)
        await pair.start(2)
        pair.create(replicas, remote_storage_enable="true")
        pair.publish()
        await until(lambda: pair.leads(1), "one leads")
        assert (await pair.lives[1].produce(NAME, b"one")).error_code == 0
        await pair.lives[1].partition(NAME).tier.seal_and_copy()
        await pair.lives[1].stop()
        await pair.lives[2].stop()
        return (await pair.manifest()).reserved_end_offset

    assert await reserved_after_stop((1,)) == 1
    assert await reserved_after_stop((1, 2)) > 1


async def test_cluster_d33_a_copy_keeps_what_only_an_object_holds_that_nobody_verified() -> None:
    """The root names objects that the store does not show; when it does, copies let go too. A replica that joins
    meanwhile begins below them (D34)."""
    pair = await both(**SMALL_SEGMENTS)
    for operation in (Operation.HEAD, Operation.GET):
        pair.places[1].store.script(operation, Fault.BEFORE, match="/segments/", times=100_000)
    for _ in range(40):
        assert (await pair.lives[1].produce(NAME, b"x" * 100)).error_code == 0
    leader = pair.lives[1].partition(NAME)
    await until(lambda: leader.tier.remote_end_offset > 10, "the root names objects")
    await asyncio.sleep(10)
    assert (await pair.lives[1].produce(NAME, b"x")).error_code == 0
    followed = pair.followed(2)
    assert followed is not None
    await asyncio.sleep(10)
    assert followed.verified_end == 0 and followed.log.local_log_start_offset == 0
    pair.places[1].store.calm()
    await until(lambda: leader.log.local_log_start_offset > 10, "verified now")
    assert (await pair.lives[1].produce(NAME, b"x")).error_code == 0
    await until(lambda: followed.log.local_log_start_offset > 10, "the copy lets go too")
    assert followed.log.local_log_start_offset <= followed.verified_end
    await pair.stop()
