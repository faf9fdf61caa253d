"""The `ObjectStore` protocol, its read-only part `ReadStore`, and their errors.

`put_segment` objects are immutable and never reuse a name. `put_root` is the only replacing write and always
conditional. A failed conditional write has an unknown outcome, so `roots.root` reads the root back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from logformat.errors import Retryable, ThermoclineError
from seams.files.disk import Buffer, File


class StoreError(Retryable):
    """The call failed; the same call may succeed later."""


class StoreUnavailable(StoreError):
    """5xx, SlowDown, time-out, reset, truncated or empty answer: whether a write took effect is unknown."""


class StoreAway(StoreUnavailable):
    """The store did not answer, answered before it processed the request (429, 502, 503, 504, 507), or its directory is
    on a slow, full or failing disk. The error does not show what the store supports.
    """


class StoreThrottled(StoreAway):
    """429 or 503: too many requests, perhaps for one key (Cloudflare R2 and GCS take one write of a key a second)."""


class PreconditionFailed(StoreError):
    """412, or 404 to If-Match. After a resent write the outcome of the first attempt is unknown."""


class ConditionalConflict(StoreError):
    """409: another conditional write on the key is in flight; the outcome is open."""


class ObjectMissing(ThermoclineError):
    """404: no object has this key now."""


class AccessRefused(ThermoclineError):
    """401/403: credentials or policy; an operator has to act. The message names key, operation and bucket."""


class ChecksumRefused(StoreError):
    """The bytes that the store received do not match the checksum sent with them."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Result of a HEAD or a listing. `crc32c`: checksum of the whole object, if the store keeps one."""

    key: str
    size: int
    etag: str
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Got:
    """Result of a GET: the bytes asked for, the ETag, and the size of the whole object."""

    data: bytes
    etag: str
    size: int


@dataclass(frozen=True, slots=True)
class Upload:
    """A body to store: size, CRC32C, and a way to read it in order and in bounded pieces, again for every attempt.

    A piece is valid until the next one is requested. If `crc32c` is None, the checksum is known after the last piece
    (`sealed` returns it). The checksum is then sent after the bytes, not before them, so the bytes are read once."""

    size: int
    crc32c: int | None
    open: Callable[[], Iterator[Buffer]]
    sealed: Callable[[], int] | None = None

    def checksum(self) -> int:
        """CRC32C of the complete body; a trailing checksum covers the bytes since the last `open`."""
        if self.crc32c is not None:
            return self.crc32c
        assert self.sealed is not None, "a body without a checksum"
        return self.sealed()


class ReadStore(Protocol):
    """A flat map from keys to immutable byte strings, read only: jobs may not write.

    Keys are relative to the bucket URL's prefix. Every call has its own deadline and raises one of the errors above."""

    @property
    def url(self) -> str:
        """The bucket's URL for display, without user info."""
        ...

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        """Bytes `[start, start+length)`; negative `start` counts from the end (one tail GET). Raises ObjectMissing on
        404.

        Raises StoreUnavailable for a body shorter than the available range; a result is never short.
        """
        ...

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        """The whole (small) object, or None if its ETag is still `etag` (304)."""
        ...

    async def head(self, key: str) -> ObjectInfo: ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in key order, all pages."""
        ...

    async def close(self) -> None: ...


class ObjectStore(ReadStore, Protocol):
    """A `ReadStore` that also writes: immutable objects, and a compare-and-set on single keys. It never retries a
    write."""

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        """Store an immutable object under a new name; the checksum is sent with it."""
        ...

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        """Replace the root whose ETag is `if_match`, or create it (`None`: If-None-Match *). Returns the new ETag."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete; a missing key is fine. A store may report success falsely; only a listing proves absence."""
        ...

    def open_local(self, key: str) -> File | None:
        """The object as a local file for sendfile (directory bucket), else None. Raises ObjectMissing."""
        ...


class ReplacingStore(ObjectStore, Protocol):
    """An `ObjectStore` whose immutable objects can be stored in another form with the same content; only an operator's
    command does this."""

    async def replace_object(self, key: str, body: Upload, if_match: str) -> None:
        """Store `body` in place of the object whose ETag is `if_match`. Readers get the old bytes or the new ones.

        Raises PreconditionFailed, ObjectMissing (a deleted object is never recreated)."""
        ...
