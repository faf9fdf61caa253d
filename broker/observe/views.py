"""What the HTTP port shows and does, from the first second of a start until its end.

Owns which figures each route is made of. Always true: a broker that waits says what for; more figures come with
`Sources`, once clients are served. Must not know routes (http), nor how a figure is written.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from broker.observe.cluster_look import ClusterLook, ClusterLooks
from broker.observe.cluster_status import Asked, cluster_status
from broker.observe.http import Views
from broker.observe.metrics.exposition import exposition
from broker.observe.metrics.topics import PartitionsLook, look_in_turns
from broker.observe.own_session import decides
from broker.observe.sources import Beginning, Sources
from broker.observe.tier_view import broker_json, status_json
from logformat.errors import Retryable


def operator_views(beginning: Beginning, serving: Callable[[], Sources | None]) -> Views:
    """`serving`: None while nothing is served yet."""

    looks = ClusterLooks(beginning.config.node_id)

    async def both_looks(sources: Sources) -> tuple[PartitionsLook, ClusterLook]:
        cluster = await looks.of(sources.context.metadata.image, decides=decides(sources))
        registry = sources.context.registry
        return await look_in_turns(registry, registry.reads), cluster

    async def broker() -> bytes:
        sources = serving()
        if sources is None:
            return broker_json(beginning, None)
        return broker_json(beginning, sources, *await both_looks(sources), await sources.strays())

    async def metrics() -> bytes:
        sources = serving()
        if sources is None:
            return exposition(beginning, None)
        groups = await sources.context.groups.survey(sources.context.registry.high_watermark)
        return exposition(beginning, sources, groups, *await both_looks(sources))

    def status() -> bytes:
        sources = serving()
        return b"[]" if sources is None else status_json(sources)

    async def cluster() -> bytes:
        sources = serving()
        if sources is None:
            raise Retryable(f"not ready yet: {not_ready(beginning)}")
        context = sources.context
        metadata = context.metadata
        asked = Asked(
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
        if topic in (None, sources.snapshots.topic):
            await sources.snapshots.write_changed()  # an internal topic is in the bucket by its snapshots
        await sources.tiers.seal_all(None if topic is None else [topic])

    return Views(
        metrics=metrics,
        status=status,
        cluster=cluster,
        broker=broker,
        not_ready=lambda: not_ready(beginning),
        failures=lambda: list(beginning.health.failures),
        seal=seal,
    )


def not_ready(beginning: Beginning) -> str:
    """What is waited for, and why it does not come."""
    outage, health = beginning.outage(), beginning.health
    if health.is_ready or not outage.tries:
        return health.waiting_for
    return f"{health.waiting_for}: the bucket does not answer ({outage})"
