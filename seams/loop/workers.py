"""Blocking work off the loop, as a parameter: bounded lanes of threads.

A lane never runs more than its threads, and lanes do not wait for one another, so cold reads and uploads never delay an
fdatasync. The simulation runs the same calls in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Lane(Enum):
    """A kind of blocking work; the value has its number of threads."""

    FLUSH = ("flush", 1)  # syncs of a round without kernel support, and of directories; acks wait for them
    BULK_FLUSH = ("bulk-flush", 4)  # large fdatasyncs, of several logs in parallel
    HOT_READ = ("hot-read", 2)  # old local segments brought into the page cache
    COLD_READ = ("cold-read", 2)  # chunk cache, directory bucket, CRC of cold chunks
    COPY = ("copy", 2)  # reading and checking segments on their way to the bucket
    STORE = ("store", 4)  # blocking calls of an object store (directory bucket, boto3)
    CLEAN = ("clean", 4)  # steps of a compaction; a child process does the work itself
    RECORDS = ("records", 1)  # checks of produced records, in Python; two threads would keep the loop from running
    COMPRESS = ("compress", 2)  # conversion of produced batches to their topic's codec; the codecs let the loop run
    LOGIN = ("login", 2)  # token signatures, and passwords with thousands of hashes; many logins delay only logins
    HANDSHAKE = ("handshake", 2)  # key exchange and signatures of new TLS sessions; OpenSSL lets the loop run
    FILES = ("files", 2)  # everything else: deletes, checkpoints, recovery scans


class Workers(Protocol):
    """Runs a blocking function; returns its result or raises its error."""

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T: ...


class ThreadWorkers:
    """`Workers` on one small thread pool per lane."""

    def __init__(self) -> None:
        self._pools = {
            lane: ThreadPoolExecutor(max_workers=lane.value[1], thread_name_prefix=lane.value[0]) for lane in Lane
        }

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pools[lane], function, *args)

    def close(self) -> None:
        """Finish running calls, drop queued calls."""
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
