"""What a request costs the broker that answers it: how long it holds the loop, how much memory it takes.

Owns the meter and the broker it is held to. Always true: a step is one callback of the loop; what a worker does is not
the loop's; counts and bytes are the same on every machine, however busy. Must not know what the requests ask.
"""

from __future__ import annotations

import asyncio
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from broker.net.dispatch import Answer, CloseConnection, Part, Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from logformat.records import Record, encode_batch
from seams.files.disk import FileRange
from tests.sim.world.clock import EPOCH_MS
from tests.sim.world.workers import SimWorkers
from tests.support.brokers.broker_kit import Life, Place, parts_of, produce_request
from tests.support.wire.hostile_frames import GROUPS, TOPICS, WIDE, WIDE_PARTITIONS, FrameMaker, Recipe

CALLS_MAX: Final = 300_000
"""Calls in one step, Python's and C's. Each costs 0.1 to 0.2 µs at least: more cannot take less than 50 ms."""
HOLD_S_MAX: Final = 0.050
BYTES_MAX: Final = 64 << 20
_METADATA: Final = "m" * 200


@dataclass(slots=True)
class Cost:
    """Of one request. `calls` and `hold_s`: of its dearest step; `bytes`: peak above what was there before."""

    calls: int = 0
    hold_s: float = 0.0
    bytes: int = 0
    answer_bytes: int = 0


class Crowd:
    """A broker with one wide topic, some more, and groups with positions; made again when a request took some away."""

    def __init__(self, life: Life, maker: FrameMaker) -> None:
        self.life = life
        self.maker = maker

    @classmethod
    async def make(cls) -> Crowd:
        life = await Place("auto.create.topics.enable=false", "group.initial.rebalance.delay.ms=0").start()
        topic_id = await life.create(WIDE, WIDE_PARTITIONS, remote_storage_enable="false")
        for name in TOPICS[1:]:
            await life.create(name, 1, remote_storage_enable="false")
        batch = encode_batch([Record(at, EPOCH_MS + at, None, b"v" * 100) for at in range(100)])
        for _ in range(3):
            await life.call(ApiKey.PRODUCE, produce_request(WIDE, batch))
        for group in GROUPS:
            await life.context.groups.find(group)
            await _commit(life, group)
        return cls(life, FrameMaker(topic_id))

    def is_whole(self) -> bool:
        """Whether what the recipes name is still there."""
        context = self.life.context
        return len(context.registry.topics) == len(TOPICS) + 1 and context.groups.group_count >= len(GROUPS)

    async def cost(self, recipe: Recipe, *, count_calls: bool = True, memory: bool = True, clock: bool = False) -> Cost:
        """Answer the recipe's frame; measured is what was asked for (one slows the others down)."""
        frame = self.maker.frame(recipe)
        return await cost_of(self.life, frame, count_calls=count_calls, memory=memory, clock=clock)


async def _commit(life: Life, group: str) -> None:
    rows = [OffsetCommitRequestPartition(index, 5, -1, _METADATA) for index in range(WIDE_PARTITIONS)]
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=WIDE, partitions=rows)],
    )
    for _ in range(100):
        answer = await life.call(ApiKey.OFFSET_COMMIT, request)
        if answer.topics[0].partitions[0].error_code == 0:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(answer)


async def cost_of(
    life: Life, frame: memoryview, *, count_calls: bool = True, memory: bool = True, clock: bool = False
) -> Cost:
    """What it costs `life` to answer `frame`, which comes from a peer of its own."""
    cost = Cost()
    peer = Peer(99, "127.0.0.1:50001", "PLAINTEXT")
    loop = asyncio.get_running_loop()
    begun: asyncio.Future[Answer] = loop.create_future()

    def begin() -> None:
        try:
            begun.set_result(life.dispatch_frame(peer, frame))
        except CloseConnection:
            begun.set_result(None)

    with _metered(cost, count_calls=count_calls, clock=clock):
        if memory:
            tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0] if memory else 0
        loop.call_soon(begin)
        try:
            answer = await begun
            parts = await parts_of(answer)
        except CloseConnection:
            parts = None
        finally:
            if memory:
                cost.bytes = tracemalloc.get_traced_memory()[1] - before
                tracemalloc.stop()
    cost.answer_bytes = sum(map(_size, parts or ()))
    return cost


def _size(part: Part) -> int:
    return 0 if isinstance(part, FileRange) else len(part)  # a file's range is sent from the file


@contextmanager
def _metered(cost: Cost, *, count_calls: bool, clock: bool) -> Iterator[None]:
    run = asyncio.Handle._run  # type: ignore[attr-defined]
    calls = 0
    is_over = False  # the step that ends the measuring goes on with what is not the request's

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1

    def metered(handle: asyncio.Handle) -> None:
        nonlocal calls
        if _is_a_workers(handle._callback):  # type: ignore[attr-defined]
            run(handle)
            return
        calls = 0
        began = time.thread_time()
        if count_calls:
            sys.setprofile(profile)
        try:
            run(handle)
        finally:
            if count_calls:
                sys.setprofile(None)
        if is_over:
            return
        cost.calls = max(cost.calls, calls)
        if clock:
            cost.hold_s = max(cost.hold_s, time.thread_time() - began)

    asyncio.Handle._run = metered  # type: ignore[attr-defined]
    try:
        yield
    finally:
        is_over = True
        if count_calls:
            sys.setprofile(None)
        asyncio.Handle._run = run  # type: ignore[attr-defined]


def _is_a_workers(callback: Callable[..., Any] | None) -> bool:
    function = callback.func if isinstance(callback, partial) else callback
    return getattr(function, "__func__", None) is SimWorkers._work
