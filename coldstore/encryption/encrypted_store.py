"""An `ObjectStore` that encrypts stored objects and decrypts reads.

Its users see plaintext, with sizes and CRCs of the plaintext. ETags and conditional writes are those of the inner
store. A ranged read takes one request if this process knows the object's trailer from a tail read or an upload, else
two. Objects up to the size of a root are decrypted on the loop, larger ones in a worker. An object that is not
encrypted is refused, unless the ring accepts plain ones. Objects below `.probe/` stay plain, because the probe tests
the checks of the inner store.

A HEAD proves a copy: the store's checksum of the stored bytes must be equal to the one computed from the trailer. The
answer then has the plaintext's checksum, which is authenticated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from coldstore.encryption.envelope import (
    CHUNK_BYTES,
    STORED_CHUNK_BYTES,
    Sealed,
    describe,
    plain_size,
    stored_range,
    stored_size,
    stored_tail,
)
from coldstore.encryption.keys import KEY_BYTES, NONCE_BYTES, KeyRing, WrappingKey
from coldstore.encryption.marker import TRAILER_BYTES
from coldstore.encryption.sealed_body import SealedBody
from coldstore.inspection.probe import PREFIX as PROBE_PREFIX
from coldstore.object_store import Got, ObjectInfo, ObjectMissing, ObjectStore, StoreUnavailable, Upload
from coldstore.stores.limits import GET_BYTES_MAX, check_range, resolve_range
from logformat.errors import Corrupt
from seams.files.disk import File
from seams.loop.workers import Lane, Workers
from seams.rng import Rng

KNOWN_MAX: Final = 8192  # cached trailers, of 0.5 KB each
_SCRATCH_BYTES: Final = 66 * STORED_CHUNK_BYTES  # fits a read of 4 MiB that begins anywhere in a segment
_INLINE_BYTES_MAX: Final = 2 * CHUNK_BYTES  # decrypted on the loop in 15 µs


class _Known(NamedTuple):
    """A cached trailer: `sealed` is None for a plain object."""

    etag: str
    stored: int
    sealed: Sealed | None

    @property
    def size(self) -> int:
        return self.stored if self.sealed is None else self.sealed.size


class EncryptedStore:
    """An `ObjectStore` over `inner` with the keys of `ring`."""

    def __init__(self, inner: ObjectStore, ring: KeyRing, workers: Workers, rng: Rng) -> None:
        self._inner = inner
        self._ring = ring
        self._workers = workers
        self._rng = rng
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._spare: list[memoryview] = []  # at most one for each thread that decrypts

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def ring(self) -> KeyRing:
        return self._ring

    def take(self, ring: KeyRing) -> None:
        """Use the keys of `ring` from now on, and drop all cached trailers, because the new ring may refuse plain
        objects. May be called from any thread.
        """
        self._ring = ring
        self._known = OrderedDict()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        if _is_probe(key):
            return await self._inner.get(key, start, length)
        check_range(key, start, length)
        if start == 0 and length is None:
            return await self._whole(key, await self._inner.get(key))
        if start < 0:
            return await self._tail(key, -start)
        if start == 0 and length is not None and key not in self._known:
            got = await self._from_start(key, length)
            if got is not None:
                return got
        return await self._range(key, start, length)

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        got = await self._inner.get_if_changed(key, etag)
        return got if got is None or _is_probe(key) else await self._whole(key, got)

    async def head(self, key: str) -> ObjectInfo:
        for _ in range(2):
            info = await self._inner.head(key)
            if _is_probe(key):
                return info
            known = self._known.get(key)
            if known is None or (known.etag, known.stored) != (info.etag, info.size):
                known = await self._look(key)
            if (known.etag, known.stored) == (info.etag, info.size):
                return self._proven(key, info, known)
        raise StoreUnavailable(f"HEAD {key}: the object was replaced while its trailer was read; try again")

    def _proven(self, key: str, info: ObjectInfo, known: _Known) -> ObjectInfo:
        """The `ObjectInfo` of the plaintext. Raises Corrupt if the stored bytes do not belong to the trailer."""
        if known.sealed is None:
            return info
        if info.crc32c is None:
            return ObjectInfo(key, known.size, info.etag)
        stored_crc = _stored_crc32c(known.sealed)
        if info.crc32c != stored_crc:
            raise Corrupt(
                f"object {key} is stored with CRC32C {info.crc32c:#010x}, but its trailer says {stored_crc:#010x}"
            )
        return ObjectInfo(key, known.size, info.etag, known.sealed.crc32c)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self._inner.list(prefix):
            found = info if _is_probe(info.key) else await self._listed(info)
            if found is not None:
                yield found

    def open_local(self, key: str) -> File | None:
        return None

    async def _listed(self, info: ObjectInfo) -> ObjectInfo | None:
        """The listing's entry with the size of the plaintext. If plain objects are accepted, the object's trailer has
        to be read. None if the object was deleted before that. A damaged object is listed, and reading it raises
        Corrupt.
        """
        size = plain_size(info.size)
        if size is None:
            return info
        if self._ring.accepts_plain:
            known = self._known.get(info.key)
            try:
                if known is None or known.stored != info.size:
                    known = await self._look(info.key)
                size = known.size
            except ObjectMissing:
                return None
            except Corrupt:
                pass
        return ObjectInfo(info.key, size, info.etag)

    async def _whole(self, key: str, got: Got) -> Got:
        sealed = describe(key, got.data, got.size, self._ring)
        if sealed is None:
            return got
        body = memoryview(got.data)[: len(got.data) - TRAILER_BYTES]
        return Got(await self._decrypt(key, sealed, 0, body, 0, sealed.size), got.etag, sealed.size)

    async def _tail(self, key: str, length: int) -> Got:
        known = self._known.get(key)
        if known is not None and known.sealed is None:
            got = await self._inner.get(key, -length)
            if (got.etag, got.size) == (known.etag, known.stored):
                self._remember(key, known)
                return got  # otherwise it was encrypted meanwhile, and its trailer may be missing here
        got = await self._inner.get(key, -min(stored_tail(length), GET_BYTES_MAX))
        sealed = self._learn(key, got).sealed
        if sealed is None:
            return Got(got.data[-length:], got.etag, got.size)
        start, given = resolve_range(key, -length, None, sealed.size)
        first, position, count = stored_range(start, given, sealed.size)
        missing = got.size - len(got.data)
        stored = memoryview(got.data)[position - missing : position - missing + count]
        return Got(await self._decrypt(key, sealed, first, stored, start, given), got.etag, sealed.size)

    async def _from_start(self, key: str, length: int) -> Got | None:
        """The first bytes, if one request returns the complete object, as for roots; else None."""
        got = await self._inner.get(key, 0, min(stored_size(length), GET_BYTES_MAX))
        if len(got.data) < got.size:
            return None
        whole = await self._whole(key, got)
        start, given = resolve_range(key, 0, length, whole.size)
        return Got(whole.data[start : start + given], got.etag, whole.size)

    async def _range(self, key: str, start: int, length: int | None) -> Got:
        for _ in range(2):
            known = self._known.get(key) or await self._look(key)
            start, given = resolve_range(key, start, length, known.size)
            if known.sealed is None:
                got = await self._inner.get(key, start, given)
            else:
                first, position, count = stored_range(start, given, known.size)
                got = await self._inner.get(key, position, count)
            if (got.etag, got.size) == (known.etag, known.stored):
                self._remember(key, known)
                if known.sealed is None:
                    return got
                data = await self._decrypt(key, known.sealed, first, memoryview(got.data), start, given)
                return Got(data, got.etag, known.size)
            self._known.pop(key, None)
        raise StoreUnavailable(f"GET {key}: the object was replaced while it was read; try again")

    async def _decrypt(
        self, key: str, sealed: Sealed, first: int, stored: memoryview, start: int, length: int
    ) -> bytes:
        """Plaintext `[start, start + length)`, from stored chunks whose first index is `first`."""
        if len(stored) <= _INLINE_BYTES_MAX:
            return self._decrypted(key, sealed, first, stored, start, length)
        return await self._workers.run(self._decrypted, key, sealed, first, stored, start, length, lane=Lane.COLD_READ)

    def _decrypted(self, key: str, sealed: Sealed, first: int, stored: memoryview, start: int, length: int) -> bytes:
        try:
            scratch = self._spare.pop()
        except IndexError:
            scratch = memoryview(bytearray(_SCRATCH_BYTES))
        target = scratch if len(stored) <= _SCRATCH_BYTES else None
        at = start - first * CHUNK_BYTES
        try:
            return bytes(sealed.key.open(first, stored, sealed.size, key, target)[at : at + length])
        finally:
            self._spare.append(scratch)

    async def _look(self, key: str) -> _Known:
        """Read the object's trailer by one request."""
        return self._learn(key, await self._inner.get(key, -TRAILER_BYTES))

    def _learn(self, key: str, got: Got) -> _Known:
        known = _Known(got.etag, got.size, describe(key, got.data, got.size, self._ring))
        self._remember(key, known)
        return known

    def _remember(self, key: str, known: _Known) -> None:
        if known.sealed is None and not self._ring.accepts_plain:
            return  # it was read before `take` replaced the ring
        every = self._known  # read once, because `take` may replace it in another thread
        every[key] = known
        every.move_to_end(key)
        while len(every) > KNOWN_MAX:
            every.popitem(last=False)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        wrapping = self._wrapping(key)
        if wrapping is None:
            self._known.pop(key, None)
            info = await self._inner.put_segment(key, body)
            self._check_readable(key, None)
            return info
        sealing = SealedBody(key, body, *self._fresh(wrapping))
        if body.crc32c is None:
            upload = sealing.upload()
        else:  # the store may need the checksum before the bytes
            upload = await self._workers.run(sealing.checked_upload, lane=Lane.STORE)
        info = await self._inner.put_segment(key, upload)
        self._check_readable(key, wrapping)
        sealed = sealing.sealed
        if info.size != sealed.stored or info.crc32c not in (None, _stored_crc32c(sealed)):
            raise StoreUnavailable(f"PUT {key}: the store reports {info.size} bytes, but {sealed.stored} were sent")
        self._remember(key, _Known(info.etag, sealed.stored, sealed))
        return ObjectInfo(key, sealed.size, info.etag, None if info.crc32c is None else sealed.crc32c)

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        body = Upload(len(data), crc32c(data), lambda: iter((data,)))
        while True:
            wrapping, stored = self._wrapping(key), data
            self._known.pop(key, None)
            if wrapping is not None:
                stored = b"".join(map(bytes, SealedBody(key, body, *self._fresh(wrapping)).upload().open()))
            etag = await self._inner.put_root(key, stored, if_match)
            if not etag or self._reads(key, wrapping):
                return etag
            if_match = etag  # the ring was replaced meanwhile, and the new one does not read the root: write it again

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._known.pop(key, None)
        await self._inner.delete(keys)

    async def close(self) -> None:
        await self._inner.close()

    def _wrapping(self, key: str) -> WrappingKey | None:
        """The key that wraps the object's data key; None if the object is stored unencrypted."""
        return None if _is_probe(key) else self._ring.active

    def _check_readable(self, key: str, wrapping: WrappingKey | None) -> None:
        """Raise StoreUnavailable if the ring was replaced during the upload, and the new one does not read the object.
        Its writer then uploads it again."""
        if not self._reads(key, wrapping):
            raise StoreUnavailable(f"PUT {key}: {self._ring.source} changed meanwhile, and no longer reads the object")

    def _reads(self, key: str, wrapping: WrappingKey | None) -> bool:
        """Whether the ring reads an object that `wrapping` wraps (None: that is not encrypted)."""
        ring = self._ring
        return ring.accepts_plain or _is_probe(key) if wrapping is None else wrapping.key_id in ring.ids

    def _fresh(self, wrapping: WrappingKey) -> tuple[bytes, WrappingKey, bytes]:
        return self._rng.random_bytes(KEY_BYTES), wrapping, self._rng.random_bytes(NONCE_BYTES)


async def etag_of_damaged(store: ObjectStore, key: str) -> str:
    """The ETag of an object whose `head` raises Corrupt, so that it can be replaced. Raises ObjectMissing, StoreError,
    AccessRefused."""
    stored = store._inner if isinstance(store, EncryptedStore) else store
    return (await stored.head(key)).etag


def _is_probe(key: str) -> bool:
    return key.startswith(f"{PROBE_PREFIX}/")


def _stored_crc32c(sealed: Sealed) -> int:
    """CRC32C of the complete object in the store."""
    return crc32c(sealed.trailer, sealed.body_crc32c)
