"""A topic's configs for the `topic` verbs: units in `-c` (`retention.ms=7d`), the retention sentence, a warning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thermocline.cli.terminal.output import note
from thermocline.cli.tier.diagnosis import MIN_IN_SYNC, too_few

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


def topic_configs(admin: AdminClient, topic: str) -> dict[str, Any]:
    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, ConfigResource, ResourceType, failing

    with failing(f"reading the configs of topic {topic}"):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found: dict[str, Any] = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource].result()
    return found


def retention(configs: dict[str, Any]) -> str:
    """A sentence about the times at which a topic's data is deleted from the disk and from the bucket."""
    from thermocline.cli.tier.retention_text import retention_sentence

    return retention_sentence({name: entry.value for name, entry in configs.items()})


def warn_of_replicas(topic: str, configs: dict[str, Any], in_sync: int, replicas: int) -> None:
    """Warn if `min.insync.replicas` is above the in-sync replicas, because the broker then refuses writes."""
    wanted = configs.get(MIN_IN_SYNC)
    if wanted is not None and (unmet := too_few(topic, wanted.value, in_sync, replicas)):
        note(f"thermocline: {unmet}")


def with_units(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """`retention.ms=7d` → `604800000`, because the protocol has plain numbers only. Unknown names are sent too: the
    broker may be of another version.
    """
    from broker.config.definitions import TOPIC, nearest_topic_name

    for name, _ in pairs:
        if name not in TOPIC and (near := nearest_topic_name(name)):
            note(f"thermocline: {name} is not a topic config known here; the nearest is {near}")
    return [(name, TOPIC[name].with_units(value) if name in TOPIC else value) for name, value in pairs]
