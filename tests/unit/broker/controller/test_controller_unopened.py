"""A topic that cannot be opened waits for its disk or its bucket alone: every other change goes on."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    InitProducerIdRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from coldstore.object_store import AccessRefused
from hotstore.flush.flusher import Flusher
from logformat.errors import Retryable
from seams.loop.workers import Lane
from tests.support.brokers.broker_kit import Life, Place
from tests.support.store.faulty_store import FaultPlan

ANSWER_S = 15.0
"""Within it every request here is answered, whatever one topic waits for."""


def full_disk(place: Place) -> None:
    """No file and no directory can be made any more."""
    place.disk.inject("mkdir", errno.ENOSPC, times=10**9)


def unwritable_roots(place: Place) -> None:
    """The bucket's policy forgot `topics/`."""
    put_root = place.memory.put_root

    async def refused(key: str, data: bytes, if_match: str | None) -> str:
        if key.startswith("topics/"):
            raise AccessRefused(f"PUT {key}: 403 AccessDenied")
        return await put_root(key, data, if_match)

    place.memory.put_root = refused  # type: ignore[method-assign]


async def create(life: Life, name: str, timeout_ms: int = 1000) -> int:
    wanted = CreateTopicsRequestTopic(name=name, num_partitions=2, replication_factor=1)
    async with asyncio.timeout(ANSWER_S):
        answer = await life.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[wanted], timeout_ms=timeout_ms))
    return int(answer.topics[0].error_code)


async def delete(life: Life, name: str) -> int:
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name=name)], timeout_ms=10_000)
    async with asyncio.timeout(ANSWER_S):
        return int((await life.call(ApiKey.DELETE_TOPICS, request)).responses[0].error_code)


@pytest.mark.parametrize("trouble", [full_disk, unwritable_roots])
async def test_a_topic_that_cannot_open_holds_up_nobody(trouble: Callable[[Place], None]) -> None:
    """DeleteTopics, InitProducerId, and Metadata that makes a topic never answered again: the creation waited for the
    disk with the controller's lock in its hand."""
    place = Place()
    life = await place.start()
    await life.create("before")
    trouble(place)
    assert await create(life, "stuck") == ErrorCode.REQUEST_TIMED_OUT
    assert await create(life, "stuck") == ErrorCode.TOPIC_ALREADY_EXISTS
    async with asyncio.timeout(ANSWER_S):
        producer = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        assert (await life.call(ApiKey.INIT_PRODUCER_ID, producer)).error_code == ErrorCode.NONE
    wanted = [MetadataRequestTopic(name=name) for name in ("stuck", "missing", "missing-2")]
    async with asyncio.timeout(ANSWER_S):
        answer = await life.call(ApiKey.METADATA, MetadataRequest(topics=wanted, allow_auto_topic_creation=True))
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert codes["stuck"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes["missing"] in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert await delete(life, "before") == ErrorCode.NONE
    assert await delete(life, "stuck") == ErrorCode.NONE
    assert sorted(topic.name for topic in life.context.metadata.image.topics.values()) == ["missing"]
    await life.crash()


async def test_what_was_decided_about_a_topic_while_it_could_not_open_is_true_when_it_does() -> None:
    """Its configs and its number of partitions may change meanwhile: nobody holds a lock any more."""
    place = Place()
    life = await place.start()
    full_disk(place)
    assert await create(life, "log") == ErrorCode.REQUEST_TIMED_OUT
    controller = life.context.controller
    await controller.set_configs("log", lambda topic: {"retention.ms": "2000"})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await controller.add_partitions("log", 3)
    await controller.set_configs("log", lambda topic: {"retention.ms": "3000"})
    assert not life.context.registry.partitions
    place.disk.heal()
    async with asyncio.timeout(30.0):
        while len(life.context.registry.partitions) < 3:
            await asyncio.sleep(0.1)
    for partition in life.context.registry.partitions.values():
        assert partition.config.retention_ms == 3000
        assert partition.tier.partition_state.config.retention_ms == 3000
    assert life.context.registry.topics["log"].partitions == 3
    assert (await life.produce("log", b"x", index=2)).error_code == ErrorCode.NONE
    await life.stop()


async def test_a_deletion_is_answered_while_its_logs_wait_for_their_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing them waits for a sync that hangs. The name is free; a new topic of it waits for the old one's log to be
    closed, because a log that is open may still write below the directory's path (C9)."""
    close = Flusher.close
    life = await Place().start()
    await life.create("log")
    await life.produce("log", b"old")
    synced = asyncio.Event()

    async def hangs(self: Flusher) -> None:
        await synced.wait()
        await close(self)

    monkeypatch.setattr(Flusher, "close", hangs)
    assert await delete(life, "log") == ErrorCode.NONE
    assert await create(life, "log") == ErrorCode.REQUEST_TIMED_OUT
    await life.create("other")
    await asyncio.sleep(60)
    assert ("log", 0) not in life.context.registry.partitions
    synced.set()
    async with asyncio.timeout(60.0):
        while ("log", 0) not in life.context.registry.partitions:
            await asyncio.sleep(0.1)
    assert await life.read_all("log") == []
    assert (await life.produce("log", b"new")).base_offset == 0
    await life.stop()


async def test_a_topic_deleted_before_it_was_open_ends_the_wait_of_its_creator() -> None:
    """With an answer, not with a cancelled request."""
    place = Place()
    life = await place.start()
    full_disk(place)
    creating = asyncio.get_running_loop().create_task(create(life, "log", timeout_ms=60_000))
    async with asyncio.timeout(ANSWER_S):
        while life.context.metadata.image.topic_named("log") is None:
            await asyncio.sleep(0.1)
    assert await delete(life, "log") == ErrorCode.NONE
    assert await creating == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await life.crash()


async def test_who_waits_too_long_for_earlier_changes_is_told_to_come_back() -> None:
    """A bucket that hangs lets each change wait for its time-out; those behind do not wait for all of theirs."""
    place = Place()
    life = await place.start()
    place.store.plan = FaultPlan(latency_s=(3600.0, 3600.0))
    controller = life.context.controller
    names = [f"log-{at}" for at in range(20)]
    began_s = asyncio.get_running_loop().time()
    ended = await asyncio.gather(
        *(controller.create_topic(name, 1, {}) for name in names),
        return_exceptions=True,
    )
    assert all(isinstance(outcome, Retryable) for outcome in ended), ended
    assert asyncio.get_running_loop().time() - began_s < 240.0
    await life.crash()


async def test_a_topic_deleted_while_its_log_is_made_leaves_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its opening was cancelled, the thread that made the directory went on, and made it after the removal had looked:
    it stayed for ever, and a slow one would have written into the directory of a new topic of the name."""
    place = Place()
    life = await place.start()
    loop, run, began = asyncio.get_running_loop(), life.workers.run, asyncio.Event()

    async def on_a_slow_disk(function: Callable[..., Any], *args: Any, lane: Lane = Lane.FILES) -> Any:
        if function.__name__ != "_recover_or_make":
            return await run(function, *args, lane=lane)
        ended = loop.create_future()

        def end() -> None:  # as a thread does, whether anybody waits or not
            made = function(*args)
            if not ended.done():
                ended.set_result(made)

        loop.call_later(5.0, end)
        began.set()
        return await ended

    monkeypatch.setattr(life.workers, "run", on_a_slow_disk)
    controller = life.context.controller
    creating = asyncio.ensure_future(controller.create_topic("log", 1, {}))
    await began.wait()
    await controller.delete_topic("log")
    await asyncio.gather(creating, return_exceptions=True)
    async with asyncio.timeout(60.0):
        while life.context.metadata.image.deleted:
            await asyncio.sleep(0.1)
    await asyncio.sleep(10.0)
    assert "log-0" not in place.disk.list_dir("/data/a")
    await life.stop()
