"""Local segments that a follower needs no more: deleted records, and what the bucket holds, verified (R6).

Owns that judgement's arguments. Always true: below the leader's log start everything may go; above it only what the
leader saw whole in the bucket, as far as local retention asks, and never what is not committed; the log start is
durable before a file goes. A follower expires nothing by total retention: its leader moves the log start (R7). Must not
know leaders, nor when it is asked.
"""

from __future__ import annotations

from dataclasses import replace

from broker.config.topics import TopicConfig
from broker.partition.followed import Followed
from hotstore.local_retention import expirable
from hotstore.log_host import LogHost
from seams.workers import Workers, run_to_end

_NO_LIMIT = -1


async def expire(followed: Followed, config: TopicConfig, logs: LogHost, workers: Workers, now_ms: int) -> None:
    """Drop what may go from this disk. Raises OSError."""
    log = followed.log
    is_tiered = config.remote_storage_enable and followed.verified_end >= 0
    wanted = expirable(
        log.sealed_segments(),
        max(followed.verified_end, 0),
        min(followed.high_watermark, log.flushed_end_offset),
        now_ms,
        replace(
            log.config,
            tiered=is_tiered,
            retention_ms=_NO_LIMIT,
            retention_bytes=_NO_LIMIT,
            local_retention_ms=config.local_retention_ms if is_tiered else _NO_LIMIT,
            local_retention_bytes=config.local_retention_bytes if is_tiered else _NO_LIMIT,
        ),
        log_start=log.log_start_offset,
        active_bytes=log.active_info().bytes,
    )
    if wanted.segment_count == 0 or followed.next_fetch() is None:
        return
    await logs.checkpoint_start(log)  # the first local segment will not tell any more where the log starts
    if followed.next_fetch() is not None and (dropped := log.delete_local_before(wanted.offset)):
        await run_to_end(workers, log.unlink, dropped)
