"""Content of the HTTP routes, from the first second of a start to the end.

A starting broker shows its present wait; once clients are served, `Sources` add the other content.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from broker.observe.cluster_status import AnsweringBroker, cluster_status
from broker.observe.cluster_summary import ClusterSummaries, ClusterSummary
from broker.observe.http import Views
from broker.observe.metrics.exposition import exposition
from broker.observe.metrics.topics import PartitionFigures, collect_figures_in_turns
from broker.observe.sources import Sources, StartupSources, decides
from broker.observe.tier_view import broker_status, status_json
from logformat.errors import Retryable


def operator_views(
    startup: StartupSources, serving: Callable[[], Sources | None], reload: Callable[[], Awaitable[bytes]]
) -> Views:
    """The views of a member of a cluster. `serving` returns None until clients are served."""

    looks = ClusterSummaries(startup.config.node_id)

    async def both_looks(sources: Sources) -> tuple[PartitionFigures, ClusterSummary]:
        cluster = await looks.of(sources.context.metadata.image, decides=decides(sources))
        registry = sources.context.registry
        return await collect_figures_in_turns(registry, registry.reads), cluster

    async def broker() -> bytes:
        sources = serving()
        if sources is None:
            return msgspec.json.encode(broker_status(startup, None))
        seen, cluster = await both_looks(sources)
        return msgspec.json.encode(broker_status(startup, sources, seen, cluster, await sources.strays()))

    async def metrics() -> bytes:
        sources = serving()
        if sources is None:
            return exposition(startup, None)
        groups = await sources.context.groups.survey(sources.context.registry.high_watermark)
        return exposition(startup, sources, groups, *await both_looks(sources))

    def status() -> bytes:
        sources = serving()
        return b"[]" if sources is None else status_json(sources)

    async def cluster() -> bytes:
        sources = serving()
        if sources is None:
            raise Retryable(f"not ready yet: {not_ready(startup)}")
        context = sources.context
        metadata = context.metadata
        asked = AnsweringBroker(
            metadata.cluster_id,
            metadata.controller,
            context.world.clock.monotonic_s() - metadata.controller_since_s,
            sources.position(),
            context.config.brokers_listener,
        )
        return msgspec.json.encode(await cluster_status(metadata.image, asked))

    async def seal(topic: str | None) -> None:
        sources = serving()
        if sources is None:
            raise Retryable("not ready yet")
        for snapshots in (sources.snapshots, sources.transaction_snapshots):
            if snapshots is not None and topic in (None, snapshots.topic):
                await snapshots.write_changed()  # snapshots are the copies of internal topics in the bucket
        await sources.tiers.seal_all(None if topic is None else [topic])

    return Views(
        metrics=metrics,
        status=status,
        cluster=cluster,
        broker=broker,
        not_ready=lambda: not_ready(startup),
        failures=lambda: list(startup.health.failures),
        seal=seal,
        reload=reload,
    )


def not_ready(startup: StartupSources) -> str:
    """The present wait of the start, and the reason why it lasts."""
    outage, health = startup.outage(), startup.health
    if health.is_ready or not outage.tries:
        return health.waiting_for
    return f"{health.waiting_for}: the bucket does not answer ({outage})"
