"""A whole broker in virtual time, asked through its dispatcher: for the unit tests of `broker`'s own rooms.

Owns one machine's disk and one bucket over several lives of a broker. Always true: it is `broker.app.Broker` with the
simulation's loop, workers, clock and network, so a test waits for events and never for time; a response is decoded by
the codec from the very parts the socket would get. Faults: `place.store` (see `faulty_store`), `place.disk`
(see `crash_disk`), `life.clock.slept_s` (a machine that slept).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID

from broker.app import Broker
from broker.config.places import Launch
from broker.config.resolve import resolve
from broker.context import Context
from broker.dispatcher import BrokerDispatcher
from broker.membership.session import Session
from broker.net.dispatch import Answer, Later, Part, Peer
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.replica_manager import ReplicaManager
from broker.wire.apis import APIS, ApiKey
from broker.wire.codec import decode_response, encode_request
from broker.wire.framing import FRAME_PREFIX_SIZE, parse_response_header, request_frame
from broker.wire.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)
from coldstore.object_store import ObjectStore
from hotstore.cleaning.engine import CleanerEngine, LocalEngine
from logformat.record_batch import walk
from logformat.records import Record, encode_batch, iter_records
from seams.files.disk import FileRange
from seams.files.syncs import WorkerSyncs
from seams.loop.beats import BEAT_S, Beats
from seams.rng import SeededRng
from seams.world import World
from tests.sim.world.bucket import RemoteBucket
from tests.sim.world.clock import EPOCH_MS, SimClock
from tests.sim.world.late import LaneLate, Late
from tests.sim.world.net import SimNet
from tests.sim.world.workers import SimWorkers
from tests.support.brokers.machine import Machine
from tests.support.disk.late import must_not_come
from tests.support.disk.occupants import watch_calls
from tests.support.store.faulty_store import FaultyStore
from tiering.service import TierService

T = TypeVar("T")

FETCH_BY_NAME = 12
"""The last version of Fetch that names topics; later ones give their ids."""
OFFSETS_BY_NAME = 9
"""The same of OffsetCommit and OffsetFetch."""
NEWEST = {int(key): api.version_max for key, api in APIS.items()} | {
    int(ApiKey.FETCH): FETCH_BY_NAME,
    int(ApiKey.OFFSET_COMMIT): OFFSETS_BY_NAME,
    int(ApiKey.OFFSET_FETCH): OFFSETS_BY_NAME,
}
"""What is asked unless a test says otherwise; the last versions that name topics."""
LEASE_S = 15.0
"""Of the brokers here, bumped every 5 s, unless a test says otherwise."""
SETTINGS = (
    f"thermocline.lease.ms={LEASE_S * 1000:.0f}",
    "thermocline.lease.interval.ms=5000",
    "remote.log.manager.task.interval.ms=500",
    "log.retention.check.interval.ms=500",
    "thermocline.gc.grace.ms=1000",
    "offsets.topic.num.partitions=2",
    "log.retention.ms=-1",
)
SMALL_SEGMENTS = {"internal_segment_bytes": "1000", "local_retention_bytes": "1", "remote_storage_enable": "true"}
"""A topic whose segments hold a few batches and leave the disk as soon as they are in the bucket."""


class SleepyClock(SimClock):
    """The loop's clock; `slept_s` is what the boot clock counts beside it, as over a machine's sleep."""

    slept_s = 0.0

    def boottime_s(self) -> float:
        return super().boottime_s() + self.slept_s


class Place(Machine):
    """What survives a broker. Make it inside a coroutine test."""

    def __init__(self, *settings: str, seed: int | str = 1) -> None:
        super().__init__(seed)
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.store = FaultyStore(self.memory, SeededRng(f"store/{seed}"))
        self.net = SimNet(self.loop, SeededRng(f"net/{seed}"))  # type: ignore[arg-type]
        self.outside: contextvars.Context | None = None  # where requests to the store run; None: with who sent them
        self.late: Late | None = None  # of all its lives

    def make(
        self,
        *settings: str,
        directory: str = "a",
        take_over: bool = False,
        port: int = 0,
        read_only: bool = False,
    ) -> Life:
        """A broker that was not started yet."""
        self.lives += 1
        flags = {
            "log.dirs": f"/data/{directory}",
            "thermocline.bucket": "file:///bucket",
            "listeners": f"PLAINTEXT://127.0.0.1:{port or 9000 + self.lives}",
            "thermocline.http": "",
        }
        chosen = [*SETTINGS, *self.settings, *settings]
        if any(setting.startswith("listeners=") for setting in chosen):
            del flags["listeners"]
        config = resolve(flags, chosen, {}, None, Launch(take_over=take_over, read_only=read_only))
        boot = self.boot
        clock = SleepyClock(self.loop, lambda: boot)
        workers = self.workers()
        rng = SeededRng(f"{self.seed}/{self.lives}")
        beats = Beats(SeededRng(f"beats/{self.seed}/{self.lives}").uniform(0.0, BEAT_S))
        watch_calls(self.disk)
        world = World(
            self.disk,
            workers,
            WorkerSyncs(workers),
            clock,
            rng,
            self.net,
            beats=beats,
            late_effect=must_not_come,  # type: ignore[arg-type]
        )
        bucket = RemoteBucket(self.loop, self.store, self.outside or contextvars.copy_context(), late=self.late)

        def open_bucket(_: Any, __: World) -> ObjectStore:
            return bucket

        def make_engine() -> CleanerEngine:
            return LocalEngine(SeededRng(f"cleaner/{self.seed}/{self.lives}"))

        return Life(Broker(config, world, open_bucket, make_engine), clock, workers)

    def workers(self) -> SimWorkers:
        """Those of the next life."""
        late = None if self.late is None else LaneLate(self.late)
        return SimWorkers(self.loop, SeededRng(f"workers/{self.seed}/{self.lives}"), late)

    async def start(
        self, *settings: str, directory: str = "a", take_over: bool = False, read_only: bool = False
    ) -> Life:
        """A broker that serves."""
        life = self.make(*settings, directory=directory, take_over=take_over, read_only=read_only)
        await life.start()
        return life


class Life:
    """One broker process."""

    def __init__(self, broker: Broker, clock: SleepyClock, workers: SimWorkers) -> None:
        self.broker = broker
        self.clock = clock
        self.workers = workers
        self.stop_event = asyncio.Event()
        self.peer = Peer(1, "127.0.0.1:50000", "PLAINTEXT")
        self._correlation = 0

    async def start(self) -> None:
        """Come up; what refuses to is closed, as `app.run` does."""
        try:
            await self.broker.start(self.stop_event)
        except BaseException:
            await self.broker.close()
            raise

    @property
    def dispatcher(self) -> BrokerDispatcher:
        server = self.broker.components.server
        assert server is not None
        found = server._shared.dispatcher
        assert isinstance(found, BrokerDispatcher)
        return found

    @property
    def context(self) -> Context:
        return self.dispatcher.context

    @property
    def replicas(self) -> ReplicaManager:
        assert self.broker.components.replicas is not None
        return self.broker.components.replicas

    @property
    def tiers(self) -> TierService:
        assert self.broker.components.tiers is not None
        return self.broker.components.tiers

    @property
    def session(self) -> Session:
        assert self.broker.components.session is not None
        return self.broker.components.session

    def partition(self, topic: str, index: int = 0) -> LeaderReplica:
        return self.context.registry.partitions[topic, index]

    async def stop(self) -> None:
        """A clean stop, as on SIGTERM."""
        self.stop_event.set()
        await self.broker.serve(self.stop_event)
        await self.broker.close()

    async def crash(self) -> None:
        """Gone without a clean stop; what was written stays in the page cache (and the lease is not released)."""
        await self.broker.close()

    # --- requests ---
    def frame(self, key: int, version: int, message: Any, client_id: str | None = "kit") -> memoryview:
        """The request as the connection hands it over: writable, without its length prefix."""
        self._correlation += 1
        parts = request_frame(key, version, self._correlation, client_id, encode_request(key, version, message))
        return memoryview(bytearray(joined(parts)[FRAME_PREFIX_SIZE:]))

    def dispatch(self, key: int, message: Any, version: int | None = None, peer: Peer | None = None) -> Answer:
        version = NEWEST[key] if version is None else version
        return self.dispatch_frame(peer or self.peer, self.frame(key, version, message))

    def dispatch_frame(self, peer: Peer, frame: memoryview) -> Answer:
        """As the connection does with a frame that came alone."""
        if peer.produce_route is not None:
            count, answer = self.dispatch_run([frame], peer)
            if count:
                return answer
        return self.dispatcher.dispatch(peer, frame)

    def dispatch_run(self, frames: Sequence[memoryview], peer: Peer | None = None) -> tuple[int, Answer]:
        """As the connection does with frames that came in one read: how many were answered together, and their answer.

        `frames` are left as the dispatcher left their bytes.
        """
        window = memoryview(bytearray(b"".join(len(one).to_bytes(4, "big") + one for one in frames)))
        count, pos, answer = self.dispatcher.dispatch_run(peer or self.peer, window, 0, len(window))
        assert pos == sum(4 + len(one) for one in frames[:count])
        at = 0
        for one in frames:
            one[:] = window[at + 4 : at + 4 + len(one)]
            at += 4 + len(one)
        return count, answer

    async def call(self, key: int, message: Any, version: int | None = None, peer: Peer | None = None) -> Any:
        """The decoded response; None where there is none (acks=0)."""
        version = NEWEST[key] if version is None else version
        answer = self.dispatch(key, message, version, peer)
        return decoded(key, version, await parts_of(answer))

    async def create(self, name: str, partitions: int = 1, **configs: str) -> UUID:
        """A topic by the controller; config names with `_` for `.`."""
        named = {config.replace("_", "."): value for config, value in configs.items()}
        return UUID((await self.context.controller.create_topic(name, partitions, named)).topic_id)

    async def produce(
        self, topic: str, *values: bytes, acks: int = -1, index: int = 0, version: int = 9
    ) -> ProduceResponsePartition:
        """One batch of `values`; the partition's answer."""
        request = produce_request(topic, batch_of(*values), acks=acks, index=index)
        response: ProduceResponse = await self.call(ApiKey.PRODUCE, request, version)
        return response.responses[0].partition_responses[0]

    async def fetch(self, topic: str, offset: int, **how: Any) -> FetchResponsePartition:
        response: FetchResponse = await self.call(ApiKey.FETCH, fetch_request((topic, 0, offset), **how))
        return response.responses[0].partitions[0]

    async def read_all(self, topic: str, index: int = 0, start: int = 0) -> list[tuple[int, bytes | None]]:
        """(offset, value) of every record from `start` to the high watermark, over both tiers."""
        found: list[tuple[int, bytes | None]] = []
        offset = start
        while True:
            request = fetch_request((topic, index, offset), max_wait_ms=500)
            part = (await self.call(ApiKey.FETCH, request)).responses[0].partitions[0]
            assert part.error_code == 0, part
            batches = batches_of(part)
            if not batches and offset >= part.high_watermark:
                return found
            for batch in batches:
                for record in iter_records(batch):
                    if record.offset >= offset:
                        found.append((record.offset, record.value))
                header = next(iter(walk(batch)))[1]
                offset = max(offset, header.base_offset + header.last_offset_delta + 1)


def joined(parts: Sequence[Part]) -> bytes:
    """What the socket would get."""
    return b"".join(
        part.file.read_at(part.position, part.length) if isinstance(part, FileRange) else bytes(part) for part in parts
    )


async def parts_of(answer: Answer) -> list[Part] | None:
    return await answer.future if isinstance(answer, Later) else answer


def decoded(key: int, version: int, parts: Sequence[Part] | None) -> Any:
    if parts is None:
        return None
    frame = memoryview(joined(parts))
    assert int.from_bytes(frame[:FRAME_PREFIX_SIZE], "big") == len(frame) - FRAME_PREFIX_SIZE
    body = frame[FRAME_PREFIX_SIZE:]
    _, start = parse_response_header(body, key, version)
    return decode_response(key, version, body[start:])


def batch_of(*values: bytes, **how: Any) -> bytes:
    """One batch of records with these values, stamped with the simulation's first second."""
    return encode_batch([Record(at, EPOCH_MS, None, value) for at, value in enumerate(values)], **how)


def produce_request(topic: str, batch: bytes | None, *, acks: int = -1, index: int = 0, timeout_ms: int = 5000) -> Any:
    records = None if batch is None else memoryview(batch)
    data = ProduceRequestPartition(index=index, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[ProduceRequestTopic(name=topic, partition_data=[data])]
    )


def fetch_request(
    *wanted: tuple[str, int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 30,
    partition_max_bytes: int = 1 << 20,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    **more: Any,
) -> FetchRequest:
    """`wanted`: (topic, partition, offset) each."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[
            FetchRequestTopic(
                topic=topic,
                partitions=[
                    FetchRequestPartition(
                        partition=index,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        current_leader_epoch=current_leader_epoch,
                        last_fetched_epoch=last_fetched_epoch,
                    )
                ],
            )
            for topic, index, offset in wanted
        ],
        **more,
    )


def batches_of(part: FetchResponsePartition) -> list[bytes]:
    """The whole batches of a fetched partition."""
    data = bytes(part.records or b"")
    return [data[at : at + header.size] for at, header in walk(data)]


def values_of(part: FetchResponsePartition) -> list[bytes | None]:
    return [record.value for batch in batches_of(part) for record in iter_records(batch)]
