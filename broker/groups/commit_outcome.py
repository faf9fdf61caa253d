"""Outcome of a write to `__consumer_offsets`: the wait for it, and the client's error code.

A request waits for offsets.commit.timeout.ms in total, which also bounds the wait of later requests of its connection
(heartbeats). After a time-out the append continues, and its result is applied.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.internal_topics.appender import TransactionEnded
from hotstore.errors import InvalidProducerEpoch
from logformat.errors import Fenced, InvalidRequest, StorageFailed

Write: TypeAlias = "asyncio.Future[Exception | None]"
"""Done with the failure, or with None when the records are durable and applied."""


def deadline(config: GroupConfig) -> float:
    """The deadline (loop time) of a request that begins now. The request waits for the log for at most
    offsets.commit.timeout.ms in total."""
    return asyncio.get_running_loop().time() + config.offsets_commit_timeout_ms / 1000


def is_over(until_s: float) -> bool:
    return asyncio.get_running_loop().time() >= until_s


async def outcome_of(write: Write, until_s: float) -> ErrorCode:
    """NONE when the write is durable, otherwise the error for a committing client. `until_s` as `deadline` returns
    it."""
    # This is cheaper than asyncio.timeout around a shield, and every commit takes this path.
    timer = asyncio.get_running_loop().call_at(until_s, _give_up, write)
    try:
        failure = await write
    finally:
        timer.cancel()
    return ErrorCode.NONE if failure is None else group_code_of(failure, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)


def group_code_of(failure: Exception, too_large: ErrorCode) -> ErrorCode:
    """The error when a group's state could not be stored, translated as Kafka translates append errors for groups. The
    code differs from `broker.errors.code_of`, because a client must look for the coordinator, not for a partition's
    leader."""
    if isinstance(failure, InvalidProducerEpoch):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if isinstance(failure, TransactionEnded):
        return ErrorCode.TRANSACTION_ABORTABLE
    if isinstance(failure, Fenced | StorageFailed):
        return ErrorCode.NOT_COORDINATOR
    if isinstance(failure, InvalidRequest):
        return too_large
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def _give_up(write: Write) -> None:
    if not write.done():
        write.set_result(TimeoutError("the write was not durable in time; its outcome is unknown"))
