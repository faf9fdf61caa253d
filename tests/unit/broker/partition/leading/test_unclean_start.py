"""A replica that begins without all that was acknowledged (R20): two whole brokers, the test decides as the controller
would."""

from __future__ import annotations

import asyncio
import errno
import struct

import pytest
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.metadata.records import NO_LEADER
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.leading.leader_role import LeaderRole
from hotstore.log.partition_log import PartitionLog
from logformat.checkpoints import SEEN_EPOCH_FILE, decode_offsets
from logformat.values import TopicPartition
from seams.files.disk import read_file
from tests.support.brokers.broker_kit import SMALL_SEGMENTS
from tests.support.brokers.shared_bucket import NAME, Pair, both, until

_GAP = struct.Struct(">hi")
"""The value of the control record that makes a gap; no record of these tests has as many bytes."""


def empty(pair: Pair, *to: int) -> None:
    """Nobody holds all that was acknowledged."""
    pair.elect(NO_LEADER, ())
    pair.publish(*to)


async def begin(pair: Pair, node_id: int) -> None:
    """It begins, and came to the end of its start."""
    epoch = pair.row.leader_epoch + 1
    pair.change(leader=node_id, leader_epoch=epoch, in_sync=(node_id,), unclean_epoch=epoch, clean=False)
    pair.publish()
    await until(lambda: starting(pair, node_id), "it starts")


def starting(pair: Pair, node_id: int) -> bool:
    found = pair.lives[node_id].context.registry.starting.get((NAME, 0))
    return found is not None and found.leader_epoch == pair.row.leader_epoch


def done(pair: Pair) -> None:
    pair.change(clean=True, served_epoch=pair.row.leader_epoch)
    pair.publish()


def log_of(pair: Pair, node_id: int) -> PartitionLog:
    registry = pair.lives[node_id].context.registry
    found = registry.led(NAME, 0) or registry.followed[NAME, 0]
    return found.log


async def values(pair: Pair, node_id: int) -> list[tuple[int, bytes | None]]:
    """Without the record that makes a gap, as a consumer has them."""
    found = await pair.lives[node_id].read_all(NAME)
    return [(offset, value) for offset, value in found if value is None or len(value) != _GAP.size]


async def test_cluster_d32_offsets_that_were_given_are_given_to_nothing_else() -> None:
    """It serves nobody before the image says that its start is done; then from the end of what was reserved, over a
    declared gap, and the other replica follows it there."""
    pair = await both()
    for number in range(3):
        assert (await pair.lives[1].produce(NAME, b"%d" % number)).error_code == 0
    reserved_end = (await pair.manifest()).reserved_end_offset
    empty(pair)
    await begin(pair, 2)
    assert (await pair.manifest()).leader_epoch == pair.row.leader_epoch, "it claimed"
    assert (await pair.lives[2].produce(NAME, b"x")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await pair.lives[2].fetch(NAME, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await asyncio.sleep(2.0)
    follower = pair.followed(1)
    assert follower is not None and follower.log.log_end_offset == 3, "replicas are not served either"
    done(pair)
    await until(lambda: pair.leads(2), "it serves")
    answer = await pair.lives[2].produce(NAME, b"after")
    assert (answer.error_code, answer.base_offset) == (0, reserved_end)
    assert (await pair.manifest()).reserved_end_offset > reserved_end
    expected = [(0, b"0"), (1, b"1"), (2, b"2"), (reserved_end, b"after")]
    assert await values(pair, 2) == expected
    await until(lambda: log_of(pair, 1).log_end_offset == reserved_end + 1, "the other follows")
    assert pair.bytes_of(1) == pair.bytes_of(2)
    await pair.stop()


async def parted() -> Pair:
    """Broker 2 leads in the epoch that served last, and broker 1 went on in the one before: a tail nobody confirmed."""
    pair = await both()
    assert (await pair.lives[1].produce(NAME, b"both")).error_code == 0
    await until(lambda: pair.followed(2) is not None and pair.followed(2).high_watermark == 1, "2 knows")  # type: ignore[union-attr]
    pair.change(leader=2, leader_epoch=pair.row.leader_epoch + 1, in_sync=(2,), served_epoch=pair.row.leader_epoch + 1)
    pair.publish(2)
    await until(lambda: pair.leads(2), "the copy leads")
    assert (await pair.lives[2].produce(NAME, b"new")).error_code == 0
    await pair.lives[1].produce(NAME, b"tail", acks=1)
    assert log_of(pair, 1).log_end_offset == 2
    return pair


async def test_cluster_d32_the_tail_of_an_older_epoch_is_cut() -> None:
    """At offset 1 the epoch that served last showed another record: whoever did not see that epoch keeps what is below
    its own high watermark."""
    pair = await parted()
    assert await values(pair, 2) == [(0, b"both"), (1, b"new")]
    empty(pair)
    await begin(pair, 1)
    done(pair)
    await until(lambda: pair.leads(1), "it serves")
    assert await values(pair, 1) == [(0, b"both")]
    await pair.stop()


def seen_epoch_on_disk(pair: Pair, node_id: int) -> int:
    path = f"/data/a/{SEEN_EPOCH_FILE}"
    disk = pair.places[node_id].disk
    if disk.stat(path) is None:
        return -1
    return decode_offsets(read_file(disk, path), path).get(TopicPartition(NAME, 0), -1)


async def test_cluster_d73_who_saw_the_last_epoch_keeps_its_tail() -> None:
    """Also what lies above its high watermark, and where the epoch brought no record before it was over (idle
    failovers leave no batch): a checkpoint says that it was seen."""
    pair = await parted()
    pair.elect(2, (2,))
    pair.change(served_epoch=pair.row.leader_epoch)
    pair.publish(2)
    await until(lambda: pair.leads(2), "it leads again, idle")
    await until(lambda: seen_epoch_on_disk(pair, 2) == pair.row.leader_epoch, "the checkpoint says so")
    empty(pair)
    await begin(pair, 2)
    done(pair)
    await until(lambda: pair.leads(2), "it serves")
    assert await values(pair, 2) == [(0, b"both"), (1, b"new")]
    await pair.stop()


async def test_cluster_d31_it_begins_no_earlier_than_the_bucket_ends() -> None:
    """A replica whose directory is empty: what the bucket holds stays, and nothing is appended below its end."""
    pair = Pair()
    await pair.start(1)
    await pair.start(2)
    pair.create((1, 2), **SMALL_SEGMENTS)
    pair.change(in_sync=(1,))
    pair.publish(1)
    await until(lambda: pair.leads(1), "one leads")
    for number in range(40):
        assert (await pair.lives[1].produce(NAME, b"%03d" % number + b"x" * 100)).error_code == 0
    tier = pair.lives[1].partition(NAME).tier
    await until(lambda: tier.remote_end_offset > 10, "segments are copied")
    await pair.lives[1].stop()
    bucket_end = (await pair.manifest()).bucket_end_offset
    del pair.lives[1]
    pair.note(replace(pair.session(1), active=False))
    pair.elect(NO_LEADER, ())
    pair.publish()
    await begin(pair, 2)
    done(pair)
    await until(lambda: pair.leads(2), "it serves")
    found = await values(pair, 2)
    assert [offset for offset, _ in found] == list(range(bucket_end))
    reserved = log_of(pair, 2).log_end_offset
    assert (await pair.lives[2].produce(NAME, b"next")).base_offset == reserved >= bucket_end
    await pair.lives[2].stop()


@pytest.mark.parametrize("crashes", ["before it is cut", "after it began"])
async def test_cluster_d72_a_start_that_is_cut_off_is_done_again(crashes: str) -> None:
    """The cut is durable before the epoch is entered: the next attempt cuts, or knows that it did."""
    pair = await parted()
    await until(lambda: pair.lives[1].partition(NAME).log.flushed_end_offset == 2, "the tail is on disk")
    empty(pair)
    await until(lambda: pair.followed(1) is not None, "nobody leads")
    epoch = pair.row.leader_epoch + 1
    disk = pair.places[1].disk
    if crashes == "before it is cut":
        disk.inject("truncate", errno.EIO, suffix=".log")
    else:
        disk.inject("write", errno.EIO, suffix=".log")  # of the gap
    pair.change(leader=1, leader_epoch=epoch, in_sync=(1,), unclean_epoch=epoch, clean=False)
    pair.publish()
    replicas = pair.lives[1].replicas
    await until(lambda: bool(replicas.damaged), "its disk fails in the middle")
    disk.heal()
    pair.elect(1, (1,))
    pair.publish()
    await until(lambda: starting(pair, 1), "it starts again, in the next epoch")
    done(pair)
    await until(lambda: pair.leads(1), "it serves")
    assert await values(pair, 1) == [(0, b"both")]
    await pair.stop()


async def test_a_start_that_was_overtaken_by_a_row_goes_on_from_that_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partition was moved while its log was opened: it said on top of the row before that its start is done, and
    was refused for ever (seed 12 of restored clusters)."""
    open_one, may_go_on, opened = LeaderRole._opened, asyncio.Event(), asyncio.Event()

    async def slow(self: LeaderRole) -> LeaderReplica:
        found = await open_one(self)
        opened.set()
        await may_go_on.wait()
        return found

    pair = await both()
    empty(pair)
    monkeypatch.setattr(LeaderRole, "_opened", slow)
    epoch = pair.row.leader_epoch + 1
    pair.change(leader=2, leader_epoch=epoch, in_sync=(2,), unclean_epoch=epoch, clean=False)
    pair.publish()
    await opened.wait()
    pair.change(target=(2,))
    pair.publish()
    may_go_on.set()
    await until(lambda: starting(pair, 2), "it starts")
    leader = pair.lives[2].context.registry.starting[NAME, 0].leader
    assert leader.in_sync.row.partition_epoch == pair.row.partition_epoch
    done(pair)
    await until(lambda: pair.leads(2), "it serves")
    await pair.stop()
