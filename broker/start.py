"""The start of a broker, step by step.

1. Bind the addresses, then lock the data directory, then probe the bucket.
2. Commit the session; then remove the clean-shutdown marker.
3. Apply the image and open its logs, then load groups, then accept clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

import msgspec

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.context import Context
from broker.controller.cluster_defaults import commit_defaults
from broker.dispatcher import BrokerDispatcher
from broker.fetch_sessions.cache import FetchSessions
from broker.following.response_cache import ResponseCache
from broker.groups.coordinator import GroupCoordinator
from broker.internal_topics.led_partition import InternalTopicWatcher
from broker.internal_topics.rewriting import Rewrites
from broker.internal_topics.snapshots import Snapshots
from broker.membership.broker_fitness import BrokerFitness
from broker.membership.session import Session, StartedSession
from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.image import ClusterImage
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.rebuilt import is_rebuilt
from broker.metadata.records import NO_LEADER, Endpoint
from broker.metrics.counters import BrokerMetrics
from broker.metrics.outage_log import OutageLog
from broker.observe.sources import Sources
from broker.observe.status import Health, Waits
from broker.partition.leading.produce_backpressure import ProduceBackpressure
from broker.peers.link_login import link_login
from broker.peers.links import Links
from broker.quotas.client_quotas import QuotaManagers
from broker.quotas.connection_rates import ConnectionRates
from broker.startup.address_quotas import AddressQuotas
from broker.startup.bucket_probe import ColdPrefetch, probe_bucket
from broker.startup.components import Components
from broker.startup.directory_claim import claim_directory
from broker.startup.limits import quota_managers, tier_limits
from broker.startup.listeners import Listeners
from broker.startup.offsets_topic import ClusterOffsetsTopic, ClusterTransactionsTopic
from broker.startup.wiring import MetadataWiring, wire_metadata
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.marker_sender import MarkerSender
from broker.transactions.open_ended import OpenEnded
from broker.transactions.peers import CoordinatorOutcomes, Coordinators, CoordinatorVerifier
from broker.transactions.pending_markers import DELETED
from broker.wire.primitives import ZERO_UUID
from coldstore.object_store import ObjectStore
from coldstore.stores.metered import MeteredStore
from hotstore.cleaning.engine import CleanerEngine
from hotstore.cleaning.log_cleaner import LogCleaner
from hotstore.host.data_dir import DataDir
from hotstore.host.log_host import LogHost
from hotstore.host.residency import Residency
from seams.loop.tasks import FailureReport, Tasks, supervise
from seams.world import World
from tiering.opening.read_ahead import ReadAhead
from tiering.service import TierService

_FRESH_S: Final = 10.0
"""Maximal age of the newest confirmed image for deletions of data (R23): two polls at the longest interval (5 s), so
that one slow poll delays nothing. Another broker may lead sooner than that, even at once if this broker's port refuses
connections. Its claim fences this broker. Before such a claim, this broker deletes by the newest configs that it has.
"""

EngineMaker = Callable[[], CleanerEngine]
StoreOpener = Callable[[BrokerConfig, World], ObjectStore]


class BrokerStart(msgspec.Struct, frozen=True):
    """One start. `config` is the initial configuration, `live` the current one. `components` collects the created
    objects, for the stop. `keep_session` runs as a service after the session is committed."""

    config: BrokerConfig
    live: LiveConfig
    world: World
    open_bucket: StoreOpener
    make_engine: EngineMaker
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
        """Bind the addresses and lock the data directory. Raises Refused, DataDirLocked, OSError."""
        self.health.starting("binding its addresses")
        await self.listening.bind()
        self.health.starting("opening the data directory")
        self.components.data_dir = await self.world.workers.run(DataDir.open, self.world.disk, self.config.data_dir)

    async def serve(self) -> Sources:
        """Do the rest of the start, until clients are accepted. The start may be cancelled; `components` then has the
        objects to stop."""
        data_dir, world = self.components.data_dir, self.world
        assert data_dir is not None
        bucket = self.open_bucket(self.config, world)
        self.components.store = store = MeteredStore(bucket, world.clock)
        # The probe is not metered, because it loses races and sends wrong checksums on purpose.
        probed = await probe_bucket(bucket, world, self.outage, self.health)
        cluster = ClusterRoot(store, world.rng, world.clock, world.workers)
        config = self.config
        listener, answer_bytes_max = config.brokers_listener, config.request_bytes_max
        self.components.links = links = Links(
            world.net,
            config.node_id,
            listener,
            answer_bytes_max,
            self.listening.certificates.of(listener),
            link_login(config, world),
        )
        limits = tier_limits(config, probed)
        ahead = ReadAhead(store, world, limits.store_timeout_s)
        session, joined = await self._join(store, cluster, links, data_dir, ahead)
        logs = LogHost(data_dir, world, self.report)

        def is_complete() -> bool:
            return not is_rebuilt(following.metadata.image)

        self.components.tiers = tiers = TierService(
            store,
            world,
            logs,
            self.tasks,
            limits,
            report=self.report,
            is_fresh=lambda: world.clock.boottime_s() - session.fresh.confirmed_s <= _FRESH_S,
            is_complete=is_complete,
            ahead=ahead,
            engine=self.make_engine(),
            cleaner=lambda: self.live.now.cleaner,
        )
        assert joined.identity.cluster_id is not None
        following = wire_metadata(
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
        if (authorizer := self.dispatcher.clients.authorizer) is not None:
            following.feed.watch(lambda at: authorizer.follow(at.image.acls))
        for name, service in following.services.items():
            self._spawn_service(name, service)
        self.components.cleaner = cleaner = LogCleaner(
            logs, world, lambda: self.live.now.cleaner, self.make_engine, is_complete
        )
        await tiers.start()
        fitness = BrokerFitness(following.registry.log_failures, lambda: logs.ballast.is_short)
        await self._publish(following, session, tiers, joined, fitness)
        for name, service in cleaner.services().items():
            self._spawn_service(name, service)
        ahead.forget()
        self.tasks.spawn("cluster defaults", self._commit_defaults(following))
        context = self._context(following, joined, session, links, tiers)
        self.dispatcher.serve(context)
        self.listening.logins.serve(following.metadata)
        for name, service in self.listening.services.items():
            self._spawn_service(name, service)
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
            cleaner,
            self.components.transaction_snapshots,
            self.listening.certificates,
        )

    async def _commit_defaults(self, following: MetadataWiring) -> None:
        controller, metadata, config = following.controller, following.metadata, self.config

        async def commit() -> None:
            await commit_defaults(controller, metadata, config.node_id, config.configured)

        await supervise("cluster defaults", commit, self.world.rng, self.report)

    async def _join(
        self, store: ObjectStore, cluster: ClusterRoot, links: Links, data_dir: DataDir, ahead: ReadAhead
    ) -> tuple[Session, StartedSession]:
        """Wait until this process may have a session. Meanwhile `ahead` prefetches manifests of lost logs."""
        config, world = self.config, self.world
        reading = ColdPrefetch(ahead, store, world, data_dir, config.node_id, self.tasks)

        def waits_for(what: str) -> None:
            self.health.starting(what)
            reading.begin()

        self.components.session = session = Session(store, cluster, world, links, config.times, waits_for=waits_for)
        self.health.starting("waiting for the right to serve the bucket")
        listeners = tuple(Endpoint(name, *address) for name, address in self.listening.advertised.items())
        try:
            joined = await claim_directory(session, data_dir, config, listeners, world)
        finally:
            reading.end()
        self._spawn_service("session", self.keep_session)
        return session, joined

    async def _publish(
        self,
        following: MetadataWiring,
        session: Session,
        tiers: TierService,
        joined: StartedSession,
        fitness: BrokerFitness,
    ) -> None:
        """Apply the image in which the session was committed, and wait until its logs are open."""
        replicas, topics = following.replicas, joined.at.image.topics
        await replicas.stray_logs.move_all(joined.at.image)
        led = self.config.node_id
        total = sum(row.leader == led for topic in topics.values() for row in topic.rows)
        with (
            tiers.deferring_starts(is_start=True),
            self.waits.reporting(lambda: f"opening logs: {replicas.opened_count} of {total} partitions"),
        ):
            following.feed.take(joined.at)
            session.follow(following.feed, following.brokers, joined, fitness)
            await asyncio.gather(*[replicas.opened(topic_id) for topic_id in topics])
        self._spawn_service("checkpoints", replicas.checkpointing.keep_checkpoints)
        self._spawn_service("ticks", replicas.checkpointing.keep_ticking)
        self._spawn_service("retention of copies", replicas.keep_expiring)
        self._spawn_service("strays", replicas.stray_logs.keep_removing)

    def _groups(self, following: MetadataWiring, session: Session) -> GroupCoordinator:
        config, world, metadata = self.live.now, self.world, following.metadata
        self.components.groups = groups = GroupCoordinator(
            ClusterOffsetsTopic(following.controller, following.registry, metadata, config),
            world.clock,
            world.rng,
            config.groups,
            self.tasks,
            topics=metadata.facts,
            names=metadata.name_of,
            leaving=metadata.leaving,
            keep_objects=world.keep_objects,
            in_session=lambda: session.fresh.is_in_session,
            is_complete=lambda: not is_rebuilt(metadata.image),
        )
        self.components.snapshots = self._begin_coordinator("group", groups, following)
        following.replicas.watch(groups)
        return groups

    def _transactions(
        self, following: MetadataWiring, session: Session, links: Links, producer_ids: ProducerIds
    ) -> TransactionCoordinator:
        config, world, metadata = self.live.now, self.world, following.metadata

        def leader_of(partition: TransactionalPartition) -> int:
            image, topic_id = metadata.image, str(partition.topic_id)
            topic = image.topics.get(topic_id)
            if topic is not None and partition.partition < topic.partitions:
                return topic.rows[partition.partition].leader
            # Another rebuild may bring the topic back, and its transaction needs the marker then (R29).
            return NO_LEADER if is_rebuilt(image) and topic_id not in image.deleted else DELETED

        def topic_id_of(name: str) -> UUID:
            facts = metadata.facts(name)
            return ZERO_UUID if facts is None else facts.topic_id

        self.components.transactions = transactions = TransactionCoordinator(
            ClusterTransactionsTopic(following.controller, following.registry, metadata, config),
            world.clock,
            world.rng,
            config.transactions,
            self.tasks,
            producer_ids.give,
            lambda ended: MarkerSender(links, metadata.active_node, leader_of, world.clock, self.tasks, ended),
            topic_id_of=topic_id_of,
            keep_objects=world.keep_objects,
            in_session=lambda: session.fresh.is_in_session,
        )
        following.feed.watch(lambda _: transactions.sender.image_changed())
        self.components.transaction_snapshots = self._begin_coordinator("transaction", transactions, following)
        return transactions

    def _begin_coordinator(
        self, name: str, coordinator: GroupCoordinator | TransactionCoordinator, following: MetadataWiring
    ) -> Snapshots:
        """Start a coordinator of the led partitions of its internal topic. This runs after an image is applied, because
        offsets of a topic that is not in the image count as offsets of a deleted topic."""
        internal_log, clock = coordinator.log, self.world.clock
        snapshots = Snapshots(internal_log, clock)
        watcher = InternalTopicWatcher(internal_log, clock, self.world.workers)
        following.replicas.watch(watcher)
        for partition in following.registry.partitions.values():
            watcher.led(partition)
        coordinator.start()
        self._spawn_service(f"{name} snapshots", snapshots.keep)
        self._spawn_service(f"{name} rewrites", Rewrites(internal_log).keep)
        return snapshots

    def _context(
        self, following: MetadataWiring, joined: StartedSession, session: Session, links: Links, tiers: TierService
    ) -> Context:
        config, world = self.live.now, self.world
        self.components.residency = residency = Residency(world.workers, report=self.report)
        producer_ids = ProducerIds(joined.broker_epoch)
        transactions = self._transactions(following, session, links, producer_ids)
        coordinators = Coordinators(transactions, links, config.node_id, following.metadata.active_node)
        outcomes = CoordinatorOutcomes(coordinators)
        groups, live = self._groups(following, session), self.live
        ended = OpenEnded(
            following.registry.partitions,
            outcomes,
            world.clock,
            lambda: live.now.transactions.timeout_max_ms,
            groups.undecided,
        )
        self._spawn_service("ending of hanging transactions", ended.keep)
        return Context(
            live=self.live,
            world=world,
            registry=following.registry,
            throttle=ProduceBackpressure(self.tasks, tiers.watch),
            residency=residency,
            metadata=following.metadata,
            controller=following.controller,
            brokers=following.brokers,
            producer_ids=producer_ids,
            groups=groups,
            transactions=transactions,
            verifier=CoordinatorVerifier(coordinators),
            fetch_sessions=FetchSessions(world.rng, config.fetch_sessions_max),
            response_cache=ResponseCache(),
            gate=session.gate,
            metrics=self.metrics,
            tasks=self.tasks,
            live_configs=self.listening.live_configs(),
            images=following.feed,
            forward=following.forward,
            quotas=self._quotas(following),
            clients=self.dispatcher.clients,
        )

    def _quotas(self, following: MetadataWiring) -> QuotaManagers:
        quotas = quota_managers(self.live.now, self.world.clock, self.dispatcher.clients)
        rates = ConnectionRates(quotas.produce.windows)
        addresses = AddressQuotas(rates, self.world.net, self.tasks)
        self.listening.server.limit_addresses(rates)

        def apply(image: ClusterImage) -> None:
            quotas.apply_image(image)
            addresses.apply_image(image)

        apply(following.metadata.image)
        following.feed.watch(lambda at: apply(at.image))
        return quotas

    def _spawn_service(self, name: str, service: Callable[[], Awaitable[None]]) -> None:
        self.tasks.spawn(name, supervise(name, service, self.world.rng, self.report))
