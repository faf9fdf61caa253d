"""One broker, wired: from a configuration and the seams to a service, and down again.

Owns the order of starting, and when it ends. Always true: nothing is served before this process's epoch is committed to
`cluster.json`; the simulation starts this very wiring with other seams. Must not know command lines or signals (`stop`
is an event), nor the order of stopping (rooms).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TypeVar

from broker.authorizer import Authorizer
from broker.config.addresses import show_address
from broker.config.live import LiveConfig
from broker.config.resolve import BrokerConfig
from broker.context import Context
from broker.controller.admission import DirectoryIdentity, Verdict
from broker.controller.door import ControllerDoor
from broker.controller.gate import Gate
from broker.controller.membership import Joined, Membership, Refused, Station
from broker.controller.office import Office
from broker.dispatcher import BrokerDispatcher
from broker.fetch_sessions import FetchSessions
from broker.first_probe import first_probe
from broker.following.image_feed import ImageFeed
from broker.following.metadata_cache import MetadataCache
from broker.following.publisher import Publisher
from broker.groups.coordinator import GroupCoordinator
from broker.internal_topics.snapshots import Snapshots
from broker.internal_topics.watcher import InternalTopicWatcher
from broker.limits import check_tiering, net_limits, tier_limits
from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.records import Listener
from broker.metrics import BrokerMetrics
from broker.net.server import Bind, Server
from broker.observe.http import HttpServer
from broker.observe.loop_lag import LoopLag
from broker.observe.sources import Beginning, Sources
from broker.observe.status import Health, Waits
from broker.observe.views import operator_views
from broker.offsets_topic import OffsetsTopic
from broker.outage import Outage
from broker.partition.registry import Registry
from broker.partition.replicas import Replicas
from broker.partition.throttle import Throttle
from broker.rooms import Closing, Rooms
from coldstore.object_store import AccessRefused, ObjectStore
from coldstore.probe import StoreRefused
from coldstore.root import NewerFormat
from coldstore.stores.metered import MeteredStore
from coldstore.stores.opening import open_store
from coldstore.url import parse_bucket_url
from hotstore.data_dir import DataDir
from hotstore.errors import DataDirLocked
from hotstore.log_host import LogHost
from hotstore.residency import Residency
from logformat.checkpoints import MetaProperties
from logformat.errors import Corrupt, StorageFailed, ThermoclineError
from seams.tasks import Tasks, supervise
from seams.world import World
from tiering.service import TierService

log = logging.getLogger(__name__)

T = TypeVar("T")


class Exit(IntEnum):
    """Exit codes of `serve` (cli.md)."""

    CLEAN = 0
    FAILED = 1
    REFUSED = 3
    STORAGE_FAILED = 4


StoreOpener = Callable[[BrokerConfig, World], ObjectStore]


async def run(
    config: BrokerConfig,
    world: World,
    stop: asyncio.Event,
    announce: Callable[[str], None],
    *,
    open_bucket: StoreOpener | None = None,
) -> int:
    """Serve until `stop` is set or the broker must end by itself.

    Returns the exit code. `announce` gets the ready line.
    """
    broker = Broker(config, world, open_bucket or open_configured_bucket)
    try:
        await broker.start(stop)
        if not stop.is_set():
            announce(broker.ready_line())
            await broker.serve(stop)
    except (Refused, DataDirLocked, StoreRefused, AccessRefused, NewerFormat) as refused:
        log.error("refused to serve: %s", refused)
        return Exit.REFUSED
    except (StorageFailed, Corrupt, OSError) as failed:
        log.error("storage failed: %s", failed)
        return Exit.STORAGE_FAILED
    finally:
        await broker.close()
    return broker.exit_code


def open_configured_bucket(config: BrokerConfig, world: World) -> ObjectStore:
    """The store that `thermocline.bucket` names."""
    return open_store(parse_bucket_url(config.bucket_url), world)


class Broker:
    """One broker process's wiring. Start once, serve, close once."""

    def __init__(self, config: BrokerConfig, world: World, open_bucket: StoreOpener) -> None:
        self._config = config  # as it was started; what may change since is in `_live`
        self._live = LiveConfig(config)
        self._world = world
        self._open_bucket = open_bucket
        self.rooms = Rooms()
        self._tasks = Tasks(self._report)
        self._dispatcher = BrokerDispatcher(self._tasks, Authorizer(config.brokers_own_listener))
        self._superseded = asyncio.Event()
        self._clean_stop = False
        self._cluster_id = ""
        self.health = Health()
        self.metrics = BrokerMetrics()
        self._outage = Outage(world.clock)  # of the probe; after it the membership has its own
        self._lag = LoopLag()
        self._beginning = Beginning(
            config, self.health, self.metrics, self._store_outage, self._lag, lambda: self.rooms.store
        )
        self._sources: Sources | None = None  # what /metrics and /status show once clients are served
        self._waits = Waits(self.health, self._tasks)
        self.views = operator_views(self._beginning, lambda: self._sources)
        self.exit_code: int = Exit.CLEAN

    # -- starting -----------------------------------------------------------------------------------------------------

    async def start(self, stop: asyncio.Event) -> None:
        """Come up to the point where clients are answered; returns early when `stop` is set while waiting."""
        rooms, world, config = self.rooms, self._world, self._config
        await self._bind()
        self.health.starting("opening the data directory")
        rooms.data_dir = data_dir = await world.workers.run(DataDir.open, world.disk, config.data_dir)
        bucket = self._open_bucket(config, world)
        rooms.store = store = MeteredStore(bucket, world.clock)
        # Not through the meters: it loses races and sends wrong checksums on purpose.
        verify_by_head = await self._until(stop, first_probe(bucket, world, self._outage, self.health))
        if verify_by_head is None:
            return
        cluster = ClusterRoot(store, world.rng, world.clock, world.workers)
        rooms.membership = membership = Membership(
            store,
            cluster,
            world,
            lease_s=config.lease_ms / 1000,
            interval_s=config.lease_interval_ms / 1000,
            waits_for=self.health.starting,
        )
        self.health.starting("waiting for the right to serve the bucket")
        joined = await self._until(stop, membership.join(self._identity(data_dir), self._station()))
        if joined is None:
            return
        await self._settle(data_dir, joined)
        check_tiering(config, joined.image)
        self._tasks.spawn("membership", supervise("membership", self._keep, world.rng, self._report))
        await self._until(stop, self._open(data_dir, store, cluster, joined, verify_by_head=verify_by_head))

    async def _bind(self) -> None:
        """Before anything is touched: a start that cannot listen leaves disk, bucket and lease as they were."""
        rooms, config = self.rooms, self._config
        self.health.starting("binding its addresses")
        if config.http_host is not None:
            rooms.http = HttpServer(self.views)
            await _bound(rooms.http.start(config.http_host, config.http_port), "--http")
            self._tasks.spawn("loop lag", self._lag.keep())  # where somebody can read it
        rooms.server = server = Server(self._world.net, self._dispatcher, net_limits(config), self._report)
        await _bound(server.bind(Bind(*listener.address) for listener in config.listeners), "--listen")
        self._addresses = server.addresses
        self._advertised = {
            listener.name: (listener.advertised_host, listener.advertised_port or self._addresses[listener.name][1])
            for listener in config.listeners
        }

    async def _settle(self, data_dir: DataDir, joined: Joined) -> None:
        """Write what joining settled into `meta.properties`."""
        identity = joined.identity
        assert identity.cluster_id is not None and identity.directory_id is not None
        self._cluster_id = identity.cluster_id
        if joined.verdict is not Verdict.RESUME:
            meta = MetaProperties(identity.cluster_id, self._config.node_id, identity.directory_id)
            await self._world.workers.run(data_dir.format, meta)

    async def _open(
        self, data_dir: DataDir, store: ObjectStore, cluster: ClusterRoot, joined: Joined, *, verify_by_head: bool
    ) -> None:
        rooms, world = self.rooms, self._world
        registry, residency = Registry(), Residency(world.workers)
        rooms.residency = residency
        logs = LogHost(data_dir, world, self._report)
        limits = tier_limits(self._config, verify_by_head=verify_by_head)
        rooms.tiers = tiers = TierService(store, world, logs, self._tasks, limits, report=self._report)
        metadata = MetadataCache(self._cluster_id)
        rooms.replicas = replicas = Replicas(
            self._live,
            world,
            logs,
            registry,
            tiers,
            self._tasks,
            self._report,
            forget=lambda topic: controller.forget(topic),
        )
        feed = ImageFeed(Publisher(replicas, metadata, self._live, self._config.node_id))
        office = Office(cluster, feed)
        controller = ControllerDoor(office, metadata, self._live, world.rng, replicas.opened)
        self._tasks.spawn("controller", supervise("controller", office.keep, world.rng, self._report))
        await tiers.start()
        total = sum(topic.partitions for topic in joined.image.topics.values())
        with (
            tiers.holding_back(),
            self._waits.counting(lambda: f"opening logs: {replicas.opened_count} of {total} partitions"),
        ):
            feed.take(joined.position, joined.image)
            replicas.is_starting = False
            await asyncio.gather(*[replicas.opened(topic_id) for topic_id in joined.image.topics])
        config = self._live.now
        rooms.groups = groups = GroupCoordinator(
            OffsetsTopic(controller, registry, config),
            world.clock,
            world.rng,
            config.groups,
            self._tasks,
            topics=registry.facts,
            names=registry.names.get,
            leaving=metadata.leaving,
            keep_objects=world.keep_objects,
        )
        rooms.snapshots = snapshots = Snapshots(groups.log, world.clock)
        offsets = InternalTopicWatcher(groups.log, world.clock, world.workers)
        replicas.watch(offsets)
        replicas.watch(groups)
        # Not before all topics are known: a position in a topic that is not would be taken for one of a deleted topic.
        for partition in registry.partitions.values():
            offsets.led(partition)
        groups.start()
        for name, service in (
            ("group snapshots", snapshots.keep),
            ("checkpoints", replicas.upkeep.keep_checkpoints),
            ("ticks", replicas.upkeep.keep_ticking),
        ):
            self._tasks.spawn(name, supervise(name, service, world.rng, self._report))
        context = Context(
            live=self._live,
            world=world,
            registry=registry,
            throttle=Throttle(self._tasks, tiers.watch),
            residency=residency,
            metadata=metadata,
            controller=controller,
            producer_ids=ProducerIds(joined.image.nodes[config.node_id].broker_epoch),
            groups=groups,
            fetch_sessions=FetchSessions(world.rng, config.fetch_sessions_max),
            gate=self._gate,
            metrics=self.metrics,
            tasks=self._tasks,
            advertised=self._advertised,
            live_configs=self._bound_addresses(),
        )
        await self._listen(context)

    def _bound_addresses(self) -> dict[str, str]:
        """Configs that name a port of 0, as they came out."""
        found = {"listeners": self._listeners_bound()}
        if self.rooms.http is not None:
            found["thermocline.http"] = show_address(*self.rooms.http.address)
        return found

    def _listeners_bound(self) -> str:
        return ",".join(f"{name}://{show_address(*address)}" for name, address in self._addresses.items())

    async def _listen(self, context: Context) -> None:
        rooms = self.rooms
        server, tiers, membership, store, replicas = (
            rooms.server,
            rooms.tiers,
            rooms.membership,
            rooms.store,
            rooms.replicas,
        )
        assert server and tiers and membership and store and replicas
        self._live.tell(lambda now: server.limit_connections(net_limits(now)))
        self._dispatcher.serve(context)
        await _bound(server.accept(), "--listen")
        self._sources = Sources(context, tiers, store, server, membership, self.health, replicas.damaged)
        self.health.ready()
        self._world.keep_objects()

    def _store_outage(self) -> Outage:
        membership = self.rooms.membership
        return self._outage if membership is None else membership.outage

    def _identity(self, data_dir: DataDir) -> DirectoryIdentity:
        meta, has_logs = data_dir.meta, bool(data_dir.partitions())
        if meta is None:
            return DirectoryIdentity(None, None, None, has_logs)
        return DirectoryIdentity(meta.cluster_id, meta.node_id, meta.directory_id, has_logs)

    def _station(self) -> Station:
        config = self._config
        listeners = tuple(Listener(name, host, port) for name, (host, port) in self._advertised.items())
        return Station(config.node_id, listeners, config.rack, config.take_over)

    # -- serving ------------------------------------------------------------------------------------------------------

    @property
    def _gate(self) -> Gate:
        assert self.rooms.membership is not None
        return self.rooms.membership.gate

    def ready_line(self) -> str:
        """The one line scripts wait for (cli.md)."""
        http = self.rooms.http
        where = "-" if http is None else show_address(*http.address)
        assert self.rooms.store is not None
        first = next(iter(self._addresses.values()))
        line = (
            f"ready kafka={show_address(*first)} http={where} node={self._config.node_id} "
            f"cluster={self._cluster_id} data={self._config.data_dir} bucket={self.rooms.store.url}"
        )
        return line if len(self._addresses) == 1 else f"{line} listeners={self._listeners_bound()}"

    async def serve(self, stop: asyncio.Event) -> None:
        """Wait until told to stop, or until another broker serves the bucket."""
        await self._until(stop, self._superseded.wait())
        self._clean_stop = not self._superseded.is_set()

    async def _keep(self) -> None:
        assert self.rooms.membership is not None
        await self.rooms.membership.keep()
        by = self._gate.superseded_by
        log.error("superseded by %s: answering nothing more, exiting", by)
        self.exit_code = Exit.REFUSED
        self._superseded.set()

    async def _until(self, stop: asyncio.Event, work: Awaitable[T]) -> T | None:
        """The result of `work`, or None when `stop` was set (or this broker superseded) first."""
        task = self._tasks.spawn("start", _awaited(work), awaited=True)
        halts = [self._tasks.spawn("stop", stop.wait()), self._tasks.spawn("superseded", self._superseded.wait())]
        try:
            await asyncio.wait([task, *halts], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for waiting in (task, *halts):
                waiting.cancel()

    def _report(self, name: str, failure: BaseException) -> None:
        """Where failures of background work go: the log, a counter, and `/healthz`."""
        self.metrics.unexpected_errors += 1
        self.health.failed(name, failure)
        # What disks and stores refuse says where by itself; only what nobody expected needs a trace.
        expected = isinstance(failure, ThermoclineError | OSError)
        log.error("%s failed: %s", name, failure, exc_info=None if expected else failure)

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Down again: cleanly when `stop` asked for it, at once when superseded or failed."""
        self.health.starting("stopping")
        closing = Closing(self.rooms, self._config, self._world.workers, self._tasks, self._waits, self._report)
        # A superseded broker's answers never leave: draining would only keep it here for the whole timeout.
        await closing.close(clean=self._clean_stop, drain=not self._superseded.is_set())


async def _bound(start: Awaitable[None], flag: str) -> None:
    """An address that is taken, or not this machine's, is a wrong start, not broken storage."""
    try:
        await start
    except OSError as failed:
        raise Refused(f"cannot listen: {failed}; stop what uses the address, or choose another with {flag}") from failed


async def _awaited(work: Awaitable[T]) -> T:
    return await work
