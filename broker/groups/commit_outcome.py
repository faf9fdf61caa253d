"""What becomes of a write to `__consumer_offsets`, as a client is told.

Owns the wait for a write and the translation of its failure. Always true: a request waits for so long in all, however
much it asks for, so that what comes behind it on its connection (heartbeats) waits no longer either; the append goes
on, and what it then brings is applied all the same. Must not know what was written.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from logformat.errors import Fenced, InvalidRequest, StorageFailed

Write: TypeAlias = "asyncio.Future[Exception | None]"
"""Done with the failure, or with None when its records are durable and applied."""


def patience(config: GroupConfig) -> float:
    """Until when, in the loop's time, a request that begins now may wait for the log, for all that it asks for:
    offsets.commit.timeout.ms."""
    return asyncio.get_running_loop().time() + config.offsets_commit_timeout_ms / 1000


def is_over(until_s: float) -> bool:
    return asyncio.get_running_loop().time() >= until_s


async def fate_of(write: Write, until_s: float) -> ErrorCode:
    """NONE when it is durable; else what a committing client is told. `until_s` as `patience` says."""
    # Cheaper than asyncio.timeout around a shield, and every commit passes here.
    timer = asyncio.get_running_loop().call_at(until_s, _give_up, write)
    try:
        failure = await write
    finally:
        timer.cancel()
    return ErrorCode.NONE if failure is None else group_code_of(failure, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)


def group_code_of(failure: Exception, too_large: ErrorCode) -> ErrorCode:
    """What a client is told when its state could not be stored (as Kafka translates append errors for groups).

    Not `broker.errors.code_of`: a client must look for the coordinator again, not for a partition's leader.
    """
    if isinstance(failure, Fenced | StorageFailed):
        return ErrorCode.NOT_COORDINATOR
    if isinstance(failure, InvalidRequest):
        return too_large
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def _give_up(write: Write) -> None:
    if not write.done():
        write.set_result(TimeoutError("the write was not durable in time; its outcome is unknown"))
