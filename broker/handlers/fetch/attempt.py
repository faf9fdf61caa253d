"""One pass over the partitions of a fetch: reads available bytes from either tier, and starts loads.

Consumers get nothing at or above the high watermark. With isolation.level=read_committed they get nothing at or above
the last stable offset, and the response lists the aborted transactions of its range (KIP-98). All partitions together
return at most the bytes that the request allows, except for the first batch (KIP-74). Record bytes are not read here:
the response names file ranges, which the socket sends by sendfile.

Hot path: `read` runs once for each partition of a fetch.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.context import Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.fetch_sessions.session import Target
from broker.partition.readable import Readable
from broker.wire.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchResponseAbortedTransaction,
    FetchResponseEpochEndOffset,
    FetchResponsePartition,
)
from broker.wire.scatter import Records
from hotstore.errors import DamagedLog
from seams.files.disk import FileRange
from tiering.reading.fetch_router import Route, route

_READ_COMMITTED: Final = 1


class FetchAttempt:
    """The partition responses so far, and the loads that are under way."""

    __slots__ = (
        "_bytes_max",
        "_context",
        "_request",
        "answers",
        "failed",
        "is_behind",
        "loading",
        "open",
        "ready",
        "size",
        "unknown",
    )

    def __init__(self, context: Context, request: FetchRequest, bytes_max: int) -> None:
        self._context = context
        self._request = request
        self._bytes_max = bytes_max
        self.answers: list[tuple[Target, FetchResponsePartition]] = []
        self.unknown: list[tuple[Target, FetchResponsePartition]] = []  # unknown partitions, last in the response
        self.open: list[tuple[Target, Readable]] = []  # the readable partitions of `answers`
        self.size = 0
        self.ready = 0  # bytes that count for min_bytes; a partition cut by its limit counts as the full limit
        self.is_behind = False  # reads older segments or the bucket, so more bytes are available even if few fit
        self.failed = False
        self.loading: list[asyncio.Future[None]] = []

    def read(self, partition: Readable, wanted: FetchRequestPartition, answer: FetchResponsePartition) -> bool:
        """Fill `answer`. Returns True if no more can be read until the partition moves. Raises ThermoclineError and
        OSError, which refuse the partition and not the fetch."""
        end_offset = partition.high_watermark
        log_start_offset = partition.log_start_offset
        answer.high_watermark = end_offset
        answer.last_stable_offset = partition.last_stable_offset
        answer.log_start_offset = log_start_offset
        if self._request.isolation_level == _READ_COMMITTED:
            end_offset = answer.last_stable_offset
            answer.aborted_transactions = []
        else:
            answer.aborted_transactions = None
        if wanted.last_fetched_epoch >= 0 and diverges(partition, wanted, answer):
            self.failed = True
            return False
        offset = wanted.fetch_offset
        # The first partition with data gives at least one batch, even above the limits (KIP-74).
        bytes_max = min(wanted.partition_max_bytes, self._bytes_max - self.size)
        match route(
            offset,
            log_start_offset=log_start_offset,
            local_log_start_offset=partition.log.local_log_start_offset,
            remote_end_offset=partition.tier.remote_end_offset,
            end_offset=partition.log.log_end_offset,
        ):
            case Route.HOT:
                if offset >= end_offset:
                    return True
                if bytes_max > 0 or self.size == 0:
                    try:
                        self._read_hot(partition, offset, bytes_max, answer, end_offset)
                    except DamagedLog:
                        if offset >= partition.tier.remote_end_offset:
                            raise
                        self._read_cold(partition, offset, bytes_max, answer)  # the bucket has the offset (G11)
            case Route.COLD:
                if bytes_max > 0 or self.size == 0:
                    self._read_cold(partition, offset, bytes_max, answer)
            case Route.CATCHING_UP:
                raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE)
            case Route.OUT_OF_RANGE:
                raise ApiError(_out_of_range(partition, offset))
        return False

    def read_hot(
        self, partition: Readable, wanted: FetchRequestPartition, answer: FetchResponsePartition, end_offset: int
    ) -> None:
        """Add local bytes below `end_offset`, as far as the limits allow. Raises DamagedLog."""
        bytes_max = min(wanted.partition_max_bytes, self._bytes_max - self.size)
        if bytes_max > 0 or self.size == 0:
            self._read_hot(partition, wanted.fetch_offset, bytes_max, answer, end_offset)

    def _read_hot(
        self, partition: Readable, offset: int, bytes_max: int, answer: FetchResponsePartition, end_offset: int
    ) -> None:
        """Add local bytes. If the bytes may be only on the disk, a worker first reads them into the page cache (C25).
        Raises DamagedLog.
        """
        found = partition.local.read(self._context.residency, offset, bytes_max, end_offset, min_one=self.size == 0)
        if isinstance(found, asyncio.Future):
            self.loading.append(found)
            return
        if found is None:
            return
        if found.cut:
            # Complete batches rarely fill a limit exactly, so a wait for the rest would never end.
            self.ready += max(bytes_max - found.length, 0)
        if found.length:
            self.is_behind |= found.sealed
            if answer.aborted_transactions is not None:
                aborted = partition.local.aborted_in(found, offset, end_offset)
                answer.aborted_transactions = [_named(*key) for key in aborted]
            self._take(answer, found.length, (FileRange(found.file, found.position, found.length),))

    def _read_cold(self, partition: Readable, offset: int, bytes_max: int, answer: FetchResponsePartition) -> None:
        """Add bytes of the bucket, or start loading them. They are committed and decided (TX5). A follower may not know
        this from its own log yet, so its answer may have records above the offsets that it names."""
        wanted_bytes = min(bytes_max, self._context.config.cold_fetch_bytes_max)
        cold = partition.tier.read(offset, wanted_bytes, min_one=self.size == 0)
        if isinstance(cold, asyncio.Future):
            self.loading.append(cold)
        else:
            self.is_behind |= cold.length > 0
            if answer.aborted_transactions is not None:
                answer.aborted_transactions = [_named(*key) for key in cold.aborted]
            self._take(answer, cold.length, cold.ranges)

    def _take(self, answer: FetchResponsePartition, length: int, ranges: tuple[FileRange, ...]) -> None:
        answer.records = Records(length, ranges)
        self.size += length
        self.ready += length


def _named(producer_id: int, first_offset: int) -> FetchResponseAbortedTransaction:
    return FetchResponseAbortedTransaction(producer_id=producer_id, first_offset=first_offset)


def _out_of_range(partition: Readable, offset: int) -> ErrorCode:
    """The error for an offset outside the log. As in Kafka, a follower answers OFFSET_NOT_AVAILABLE for an offset that
    its leader has, because clients restart at one end of the log after OFFSET_OUT_OF_RANGE. A read-only broker does so
    for an offset that the bucket has."""
    return ErrorCode.OFFSET_NOT_AVAILABLE if partition.lacks(offset) else ErrorCode.OFFSET_OUT_OF_RANGE


def check_leader_epoch(partition: Readable, epoch: int) -> None:
    """Refuse a client whose leader epoch (−1: none) is older or newer than this partition's (KIP-320)."""
    if epoch in (-1, partition.leader_epoch):
        return
    code = ErrorCode.FENCED_LEADER_EPOCH if epoch < partition.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
    raise ApiError(code)


def diverges(partition: Readable, wanted: FetchRequestPartition, answer: FetchResponsePartition) -> bool:
    """Whether the reader's last epoch ends here below its fetch offset. If so, the reader has records that were
    truncated here (KIP-595).

    Raises OFFSET_OUT_OF_RANGE in two cases: the epoch is above all epochs of this log, so there is nothing to compare;
    or the offset is below the log start.
    """
    epoch, end_offset = partition.epoch_end(wanted.last_fetched_epoch)
    if epoch < 0 or wanted.fetch_offset < partition.log_start_offset:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch == wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
        return False
    answer.diverging_epoch = FetchResponseEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return True
