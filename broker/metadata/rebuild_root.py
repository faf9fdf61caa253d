"""Writes a rebuilt `cluster.json` in the place of a missing or unreadable root: the page first, then the root.

A root that another process wrote meanwhile is never replaced.
"""

from __future__ import annotations

from crc32c import crc32c

from broker.metadata.cluster_content import (
    CLUSTER_FORMAT,
    PAGE_SUFFIX,
    ClusterContent,
    ClusterPage,
    Controller,
    encode_page,
)
from broker.metadata.image import ClusterImage, check
from broker.metadata.rebuilt import UNKNOWN_REPLICA
from coldstore.keys import cluster_key, metadata_key
from coldstore.object_store import ObjectStore, Upload
from coldstore.roots.root_format import RING_LENGTH, RootCodec
from seams.rng import Rng

_VERSIONS_AN_EPOCH = 1 << 32
"""A rebuilt root's version is above that of any earlier root and does not continue it. A running broker that knew the
earlier root treats the new one as damaged and applies neither."""
_POSITION = 1  # as if one record had created the image


async def write_rebuilt(
    store: ObjectStore, rng: Rng, cluster_id: str, image: ClusterImage, epoch: int, damaged: str | None
) -> None:
    """Write the page and the root. `epoch`: the controller epoch. `damaged`: the ETag of the unreadable root, None if
    there is none. Raises PreconditionFailed if another root was written meanwhile, StoreError, Corrupt for an
    impossible image.
    """
    check(image)
    data, json_bytes = encode_page(image)
    version = epoch * _VERSIONS_AN_EPOCH
    key = metadata_key(version, epoch, rng.uuid(), PAGE_SUFFIX)
    page = ClusterPage(key, len(data), crc32c(data), json_bytes)
    await store.put_segment(key, Upload(len(data), page.crc32c, lambda: iter((data,))))
    controller = Controller(UNKNOWN_REPLICA, rng.uuid().hex)
    content = ClusterContent(cluster_id, controller, page, _POSITION)
    ring = tuple((at, rng.uuid().hex) for at in range(version - RING_LENGTH + 1, version + 1))
    root = RootCodec(CLUSTER_FORMAT).encode(version, epoch, ring, content)
    await store.put_root(cluster_key(), root, damaged)
