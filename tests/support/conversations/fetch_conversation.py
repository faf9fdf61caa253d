"""Conversations of raw Fetch requests that any broker can be asked, so that two can be compared word for word.

Owns what is said and how an answer is made comparable: session ids and topic ids are renamed in the order they appear,
records become the offsets of their batches. Always true: a conversation uses its own topics and knows nothing of who
answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol
from uuid import UUID

from broker.wire.apis import ApiKey
from broker.wire.generated import messages as m
from broker.wire.message import Message
from logformat.record_batch import walk
from logformat.records import Record, encode_batch

JSON = dict[str, Any]
TIMESTAMP_MS = 1_750_000_000_000
STRANGE_ID = UUID(int=0xABCDEF)
ALL = 1 << 30
WAIT_MS = 600


class Broker(Protocol):
    """Who is asked."""

    async def ask(self, api: ApiKey, version: int, request: Message) -> Message: ...

    async def settle(self) -> None:
        """Until a change of topics has reached everyone who answers."""
        ...


class Talk:
    """Asks in one version of Fetch, and writes down the answers."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._prefix = name.replace(" ", "-")
        self.ids: dict[str, UUID] = {}
        self._labels: dict[UUID, str] = {}
        self._sessions: dict[int, str] = {0: "none"}
        self.session = 0  # of the last answer that had one
        self.epoch = 0  # that the next incremental fetch has to carry
        self.version = 12
        self.log: list[tuple[str, JSON]] = []

    def name(self, topic: str) -> str:
        return f"{self._prefix}-{topic}"

    # --- around fetches ---

    async def create(self, topic: str, partitions: int = 1) -> None:
        keep = m.CreateTopicsRequestConfig(name="retention.ms", value="-1")
        asked = m.CreateTopicsRequestTopic(
            name=self.name(topic), num_partitions=partitions, replication_factor=1, configs=[keep]
        )
        request = m.CreateTopicsRequest(topics=[asked], timeout_ms=10_000)
        answer: Any = await self._broker.ask(ApiKey.CREATE_TOPICS, 7, request)
        assert answer.topics[0].error_code == 0, answer
        self.ids[topic] = answer.topics[0].topic_id
        self._labels[answer.topics[0].topic_id] = f"id {len(self._labels) + 1}"
        await self._broker.settle()

    async def delete(self, topic: str) -> None:
        request = m.DeleteTopicsRequest(topic_names=[self.name(topic)], timeout_ms=10_000)
        answer: Any = await self._broker.ask(ApiKey.DELETE_TOPICS, 5, request)
        assert answer.responses[0].error_code == 0, answer
        await self._broker.settle()

    async def produce(self, topic: str, index: int = 0, records: int = 1) -> None:
        batch = encode_batch([Record(at, TIMESTAMP_MS, None, b"v" * 100) for at in range(records)])
        data = m.ProduceRequestPartition(index=index, records=memoryview(batch))
        asked = m.ProduceRequestTopic(name=self.name(topic), partition_data=[data])
        request = m.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[asked])
        answer: Any = await self._broker.ask(ApiKey.PRODUCE, 9, request)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    async def delete_records(self, topic: str, index: int, offset: int) -> None:
        cut = m.DeleteRecordsRequestPartition(partition_index=index, offset=offset)
        asked = m.DeleteRecordsRequestTopic(name=self.name(topic), partitions=[cut])
        answer: Any = await self._broker.ask(
            ApiKey.DELETE_RECORDS, 2, m.DeleteRecordsRequest(topics=[asked], timeout_ms=5_000)
        )
        assert answer.topics[0].partitions[0].error_code == 0, answer

    # --- fetches ---

    async def begin(self, label: str, *wanted: tuple[Any, ...], **how: Any) -> None:
        """A full fetch that asks for a session."""
        await self.fetch(label, *wanted, epoch=0, session=how.pop("session", 0), **how)

    async def go_on(self, label: str, *wanted: tuple[Any, ...], **how: Any) -> None:
        """The next incremental fetch of the session."""
        await self.fetch(label, *wanted, epoch=self.epoch, session=self.session, **how)

    async def fetch(
        self,
        label: str,
        *wanted: tuple[Any, ...],
        epoch: int,
        session: int = 0,
        forget: Sequence[tuple[Any, int]] = (),
        max_bytes: int = ALL,
        wait_ms: int = 0,
        min_bytes: int = 1,
        isolation: int = 0,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`wanted`: (topic or its id, partition, offset[, {more fields}]). A wait over half its time is noted."""
        topics: list[m.FetchRequestTopic] = []
        for topic, index, offset, *more in wanted:
            part = m.FetchRequestPartition(
                partition=index, fetch_offset=offset, partition_max_bytes=ALL, **(more[0] if more else {})
            )
            identity = self._identity(topic)
            if not topics or (topics[-1].topic, topics[-1].topic_id) != tuple(identity.values()):
                topics.append(m.FetchRequestTopic(partitions=[], **identity))
            topics[-1].partitions.append(part)
        request = m.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=session,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=[
                m.FetchRequestForgottenTopic(partitions=[index], **self._identity(topic)) for topic, index in forget
            ],
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked = loop.create_task(self._broker.ask(ApiKey.FETCH, self.version, request))  # type: ignore[arg-type]
        if meanwhile is not None:
            await asyncio.sleep(0.1)
            await meanwhile()
        answer: Any = await asked
        waited = wait_ms > 0 and loop.time() - began > wait_ms / 2000
        if answer.error_code == 0 and epoch >= 0:
            self.session = answer.session_id
            self.epoch = epoch + 1
        self.log.append((f"v{self.version} {label}", self._comparable(answer, waited)))

    def _identity(self, topic: str | UUID) -> dict[str, Any]:
        if isinstance(topic, UUID):
            return {"topic": "", "topic_id": topic}
        if self.version >= 13:
            return {"topic": "", "topic_id": self.ids[topic]}
        return {"topic": self.name(topic), "topic_id": UUID(int=0)}

    def _comparable(self, answer: m.FetchResponse, waited: bool) -> JSON:
        session = self._sessions.setdefault(answer.session_id, f"session {len(self._sessions)}")
        topics = [
            [
                topic.topic.removeprefix(self._prefix + "-") or self._labels.get(topic.topic_id, str(topic.topic_id)),
                [self._partition(part) for part in topic.partitions],
            ]
            for topic in answer.responses
        ]
        return {
            "error": answer.error_code,
            "session": session,
            "topics": topics,
            **({"waited": True} if waited else {}),
        }

    def _partition(self, part: m.FetchResponsePartition) -> JSON:
        records: Any = part.records
        found: JSON = {
            "partition": part.partition_index,
            "error": part.error_code,
            "offsets": [part.high_watermark, part.last_stable_offset, part.log_start_offset],
            "batches": None if records is None else [header.base_offset for _, header in walk(bytes(records))],
            "aborted": None if part.aborted_transactions is None else len(part.aborted_transactions),
        }
        if part.diverging_epoch is not None:
            found["diverging"] = [part.diverging_epoch.epoch, part.diverging_epoch.end_offset]
        return found


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def life(t: Talk) -> None:
    """A session from its first fetch to its end."""
    await t.create("a", 2)
    await t.create("b")
    await t.begin("all new", ("a", 0, 0), ("a", 1, 0), ("b", 0, 0))
    await t.go_on("nothing new")
    await t.produce("a", 1)
    await t.go_on("one got data")
    await t.go_on("not taken: again")
    await t.go_on("taken", ("a", 1, 1))
    await t.go_on("and quiet")
    await t.produce("b")
    await t.produce("a", 0)
    await t.go_on("two got data")
    await t.go_on("one of them is taken", ("b", 0, 1))
    await t.fetch("the end", ("a", 0, 1), epoch=-1, session=t.session)
    await t.go_on("after the end")


async def turns(t: Talk) -> None:
    """Who was answered with data goes behind the others."""
    await t.create("a", 4)
    for index in range(4):
        await t.produce("a", index)
    await t.begin("the first only", *(("a", index, 0) for index in range(4)), max_bytes=1)
    for step in range(6):
        await t.go_on(f"step {step}", max_bytes=1)
    await t.produce("a", 2)
    await t.go_on("two batches here", ("a", 2, 0), max_bytes=1)
    await t.go_on("room for all")
    await t.go_on("all again")


async def epochs(t: Talk) -> None:
    """The wrong epoch, the wrong session, and what ends one."""
    await t.create("a", 2)
    await t.begin("made", ("a", 0, 0))
    session = t.session
    await t.fetch("a later epoch", epoch=2, session=session)
    await t.fetch("the right one all the same", epoch=1, session=session)
    await t.fetch("an old one", epoch=1, session=session)
    await t.fetch("epoch -2", epoch=-2, session=session)
    await t.fetch("an unknown session", epoch=1, session=session ^ 1)
    await t.fetch("no session", epoch=1)
    await t.fetch("begun anew over the old one", ("a", 0, 0), epoch=0, session=session)
    await t.fetch("which is gone", epoch=2, session=session)
    await t.go_on("the new one is there")
    await t.fetch("closed", epoch=-1, session=t.session)
    await t.go_on("gone")
    await t.fetch("without one", ("a", 1, 0), epoch=-1)
    await t.fetch("epoch 0 over an unknown one", ("a", 1, 0), epoch=0, session=12345)
    await t.begin("of nothing")
    await t.go_on("of nothing, next")


async def forgotten(t: Talk) -> None:
    """Partitions come and go."""
    await t.create("a", 3)
    await t.begin("two", ("a", 0, 0), ("a", 1, 0))
    await t.produce("a", 0)
    await t.produce("a", 2)
    await t.go_on("one for another", ("a", 2, 0), forget=[("a", 0)])
    await t.produce("a", 0)
    await t.produce("a", 1)
    await t.go_on("the forgotten one is silent")
    await t.go_on("back again", ("a", 0, 2))
    await t.go_on("asked and forgotten at once", ("a", 0, 0), forget=[("a", 0)])
    await t.go_on("one that is not in it", forget=[("a", 0)])
    session = t.session
    await t.go_on("the last ones", forget=[("a", 1), ("a", 2)])
    await t.fetch("closed", epoch=t.epoch, session=session)
    await t.begin("one", ("a", 1, 1))
    await t.go_on("which is exchanged", ("a", 2, 1), forget=[("a", 1)])
    await t.go_on("and quiet")


async def errors(t: Talk) -> None:
    """Errors are told every time; when they pass, that is told too."""
    await t.create("a", 2)
    await t.produce("a", 0)
    await t.begin("beyond the end", ("a", 0, 5), ("a", 1, 0))
    await t.go_on("again")
    await t.go_on("mended", ("a", 0, 1))
    await t.go_on("quiet")
    await t.go_on("a negative offset", ("a", 1, -1))
    await t.go_on("a later leader", ("a", 1, 0, {"current_leader_epoch": 7}))
    await t.go_on("again")
    await t.go_on("mended too", ("a", 1, 0))
    await t.begin("no such partition", ("a", 9, 0), ("nothing", 0, 0), ("a", 0, 0))
    await t.go_on("still none")
    await t.create("nothing")
    await t.go_on("now there is")
    await t.go_on("and quiet")
    await t.begin("twice", ("a", 0, 0), ("a", 1, 0), ("a", 0, 1))
    await t.go_on("the last counted")


async def unknown(t: Talk) -> None:
    """What a partition without a topic does to the others."""
    await t.create("a", 2)
    await t.produce("a", 0)
    await t.begin("one of each", ("nothing", 0, 0), ("a", 0, 0), ("a", 7, 0), ("a", 1, 0))
    await t.go_on("again")
    await t.fetch("without a session", ("nothing", 0, 0), ("a", 0, 0), epoch=-1)


async def waits(t: Talk) -> None:
    """What is waited for, and what is not."""
    await t.create("a", 2)
    await t.begin("new and empty", ("a", 0, 0), ("a", 1, 0), wait_ms=WAIT_MS)
    await t.go_on("nothing new", wait_ms=WAIT_MS)
    await t.go_on("min_bytes 0", wait_ms=WAIT_MS, min_bytes=0)
    await t.go_on("data on its way", wait_ms=WAIT_MS * 5, meanwhile=lambda: t.produce("a", 1))
    await t.go_on("too little", ("a", 1, 0), wait_ms=WAIT_MS, min_bytes=10_000)
    await t.go_on("taken", ("a", 1, 1), wait_ms=WAIT_MS)
    await t.go_on("an offset beyond the end", ("a", 1, 9), wait_ms=WAIT_MS)
    await t.go_on("mended", ("a", 1, 1), wait_ms=WAIT_MS)
    await t.go_on("a partition that does not exist", ("a", 5, 0), wait_ms=WAIT_MS)
    await t.begin("only such ones", ("a", 5, 0), wait_ms=WAIT_MS)
    await t.go_on("again", wait_ms=WAIT_MS)
    await t.begin("of nothing", wait_ms=WAIT_MS)
    await t.fetch("an unknown session", epoch=3, session=77, wait_ms=WAIT_MS)


async def log_start(t: Talk) -> None:
    """Records deleted from the front are told, whether or not there is data."""
    await t.create("a", 2)
    await t.produce("a", 0, records=3)
    await t.produce("a", 0, records=3)
    await t.begin("at the end", ("a", 0, 6), ("a", 1, 0))
    await t.go_on("nothing new")
    await t.delete_records("a", 0, 2)
    await t.go_on("moved")
    await t.go_on("quiet")
    await t.delete_records("a", 0, 6)
    await t.go_on("moved again", ("a", 0, 1))
    await t.go_on("mended", ("a", 0, 6))


async def topic_ids(t: Talk) -> None:
    """Sessions by id: they do not mix with those by name."""
    await t.create("a", 2)
    await t.create("b")
    await t.produce("a", 1)
    await t.begin("by name", ("a", 0, 0))
    t.version = 13
    await t.go_on("a name session by id")
    await t.begin("by id", ("a", 0, 0), ("a", 1, 0), ("b", 0, 0))
    await t.go_on("again")
    t.version = 12
    await t.go_on("an id session by name")
    t.version = 16
    await t.go_on("another version by id", ("a", 1, 1))
    await t.go_on("quiet")
    t.version = 18
    await t.go_on("a strange id", (STRANGE_ID, 0, 0), ("a", 7, 0))
    await t.go_on("still strange")
    await t.go_on("no id", (UUID(int=0), 0, 0), forget=[("a", 7)])
    await t.go_on("without them", forget=[(STRANGE_ID, 0), (UUID(int=0), 0)])
    await t.go_on("all but one", forget=[("a", 0), ("b", 0)])
    session = t.session
    await t.go_on("none", forget=[("a", 1)])
    await t.fetch("closed", epoch=t.epoch, session=session)
    await t.fetch("without a session", (STRANGE_ID, 0, 0), ("b", 0, 0), epoch=-1)
    await t.begin("strange ones only", (STRANGE_ID, 0, 0), wait_ms=WAIT_MS)
    await t.go_on("again", wait_ms=WAIT_MS)


async def recreated_by_name(t: Talk) -> None:
    """A topic goes and comes back under its name."""
    await t.create("a")
    await t.create("b")
    await t.produce("a")
    await t.begin("both", ("a", 0, 1), ("b", 0, 0))
    await t.delete("a")
    await t.go_on("gone")
    await t.go_on("still gone")
    await t.create("a")
    await t.go_on("back")
    await t.go_on("from its start", ("a", 0, 0))
    await t.go_on("quiet")


async def recreated_by_id(t: Talk) -> None:
    """By id, the one that came back is another one."""
    t.version = 13
    await t.create("a")
    await t.create("b")
    await t.produce("a")
    old = t.ids["a"]
    await t.begin("both", ("a", 0, 1), ("b", 0, 0))
    await t.delete("a")
    await t.go_on("gone")
    await t.create("a")
    await t.go_on("another one")
    await t.begin("the old id", (old, 0, 1), ("b", 0, 0))
    await t.go_on("again")
    await t.begin("the new id", ("a", 0, 0), ("b", 0, 0))
    await t.go_on("quiet")


async def committed(t: Talk) -> None:
    """read_committed has lists where read_uncommitted has none; it is asked anew with each request."""
    await t.create("a", 2)
    await t.produce("a", 0)
    await t.begin("committed", ("a", 0, 0), ("a", 1, 0), ("a", 3, 0), isolation=1)
    await t.go_on("uncommitted")
    await t.go_on("out of range", ("a", 0, 7), isolation=1)
    await t.go_on("a later leader", ("a", 0, 0, {"current_leader_epoch": 7}), isolation=1)


async def diverged(t: Talk) -> None:
    """A reader that read more of an epoch than there is (KIP-595) is told where it ended."""
    await t.create("a", 2)
    await t.produce("a", 0)
    await t.begin("as it is", ("a", 0, 1, {"last_fetched_epoch": 0}), ("a", 1, 0))
    await t.go_on("quiet")


async def old_versions(t: Talk) -> None:
    """Before version 7 there are no sessions; with 7 there are."""
    await t.create("a", 2)
    await t.produce("a", 1)
    for version in (4, 6):
        t.version = version
        await t.fetch("plain", ("a", 0, 0), ("a", 1, 0), epoch=-1)
    for version in (7, 11):
        t.version = version
        await t.begin("a session", ("a", 0, 0), ("a", 1, 0))
        await t.go_on("goes on", ("a", 1, 1))
        await t.go_on("quiet")


CONVERSATIONS: dict[str, Callable[[Talk], Awaitable[None]]] = {
    conversation.__name__.replace("_", " "): conversation
    for conversation in (
        life,
        turns,
        epochs,
        forgotten,
        errors,
        unknown,
        waits,
        log_start,
        topic_ids,
        recreated_by_name,
        recreated_by_id,
        committed,
        diverged,
        old_versions,
    )
}
