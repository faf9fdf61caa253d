"""Appends checked batches to a partition's log and counts them.

Batches of one partition are appended in the order of arrival. If the log refuses a run, no batch of it was written;
each batch is then appended or refused separately.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.context import Context
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.leading.verification import VerificationGuard
from hotstore.log.partition_log import Appended
from logformat.errors import StorageFailed, ThermoclineError
from logformat.record_batch import RECORD_COUNT, Fields

Refused = ThermoclineError | OSError
"""The reason why a batch was not appended."""


def append_checked(
    context: Context,
    partition: LeaderReplica,
    batches: Sequence[memoryview],
    headers: Sequence[Fields],
    now_ms: int,
    *,
    in_transaction: bool = False,
    guard: VerificationGuard | None = None,
) -> Appended:
    """Append batches that passed `BatchChecks`, by one write. `in_transaction`: one batch within a transaction; `guard`
    is that of `append_transactional`. Raises ThermoclineError or OSError when nothing was written."""
    throttle = context.throttle
    try:
        throttle.check_room()
        if in_transaction:
            appended = partition.append_transactional(batches[0], headers[0], now_ms, guard)
        else:
            appended = partition.append(batches, headers, now_ms)
    except StorageFailed as refused:
        throttle.refuse(refused)
        raise
    _count(context, partition, batches, headers, appended)
    return appended


def append_run(
    context: Context,
    partition: LeaderReplica,
    batches: Sequence[memoryview],
    headers: Sequence[Fields],
    now_ms: int,
    *,
    ends_refused: bool,
) -> Appended | list[Appended | Refused]:
    """Append a run. Returns one Appended if its batches are contiguous, otherwise the result of each batch.

    `ends_refused`: stop at the first refused batch; later batches have no result.
    """
    if len(headers) == 1:
        try:
            return append_checked(context, partition, batches, headers, now_ms)
        except (ThermoclineError, OSError) as refused:
            return [refused]
    try:
        context.throttle.check_room()
        appended = partition.append(batches, headers, now_ms)
    except (ThermoclineError, OSError):
        pass  # appended one by one below, so that each refused batch has its own error and is counted
    else:
        if not appended.duplicate:
            _count(context, partition, batches, headers, appended)
            return appended
        # Duplicates: nothing was written, and each batch has the offset of its first append.
    each: list[Appended | Refused] = []
    for batch, header in zip(batches, headers, strict=True):
        try:
            each.append(append_checked(context, partition, (batch,), (header,), now_ms))
        except (ThermoclineError, OSError) as refused:
            each.append(refused)
            if ends_refused:
                break
    return each


def _count(
    context: Context,
    partition: LeaderReplica,
    batches: Sequence[memoryview],
    headers: Sequence[Fields],
    appended: Appended,
) -> None:
    size = sum(map(len, batches))
    if appended.duplicate:
        records = sum([header[RECORD_COUNT] for header in headers])
    else:
        records = appended.last_offset + 1 - appended.base_offset
    metrics = context.metrics
    metrics.produce_bytes_in += size
    metrics.records_in += records
    partition.produced_bytes += size
    partition.produced_records += records
    partition.produced_batches += len(headers)
    context.throttle.appended(partition)
