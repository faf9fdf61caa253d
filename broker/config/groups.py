"""Limits of consumer groups: configs (Kafka's names in the comments) and constants of this broker.

Every structure that a client can grow has its limit here. Source: Kafka 4.3's `GroupCoordinatorConfig`.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

NAME_BYTES_MAX: Final = 2_048
"""Longest group id, instance id, protocol name and type. `__consumer_offsets` could hold 32 767 bytes; the longest
topic name has 249.
"""

PROTOCOLS_MAX: Final = 100
"""Assignors of one member; stock clients offer up to three."""

CLIENT_ID_CHARS_MAX: Final = 255
"""A client id is part of the member ids that the broker assigns; a longer id is truncated, not refused."""


class GroupConfig(msgspec.Struct, frozen=True):
    """Configs of consumer groups. Times in ms, sizes in bytes."""

    session_timeout_min_ms: Annotated[int, "group.min.session.timeout.ms"] = 6_000
    session_timeout_max_ms: Annotated[int, "group.max.session.timeout.ms"] = 1_800_000
    initial_rebalance_delay_ms: Annotated[int, "group.initial.rebalance.delay.ms"] = 3_000
    group_size_max: Annotated[int, "group.max.size"] = 2**31 - 1
    offset_metadata_bytes_max: Annotated[int, "offset.metadata.max.bytes"] = 4_096  # UTF-16 units, as in Kafka
    offsets_retention_ms: int = 10_080 * 60_000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: Annotated[int, "offsets.retention.check.interval.ms"] = 600_000
    offsets_commit_timeout_ms: Annotated[int, "offsets.commit.timeout.ms"] = 5_000

    new_member_join_timeout_ms: int = 300_000
    """A new member's parked JoinGroup ends after this time (5 min, Kafka's constant): its connection may be dead."""

    groups_max: int = 100_000
    """Groups in memory, simple ones included."""
    pending_members_max: int = 10_000
    """Member ids of one group handed out by MEMBER_ID_REQUIRED and not yet used (each lives for a session timeout)."""
    member_metadata_bytes_max: int = 1024 * 1024
    """Metadata of all protocols of one member: 40 000 topic names of 25 bytes."""
    group_record_bytes_max: int = 8 * 1024 * 1024
    """One group's metadata record: twice the size of 1 000 members with 4 KiB of subscription and assignment each."""
    state_bytes_max: int = 512 * 1024 * 1024
    """All stored state: members, assignments, offsets (estimated, see `size_bytes`)."""
    commit_rows_max: int = 20_000
    """Partitions of one OffsetCommit, 30 µs each on the event loop."""
    group_positions_max: int = 100_000
    """Partitions with a committed offset of one group: as many as one OffsetFetch returns."""
    fetch_rows_max: int = 100_000
    """Partitions named in one group's OffsetFetch, 3 µs each."""
    leavers_max: int = 10_000
    """Members of one LeaveGroup."""
    append_batch_bytes_max: int = 512 * 1024
    """Bytes of waiting writes in one batch: many commits share one flush."""
    append_queue_max: int = 20_000
    """Waiting writes of one partition of `__consumer_offsets`; above it commits are refused as retriable."""
    append_queue_bytes_max: int = 32 * 1024 * 1024
    """Bytes of these waiting writes."""
    snapshot_interval_ms: Annotated[int, "thermocline.offsets.snapshot.interval.ms"] = 7_500
    """A changed partition gets a snapshot this long after its last snapshot. The loss of a disk loses at most 10 s of
    changes: this time, the wait for the next check (at most 1.9 s, a quarter of this time), and the time of the
    write."""


def is_too_long(name: str) -> bool:
    """Whether a client's name takes more than `NAME_BYTES_MAX` bytes."""
    return len(name) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX
