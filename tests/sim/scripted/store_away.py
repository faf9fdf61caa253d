"""A broker whose bucket goes away for hours of virtual time: clients, probes and figures of test_sim_store_away.

Owns the day: a producer that never gives up, a reader of the tail, a reader of what is cold, and the bucket's outage in
two shapes: every request is refused at once, or held and never answered. Always true: broker settings are the defaults
but for sizes, so that the figures are those of a real one; requests of the outage are counted when they reach the
bucket, whoever sent them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.stores.operations import Operation
from logformat.records import Record, encode_batch
from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER, Reader
from tests.sim.checks.checker import Finding, check
from tests.sim.checks.history import Final, Outcome, Place, Send
from tests.sim.client import Client, ServerError, produce_request
from tests.sim.scripted.script import Story, again, ready
from tests.sim.world.clock import EPOCH_MS
from tests.sim.world.cluster import Cluster
from tests.sim.world.workers import SimWorkers
from tests.support.store.faulty_store import Fault, FaultyStore
from tests.support.store.memory_store import MemoryStore

HOUR_S = 3600.0
PLACE: Place = ("log", 0)
RECORDS = 5
VALUE_BYTES = 400
PRODUCE_TIMEOUT_S = 30.0
TOPIC = {
    "internal.segment.bytes": "20000",
    "remote.storage.enable": "true",
    "local.retention.bytes": "40000",
    "retention.ms": "-1",
}
SETTINGS = ("offsets.topic.num.partitions=1", "offsets.topic.segment.bytes=1048576", "thermocline.cache.bytes=0")
STORE_LATENCY_S = (0.005, 0.03)


class WatchedStore(FaultyStore):
    """Counts requests, and can hold them: `hangs` makes each wait `held_s` before it finds the store still away."""

    def __init__(self, seed: str) -> None:
        super().__init__(MemoryStore(), SeededRng(f"{seed}/store"))
        self.latency_s = STORE_LATENCY_S
        self.asked: list[tuple[float, Operation]] = []
        self.held_s = 0.0
        self.under_way: Counter[Operation] = Counter()

    async def _begin(self, operation: Operation, key: str) -> Fault | None:
        self.asked.append((asyncio.get_running_loop().time(), operation))
        self.under_way[operation] += 1
        try:
            await asyncio.sleep(self._rng.uniform(*self.latency_s))
            if self.down and self.held_s:
                await asyncio.sleep(self.held_s)
            return await super()._begin(operation, key)
        finally:
            self.under_way[operation] -= 1

    def asked_between(self, start_s: float, end_s: float) -> Counter[Operation]:
        return Counter(operation for at_s, operation in self.asked if start_s <= at_s < end_s)


@dataclass
class Answers:
    """What one client heard: when, and how long it waited."""

    times: list[tuple[float, float, str]] = field(default_factory=list)  # (asked, seconds, 'NONE' or error's name)

    def note(self, asked_s: float, now_s: float, outcome: str) -> None:
        self.times.append((asked_s, now_s - asked_s, outcome))

    def between(self, start_s: float, end_s: float) -> Counter[str]:
        return Counter(outcome for asked_s, _, outcome in self.times if start_s <= asked_s < end_s)

    def slowest_s(self, start_s: float, end_s: float, outcome: str = "NONE") -> float:
        found = [took for asked_s, took, what in self.times if start_s <= asked_s < end_s and what == outcome]
        return max(found, default=0.0)

    def first_slower(self, limit_s: float, since_s: float) -> float | None:
        """When something since then was asked for that took longer, in seconds since then."""
        return next(
            (asked_s - since_s for asked_s, took, _ in self.times if asked_s >= since_s and took > limit_s), None
        )

    def first_asked(self, outcome: str, since_s: float) -> float:
        """When the first request since then was sent that had this answer."""
        return next(asked_s for asked_s, _, what in self.times if asked_s >= since_s and what == outcome)

    def first(self, outcome: str, since_s: float) -> float | None:
        """When the first such answer since then came, in seconds since then."""
        return next(
            (a + took - since_s for a, took, what in self.times if a + took >= since_s and what == outcome), None
        )


@dataclass
class Day:
    """A story with clients of its own."""

    story: Story
    pace_s: float
    sends: Answers = field(default_factory=Answers)
    hot: Answers = field(default_factory=Answers)
    cold: Answers = field(default_factory=Answers)
    number: int = 0
    retry_s: float = 20.0  # a stock producer asks every second: set so before it matters, 36 000 refusals prove no more
    cold_reads: int = 0
    cold_end: int = 0  # below it nothing is local
    offsets: dict[int, str] = field(default_factory=dict)  # base offset → first value, of what was acknowledged
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def store(self) -> WatchedStore:
        store = self.story.cluster.store
        assert isinstance(store, WatchedStore)
        return store

    def now(self) -> float:
        return self.story.now()

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────
    def start(self) -> None:
        """Begin to write and to read."""
        for client in (self._write, self._read_hot, self._read_cold):
            self.tasks.append(asyncio.get_running_loop().create_task(client()))

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _write(self) -> None:
        """One batch at a time, the same again until it is acknowledged, as an idempotent producer does."""
        client = Client(self.story.cluster.net, lambda: self._node().address, PRODUCE_TIMEOUT_S)
        while True:
            await self._send(client)
            self.number += 1
            await asyncio.sleep(self.pace_s)

    async def _send(self, client: Client) -> None:
        data, values = self._batch()
        began_s = self.now()
        while True:
            asked_s = self.now()
            try:
                response = await client.call(ApiKey.PRODUCE, produce_request(*PLACE, data, timeout_ms=20_000))
            except NO_ANSWER as silence:
                self.sends.note(asked_s, self.now(), type(silence).__name__)
                continue
            answer = response.responses[0].partition_responses[0]
            outcome = ErrorCode(answer.error_code).name
            self.sends.note(asked_s, self.now(), outcome)
            if outcome in ("NONE", "DUPLICATE_SEQUENCE_NUMBER"):
                offset = answer.base_offset if outcome == "NONE" else -1
                self.story.history.add(
                    Send("p", self.number, PLACE, values, began_s, self.now(), Outcome.OK, offset, self._node().name)
                )
                return
            await asyncio.sleep(self.retry_s)

    def _batch(self) -> tuple[bytes, tuple[str, ...]]:
        values = tuple(f"p.{self.number}.{i}" for i in range(RECORDS))
        at_ms = EPOCH_MS + int(self.now() * 1000)
        padding = b" " + b"x" * VALUE_BYTES
        records = [Record(i, at_ms, b"k", value.encode() + padding) for i, value in enumerate(values)]
        producer_id, epoch = self.story.tail.producer
        sequence = self.number * RECORDS
        return encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence), values

    async def _read_hot(self) -> None:
        """What was acknowledged last, once a minute."""
        client = self.story.client()
        while True:
            await asyncio.sleep(60.0)
            await self._fetch(client, self.hot, lambda end: max(end - RECORDS, 0))

    async def _read_cold(self) -> None:
        """A record that lies in the bucket alone, another one each time: asked for every ten minutes."""
        client = self.story.client()
        while True:
            await asyncio.sleep(600.0)
            await self._fetch(client, self.cold, self._cold_offset)

    def _cold_offset(self, _: int) -> int:
        self.cold_reads += 1
        return (self.cold_reads * 317) % max(self.cold_end, 1)

    def read_cold_now(self) -> None:
        """Once more, beside the others."""
        fetch = self._fetch(self.story.client(), self.cold, self._cold_offset)
        self.tasks.append(asyncio.get_running_loop().create_task(fetch))

    async def _fetch(self, client: Client, answers: Answers, offset_of: object) -> None:
        asked_s, outcome = self.now(), "NONE"
        try:
            end = await client.list_offset(*PLACE, -1)
            asked_s = self.now()
            fetched = await client.fetch(*PLACE, offset_of(end), 4000)  # type: ignore[operator]
            if fetched.error:
                outcome = ErrorCode(fetched.error).name
            elif not fetched.batches:
                outcome = "EMPTY"
        except ServerError as refused:
            outcome = refused.code.name
        except NO_ANSWER as silence:
            outcome = type(silence).__name__
        answers.note(asked_s, self.now(), outcome)

    def _node(self):  # type: ignore[no-untyped-def]
        assert self.story.node is not None
        return self.story.node

    # ── the broker, seen from inside ─────────────────────────────────────────────────────────────────────────────
    def tier(self):  # type: ignore[no-untyped-def]
        node = self._node()
        return next(p for p in node.broker.components.replicas._registry if (p.topic, p.index) == PLACE)

    def lag_bytes(self) -> int:
        return int(self.tier().tier.status().copy_lag_bytes)

    def local_bytes(self) -> int:
        return int(self.tier().log.local_bytes)

    def blocked_by(self) -> str | None:
        found = self.tier().tier.status().blocked_by
        return None if found is None else str(found)

    async def until(self, condition: object, patience_s: float, what: str) -> float:
        """Seconds until it was so."""
        began_s = self.now()
        while not condition():  # type: ignore[operator]
            assert self.now() - began_s < patience_s, (
                f"not within {patience_s} s: {what}; blocked by {self.blocked_by()}"
            )
            await asyncio.sleep(0.1)
        return self.now() - began_s

    # ── afterwards ───────────────────────────────────────────────────────────────────────────────────────────────
    async def read_everything(self, patience_s: float) -> float:
        """A new consumer, from the start to the end as it was when it began; seconds it took."""
        began_s = self.now()
        reader = Reader(self.story.stage(), "final", PLACE, again=False)
        ends = await reader.ends()
        assert ends is not None
        reader.position = ends[0]
        assert await reader.read_to(ends[1], patience_s), f"stuck at {reader.position} of {ends}"
        self.story.history.add(Final(PLACE, *ends))
        return self.now() - began_s

    async def restart(self) -> None:
        """A clean stop, and a new claim of everything."""
        node = self._node()
        node.stop.set()
        async with asyncio.timeout(60.0):
            assert await node.main == 0
        self.story.node = self.story.cluster.start("a")
        assert await ready(self.story)

    async def findings(self) -> list[Finding]:
        """The checker's verdict on all that was sent and seen, and the bucket's books."""
        found = check(self.story.history.events)
        found += [Finding("unexpected", text) for text in (*self.story.unexpected, *self.story.cluster.failures)]
        for topic_id, partition in await self._inspector().partitions():
            for finding in await self._inspector().verify(topic_id, partition, deep=True):
                if finding.kind.is_damage:
                    found.append(Finding("bucket-damage", str(finding)))
        return found

    async def orphans(self) -> list[str]:
        """Objects that gc may delete, over all partitions."""
        inspector = self._inspector()
        found: list[str] = []
        for topic_id, partition in await inspector.partitions():
            plan = await inspector.plan_gc(topic_id, partition)
            found += [info.key for info in (*plan.deletable, *plan.pending)]
        return found

    def _inspector(self) -> BucketInspector:
        cluster = self.story.cluster
        return BucketInspector(cluster.plain_store(), SimWorkers(cluster.loop, SeededRng("audit")))  # type: ignore[arg-type]


async def begun(cluster: Cluster, settings: Sequence[str], pace_s: float) -> Day:
    """A broker with defaults and `settings`, its topic, and something already in the bucket."""
    cluster.store = WatchedStore(cluster.seed)
    story = Story(cluster)
    cluster.settings = [*SETTINGS, *settings]
    story.node = cluster.start("a")
    assert await ready(story)
    client = story.client()
    assert await again(lambda: client.create_topic(PLACE[0], 1, TOPIC))
    story.tail.producer = await client.init_producer_id()
    day = Day(story, pace_s)
    day.start()
    return day


__all__ = ["HOUR_S", "PLACE", "Day", "begun"]
