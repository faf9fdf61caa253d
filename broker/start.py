"""The order in which a broker comes up, in one place.

Addresses are bound before anything is touched; the data directory is locked before the bucket is asked; the right to
serve is committed before anything is served, and before the clean-shutdown marker goes; what the image says is
published, and its logs open, before groups load; clients are let in last. Must not know what cuts a start short, when a
broker ends (app), or how it goes down (components).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.context import Context
from broker.controller.cluster_defaults import commit_defaults
from broker.dispatcher import BrokerDispatcher
from broker.fetch_sessions.cache import FetchSessions
from broker.following.response_cache import ResponseCache
from broker.groups.coordinator import GroupCoordinator
from broker.internal_topics.rewriting import Rewrites
from broker.internal_topics.snapshots import Snapshots
from broker.internal_topics.watcher import InternalTopicWatcher
from broker.membership.broker_fitness import BrokerFitness
from broker.membership.session import Session, StartedSession
from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.rebuilt import is_rebuilt
from broker.metadata.records import Listener
from broker.metrics.counters import BrokerMetrics
from broker.metrics.outage_log import OutageLog
from broker.observe.sources import Sources
from broker.observe.status import Health, Waits
from broker.partition.leading.produce_backpressure import ProduceBackpressure
from broker.peers.links import Links
from broker.startup.bucket_probe import first_probe
from broker.startup.cold_prefetch import ColdPrefetch
from broker.startup.components import Components
from broker.startup.directory_claim import enter
from broker.startup.limits import tier_limits
from broker.startup.listeners import Listeners
from broker.startup.offsets_topic import OffsetsTopic
from broker.startup.wiring import MetadataWiring, obeying
from coldstore.object_store import ObjectStore
from coldstore.stores.metered import MeteredStore
from hotstore.host.data_dir import DataDir
from hotstore.host.log_host import LogHost
from hotstore.host.residency import Residency
from seams.tasks import FailureReport, Tasks, supervise
from seams.world import World
from tiering.opening.read_ahead import ReadAhead
from tiering.service import TierService

log = logging.getLogger(__name__)

_FRESH_S: Final = 10.0
"""How old the newest answer may be for what lets go of data (R23): two polls at their rarest (5 s), so that one that is
slow holds nothing back. Others may lead before it is over, at once where this broker's port refuses: their claims fence
it, and what it lets go of until then is what its newest configs ask for."""

StoreOpener = Callable[[BrokerConfig, World], ObjectStore]


@dataclass(frozen=True, slots=True)
class Start:
    """One start. `config` is the one the broker was started with, `live` the one it runs with; in `components` stands
    what was made so far, for the stop; `keep_session` runs from the moment the right to serve is committed."""

    config: BrokerConfig
    live: LiveConfig
    world: World
    open_bucket: StoreOpener
    listening: Listeners
    dispatcher: BrokerDispatcher
    components: Components
    tasks: Tasks
    health: Health
    waits: Waits
    metrics: BrokerMetrics
    outage: OutageLog
    report: FailureReport
    keep_session: Callable[[], Awaitable[None]]

    async def prepare(self) -> None:
        """What takes no time and asks nobody. Raises Refused, DataDirLocked, OSError."""
        self.health.starting("binding its addresses")
        await self.listening.bind()
        self.health.starting("opening the data directory")
        self.components.data_dir = await self.world.workers.run(DataDir.open, self.world.disk, self.config.data_dir)

    async def serve(self) -> Sources:
        """All that follows, until clients are let in. May be cancelled: `components` has what there is to stop."""
        data_dir, world = self.components.data_dir, self.world
        assert data_dir is not None
        bucket = self.open_bucket(self.config, world)
        self.components.store = store = MeteredStore(bucket, world.clock)
        # Not through the meters: it loses races and sends wrong checksums on purpose.
        probed = await first_probe(bucket, world, self.outage, self.health)
        cluster = ClusterRoot(store, world.rng, world.clock, world.workers)
        config = self.config
        listener, answer_bytes_max = config.brokers_listener, config.request_bytes_max
        self.components.links = links = Links(world.net, config.node_id, listener, answer_bytes_max)
        limits = tier_limits(config, probed)
        ahead = ReadAhead(store, world, limits.store_timeout_s)
        session, joined = await self._join(store, cluster, links, data_dir, ahead)
        logs = LogHost(data_dir, world, self.report)
        self.components.tiers = tiers = TierService(
            store,
            world,
            logs,
            self.tasks,
            limits,
            report=self.report,
            is_fresh=lambda: world.clock.boottime_s() - session.fresh.confirmed_s <= _FRESH_S,
            is_complete=lambda: not is_rebuilt(following.metadata.image),
            ahead=ahead,
        )
        assert joined.identity.cluster_id is not None
        following = obeying(
            self.live,
            world,
            cluster,
            joined.identity.cluster_id,
            logs,
            tiers,
            links,
            self.tasks,
            self.report,
            session.step_back,
            session.poll_soon,
        )
        self.components.replicas = following.replicas
        for name, service in following.kept.items():
            self._keep(name, service)
        await tiers.start()
        fitness = BrokerFitness(following.registry.log_failures, lambda: logs.ballast.is_short)
        await self._publish(following, session, tiers, joined, fitness)
        ahead.forget()
        self.tasks.spawn("cluster defaults", self._settle_defaults(following))
        context = self._context(following, joined, session, tiers)
        self.dispatcher.serve(context)
        await self.listening.accept(self.live)
        damaged = following.replicas.damaged
        snapshots = self.components.snapshots
        assert snapshots is not None
        feed = following.feed
        return Sources(
            context,
            tiers,
            store,
            self.listening.server,
            session,
            self.health,
            snapshots,
            damaged,
            lambda: feed.position,
            logs.directories.strays,
            cluster,
            following.brokers,
            following.turnover,
        )

    async def _settle_defaults(self, following: MetadataWiring) -> None:
        door, metadata, config = following.controller, following.metadata, self.config

        async def settle() -> None:
            await commit_defaults(door, metadata, config.node_id, config.configured)

        await supervise("cluster defaults", settle, self.world.rng, self.report)

    async def _join(
        self, store: ObjectStore, cluster: ClusterRoot, links: Links, data_dir: DataDir, ahead: ReadAhead
    ) -> tuple[Session, StartedSession]:
        """The right to serve. What is lost here is read `ahead`, where it has to be waited for."""
        config, world = self.config, self.world
        reading = ColdPrefetch(ahead, store, world, data_dir, config.node_id, self.tasks)

        def waits_for(what: str) -> None:
            self.health.starting(what)
            reading.begin()

        self.components.session = session = Session(store, cluster, world, links, config.times, waits_for=waits_for)
        self.health.starting("waiting for the right to serve the bucket")
        listeners = tuple(Listener(name, *address) for name, address in self.listening.advertised.items())
        try:
            joined = await enter(session, data_dir, config, listeners, world)
        finally:
            reading.end()
        self._keep("session", self.keep_session)
        return session, joined

    async def _publish(
        self,
        following: MetadataWiring,
        session: Session,
        tiers: TierService,
        joined: StartedSession,
        fitness: BrokerFitness,
    ) -> None:
        """Obey the image of the claim, and wait until its logs are open."""
        replicas, topics = following.replicas, joined.at.image.topics
        await replicas.aside.move_all(joined.at.image)
        led = self.config.node_id
        total = sum(row.leader == led for topic in topics.values() for row in topic.rows)
        with (
            tiers.holding_back(is_start=True),
            self.waits.counting(lambda: f"opening logs: {replicas.opened_count} of {total} partitions"),
        ):
            following.feed.take(joined.at)
            session.follow(following.feed, following.brokers, joined, fitness)
            await asyncio.gather(*[replicas.opened(topic_id) for topic_id in topics])
        self._keep("checkpoints", replicas.upkeep.keep_checkpoints)
        self._keep("ticks", replicas.upkeep.keep_ticking)
        self._keep("retention of copies", replicas.keep_expiring)
        self._keep("strays", replicas.aside.keep_removing)

    def _groups(self, following: MetadataWiring, session: Session) -> GroupCoordinator:
        config, world = self.live.now, self.world
        registry, metadata, replicas = following.registry, following.metadata, following.replicas
        self.components.groups = groups = GroupCoordinator(
            OffsetsTopic(following.controller, registry, metadata, config),
            world.clock,
            world.rng,
            config.groups,
            self.tasks,
            topics=metadata.facts,
            names=metadata.name_of,
            leaving=metadata.leaving,
            keep_objects=world.keep_objects,
            in_session=lambda: session.fresh.is_in_session,
        )
        self.components.snapshots = snapshots = Snapshots(groups.log, world.clock)
        offsets = InternalTopicWatcher(groups.log, world.clock, world.workers)
        replicas.watch(offsets)
        replicas.watch(groups)
        # Not before an image is obeyed: a position in a topic that it lacks is taken for one of a deleted topic.
        for partition in registry.partitions.values():
            offsets.led(partition)
        groups.start()
        self._keep("group snapshots", snapshots.keep)
        self._keep("group rewrites", Rewrites(groups.log).keep)
        return groups

    def _context(
        self, following: MetadataWiring, joined: StartedSession, session: Session, tiers: TierService
    ) -> Context:
        config, world = self.live.now, self.world
        self.components.residency = residency = Residency(world.workers, report=self.report)
        return Context(
            live=self.live,
            world=world,
            registry=following.registry,
            throttle=ProduceBackpressure(self.tasks, tiers.watch),
            residency=residency,
            metadata=following.metadata,
            controller=following.controller,
            brokers=following.brokers,
            producer_ids=ProducerIds(joined.broker_epoch),
            groups=self._groups(following, session),
            fetch_sessions=FetchSessions(world.rng, config.fetch_sessions_max),
            response_cache=ResponseCache(),
            gate=session.gate,
            metrics=self.metrics,
            tasks=self.tasks,
            live_configs=self.listening.live_configs(),
            images=following.feed,
            forward=following.forward,
        )

    def _keep(self, name: str, service: Callable[[], Awaitable[None]]) -> None:
        self.tasks.spawn(name, supervise(name, service, self.world.rng, self.report))
