"""Whole clusters that lost all they had: every replica is heard, the best begins, no offset shows two records."""

from __future__ import annotations

import asyncio
import errno
import itertools

import pytest

from broker.controller.decisions import registrations
from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import ElectLeadersRequest, ElectLeadersRequestTopic
from logformat.record_batch import walk
from seams.files.disk import read_file
from tests.support.brokers.shared_bucket import until
from tests.support.brokers.three_machines import NODES, VALUES, Three, served

LOG = "/data/a/log-0/00000000000000000000.log"
GAP_BYTES = 6  # of the value of the control record that makes a gap; no value here has as many


async def records(three: Three, leader: int) -> list[tuple[int, bytes | None]]:
    found = await three.lives[leader].read_all("log")
    return [(offset, value) for offset, value in found if value is None or len(value) != GAP_BYTES]


async def in_sync(three: Three, seen_by: int) -> None:
    await until(lambda: len(three.row(seen_by).in_sync) == len(NODES), "all are in sync again")


async def end_all(three: Three) -> None:
    for life in three.lives.values():
        await life.crash()


async def test_cluster_d6_all_lose_power_with_os_flush() -> None:
    """Every directory is doubtful, so the set is empty; the longest log goes on, beyond what was ever given (D83: and
    again after the next power cut)."""
    three = Three("thermocline.flush=os")
    leader = await three.fill()
    shown = dict(VALUES)
    for cut in range(2):
        given = three.lives[leader].partition("log").log.reserved_end
        await end_all(three)
        for place in three.places.values():
            place.power_cut(keep=0.5)
        for node_id in NODES:
            await three.start(node_id)
        leader = await served(three, *NODES)
        for offset, value in await records(three, leader):
            assert shown[offset] == value, f"offset {offset} shows two records"
        await in_sync(three, leader)
        answer = await three.lives[leader].produce("log", b"after-%d" % cut)
        assert answer.error_code == 0 and answer.base_offset >= given
        shown[answer.base_offset] = b"after-%d" % cut
    await end_all(three)


async def test_cluster_d50_two_of_three_return_with_nothing_and_the_third_is_waited_for() -> None:
    """It is only off, and holds everything: when it is back it leads on, and nothing was lost."""
    three = Three()
    await three.fill()
    await end_all(three)
    for node_id in (1, 2):
        three.places[node_id].lose_disk()
        await three.start(node_id)
    await asyncio.sleep(60.0)
    assert three.row(1).leader == -1 and three.row(1).in_sync == (3,)
    await three.start(3)
    assert await served(three, *NODES) == 3
    assert await records(three, 3) == VALUES
    assert three.row(3).unclean_epoch == -1
    await end_all(three)


async def test_what_is_whole_of_a_log_that_is_refused_at_its_start_counts_and_is_kept() -> None:
    """The only member of the set and another one lost their disks; of the third the last batch is damaged, which was
    durable. It was said to hold nothing, and the first of three began empty (R18: a candidate up to its last valid
    batch)."""
    three = Three()
    leader = await three.fill()
    context = three.lives[leader].context
    damaged, other = [node_id for node_id in NODES if node_id != leader]
    await three.lives[1].context.controller.set_configs("log", lambda _: {"min.insync.replicas": "1"})
    for node_id in (damaged, other):
        await three.lives[node_id].stop()
    await until(lambda: context.metadata.topic("log").rows[0].in_sync == (leader,), "it is alone")
    await three.lives[leader].crash()
    disk = three.places[damaged].disk
    at, header = list(walk(read_file(disk, LOG)))[-1]
    disk.flip_bit(LOG, at + header.size - 1, 2)
    for node_id in (leader, other):
        three.places[node_id].lose_disk()
    for node_id in (damaged, other, leader):
        await three.start(node_id)
    assert await served(three, *NODES) == damaged
    assert await records(three, damaged) == VALUES[:-1]
    await in_sync(three, damaged)
    assert not three.lives[damaged].context.registry.log_failures.lost
    await end_all(three)


async def test_cluster_d50_all_directories_are_lost_and_one_node_is_given_up() -> None:
    """The two that are back say that they hold nothing; an operator gives the third up, and the partition begins where
    nothing was given yet. The third's old directory returns as one that lost everything, and follows."""
    three = Three()
    leader = await three.fill()
    given = three.lives[leader].partition("log").log.reserved_end
    await end_all(three)
    for node_id in (1, 2):
        three.places[node_id].lose_disk()
        await three.start(node_id)
    commit_queue = three.lives[1].context.controller._commit_queue
    await until(lambda: not three.lives[1].context.metadata.image.nodes[3].active, "3 is known to be gone")
    await commit_queue.decide(lambda image: registrations.forget(image, 3))
    leader = await served(three, 1, 2)
    assert await records(three, leader) == []
    await until(lambda: set(three.row(leader).in_sync) == {1, 2}, "the other joins")
    answer = await three.lives[leader].produce("log", b"next")
    assert (answer.error_code, answer.base_offset) == (0, given)
    await three.start(3)
    await in_sync(three, leader)
    assert three.lives[3].context.registry.followed["log", 0].log.log_end_offset == given + 1
    assert await records(three, leader) == [(given, b"next")]
    await end_all(three)


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("acknowledged", [20, 33, 60])
async def test_all_lose_power_at_once_amid_writes_and_sync_flush_kept_what_was_acknowledged(
    keep: float, acknowledged: int
) -> None:
    """Three machines at one moment; who led is back last, so that another one has to have it all: the sets stand,
    nobody begins uncleanly, and each record is at its offset, once."""
    three = Three("thermocline.flush=sync")
    leader = await three.fill()
    acked = dict(VALUES)

    async def write(by: int) -> None:
        for number in itertools.count():
            value = b"writer %d, %d" % (by, number)
            answer = await three.lives[leader].produce("log", value)
            assert answer.error_code == 0
            acked[answer.base_offset] = value
            if len(acked) == acknowledged:
                known.update(acked)
                for place in three.places.values():
                    place.power_cut(keep)

    known: dict[int, bytes] = {}
    writers = [asyncio.ensure_future(write(by)) for by in range(4)]
    await until(lambda: bool(known), "the power goes as somebody is told that a record is safe")
    for writer in writers:
        writer.cancel()
    await end_all(three)
    for node_id in sorted(NODES, key=lambda node_id: node_id == leader):
        await three.start(node_id)
    leader = await served(three, *NODES)
    found = await records(three, leader)
    assert known.items() <= dict(found).items()
    assert len({value for _, value in found}) == len(found), "a record is there twice"
    assert three.row(leader).unclean_epoch == -1
    await in_sync(three, leader)
    await end_all(three)


@pytest.mark.parametrize("flush", ["sync", "os"])
async def test_cluster_d49_all_restart_and_nothing_is_unclean(flush: str) -> None:
    """Processes that were killed left everything: the set stands."""
    three = Three(f"thermocline.flush={flush}")
    await three.fill()
    await end_all(three)
    for node_id in NODES:
        three.places[node_id].kill()
        await three.start(node_id)
    leader = await served(three, *NODES)
    assert await records(three, leader) == VALUES
    assert three.row(leader).unclean_epoch == -1
    await end_all(three)


async def only_a_laggard_is_left(**configs: str) -> tuple[Three, int]:
    """A minimum of 1; the leader alone was in sync, has one record more than the others, and is off."""
    three = Three()
    leader = await three.fill()
    context = three.lives[leader].context
    others = [node_id for node_id in NODES if node_id != leader]
    await three.lives[1].context.controller.set_configs("log", lambda _: {"min.insync.replicas": "1", **configs})
    for node_id in others:
        await three.lives[node_id].crash()
    await until(lambda: context.metadata.topic("log").rows[0].in_sync == (leader,), "it is alone")
    assert (await three.lives[leader].produce("log", b"alone")).error_code == 0
    await three.lives.pop(leader).crash()
    for node_id in others:
        three.places[node_id].kill()
        await three.start(node_id)
    return three, leader


async def test_a_topic_that_allows_it_begins_uncleanly_and_the_member_that_comes_back_is_cut() -> None:
    """unclean.leader.election.enable (KIP-106): a session after the member ended the others go on without its last
    record; offsets that it gave are given to nothing else, and it follows."""
    three, off = await only_a_laggard_is_left(**{"unclean.leader.election.enable": "true"})
    others = [node_id for node_id in NODES if node_id != off]
    leader = await served(three, *others)
    assert await records(three, leader) == VALUES
    answer = await three.lives[leader].produce("log", b"next")
    assert answer.error_code == 0 and answer.base_offset > len(VALUES)
    three.places[off].kill()
    await three.start(off)
    await in_sync(three, leader)
    assert await records(three, leader) == [*VALUES, (answer.base_offset, b"next")]
    await end_all(three)


async def test_an_allowed_election_passes_over_the_member_whose_disk_failed() -> None:
    """It alone has everything, and lives: it was chosen for that, could not begin, and was chosen again for ever."""
    three = Three()
    leader = await three.fill()
    others = [node_id for node_id in NODES if node_id != leader]
    configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    await three.lives[1].context.controller.set_configs("log", lambda _: configs)
    context = three.lives[leader].context
    for node_id in others:
        await three.lives[node_id].crash()
    await until(lambda: context.metadata.topic("log").rows[0].in_sync == (leader,), "it is alone")
    assert (await three.lives[leader].produce("log", b"alone")).error_code == 0
    path = f"/data/a/log-0/{0:020}.log"
    for operation in ("write", "sync"):
        three.places[leader].disk.inject(operation, errno.EIO, path, times=-1)
    failing = asyncio.create_task(three.lives[leader].produce("log", b"failing"))
    await until(lambda: three.row(leader).leader == -1, "nobody leads what failed")
    for node_id in others:
        three.places[node_id].kill()
        await three.start(node_id)
    assert await served(three, *others) in others
    assert (await failing).error_code != 0
    await end_all(three)


async def test_an_unclean_election_is_made_when_it_is_asked_for() -> None:
    """ElectLeaders of that type (KIP-460), at any broker: answered as Kafka does; who leads needs none, and without it
    the member that is off is waited for."""
    three, off = await only_a_laggard_is_left()
    others = [node_id for node_id in NODES if node_id != off]
    await asyncio.sleep(30.0)
    assert three.row(others[0]).leader == -1
    asked = ElectLeadersRequest(
        election_type=1, topic_partitions=[ElectLeadersRequestTopic("log", [0])], timeout_ms=30_000
    )

    async def elect(node_id: int) -> int:
        answer = await three.lives[node_id].call(ApiKey.ELECT_LEADERS, asked, 2)
        return int(answer.replica_election_results[0].partition_result[0].error_code)

    assert await elect(others[0]) == ErrorCode.NONE
    leader = await served(three, *others)
    assert await records(three, leader) == VALUES
    assert await elect(others[1]) == ErrorCode.ELECTION_NOT_NEEDED
    await end_all(three)


async def test_cluster_d83_a_doubtful_directory_keeps_its_id() -> None:
    """Nothing is renewed that it would have to prove later: each says at its start which logs may lack something, and
    serves under the id it had, after one power cut of all machines as after two."""
    three = Three("thermocline.flush=os")
    leader = await three.fill()
    nodes = three.lives[leader].context.metadata.image.nodes
    before = {node_id: node.directory_id for node_id, node in nodes.items()}
    for _ in range(2):
        await end_all(three)
        for place in three.places.values():
            place.power_cut()
        for node_id in NODES:
            await three.start(node_id)
    await served(three, *NODES)
    nodes = three.lives[leader].context.metadata.image.nodes
    assert {node_id: node.directory_id for node_id, node in nodes.items()} == before
    await end_all(three)
