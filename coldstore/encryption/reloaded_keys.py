"""The key file of a running broker. A reload gives its keys to the open store. Blocking.

A file in which an id in use has another key is refused, because it is the file of another bucket.
"""

from __future__ import annotations

from typing import Final

from coldstore.encryption.encrypted_store import EncryptedStore
from coldstore.encryption.key_file import KeyFileRefused, load_ring


class ReloadedKeys:
    where: Final = "the keys of the bucket"

    def __init__(self, path: str, store: EncryptedStore) -> None:
        self._path = path
        self._store = store
        self._gone: tuple[str, ...] = ()  # keys that the last reload took away

    @property
    def says(self) -> str:
        ring = self._store.ring
        active = (
            "new objects are not encrypted"
            if ring.active is None
            else f"new objects are encrypted under {ring.active.key_id}"
        )
        gone = f"; objects under key {', '.join(self._gone)} can no longer be read" if self._gone else ""
        return (f"{len(ring.ids)} keys, {active}" if len(ring.ids) != 1 else f"1 key, {active}") + gone

    def reload(self) -> bool:
        """Read the file again. Returns whether the keys changed. If this raises KeyFileRefused, AccessRefused or
        StoreUnavailable (the key service), the old keys stay in use."""
        old, new = self._store.ring, load_ring(self._path)
        if others := old.replaced(new):
            raise KeyFileRefused(
                f"key file {self._path} holds another key under the id {', '.join(others)} than the one in use: the "
                "file belongs to another bucket, or the key was made again; give a new key an id of its own"
            )
        if old.is_same(new):
            return False
        self._gone = tuple(key_id for key_id in old.ids if key_id not in new.ids)
        self._store.take(new)
        return True
