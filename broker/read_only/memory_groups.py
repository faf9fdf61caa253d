"""Offsets of groups on a read-only broker: in memory only, lost with the process."""

from __future__ import annotations

from collections.abc import AsyncIterator

from broker.internal_topics.partition_door import Piece
from logformat.errors import Fenced
from logformat.record_batch import read_header

GROUPS_PARTITION = 0


class MemoryPartition:
    """`PartitionDoor` of the only shard. Its batches live on only in the state that the shard makes of them."""

    name = "groups in memory"
    index = GROUPS_PARTITION
    leader_epoch = 0
    is_whole = True
    is_shared = False

    def __init__(self) -> None:
        self._end = 0

    async def append(self, batch: bytes) -> int:
        self._end += read_header(batch).last_offset_delta + 1
        return self._end - 1

    def resign(self) -> None:
        """Nothing waits."""

    async def replay(self) -> AsyncIterator[Piece]:
        yield Piece(0, b"")

    async def start_at(self, offset: int) -> None:
        """Nothing is stored that could be deleted."""

    async def snapshot_end(self) -> int:
        return 0

    async def commit_snapshot(self, end_offset: int, batches: bytes) -> None:
        raise Fenced("groups of a read-only broker are in memory only; nothing is written to the bucket")


class MemoryOffsetsTopic:
    """`broker.groups.topic.OffsetsTopic` of broker `node_id`, which coordinates every group."""

    partitions = GROUPS_PARTITION + 1

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id

    def is_offline(self, index: int) -> bool:
        return False

    def leader(self, index: int) -> int:
        return self._node_id

    async def ensure_created(self) -> None:
        """There is nothing to create."""
