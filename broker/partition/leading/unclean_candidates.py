"""Answers the controller's query about this broker's logs of leaderless partitions (R20).

A replica answers for the leader epoch of its role; the answer is valid until a row of a higher epoch. A damaged log is
usable up to the first damage, even if its opening was refused. A replica with a failing disk is not a candidate.
"""

from __future__ import annotations

from broker.error_codes import ErrorCode
from broker.partition.following.follower_replica import FollowerReplica
from broker.partition.registry import RefusedCopy, Registry
from broker.wire.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
    OffsetForLeaderEpochResponseTopic,
)


def answer(registry: Registry, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """The OffsetForLeaderEpoch response, per partition. Errors: KAFKA_STORAGE_ERROR if the log failed or the disk
    refuses to open it; FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH if the image here differs; NOT_LEADER_OR_FOLLOWER
    while the log is not open (retry)."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponseTopic(
                topic.topic, [_one(registry, topic, wanted) for wanted in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _one(
    registry: Registry, topic: OffsetForLeaderEpochRequestTopic, wanted: OffsetForLeaderEpochRequestPartition
) -> OffsetForLeaderEpochResponsePartition:
    found = OffsetForLeaderEpochResponsePartition(partition=wanted.partition)
    name = topic.topic, wanted.partition
    followed: FollowerReplica | RefusedCopy | None = registry.followed.get(name) or registry.refused.get(name)
    if followed is None or followed.topic_id != topic.topic_id:
        has_failed = (str(topic.topic_id), wanted.partition) in registry.log_failures.unfit
        found.error_code = ErrorCode.KAFKA_STORAGE_ERROR if has_failed else ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif followed.leader_epoch != wanted.current_leader_epoch:
        is_older = followed.leader_epoch < wanted.current_leader_epoch
        found.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH if is_older else ErrorCode.FENCED_LEADER_EPOCH
    elif isinstance(followed, RefusedCopy):
        found.seen_epoch, found.high_watermark, found.usable_end = followed.remains
    elif followed.failure:
        found.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        found.seen_epoch = followed.opened.seen_epoch
        found.high_watermark = followed.high_watermark
        found.usable_end = min(followed.log.stable_end_offset, followed.log.sound_end_offset)
    return found
