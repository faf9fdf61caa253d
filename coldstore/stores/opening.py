"""Opens the store of a bucket URL.

A client library is loaded only if the store needs it. With a key file, objects are encrypted when they are written and
decrypted when they are read (`coldstore.encryption`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coldstore.object_store import ObjectStore, ReplacingStore
from coldstore.url import BucketUrl, DirectoryUrl
from logformat.errors import InvalidRequest
from seams.world import World

if TYPE_CHECKING:
    from coldstore.encryption.reloaded_keys import ReloadedKeys
    from coldstore.encryption.rewrap import Rewrapper


def open_rewrapper(url: BucketUrl, world: World, scratch: str) -> Rewrapper:
    """The rewrapper of the URL's bucket for the active key of its key file. `scratch`: a directory for the copy of one
    object. Raises the errors of `open_store`, and InvalidRequest for a URL without a key file."""
    from coldstore.encryption.key_file import load_ring
    from coldstore.encryption.rewrap import Rewrapper

    if url.key_file is None:
        raise InvalidRequest("no key file: give key_file in the bucket's URL, or THERMOCLINE_ENCRYPTION_KEY_FILE")
    return Rewrapper(_open_plain(url, world), load_ring(url.key_file), world, scratch)


def open_undecrypted(url: BucketUrl, world: World) -> ObjectStore:
    """The store of a URL whose reads return objects as they are stored. No request is sent yet."""
    return _open_plain(url, world)


def open_store(url: BucketUrl, world: World) -> ObjectStore:
    """The store of a URL. No request is sent yet. Imports may take a second.

    If the URL has a key file, it is read and its keys are unwrapped. Raises KeyFileRefused, AccessRefused,
    StoreUnavailable."""
    store = _open_plain(url, world)
    if url.key_file is None:
        return store
    from coldstore.encryption.encrypted_store import EncryptedStore
    from coldstore.encryption.key_file import load_ring

    return EncryptedStore(store, load_ring(url.key_file), world.workers, world.rng)


def keys_of(store: ObjectStore, url: BucketUrl) -> ReloadedKeys | None:
    """The keys of an open store, for a reload; None if the store does not encrypt."""
    if url.key_file is None:
        return None
    from coldstore.encryption.encrypted_store import EncryptedStore
    from coldstore.encryption.reloaded_keys import ReloadedKeys

    return ReloadedKeys(url.key_file, store) if isinstance(store, EncryptedStore) else None


def _open_plain(url: BucketUrl, world: World) -> ReplacingStore:
    if isinstance(url, DirectoryUrl):
        from coldstore.stores.directory import DirectoryStore

        return DirectoryStore(world.disk, world.workers, url.path, world.rng, clock=world.clock)
    from coldstore.stores.s3 import S3Store  # loads boto3 and aiobotocore in 1.2 s

    return S3Store(url, world.workers, world.clock)
