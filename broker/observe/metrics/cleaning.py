"""Metrics of compaction. The help texts contain Kafka's names."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from broker.observe.metrics.families import counter, gauge
from hotstore.cleaning.log_cleaner import LogCleaner
from tiering.cleaning.scratch import ColdCleaning


def cold_cleaning_metrics(cleaning: ColdCleaning) -> Iterator[Metric]:
    """Figures of the bucket's compaction since the start."""
    counters = cleaning.counters
    yield counter(
        "cold_cleaner_passes",
        "passes that compacted a partition's part in the bucket, including the failed ones",
        counters.passes,
    )
    yield counter(
        "cold_cleaner_failed_passes",
        "passes over the bucket that failed; see the condition bucket_uncleanable",
        counters.failed_passes,
    )
    yield counter("cold_cleaner_read_bytes", "bytes that the bucket's compaction read", counters.read_bytes)
    yield counter("cold_cleaner_written_bytes", "bytes that the bucket's compaction wrote", counters.written_bytes)
    yield counter(
        "cold_cleaner_freed_bytes",
        "bytes by which compaction makes the bucket smaller, after the grace of replaced objects",
        counters.freed_bytes,
    )
    yield counter(
        "cold_cleaner_replaced_objects", "objects that the bucket's compaction replaced", counters.replaced_objects
    )
    yield gauge(
        "bucket_uncleanable_partitions",
        "partitions whose part in the bucket the last pass could not compact; see the condition bucket_uncleanable",
        len(cleaning.stands_still),
    )


def cleaning_metrics(cleaner: LogCleaner) -> Iterator[Metric]:
    """Figures of the log cleaner since the start."""
    counters = cleaner.counters
    yield counter("cleaner_passes", "passes of the log cleaner that cleaned a log", counters.passes)
    yield counter(
        "cleaner_failed_passes",
        "passes of the log cleaner that failed; see the condition uncleanable",
        counters.failed_passes,
    )
    yield counter("cleaner_read_bytes", "bytes of the segments that the log cleaner read", counters.read_bytes)
    yield counter(
        "cleaner_written_bytes",
        "bytes of the segments that the log cleaner wrote in their place",
        counters.written_bytes,
    )
    yield gauge(
        "uncleanable_partitions",
        "compacted logs that the cleaner gave up (Kafka's uncleanable-partitions-count); see the condition uncleanable",
        len(cleaner.uncleanable),
    )
    yield gauge(
        "max_dirty_ratio",
        "dirty bytes divided by all bytes, of the dirtiest compacted log (Kafka's max-dirty-percent)",
        cleaner.max_dirty_ratio,
    )
