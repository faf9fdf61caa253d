"""Rewraps the data keys of a bucket's objects with the active key, also while brokers run.

An object under another key gets a new trailer, and its encrypted bytes do not change. A plain object that may be read
is encrypted. An immutable object is copied to a scratch file, checked, and stored again under its name if it did not
change meanwhile. Readers get either the old bytes or the new ones. A root is written with the same content by
compare-and-set, as brokers write it. A broker that commits at the same time either wins, or reads the root again.
Foreign and damaged objects, plain ones that may not be read, and objects under a key that the ring lacks are left
unchanged and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from enum import Enum
from typing import Final

import msgspec
from crc32c import crc32c

from coldstore.encryption.encrypted_store import EncryptedStore
from coldstore.encryption.envelope import Sealed, describe, is_plain, key_id_of, rewrapped
from coldstore.encryption.keys import KEY_BYTES, NONCE_BYTES, KeyRing, WrappingKey
from coldstore.encryption.marker import TRAILER_BYTES, KeyRefused
from coldstore.encryption.sealed_body import SealedBody
from coldstore.keys import RootKey, parse_key
from coldstore.object_store import (
    Got,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    ReplacingStore,
    Upload,
)
from logformat.errors import Corrupt, InvalidRequest
from seams.files.disk import Buffer, File
from seams.loop.workers import Lane
from seams.world import World

_PIECE_BYTES: Final = 8 << 20
_ROOT_TRIES: Final = 10  # a broker may replace a root a few times a second


class Outcome(Enum):
    """The outcome for one object. The value is its printed form."""

    CURRENT = "under the active key"
    REWRAPPED = "rewrapped"
    ENCRYPTED = "encrypted"
    FOREIGN = "not of this program"
    GONE = "deleted meanwhile"
    BUSY = "replaced meanwhile"
    DAMAGED = "damaged"
    NO_KEY = "under a key that is not in the file"
    PLAIN = "plain, refused"


_LEFT: Final = (Outcome.BUSY, Outcome.DAMAGED, Outcome.NO_KEY, Outcome.PLAIN)


class Rewrapped(msgspec.Struct, frozen=True):
    """The outcome for one object, and the id of the key that wrapped its data key before. That id is None for a plain
    object, and for one whose end was not read."""

    key: str
    outcome: Outcome
    was_under: str | None
    detail: str = ""


class Rewrapper:
    """One run over a bucket. `scratch`: a directory for the copy of one object at a time. The rewrapper owns the
    store."""

    def __init__(self, store: ReplacingStore, ring: KeyRing, world: World, scratch: str) -> None:
        """Raises InvalidRequest for a ring without an active key."""
        if ring.active is None:
            raise InvalidRequest(
                f"{ring.source} has no active key to encrypt objects under; set one with `thermocline key set`"
            )
        self._store = store
        self._ring = ring
        self._active: WrappingKey = ring.active
        self._world = world
        self._scratch = scratch
        self._encrypted = EncryptedStore(store, ring, world.workers, world.rng)

    @property
    def key_ids(self) -> tuple[str, ...]:
        return self._ring.ids

    async def close(self) -> None:
        await self._store.close()

    async def run(self, *, change: bool) -> AsyncIterator[Rewrapped]:
        """The outcome of every object, in the order of the listing. Without `change`, objects are only read.

        Raises the store's StoreError and AccessRefused."""
        async for info in self._store.list(""):
            yield await self._one(info, change)

    async def _one(self, info: ObjectInfo, change: bool) -> Rewrapped:
        parsed = parse_key(info.key)
        if parsed is None:
            return Rewrapped(info.key, Outcome.FOREIGN, None)
        under: str | None = None
        try:
            tail = await self._store.get(info.key, -TRAILER_BYTES)
            under = key_id_of(tail.data)
            if not self._ring.accepts_plain and is_plain(info.key, tail.data, self._ring):
                return Rewrapped(info.key, Outcome.PLAIN, None)
            sealed = describe(info.key, tail.data, tail.size, self._ring)
            if under == self._active.key_id:
                return Rewrapped(info.key, Outcome.CURRENT, under)
            if change and isinstance(parsed, RootKey):
                if not await self._root(info.key):
                    return Rewrapped(info.key, Outcome.BUSY, under)
            elif change:
                await self._object(info.key, tail, sealed)
        except ObjectMissing:
            return Rewrapped(info.key, Outcome.GONE, under)
        except PreconditionFailed as replaced:
            return Rewrapped(info.key, Outcome.BUSY, under, str(replaced))
        except KeyRefused as refused:
            return Rewrapped(info.key, Outcome.NO_KEY, under, str(refused))
        except Corrupt as damaged:
            return Rewrapped(info.key, Outcome.DAMAGED, under, str(damaged))
        return Rewrapped(info.key, Outcome.ENCRYPTED if sealed is None else Outcome.REWRAPPED, under)

    async def _root(self, key: str) -> bool:
        """Store the root's content under the active key. Returns False if a broker with another active key keeps
        replacing the root."""
        for _ in range(_ROOT_TRIES):
            got = await self._store.get(key)
            sealed = describe(key, got.data, got.size, self._ring)
            if sealed is not None and sealed.key_id == self._active.key_id:
                return True
            plain = got.data if sealed is None else bytes(_opened(key, sealed, got.data))
            try:
                await self._encrypted.put_root(key, plain, got.etag)
                return True
            except PreconditionFailed:
                continue
        return False

    async def _object(self, key: str, tail: Got, sealed: Sealed | None) -> None:
        path = f"{self._scratch}/{self._world.rng.uuid()}"
        disk, workers = self._world.disk, self._world.workers
        file = await workers.run(lambda: disk.open(path, write=True, create=True, exclusive=True), lane=Lane.FILES)
        try:
            await workers.run(disk.unlink, path, lane=Lane.FILES)
            end = tail.size if sealed is None else tail.size - TRAILER_BYTES
            checksum = await self._download(key, file, tail, end)
            if sealed is None:
                body = await self._sealing(key, file, tail.size, checksum)
            else:
                if checksum != sealed.body_crc32c:
                    raise Corrupt(f"object {key}: its bytes have CRC32C {checksum:#010x}, but its trailer says another")
                nonce = self._world.rng.random_bytes(NONCE_BYTES)
                trailer = rewrapped(key, tail.data, tail.size, self._ring, self._active, nonce)
                body = _with_trailer(file, tail.size, checksum, trailer)
            await self._store.replace_object(key, body, tail.etag)
        finally:
            file.close()

    async def _download(self, key: str, file: File, tail: Got, end: int) -> int:
        """Copy the object's bytes before `end` to `file`. Returns their CRC32C."""
        position = checksum = 0
        while position < end:
            got = await self._store.get(key, position, min(_PIECE_BYTES, end - position))
            if got.etag != tail.etag or got.size != tail.size:
                raise PreconditionFailed(f"{key} was replaced while it was read")
            checksum = await self._world.workers.run(_append, file, position, got.data, checksum, lane=Lane.FILES)
            position += len(got.data)
        return checksum

    async def _sealing(self, key: str, file: File, size: int, checksum: int) -> Upload:
        fresh = self._world.rng.random_bytes
        plain = Upload(size, checksum, lambda: _pieces(file, size))
        body = SealedBody(key, plain, fresh(KEY_BYTES), self._active, fresh(NONCE_BYTES))
        return await self._world.workers.run(body.checked_upload, lane=Lane.STORE)


async def keys_of_objects(store: ObjectStore) -> AsyncIterator[tuple[str, str | None]]:
    """The name of every object of `store`, which does not decrypt, and the id of its key (None: not encrypted). Raises
    the store's StoreError and AccessRefused."""
    async for info in store.list(""):
        if parse_key(info.key) is None:
            continue
        try:
            tail = await store.get(info.key, -TRAILER_BYTES)
        except ObjectMissing:
            continue  # deleted meanwhile
        yield info.key, key_id_of(tail.data)


class Tally:
    """Numbers of objects by outcome, and by the key that wrapped their data key before. `missing`: of those that could
    not be read, by the key that they need."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.keys: Counter[str | None] = Counter()
        self.missing: Counter[str] = Counter()

    def add(self, one: Rewrapped) -> None:
        self.outcomes[one.outcome] += 1
        if one.outcome in (Outcome.CURRENT, Outcome.REWRAPPED, Outcome.ENCRYPTED):
            self.keys[one.was_under] += 1
        if one.outcome is Outcome.NO_KEY and one.was_under is not None:
            self.missing[one.was_under] += 1

    @property
    def left(self) -> int:
        """Number of objects that should be under the active key and are not."""
        return sum(self.outcomes[kind] for kind in _LEFT)


def _opened(key: str, sealed: Sealed, stored: bytes) -> memoryview:
    return sealed.key.open(0, memoryview(stored)[: len(stored) - TRAILER_BYTES], sealed.size, key)


def _append(file: File, position: int, data: bytes, checksum: int) -> int:
    file.write_at(position, [data])
    return int(crc32c(data, checksum))


def _pieces(file: File, size: int) -> Iterator[Buffer]:
    for position in range(0, size, 1 << 20):
        yield file.read_at(position, min(1 << 20, size - position))


def _with_trailer(file: File, stored: int, body_crc32c: int, trailer: bytes) -> Upload:
    def pieces() -> Iterator[Buffer]:
        yield from _pieces(file, stored - TRAILER_BYTES)
        yield trailer

    return Upload(stored, crc32c(trailer, body_crc32c), pieces)
