"""The start of a read-only broker.

Its store refuses writes, so that no request can write to the bucket. Its data directory holds a lock and a chunk cache,
but never a log. It cannot share the data directory of another broker.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.context import Context
from broker.controller.controller_requests import ControllerRequests
from broker.dispatcher import BrokerDispatcher
from broker.fetch_sessions.cache import FetchSessions
from broker.following.image_feed import ImageFeed
from broker.following.metadata_cache import MetadataCache
from broker.following.publisher import Publisher
from broker.following.response_cache import ResponseCache
from broker.groups.coordinator import GroupCoordinator
from broker.internal_topics.interfaces import Replayed
from broker.membership.serving_gate import ServingGate
from broker.membership.session_start import Refused
from broker.metadata.cluster_root import ClusterRoot, ImageAt
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.records import Endpoint, Node
from broker.metrics.counters import BrokerMetrics
from broker.metrics.outage_log import OutageLog
from broker.observe.status import Health
from broker.partition.leading.produce_backpressure import ProduceBackpressure
from broker.partition.registry import Registry
from broker.peers.forward import Forward
from broker.peers.links import Links
from broker.read_only.archive import Archive, ArchiveImages
from broker.read_only.cluster_poller import ClusterPoller
from broker.read_only.handlers import NoCommitQueue, own_handlers
from broker.read_only.root_cache import RootCache
from broker.read_only.views import ReadOnlySources
from broker.startup.components import Components
from broker.startup.limits import quota_managers, tier_limits
from broker.startup.listeners import Listeners
from coldstore.object_store import ObjectStore
from coldstore.stores.metered import MeteredStore
from coldstore.stores.read_only import ReadOnlyStore
from hotstore.host.data_dir import DataDir
from hotstore.host.residency import Residency
from logformat.errors import Fenced
from logformat.record_batch import read_header
from logformat.values import NewerFormat
from seams.loop.tasks import FailureReport, Tasks, supervise
from seams.world import World
from tiering.reading.cold_reader import open_cold_reader
from tiering.service import CACHE_DIRECTORY

log = logging.getLogger(__name__)

_NO_JUMP_IS_TOO_LONG_S: Final = float("inf")  # a read-only broker has no lease to lose

GROUPS_PARTITION: Final = 0


class _NoPressure:
    local_excess_ratio = 0.0


def read_only_config(config: BrokerConfig) -> BrokerConfig:
    """The configuration without a listener for brokers and without automatic creation of topics."""
    return replace(config, internal=None, auto_create_topics_enable=False)


class ReadOnlyStart(msgspec.Struct, frozen=True):
    """One start. `config`: a result of `read_only_config`. `components` collects the created objects, for the stop.
    `ended` is called once, with the reason, when polling the bucket has to end."""

    config: BrokerConfig
    live: LiveConfig
    world: World
    open_bucket: Callable[[BrokerConfig, World], ObjectStore]
    listening: Listeners
    dispatcher: BrokerDispatcher
    components: Components
    tasks: Tasks
    health: Health
    metrics: BrokerMetrics
    outage: OutageLog
    report: FailureReport
    ended: Callable[[str], None]

    async def prepare(self) -> None:
        """Bind the addresses and lock the data directory. Raises Refused, DataDirLocked, OSError."""
        self.health.starting("binding its addresses")
        await self.listening.bind()
        self.health.starting("opening the data directory")
        workers = self.world.workers
        self.components.data_dir = data_dir = await workers.run(DataDir.open, self.world.disk, self.config.data_dir)
        logs = await workers.run(data_dir.partitions)
        if data_dir.meta is not None or logs:
            raise Refused(
                f"{data_dir.path} is the data directory of a broker that writes: give the read-only "
                "broker a --data-dir of its own"
            )

    async def serve(self) -> ReadOnlySources:
        """Do the rest of the start, until clients are accepted. The start may be cancelled; `components` then has the
        objects to stop."""
        config, world = self.config, self.world
        self.components.store = store = MeteredStore(ReadOnlyStore(self.open_bucket(config, world)), world.clock)
        cluster = ClusterRoot(store, world.rng, world.clock, world.workers)
        images = ArchiveImages(self._node())

        def taken(at: ImageAt) -> None:
            feed.take(ImageAt(at.position, images.of(at.image)))

        poller = ClusterPoller(cluster, world, self.outage, taken)
        loaded = await poller.begin(self.health)
        metadata = MetadataCache(loaded.cluster_id, world.clock.monotonic_s)
        registry = Registry(metadata, config.node_id)
        self.components.cold = cold = open_cold_reader(
            store, world, self.tasks, f"{config.data_dir}/{CACHE_DIRECTORY}", tier_limits(config, None)
        )
        await cold.start()
        roots = RootCache(store, cold, world, self.tasks, poller.newer)
        archive = Archive(registry, roots)
        feed = ImageFeed(Publisher(archive, metadata, self.live, config.node_id))
        if (authorizer := self.dispatcher.clients.authorizer) is not None:
            feed.watch(lambda at: authorizer.follow(at.image.acls))
        taken(loaded.at)
        archive.groups = groups = self._groups(metadata)
        self._spawn_service("roots", roots.keep)
        self.tasks.spawn("following", self._poll(poller))
        context = self._context(registry, metadata, feed, groups)
        self.dispatcher.serve(context, own_handlers(roots))
        self.listening.logins.serve(context.metadata)
        for name, service in self.listening.services.items():
            self._spawn_service(name, service)
        await self.listening.accept(self.live)
        log.info(
            "read-only: serving what %s holds of cluster %s (topics: %d); positions of groups are kept in memory, and "
            "lost when this process ends",
            store.url,
            loaded.cluster_id,
            len(feed.image.topics),
        )
        since_s = world.clock.monotonic_s()
        return ReadOnlySources(
            context, cold, store, self.listening.server, poller, roots, since_s, self.listening.certificates
        )

    def _node(self) -> Node:
        listeners = tuple(Endpoint(name, *address) for name, address in self.listening.advertised.items())
        config = self.config
        return Node(config.node_id, 0, "", "", "", listeners, config.rack)

    async def _poll(self, poller: ClusterPoller) -> None:
        """Poll until polling is impossible. A restart of the process then reads the current state."""
        try:
            await poller.keep()
        except (Refused, NewerFormat) as over:
            self.ended(str(over))

    def _groups(self, metadata: MetadataCache) -> GroupCoordinator:
        world = self.world
        self.components.groups = groups = GroupCoordinator(
            MemoryOffsetsTopic(self.config.node_id),
            world.clock,
            world.rng,
            self.config.groups,
            self.tasks,
            topics=metadata.facts,
            names=metadata.name_of,
            in_session=lambda: True,  # its positions are in memory, and no other broker has them
            is_complete=lambda: True,
            leaving=metadata.leaving,
            keep_objects=world.keep_objects,
        )
        groups.log.lead(MemoryPartition())
        groups.start()
        return groups

    def _context(
        self, registry: Registry, metadata: MetadataCache, feed: ImageFeed, groups: GroupCoordinator
    ) -> Context:
        config, world = self.config, self.world
        self.components.residency = residency = Residency(world.workers, report=self.report)
        self.components.links = links = Links(
            world.net, config.node_id, config.brokers_listener, config.request_bytes_max
        )
        return Context(
            live=self.live,
            world=world,
            registry=registry,
            throttle=ProduceBackpressure(self.tasks, _NoPressure()),
            residency=residency,
            metadata=metadata,
            controller=ControllerRequests(NoCommitQueue(), metadata, self.live, world.rng, _opened),
            producer_ids=ProducerIds(0),
            groups=groups,
            fetch_sessions=FetchSessions(world.rng, config.fetch_sessions_max),
            response_cache=ResponseCache(),
            gate=ServingGate(world.clock.boottime_s, _NO_JUMP_IS_TOO_LONG_S),
            metrics=self.metrics,
            tasks=self.tasks,
            live_configs=self.listening.live_configs(),
            images=feed,
            forward=Forward(metadata, feed, links, config.node_id, config.brokers_listener),
            # No quota is ever set, because quotas belong to the owning cluster.
            quotas=quota_managers(config, world.clock, self.dispatcher.clients),
            clients=self.dispatcher.clients,
        )

    def _spawn_service(self, name: str, service: Callable[[], Awaitable[None]]) -> None:
        self.tasks.spawn(name, supervise(name, service, self.world.rng, self.report))


async def _opened(_: str) -> None:
    """Does nothing: no topic is created here."""


class MemoryPartition:
    """The `ShardLog` of the only shard. Its batches exist only in the shard's state."""

    name = "groups in memory"
    index = GROUPS_PARTITION
    leader_epoch = 0
    is_whole = True

    def __init__(self) -> None:
        self._end = 0

    async def append(self, batch: bytes, *, may_wait: bool = True) -> int:
        self._end += read_header(batch).last_offset_delta + 1
        return self._end - 1

    async def committed(self, end_offset: int) -> None:
        """Returns at once: there is no other replica."""

    def resign(self) -> None:
        """Does nothing, because no append waits."""

    async def replay(self) -> AsyncIterator[Replayed]:
        yield Replayed(0, b"")

    async def start_at(self, offset: int) -> bool:
        """Does nothing: there are no stored batches that could be deleted."""
        return True

    async def snapshot_end(self) -> int:
        return 0

    async def commit_snapshot(self, end_offset: int, batches: bytes) -> None:
        raise Fenced("groups of a read-only broker are in memory only; nothing is written to the bucket")


class MemoryOffsetsTopic:
    """The `broker.groups.coordinator.OffsetsTopic` of broker `node_id`, which coordinates every group."""

    partitions = GROUPS_PARTITION + 1

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id

    def is_offline(self, index: int) -> bool:
        return False

    def leader(self, index: int) -> int:
        return self._node_id

    def leaders(self) -> list[int]:
        return [self._node_id]

    async def ensure_created(self) -> None:
        """Does nothing: there is no topic to create."""
