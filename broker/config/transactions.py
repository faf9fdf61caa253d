"""Limits of transactions: configs (Kafka's names) and constants of this broker.

Every structure that a client can grow has its limit here. Source: Kafka 4.3's `TransactionStateManagerConfigs` and
`TransactionLogConfigs`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class TransactionConfig(msgspec.Struct, frozen=True):
    """Configs of transactions. Times in ms, sizes in bytes."""

    timeout_max_ms: Annotated[int, "transaction.max.timeout.ms"] = 900_000
    id_expiration_ms: Annotated[int, "transactional.id.expiration.ms"] = 604_800_000
    abort_interval_ms: Annotated[int, "transaction.abort.timed.out.transaction.cleanup.interval.ms"] = 10_000
    expiry_interval_ms: Annotated[int, "transaction.remove.expired.transaction.cleanup.interval.ms"] = 3_600_000
    add_retry_backoff_ms: Annotated[int, "add.partitions.to.txn.retry.backoff.ms"] = 20
    add_retry_backoff_max_ms: Annotated[int, "add.partitions.to.txn.retry.backoff.max.ms"] = 100
    topic_partitions: Annotated[int, "transaction.state.log.num.partitions"] = 50
    topic_replication_factor: Annotated[int, "transaction.state.log.replication.factor"] = 3
    topic_min_in_sync: Annotated[int, "transaction.state.log.min.isr"] = 2
    topic_segment_bytes: Annotated[int, "transaction.state.log.segment.bytes"] = 104_857_600

    ids_max: int = 100_000
    """Transactional ids in memory, about 1 KB each without partitions."""
    partitions_max: int = 1_000_000
    """Partitions of all open transactions, 0.1 KB each."""
    request_timeout_ms: int = 10_000
    """Longest wait of a request until its record is durable; the write continues afterwards."""
    append_batch_bytes_max: int = 512 * 1024
    append_queue_max: int = 20_000
    append_queue_bytes_max: int = 32 * 1024 * 1024
    snapshot_interval_ms: int = 7_500
    """See `GroupConfig.snapshot_interval_ms`."""
