"""The simulated bucket as pyarrow's file systems show S3: a handle knows the size and ETag of the object that it
opened, and reads whatever is under the name now.

Owns the handles. Always true: what is gone is a 404 also for who has a handle. Must not know faults.
"""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from tests.sim.world.encryption import RING
from tests.support.store.memory_store import MemoryStore
from thermocline.pipeline.arrow_store import ArrowStore
from thermocline.pipeline.encrypted_arrow_store import EncryptedArrowStore


class _Handle:
    def __init__(self, memory: MemoryStore, key: str) -> None:
        self._memory, self._key = memory, key
        found = self._now()
        self._size, self._etag = len(found), memory.objects[key].etag

    def _now(self) -> bytes:
        found = self._memory.objects.get(self._key)
        if found is None:
            raise FileNotFoundError(self._key)
        return found.data

    def size(self) -> int:
        return self._size

    def metadata(self) -> dict[str, Any]:
        return {"ETag": self._etag.encode()}

    def read_at(self, length: int, start: int) -> bytes:
        return self._now()[start : start + length]

    def get_stream(self, start: int, length: int) -> _Stream:
        return _Stream(self.read_at(length, start))


class _Stream:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_buffer(self, _length: int) -> pa.Buffer:
        return pa.py_buffer(self._data)


class MemoryArrowStore(ArrowStore):
    """An `ArrowStore` over the objects of a `MemoryStore`."""

    memory: MemoryStore

    def _opened(self, key: str) -> Any:
        try:
            return _Handle(self.memory, key)
        except OSError as failure:
            raise self._mapped(key, failure) from failure

    def _is_gone(self, key: str) -> bool:
        return key not in self.memory.objects


class EncryptedMemoryArrowStore(EncryptedArrowStore, MemoryArrowStore):
    """The same, of an encrypted bucket."""


def arrow_store(memory: MemoryStore, *, encrypts: bool) -> ArrowStore:
    kind = EncryptedMemoryArrowStore if encrypts else MemoryArrowStore
    store = kind.__new__(kind)
    store.requests = store.bytes_read = 0
    ArrowStore.__init__(store, None, "", "memory://bucket")  # type: ignore[arg-type]
    store.is_directory = False
    store._lock = threading.Lock()
    store.memory = memory
    if isinstance(store, EncryptedMemoryArrowStore):
        store._ring = RING
    return store
