"""A disk that refuses the opening of a log, or a log that came damaged, among replicas that are whole: another one
leads, nobody waits for ever, and it is copied again when it can be (D38, R18, R20)."""

from __future__ import annotations

import asyncio
import errno
from itertools import pairwise

import pytest

from logformat.record_batch import walk
from seams.files.disk import read_file
from tests.support.brokers.shared_bucket import until
from tests.support.brokers.three_machines import NODES, VALUES, Three, served

LOG = f"/data/a/log-0/{0:020}.log"


async def crash_all(three: Three) -> None:
    for node_id in tuple(three.lives):
        await three.lives.pop(node_id).crash()
    for place in three.places.values():
        place.kill()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
async def test_cluster_d38_a_leader_whose_disk_refuses_the_log_lets_another_lead(code: int) -> None:
    """It led for ever and served nobody, though two replicas were whole: its heartbeats said that it is fit. When the
    disk lets it open the log again, it follows."""
    three = Three()
    leader = await three.fill()
    await crash_all(three)
    fault = three.places[leader].disk.inject("read", code, LOG, times=-1)
    for node_id in NODES:
        await three.start(node_id)
    others = [node_id for node_id in NODES if node_id != leader]
    led_by = await served(three, *others)
    assert await three.lives[led_by].read_all("log") == VALUES
    assert three.row(led_by).unclean_epoch == -1
    await until(lambda: three.row(led_by).in_sync == tuple(others), "who cannot copy is not waited for")
    assert (await three.lives[led_by].produce("log", b"next")).error_code == 0
    three.places[leader].disk.faults.remove(fault)
    await three.all_is_there(leader, [*VALUES, (len(VALUES), b"next")])


async def test_a_leader_without_descriptors_for_the_log_lets_another_lead() -> None:
    """It led for ever and served nobody, though two in-sync replicas had opened the log."""
    three = Three()
    leader = await three.fill()
    await crash_all(three)
    fault = three.places[leader].disk.inject("open_dir", errno.EMFILE, "/log-0", times=-1)
    for node_id in NODES:
        await three.start(node_id)
    led_by = await served(three, *(node_id for node_id in NODES if node_id != leader))
    assert await three.lives[led_by].read_all("log") == VALUES
    assert (await three.lives[led_by].produce("log", b"next")).error_code == 0
    three.places[leader].disk.faults.remove(fault)
    await three.all_is_there(leader, [*VALUES, (len(VALUES), b"next")])


@pytest.mark.parametrize("operation", ["open", "write"])
async def test_leadership_does_not_move_in_a_circle_while_all_disks_refuse_it(operation: str) -> None:
    """Each disk let a follower open the log, which was reported as sound. So there were 186 elections in a second."""
    three = Three()
    await three.fill()
    await crash_all(three)
    for place in three.places.values():
        place.disk.inject(operation, errno.EIO, "/log-0/thermocline-reservation.tmp", times=-1)
    starts = [asyncio.create_task(three.start(node_id)) for node_id in NODES]
    await asyncio.wait(starts, timeout=60.0)
    seen_by = next(iter(three.lives))
    epochs = [three.row(seen_by).leader_epoch]
    for wait_s in (10.0, 50.0, 60.0):
        if epochs[-1] < 40:  # otherwise it fails, and a circle is slow to play
            await asyncio.sleep(wait_s)
            epochs.append(three.row(seen_by).leader_epoch)
    for place in three.places.values():
        place.disk.heal()
    await asyncio.wait(starts)
    led_by = await served(three, *NODES)
    assert await three.lives[led_by].read_all("log") == VALUES
    changes = [later - before for before, later in pairwise(epochs)]
    assert len(changes) == 3 and changes[0] <= 16 and changes[2] <= 12, f"in 10, 50 and 60 s: {changes} elections"
    await until(lambda: len(three.row(led_by).in_sync) == len(NODES), "all are in sync again")
    await crash_all(three)


async def test_a_new_topic_serves_though_the_first_disk_refuses_its_directory() -> None:
    """CreateTopics waited for its leader for ever; what all disks refuse once is over with the next elections."""
    three = Three()
    for node_id in NODES:
        await three.start(node_id)
    for place in three.places.values():
        place.disk.inject("rename", errno.EIO, "/log-0", times=1)
    create = three.lives[1].context.controller.create_topic
    await create("log", 1, {"min.insync.replicas": "2"}, replication_factor=3)
    leader = await served(three, *NODES)
    assert (await three.lives[leader].produce("log", b"first")).error_code == 0
    await crash_all(three)


async def test_a_replica_alone_whose_disk_refuses_the_log_keeps_its_place() -> None:
    """Nobody else has it: it stays offline until a person looked after the disk, as ever; its neighbours serve."""
    three = Three()
    await three.fill()
    await three.lives[1].context.controller.create_topic("alone", 3, {}, replication_factor=1)
    rows = three.lives[1].context.metadata.topic("alone").rows
    of_one = next(index for index, row in enumerate(rows) if row.replicas == (1,))
    await until(lambda: ("alone", of_one) in three.lives[1].context.registry.partitions, "it is led")
    assert (await three.lives[1].produce("alone", b"0", index=of_one)).error_code == 0
    await crash_all(three)
    three.places[1].disk.inject("read", errno.EIO, f"/data/a/alone-{of_one}/{0:020}.log", times=-1)
    for node_id in NODES:
        await three.start(node_id)
    await served(three, *NODES)
    replicas = three.lives[1].context.registry
    await until(lambda: len(three.row(1).in_sync) == len(NODES), "its other log is in sync")
    assert three.lives[1].context.metadata.topic("alone").rows[of_one].leader == 1
    assert ("alone", of_one) not in replicas.partitions and not replicas.log_failures.unfit
    await crash_all(three)


async def test_a_replica_whose_disk_refuses_the_log_holds_up_no_allowed_unclean_start() -> None:
    """The only member of the set lives, and its disk refuses the log for good: nobody was ever chosen, as it did not
    say what it holds."""
    three = Three()
    leader = await three.fill()
    others = [node_id for node_id in NODES if node_id != leader]
    context = three.lives[leader].context
    configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    await three.lives[1].context.controller.set_configs("log", lambda _: configs)
    for node_id in others:
        await three.lives.pop(node_id).stop()
    await until(lambda: context.metadata.topic("log").rows[0].in_sync == (leader,), "it is alone")
    assert (await three.lives[leader].produce("log", b"alone")).error_code == 0
    await crash_all(three)
    fault = three.places[leader].disk.inject("read", errno.EIO, LOG, times=-1)
    for node_id in NODES:
        await three.start(node_id)
    led_by = await served(three, *others)
    found = await three.lives[led_by].read_all("log")
    assert found[: len(VALUES)] == VALUES
    three.places[leader].disk.faults.remove(fault)
    await until(lambda: len(three.row(led_by).in_sync) == len(NODES), "all are in sync again")
    await crash_all(three)


async def test_a_replica_whose_disk_refuses_the_log_is_waited_for_where_the_set_is_empty_and_asked_again() -> None:
    """The others lost their disks, so it may hold more than they: nobody begins before it said what. It was asked once,
    and never again when its disk let it open the log."""
    three = Three()
    leader = await three.fill()
    lost = [node_id for node_id in NODES if node_id != leader]
    await three.lives[1].context.controller.set_configs("log", lambda _: {"min.insync.replicas": "1"})
    for node_id in lost:
        await three.lives.pop(node_id).stop()
    context = three.lives[leader].context
    await until(lambda: context.metadata.topic("log").rows[0].in_sync == (leader,), "it is alone")
    await crash_all(three)
    whole, empty = lost
    for node_id in (leader, empty):
        three.places[node_id].lose_disk()
    fault = three.places[whole].disk.inject("read", errno.EIO, LOG, times=-1)
    for node_id in NODES:
        await three.start(node_id)
    await until(lambda: three.row(whole).in_sync == (), "nobody has all of it")
    await asyncio.sleep(60.0)
    assert three.row(whole).leader == -1, "what the third holds is not known"
    three.places[whole].disk.faults.remove(fault)
    assert await served(three, *NODES) == whole
    assert (await three.lives[whole].read_all("log"))[: len(VALUES)] == VALUES
    await until(lambda: len(three.row(whole).in_sync) == len(NODES), "all are in sync again")
    await crash_all(three)


async def test_a_damaged_replica_that_said_so_before_an_unclean_start_is_copied_anew_when_that_is_done() -> None:
    """Its log was not to be touched while nobody served; the row that said so came in the same leader epoch, and it was
    copied again only after the next one."""
    three = Three()
    leader = await three.fill()
    damaged, other = [node_id for node_id in NODES if node_id != leader]
    await three.lives[1].context.controller.set_configs("log", lambda _: {"min.insync.replicas": "1"})
    for node_id in (damaged, other):
        await three.lives.pop(node_id).stop()
    context = three.lives[leader].context
    await until(lambda: context.metadata.topic("log").rows[0].in_sync == (leader,), "it is alone")
    await crash_all(three)
    disk = three.places[damaged].disk
    at, header = list(walk(read_file(disk, LOG)))[-1]
    disk.flip_bit(LOG, at + header.size - 1, 2)
    three.places[leader].lose_disk()
    for node_id in (damaged, other, leader):
        await three.start(node_id)
    assert await served(three, *NODES) == other
    assert (await three.lives[other].read_all("log"))[: len(VALUES)] == VALUES
    await until(lambda: len(three.row(other).in_sync) == len(NODES), "all are in sync again")
    assert not three.lives[damaged].context.registry.log_failures.lost
    assert any(name.endswith("-stray") for name in disk.list_dir("/data/a")), "what was damaged is aside"
    await crash_all(three)
