"""Checked batches to their partition's log, and what became of each.

Owns the one way by which a client's batches get into a log, whether they came alone or as a run of several requests,
and what of it is counted. Always true: batches of one partition are appended in the order they came; a run that is
refused as a whole was not written, and each of its batches is appended, or refused, by itself. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.context import Context
from broker.partition.leading.leader_replica import LeaderReplica
from hotstore.log.partition_log import Appended
from logformat.errors import StorageFailed, ThermoclineError
from logformat.record_batch import RECORD_COUNT, Fields

Refused = ThermoclineError | OSError
"""Why a batch was not appended."""


def append_checked(
    context: Context, partition: LeaderReplica, batches: Sequence[memoryview], headers: Sequence[Fields], now_ms: int
) -> Appended:
    """Append batches that passed `BatchChecks` by one write. Raises ThermoclineError, OSError: nothing written."""
    throttle = context.throttle
    try:
        throttle.check_room()
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
    ends_refused: bool = False,
) -> Appended | list[Appended | Refused]:
    """Append a run: Appended where its batches lie one behind the other from there on, else what became of each.

    `ends_refused`: nothing is appended behind a batch that was refused, of which nothing is said then.
    """
    if len(headers) > 1:
        try:
            context.throttle.check_room()
            appended = partition.append(batches, headers, now_ms)
        except (ThermoclineError, OSError):
            pass  # of all of them: each by itself says what is wrong with it, and is counted
        else:
            if not appended.duplicate:
                _count(context, partition, batches, headers, appended)
                return appended
            # Nothing was written, and each has its own old offset.
    each: list[Appended | Refused] = []
    for batch, header in zip(batches, headers, strict=True):
        try:
            each.append(append_checked(context, partition, (batch,), (header,), now_ms))
        except (ThermoclineError, OSError) as refused:
            each.append(refused)
            if ends_refused:
                break
    if len(headers) == 1 and isinstance(each[0], Appended):
        return each[0]
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
    metrics.messages_in += records
    partition.produced_bytes += size
    partition.produced_records += records
    partition.produced_batches += len(headers)
    context.throttle.appended(partition)
