"""A log that is damaged where others have all of it: it is reported, leaves its set, and is copied anew (R18)."""

from __future__ import annotations

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import ElectLeadersRequest, ElectLeadersRequestTopic
from logformat.record_batch import walk
from seams.files.disk import read_file
from tests.support.brokers.shared_bucket import until
from tests.support.brokers.three_machines import NODES, VALUES, Three

LOG = "/data/a/log-0/00000000000000000000.log"


def is_stray_there(three: Three, node_id: int) -> bool:
    return any(name.endswith("-stray") for name in three.places[node_id].disk.list_dir("/data/a"))


async def copied_anew(three: Three, node_id: int) -> None:
    """Its set has all three again, it holds everything, and what it had lies aside."""
    others = [other for other in NODES if other != node_id]
    await until(lambda: is_stray_there(three, node_id), "the damaged log is aside")
    await until(lambda: len(three.row(others[0]).in_sync) == len(NODES), "all are in sync again")
    leader = three.row(others[0]).leader
    await until(lambda: ("log", 0) in three.lives[leader].context.registry.partitions, "it serves")
    assert await three.lives[leader].read_all("log") == VALUES
    assert three.row(leader).unclean_epoch == -1
    assert not three.lives[node_id].context.registry.log_failures.lost
    for life in three.lives.values():
        await life.crash()


def move_batch(three: Three, node_id: int, number: int) -> int:
    """Flip a bit in the base offset of a batch; that offset."""
    disk = three.places[node_id].disk
    at, header = list(walk(read_file(disk, LOG)))[number]
    disk.flip_bit(LOG, at + 6, 2)
    return header.base_offset


async def test_cluster_d70_a_follower_whose_log_is_refused_at_its_start_copies_it_anew() -> None:
    """Damage below the recovery point: it was refused, and tried again for ever, with its seat in the set."""
    three = Three()
    leader = await three.fill()
    node_id = next(other for other in NODES if other != leader)
    await three.lives[node_id].stop()
    move_batch(three, node_id, -1)
    await three.start(node_id)
    await copied_anew(three, node_id)


async def test_cluster_d70_a_leader_that_reads_damage_lets_another_lead() -> None:
    """Its reader is told CORRUPT_MESSAGE, and asks the next leader, who has it whole."""
    three = Three()
    leader = await three.fill(**{"index.interval.bytes": "1"})  # a start looks at the last batch only
    await three.lives[leader].stop()
    moved = move_batch(three, leader, 1)
    await three.start(leader)
    await until(lambda: len(three.row(leader).in_sync) == len(NODES), "all are in sync")
    asked = ElectLeadersRequest(topic_partitions=[ElectLeadersRequestTopic("log", [0])], timeout_ms=30_000)
    await three.lives[leader].call(ApiKey.ELECT_LEADERS, asked, 2)
    await until(lambda: ("log", 0) in three.lives[leader].context.registry.partitions, "it leads again")
    answer = await three.lives[leader].fetch("log", moved, max_wait_ms=500)
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    await until(lambda: three.row(leader).leader not in (leader, -1), "another one leads")
    await copied_anew(three, leader)
