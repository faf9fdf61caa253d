"""The process of one broker: starts, serves, stops, and returns the exit code.

The broker serves clients only after its session is committed to `cluster.json`. The simulation starts the same broker
with other seams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TypeVar

import msgspec

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.dispatcher import REFUSALS, BrokerDispatcher
from broker.membership.session import Refused
from broker.metrics.counters import BrokerMetrics
from broker.metrics.outage_log import OutageLog
from broker.observe.metrics.process import LoopLag
from broker.observe.sources import Sources, StartupSources
from broker.observe.status import Health, Waits
from broker.observe.views import operator_views
from broker.read_only.handlers import REFUSALS as read_only_refusals
from broker.read_only.handlers import RefusesWrites
from broker.read_only.start import ReadOnlyStart, read_only_config
from broker.read_only.views import ReadOnlySources, read_only_views
from broker.security.audit import Audit
from broker.security.authorizer.standard import Authorizer
from broker.security.brokers_only import BrokersOnly
from broker.security.client_access import ClientAccess
from broker.security.reload import Reload
from broker.security.sasl.logins import ConfiguredUsers, Logins
from broker.start import BrokerStart, EngineMaker, StoreOpener
from broker.startup.components import Components, Shutdown
from broker.startup.listeners import Listeners
from coldstore.inspection.probe import StoreRefused
from coldstore.object_store import AccessRefused, ObjectStore
from coldstore.roots.root import NewerFormat
from coldstore.stores.opening import keys_of, open_store
from coldstore.url import parse_bucket_url
from hotstore.cleaning.engine_process import ProcessEngine
from hotstore.errors import DataDirLocked
from logformat.errors import Corrupt, StorageFailed, ThermoclineError
from seams.files.disk import is_full
from seams.loop.tasks import Tasks, supervise
from seams.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")


class ServeExit(IntEnum):
    """Exit codes of `serve` (cli.md)."""

    CLEAN = 0
    FAILED = 1
    REFUSED = 3
    STORAGE_FAILED = 4


async def run(
    config: BrokerConfig,
    world: World,
    stop: asyncio.Event,
    announce: Callable[[str], None],
    *,
    open_bucket: StoreOpener | None = None,
    make_engine: EngineMaker | None = None,
    reread: Callable[[], BrokerConfig] | None = None,
    hang_up: asyncio.Event | None = None,
) -> int:
    """Serve until `stop` is set or the broker ends by itself. `announce` gets the ready line. Returns the exit code.

    `reread` reads the configuration from its file again, for a reload. Each time `hang_up` is set (SIGHUP), the broker
    reloads.
    """
    broker = Broker(config, world, open_bucket or open_configured_bucket, make_engine or ProcessEngine, reread)
    if hang_up is not None:
        broker.reload_when(hang_up)
    try:
        await broker.start(stop)
        if not stop.is_set():
            announce(broker.ready_line())
            await broker.serve(stop)
    except (Refused, DataDirLocked, StoreRefused, AccessRefused, NewerFormat) as refused:
        log.error("refused to serve: %s", refused)
        return ServeExit.REFUSED
    except (StorageFailed, Corrupt, OSError) as failed:
        is_no_room = isinstance(failed, OSError) and is_full(failed)
        log.error("storage failed: %s%s", failed, "; free space there, then start again" if is_no_room else "")
        return ServeExit.STORAGE_FAILED
    finally:
        await broker.close()
    return broker.exit_code


def open_configured_bucket(config: BrokerConfig, world: World) -> ObjectStore:
    return open_store(parse_bucket_url(config.bucket_url), world)


class Broker:
    """One broker: start once, serve, close once."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        open_bucket: StoreOpener,
        make_engine: EngineMaker = ProcessEngine,
        reread: Callable[[], BrokerConfig] | None = None,
    ) -> None:
        if config.read_only:
            config = read_only_config(config)
        self._config = config
        self._world = world
        self.components = Components()
        self._tasks = Tasks(self._report)
        self._make_engine = make_engine
        self._reload = Reload()
        self._superseded = asyncio.Event()
        self._clean_stop = False
        self.health = Health()
        self.metrics = BrokerMetrics()
        self.audit = Audit(world.clock.monotonic_s)
        self.clients = ClientAccess(_authorizer(config), self.audit, config.brokers_listener)
        self._outage = OutageLog(world.clock)  # counted by the probe of the store; the session has its own log
        self._lag = LoopLag()
        self._startup = StartupSources(
            config, self.health, self.metrics, self._store_outage, self._lag, lambda: self.components.store
        )
        self._sources: Sources | ReadOnlySources | None = None  # for the HTTP port; None until clients are served
        self._waits = Waits(self.health, self._tasks)
        self.exit_code: int = ServeExit.CLEAN
        begin: Callable[[StoreOpener], BrokerStart | ReadOnlyStart]
        begin = self._reads_only if config.read_only else self._serves
        self._start = begin(self._watched(open_bucket))
        self._listening = self._start.listening
        if reread is not None and self._listening.logins.takes_plain:
            self._reload.add(ConfiguredUsers(reread, self._listening.logins))
        self.components.http, self.components.server = self._listening.http, self._listening.server

    def _serves(self, open_bucket: StoreOpener) -> BrokerStart:
        """Make the `BrokerStart` of a cluster's member."""
        config, world = self._config, self._world
        self.views = operator_views(self._startup, lambda: self._once(Sources), self._reload_asked)
        dispatcher = BrokerDispatcher(self._tasks, BrokersOnly(config.brokers_listener), self.clients)
        return BrokerStart(
            config,
            LiveConfig(config),
            world,
            open_bucket,
            self._make_engine,
            Listeners(config, world, dispatcher, self._logins(dispatcher), self.views, self._report, self._reload),
            dispatcher,
            self.components,
            self._tasks,
            self.health,
            self._waits,
            self.metrics,
            self._outage,
            self._report,
            self._keep_session,
        )

    def _watched(self, open_bucket: StoreOpener) -> StoreOpener:
        """Let a reload also read the key file of the opened store."""

        def opened(config: BrokerConfig, world: World) -> ObjectStore:
            store = open_bucket(config, world)
            if (keys := keys_of(store, parse_bucket_url(config.bucket_url))) is not None:
                self._reload.add(keys)
            return store

        return opened

    async def _reload_asked(self) -> bytes:
        """Reload on a request over HTTP. Returns the answer as JSON."""
        return msgspec.json.encode(await self._reload.asked(self._world.workers, "HTTP"))

    def reload_when(self, hang_up: asyncio.Event) -> None:
        """Reload each time that `hang_up` is set."""

        async def keep() -> None:
            while True:
                await hang_up.wait()
                hang_up.clear()
                await self._reload.asked(self._world.workers, "SIGHUP")

        self._tasks.spawn("reload", supervise("reload", keep, self._world.rng, self._report))

    def _logins(self, dispatcher: BrokerDispatcher) -> Logins:
        config = self._config
        return Logins(config.sasl, dispatcher, self._world, self._tasks, self.audit, config.brokers_listener)

    def _once(self, kind: type[T]) -> T | None:
        """The broker's sources if they are of this kind. None for other sources, and before the broker serves."""
        return self._sources if isinstance(self._sources, kind) else None

    def _reads_only(self, open_bucket: StoreOpener) -> ReadOnlyStart:
        """Make the `ReadOnlyStart` of a broker that only reads another cluster's bucket."""
        config, world = self._config, self._world
        self.views = read_only_views(self._startup, lambda: self._once(ReadOnlySources), self._reload_asked)
        refuses = RefusesWrites(config.brokers_listener)
        dispatcher = BrokerDispatcher(self._tasks, refuses, self.clients, REFUSALS | read_only_refusals)
        return ReadOnlyStart(
            config,
            LiveConfig(config),
            world,
            open_bucket,
            Listeners(config, world, dispatcher, self._logins(dispatcher), self.views, self._report, self._reload),
            dispatcher,
            self.components,
            self._tasks,
            self.health,
            self.metrics,
            self._outage,
            self._report,
            self._cannot_follow,
        )

    async def start(self, stop: asyncio.Event) -> None:
        """Start until clients are served; returns early when `stop` is set."""
        await self._start.prepare()
        if self.components.http is not None:
            self._tasks.spawn("loop lag", self._lag.keep())
        self._sources = await self._until(stop, self._start.serve())
        if self._sources is not None:
            self.health.ready()
            self._world.keep_objects()

    def _store_outage(self) -> OutageLog:
        session = self.components.session
        return self._outage if session is None else session.outage

    def ready_line(self) -> str:
        """The line that scripts wait for (cli.md)."""
        assert self._sources is not None
        line = self._listening.ready_line(self._sources.context.metadata.cluster_id, self._sources.store.url)
        return f"{line} mode=read-only" if self._config.read_only else line

    async def serve(self, stop: asyncio.Event) -> None:
        """Wait for `stop`, or until another process serves as this node."""
        await self._until(stop, self._superseded.wait())
        self._clean_stop = not self._superseded.is_set()

    def _cannot_follow(self, why: str) -> None:
        log.error("the bucket can no longer be followed, exiting: %s", why)
        self.exit_code = ServeExit.REFUSED
        self._superseded.set()

    async def _keep_session(self) -> None:
        session = self.components.session
        assert session is not None
        await session.keep()
        by = session.gate.superseded_by
        log.error("superseded by %s: sending no more responses, exiting", by)
        self.exit_code = ServeExit.REFUSED
        self._superseded.set()

    async def _until(self, stop: asyncio.Event, work: Awaitable[T]) -> T | None:
        """The result of `work`. None if `stop` was set, or this broker was superseded, before `work` ended."""
        task = self._tasks.spawn("start", _awaited(work), awaited=True)
        halts = [self._tasks.spawn("stop", stop.wait()), self._tasks.spawn("superseded", self._superseded.wait())]
        try:
            await asyncio.wait([task, *halts], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for waiting in (task, *halts):
                waiting.cancel()

    def _report(self, name: str, failure: BaseException) -> None:
        """Report a failure of background work to the log, a counter and `/healthz`."""
        self.metrics.unexpected_errors += 1
        self.health.failed(name, failure)
        # The message of a disk's or store's error names the place. Only an unexpected error needs a stack trace.
        expected = isinstance(failure, ThermoclineError | OSError)
        log.error("%s failed: %s", name, failure, exc_info=None if expected else failure)

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop the broker: cleanly after `stop`, at once after a failure or if another process serves as this node."""
        self.health.starting("stopping")
        closing = Shutdown(self.components, self._config, self._world, self._tasks, self._waits, self._report)
        # A superseded broker sends no responses, so a drain would last until its time-out.
        await closing.close(clean=self._clean_stop, drain=not self._superseded.is_set())


def _authorizer(config: BrokerConfig) -> Authorizer | None:
    wanted = config.authorizer
    if wanted is None:
        return None
    return Authorizer(wanted.super_users, allows_without_acls=wanted.allows_without_acls)


async def _awaited(work: Awaitable[T]) -> T:
    return await work
