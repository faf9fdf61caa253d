"""A start's first words with its bucket: does it answer, and does it keep its promises?

Owns the wait for it. Always true: a store that gets conditional writes wrong, or loses races, is refused before a log
is entrusted to it (C23); one that does not answer is waited for, for ever, and told as an outage, from its
first refusal on. Must not know what is kept in the bucket, but whether anything is.
"""

from __future__ import annotations

import asyncio
import logging

from broker.metadata.cluster_root import ClusterRoot
from broker.metrics.outage_log import WHAT_TO_DO, OutageLog
from broker.observe.status import Health
from coldstore.inspection.probe import ProbeReport, probe, race
from coldstore.object_store import ObjectStore
from coldstore.retrying_store import RetryingStore
from logformat.errors import Retryable
from seams.world import World

log = logging.getLogger(__name__)


async def first_probe(store: ObjectStore, world: World, outage: OutageLog, health: Health) -> ProbeReport:
    """Try the store's conditional writes until it answers: what it does.

    StoreRefused: it gets them wrong.
    """

    def refused(failure: Retryable) -> None:
        if outage.failed(failure):
            log.warning("not ready: the bucket %s does not answer (%s); %s", store.url, outage, WHAT_TO_DO)

    wait_s = 0.2
    health.starting(f"probing the bucket {store.url}")
    while True:
        try:
            report = await probe(store, world.rng, refused)
            report.require()
            asked = RetryingStore(store, refused)
            if not await ClusterRoot(asked, world.rng, world.clock, world.workers).is_formatted():
                # Once, before the bucket is formatted: a store that loses races passes every sequential test.
                (await race(store, world.rng, refused)).require()
            if lasted := outage.answered():
                log.info("the bucket answers, after %s", lasted)
            return report
        except Retryable as failure:
            refused(failure)
        await asyncio.sleep(wait_s * world.rng.uniform(0.8, 1.2))
        wait_s = min(wait_s * 2, 10.0)
