"""Two whole brokers over one bucket, which obey the images that a test publishes to each.

Owns no decision: the test is the controller. Always true: partitions' roots and objects are shared; each broker has a
`cluster.json` of its own, in which it registers and which says nothing of the other: what they obey is the test's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from broker.following.publisher import Publisher
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import MetadataRecord, Node, Row, RowsSet, TopicCreated
from broker.partition.following.follower_replica import FollowerReplica
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DeleteRecordsResponsePartition,
)
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_store import ManifestStore
from seams.rng import SeededRng
from tests.support.brokers.broker_kit import Life, Place
from tests.support.brokers.cluster_kit import id_of
from tests.support.store.faulty_store import FaultyStore

OWN = ("cluster", "lease")
NOBODY = ControllerAt(99, "the test", 1)
"""Whom the brokers believe to decide: what they propose gets no answer."""
NAME = "log"
TOPIC_ID = id_of(77)


class Apart:
    """The store, with a place of its own for what is not shared."""

    def __init__(self, store: Any, name: str) -> None:
        self._store = store
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _at(self, key: str) -> str:
        return f"{self._name}/{key}" if key.startswith(OWN) else key

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Any:
        return await self._store.get(self._at(key), start, length)

    async def get_if_changed(self, key: str, etag: str | None) -> Any:
        return await self._store.get_if_changed(self._at(key), etag)

    async def head(self, key: str) -> Any:
        return await self._store.head(self._at(key))

    async def put_segment(self, key: str, body: Any) -> Any:
        return await self._store.put_segment(self._at(key), body)

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        found: str = await self._store.put_root(self._at(key), data, if_match)
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete([self._at(key) for key in keys])


class Pair:
    """Brokers 1 and 2, by node id in `lives`; `image` is what was published last. Make it inside a coroutine test."""

    def __init__(self, *settings: str) -> None:
        self.places = {1: Place(*settings), 2: Place(*settings, "node.id=2", seed=2)}
        first, second = self.places[1], self.places[2]
        second.memory = Apart(first.memory, "second")  # type: ignore[assignment]
        second.store = FaultyStore(second.memory, SeededRng("store/2"))
        second.net = first.net
        self.lives: dict[int, Life] = {}
        self.image = ClusterImage()

    async def start(self, node_id: int) -> None:
        """Begin a process, and a session: `publish` tells the other."""
        port = 9000 + 100 * node_id + self.places[node_id].lives
        life = await self.places[node_id].start(f"listeners=PLAINTEXT://127.0.0.1:{port}")
        life.context.controller._commit_queue.renounce()  # type: ignore[attr-defined]  # it would publish its own image
        self.lives[node_id] = life
        self._renew(life.context.metadata.image.nodes[node_id])

    def renew(self, node_id: int) -> None:
        """Another session of the same process."""
        self._renew(self.session(node_id))

    def end(self, node_id: int) -> None:
        """Its session, by silence."""
        self.note(replace(self.session(node_id), active=False))

    def _renew(self, node: Node) -> None:
        self.note(replace(node, broker_epoch=self.image.next_broker_epoch, active=True))

    def note(self, *records: MetadataRecord) -> None:
        """Decide, and tell nobody yet."""
        self.image = self.image.with_records(records)

    def publish(self, *to: int) -> None:
        """Let these brokers (none named: all) obey what was decided."""
        for node_id in to or self.lives:
            life = self.lives[node_id]
            replicas, context = life.replicas, life.context
            publisher = Publisher(replicas, context.metadata, context.live, node_id)
            publisher.publish(self.image, NOBODY)

    def create(self, replicas: tuple[int, ...] = (1, 2), **configs: str) -> None:
        """`log-0`, led by 1."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.note(TopicCreated(TOPIC_ID, NAME, (Row(replicas, 1, 0, 0, replicas, 0),), named))

    def change(self, **fields: Any) -> None:
        """Another row."""
        row = self.row
        changed = replace(row, partition_epoch=row.partition_epoch + 1, **fields)
        self.note(RowsSet(TOPIC_ID, ((0, changed),)))

    def elect(self, leader: int, in_sync: tuple[int, ...]) -> None:
        self.change(leader=leader, leader_epoch=self.row.leader_epoch + 1, in_sync=in_sync)

    @property
    def row(self) -> Row:
        return self.image.topics[TOPIC_ID].rows[0]

    def session(self, node_id: int) -> Node:
        return self.image.nodes[node_id]

    def followed(self, node_id: int) -> FollowerReplica | None:
        return self.lives[node_id].context.registry.followed.get((NAME, 0))

    def leads(self, node_id: int) -> bool:
        found = self.lives[node_id].context.registry.partitions.get((NAME, 0))
        return found is not None and found.leading and found.leader_epoch == self.row.leader_epoch

    async def manifest(self) -> Manifest:
        """The partition's root as the bucket has it now."""
        store = ManifestStore(self.places[1].memory, UUID(TOPIC_ID), 0, SeededRng(9), self.lives[1].clock)
        found = await store.load()
        assert found is not None
        return found

    def store_away(self, is_away: bool) -> None:
        """An outage of the bucket for both, until said otherwise."""
        for place in self.places.values():
            place.store.down = is_away

    async def stop(self) -> None:
        """Both, cleanly."""
        for life in self.lives.values():
            await life.stop()

    async def delete_records(self, node_id: int, offset: int, timeout_ms: int = 5000) -> DeleteRecordsResponsePartition:
        """What a broker answers who asks it to delete the records below `offset`."""
        row = DeleteRecordsRequestPartition(partition_index=0, offset=offset)
        topic = DeleteRecordsRequestTopic(name=NAME, partitions=[row])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)
        answer = await self.lives[node_id].call(ApiKey.DELETE_RECORDS, request)
        found: DeleteRecordsResponsePartition = answer.topics[0].partitions[0]
        return found

    def bytes_of(self, node_id: int) -> bytes:
        """All batches of its log."""
        registry = self.lives[node_id].context.registry
        log = (registry.partitions.get((NAME, 0)) or registry.followed[NAME, 0]).log
        return b"".join(
            one.file.read_at(one.position, one.length)
            for one in log.batch_ranges(log.local_log_start_offset, log.log_end_offset)
        )


async def until(happened: Callable[[], bool], what: str) -> None:
    """Wait for it, for a minute at most; AssertionError names `what`."""
    try:
        async with asyncio.timeout(60.0):
            while not happened():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within a minute: {what}") from None


async def both(*settings: str, replicas: tuple[int, ...] = (1, 2), **configs: str) -> Pair:
    """Both serve; 1 leads `log-0`, the other follows it where it is assigned."""
    pair = Pair(*settings)
    await pair.start(1)
    await pair.start(2)
    pair.create(replicas, **configs)
    pair.publish()
    await until(lambda: pair.leads(1), "one leads")
    if 2 in replicas:
        await until(lambda: pair.followed(2) is not None, "the other follows")
    return pair
