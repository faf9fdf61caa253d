"""`__consumer_offsets` in memory, with the faults a log can have.

Owns batches by partition. Always true: what `append` returned is in `replay`; while `hold` is set appends wait; what
`fail` holds is raised by the next appends, one each, instead of writing, and what `fail_after` holds after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from logformat.record_batch import read_header, stamp


class MemoryOffsetsLog:
    """`OffsetsLog` for tests."""

    def __init__(self, partitions: int = 4) -> None:
        self.batches: list[list[bytes]] = [[] for _ in range(partitions)]
        self.ends = [0] * partitions
        self.appends = 0
        self.created = 0
        self.fail: list[Exception] = []
        self.fail_after: list[Exception] = []
        self.fail_replay: list[Exception] = []
        self.released = asyncio.Event()
        self.released.set()

    @property
    def partitions(self) -> int:
        return len(self.batches)

    def hold(self) -> None:
        """Appends are written, but not durable until `release`."""
        self.released.clear()

    def release(self) -> None:
        self.released.set()

    async def ensure_created(self) -> None:
        self.created += 1

    async def append(self, partition: int, batch: bytes) -> int:
        self.appends += 1
        await self.released.wait()
        await asyncio.sleep(0)
        if self.fail:
            raise self.fail.pop(0)
        buffer = bytearray(batch)
        stamp(buffer, 0, self.ends[partition], 0)
        self.batches[partition].append(bytes(buffer))
        self.ends[partition] = read_header(buffer).next_offset
        if self.fail_after:
            raise self.fail_after.pop(0)
        return self.ends[partition] - 1

    async def replay(self, partition: int) -> AsyncIterator[bytes]:
        if self.fail_replay:
            raise self.fail_replay.pop(0)
        for batch in self.batches[partition]:
            yield batch
