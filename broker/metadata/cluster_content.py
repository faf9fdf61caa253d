"""The content of `cluster.json` (format 2) and its pages, and their image. Pure.

Format: docs/formats/cluster.md. Every image was checked. A page must match its size, checksum and inflated length.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from broker.metadata import format_1
from broker.metadata.format_1 import Content1
from broker.metadata.image import ClusterImage, check
from broker.metadata.records import MetadataRecord
from coldstore.roots.root import RootFormat
from logformat.errors import Corrupt
from seams.typed_json import decoder_of

IMAGE_BYTES_MAX: Final = 16 * 1024 * 1024  # JSON; no records are added above it, because every start reads a page
PAGE_BYTES_MAX: Final = 4 * IMAGE_BYTES_MAX  # JSON of a page; a larger page is neither written nor read
PAGE_SUFFIX: Final = "zz"  # deflated JSON
_ENCODER: Final = msgspec.json.Encoder()


class ClusterPage(msgspec.Struct, frozen=True):
    """An immutable page. `size` and `crc32c` describe the object. `json_bytes` is the length of its inflated
    content."""

    key: str
    size: int
    crc32c: int
    json_bytes: int


class Controller(msgspec.Struct, frozen=True):
    """The controller; its epoch is the root's. `looks` counts commits that were made only to resolve an unknown
    outcome."""

    node_id: int
    incarnation: str
    looks: int = 0


class ControllerAt(NamedTuple):
    """The controller according to a root: the process `incarnation` of node `node_id`, in controller epoch `epoch`."""

    node_id: int
    incarnation: str
    epoch: int


class ClusterContent(msgspec.Struct, frozen=True):
    """The image at `page` (None: empty), of the first `folded` records, plus `records`."""

    cluster_id: str
    controller: Controller
    page: ClusterPage | None = None
    folded: int = 0
    records: tuple[MetadataRecord, ...] = ()

    @property
    def position(self) -> int:
        return self.folded + len(self.records)


Content = ClusterContent | Content1
CLUSTER_FORMAT: Final[RootFormat[Content]] = RootFormat(2, {1: Content1, 2: ClusterContent})


def controller_of(content: Content, epoch: int) -> ControllerAt | None:
    """The controller in the root's `epoch`; None in a root of format 1, which does not name a controller."""
    if isinstance(content, Content1):
        return None
    return ControllerAt(content.controller.node_id, content.controller.incarnation, epoch)


def check_page(data: bytes, pointer: ClusterPage | format_1.PageV1) -> bytes:
    """Return the bytes of the object. Raises Corrupt unless they match the pointer."""
    if len(data) != pointer.size or crc32c(data) != pointer.crc32c:
        raise Corrupt(f"metadata page {pointer.key} fails its checksum; restore an earlier version of the object")
    return data


def encode_page(image: ClusterImage) -> tuple[bytes, int]:
    """The bytes of a page, and their inflated length."""
    raw = _ENCODER.encode(image)
    return zlib.compress(raw), len(raw)


def decode_page(data: bytes, pointer: ClusterPage) -> ClusterImage:
    """The image of a page, unchecked. Raises Corrupt for unreadable bytes."""
    try:
        inflating = zlib.decompressobj()
        raw = inflating.decompress(data, min(pointer.json_bytes, PAGE_BYTES_MAX) + 1)
        if len(raw) != pointer.json_bytes or not inflating.eof or inflating.unused_data:
            raise Corrupt(f"metadata page {pointer.key} does not hold the {pointer.json_bytes} bytes it should")
        return decoder_of(ClusterImage).decode(raw)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        raise Corrupt(f"metadata page {pointer.key} is not readable: {broken}") from broken


def image_of(content: Content, page: bytes | None) -> ClusterImage:
    """The checked image of a root's content and its page's bytes (None: no page). Raises Corrupt."""
    if isinstance(content, Content1):
        image = format_1.image_of(content, page)
    else:
        image = ClusterImage()
        if page is not None:
            assert content.page is not None
            image = decode_page(page, content.page)
        image = image.with_records(content.records)
    check(image)
    return image
