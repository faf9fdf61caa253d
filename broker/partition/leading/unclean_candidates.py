"""What this broker's replicas hold of partitions that nobody may lead, told to the controller that asks (R20).

Owns the answer to OffsetForLeaderEpoch of candidates. Always true: a replica answers in the leader epoch of its role,
as one that nobody leads: what it says stays so until a row of a higher epoch; a log is usable up to the first damage,
one that is refused at its opening too, and nobody waits for it; one whose disk fails cannot begin, for as long as it
does. Must not know who asks, nor who is chosen.
"""

from __future__ import annotations

from typing import Final

from broker.error_codes import ErrorCode
from broker.partition.registry import Registry
from broker.wire.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
    OffsetForLeaderEpochResponseTopic,
)
from hotstore.host.open_log import RefusedLog
from logformat.leader_epochs import UNDEFINED_EPOCH

_NOTHING: Final = RefusedLog(UNDEFINED_EPOCH, 0, 0)


def answer(registry: Registry, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Of each partition; KAFKA_STORAGE_ERROR where its log failed, or the disk refuses it; FENCED_LEADER_EPOCH and
    UNKNOWN_LEADER_EPOCH where the image here is another one, NOT_LEADER_OR_FOLLOWER while its log is not open: ask
    again."""
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
    followed = registry.followed.get((topic.topic, wanted.partition))
    if followed is None or followed.topic_id != topic.topic_id:
        place = str(topic.topic_id), wanted.partition
        if place in registry.log_failures.lost:
            left = registry.log_failures.remains.get(place, _NOTHING)
            found.seen_epoch, found.high_watermark, found.usable_end = left
        else:
            is_refused = place in registry.log_failures.unfit
            found.error_code = ErrorCode.KAFKA_STORAGE_ERROR if is_refused else ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif followed.leader_epoch != wanted.current_leader_epoch:
        is_older = followed.leader_epoch < wanted.current_leader_epoch
        found.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH if is_older else ErrorCode.FENCED_LEADER_EPOCH
    elif followed.failure:
        found.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        found.seen_epoch = followed.opened.seen_epoch
        found.high_watermark = followed.high_watermark
        found.usable_end = min(followed.log.stable_end_offset, followed.log.sound_end_offset)
    return found
