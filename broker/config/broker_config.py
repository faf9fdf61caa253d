"""The configuration of a broker as one typed value; `resolve` makes it, and checks every field against its
definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.config.groups import GroupConfig
from broker.config.listeners import ListenerConfig
from broker.config.times import ClusterTimes


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Times in ms, sizes in bytes; None where the comment says so."""

    # identity and places
    node_id: int
    rack: str | None
    selects_by_rack: bool  # consumers are sent to replicas in their rack (KIP-392)
    data_dir: str  # absolute
    bucket_url: str
    bucket_is_default: bool  # the directory beside data_dir: both tiers share a disk
    take_over: bool  # the operator asserts that the last broker of this bucket is dead (design 1)
    read_only: bool  # reads another cluster's bucket and never writes it

    # addresses
    listeners: tuple[ListenerConfig, ...]  # at least one, in the order written
    brokers_listener: str  # the name of the listener of brokers: one of `listeners`, or `internal`
    internal: ListenerConfig | None  # an additional listener for brokers only
    http_host: str | None  # None: no HTTP
    http_port: int

    # network limits
    request_bytes_max: int
    inflight_request_bytes_max: int | None  # None: no limit
    socket_send_buffer_bytes: int  # -1: the kernel's
    socket_receive_buffer_bytes: int  # -1: the kernel's
    connection_idle_ms_max: int
    connections_max: int
    connections_per_ip_max: int
    connection_creation_rate_max: int  # a second
    frame_timeout_ms: int
    fetch_max_bytes: int
    fetch_sessions_max: int

    # topics
    num_partitions: int
    default_replication_factor: int
    auto_create_topics_enable: bool
    delete_topics: bool
    offsets_topic_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int

    # the local log
    flush_sync: bool
    validate_records: bool
    retention_check_interval_ms: int
    recovery_point_checkpoint_interval_ms: int
    log_start_checkpoint_interval_ms: int
    high_watermark_checkpoint_interval_ms: int
    replica_lag_ms_max: int
    follower_rate_max: int  # bytes a second, of replicas that are throttled
    replication_quota_windows: int
    replication_quota_window_s: int
    follower_skip_bytes: int
    producer_id_expiration_ms: int
    local_bytes_max: int | None  # None: local_space_ratio_max decides
    local_space_ratio_max: float  # share of the file system, 0 to 1
    brokers_on_disk: int  # brokers that share that file system, this one among them

    # groups
    groups: GroupConfig

    # tiering
    tiering_enabled: bool
    tiering_interval_ms_max: int
    seal_ms: int
    seal_on_shutdown: bool
    copy_partitions_max: int
    copy_backoff_ms: int
    copy_backoff_ms_max: int
    copy_backoff_jitter: float
    gc_grace_ms: int
    reservation_offsets: int

    # the cold tier
    cold_reads_max: int
    cold_reads_waiting_max: int
    cold_fetch_wait_ms_max: int
    cold_fetch_bytes_max: int
    list_offsets_wait_ms_max: int
    cache_bytes_max: int
    prefetch_bytes: int

    # the bucket as coordinator
    times: ClusterTimes
    auto_leader_rebalance: bool
    leader_imbalance_check_interval_s: int
    store_timeout_ms: int
    store_upload_timeout_ms: int

    # stopping, and tests
    shutdown_timeout_ms: int
    testing: bool

    configured: Mapping[str, str]  # explicit broker values by name, in canonical text, all layers merged
    static: Mapping[str, str]  # of those, the ones of the start: flags, --set, environment, file
    cluster_overrides: Mapping[str, str]  # set for every broker at run time
    own_overrides: Mapping[str, str]  # set for this broker at run time: the strongest
    ignored: tuple[str, ...]  # names that were set and have no effect here, sorted
