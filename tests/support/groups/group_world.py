"""A group coordinator on a log in memory, in virtual time: for durability, restarts and limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.coordinator import GroupCoordinator
from broker.groups.machine.events import AdmitCommit, Join, JoinReply, Leaver, Protocol, Sync, SyncReply
from broker.groups.offset_requests import CommitRow
from broker.groups.offsets import Wanted, any_topic
from broker.groups.records import Parsed, parse
from broker.internal_topics.batches import batches_in
from broker.internal_topics.led_shard import LedShard, Snapshot
from broker.metadata.image import TopicFacts
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.collector import without_collector
from tests.support.fast_loop import FastClock, run_fast
from tests.support.groups.memory_offsets_log import MemoryOffsetsLog

ANYONE = AdmitCommit(None)
"""A consumer outside group management."""


async def commit_rows(
    groups: GroupCoordinator,
    group_id: str,
    rows: Sequence[CommitRow],
    member: AdmitCommit = ANYONE,
    *,
    retention_ms: int = -1,
    unknown_group: ErrorCode = ErrorCode.ILLEGAL_GENERATION,
    until_s: float | None = None,
) -> list[ErrorCode]:
    """One error per row, in order; rows with NONE are durable."""
    until_s = groups.deadline() if until_s is None else until_s
    begun = groups.offsets.begin_commit(
        group_id, member, rows, retention_ms=retention_ms, unknown_group=unknown_group, until_s=until_s
    )
    return await begun.outcome(until_s)


class GroupWorld:
    """One coordinator at a time, on one log; `restart` is a kill: nothing but the log survives."""

    def __init__(self, log: MemoryOffsetsLog | None = None, **config: Any) -> None:
        self.log = log or MemoryOffsetsLog(1)
        self.config = GroupConfig(**{"initial_rebalance_delay_ms": 0, **config})
        self.rng = SeededRng(1)
        self.failures: list[BaseException] = []
        self.topics: dict[str, TopicFacts] | None = None  # None: whatever is named exists
        self.leaving: set[str] = set()
        self.is_complete = True
        self.epoch = 0
        self.tasks: Tasks
        self.groups: GroupCoordinator

    def move_leadership(self) -> None:
        """Resign every partition, and lead it in the next epoch."""
        self.epoch += 1
        for index in range(self.log.partitions):
            self.groups.log.resign(index)
            self.groups.log.lead(self.log.shard_log(index, self.epoch))

    def start(self) -> None:
        self.tasks = Tasks(lambda _, failure: self.failures.append(failure))
        self.groups = GroupCoordinator(
            self.log,
            FastClock(),
            self.rng,
            self.config,
            self.tasks,
            topics=any_topic if self.topics is None else self.topics.get,
            names=lambda _: None,
            in_session=lambda: True,
            leaving=lambda: self.leaving,
            is_complete=lambda: self.is_complete,
        )
        self.epoch += 1
        for index in range(self.log.partitions):
            if not self.log.is_offline(index):
                self.groups.log.lead(self.log.shard_log(index, self.epoch))
        self.groups.start()

    async def ready(self) -> None:
        self.start()
        await self.groups.log.wait_loaded()

    def shard(self, index: int = 0) -> LedShard[Any]:
        """What the internal log holds of a partition, when it is whole."""
        (found,) = (shard for shard in self.groups.log.shards() if shard.index == index)
        return found

    async def snapshot(self, index: int = 0) -> Snapshot:
        return await self.shard(index).snapshot()

    async def kill(self) -> None:
        await self.tasks.close()

    async def restart(self) -> None:
        await self.kill()
        await self.ready()

    # ---- requests --------------------------------------------------------------------------------------------------

    def ask(self, what: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(what)

    async def join(self, group: str, member_id: str = "", **more: Any) -> JoinReply:
        fields: dict[str, Any] = {
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": (Protocol("range", b"?"),),
            **more,
        }
        return await self.groups.members.join(group, Join(token=None, new_member_id="", member_id=member_id, **fields))

    async def sync(
        self, group: str, member_id: str, generation: int, given: dict[str, bytes] | None = None
    ) -> SyncReply:
        assignments = tuple((given or {}).items())
        return await self.groups.members.sync(group, Sync(None, member_id, generation, assignments=assignments))

    async def member(self, group: str, **more: Any) -> tuple[str, int]:
        """A stable group of one; its member id and generation."""
        reply = await self.join(group, **more)
        assert (await self.sync(group, reply.member_id, reply.generation, {reply.member_id: b"all"})).error == 0
        return reply.member_id, reply.generation

    async def beat(self, group: str, member_id: str, generation: int) -> ErrorCode:
        return await self.groups.members.heartbeat(group, member_id, generation, None)

    async def leave(self, group: str, member_id: str) -> ErrorCode:
        reply = await self.groups.members.leave(group, [Leaver(member_id)])
        return reply.error or reply.members[0].error  # as a whole where another broker coordinates the group

    async def commit(
        self, group: str, offset: int, member_id: str = "", generation: int = -1, *, topic: str = "t", **more: Any
    ) -> ErrorCode:
        row = CommitRow(topic, more.pop("partition", 0), offset, -1, more.pop("metadata", ""))
        (code,) = await commit_rows(self.groups, group, [row], AdmitCommit(None, member_id, generation), **more)
        return code

    async def fetch(self, group: str, topic: str = "t", partition: int = 0) -> int | ErrorCode:
        """The committed offset, or the error."""
        error, rows = await self.groups.offsets.fetch(group, [Wanted(topic, [partition])])
        return error if error is not ErrorCode.NONE else rows[0].partitions[0][1].offset


def in_world(test: Callable[[GroupWorld], Awaitable[None]]) -> Callable[[], None]:
    """Run a test in virtual time on a world that is ready; nothing may have failed behind its back."""

    def run() -> None:
        async def whole() -> None:
            world = GroupWorld()
            await world.ready()
            await test(world)
            await world.kill()
            assert not world.failures

        run_fast(whole())

    run.__doc__, run.__name__ = test.__doc__, getattr(test, "__name__", "test")
    return run


async def longest_hold(work: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
    """The longest turn of the loop while `work` runs, as a part of all CPU time of the loop's thread: 1 is work in one
    piece. (Seconds would measure the machine.) Without Python's collector, whose passes depend on everything else that
    lives in this process."""
    task = asyncio.get_running_loop().create_task(work)
    longest = 0.0
    with without_collector():
        began = time.thread_time()
        while not task.done():
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)
    return longest / (time.thread_time() - began), task.result()


def parse_batches(batches: bytes) -> Iterator[tuple[int, tuple[Parsed, ...]]]:
    """For each batch: the offset after it, and what its records say."""
    for next_offset, records, *_ in batches_in(batches):
        parsed = (parse(record.key, record.value) for record in records)
        yield next_offset, tuple(record for record in parsed if record is not None)
