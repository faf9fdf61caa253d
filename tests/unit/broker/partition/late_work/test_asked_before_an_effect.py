"""A role that waited asks its lease before it changes anything: if it ended meanwhile, the change is not made, and
no late effect is told. The registry's tables are by name: an entry is removed only if it is the very one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from broker.partition.following.follower_truncation import FollowerTruncation
from broker.partition.registry import Registry
from hotstore.host.lease import Lease, LeaseOver
from logformat.leader_epochs import LeaderEpochs
from tests.support.brokers.cluster_kit import id_of
from tests.support.fast_loop import FastClock
from tests.unit.hotstore.host.test_lease import Scene
from tiering.partition_state import TieredPartition


class Looked:
    """What the tables of a registry hold of a partition, here of `log-0` of a topic."""

    topic, index = "log", 0

    def __init__(self, topic_id: str) -> None:
        self.topic_id = UUID(topic_id)


def elsewhere(lease: Lease, answers: asyncio.Event) -> FollowerTruncation:
    """Of a role whose bucket answers when the scene says so."""

    async def state_at(*_: object) -> Any:
        await answers.wait()
        return LeaderEpochs(), (), 0

    follower: Any = SimpleNamespace(cut=lambda *_: None, began_at=lambda *_: None, began_with=lambda *_: None)
    cold: Any = SimpleNamespace(state_at=state_at)
    copied: Any = SimpleNamespace(bytes_skipped=0, begun=0)
    return FollowerTruncation(lease, follower, cold, FastClock(), copied, asyncio.Event())


@pytest.mark.parametrize("how", ["cut", "begin at", "begin before"])
async def test_a_copy_that_was_to_go_on_elsewhere_does_not_once_its_role_is_over(how: str) -> None:
    """Before it began, or while the bucket was asked."""
    scene, answers = Scene(), asyncio.Event()
    lease = await scene.lent()
    of = elsewhere(lease, answers)
    start: Any = SimpleNamespace(offset=7, is_bare=False)
    header: Any = SimpleNamespace(base_offset=7)
    work = {
        "cut": lambda: of.cut(5),
        "begin at": lambda: of.begin_at(start),
        "begin before": lambda: of.begin_before(b"", [header], 0),
    }[how]()
    task = asyncio.ensure_future(work)
    if how != "cut":
        await asyncio.sleep(1.0)
        assert not task.done(), "the bucket is asked"
    lease.end()
    answers.set()
    with pytest.raises(LeaseOver):
        await task
    assert scene.late == [] and lease.log.log_end_offset == 10
    await scene.logs.close(lease.opened, clean=True)


async def test_a_start_that_was_committed_as_its_role_ended_is_the_next_role_s_to_follow() -> None:
    scene = Scene()
    lease = await scene.lent()

    async def commit(*_: object, **__: object) -> Any:
        lease.end()
        return SimpleNamespace(log_start_offset=5)

    of: Any = SimpleNamespace(commit=commit, lease=lease, log=lease.log)
    with pytest.raises(LeaseOver):
        await TieredPartition.move_start(of, lambda manifest: manifest)
    assert scene.late == [] and lease.log.log_start_offset == 0
    await scene.logs.close(lease.opened, clean=True)


async def test_a_log_behind_the_bucket_is_not_reported_once_its_role_is_over() -> None:
    """Its topic may be deleted: the report stayed in every heartbeat of the process."""
    scene, reported = Scene(), list[str]()
    lease = await scene.lent()
    directory: Any = lease.log.directory
    behind: Any = SimpleNamespace(bucket_end_offset=11)
    of: Any = SimpleNamespace(
        lease=lease, log=lease.log, blocks={}, is_alone=False, name="log-0", on_behind=reported.append
    )
    stat = directory.stat

    def ends_meanwhile(name: str) -> Any:
        lease.end()
        return stat(name)

    directory.stat = ends_meanwhile
    with pytest.raises(LeaseOver):
        await TieredPartition._reconcile(of, behind)
    assert reported == [] and of.blocks == {} and scene.late == []
    await scene.logs.close(lease.opened, clean=True)


def test_what_another_topic_of_the_name_has_in_the_tables_stays() -> None:
    """The tables are by name: what ends late is of the topic before."""
    metadata: Any = None
    registry = Registry(metadata, 1)
    before_id, id_ = id_of(1), id_of(2)
    before: Any = Looked(before_id)
    now: Any = Looked(id_)
    topic_before: Any = SimpleNamespace(name="log", topic_id=before_id, partitions=1)
    key = "log", 0

    tables: tuple[dict[Any, Any], ...] = (registry.partitions, registry.starting, registry.resigned, registry.followed)
    for table in tables:
        table[key] = now
    registry.forget(before)
    registry.unfollow(before)
    registry.withdraw(topic_before)
    assert all(table[key] is now for table in tables)
    registry.resign(before)
    assert registry.partitions[key] is now and registry.starting[key] is now
