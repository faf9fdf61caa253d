"""Controller lease (`lease.json`): the controller bumps the lease, and another broker may claim when the bumps cease.
The lease is written by compare-and-set in the writer's controller epoch; a lease of an older epoch is ignored. The
lease decides only *when* to try; `cluster.json` names the controller.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from broker.controller.broker_rpc import NO_LEASE
from broker.membership.lease_watch import Lease, LeaseSight, LeaseWatch
from coldstore.keys import lease_key
from coldstore.object_store import ObjectStore
from coldstore.roots.root import RootStore
from seams.world import World


class ControllerLease:
    """The lease, read and bumped by one process. `lease_s`: time of silence of the holder after which another broker
    may claim. `interval_s`: time between bumps, and between polls of other brokers.
    """

    def __init__(
        self, store: ObjectStore, world: World, incarnation: str, *, lease_s: float, interval_s: float
    ) -> None:
        self._world = world
        self._incarnation = incarnation
        self._lease_s = lease_s
        self.cluster_id = ""  # the cluster that this process joined
        self._watch = LeaseWatch(lease_s)
        self._lease: RootStore[Lease] = RootStore(
            store, lease_key(), Lease, world.rng, world.clock, deadline_s=interval_s
        )

    @property
    def counter(self) -> int:
        """Counter of the lease that was read last; NO_LEASE: there was no lease, or it was not read."""
        lease = self._lease.known
        return NO_LEASE if lease is None else lease.content.counter

    async def poll(self, controller_epoch: int) -> LeaseSight:
        """Poll the lease, after a read of `cluster.json` of `controller_epoch`. Returns the conclusion of all polls so
        far (C19)."""
        before_read = self._world.clock.monotonic_s()
        self._watch.poll_begins(before_read)
        lease = await self._lease.load()
        if lease is not None and lease.content.controller_epoch < controller_epoch:
            lease = None  # a lease of an older controller: ignore its counter and release
        return self._watch.polled(None if lease is None else lease.content, before_read, controller_epoch)

    @property
    def has_moved(self) -> bool:
        return self._watch.has_moved

    @property
    def stood_s(self) -> float:
        return self._watch.stood_s

    @property
    def no_claim_s(self) -> float:
        return self._watch.no_claim_s(self._world.clock.monotonic_s())

    def left_s(self) -> tuple[float, float]:
        return self._watch.left_s()

    async def beat(self, epoch: int) -> int:
        """Bump the lease of controller epoch `epoch`. Returns the written counter. Raises Fenced when a later
        controller bumped it."""
        return (await self._write(epoch, lambda lease: self._next(epoch, lease.counter + 1))).counter

    async def release(self, epoch: int) -> None:
        """The controller of `epoch` stops: release the lease, so that no broker has to wait. Errors as `beat`."""
        await self._write(epoch, lambda lease: replace(self._next(epoch, lease.counter), released=True))

    async def _write(self, epoch: int, edit: Callable[[Lease], Lease]) -> Lease:
        return (await self._lease.commit(edit, epoch=epoch, claim=True, initial=self._next(epoch, 0))).content

    def _next(self, epoch: int, counter: int) -> Lease:
        return Lease(epoch, self._incarnation, counter, lease_ms=int(self._lease_s * 1000), cluster_id=self.cluster_id)
