"""The configuration of a broker as one typed value. `resolve` makes the value and checks every field against its
definition."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, get_origin, get_type_hints

import msgspec

from broker.config.authorizer import AuthorizerConfig
from broker.config.groups import GroupConfig
from broker.config.network.connections import ConnectionBounds
from broker.config.network.listeners import ListenerConfig
from broker.config.network.sasl import Login, PasswordLogin, SaslListener
from broker.config.times import ClusterTimes
from broker.config.transactions import TransactionConfig
from hotstore.cleaning.cleaner_config import CleanerConfig


class BrokerConfig(msgspec.Struct, frozen=True):
    """The configuration of a broker. Times in ms, sizes in bytes. A field that is annotated with a config has that
    config's value."""

    # identity and places
    node_id: int
    rack: str | None
    selects_by_rack: bool  # consumers are redirected to replicas in their rack (KIP-392)
    data_dir: str  # absolute
    bucket_url: str
    bucket_is_default: bool  # the bucket is the directory beside data_dir: both tiers share a disk
    take_over: bool  # the operator asserts that the last broker of this bucket is dead (design 1)
    read_only: bool  # reads another cluster's bucket and never writes it

    # addresses
    listeners: tuple[ListenerConfig, ...]  # at least one, in the order written
    brokers_listener: str  # the name of the listener of brokers: one of `listeners`, or `internal`
    internal: ListenerConfig | None  # an additional listener for brokers only
    http_host: str | None  # None: no HTTP
    http_port: int
    http_metrics_open: Annotated[bool, "thermocline.http.metrics.open"]
    insecure: tuple[str, ...]  # addresses that others reach without authentication, as --insecure allows

    # security
    sasl: Mapping[str, SaslListener]  # SASL listeners by name
    first_users: tuple[PasswordLogin, ...]  # first SCRAM users of a new cluster
    brokers_login: Login | None  # login to other brokers; None: their listener does not use SASL
    authorizer: AuthorizerConfig | None  # None: no authorization

    # network limits
    request_bytes_max: Annotated[int, "socket.request.max.bytes"]
    inflight_request_bytes_max: int | None  # None: no limit
    socket_send_buffer_bytes: Annotated[int, "socket.send.buffer.bytes"]  # -1: the default of the kernel
    socket_receive_buffer_bytes: Annotated[int, "socket.receive.buffer.bytes"]  # -1: the default of the kernel
    connection_idle_ms_max: Annotated[int, "connections.max.idle.ms"]
    connections_max: Annotated[int, "max.connections"]
    connections_per_ip_max: Annotated[int, "max.connections.per.ip"]
    connections_per_ip_overrides: Mapping[str, int]  # max.connections.per.ip.overrides
    connections_of_listener: Mapping[str, ConnectionBounds]  # by listener name; only listeners with their own bounds
    connection_creation_rate_max: Annotated[int, "max.connection.creation.rate"]  # per second
    frame_timeout_ms: Annotated[int, "thermocline.frame.timeout.ms"]
    fetch_max_bytes: Annotated[int, "fetch.max.bytes"]
    fetch_sessions_max: Annotated[int, "max.incremental.fetch.session.cache.slots"]

    # topics
    num_partitions: Annotated[int, "num.partitions"]
    default_replication_factor: Annotated[int, "default.replication.factor"]
    auto_create_topics_enable: Annotated[bool, "auto.create.topics.enable"]
    delete_topics: Annotated[bool, "delete.topic.enable"]
    offsets_topic_partitions: Annotated[int, "offsets.topic.num.partitions"]
    offsets_topic_replication_factor: Annotated[int, "offsets.topic.replication.factor"]
    offsets_topic_segment_bytes: Annotated[int, "offsets.topic.segment.bytes"]

    # the local log
    flush_sync: bool
    validate_records: Annotated[bool, "thermocline.validate.records"]
    retention_check_interval_ms: Annotated[int, "log.retention.check.interval.ms"]
    recovery_point_checkpoint_interval_ms: Annotated[int, "log.flush.offset.checkpoint.interval.ms"]
    log_start_checkpoint_interval_ms: Annotated[int, "log.flush.start.offset.checkpoint.interval.ms"]
    high_watermark_checkpoint_interval_ms: Annotated[int, "replica.high.watermark.checkpoint.interval.ms"]
    replica_lag_ms_max: Annotated[int, "replica.lag.time.max.ms"]
    follower_rate_max: Annotated[int, "follower.replication.throttled.rate"]  # bytes per second of throttled replicas
    replication_quota_windows: Annotated[int, "replication.quota.window.num"]
    replication_quota_window_s: Annotated[int, "replication.quota.window.size.seconds"]
    quota_windows: Annotated[int, "quota.window.num"]
    quota_window_s: Annotated[int, "quota.window.size.seconds"]
    controller_quota_windows: Annotated[int, "controller.quota.window.num"]
    controller_quota_window_s: Annotated[int, "controller.quota.window.size.seconds"]
    follower_skip_bytes: Annotated[int, "thermocline.follower.skip.bytes"]
    producer_id_expiration_ms: Annotated[int, "producer.id.expiration.ms"]
    local_bytes_max: int | None  # None: local_space_ratio_max decides
    local_space_ratio_max: float  # share of the file system, 0 to 1
    brokers_on_disk: Annotated[
        int, "thermocline.brokers.on.disk"
    ]  # brokers that share that file system, including this broker

    cleaner: CleanerConfig

    # groups and transactions
    groups: GroupConfig
    transactions: TransactionConfig

    # tiering
    tiering_enabled: Annotated[bool, "remote.log.storage.system.enable"]
    tiering_interval_ms_max: Annotated[int, "remote.log.manager.task.interval.ms"]
    seal_ms: Annotated[int, "thermocline.seal.ms"]
    seal_on_shutdown: Annotated[bool, "thermocline.seal.on.shutdown"]
    copy_partitions_max: Annotated[int, "remote.log.manager.copier.thread.pool.size"]
    copy_backoff_ms: Annotated[int, "remote.log.manager.task.retry.backoff.ms"]
    copy_backoff_ms_max: Annotated[int, "remote.log.manager.task.retry.backoff.max.ms"]
    copy_backoff_jitter: Annotated[float, "remote.log.manager.task.retry.jitter"]
    gc_grace_ms: Annotated[int, "thermocline.gc.grace.ms"]
    cold_compaction_grace_ms: Annotated[int, "thermocline.cold.compaction.grace.ms"]
    cold_compaction_bytes_per_hour: Annotated[int, "thermocline.cold.compaction.bytes.per.hour"]
    reservation_offsets: Annotated[int, "thermocline.reservation.offsets"]

    # the cold tier
    cold_reads_max: Annotated[int, "remote.log.reader.threads"]
    cold_reads_waiting_max: Annotated[int, "remote.log.reader.max.pending.tasks"]
    cold_fetch_wait_ms_max: Annotated[int, "remote.fetch.max.wait.ms"]
    cold_fetch_bytes_max: Annotated[int, "thermocline.cold.fetch.bytes.max"]
    list_offsets_wait_ms_max: Annotated[int, "remote.list.offsets.request.timeout.ms"]
    cache_bytes_max: Annotated[int, "thermocline.cache.bytes"]
    prefetch_bytes: Annotated[int, "thermocline.prefetch.bytes"]

    # the bucket as coordinator
    times: ClusterTimes
    auto_leader_rebalance: Annotated[bool, "auto.leader.rebalance.enable"]
    leader_imbalance_check_interval_s: Annotated[int, "leader.imbalance.check.interval.seconds"]
    store_timeout_ms: Annotated[int, "thermocline.store.timeout.ms"]
    store_upload_timeout_ms: Annotated[int, "thermocline.store.upload.timeout.ms"]

    # stopping, and tests
    shutdown_timeout_ms: Annotated[int, "thermocline.shutdown.timeout.ms"]
    testing: Annotated[bool, "thermocline.testing"]

    configured: Mapping[str, str]  # explicit broker values by name, in canonical text, all layers merged
    static: Mapping[str, str]  # the layers of the start: flags, --set, environment, file
    cluster_overrides: Mapping[str, str]  # set for every broker at run time
    own_overrides: Mapping[str, str]  # set for this broker at run time: the strongest
    ignored: tuple[str, ...]  # names that were set and have no effect here, sorted

    @property
    def every_listener(self) -> tuple[ListenerConfig, ...]:
        """All listeners, including the additional one for brokers."""
        return self.listeners if self.internal is None else (*self.listeners, self.internal)

    @property
    def skips_login(self) -> bool:
        """Whether clients have to log in while the brokers' own listener requires no login. Kafka refuses such a
        config, because it has no additional listener."""
        internal = self.internal
        return (
            internal is not None
            and not (internal.protocol.uses_tls or internal.protocol.uses_sasl)
            and all(listener.protocol.uses_sasl for listener in self.listeners)
        )


@cache
def configs_of(kind: type) -> Mapping[str, str]:
    """Field → config, of the fields that are annotated with a config's name."""
    hints = get_type_hints(kind, include_extras=True).items()
    return {field: hint.__metadata__[0] for field, hint in hints if get_origin(hint) is Annotated}
