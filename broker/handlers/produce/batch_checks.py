"""What a batch has to be before it is appended: size, codec, timestamps, and records where its header is not believed.

Owns what is refused by the header alone, and when records have to be looked into. Always true: a batch that passes may
be written as it is; a check changes nothing but a maximum timestamp that cannot be right. Must not parse records:
`records` does.

Hot path: one header check with CRC a batch; what depends on the partition and the time is worked out once a run.
"""

from __future__ import annotations

from typing import Final

from broker.context import Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.handlers.produce.records import RECORDS_BYTES_MAX, Found, Look, NeedsWorker, is_cheap, look, must_look
from broker.partition.leading.leader_replica import LeaderReplica
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
    InvalidTimestamp,
    check_fields,
    read_header,
    stamp_max_timestamp,
)

_ZSTD_SINCE: Final = 7  # KIP-110: older clients cannot read it back


class BatchChecks:
    """What a batch for one partition has to be at `now_ms`; made once for requests that came together, and renewed for
    the next ones.

    Raises ApiError where no batch would do.
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
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is written by the broker alone")
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
        """Judge as of `now_ms`. False where these checks hold no more: another configuration, too few replicas."""
        config = self.partition.config
        if not self._stamps:  # else the producer's timestamps are replaced: Kafka does not judge them
            self._timestamp_min = max(now_ms - config.message_timestamp_before_max_ms, NO_TIMESTAMP)
            self._timestamp_max = now_ms + config.message_timestamp_after_max_ms
        if self._acks == -1 and not self.partition.leader.takes_all:
            return False
        return config is self._config and self._live.now is self._broker_config

    def check(self, view: memoryview, pos: int, end: int, seen: Look | None = None) -> Fields:
        """The header of the batch that fills `view[pos:end]`, which may be appended. Raises ThermoclineError.

        `seen`: what a worker found in its records; NeedsWorker when that is missing. A maximum timestamp that cannot be
        right is repaired in place (and the CRC): checked again, the batch passes.
        """
        fields = check_fields(view, pos, end, self._bytes_max, self._timestamp_min, self._timestamp_max)
        if fields[LENGTH] + LOG_OVERHEAD != end - pos:
            raise ApiError(ErrorCode.INVALID_RECORD, "more than one record batch for a partition in a produce request")
        if self._zstd_refused and fields[ATTRIBUTES] & CODEC_MASK == Codec.ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or above (KIP-110)")
        # Without one of these three `must_look` says no, which is what nearly every batch gets.
        if self._validates_records or fields[MAX_TIMESTAMP] < fields[BASE_TIMESTAMP] or fields[BASE_SEQUENCE] == 0:
            return self._look(view[pos:end], seen)
        return fields

    def _look(self, batch: memoryview, seen: Look | None) -> Fields:
        header = read_header(batch)
        if must_look(header, validates=self._validates_records, stamps=self._stamps):
            found = self._found(batch, header, seen)
            if header.lacks_max_timestamp:
                stamp_max_timestamp(batch, 0, found.greatest)
                return read_header(batch)
        return header

    def _found(self, batch: memoryview, header: BatchHeader, seen: Look | None) -> Found:
        if seen is None:
            if not is_cheap(header, validates=self._validates_records):
                raise NeedsWorker("this batch's records are looked into by a worker; send it again")
            seen = look(batch, self._records_bytes_max, validates=self._validates_records)
        if not isinstance(seen, Found):
            raise seen
        low, high = self._timestamp_min, self._timestamp_max
        if not (low <= seen.least or seen.least == NO_TIMESTAMP) or seen.greatest > high:
            raise InvalidTimestamp(
                f"records have timestamps {seen.least}..{seen.greatest} ms, outside {low}..{high} "
                "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
            )
        return seen
