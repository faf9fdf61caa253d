"""One broker, wired: from a configuration and the seams to a service, and down again.

Owns the order of starting and stopping. Always true: nothing is served before this process's epoch is committed to
`cluster.json`; the clean-shutdown marker is written after every log is flushed and closed, and the lease is released
last; the simulation starts this very wiring with other seams. Must not know command lines or signals: `stop` is an
event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, TypeVar

from broker.config.addresses import show_address
from broker.config.live import LiveConfig
from broker.config.resolve import BrokerConfig
from broker.context import Context
from broker.controller.admission import DirectoryIdentity, Verdict
from broker.controller.controller import Controller
from broker.controller.gate import Gate
from broker.controller.membership import Joined, Membership, Refused, Station
from broker.dispatcher import BrokerDispatcher
from broker.fetch_sessions import FetchSessions
from broker.groups.coordinator import GroupCoordinator
from broker.limits import check_tiering, net_limits, tier_limits
from broker.metadata.cluster_store import ClusterStore
from broker.metadata.image import Topic
from broker.net.server import Server
from broker.observe.exposition import exposition
from broker.observe.http import HttpServer, Views
from broker.observe.loop_lag import LoopLag
from broker.observe.metrics import BrokerMetrics
from broker.observe.outage import WHAT_TO_DO, Outage
from broker.observe.sources import Beginning, Sources
from broker.observe.status import Health
from broker.observe.tier_view import broker_json, status_json
from broker.observe.topic_metrics import look_in_turns
from broker.partition.host import Host
from broker.partition.offsets_topic import OffsetsTopic
from broker.partition.registry import Registry
from broker.partition.throttle import Throttle
from coldstore.object_store import AccessRefused, ObjectStore
from coldstore.probe import StoreRefused, Verification, probe, race
from coldstore.root import NewerFormat
from coldstore.stores.metered import MeteredStore
from coldstore.stores.opening import open_store
from coldstore.url import parse_bucket_url
from hotstore.data_dir import DataDir
from hotstore.errors import DataDirLocked
from logformat.checkpoints import MetaProperties
from logformat.errors import Corrupt, Retryable, StorageFailed, ThermoclineError
from seams.crash_points import reach
from seams.tasks import Tasks, supervise
from seams.world import World
from tiering.residency import Residency
from tiering.service import TierService

log = logging.getLogger(__name__)

T = TypeVar("T")

_PURGE_RETRY_MAX_S: Final = 300.0
_TELL_S: Final = 5.0  # between two lines about one long wait


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


@dataclass(slots=True)
class _Rooms:
    """What exists so far; closing goes through it backwards."""

    data_dir: DataDir | None = None
    store: MeteredStore | None = None
    membership: Membership | None = None
    tiers: TierService | None = None
    residency: Residency | None = None
    host: Host | None = None
    offsets: OffsetsTopic | None = None
    groups: GroupCoordinator | None = None
    server: Server | None = None
    http: HttpServer | None = None


class Broker:
    """One broker process's wiring. Start once, serve, close once."""

    def __init__(self, config: BrokerConfig, world: World, open_bucket: StoreOpener) -> None:
        self._config = config  # as it was started; what may change since is in `_live`
        self._live = LiveConfig(config)
        self._world = world
        self._open_bucket = open_bucket
        self._rooms = _Rooms()
        self._tasks = Tasks(self._report)
        self._dispatcher = BrokerDispatcher(self._tasks)
        self._superseded = asyncio.Event()
        self._clean_stop = False
        self._cluster_id = ""
        self.health = Health()
        self.metrics = BrokerMetrics()
        self._outage = Outage(world.clock)  # of the probe; after it the membership has its own
        self._lag = LoopLag()
        self._beginning = Beginning(
            config, self.health, self.metrics, self._store_outage, self._lag, lambda: self._rooms.store
        )
        self._sources: Sources | None = None  # what /metrics and /status show once clients are served
        self.exit_code: int = Exit.CLEAN

    # -- starting -----------------------------------------------------------------------------------------------------

    async def start(self, stop: asyncio.Event) -> None:
        """Come up to the point where clients are answered; returns early when `stop` is set while waiting."""
        rooms, world, config = self._rooms, self._world, self._config
        await self._bind()
        self.health.starting("opening the data directory")
        rooms.data_dir = data_dir = await world.workers.run(DataDir.open, world.disk, config.data_dir)
        bucket = self._open_bucket(config, world)
        rooms.store = store = MeteredStore(bucket, world.clock)
        # Not through the meters: it loses races and sends wrong checksums on purpose.
        verify_by_head = await self._until(stop, self._probe(bucket))
        if verify_by_head is None:
            return
        cluster = ClusterStore(store, world.rng, world.clock)
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
        rooms, config = self._rooms, self._config
        self.health.starting("binding its addresses")
        if config.http_host is not None:
            rooms.http = HttpServer(self._views())
            await _bound(rooms.http.start(config.http_host, config.http_port), "--http")
            self._tasks.spawn("loop lag", self._lag.keep())  # where somebody can read it
        rooms.server = server = Server(
            self._world.net, self._dispatcher, net_limits(config), self._report, name=config.listener_name
        )
        await _bound(server.bind(config.listen_host, config.listen_port), "--listen")
        self._address = server.address

    async def _probe(self, store: ObjectStore) -> bool:
        """Try the store's conditional writes until it answers. StoreRefused: it gets them wrong (C23)."""
        wait_s = 0.2
        outage = self._outage
        self.health.starting(f"probing the bucket {store.url}")
        while True:
            try:
                report = await probe(store, self._world.rng)
                report.require()
                if await ClusterStore(store, self._world.rng, self._world.clock).load() is None:
                    # Once, before the bucket is formatted: a store that loses races passes every sequential test.
                    (await race(store, self._world.rng)).require()
                if lasted := outage.answered():
                    log.info("the bucket answers, after %s", lasted)
                return report.verification is Verification.HEAD
            except Retryable as failure:
                if outage.failed(failure):
                    log.warning("not ready: the bucket %s does not answer (%s); %s", store.url, outage, WHAT_TO_DO)
            await asyncio.sleep(wait_s * self._world.rng.uniform(0.8, 1.2))
            wait_s = min(wait_s * 2, 10.0)

    async def _settle(self, data_dir: DataDir, joined: Joined) -> None:
        """Write what joining settled into `meta.properties`."""
        identity = joined.identity
        assert identity.cluster_id is not None and identity.directory_id is not None
        self._cluster_id = identity.cluster_id
        if joined.verdict is not Verdict.RESUME:
            meta = MetaProperties(identity.cluster_id, self._config.node_id, identity.directory_id)
            await self._world.workers.run(data_dir.format, meta)

    async def _open(
        self, data_dir: DataDir, store: ObjectStore, cluster: ClusterStore, joined: Joined, *, verify_by_head: bool
    ) -> None:
        rooms, world, image = self._rooms, self._world, joined.image
        self._live.follow(image.cluster_configs, image.node_configs.get(self._config.node_id, {}))
        config = self._live.now
        registry, residency = Registry(), Residency(world.workers)
        rooms.residency = residency
        rooms.tiers = tiers = TierService(
            store,
            world,
            data_dir,
            self._tasks,
            tier_limits(config, verify_by_head=verify_by_head),
            report=self._report,
            on_fenced=self._fenced,
        )
        controller = Controller(cluster, image, self._cluster_id, self._live, world.rng, self._purge_later)
        rooms.host = host = Host(
            self._live,
            world,
            data_dir,
            registry,
            tiers,
            self._tasks,
            joined.node_epoch,
            self._report,
        )
        controller.host = host
        await tiers.start()
        total = sum(topic.partitions for topic in controller.image.topics.values())
        with tiers.holding_back(), self._counting(lambda: f"opening logs: {host.opened_count} of {total} partitions"):
            await asyncio.gather(*[host.open_topic(topic, 0, new=False) for topic in controller.image.topics.values()])
        for topic in controller.image.deleted.values():
            self._purge_later(topic)
        rooms.offsets = offsets = OffsetsTopic(controller, registry, config, world.clock, world.workers)
        rooms.groups = groups = GroupCoordinator(
            offsets,
            world.clock,
            world.rng,
            config.groups,
            self._tasks,
            topics=registry.facts,
            names=registry.names.get,
            leaving=lambda: [topic.name for topic in controller.image.deleted.values()],
        )
        registry.on_withdrawn = groups.topic_withdrawn
        groups.start()
        for name, service in (
            ("group snapshots", partial(offsets.keep_snapshots, groups)),
            ("checkpoints", host.keep_checkpoints),
            ("ticks", host.keep_ticking),
            ("changes in doubt", controller.keep_settled),
        ):
            self._tasks.spawn(name, supervise(name, service, world.rng, self._report))
        self._controller = controller
        context = Context(
            live=self._live,
            world=world,
            registry=registry,
            throttle=Throttle(self._tasks, tiers),
            residency=residency,
            controller=controller,
            groups=groups,
            fetch_sessions=FetchSessions(world.rng, config.fetch_sessions_max),
            gate=self._gate,
            metrics=self.metrics,
            tasks=self._tasks,
            advertised=(config.advertised_host or self._address[0], config.advertised_port or self._address[1]),
            live_configs=self._bound_addresses(),
        )
        await self._listen(context)

    def _bound_addresses(self) -> dict[str, str]:
        """Configs that name a port of 0, as they came out."""
        found = {"listeners": f"{self._config.listener_name}://{show_address(*self._address)}"}
        if self._rooms.http is not None:
            found["thermocline.http"] = show_address(*self._rooms.http.address)
        return found

    async def _listen(self, context: Context) -> None:
        rooms = self._rooms
        server, tiers, membership, store, host = rooms.server, rooms.tiers, rooms.membership, rooms.store, rooms.host
        assert server and tiers and membership and store and host
        self._live.tell(lambda now: server.limit_connections(net_limits(now)))
        self._dispatcher.serve(context)
        await _bound(server.accept(), "--listen")
        self._sources = Sources(context, tiers, store, server, membership, self.health, host.damaged)
        self.health.ready()

    def _views(self) -> Views:
        """The HTTP port opens first, so that a broker that waits can say what it waits for; more figures come with
        rooms."""

        async def seal(topic: str | None) -> None:
            if self._sources is None:
                raise Retryable("not ready yet")
            await self._sources.tiers.seal_all(None if topic is None else [topic])

        async def metrics() -> bytes:
            sources = self._sources
            if sources is None:
                return exposition(self._beginning, None)
            groups = await sources.context.groups.survey(sources.context.registry.high_watermark)
            looked = await look_in_turns(sources.context.registry)
            return exposition(self._beginning, sources, groups, looked)

        return Views(
            metrics=metrics,
            status=lambda: b"[]" if self._sources is None else status_json(self._sources),
            broker=lambda: broker_json(self._beginning, self._sources),
            not_ready=self._not_ready,
            failures=lambda: list(self.health.failures),
            seal=seal,
        )

    def _not_ready(self) -> str:
        """What is waited for, and why it does not come."""
        outage = self._store_outage()
        if self.health.is_ready or not outage.tries:
            return self.health.waiting_for
        return f"{self.health.waiting_for}: the bucket does not answer ({outage})"

    def _store_outage(self) -> Outage:
        membership = self._rooms.membership
        return self._outage if membership is None else membership.outage

    @contextmanager
    def _counting(self, what: Callable[[], str]) -> Iterator[None]:
        """While this lasts, `what` stands in `/readyz`, and is logged every few seconds: a wait that counts down."""

        async def tell() -> None:
            while True:
                await asyncio.sleep(_TELL_S)
                self.health.starting(what())
                log.info("%s", self.health.waiting_for)

        self.health.starting(what())
        telling = self._tasks.spawn("telling", tell())
        try:
            yield
        finally:
            telling.cancel()

    def _identity(self, data_dir: DataDir) -> DirectoryIdentity:
        meta, has_logs = data_dir.meta, bool(data_dir.partitions())
        if meta is None:
            return DirectoryIdentity(None, None, None, has_logs)
        return DirectoryIdentity(meta.cluster_id, meta.node_id, meta.directory_id, has_logs)

    def _station(self) -> Station:
        config = self._config
        return Station(
            config.node_id, config.advertised_host, config.advertised_port or config.listen_port, config.take_over
        )

    # -- serving ------------------------------------------------------------------------------------------------------

    @property
    def _gate(self) -> Gate:
        assert self._rooms.membership is not None
        return self._rooms.membership.gate

    def ready_line(self) -> str:
        """The one line scripts wait for (cli.md)."""
        http = self._rooms.http
        where = "-" if http is None else show_address(*http.address)
        assert self._rooms.store is not None
        return (
            f"ready kafka={show_address(*self._address)} http={where} node={self._config.node_id} "
            f"cluster={self._cluster_id} data={self._config.data_dir} bucket={self._rooms.store.url}"
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Wait until told to stop, or until another broker serves the bucket."""
        await self._until(stop, self._superseded.wait())
        self._clean_stop = not self._superseded.is_set()

    async def _keep(self) -> None:
        assert self._rooms.membership is not None
        await self._rooms.membership.keep()
        by = self._gate.superseded_by
        log.error("superseded by %s: answering nothing more, exiting", by)
        self.exit_code = Exit.REFUSED
        self._superseded.set()

    def _fenced(self, why: str) -> None:
        """A partition's root carries a higher epoch: this process was superseded."""
        self._gate.shut(why)

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

    def _purge_later(self, topic: Topic) -> None:
        async def purge() -> None:
            await self._controller.purge(topic)

        name = f"purge {topic.name}"
        work = supervise(name, purge, self._world.rng, self._report, backoff_max_s=_PURGE_RETRY_MAX_S)
        self._tasks.spawn(name, work)

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Down again: cleanly when `stop` asked for it, at once when superseded or failed."""
        rooms = self._rooms
        self.health.starting("stopping")
        if rooms.server is not None:
            server, drain_s = rooms.server, self._config.shutdown_timeout_ms / 1000
            with self._counting(
                lambda: (
                    f"stopping: {server.counters.connections_open} connections get their last answers, for at most "
                    f"{drain_s:.0f} s"
                )
            ):
                # A superseded broker's answers never leave: draining would only keep it here for the whole timeout.
                await server.stop(drain=not self._superseded.is_set())
        if rooms.groups is not None:
            await rooms.groups.close()
        if self._clean_stop:
            await self._hand_over()
        elif rooms.host is not None:
            await rooms.host.close(clean=False)
        if rooms.tiers is not None:
            await rooms.tiers.close()
        if rooms.residency is not None:
            await rooms.residency.close()
        if rooms.http is not None:
            await rooms.http.close()
        await self._tasks.close()
        if self._clean_stop and rooms.membership is not None:
            # Last of all: the next broker may start the moment it reads this.
            await rooms.membership.release()
        if rooms.store is not None:
            await rooms.store.close()
        if rooms.data_dir is not None:
            rooms.data_dir.close()

    async def _hand_over(self) -> None:
        """Leave disk and bucket so that the next start needs no recovery."""
        rooms, workers = self._rooms, self._world.workers
        assert rooms.tiers is not None and rooms.host is not None and rooms.data_dir is not None
        if rooms.offsets is not None and rooms.groups is not None:
            await self._last_write("group snapshots", rooms.offsets.write_snapshots(rooms.groups, force=True))
        if self._config.seal_on_shutdown:
            most_s = self._config.store_upload_timeout_ms / 1000
            with self._counting(lambda: f"stopping: sealing, and copying to the bucket, for at most {most_s:.0f} s"):
                await self._last_write("seal on shutdown", rooms.tiers.seal_all(None))
            reach("shutdown.sealed")
        with self._counting(lambda: "stopping: flushing and closing logs"):
            clean = await rooms.host.close(clean=True)
        if clean:
            await self._last_write("clean marker", workers.run(rooms.data_dir.mark_clean))
        reach("shutdown.marked")

    async def _last_write(self, name: str, work: Awaitable[None]) -> None:
        """Something that spares the next start work. A stop goes on without it: nothing is lost."""
        try:
            async with asyncio.timeout(self._config.store_upload_timeout_ms / 1000):
                await work
        except (ThermoclineError, OSError) as failure:  # TimeoutError is an OSError
            self._report(name, failure)


async def _bound(start: Awaitable[None], flag: str) -> None:
    """An address that is taken, or not this machine's, is a wrong start, not broken storage."""
    try:
        await start
    except OSError as failed:
        raise Refused(f"cannot listen: {failed}; stop what uses the address, or choose another with {flag}") from failed


async def _awaited(work: Awaitable[T]) -> T:
    return await work
