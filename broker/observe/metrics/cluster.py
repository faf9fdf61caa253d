"""Metrics of the cluster: controller, sessions, partitions, replication, commit times.

Metrics that Kafka also has are defined as in Kafka (KafkaController, ReplicaManager). One broker counts each partition:
its leader, or the controller if the partition has no leader.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from broker.following.turnover import Turnover
from broker.metrics.counters import BOUNDS_S
from broker.observe.cluster_summary import ClusterSummary
from broker.observe.metrics.families import counter, gauge, histogram
from broker.observe.sources import Sources, heartbeat_age_s, lease_age_s
from broker.observe.standing import LateReplica
from broker.replication.catch_up import ReplicationCounters


def cluster_metrics(sources: Sources, seen: ClusterSummary, late: list[LateReplica]) -> Iterator[Metric]:
    """Metrics of the cluster. `late`: late replicas of partitions that this broker leads."""
    yield from _who(sources, seen)
    yield from _partitions(seen)
    yield from _turnover(sources.turnover)
    yield from _lag(late)
    yield from _copied(sources.context.registry.copied)
    yield from _times(sources)


def _who(sources: Sources, seen: ClusterSummary) -> Iterator[Metric]:
    yield gauge(
        "is_controller",
        "1 on the controller (Kafka's ActiveControllerCount); the sum over brokers is 1, except during a change",
        seen.decides,
    )
    yield gauge("controller_epoch", "controller epoch that this broker knows; each change of controller raises it",
                -1 if (controller := sources.context.metadata.controller) is None else controller.epoch)  # fmt: skip
    yield gauge(
        "cluster_version",
        "records of cluster.json that this broker has applied; if it falls behind, see the condition controller_silent",
        sources.position(),
    )
    yield gauge(
        "sessions",
        "brokers with a session, counted by the controller, 0 elsewhere; see the condition broker_away",
        seen.sessions,
    )


def _partitions(seen: ClusterSummary) -> Iterator[Metric]:
    yield gauge("leaders", "partitions that the cluster assigns this broker to lead (LeaderCount)", seen.leaders)
    yield gauge("replicas", "partitions that the cluster assigns this broker to hold (PartitionCount)", seen.replicas)
    yield gauge(
        "under_replicated_partitions",
        "partitions led here with fewer in-sync replicas in session than assigned ones (UnderReplicatedPartitions); "
        "see the condition under_replicated",
        seen.under_replicated,
    )
    yield gauge(
        "under_min_isr_partitions",
        "partitions led here with fewer in-sync replicas than min.insync.replicas (UnderMinIsrPartitionCount); they "
        "refuse writes with acks=all; see the condition below_min",
        seen.below_min,
    )
    yield gauge(
        "reassigning_partitions", "partitions led here that move to other brokers (ReassigningPartitions)", seen.moving
    )
    yield gauge(
        "leaderless_partitions",
        "partitions without a leader, counted by the controller, 0 elsewhere (OfflinePartitionsCount); see the "
        "condition no_leader",
        seen.leaderless,
    )
    yield gauge(
        "recovering_partitions",
        "partitions led here that recover from an unclean election; see the condition recovering",
        seen.starting,
    )


def _turnover(turnover: Turnover) -> Iterator[Metric]:
    yield counter("elections", "elections of this broker to lead a partition (LeaderElectionRateAndTimeMs)",
                  turnover.elections)  # fmt: skip
    yield counter("unclean_elections", "unclean elections of this broker (UncleanLeaderElectionsPerSec)",
                  turnover.unclean_elections)  # fmt: skip
    yield counter("isr_shrinks", "in-sync sets of partitions led here that lost a member (IsrShrinksPerSec)",
                  turnover.shrinks)  # fmt: skip
    yield counter("isr_expands", "in-sync sets of partitions led here that gained one (IsrExpandsPerSec)",
                  turnover.expansions)  # fmt: skip


def _lag(late: list[LateReplica]) -> Iterator[Metric]:
    yield gauge("late_replicas", "replicas of partitions led here, on brokers with a session, that lack records "
                "which the leader had half a second ago", len(late))  # fmt: skip
    yield gauge(
        "replica_lag_max_records",
        "records that the slowest replica of partitions led here lacks (MaxLag, measured by the leader)",
        max((one.records for one in late if one.records is not None), default=0),
    )
    yield gauge(
        "replica_lag_max_seconds",
        "lag time of the slowest replica of partitions led here; above replica.lag.time.max.ms the replica leaves "
        "the in-sync set; see the condition under_replicated",
        max((one.ms for one in late), default=0) / 1000,
    )


def _copied(copied: ReplicationCounters) -> Iterator[Metric]:
    yield counter("replication_bytes_in", "record bytes that leaders sent to replicas here (ReplicationBytesInPerSec)",
                  copied.bytes_in)  # fmt: skip
    yield counter(
        "replication_bytes_skipped",
        "estimate of the log bytes that replicas here did not copy, because the bucket holds them",
        copied.bytes_skipped,
    )
    yield counter(
        "replicas_begun_in_bucket",
        "restarts of empty, damaged or lagging replicas here at the end of the verified part of the bucket",
        copied.begun,
    )


def _times(sources: Sources) -> Iterator[Metric]:
    commits = sources.cluster.commit_times
    yield gauge(
        "heartbeat_age_seconds",
        "time since the last answered heartbeat was sent, 0 on the controller; above 5, the condition "
        "controller_silent holds; at 9, the session ends",
        heartbeat_age_s(sources),
    )
    yield gauge(
        "lease_age_seconds",
        "time since the controller renewed lease.json, 0 elsewhere; another broker takes over if it is not renewed for "
        "thermocline.lease.ms",
        lease_age_s(sources),
    )
    yield histogram(
        "cluster_commit_seconds",
        "duration of commits to cluster.json; every election and every change of in-sync sets or topics waits for one",
        BOUNDS_S,
        [((), commits.buckets[0], commits.seconds[0])],
    )
