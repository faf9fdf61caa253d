"""The created components of one broker, and the order in which they stop.

The clean-shutdown marker is written after every log is flushed and closed; the lease is released last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

import msgspec

from broker.config.broker_config import BrokerConfig
from broker.groups.coordinator import GroupCoordinator
from broker.internal_topics.snapshots import Snapshots
from broker.membership.session import Session
from broker.net.server import Server
from broker.observe.http import HttpServer
from broker.observe.status import Waits
from broker.partition.replica_manager import ReplicaManager
from broker.peers.links import Links
from broker.transactions.coordinator import TransactionCoordinator
from coldstore.stores.metered import MeteredStore
from hotstore.cleaning.log_cleaner import LogCleaner
from hotstore.host.data_dir import DataDir
from hotstore.host.residency import Residency
from logformat.errors import ThermoclineError
from seams.crash_points import reach
from seams.loop.tasks import FailureReport, Tasks
from seams.world import World
from tiering.reading.cold_reader import ColdReader
from tiering.service import TierService


@dataclass(slots=True)
class Components:
    """The components created so far, in order."""

    http: HttpServer | None = None
    server: Server | None = None
    data_dir: DataDir | None = None
    store: MeteredStore | None = None
    links: Links | None = None
    session: Session | None = None
    residency: Residency | None = None
    cleaner: LogCleaner | None = None
    tiers: TierService | None = None
    cold: ColdReader | None = None  # only in a read-only broker
    replicas: ReplicaManager | None = None
    groups: GroupCoordinator | None = None
    snapshots: Snapshots | None = None
    transactions: TransactionCoordinator | None = None
    transaction_snapshots: Snapshots | None = None


class Shutdown(msgspec.Struct, frozen=True):
    """One stop. `config` is the initial configuration."""

    components: Components
    config: BrokerConfig
    world: World
    tasks: Tasks
    waits: Waits
    report: FailureReport

    async def close(self, *, clean: bool, drain: bool) -> None:
        """Stop all components. With `clean`, prepare disk and bucket so that the next start needs no recovery. With
        `drain`, send the responses in flight.
        """
        components = self.components
        if clean and components.session is not None:
            await components.session.hand_over()
        if components.session is not None:
            components.session.stop_serving()
        if components.server is not None:
            await self._stop_serving(components.server, drain=drain)
        if components.groups is not None:
            await components.groups.close()
        if components.transactions is not None:
            await components.transactions.close()
        if clean and components.replicas is not None:
            await self._hand_over()
        elif components.replicas is not None:
            await components.replicas.close(clean=False)
        if components.tiers is not None:
            await components.tiers.close()
        if components.cold is not None:
            await components.cold.close()
        if components.residency is not None:
            await components.residency.close()
        if components.http is not None:
            await components.http.close()
        await self.tasks.close()
        if components.cleaner is not None:
            await components.cleaner.close()
        if clean and components.session is not None:
            # The lease is released last: the next broker may start as soon as it reads this.
            await components.session.release()
        if components.links is not None:
            components.links.close()
        if components.store is not None:
            await components.store.close()
        if components.data_dir is not None:
            self.world.after_workers(components.data_dir.close)

    async def _stop_serving(self, server: Server, *, drain: bool) -> None:
        drain_s = self.config.shutdown_timeout_ms / 1000

        def left() -> str:
            count = server.counters.connections_open
            return f"stopping: {count} connections get their last answers, for at most {drain_s:.0f} s"

        with self.waits.reporting(left):
            await server.stop(drain=drain)

    async def _hand_over(self) -> None:
        """Prepare disk and bucket so that the next start needs no recovery."""
        components, waits = self.components, self.waits
        assert components.tiers is not None and components.replicas is not None and components.data_dir is not None
        if components.snapshots is not None:
            await self._last_write("group snapshots", components.snapshots.write_all())
        if components.transaction_snapshots is not None:
            await self._last_write("transaction snapshots", components.transaction_snapshots.write_all())
        if self.config.seal_on_shutdown:
            most_s = self.config.store_upload_timeout_ms / 1000
            with waits.reporting(lambda: f"stopping: sealing, and copying to the bucket, for at most {most_s:.0f} s"):
                await self._last_write("seal on shutdown", components.tiers.seal_all(None))
            reach("shutdown.sealed")
        with waits.reporting(lambda: "stopping: flushing and closing logs"):
            clean = await components.replicas.close(clean=True)
        if clean:
            await self._mark_clean(components.data_dir)
        reach("shutdown.marked")

    async def _mark_clean(self, data_dir: DataDir) -> None:
        """Write the clean-shutdown marker, without a time limit. The writing thread cannot be stopped. After the lock
        is released, its marker would count for the next process.
        """
        try:
            await self.world.workers.run(data_dir.mark_clean)
        except OSError as failure:  # the next start recovers
            self.report("clean marker", failure)

    async def _last_write(self, name: str, work: Awaitable[None]) -> None:
        """Do work that the next start would otherwise have to do. After a failure the stop continues, because no record
        is lost."""
        try:
            async with asyncio.timeout(self.config.store_upload_timeout_ms / 1000):
                await work
        except (ThermoclineError, OSError) as failure:  # TimeoutError is an OSError
            self.report(name, failure)
