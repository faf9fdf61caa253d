"""The lease of a bucket whose `cluster.json` is lost: check that no broker bumps it, and release it.

The check uses the rule by which brokers take the lease over (lease_watch).
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.membership.lease_watch import Lease, LeaseSight, LeaseWatch
from coldstore.keys import lease_key
from coldstore.roots.root import Root, RootStore
from logformat.errors import ThermoclineError
from thermocline.cli.bucket.reading import Bucket
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import ProgressLine, note

_POLL_S: Final = 0.5
_LEASE_S: Final = 10.0  # if no lease has its duration
_LEASE_MS_AFTER: Final = 10_000


async def read_lease(bucket: Bucket) -> Root[Lease] | None:
    """The current lease; None if there is none."""
    world = bucket.world
    return await RootStore(bucket.store, lease_key(), Lease, world.rng, world.clock).load()


async def wait_until_still(bucket: Bucket) -> None:
    """Raises CommandFailed when a broker still bumps the lease."""
    watch, progress = LeaseWatch(0.0), ProgressLine()
    first = await read_lease(bucket)
    if first is None or not first.content.lease_ms:
        watch = LeaseWatch(_LEASE_S)
    while True:
        now_s = bucket.world.clock.monotonic_s()
        lease = await read_lease(bucket)
        sight = watch.polled(None if lease is None else lease.content, now_s)
        if (lease is None) != (first is None) or (lease is not None and first is not None and lease.etag != first.etag):
            raise CommandFailed(
                "a broker still renews lease.json: stop every broker of this bucket first (SIGTERM, so that each notes "
                "how far its logs are committed)",
                Exit.REFUSED,
            )
        if sight in (LeaseSight.STILL, LeaseSight.RELEASED):
            progress.done()
            return
        progress.show(f"watching the lease: {watch.left_s()[0]:.0f} s")
        await asyncio.sleep(_POLL_S)


async def release(bucket: Bucket, epoch: int, cluster_id: str) -> None:
    """Release the lease, so that the first broker need not wait. A failure only costs that wait."""
    world = bucket.world
    free = Lease(epoch, "", 0, released=True, lease_ms=_LEASE_MS_AFTER, cluster_id=cluster_id)
    try:
        await RootStore(bucket.store, lease_key(), Lease, world.rng, world.clock).commit(
            lambda _: free, epoch=epoch, claim=True, initial=free
        )
    except ThermoclineError as refused:
        note(f"lease.json could not be released, so the first broker waits until the lease ends: {refused}")
