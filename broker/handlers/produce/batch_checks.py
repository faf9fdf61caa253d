"""Checks of a produced batch before its append: size, codec, timestamps, and the records if needed.

Kafka reads every record. This broker trusts a header, with two exceptions. In these cases the records are read, so that
no record is later than the topic's `message.timestamp.*.max.ms` allows:

- The greatest timestamp is below that of the first record (Sarama before 2025 writes −1).
- The header is recognised as written by KafkaJS, which writes the timestamp of the last record.

A forged header harms only its producer. With `thermocline.validate.records=true` the records of every batch are read.
The records for a compacted topic are always read: each record needs a key, and the cleaner must be able to read the key
(`logformat.record_check`).

A valid batch is written unchanged, except that an impossible maximum timestamp is repaired. The event loop reads a
limited number of uncompressed records, for each batch and for each request or run; a worker reads the rest.

Hot path: one header check with CRC a batch. Limits that depend on the partition and the time are computed once a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.context import Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.partition.leading.leader_replica import LeaderReplica
from logformat.errors import Corrupt, InvalidRequest
from logformat.record_batch import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    CODEC_MASK,
    INT64_MAX,
    LENGTH,
    LOG_OVERHEAD,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    Fields,
    InvalidRecordBatch,
    InvalidTimestamp,
    check_fields,
    read_header,
    stamp_max_timestamp,
)
from logformat.record_check import RecordsFound, check_records
from logformat.records import timestamp_range

ZSTD_SINCE: Final = 7  # KIP-110: older clients cannot read zstd
_TIMES_ON_LOOP_MAX: Final = 1_000
_TIMES_PER_RECORD: Final = 5  # reading only the time of a record takes 0.3 µs, whatever its size
_CHECKED_ON_LOOP_MAX: Final = 200  # 1 to 2 µs each
RECORDS_AT_ONCE_MAX: Final = 1_000  # of one request or run
BYTES_AT_ONCE_MAX: Final = 128 << 10  # of one request or run; a record's header takes two bytes or more, and 0.1 µs
RECORDS_BYTES_MAX: Final = 32 << 20  # of decompressed records (or max.message.bytes); a larger batch is refused
_NAMED_MAX: Final = 3  # records named in an error message, as in Kafka

Inspection = RecordsFound | InvalidRequest
"""Result of an inspection of the records, or the reason of a refusal."""


class NeedsWorker(ApiError):
    """A worker has to inspect this batch before its append, and did not in time. Every client sends it again."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class KeylessRecords(ApiError):
    """A batch for a compacted topic has records without key, so it is refused. The message is Kafka's."""

    def __init__(self, partition: LeaderReplica, found: RecordsFound) -> None:
        self.reason = (
            f"Compacted topic cannot accept message without key in topic partition {partition.topic}-{partition.index}"
        )
        self.indexes: Sequence[int] = found.keyless
        self.log_start_offset = partition.log_start_offset
        named = ", ".join(
            f"RecordError(batchIndex={index}, message='{self.reason}')" for index in found.keyless[:_NAMED_MAX]
        )
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"One or more records have been rejected due to {found.keyless_count} record errors in total, and only "
            f"showing the first three errors at most: [{named}]",
        )


class LoopBudget:
    """Records and their bytes that the event loop may still read for one request or run; the fast path resets both for
    each run."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = RECORDS_AT_ONCE_MAX
        self.bytes = BYTES_AT_ONCE_MAX

    def takes(self, records: int, size: int) -> bool:
        """Whether the loop may read these records; counts them."""
        if records > self.records or size > self.bytes:
            return False
        self.records -= records
        self.bytes -= size
        return True


def must_inspect(header: BatchHeader, *, checks: bool, stamps: bool) -> bool:
    """Whether the records of a batch have to be read. `checks`: every record is checked; `stamps`: the broker's time
    replaces the producer's."""
    return checks or (header.lacks_max_timestamp and not stamps)


def inspects_on_loop(header: BatchHeader, budget: LoopBudget, *, checks: bool) -> bool:
    """Whether the event loop reads the records instead of a worker; counts them."""
    records = header.record_count
    if header.attributes & CODEC_MASK:
        return False
    if not checks:
        return records <= _TIMES_ON_LOOP_MAX and budget.takes(records // _TIMES_PER_RECORD, 0)
    return records <= _CHECKED_ON_LOOP_MAX and budget.takes(records, header.size)


def inspect_records(batch: memoryview, bytes_max: int, *, checks: bool) -> Inspection:
    """Inspect the records of a batch whose CRC was checked. *Blocking* in proportion to the records."""
    try:
        if checks:
            return check_records(batch, bytes_max=bytes_max)
        return RecordsFound(*timestamp_range(batch, bytes_max=bytes_max), keyless_count=-1)
    except InvalidRequest as refused:
        return refused
    except Corrupt as unreadable:
        # The CRC is right, so the client wrote these bytes. The error is not "corrupt", because the client would then
        # send the same bytes again.
        return InvalidRecordBatch(str(unreadable))


class BatchChecks:
    """Checks for one partition as of `now_ms`, for requests that arrived together; `renew` makes the checks valid for
    later requests.

    Raises ApiError when the partition accepts no batch at all.
    """

    __slots__ = (
        "_acks",
        "_broker_config",
        "_budget",
        "_bytes_max",
        "_checks_records",
        "_codec",
        "_compacts",
        "_config",
        "_live",
        "_looks_closer",
        "_records_bytes_max",
        "_stamps",
        "_timestamp_max",
        "_timestamp_min",
        "_zstd_refused",
        "partition",
    )

    def __init__(
        self, context: Context, partition: LeaderReplica, version: int, acks: int, now_ms: int, budget: LoopBudget
    ) -> None:
        config = partition.config
        if config.internal:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is internal: only the broker writes it"
            )
        if acks == -1 and not partition.leader.takes_all:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"fewer in-sync replicas of {partition.topic}-{partition.index} have a session than "
                f"min.insync.replicas={config.min_insync_replicas} requires",
            )
        self._acks = acks
        self.partition = partition
        self._config = config
        self._live = context.live
        self._broker_config = context.live.now
        self._bytes_max = config.max_message_bytes
        self._records_bytes_max = max(RECORDS_BYTES_MAX, self._bytes_max)
        self._stamps = config.log_append_time
        self._zstd_refused = version < ZSTD_SINCE
        self._compacts = config.compacts
        self._checks_records = context.config.validate_records or config.compacts
        self._codec = None if config.compression is None else config.compression.codec
        self._looks_closer = self._checks_records or self._codec is not None
        self._budget = budget
        self._timestamp_min, self._timestamp_max = NO_TIMESTAMP, INT64_MAX
        self.renew(now_ms)

    def renew(self, now_ms: int) -> bool:
        """Set the time of the checks. False when they are stale: the configuration changed, or too few replicas are in
        sync."""
        config = self.partition.config
        if not self._stamps:  # otherwise the broker replaces the timestamps, and Kafka does not check them
            self._timestamp_min = max(now_ms - config.message_timestamp_before_max_ms, NO_TIMESTAMP)
            self._timestamp_max = now_ms + config.message_timestamp_after_max_ms
        if self._acks == -1 and not self.partition.leader.takes_all:
            return False
        return config is self._config and self._live.now is self._broker_config

    def check(
        self,
        view: memoryview,
        pos: int,
        end: int,
        seen: Inspection | None = None,
        *,
        recompressed: bool = False,
        allow_transactional: bool = False,
    ) -> Fields:
        """The header of the batch that fills `view[pos:end]`. Raises ThermoclineError when it may not be appended.

        `seen`: a worker's result for its records. Raises NeedsWorker if a needed result is missing, or if the batch has
        another codec than its topic and is not `recompressed`. An impossible maximum timestamp is repaired in place,
        together with the CRC, so a second check passes.
        """
        fields = check_fields(
            view, pos, end, self._bytes_max, self._timestamp_min, self._timestamp_max, allow_transactional
        )
        if fields[LENGTH] + LOG_OVERHEAD != end - pos:
            raise ApiError(ErrorCode.INVALID_RECORD, "more than one record batch for a partition in a produce request")
        if self._zstd_refused and not recompressed and fields[ATTRIBUTES] & CODEC_MASK == Codec.ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or above (KIP-110)")
        # `must_inspect` is false for nearly every batch of a topic that is not compacted.
        if self._looks_closer or fields[MAX_TIMESTAMP] < fields[BASE_TIMESTAMP] or fields[BASE_SEQUENCE] == 0:
            if self._codec is not None and fields[ATTRIBUTES] & CODEC_MASK != self._codec and not recompressed:
                raise NeedsWorker(
                    "a worker has to recompress this batch to the topic's compression.type; send it again"
                )
            return self._inspect(view[pos:end], seen)
        return fields

    def _inspect(self, batch: memoryview, seen: Inspection | None) -> Fields:
        header = read_header(batch)
        if must_inspect(header, checks=self._checks_records, stamps=self._stamps):
            found = self._found(batch, header, seen)
            if header.lacks_max_timestamp:
                stamp_max_timestamp(batch, 0, found.greatest)
                return read_header(batch)
        return header

    def _found(self, batch: memoryview, header: BatchHeader, seen: Inspection | None) -> RecordsFound:
        checks = self._checks_records
        if seen is None:
            if not inspects_on_loop(header, self._budget, checks=checks):
                raise NeedsWorker("a worker has to inspect the records of this batch; send it again")
            seen = inspect_records(batch, self._records_bytes_max, checks=checks)
        if not isinstance(seen, RecordsFound):
            raise seen
        low, high = self._timestamp_min, self._timestamp_max
        if not (low <= seen.least or seen.least == NO_TIMESTAMP) or seen.greatest > high:
            raise InvalidTimestamp(
                f"records have timestamps {seen.least}..{seen.greatest} ms, outside {low}..{high} "
                "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
            )
        if self._compacts and seen.keyless_count:
            if seen.keyless_count < 0:
                raise NeedsWorker("the topic was compacted while a worker inspected this batch; send it again")
            raise KeylessRecords(self.partition, seen)
        return seen
