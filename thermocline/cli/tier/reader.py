"""Reads the input of `tier status`: brokers over the Kafka protocol and HTTP, manifests in a bucket.

If a broker is not ours, or its HTTP port cannot be reached, some fields are unknown. The command fails only if no
bootstrap address has a Kafka broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from broker.error_codes import ErrorCode
from broker.wire.messages import MetadataResponse
from thermocline.cli.clients.connection_properties import no_topic
from thermocline.cli.clients.connections import ask_json, connect, get_json, http_of, token_refused
from thermocline.cli.clients.statuses import BrokerStatus, Partition, PartitionTierStatus
from thermocline.cli.clients.wire_client import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    TOPIC_RESOURCE,
    BrokerUnreachable,
    WireClient,
    by_topic,
)
from thermocline.cli.terminal.outcome import CommandFailed
from thermocline.cli.tier.retention_text import retention_sentence
from thermocline.cli.tier.status import Offsets, StatusRow, broker_lines, rows

if TYPE_CHECKING:
    from thermocline.cli.bucket.reading import ColdPartition

_TIERED, _COPY_DISABLED = "remote.storage.enable", "remote.log.copy.disable"
_TOPIC_CONFIGS = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "local.retention.ms",
    "local.retention.bytes",
    _TIERED,
    _COPY_DISABLED,
)


class TierReader:
    """Reads the same brokers (and bucket) repeatedly."""

    def __init__(self, bootstrap: str, topic: str | None, bucket_url: str | None) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._bucket_url = bucket_url
        self._topic_configs: dict[str, dict[str, str | None]] = {}
        self._brokers: list[BrokerStatus] = []
        self._leaderless: list[str] = []
        self._token_refused: list[int] = []

    def read(self) -> list[StatusRow]:
        cold = self._cold()
        with connect(self._bootstrap) as client:
            metadata = client.metadata(None if self._topic is None else [self._topic])
            leaders = self._leaders(metadata)
            self._leaderless = [f"{topic}-{index}" for (topic, index), leader in leaders.items() if leader < 0]
            for topic in {topic for topic, _ in leaders} - self._topic_configs.keys():
                self._topic_configs[topic] = client.configs(TOPIC_RESOURCE, topic, _TOPIC_CONFIGS)
        offsets = Offsets({}, {}, {}, {})
        local_bytes: dict[Partition, int] = {}
        statuses: list[PartitionTierStatus] = []
        self._brokers, self._token_refused = [], []
        for broker in metadata.brokers:
            led = [partition for partition, leader in leaders.items() if leader == broker.node_id]
            try:
                with WireClient(broker.host, broker.port) as client:
                    offsets = _joined(offsets, _offsets(client, led))
                    local_bytes |= {p: size for p, size in client.log_sizes().items() if p in set(led)}
                    if (address := http_of(client, broker.node_id)) is not None:
                        status, is_refused = ask_json(address, "/status", list[PartitionTierStatus])
                        statuses += status or []
                        self._token_refused += [broker.node_id] * is_refused
                        self._brokers += filter(None, [get_json(address, "/broker", BrokerStatus)])
            except BrokerUnreachable:
                continue  # the fields of its partitions stay unknown
        return rows(leaders, offsets, local_bytes, statuses, cold)

    def brokers(self) -> list[str]:
        """Lines about the brokers of the last read, and one for each condition."""
        return [line for broker in self._brokers for line in broker_lines(broker)]

    def unknown(self) -> list[str]:
        """The sentence about brokers whose HTTP ports refused the token at the last read, if there are any."""
        refused = self._token_refused
        return [token_refused("conditions, and sizes and lags of the partitions,", refused)] if refused else []

    def leaderless(self) -> list[str]:
        """Partitions without leader at the last read."""
        return self._leaderless

    def conditions(self) -> list[str]:
        """Conditions of the brokers of the last read, in their words."""
        return [
            f"broker {broker.node_id}: {held.name}: {held.says}"
            for broker in self._brokers
            for held in broker.conditions
        ]

    def retention(self) -> list[str]:
        """Retention sentences, one for all topics that share it."""
        alike: dict[str, list[str]] = {}
        for topic, configs in sorted(self._topic_configs.items()):
            if configs:
                alike.setdefault(retention_sentence(configs), []).append(topic)
        return [f"{', '.join(topics)}: {words}" for words, topics in alike.items()]

    def uncopied(self, found: Iterable[StatusRow]) -> dict[str, str]:
        """Topics among `found` with records that are never copied, and the config that causes it."""
        holding = {row.topic for row in found if (row.high_watermark or 0) > (row.log_start_offset or 0)}
        return {
            topic: f"{_TIERED}=false" if configs.get(_TIERED) == "false" else f"{_COPY_DISABLED}=true"
            for topic, configs in sorted(self._topic_configs.items())
            if topic in holding and (configs.get(_TIERED) == "false" or configs.get(_COPY_DISABLED) == "true")
        }

    def _leaders(self, metadata: MetadataResponse) -> dict[Partition, int]:
        for found in metadata.topics:
            if self._topic is not None and found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise no_topic(self._topic)
            if self._topic is not None and found.error_code != ErrorCode.NONE:
                raise CommandFailed(
                    f"topic {self._topic}: {ErrorCode(found.error_code).name}; see `thermocline topic list`"
                )
        return {
            (found.name or "", partition.partition_index): partition.leader_id
            for found in metadata.topics
            if not (found.is_internal or (found.name or "").startswith("__")) or self._topic is not None
            for partition in found.partitions
        }

    def _cold(self) -> Mapping[Partition, ColdPartition]:
        if self._bucket_url is None:
            return {}
        from thermocline.cli.bucket.reading import cold_partitions

        return cold_partitions(self._bucket_url, self._topic)


def _offsets(client: WireClient, led: list[Partition]) -> Offsets:
    asked = by_topic(led)
    return Offsets(*(client.offsets(asked, s) for s in (EARLIEST, LATEST, EARLIEST_LOCAL, LATEST_TIERED)))


def _joined(one: Offsets, other: Offsets) -> Offsets:
    return Offsets(
        {**one.earliest, **other.earliest},
        {**one.latest, **other.latest},
        {**one.earliest_local, **other.earliest_local},
        {**one.latest_tiered, **other.latest_tiered},
    )
