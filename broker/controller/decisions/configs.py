"""Decides configs of topics and brokers. Pure.

A decision writes all overrides of the topic or broker, not only the changed overrides. It also writes the partition
rows that change with the configs. A change without effect writes nothing. `change` validates the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.controller.decisions.decision import Decision, check_room
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import ConfigsSet, MetadataRecord
from broker.metadata.rows import config_changed


def set_on_topic(
    image: ClusterImage, name: str, change: Callable[[Topic], Mapping[str, str]], image_bytes: int
) -> Decision[None]:
    """Replace a topic's overrides by the result of `change`."""
    topic = image.topic_named(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    configs = dict(change(topic))
    if configs.keys() - topic.configs.keys():
        check_room(image_bytes)
    if configs == topic.configs:
        return Decision((), None)
    return Decision(_with_rows(image, ConfigsSet(configs, topic_id=topic.topic_id)), None)


def set_on_brokers(
    image: ClusterImage, node_id: int | None, change: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> Decision[Mapping[str, str]]:
    """Replace the configs of a node (None: of every broker) by the result of `change`. Returns the new configs."""
    existing = image.cluster_configs if node_id is None else image.node_configs.get(node_id, {})
    configs = dict(change(existing))
    if configs == existing:
        return Decision((), configs)
    return Decision(_with_rows(image, ConfigsSet(configs, node_id=node_id)), configs)


def _with_rows(image: ClusterImage, changed: ConfigsSet) -> tuple[MetadataRecord, ...]:
    """If the change lowers `min.insync.replicas`, members that were only kept for the minimum leave in the same commit
    (D7)."""
    after = image.with_records([changed])
    return (changed, *(config_changed(after, changed.topic_id) if changed.node_id is None else ()))
