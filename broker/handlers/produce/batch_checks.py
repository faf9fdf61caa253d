"""Checks of a produced batch before its append: size, codec, timestamps, and records where needed.

Kafka reads every record. This broker trusts a header, with two exceptions: its greatest timestamp is below the first
record's (Sarama before 2025 writes −1), or it has the mark of KafkaJS, which writes the last record's. Records of such
batches are read, so that none is later than the topic's `message.timestamp.*.max.ms`. A forged header harms only its
producer. `thermocline.validate.records=true` reads the records of every batch.

A batch that passes is written as it is; the only repair is a maximum timestamp that cannot be right. The event loop
reads at most a thousand uncompressed records; a worker reads the rest, at 0.2 µs a record.

Hot path: one header check with CRC a batch. Limits that depend on the partition and the time are computed once a run.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.context import Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.partition.leading.leader_replica import LeaderReplica
from logformat.errors import Corrupt, InvalidRequest, Retryable
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
from logformat.records import timestamp_range, validate_records

_ZSTD_SINCE: Final = 7  # KIP-110: older clients cannot read it back
_RECORDS_ON_LOOP_MAX: Final = 1_000
_VALIDATED_ON_LOOP_MAX: Final = 100  # 5 µs each
RECORDS_BYTES_MAX: Final = 32 << 20  # decompressed (or max.message.bytes): beyond it a zip bomb is refused


class TimestampRange(NamedTuple):
    """The least and the greatest timestamp of a batch's records (ms, −1: none)."""

    least: int
    greatest: int


Inspection = TimestampRange | InvalidRequest
"""The timestamps found in the records, or why the batch is refused."""


class NeedsWorker(Retryable):
    """A worker has to inspect this batch before its append."""


def must_inspect(header: BatchHeader, *, validates: bool, stamps: bool) -> bool:
    """`validates`: every record is to be checked; `stamps`: the broker's time replaces the producer's."""
    return validates or (header.lacks_max_timestamp and not stamps)


def inspects_on_loop(header: BatchHeader, *, validates: bool) -> bool:
    records_max = _VALIDATED_ON_LOOP_MAX if validates else _RECORDS_ON_LOOP_MAX
    return not header.attributes & CODEC_MASK and header.record_count <= records_max


def inspect_records(batch: memoryview, bytes_max: int, *, validates: bool) -> Inspection:
    """Inspect the records of a batch whose CRC was checked. *Blocking* in proportion to the records."""
    try:
        if validates:
            validate_records(batch, bytes_max=bytes_max)
        return TimestampRange(*timestamp_range(batch, bytes_max=bytes_max))
    except InvalidRequest as refused:
        return refused
    except Corrupt as unreadable:
        # The CRC is right, so the client wrote it like this: not "corrupt", after which it would send it again.
        return InvalidRecordBatch(str(unreadable))


class BatchChecks:
    """Checks for one partition as of `now_ms`, for requests that arrived together; `renew` makes them valid for the
    next ones.

    Raises ApiError when the partition accepts no batch at all.
    """

    __slots__ = (
        "_acks",
        "_broker_config",
        "_bytes_max",
        "_config",
        "_live",
        "_records_bytes_max",
        "_stamps",
        "_timestamp_max",
        "_timestamp_min",
        "_validates_records",
        "_zstd_refused",
        "partition",
    )

    def __init__(self, context: Context, partition: LeaderReplica, version: int, acks: int, now_ms: int) -> None:
        config = partition.config
        if config.internal:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is internal: only the broker writes it"
            )
        if acks == -1 and not partition.leader.takes_all:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"fewer in-sync replicas of {partition.topic}-{partition.index} have a session than "
                f"min.insync.replicas={config.min_insync_replicas} asks for",
            )
        self._acks = acks
        self.partition = partition
        self._config = config
        self._live = context.live
        self._broker_config = context.live.now
        self._bytes_max = config.max_message_bytes
        self._records_bytes_max = max(RECORDS_BYTES_MAX, self._bytes_max)
        self._stamps = config.log_append_time
        self._zstd_refused = version < _ZSTD_SINCE
        self._validates_records = context.config.validate_records
        self._timestamp_min, self._timestamp_max = NO_TIMESTAMP, INT64_MAX
        self.renew(now_ms)

    def renew(self, now_ms: int) -> bool:
        """Set the time of the checks. False when they are stale: the configuration changed, or too few replicas are in
        sync."""
        config = self.partition.config
        if not self._stamps:  # else the producer's timestamps are replaced: Kafka does not judge them
            self._timestamp_min = max(now_ms - config.message_timestamp_before_max_ms, NO_TIMESTAMP)
            self._timestamp_max = now_ms + config.message_timestamp_after_max_ms
        if self._acks == -1 and not self.partition.leader.takes_all:
            return False
        return config is self._config and self._live.now is self._broker_config

    def check(self, view: memoryview, pos: int, end: int, seen: Inspection | None = None) -> Fields:
        """The header of the batch that fills `view[pos:end]`. Raises ThermoclineError when it may not be appended.

        `seen`: what a worker found in its records; raises NeedsWorker when that is missing. A maximum timestamp that
        cannot be right is repaired in place, with the CRC: checked again, the batch passes.
        """
        fields = check_fields(view, pos, end, self._bytes_max, self._timestamp_min, self._timestamp_max)
        if fields[LENGTH] + LOG_OVERHEAD != end - pos:
            raise ApiError(ErrorCode.INVALID_RECORD, "more than one record batch for a partition in a produce request")
        if self._zstd_refused and fields[ATTRIBUTES] & CODEC_MASK == Codec.ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or above (KIP-110)")
        # Nearly every batch has none of the three reasons for which `must_inspect` is true.
        if self._validates_records or fields[MAX_TIMESTAMP] < fields[BASE_TIMESTAMP] or fields[BASE_SEQUENCE] == 0:
            return self._inspect(view[pos:end], seen)
        return fields

    def _inspect(self, batch: memoryview, seen: Inspection | None) -> Fields:
        header = read_header(batch)
        if must_inspect(header, validates=self._validates_records, stamps=self._stamps):
            found = self._timestamps(batch, header, seen)
            if header.lacks_max_timestamp:
                stamp_max_timestamp(batch, 0, found.greatest)
                return read_header(batch)
        return header

    def _timestamps(self, batch: memoryview, header: BatchHeader, seen: Inspection | None) -> TimestampRange:
        if seen is None:
            if not inspects_on_loop(header, validates=self._validates_records):
                raise NeedsWorker("a worker inspects the records of this batch; send it again")
            seen = inspect_records(batch, self._records_bytes_max, validates=self._validates_records)
        if not isinstance(seen, TimestampRange):
            raise seen
        low, high = self._timestamp_min, self._timestamp_max
        if not (low <= seen.least or seen.least == NO_TIMESTAMP) or seen.greatest > high:
            raise InvalidTimestamp(
                f"records have timestamps {seen.least}..{seen.greatest} ms, outside {low}..{high} "
                "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
            )
        return seen
