"""The order in which a broker comes up, in one place.

Addresses are bound before anything is touched; the data directory is locked before the bucket is asked; the right to
serve is committed before anything is served, and before the clean-shutdown marker goes; what the image says is
published, and its logs open, before groups load; clients are let in last. Must not know what cuts a start short, when a
broker ends (app), or how it goes down (rooms).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.config.live import LiveConfig
from broker.config.resolve import BrokerConfig
from broker.context import Context
from broker.controller import unclean_elections
from broker.controller.attendance import Attendance
from broker.controller.brokers import PartitionProposal, ProposalsAsked
from broker.controller.cluster_defaults import settle_defaults
from broker.controller.door import ControllerDoor
from broker.controller.elsewhere import Elsewhere
from broker.controller.office import Office
from broker.controller.remote_brokers import RemoteBrokers
from broker.controller.unclean_elections import UncleanElections
from broker.dispatcher import BrokerDispatcher
from broker.error_codes import ErrorCode
from broker.fetch_sessions import FetchSessions
from broker.first_probe import first_probe
from broker.following.image_feed import ImageFeed
from broker.following.metadata_cache import MetadataCache
from broker.following.publisher import Publisher
from broker.following.turnover import Turnover
from broker.groups.coordinator import GroupCoordinator
from broker.internal_topics.rewriting import Rewrites
from broker.internal_topics.snapshots import Snapshots
from broker.internal_topics.watcher import InternalTopicWatcher
from broker.limits import check_tiering, tier_limits
from broker.listening import Listening
from broker.membership.fitness import OwnFitness
from broker.membership.identity import DirectoryIdentity, Verdict
from broker.membership.session import Joined, Session
from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.records import NO_EPOCH, Listener, Node
from broker.metrics import BrokerMetrics
from broker.observe.sources import Sources
from broker.observe.status import Health, Waits
from broker.offsets_topic import OffsetsTopic
from broker.outage import Outage
from broker.partition import candidates
from broker.partition.proposing import Proposing
from broker.partition.registry import Registry
from broker.partition.replicas import Replicas
from broker.partition.throttle import Throttle
from broker.peers.forward import Forward
from broker.peers.links import Links
from broker.replication.proposal import Proposed
from broker.rooms import Rooms
from broker.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from coldstore.object_store import ObjectStore
from coldstore.stores.metered import MeteredStore
from hotstore.data_dir import DataDir
from hotstore.log_host import LogHost
from hotstore.residency import Residency
from logformat.checkpoints import MetaProperties
from seams.disk import is_full
from seams.tasks import FailureReport, Tasks, supervise
from seams.world import World
from tiering.service import TierService

log = logging.getLogger(__name__)

_FRESH_S: Final = 10.0  # how old the newest answer may be for what lets go of data (R23)

StoreOpener = Callable[[BrokerConfig, World], ObjectStore]


class Following(NamedTuple):
    """What obeys the image, and who is asked to change it."""

    registry: Registry
    metadata: MetadataCache
    replicas: Replicas
    feed: ImageFeed
    forward: Forward
    controller: ControllerDoor
    brokers: Attendance
    turnover: Turnover


@dataclass(frozen=True, slots=True)
class Start:
    """One start. `config` is the one the broker was started with, `live` the one it runs with; in `rooms` stands what
    was made so far, for the stop; `keep_session` runs from the moment the right to serve is committed."""

    config: BrokerConfig
    live: LiveConfig
    world: World
    open_bucket: StoreOpener
    listening: Listening
    dispatcher: BrokerDispatcher
    rooms: Rooms
    tasks: Tasks
    health: Health
    waits: Waits
    metrics: BrokerMetrics
    outage: Outage
    report: FailureReport
    keep_session: Callable[[], Awaitable[None]]

    async def prepare(self) -> None:
        """What takes no time and asks nobody. Raises Refused, DataDirLocked, OSError."""
        self.health.starting("binding its addresses")
        await self.listening.bind()
        self.health.starting("opening the data directory")
        self.rooms.data_dir = await self.world.workers.run(DataDir.open, self.world.disk, self.config.data_dir)

    async def serve(self) -> Sources:
        """All that follows, until clients are let in. May be cancelled: `rooms` has what there is to stop."""
        data_dir, world = self.rooms.data_dir, self.world
        assert data_dir is not None
        bucket = self.open_bucket(self.config, world)
        self.rooms.store = store = MeteredStore(bucket, world.clock)
        # Not through the meters: it loses races and sends wrong checksums on purpose.
        probed = await first_probe(bucket, world, self.outage, self.health)
        cluster = ClusterRoot(store, world.rng, world.clock, world.workers)
        config = self.config
        listener, answer_bytes_max = config.brokers_listener, config.request_bytes_max
        self.rooms.links = links = Links(world.net, world.clock, config.node_id, listener, answer_bytes_max)
        self.rooms.session = session = self._session(store, cluster, links)
        joined = await self._join(session, data_dir)
        logs = LogHost(data_dir, world, self.report)
        limits = tier_limits(self.config, probed)
        self.rooms.tiers = tiers = TierService(
            store,
            world,
            logs,
            self.tasks,
            limits,
            report=self.report,
            is_fresh=lambda: world.clock.boottime_s() - session.confirmed_s <= _FRESH_S,
        )
        following = self._following(cluster, joined, logs, tiers, session)
        await tiers.start()
        fitness = OwnFitness(following.registry.troubles, lambda: logs.ballast.is_short)
        await self._publish(following, session, tiers, joined, fitness)
        self.tasks.spawn("cluster defaults", self._settle_defaults(following))
        context = self._context(following, joined, session, tiers)
        self.dispatcher.serve(context)
        await self.listening.accept(self.live)
        damaged = following.replicas.damaged
        snapshots = self.rooms.snapshots
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
            logs.places.strays,
            cluster,
            following.brokers,
            following.turnover,
        )

    async def _settle_defaults(self, following: Following) -> None:
        door, metadata, config = following.controller, following.metadata, self.config

        async def settle() -> None:
            await settle_defaults(door, metadata, config.node_id, config.configured)

        await supervise("cluster defaults", settle, self.world.rng, self.report)

    def _session(self, store: ObjectStore, cluster: ClusterRoot, links: Links) -> Session:
        config = self.config
        return Session(
            store,
            cluster,
            self.world,
            links,
            config.times,
            waits_for=self.health.starting,
        )

    async def _join(self, session: Session, data_dir: DataDir) -> Joined:
        """Wait for the right to serve, commit it, and note in the data directory what that settled: whose it is, and
        that its logs are about to be written. Raises Refused, with logs and clean-shutdown marker as they were."""
        config = self.config
        self.health.starting("waiting for the right to serve the bucket")
        listeners = tuple(Listener(name, *address) for name, address in self.listening.advertised.items())
        identity = _identity(data_dir, config)
        if identity.incarnations is not None:  # before anybody can learn of this process
            await self._note(data_dir, (*identity.incarnations, session.incarnation))
        joined = await session.join(identity, config.node_id, listeners, rack=config.rack, take_over=config.take_over)
        settled = joined.identity
        assert settled.cluster_id is not None and settled.directory_id is not None
        if joined.verdict is not Verdict.RESUME:
            meta = MetaProperties(settled.cluster_id, config.node_id, settled.directory_id)
            await self.world.workers.run(data_dir.format, meta)
        check_tiering(config, joined.at.image)
        await self._note(data_dir, (session.incarnation,))
        await self.world.workers.run(data_dir.unmark)
        self._keep("session", self.keep_session)
        return joined

    async def _note(self, data_dir: DataDir, incarnations: tuple[str, ...]) -> None:
        """Note who writes here. Where the disk has no room for it the next start copies from others what it has."""
        try:
            await self.world.workers.run(data_dir.note_incarnations, incarnations)
        except OSError as failure:
            if not is_full(failure):
                raise
            log.warning("this process is not noted in %s: %s", data_dir.path, failure)

    def _following(
        self, cluster: ClusterRoot, joined: Joined, logs: LogHost, tiers: TierService, session: Session
    ) -> Following:
        assert joined.identity.cluster_id is not None
        metadata = MetadataCache(joined.identity.cluster_id, self.world.clock.monotonic_s)
        config, links = self.config, self.rooms.links
        registry = Registry(metadata, config.node_id)
        assert links is not None
        self.rooms.replicas = replicas = Replicas(
            self.live,
            self.world,
            logs,
            registry,
            tiers,
            self.tasks,
            self.report,
            metadata,
            links,
            forget=lambda topic: controller.forget(topic),
        )
        feed = ImageFeed(Publisher(replicas, metadata, self.live, self.config.node_id))
        feed.watch(lambda at: links.obey(at.image.nodes))
        turnover = Turnover(config.node_id)
        feed.watch(turnover.obey)
        forward = Forward(metadata, feed, links, self.config.node_id, self.config.brokers_listener)
        office = Office(cluster, feed)
        attendance = Attendance(
            office,
            cluster,
            self.world.clock,
            config.node_id,
            joined.identity.cluster_id,
            config.times,
            step_back=session.step_back,
        )

        async def ask_candidate(node: Node, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
            if node.node_id == config.node_id:
                return candidates.answer(registry, request)
            answer = await links.to(node, unclean_elections.PURPOSE).ask(
                request, unclean_elections.VERSION, unclean_elections.ANSWER_S
            )
            assert isinstance(answer, OffsetForLeaderEpochResponse)
            return answer

        unclean = UncleanElections(
            office, metadata, self.world.clock, config.node_id, ask_candidate, config.times.session_s
        )
        self._keep("unclean elections", unclean.keep)
        controller = ControllerDoor(
            office, metadata, self.live, self.world.rng, replicas.opened, Elsewhere(forward), unclean.look
        )
        self._keep("controller", office.keep)
        self._keep("attendance", attendance.keep)

        async def propose(broker_epoch: int, proposed: list[Proposed]) -> tuple[ErrorCode, ...]:
            proposals = tuple(
                PartitionProposal((of.topic_id, of.index), of.leader_epoch, of.partition_epoch, of.in_sync)
                for of in proposed
            )
            asked = ProposalsAsked(config.node_id, broker_epoch, proposals)
            at = metadata.controller
            if at is None or at.node_id == config.node_id:
                return await attendance.alter_partition(asked)
            node = metadata.image.nodes.get(at.node_id)
            if node is None:
                raise ConnectionError(f"the controller, broker {at.node_id}, is not registered; nothing was sent")
            return await RemoteBrokers(lambda purpose: links.to(node, purpose), config.times).alter_partition(asked)

        def broker_epoch() -> int:
            node = metadata.image.nodes.get(config.node_id)
            return NO_EPOCH if node is None else node.broker_epoch

        proposing = Proposing(registry, broker_epoch, propose, config.replica_lag_ms_max)
        self._keep("proposals", proposing.keep)
        return Following(registry, metadata, replicas, feed, forward, controller, attendance, turnover)

    async def _publish(
        self, following: Following, session: Session, tiers: TierService, joined: Joined, fitness: OwnFitness
    ) -> None:
        """Obey the image of the claim, and wait until its logs are open."""
        replicas, topics = following.replicas, joined.at.image.topics
        await replicas.move_strays(joined.at.image)
        led = self.config.node_id
        total = sum(row.leader == led for topic in topics.values() for row in topic.rows)
        with (
            tiers.holding_back(),
            self.waits.counting(lambda: f"opening logs: {replicas.opened_count} of {total} partitions"),
        ):
            following.feed.take(joined.at)
            session.follow(following.feed, following.brokers, joined, fitness)
            await asyncio.gather(*[replicas.opened(topic_id) for topic_id in topics])
        self._keep("checkpoints", replicas.upkeep.keep_checkpoints)
        self._keep("ticks", replicas.upkeep.keep_ticking)
        self._keep("retention of copies", replicas.keep_expiring)
        self._keep("strays", replicas.keep_removing_strays)

    def _groups(self, following: Following, session: Session) -> GroupCoordinator:
        config, world = self.live.now, self.world

        def in_session() -> bool:
            # The controller ends a session so long after it *heard* a heartbeat, which is later than that was sent.
            told_s = session.answered_s if session.is_controller else session.heartbeat_s
            return world.clock.boottime_s() - told_s < config.times.session_s

        registry, metadata, replicas = following.registry, following.metadata, following.replicas
        self.rooms.groups = groups = GroupCoordinator(
            OffsetsTopic(following.controller, registry, metadata, config),
            world.clock,
            world.rng,
            config.groups,
            self.tasks,
            topics=metadata.facts,
            names=metadata.name_of,
            leaving=metadata.leaving,
            keep_objects=world.keep_objects,
            in_session=in_session,
        )
        self.rooms.snapshots = snapshots = Snapshots(groups.log, world.clock)
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

    def _context(self, following: Following, joined: Joined, session: Session, tiers: TierService) -> Context:
        config, world = self.live.now, self.world
        self.rooms.residency = residency = Residency(world.workers, report=self.report)
        return Context(
            live=self.live,
            world=world,
            registry=following.registry,
            throttle=Throttle(self.tasks, tiers.watch),
            residency=residency,
            metadata=following.metadata,
            controller=following.controller,
            brokers=following.brokers,
            producer_ids=ProducerIds(joined.broker_epoch),
            groups=self._groups(following, session),
            fetch_sessions=FetchSessions(world.rng, config.fetch_sessions_max),
            gate=session.gate,
            metrics=self.metrics,
            tasks=self.tasks,
            live_configs=self.listening.live_configs(),
            images=following.feed,
            forward=following.forward,
        )

    def _keep(self, name: str, service: Callable[[], Awaitable[None]]) -> None:
        self.tasks.spawn(name, supervise(name, service, self.world.rng, self.report))


def _identity(data_dir: DataDir, config: BrokerConfig) -> DirectoryIdentity:
    meta, logs = data_dir.meta, frozenset(data_dir.partitions())
    if meta is None:
        return DirectoryIdentity(None, None, None, bool(logs))
    is_unsynced = not config.flush_sync and not data_dir.was_clean
    ids = meta.cluster_id, meta.node_id, meta.directory_id
    return DirectoryIdentity(*ids, bool(logs), logs, is_unsynced, data_dir.incarnations)
