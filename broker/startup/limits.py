"""Limits of network and tiering, made from the configuration."""

from __future__ import annotations

from broker.config.broker_config import BrokerConfig
from broker.membership.session import Refused
from broker.metadata.image import ClusterImage
from broker.net.limits import ListenerLimits, NetLimits
from broker.quotas.client_quotas import QuotaManagers
from broker.quotas.rates import Windows
from broker.security.client_access import ClientAccess
from coldstore.inspection.probe import ProbeReport, Verification
from seams.clock import Clock
from seams.net import SocketBuffers
from tiering.tier_config import TierLimits


def net_limits(config: BrokerConfig) -> NetLimits:
    return NetLimits(
        request_bytes_max=config.request_bytes_max,
        frame_bytes_total_max=config.inflight_request_bytes_max or NetLimits().frame_bytes_total_max,
        idle_ms_max=config.connection_idle_ms_max,
        frame_ms_max=config.frame_timeout_ms,
        connections_max=config.connections_max,
        connections_per_ip_max=config.connections_per_ip_max,
        connections_per_ip_overrides=config.connections_per_ip_overrides,
        connections_per_s_max=config.connection_creation_rate_max,
        of_listener={
            name: ListenerLimits(bounds.most, bounds.per_s) for name, bounds in config.connections_of_listener.items()
        },
        buffers=SocketBuffers(config.socket_send_buffer_bytes, config.socket_receive_buffer_bytes),
        wide_send_buffers_max=0 if "socket.send.buffer.bytes" in config.static else NetLimits().wide_send_buffers_max,
        drain_ms_max=config.shutdown_timeout_ms,
    )


def quota_managers(config: BrokerConfig, clock: Clock, clients: ClientAccess) -> QuotaManagers:
    return QuotaManagers(
        Windows(config.quota_windows, config.quota_window_s * 1000),
        Windows(config.controller_quota_windows, config.controller_quota_window_s * 1000),
        clock.monotonic_s,
        clients.is_free_of_quotas,
    )


def tier_limits(config: BrokerConfig, probed: ProbeReport | None) -> TierLimits:
    """The limits of tiering. `probed` is None for a read-only broker."""
    return TierLimits(
        copy_partitions_max=config.copy_partitions_max,
        copy_backoff_ms=config.copy_backoff_ms,
        copy_backoff_ms_max=config.copy_backoff_ms_max,
        copy_backoff_jitter=config.copy_backoff_jitter,
        interval_ms_max=config.tiering_interval_ms_max,
        retention_check_interval_ms=config.retention_check_interval_ms,
        gc_grace_ms=config.gc_grace_ms,
        cold_compaction_grace_ms=config.cold_compaction_grace_ms,
        cold_compaction_bytes_per_hour=config.cold_compaction_bytes_per_hour,
        reservation_offsets=config.reservation_offsets,
        local_bytes_max=config.local_bytes_max,
        local_space_ratio_max=config.local_space_ratio_max,
        brokers_on_disk=config.brokers_on_disk,
        cold_reads_max=config.cold_reads_max,
        cold_reads_waiting_max=config.cold_reads_waiting_max,
        prefetch_bytes=config.prefetch_bytes,
        cache_bytes_max=config.cache_bytes_max,
        answer_bytes_max=config.fetch_max_bytes,
        store_timeout_s=config.store_timeout_ms / 1000,
        upload_timeout_s=config.store_upload_timeout_ms / 1000,
        verify_by_head=probed is not None and probed.verification is Verification.HEAD,
        one_pass=probed is not None and probed.takes_trailers,
    )


def check_tiering(config: BrokerConfig, image: ClusterImage) -> None:
    """Refuse the start of a broker without tiering if a topic has tiering enabled, as Kafka does."""
    tiered = [topic.name for topic in image.topics.values() if topic.configs.get("remote.storage.enable") == "true"]
    if tiered and not config.tiering_enabled:
        raise Refused(
            f"remote.log.storage.system.enable=false, but {', '.join(tiered[:5])} have remote.storage.enable=true: "
            "their history is in the bucket; enable tiering"
        )
