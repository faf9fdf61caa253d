"""`thermocline topic list`: names, partitions, and bytes of each topic in both tiers.

JSON names: `topic partitions local_bytes cold_bytes`. Local bytes are those of the leaders (by DescribeLogDirs, which
Apache Kafka has too); cold bytes come from the HTTP port. If a partition's bytes are unknown, its topic shows null, not
a partial sum.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from broker.wire.messages import MetadataResponse
from thermocline.cli.clients.connections import ask_json, connect, http_of, note_token_refused
from thermocline.cli.clients.statuses import Partition, PartitionTierStatus
from thermocline.cli.clients.wire_client import BrokerUnreachable, WireClient
from thermocline.cli.terminal.outcome import Exit
from thermocline.cli.terminal.output import json_line, plain, table
from thermocline.units import show_size


@dataclass(frozen=True, slots=True)
class TopicSize:
    """One topic, fields in printed order. Bytes of log; None = unknown."""

    topic: str
    partitions: int
    local_bytes: int | None
    cold_bytes: int | None


def sizes(
    topics: Mapping[str, Iterable[int]], local_bytes: Mapping[Partition, int], cold_bytes: Mapping[Partition, int]
) -> list[TopicSize]:
    """One row per topic, sorted by name; `topics` has the partitions of each."""
    return [
        TopicSize(name, len(indexes), _sum(name, indexes, local_bytes), _sum(name, indexes, cold_bytes))
        for name, indexes in sorted((name, list(indexes)) for name, indexes in topics.items())
    ]


def _sum(topic: str, indexes: list[int], known: Mapping[Partition, int]) -> int | None:
    found = [known[topic, index] for index in indexes if (topic, index) in known]
    return sum(found) if len(found) == len(indexes) else None


def list_topics(arguments: argparse.Namespace) -> int:
    with connect(arguments.bootstrap_server) as client:
        metadata = client.metadata(None)
    topics = {
        found.name or "": [partition.partition_index for partition in found.partitions]
        for found in metadata.topics
        if arguments.internal or not (found.is_internal or (found.name or "").startswith("__"))
    }
    rows = sizes(topics, *_bytes(metadata))
    if arguments.json:
        for row in rows:
            print(json_line(asdict(row)))
        return Exit.DONE
    right = ("partitions", "on disk", "in the bucket")
    shown = [(row.topic, str(row.partitions), _shown(row.local_bytes), _shown(row.cold_bytes)) for row in rows]
    print(table(("topic", *right), shown, right=right))
    return Exit.DONE


def _bytes(metadata: MetadataResponse) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """(local, cold) bytes of every partition whose leader reports them."""
    local: dict[Partition, int] = {}
    refused: list[int] = []
    cold: dict[Partition, int] = {}
    for broker in metadata.brokers:
        led = {
            (topic.name or "", partition.partition_index)
            for topic in metadata.topics
            for partition in topic.partitions
            if partition.leader_id == broker.node_id
        }
        try:
            with WireClient(broker.host, broker.port) as client:
                local |= {partition: size for partition, size in client.log_sizes().items() if partition in led}
                address = http_of(client, broker.node_id)
        except BrokerUnreachable:
            continue  # the sizes of its topics are unknown
        if address is None:
            continue
        statuses, is_refused = ask_json(address, "/status", list[PartitionTierStatus])
        refused += [broker.node_id] * is_refused
        for status in statuses or []:
            if (status.topic, status.partition) in led and status.cold_bytes is not None:
                cold[status.topic, status.partition] = status.cold_bytes
    note_token_refused("bytes in the bucket", refused)
    return local, cold


def _shown(size: int | None) -> str:
    return plain(size) if size is None else show_size(size)
