"""Checked batches to their partition's log, and what became of each.

Owns the one way by which a client's batches get into a log, whether they came alone or as a run of several requests,
and what of it is counted. Always true: batches of one partition are appended in the order they came; a run that is
refused as a whole was not written, and each of its batches is appended, or refused, by itself. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.context import Context
from broker.partition.replica import Partition
from hotstore.partition_log import Appended
from logformat.errors import StorageFailed, ThermoclineError
from logformat.record_batch import RECORD_COUNT, Fields

Refused = ThermoclineError | OSError
"""Why a batch was not appended."""


def append_checked(
    context: Context, partition: Partition, batches: Sequence[memoryview], headers: Sequence[Fields], now_ms: int
) -> Appended:
    """Append batches that passed `BatchChecks` by one write. Raises ThermoclineError, OSError: nothing written."""
    throttle = context.throttle
    try:
        throttle.check_room()
        appended = partition.append(batches, headers, now_ms)
    except StorageFailed as refused:
        throttle.refuse(refused)
        raise
    size = sum(map(len, batches))
    if appended.duplicate:
        records = sum([header[RECORD_COUNT] for header in headers])
    else:
        records = appended.last_offset + 1 - appended.base_offset
    metrics = context.metrics
    metrics.produce_bytes_in += size
    metrics.messages_in += records
    partition.produced_bytes += size
    partition.produced_records += records
    partition.produced_batches += len(headers)
    throttle.appended(partition)
    return appended


def append_run(
    context: Context, partition: Partition, batches: Sequence[memoryview], headers: Sequence[Fields], now_ms: int
) -> Appended | list[Appended | Refused]:
    """Append a run: Appended where its batches lie one behind the other from there on, else what became of each."""
    try:
        appended = append_checked(context, partition, batches, headers, now_ms)
    except (ThermoclineError, OSError) as refused:
        if len(headers) == 1:
            return [refused]
    else:
        if len(headers) == 1 or not appended.duplicate:
            return appended
        # Nothing was written, and each has its own old offset.
    return [_append_one(context, partition, *one, now_ms) for one in zip(batches, headers, strict=True)]


def _append_one(
    context: Context, partition: Partition, batch: memoryview, header: Fields, now_ms: int
) -> Appended | Refused:
    try:
        return append_checked(context, partition, (batch,), (header,), now_ms)
    except (ThermoclineError, OSError) as refused:
        return refused
