"""What becomes of a write to `__consumer_offsets`, as a client is told.

Owns the wait for a write and the translation of its failure. Always true: a wait ends after the given time; the append
goes on, and what it then brings is applied all the same. Must not know what was written.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from broker.error_codes import ErrorCode
from logformat.errors import Fenced, InvalidRequest, StorageFailed

Write: TypeAlias = "asyncio.Future[Exception | None]"
"""Done with the failure, or with None when its records are durable and applied."""


async def fate_of(write: Write, timeout_ms: int) -> ErrorCode:
    """NONE when it is durable; else what a committing client is told. `timeout_ms`: offsets.commit.timeout.ms."""
    # Cheaper than asyncio.timeout around a shield, and every commit passes here.
    timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, _give_up, write)
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
