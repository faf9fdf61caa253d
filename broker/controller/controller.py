"""The controller: what may change in the cluster, in which order.

Owns topics, their configs, those of brokers and producer-id blocks, as decisions committed to `cluster.json`. Always
true: a change is committed before anything acts on it; every partition has its root and first offset reservation before
its topic is visible (design 6); a deleted topic's name is free at once, its bytes go afterwards and are remembered
until they have (C9: a topic created again under the name is another id); after a commit whose outcome is unknown
nothing else is decided until the bucket settled it and its effects began: a retry never makes a second topic of one
name. Must not know Kafka's requests, files or objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

from broker.config.live import LiveConfig
from broker.config.topic_changes import configs_at_creation
from broker.config.topics import check_topic_name
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.cluster_store import IMAGE_BYTES_MAX, ClusterStore
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import (
    BrokerConfigsSet,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdsReserved,
    TopicConfigsSet,
    TopicCreated,
    TopicDeleted,
    TopicPurged,
)
from logformat.errors import Retryable
from seams.crash_points import reach
from seams.rng import Rng

log = logging.getLogger(__name__)

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
PRODUCER_ID_BLOCK: Final = 1000  # Kafka's ProducerIdsBlock
_SETTLE_S: Final = 5.0  # between looks for a change whose outcome is unknown
_TURN_S: Final = 60.0  # a change waits for those before it, of which each may wait for the bucket
PARTITIONS_PER_TOPIC_MAX: Final = 10_000  # one request must not make the broker create files for hours


class Effects(Protocol):
    """Who turns what was decided into partitions that serve, and back. No call waits: what it begins it goes on with,
    however long disk or bucket let it wait."""

    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        """Begin to give these new partitions their roots, reservations and logs; then they are visible."""
        ...

    def reconfigure(self, topic: Topic) -> None: ...
    def withdraw(self, topic: Topic) -> None:
        """Stop serving a topic's partitions; nothing is removed yet."""
        ...

    def follow_config(self) -> None:
        """Let every partition obey the broker's configuration as it is now."""
        ...

    def purge(self, topic: Topic) -> None:
        """Begin to remove its files and its objects; then `Controller.forget` is called."""
        ...

    async def opened(self, topic_id: str) -> None:
        """Wait until what was asked of it serves, or is withdrawn. Raises Retryable when the broker stops first."""
        ...


class Controller:
    """Changes to the cluster, one at a time."""

    def __init__(
        self,
        cluster: ClusterStore,
        image: ClusterImage,
        cluster_id: str,
        config: LiveConfig,
        rng: Rng,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._rng = rng
        self._changes = asyncio.Lock()
        self._in_doubt = (
            False  # a change ended in the middle: the bucket may hold what `image` lacks, or what had no effect
        )
        self._producer_ids = range(0)
        self._producer_ids_lock = asyncio.Lock()
        self.image = image
        self.cluster_id = cluster_id
        self.effects: Effects | None = None

    @property
    def epoch(self) -> int:
        return self._cluster.epoch

    async def create_topic(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str | None],
        *,
        internal: bool = False,
        validate_only: bool = False,
    ) -> Topic:
        """Create a topic and wait until its partitions serve. ApiError names what is wrong with the request.

        A caller that waits no longer ends the wait only, once the topic is committed.
        """
        check_topic_name(name)
        if name in INTERNAL_TOPICS and not internal:
            # A client's ordinary topic of that name would be tiered, deletable, and where groups write.
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: the broker makes it when a group needs it"
            )
        if partitions < 1:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        if partitions > PARTITIONS_PER_TOPIC_MAX:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions; between 1 and {PARTITIONS_PER_TOPIC_MAX}"
            )
        kept = configs_at_creation(self._config.now, configs, internal=internal)
        async with self._turn(self._changes):
            await self._settle()
            self._check_free(name)
            self._check_room()
            topic = Topic(str(self._rng.uuid()), name, partitions, kept, internal)
            if validate_only:
                return topic
            await self._commit(TopicCreated(topic.topic_id, name, partitions, topic.configs, internal))
            reach("topic.committed")
            self._effects.lead(topic, range(topic.partitions))
        await self.opened(topic)
        log.info("created topic %s (%s) with %d partitions", name, topic.topic_id, partitions)
        return topic

    def _check_free(self, name: str) -> None:
        for topic in self.image.topics.values():
            if topic.name == name:
                raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
            # Kafka refuses these because its metric names map both to one; so do our directory-independent tools.
            if topic.name.replace(".", "_") == name.replace(".", "_"):
                raise ApiError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {topic.name}"
                )

    def _check_room(self) -> None:
        """Before topics or configs are added; what takes some away is always welcome."""
        size = self._cluster.image_bytes
        if size > IMAGE_BYTES_MAX:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"the cluster's metadata takes {size >> 20} MiB, at most {IMAGE_BYTES_MAX >> 20} are kept: delete "
                "topics, or configs of topics",
            )

    async def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        """Let a topic have `count` partitions in all."""
        async with self._turn(self._changes):
            await self._settle()
            topic = self.topic(name)
            if count <= topic.partitions:
                has = topic.partitions
                same, fewer = f"Topic already has {has} partition(s).", f"; {count} would not be an increase."
                raise ApiError(
                    ErrorCode.INVALID_PARTITIONS,
                    same if count == has else f"The topic {name} currently has {has} partition(s){fewer}",
                )
            if count > PARTITIONS_PER_TOPIC_MAX:
                raise ApiError(ErrorCode.INVALID_PARTITIONS, f"at most {PARTITIONS_PER_TOPIC_MAX} partitions a topic")
            if validate_only:
                return
            await self._commit(PartitionsAdded(topic.topic_id, count))
            self._effects.lead(self.topic(name), range(topic.partitions, count))
        await self.opened(topic)

    async def set_configs(
        self,
        name: str,
        change: Callable[[Topic], Mapping[str, str]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Replace a topic's explicit overrides by what `change`, which judges them, makes of the topic."""
        async with self._turn(self._changes):
            await self._settle()
            topic = self.topic(name)
            configs = dict(change(topic))
            if configs.keys() - topic.configs.keys():
                self._check_room()
            if validate_only or configs == topic.configs:
                return
            await self._commit(TopicConfigsSet(topic.topic_id, configs))
            self._effects.reconfigure(self.topic(name))

    async def set_broker_configs(
        self,
        node_id: int | None,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Replace what was set on a node (None: on every broker) by what `change`, which judges it, makes of it."""
        async with self._turn(self._changes):
            await self._settle()
            image = self.image
            existing = image.cluster_configs if node_id is None else image.node_configs.get(node_id, {})
            configs = dict(change(existing))
            if validate_only or configs == existing:
                return
            await self._commit(BrokerConfigsSet(configs, node_id))
            self._follow_configs()
        log.info("configs set on %s: %s", "every broker" if node_id is None else f"broker {node_id}", configs)

    def _follow_configs(self) -> None:
        if self._config.follow(*self.image.configs_of(self._config.now.node_id)):
            self._effects.follow_config()

    async def delete_topic(self, name: str, topic_id: str | None = None) -> Topic:
        """Free the name and stop serving. `topic_id`: only the topic of this id, whoever has the name now (KIP-516).

        Files and objects follow in the background, remembered until they are gone.
        """
        async with self._turn(self._changes):
            await self._settle()
            if topic_id is not None and topic_id not in self.image.topics:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
            topic = self.topic(name)
            if topic.internal:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} is internal and cannot be deleted")
            await self._commit(TopicDeleted(topic.topic_id))
            reach("topic.deleted")
            self._effects.withdraw(topic)
            self._effects.purge(topic)
        log.info("deleted topic %s (%s); its objects go next", name, topic.topic_id)
        return topic

    async def forget(self, topic: Topic) -> None:
        """A deleted topic of which nothing is left."""
        async with self._turn(self._changes):
            await self._settle()
            await self._commit(TopicPurged(topic.topic_id))

    async def next_producer_id(self) -> int:
        """A producer id never given before: blocks are reserved by compare-and-set before use (C7)."""
        async with self._turn(self._producer_ids_lock):
            if not self._producer_ids:
                async with self._turn(self._changes):
                    await self._settle()
                    first = self.image.producer_ids_end
                    await self._commit(ProducerIdsReserved(first + PRODUCER_ID_BLOCK))
                self._producer_ids = range(first, first + PRODUCER_ID_BLOCK)
            given, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
            return given

    async def opened(self, topic: Topic) -> None:
        """Wait until the partitions of `topic` that were decided so far are open; deleted first, it is an ApiError."""
        await self._effects.opened(topic.topic_id)
        if topic.topic_id not in self.image.topics:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} was deleted before it could be opened"
            )

    def topic(self, name: str) -> Topic:
        """ApiError UNKNOWN_TOPIC_OR_PARTITION when there is none of this name."""
        topic = self.image.topic_named(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    async def keep_settled(self) -> None:
        """Until cancelled: a change whose outcome was unknown takes effect here although nobody asks for another."""
        while True:
            await asyncio.sleep(_SETTLE_S)
            if self._in_doubt:
                try:
                    async with self._turn(self._changes):
                        await self._settle()
                except Retryable as unanswered:
                    log.warning("a change of the cluster is still in doubt: %s", unanswered)

    @asynccontextmanager
    async def _turn(self, lock: asyncio.Lock) -> AsyncIterator[None]:
        """The lock, or Retryable: a bucket that is away must not make each wait for all who came before."""
        try:
            async with asyncio.timeout(_TURN_S):
                await lock.acquire()
        except TimeoutError as late:
            raise Retryable(f"earlier changes of the cluster still wait for the bucket after {_TURN_S:.0f} s") from late
        try:
            yield
        finally:
            lock.release()

    async def _commit(self, *records: MetadataRecord) -> None:
        self._in_doubt = True  # also when the caller is cancelled in the middle: the PUT may land
        self.image = await self._cluster.commit(records)
        self._in_doubt = False

    async def _settle(self) -> None:
        """Learn what became of a commit in doubt, and begin what follows from it. Errors as a commit's."""
        if not self._in_doubt:
            return
        image, before, effects = await self._cluster.settle(), self.image, self._effects
        self.image = image
        self._in_doubt = False
        self._follow_configs()
        for topic in before.topics.values():
            if topic.topic_id not in image.topics:
                log.warning("the deletion of topic %s (%s) came true", topic.name, topic.topic_id)
                effects.withdraw(topic)
                effects.purge(topic)
        for topic in image.topics.values():
            known = before.topics.get(topic.topic_id)
            if known is not None and known.configs != topic.configs:
                effects.reconfigure(topic)
            served = 0 if known is None else known.partitions
            if served < topic.partitions:
                log.warning("the change of topic %s (%s) came true", topic.name, topic.topic_id)
                effects.lead(topic, range(served, topic.partitions))

    @property
    def _effects(self) -> Effects:
        assert self.effects is not None, "the controller serves only after its effects are wired"
        return self.effects
