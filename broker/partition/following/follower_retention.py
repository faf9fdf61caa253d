"""Local retention of followed logs: deletes segments that have only deleted records, and segments verified in the
bucket (R6).

Below the leader's log start every segment may be deleted. Above the leader's log start, local retention deletes only
committed segments that the leader found complete in the bucket. The log start is durable before a file is deleted. A
follower ignores total retention: its leader moves the log start (R7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from broker.config.topic.topic_config import TopicConfig
from broker.metadata.image import Topic
from broker.partition.following.follower_replica import FollowerReplica
from hotstore.log.local_retention import expirable
from seams.loop.turns import Turns, next_turn

_NO_LIMIT = -1
_COPIES_PER_TURN: Final = 100  # logs a turn: 0.1 ms each if every log has another topic and segments to delete


async def expire_all(
    copies: Iterable[tuple[FollowerReplica, Topic]],
    topic_config: Callable[[Topic], TopicConfig],
    now_ms: int,
) -> None:
    """Delete the expired segments of each log, by its topic's configs in the image. Yields to the loop between logs.
    Raises OSError."""
    turns = Turns(_COPIES_PER_TURN)
    known: tuple[Topic, TopicConfig] | None = None  # kept: it takes 80 µs, and the next log is often of the same topic
    for followed, topic in copies:
        if followed.log.sealed_segments() and followed.next_fetch() is not None:
            if known is None or known[0] is not topic:
                known = topic, topic_config(topic)
            _, config = known
            await expire(followed, config, now_ms)
        if turns.over():
            await next_turn()


async def expire(followed: FollowerReplica, config: TopicConfig, now_ms: int) -> None:
    """Delete the log's expired segments from this disk. Raises OSError."""
    log, lease = followed.log, followed.lease
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
    await lease.checkpoint_start()  # afterwards the first local segment no longer shows the log start
    if followed.next_fetch() is not None and lease.delete_local_before(wanted.offset):
        await lease.unlink()
