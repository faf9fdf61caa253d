"""What a client knows through a session is what a full fetch would tell it, whatever happened in between.

Random histories on a whole broker in virtual time: records, deleted records, topics that go and come back, positions
taken or not, partitions forgotten and asked again, long polls, answers that were lost on their way.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.error_codes import ErrorCode
from broker.net.dispatch import Later
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
)
from logformat.record_batch import walk
from tests.support.brokers.broker_kit import Life, Place, decoded
from tests.support.fast_loop import HOUR_S, run_fast

TOPICS = ("s", "t", "u")  # the last one is not there at first
PARTITIONS = [(topic, index) for topic in TOPICS for index in range(2)]
Place_ = tuple[str, int]

place = st.sampled_from(PARTITIONS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), place),
        st.tuples(st.just("produce"), place),
        st.tuples(st.just("cut"), place),
        st.tuples(st.just("seek"), place, st.integers(-1, 3)),
        st.tuples(st.just("toggle"), place),
        st.tuples(st.just("drop"), st.sampled_from(TOPICS)),
        st.tuples(st.just("fetch"), st.booleans()),
        st.tuples(st.just("fetch"), st.booleans()),
        st.tuples(st.just("rest")),
        st.tuples(st.just("rest")),
        st.tuples(st.just("narrow")),
        st.tuples(st.just("lose"), st.booleans()),
        st.tuples(st.just("poll"), place),
    ),
    min_size=3,
    max_size=30,
)


@dataclass
class Reader:
    """A client: where it is in each partition it wants, what it has told the session, what it was told."""

    life: Life
    version: int
    positions: dict[Place_, int]
    session: int = 0
    epoch: int = 0
    sent: dict[Place_, int] = field(default_factory=dict)
    known: dict[Place_, tuple[int, int, int]] = field(default_factory=dict)
    data: dict[Place_, list[int]] = field(default_factory=dict)

    def _topic(self, kind: type, name: str, partitions: list[Any]) -> Any:
        if self.version < 13:
            return kind(topic=name, partitions=partitions)
        return kind(topic_id=self.ids[name], partitions=partitions)

    @property
    def ids(self) -> dict[str, Any]:
        return {topic.name: UUID(topic.topic_id) for topic in self.life.context.metadata.image.topics.values()}

    def request(self, wanted: dict[Place_, int], **more: Any) -> FetchRequest:
        topics = [
            self._topic(
                FetchRequestTopic,
                topic,
                [FetchRequestPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)],
            )
            for (topic, index), offset in wanted.items()
        ]
        return FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 30, "topics": topics, **more})

    def next_request(self, **more: Any) -> FetchRequest:
        if self.epoch == 0:
            return self.request(self.positions, session_id=self.session, session_epoch=0, **more)
        changed = {p: offset for p, offset in self.positions.items() if self.sent.get(p) != offset}
        forgotten = [
            self._topic(FetchRequestForgottenTopic, topic, [index])
            for topic, index in self.sent
            if (topic, index) not in self.positions
        ]
        return self.request(
            changed, session_id=self.session, session_epoch=self.epoch, forgotten_topics_data=forgotten, **more
        )

    def sending(self) -> None:
        self.sent = dict(self.positions)

    def take(self, answer: FetchResponse) -> None:
        """As the Java client does it: what an incremental answer leaves out is as it was."""
        if answer.error_code:
            assert answer.error_code in (ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            self.epoch = 0
            if answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session = 0
            return
        if self.epoch == 0:
            self.known.clear()
        self.data = {}
        names = {topic_id: name for name, topic_id in self.ids.items()}
        for topic in answer.responses:
            for part in topic.partitions:
                at = (topic.topic or names[topic.topic_id], part.partition_index)
                self.known[at] = (part.error_code, part.high_watermark, part.log_start_offset)
                batches = [header.base_offset for _, header in walk(bytes(part.records or b""))]
                if batches:
                    self.data[at] = batches
        self.known = {at: told for at, told in self.known.items() if at in self.positions}
        self.session = answer.session_id
        self.epoch = 0 if answer.session_id == 0 else self.epoch + 1

    async def fetch(self, **more: Any) -> None:
        request = self.next_request(**more)
        self.sending()
        answer = await self.life.call(ApiKey.FETCH, request, self.version)
        self.take(answer)
        if answer.error_code and self.positions:  # begin anew, as a client does at once
            request = self.next_request(**more)
            self.sending()
            self.take(await self.life.call(ApiKey.FETCH, request, self.version))

    def advance(self) -> None:
        """Take the records of the last answer."""
        for at, batches in self.data.items():
            if at in self.positions:
                self.positions[at] = batches[-1] + 1

    async def check(self) -> None:
        """The full fetch of the same moment says the same."""
        answer = await self.life.call(ApiKey.FETCH, self.request(self.positions, session_epoch=-1), self.version)
        full = Reader(self.life, self.version, dict(self.positions))
        full.take(answer)
        assert self.known == full.known
        assert self.data == full.data


async def cut(life: Life, at: Place_) -> None:
    partition = life.context.registry.partitions.get(at)
    if partition is not None:
        part = DeleteRecordsRequestPartition(partition_index=at[1], offset=partition.high_watermark)
        topic = DeleteRecordsRequestTopic(name=at[0], partitions=[part])
        await life.call(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[topic], timeout_ms=1000))


async def drop(life: Life, reader: Reader, topic: str) -> None:
    """Delete the topic, or create it. By id a reader forgets what is deleted first: its id means nothing after."""
    if topic not in life.context.registry.topics:
        await life.create(topic, 2)
        return
    if reader.version >= 13:
        for at in [at for at in reader.positions if at[0] == topic]:
            del reader.positions[at]
        await reader.fetch()
    await life.context.controller.delete_topic(topic)


async def poll(reader: Reader, at: Place_) -> None:
    """A long poll that a record ends, or none does."""
    request = reader.next_request(max_wait_ms=500)
    reader.sending()
    answer = reader.life.dispatch(ApiKey.FETCH, request, reader.version)
    await asyncio.sleep(0.05)
    if at in reader.life.context.registry.partitions:
        await reader.life.produce(at[0], b"p", index=at[1])
    parts = await answer.future if isinstance(answer, Later) else answer
    reader.take(decoded(ApiKey.FETCH, reader.version, parts))


async def step(reader: Reader, what: str, *args: Any) -> None:
    life = reader.life
    match what:
        case "produce":
            if args[0] in life.context.registry.partitions:
                await life.produce(args[0][0], b"v", index=args[0][1])
        case "cut":
            await cut(life, args[0])
        case "seek":
            if args[0] in reader.positions:
                reader.positions[args[0]] = args[1]
        case "toggle":
            if args[0] in reader.positions:
                del reader.positions[args[0]]
            elif reader.version < 13 or args[0][0] in life.context.registry.topics:
                reader.positions[args[0]] = 0
        case "drop":
            await drop(life, reader, args[0])
        case "fetch":
            if args[0]:
                reader.advance()
            await reader.fetch()
        case "rest":  # until nothing is left to take and the session knows it
            for _ in range(4):
                await reader.fetch()
                reader.advance()
        case "narrow":
            await reader.fetch(max_bytes=1)
        case "lose":
            request = reader.next_request()
            await life.call(ApiKey.FETCH, request, reader.version)
            if args[0]:
                reader.epoch = 0  # it knows that it lost one, and says so
        case "poll":
            await poll(reader, args[0])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.sampled_from([7, 12, 13, 18]), st.sampled_from([1000, 1000, 1, 0]))
def test_a_session_tells_what_a_full_fetch_tells(history: list[tuple[Any, ...]], version: int, slots: int) -> None:
    """After any history the next incremental answer completes the client's knowledge; with few slots or none, too."""

    async def scenario() -> None:
        life = await Place(f"max.incremental.fetch.session.cache.slots={slots}").start()
        await life.create("s", 2)
        await life.create("t", 2)
        reader = Reader(life, version, dict.fromkeys(PARTITIONS[:3], 0))
        await reader.fetch()
        for what, *args in history:
            await step(reader, what, *args)
        await reader.fetch()
        await reader.check()
        await life.stop()

    run_fast(scenario(), timeout_s=HOUR_S)


async def test_a_slow_reader_of_many_partitions_misses_none() -> None:
    """One byte a fetch: each answer carries one batch, and every partition has its turn in every round."""
    life = await Place().start()
    await life.create("s", 30)
    for index in range(30):
        for _ in range(4):
            await life.produce("s", b"v", index=index)
    reader = Reader(life, 12, {("s", index): 0 for index in range(30)})
    served: list[int] = []
    while len(served) < 120:
        await reader.fetch(max_bytes=1)
        (((topic, index), batches),) = reader.data.items()
        assert batches == [reader.positions[topic, index]]
        reader.positions[topic, index] += 1
        served.append(index)
    # Kafka, too, begins the second answer where the first one began.
    assert [sorted(served[1 + at : 31 + at]) for at in (0, 30, 60)] == [list(range(30))] * 3
    await reader.fetch()
    assert reader.data == {}
    await reader.check()
    await life.stop()
