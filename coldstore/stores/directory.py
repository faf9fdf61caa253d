"""A directory as the bucket: the default store, also used in simulations of power cuts.

`<root>/<key>` is the object; locks and temporary files are under `<root>/.thermocline/`. Each operation is one worker
call on the Disk seam with a deadline (`directory_files` has the order of system calls). Many processes on one local
file system may use it at once. The ETag of an object up to 256 KiB is the SHA-256 of its bytes. For larger objects, and
in listings, it is a weak tag of the size. The ETag never uses mtime, inode or xattr, because `cp` loses them (C22). For
the same reason the CRC32C of a large object is not stored: verification reads the complete object.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, TypeVarTuple

import msgspec

from coldstore.object_store import AccessRefused, Got, ObjectInfo, StoreAway, StoreUnavailable, Upload
from coldstore.stores.directory_files import SMALL_BYTES_MAX, DirectoryFiles
from coldstore.stores.limits import check_key, check_range
from logformat.errors import InvalidRequest, ThermoclineError
from seams.clock import Clock, SystemClock
from seams.files.disk import Disk, File
from seams.loop.workers import Lane, Workers
from seams.rng import Rng

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PAGE = 1000  # listed entries in one worker call
# Temporary failures: a full, failing or remounting disk, or a lack of resources. Other errors show that the file system
# lacks a feature (hard links, locks).
_PASSING = frozenset(
    {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)


class DirectoryDeadlines(msgspec.Struct, frozen=True):
    """Seconds after which a call raises StoreAway. Its operation may still take effect."""

    small_s: float = 20.0  # all calls except writes of segments
    segment_s: float = 300.0
    lock_s: float = 5.0  # wait for other writers of a root


class DirectoryStore:
    """An `ObjectStore` over the directory `root`. The path is absolute; the first write creates the directory."""

    def __init__(
        self,
        disk: Disk,
        workers: Workers,
        root: str,
        rng: Rng,
        deadlines: DirectoryDeadlines | None = None,
        clock: Clock | None = None,
    ) -> None:
        assert root.startswith("/") and root.strip("/"), root
        self._workers = workers
        self._deadlines = deadlines or DirectoryDeadlines()
        self._files = DirectoryFiles(disk, "/" + root.strip("/"), rng, self._deadlines.lock_s, clock or SystemClock())
        self._preparing = asyncio.Lock()
        self._prepared = False

    @property
    def url(self) -> str:
        return f"file://{self._files.root}"

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        check_key(key)
        check_range(key, start, length)
        if start or length is not None:
            return await self._run(self._files.read_range, key, start, length, lane=Lane.COLD_READ)
        # Only roots and pages are read completely. They must not queue behind chunks.
        whole = await self._run(self._files.read_whole, key, lane=Lane.STORE)
        assert whole is not None
        return whole

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        check_key(key)
        return await self._run(self._files.read_whole, key, etag, lane=Lane.STORE)

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        return await self._run(self._files.describe, key, lane=Lane.STORE)

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        check_key(key)
        await self._prepare()
        return await self._run(
            self._files.write_segment, key, body, lane=Lane.STORE, deadline_s=self._deadlines.segment_s
        )

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        check_key(key)
        if len(data) > SMALL_BYTES_MAX:
            raise InvalidRequest(
                f"PUT {key}: a root of {len(data)} bytes is too large; at most {SMALL_BYTES_MAX} bytes are compared"
            )
        await self._prepare()
        return await self._run(self._files.write_root, key, data, if_match, lane=Lane.STORE)

    async def replace_object(self, key: str, body: Upload, if_match: str) -> None:
        check_key(key)
        await self._prepare()
        await self._run(
            self._files.replace_object, key, body, if_match, lane=Lane.STORE, deadline_s=self._deadlines.segment_s
        )

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        await self._run(self._files.unlink_all, keys, lane=Lane.STORE)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        walk = self._files.walk(prefix)
        while page := await self._run(_next_page, walk, lane=Lane.STORE):
            for info in page:
                yield info

    def open_local(self, key: str) -> File | None:
        check_key(key)
        try:
            return self._files.open(key)
        except OSError as failure:
            raise _mapped(failure, self.url) from failure

    async def close(self) -> None:
        """Release the writer's lock. If the disk does not answer, this returns without an error: the lock ends with the
        process, and the next writer removes the file.
        """
        async with self._preparing:
            if self._prepared:
                self._prepared = False
                try:
                    await self._run(self._files.forget_writer, lane=Lane.STORE)
                except StoreUnavailable as away:
                    log.warning(
                        "%s: this writer's lock file was not removed; the next writer removes it: %s",
                        self.url,
                        away,
                    )

    async def _prepare(self) -> None:
        if not self._prepared:
            async with self._preparing:
                if not self._prepared:
                    await self._run(self._files.prepare, lane=Lane.STORE)
                    self._prepared = True

    async def _run(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane, deadline_s: float | None = None) -> T:
        try:
            async with asyncio.timeout(deadline_s or self._deadlines.small_s):
                return await self._workers.run(function, *args, lane=lane)
        except TimeoutError as late:
            raise StoreAway(f"{self.url}: no answer from the disk in time; the operation may still happen") from late
        except OSError as failure:
            raise _mapped(failure, self.url) from failure


def _next_page(walk: Iterator[ObjectInfo]) -> tuple[ObjectInfo, ...]:
    return tuple(islice(walk, _PAGE))


def _mapped(failure: OSError, url: str) -> ThermoclineError:
    """The store error for an errno."""
    if failure.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return AccessRefused(f"{url}: {failure}; the broker's user must be able to read and write there")
    if failure.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR):
        return InvalidRequest(f"{url}: {failure}; a directory bucket cannot hold objects named a and a/b at once")
    kind = StoreAway if failure.errno in _PASSING else StoreUnavailable
    return kind(f"{url}: {failure}")
