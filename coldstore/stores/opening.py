"""Opens the store of a bucket URL. A client library is loaded only for a store of its kind."""

from __future__ import annotations

from coldstore.object_store import ObjectStore
from coldstore.url import BucketUrl, DirectoryUrl
from seams.world import World


def open_store(url: BucketUrl, world: World) -> ObjectStore:
    """The store of a URL; nothing is sent yet. Imports may take a second."""
    if isinstance(url, DirectoryUrl):
        from coldstore.stores.directory import DirectoryStore

        return DirectoryStore(world.disk, world.workers, url.path, world.rng)
    from coldstore.stores.s3 import S3Store  # loads boto3 and aiobotocore: 1.2 s that a directory bucket never pays

    return S3Store(url, world.workers, world.clock)
