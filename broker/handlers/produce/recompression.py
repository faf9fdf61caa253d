"""Recompresses produced batches to their topic's codec (`compression.type`), before their append.

Workers recompress. A job belongs to the leader epoch in which it began. If that epoch ends before the append, the batch
is refused and never written. A request's batches are recompressed in pieces and appended piece by piece. Meanwhile no
later request of its connection is dispatched, so batches keep their order.

Memory: `BATCHES_MAX` batches of all requests together are in work or wait for their append. Each batch has at most
max.message.bytes. Each of the two workers holds the decompressed records of one batch, at most `RECORDS_BYTES_MAX` or
max.message.bytes. Source: Kafka's LogValidator (docs/adr/0031-recompression.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from broker.context import Context
from broker.handlers.produce.batch_checks import RECORDS_BYTES_MAX, ZSTD_SINCE
from broker.partition.leading.leader_replica import LeaderReplica
from broker.wire.messages import ProduceRequest, ProduceRequestPartition
from logformat.compression import Compression
from logformat.errors import Fenced, Retryable, ThermoclineError
from logformat.recompression import recompress
from logformat.record_batch import CODEC_MASK, HEADER_SIZE, MAGIC, Codec, read_header
from seams.loop.slots import Slots
from seams.loop.workers import Lane

BATCHES_MAX: Final = 16


class Job(NamedTuple):
    """A batch to recompress, with its leader epoch."""

    data: ProduceRequestPartition
    batch: memoryview
    partition: LeaderReplica
    leader_epoch: int
    compression: Compression
    bytes_max: int


class Recompressed(NamedTuple):
    """The result of a job: the batch in the topic's codec, or an error."""

    partition: LeaderReplica
    leader_epoch: int
    batch: memoryview | Exception

    def batch_for(self, partition: LeaderReplica) -> memoryview:
        """The batch, if `partition` still leads in the epoch of the job. Raises ThermoclineError, TimeoutError."""
        if partition is not self.partition or partition.leader_epoch != self.leader_epoch or not partition.leading:
            raise Fenced(
                f"{partition.topic}-{partition.index}: leader epoch {self.leader_epoch} ended while the batch was "
                "recompressed; refresh metadata and send it again"
            )
        if isinstance(self.batch, Exception):
            raise self.batch
        return self.batch


def jobs(context: Context, request: ProduceRequest, version: int) -> list[Job]:
    """The batches of the request to recompress. Batches that cannot be appended are left out: the append refuses
    them."""
    found: list[Job] = []
    for topic in request.topic_data:
        for data in topic.partition_data:
            partition = context.registry.partitions.get((topic.name, data.index))
            if partition is None or (compression := partition.config.compression) is None:
                continue
            batch = data.records
            if batch is None or len(batch) < HEADER_SIZE:
                continue
            header, bytes_max = read_header(batch), partition.config.max_message_bytes
            codec = header.attributes & CODEC_MASK
            if codec in (compression.codec, Codec.ZSTD) and (codec == compression.codec or version < ZSTD_SINCE):
                continue
            if header.magic == MAGIC and codec <= Codec.ZSTD and header.size == len(batch) <= bytes_max:
                found.append(Job(data, batch, partition, partition.leader_epoch, compression, bytes_max))
    return found


class Recompressor:
    """Runs jobs in workers. `release` returns the slots of a piece after its append."""

    def __init__(self, context: Context) -> None:
        self._workers = context.world.workers
        self._slots = Slots(BATCHES_MAX)

    async def run(self, piece: Sequence[Job], until_s: float, owner: str) -> dict[int, Recompressed]:
        """Recompress up to `BATCHES_MAX` batches; waits for the owner's slots until the loop's time `until_s`. Results
        by `id` of the request's `ProduceRequestPartition`. Raises TimeoutError after it released its slots."""
        await self._slots.take(len(piece), until_s, owner)
        try:
            batches = await asyncio.gather(*(self._one(job) for job in piece))
        except BaseException:
            self._slots.give_back(len(piece), owner)
            raise
        return {
            id(job.data): Recompressed(job.partition, job.leader_epoch, batch)
            for job, batch in zip(piece, batches, strict=True)
        }

    def release(self, piece: Sequence[Job], owner: str) -> None:
        self._slots.give_back(len(piece), owner)

    async def _one(self, job: Job) -> memoryview | Exception:
        records_bytes_max = max(RECORDS_BYTES_MAX, job.bytes_max)
        one = partial(recompress, job.batch, job.compression, job.bytes_max, records_bytes_max)
        try:
            return await self._workers.run(one, lane=Lane.COMPRESS)
        except ThermoclineError as refused:
            return refused
        except MemoryError as short:  # returned: the other jobs of the piece go on, and need their slots
            return Retryable(f"the broker has too little memory to recompress the batch: {short}")
