"""aiokafka's own tests of transactions, told again: its package holds none of its tests.

The scenarios are those of `tests/test_transactional_producer.py` and `tests/test_transactional_consumer.py` of aiokafka
0.14 (Apache License 2.0), each under its name there, in the same order. What differs: a topic and a transactional id of
its own for each, and waiting for what the client has seen where they sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation, OutOfOrderSequenceNumber, ProducerFenced
from aiokafka.producer.transaction_manager import TransactionState

from tests.support.clients.stock_clients import create_topic
from tests.support.processes.broker_process import running_broker
from tests.support.waiting import until

WAIT_S = 30.0
QUIET_MS = 500
"""So long nothing comes where nothing may come."""


@dataclass
class Scene:
    """One topic of two partitions on a broker of ours; clients are stopped at the end."""

    bootstrap: str
    topic: str
    stack: contextlib.AsyncExitStack

    async def producer(self, transactional_id: str | None = "sobaka", **more: Any) -> AIOKafkaProducer:
        named = None if transactional_id is None else f"{self.topic}-{transactional_id}"
        made = AIOKafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=named, **more)
        await made.start()
        self.stack.push_async_callback(made.stop)
        return made

    async def consumer(self, **more: Any) -> AIOKafkaConsumer:
        made = AIOKafkaConsumer(
            self.topic, bootstrap_servers=self.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=100, **more
        )
        await made.start()
        self.stack.push_async_callback(made.stop)
        return made

    @property
    def first(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"num.partitions": 2, "group.initial.rebalance.delay.ms": 0}
    with running_broker(tmp_path_factory.mktemp("aiokafka") / "data", settings=settings) as broker:
        yield broker.kafka


def scenario(play: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[str], None]:
    """`play` as a test, in real time: the broker is a process."""

    async def run(bootstrap: str) -> None:
        async with asyncio.timeout(90), contextlib.AsyncExitStack() as stack:
            await play(Scene(bootstrap, play.__name__.removeprefix("test_"), stack))

    def test(bootstrap: str) -> None:
        create_topic(bootstrap, play.__name__.removeprefix("test_"), 2)
        asyncio.run(run(bootstrap))

    test.__name__, test.__doc__ = play.__name__, play.__doc__
    return test


async def nothing_comes(consumer: AIOKafkaConsumer) -> None:
    """Its position may move: over markers, and over what was aborted."""
    assert await consumer.getmany(timeout_ms=QUIET_MS) == {}


async def cancelled(coroutine: Awaitable[None]) -> None:
    """It began, and its caller went away."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


# ── test_transactional_producer.py ───────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_producer_transactional_simple(scene: Scene) -> None:
    producer = await scene.producer()
    async with producer.transaction():
        meta = await producer.send_and_wait(scene.topic, b"hello, Kafka!")
    message = await (await scene.consumer()).getone()
    assert (message.offset, message.timestamp) == (meta.offset, meta.timestamp)
    assert (message.key, message.value) == (None, b"hello, Kafka!")


@scenario
async def test_producer_transactional_empty_txn(scene: Scene) -> None:
    producer = await scene.producer()
    await producer.begin_transaction()
    await producer.commit_transaction()
    await producer.begin_transaction()
    await producer.abort_transaction()
    ends = await (await scene.consumer()).end_offsets([scene.first])
    assert ends == {scene.first: 0}, "a marker was written for nothing"


@scenario
async def test_producer_transactional_fences_off_previous(scene: Scene) -> None:
    first = await scene.producer()
    second = await scene.producer()
    async with second.transaction():
        await second.send_and_wait(scene.topic, b"hello, Kafka! 2")
    with pytest.raises(ProducerFenced):
        async with first.transaction():
            await first.send_and_wait(scene.topic, b"hello, Kafka!")


@scenario
async def test_producer_transactional_restart_reaquire_pid(scene: Scene) -> None:
    first = await scene.producer()
    producer_id = first._txn_manager.producer_id
    await first.stop()
    second = await scene.producer()
    assert second._txn_manager.producer_id == producer_id


async def lost_between(scene: Scene, producer: AIOKafkaProducer) -> None:
    """A sequence number is left out, as if a message had not arrived."""
    with pytest.raises(OutOfOrderSequenceNumber):
        async with producer.transaction():
            await producer.send_and_wait(scene.topic, b"msg1", partition=0)
            producer._txn_manager.increment_sequence_number(scene.first, 1)
            await producer.send_and_wait(scene.topic, b"msg2", partition=0)


@scenario
async def test_producer_transactional_raise_out_of_sequence(scene: Scene) -> None:
    await lost_between(scene, await scene.producer())


@scenario
async def test_producer_transactional_aborting_previous_failure(scene: Scene) -> None:
    """And what was sent before is not shown."""
    await lost_between(scene, await scene.producer())
    successor = await scene.producer()
    async with successor.transaction():
        await successor.send_and_wait(scene.topic, b"msg3", partition=0)
    message = await (await scene.consumer(isolation_level="read_committed")).getone()
    assert message.value == b"msg3"


async def transform(scene: Scene, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, *, fails: bool) -> None:
    """Read, transform, write, commit the positions in the same transaction; until nothing more is there."""
    while batch := await consumer.getmany(timeout_ms=2000, max_records=20):
        async with producer.transaction():
            offsets = {}
            for partition, messages in batch.items():
                for message in messages:
                    await producer.send(f"{scene.topic}-out", b"OUT-" + message.value, partition=partition.partition)
                offsets[partition] = messages[-1].offset + 1
            await producer.send_offsets_to_transaction(offsets, f"{scene.topic}-group")
            if fails:
                raise ValueError


async def reader_and_writer(scene: Scene) -> tuple[AIOKafkaConsumer, AIOKafkaProducer]:
    """A hundred records in either partition, a group at 0, and who transforms them."""
    plain = await scene.producer(None)
    for number in range(200):
        await plain.send(scene.topic, str(number).encode(), partition=number // 100)
    await plain.flush()
    create_topic(scene.bootstrap, f"{scene.topic}-out", 2)
    consumer = await scene.consumer(enable_auto_commit=False, group_id=f"{scene.topic}-group")
    assert len(consumer.assignment()) == 2
    for partition in consumer.assignment():
        await consumer.commit({partition: 0})
        assert await consumer.committed(partition) == 0
    return consumer, await scene.producer()


@scenario
async def test_producer_transactional_send_offsets_to_transaction(scene: Scene) -> None:
    consumer, producer = await reader_and_writer(scene)
    await transform(scene, consumer, producer, fails=False)
    for partition in consumer.assignment():
        assert await consumer.committed(partition) == 100


@scenario
async def test_producer_transactional_send_offsets_and_abort(scene: Scene) -> None:
    consumer, producer = await reader_and_writer(scene)
    with pytest.raises(ValueError):
        await transform(scene, consumer, producer, fails=True)
    for partition in consumer.assignment():
        assert await consumer.committed(partition) == 0
    await consumer.seek_to_committed()
    await transform(scene, consumer, producer, fails=False)
    for partition in consumer.assignment():
        assert await consumer.committed(partition) == 100


@scenario
async def test_producer_transactional_send_offsets_error_checks(scene: Scene) -> None:
    producer = await scene.producer()
    with pytest.raises(IllegalOperation):
        await producer.send_offsets_to_transaction({}, group_id=None)
    async with producer.transaction():
        with pytest.raises(ValueError):
            await producer.send_offsets_to_transaction({}, group_id=None)


@scenario
async def test_producer_transactional_flush_before_commit(scene: Scene) -> None:
    producer = await scene.producer()
    await producer.begin_transaction()
    sent = [await producer.send(scene.topic, b"Super msg") for _ in range(10)]
    await producer.commit_transaction()
    assert all(future.done() for future in sent)


@scenario
async def test_producer_transactional_flush_2_batches_before_commit(scene: Scene) -> None:
    producer = await scene.producer()
    await producer.begin_transaction()
    sent = []
    for value in (b"1", b"2"):
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=value)
        batch.close()
        sent.append(await producer.send_batch(batch, scene.topic, partition=0))
    await producer.commit_transaction()
    assert all(future.done() for future in sent)


@scenario
async def test_producer_transactional_cancel_txn_methods(scene: Scene) -> None:
    producer = await scene.producer()
    manager = producer._txn_manager
    assert manager.state == TransactionState.READY
    await cancelled(producer.begin_transaction())
    assert manager.state == TransactionState.READY
    for end, ending in (
        (producer.commit_transaction, TransactionState.COMMITTING_TRANSACTION),
        (producer.abort_transaction, TransactionState.ABORTING_TRANSACTION),
    ):
        await producer.begin_transaction()
        assert manager.state == TransactionState.IN_TRANSACTION
        await cancelled(end())
        assert manager.state == ending
        await until(lambda: manager.state == TransactionState.READY, WAIT_S)


@scenario
async def test_producer_require_transactional_id(scene: Scene) -> None:
    producer = await scene.producer(None)
    with pytest.raises(IllegalOperation):
        await producer.begin_transaction()
    with pytest.raises(IllegalOperation):
        await producer.commit_transaction()
    with pytest.raises(IllegalOperation):
        await producer.abort_transaction()
    with pytest.raises(IllegalOperation):
        async with producer.transaction():
            pass
    with pytest.raises(IllegalOperation):
        await producer.send_offsets_to_transaction({}, group_id="123")


async def sent_only_within(producer: AIOKafkaProducer, scene: Scene, send: Callable[[], Awaitable[Any]]) -> None:
    """`send` is refused before a transaction, while it commits, and after."""
    with pytest.raises(IllegalOperation):
        await send()
    await producer.begin_transaction()
    await producer.send(scene.topic, value=b"1", partition=0)
    commit = asyncio.ensure_future(producer.commit_transaction())
    await asyncio.sleep(0)
    assert not commit.done()
    with pytest.raises(IllegalOperation):
        await send()
    await commit
    with pytest.raises(IllegalOperation):
        await send()


@scenario
async def test_producer_transactional_send_message_outside_txn(scene: Scene) -> None:
    producer = await scene.producer()
    await sent_only_within(producer, scene, lambda: producer.send(scene.topic, value=b"2", partition=0))


@scenario
async def test_producer_transactional_send_batch_outside_txn(scene: Scene) -> None:
    producer = await scene.producer()
    batch = producer.create_batch()
    batch.append(timestamp=None, key=None, value=b"2")
    batch.close()
    await sent_only_within(producer, scene, lambda: producer.send_batch(batch, scene.topic, partition=0))


# ── test_transactional_consumer.py ───────────────────────────────────────────────────────────────────────────────────


async def an_open_transaction_blocks(scene: Scene, *, is_commit: bool) -> None:
    """A record in a transaction, a plain one behind it: none is shown until it ends, then both in their order, or the
    plain one alone."""
    producer, plain = await scene.producer(), await scene.producer(None)
    consumer = await scene.consumer(isolation_level="read_committed")
    await producer.begin_transaction()
    sent = [await producer.send_and_wait(scene.topic, b"Hello from transaction", partition=0)]
    sent.append(await plain.send_and_wait(scene.topic, b"Hello from non-transaction", partition=0))
    coming = asyncio.ensure_future(consumer.getone())
    await until(lambda: consumer.highwater(scene.first) == 2, WAIT_S)
    assert consumer.last_stable_offset(scene.first) == 0
    assert not coming.done()
    await (producer.commit_transaction() if is_commit else producer.abort_transaction())
    seen = [await coming]
    if is_commit:
        seen.append(await consumer.getone())
    expected = sent if is_commit else sent[1:]
    assert [(of.offset, of.timestamp) for of in seen] == [(of.offset, of.timestamp) for of in expected]
    assert seen[-1].value == b"Hello from non-transaction"
    await nothing_comes(consumer)
    assert consumer.last_stable_offset(scene.first) == consumer.highwater(scene.first) == 3


@scenario
async def test_consumer_transactional_commit(scene: Scene) -> None:
    await an_open_transaction_blocks(scene, is_commit=True)


@scenario
async def test_consumer_transactional_abort(scene: Scene) -> None:
    await an_open_transaction_blocks(scene, is_commit=False)


async def begins_at_a_marker(scene: Scene, isolation_level: str) -> None:
    """A fetch that finds a marker and nothing else moves the position on."""
    producer = await scene.producer()
    async with producer.transaction():
        meta = await producer.send_and_wait(scene.topic, b"Hello from transaction", partition=0)
    consumer = await scene.consumer(isolation_level=isolation_level, fetch_max_bytes=10)
    consumer.seek(scene.first, meta.offset + 1)
    await nothing_comes(consumer)
    assert await consumer.position(scene.first) == meta.offset + 2
    async with producer.transaction():
        second = await producer.send_and_wait(scene.topic, b"Hello from transaction 2", partition=0)
    message = await consumer.getone()
    assert (message.offset, message.timestamp) == (second.offset, second.timestamp)
    assert message.value == b"Hello from transaction 2"


@scenario
async def test_consumer_transactional_read_only_control_record(scene: Scene) -> None:
    await begins_at_a_marker(scene, "read_committed")


@scenario
async def test_consumer_simple_read_only_control_record(scene: Scene) -> None:
    await begins_at_a_marker(scene, "read_uncommitted")


@scenario
async def test_consumer_several_transactions(scene: Scene) -> None:
    producer = await scene.producer()
    committed = []
    for number in range(10):
        await producer.begin_transaction()
        await producer.send(scene.topic, b"Hello %d" % number, partition=0)
        if number % 3 == 0:
            await producer.commit_transaction()
            committed.append(b"Hello %d" % number)
        else:
            await producer.abort_transaction()
    consumer = await scene.consumer(isolation_level="read_committed")
    assert [(await consumer.getone()).value for _ in committed] == committed
    await nothing_comes(consumer)
