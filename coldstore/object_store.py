"""The `ObjectStore` protocol, its read-only part `ReadStore`, and their errors.

Objects stored by `put_segment` are immutable, and a name is never used again. `put_root` is the only write that
replaces an object, and it is always conditional. A failed conditional write has an unknown outcome, so `roots.root`
reads the root back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from logformat.errors import Retryable, ThermoclineError
from seams.files.disk import Buffer, File


class StoreError(Retryable):
    """The call failed. The same call may succeed later."""


class StoreUnavailable(StoreError):
    """5xx, SlowDown, time-out, reset, truncated or empty answer. A write may have taken effect."""


class StoreAway(StoreUnavailable):
    """The store did not answer, answered before it processed the request (429, 502, 503, 504, 507), or its directory is
    on a slow, full or failing disk. The error does not show whether the store supports the request.
    """


class StoreThrottled(StoreAway):
    """429 or 503: too many requests, perhaps for one key (Cloudflare R2 and GCS accept one write of a key a second)."""


class PreconditionFailed(StoreError):
    """412, or 404 to If-Match. If the write was sent again, its first attempt may have succeeded."""


class ConditionalConflict(StoreError):
    """409: another conditional write on the key is in flight, so the outcome is unknown."""


class ObjectMissing(ThermoclineError):
    """404: no object has this key now."""


class AccessRefused(ThermoclineError):
    """401 or 403: an operator has to correct credentials or policy. The message names key, operation and bucket."""


class ChecksumRefused(StoreError):
    """The bytes that the store received do not match the checksum sent with them."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """Result of a HEAD or a listing. `crc32c`: checksum of the complete object, if the store has one."""

    key: str
    size: int
    etag: str
    crc32c: int | None = None


class Got(msgspec.Struct, frozen=True):
    """Result of a GET: the requested bytes, the ETag, and the size of the complete object."""

    data: bytes
    etag: str
    size: int


class Upload(msgspec.Struct, frozen=True):
    """A body to store: size, CRC32C, and a function that opens it. Every attempt opens and reads it in order and in
    bounded pieces.

    A piece is valid until the next one is requested. If `crc32c` is None, the checksum is known after the last piece
    (`sealed` returns it). The checksum is then sent after the bytes, so the bytes are read only once."""

    size: int
    crc32c: int | None
    open: Callable[[], Iterator[Buffer]]
    sealed: Callable[[], int] | None = None

    def checksum(self) -> int:
        """CRC32C of the complete body. A checksum that follows the bytes is that of the last read."""
        if self.crc32c is not None:
            return self.crc32c
        assert self.sealed is not None, "a body without a checksum"
        return self.sealed()


@asynccontextmanager
async def answered_within(limit_s: float, request: str) -> AsyncIterator[None]:
    """Bounds the time of a request, which `request` names. Raises StoreUnavailable after that time."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as late:
        raise StoreUnavailable(f"{request}: no answer in {limit_s} s") from late


class ReadStore(Protocol):
    """Read-only access to objects by key, for jobs that may not write.

    Keys are relative to the bucket URL's prefix. Every call has its own deadline and raises one of the errors above."""

    @property
    def url(self) -> str:
        """The bucket's URL for display, without user info."""
        ...

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        """Bytes `[start, start+length)`. A negative `start` counts from the end (one tail GET). Raises ObjectMissing on
        404.

        Raises StoreUnavailable if the body is shorter than the available range.
        """
        ...

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        """The complete (small) object; None if its ETag is still `etag` (304)."""
        ...

    async def head(self, key: str) -> ObjectInfo: ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in key order, from all pages of the listing."""
        ...

    async def close(self) -> None: ...


class ObjectStore(ReadStore, Protocol):
    """A `ReadStore` that also writes: immutable objects, and a compare-and-set on single keys. It never retries a
    write."""

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        """Store an immutable object under a new name. The checksum is sent with it."""
        ...

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        """Replace the root whose ETag is `if_match`, or create it (`None`: If-None-Match *). Returns the new ETag."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects that exist. A store may falsely report success; only a listing proves that an object is
        gone."""
        ...

    def open_local(self, key: str) -> File | None:
        """The object as a local file for sendfile in a directory bucket; None for other stores. Raises
        ObjectMissing."""
        ...


class ReplacingStore(ObjectStore, Protocol):
    """An `ObjectStore` whose immutable objects can be stored in another form with the same content. Only an operator's
    command does this."""

    async def replace_object(self, key: str, body: Upload, if_match: str) -> None:
        """Store `body` in place of the object whose ETag is `if_match`. Readers get the old bytes or the new ones.

        Raises PreconditionFailed, ObjectMissing (a deleted object is not created again)."""
        ...
