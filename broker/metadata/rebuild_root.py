"""Writing a `cluster.json` that was lost: the one commit that follows no other.

Owns the bytes and the order: the page first, then the root that names it, made only where there is none, or in the
place of one that cannot be read. Always true: a root that somebody else wrote meanwhile is never replaced. Must not
know what the image holds (rebuilt), nor whether it is right to write it.
"""

from __future__ import annotations

from crc32c import crc32c

from broker.metadata.cluster_content import (
    CLUSTER_FORMAT,
    PAGE_SUFFIX,
    ClusterContent,
    Controller,
    PagePointer,
    encode_page,
)
from broker.metadata.image import ClusterImage, check
from broker.metadata.rebuilt import UNKNOWN_REPLICA
from coldstore.keys import cluster_key, metadata_key
from coldstore.object_store import ObjectStore, Upload
from coldstore.roots.root_format import RING_LENGTH, RootCodec
from seams.rng import Rng

_VERSIONS_AN_EPOCH = 1 << 32
"""A rebuilt root's version lies above that of any root before, and does not continue it: who still runs, and knew that
one, takes it for damage and obeys neither."""
_POSITION = 1  # as if one record had made the image


async def write_rebuilt(
    store: ObjectStore, rng: Rng, cluster_id: str, image: ClusterImage, epoch: int, damaged: str | None
) -> None:
    """`epoch`: the controller's; `damaged`: the ETag of the root that cannot be read, None where there is none. Raises
    PreconditionFailed when another one is there by now, StoreError, Corrupt for an impossible image."""
    check(image)
    data, json_bytes = encode_page(image)
    version = epoch * _VERSIONS_AN_EPOCH
    key = metadata_key(version, epoch, rng.uuid(), PAGE_SUFFIX)
    page = PagePointer(key, len(data), crc32c(data), json_bytes)
    await store.put_segment(key, Upload(len(data), page.crc32c, lambda: iter((data,))))
    controller = Controller(UNKNOWN_REPLICA, rng.uuid().hex)
    content = ClusterContent(cluster_id, controller, page, _POSITION)
    ring = tuple((at, rng.uuid().hex) for at in range(version - RING_LENGTH + 1, version + 1))
    root = RootCodec(CLUSTER_FORMAT).encode(version, epoch, ring, content)
    await store.put_root(cluster_key(), root, damaged)
