"""What of an OffsetCommit becomes positions, row by row.

Owns the judgement of the rows. Pure. Always true: a row is refused for its own sake, but for bounds: where the rows
would make a group, or all of them, too large, none is taken; what is taken belongs to the topic that has the name now
(KIP-516). Must not know members (the machine admits a commit before it comes here), the log, the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from broker.config.groups import GroupConfig, is_too_long
from broker.error_codes import ErrorCode
from broker.groups.offsets import (
    OFFSET_OVERHEAD_BYTES,
    GroupOffsets,
    TopicPosition,
    refuses_metadata,
)
from broker.groups.records import NO_EXPIRY, CommittedOffset
from broker.metadata.topic_facts import TopicLookup
from broker.wire.primitives import ZERO_UUID


class CommitRow(NamedTuple):
    """One partition of an OffsetCommit. `metadata` is "" when the client sent null, as Kafka stores it; `topic_id` is
    which topic of the name is meant, zero: the present one."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: UUID = ZERO_UUID


class Judged(NamedTuple):
    """`codes`: one a row, in order; `values`: what the rows with NONE commit."""

    codes: list[ErrorCode]
    values: list[tuple[TopicPosition, CommittedOffset]]


def judge(
    rows: Sequence[CommitRow],
    held: GroupOffsets,
    topics: TopicLookup,
    config: GroupConfig,
    is_full: Callable[[int], bool],
    *,
    now_ms: int,
    retention_ms: int,
) -> Judged:
    """`held`: what the group has. `is_full`: whether so many bytes more are too many. `retention_ms` −1: as configured.

    30 µs a row, on the loop: `config.commit_rows_max` is the caller's business.
    """
    expire_at_ms = NO_EXPIRY if retention_ms < 0 else now_ms + retention_ms
    codes: list[ErrorCode] = []
    values: list[tuple[TopicPosition, CommittedOffset]] = []
    growth = more = 0
    for row in rows:
        facts = topics(row.topic)
        code = refuses_metadata(row.metadata, config.offset_metadata_bytes_max)
        if facts is None or not 0 <= row.partition < facts.partitions or is_too_long(row.topic):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif row.topic_id not in (ZERO_UUID, facts.topic_id):  # made again since the request was read
            code = ErrorCode.UNKNOWN_TOPIC_ID
        codes.append(code)
        if code is ErrorCode.NONE:
            assert facts is not None
            value = CommittedOffset(row.offset, row.leader_epoch, row.metadata, now_ms, expire_at_ms, facts.topic_id)
            values.append(((row.topic, row.partition), value))
            if held.get(row.topic, row.partition) is None:
                growth += OFFSET_OVERHEAD_BYTES + len(row.metadata)
                more += 1
    if more and (held.count + more > config.group_positions_max or is_full(growth)):
        full = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        return Judged([full if code is ErrorCode.NONE else code for code in codes], [])
    return Judged(codes, values)
