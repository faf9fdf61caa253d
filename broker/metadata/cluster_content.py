"""What `cluster.json` of format 2 and its pages hold, and what image they make. Pure.

Owns the shape of the root's content and the bytes of a page (docs/formats/cluster.md). Always true: an image that comes
out was checked; a page is believed only with its size, its checksum and the length it says it inflates to. Must not
know how roots and pages are read or written (cluster_root), nor what format 1 meant (format_1).
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

IMAGE_BYTES_MAX: Final = 16 * 1024 * 1024  # of JSON: a page is read whole at every start, so nothing is added above it
PAGE_BYTES_MAX: Final = 4 * IMAGE_BYTES_MAX  # of JSON: what is neither written nor believed
PAGE_SUFFIX: Final = "zz"  # JSON, deflated
_ENCODER: Final = msgspec.json.Encoder()


class PagePointer(msgspec.Struct, frozen=True):
    """Names an immutable page. `size` and `crc32c` are of the object; `json_bytes` it has when inflated."""

    key: str
    size: int
    crc32c: int
    json_bytes: int


class Controller(msgspec.Struct, frozen=True):
    """Who decides, in the controller epoch that is the root's. `looks` counts commits made only to learn what became
    of the one before."""

    node_id: int
    incarnation: str
    looks: int = 0


class ControllerAt(NamedTuple):
    """Who decides, as a root said: the process `incarnation` of node `node_id`, in the controller epoch `epoch`."""

    node_id: int
    incarnation: str
    epoch: int


class ClusterContent(msgspec.Struct, frozen=True):
    """What `cluster.json` holds: the image at `page` (None: empty), of the first `folded` records, plus `records`."""

    cluster_id: str
    controller: Controller
    page: PagePointer | None = None
    folded: int = 0
    records: tuple[MetadataRecord, ...] = ()

    @property
    def position(self) -> int:
        """How many records there ever were."""
        return self.folded + len(self.records)


Content = ClusterContent | Content1
CLUSTER_FORMAT: Final[RootFormat[Content]] = RootFormat(2, {1: Content1, 2: ClusterContent})


def controller_of(content: Content, epoch: int) -> ControllerAt | None:
    """Who decides in the root's `epoch`; None in a root of format 1, which names nobody."""
    if isinstance(content, Content1):
        return None
    return ControllerAt(content.controller.node_id, content.controller.incarnation, epoch)


def check_page(data: bytes, pointer: PagePointer | format_1.PagePointer) -> bytes:
    """The bytes of the object as they are. Raises Corrupt for others than the pointer names."""
    if len(data) != pointer.size or crc32c(data) != pointer.crc32c:
        raise Corrupt(f"metadata page {pointer.key} fails its checksum; restore the object from a version")
    return data


def encode_page(image: ClusterImage) -> tuple[bytes, int]:
    """The bytes of a page, and how many they are when inflated."""
    raw = _ENCODER.encode(image)
    return zlib.compress(raw), len(raw)


def decode_page(data: bytes, pointer: PagePointer) -> ClusterImage:
    """The image of a page, not checked yet; raises Corrupt for bytes that hold none."""
    try:
        inflating = zlib.decompressobj()
        raw = inflating.decompress(data, min(pointer.json_bytes, PAGE_BYTES_MAX) + 1)
        if len(raw) != pointer.json_bytes or not inflating.eof or inflating.unused_data:
            raise Corrupt(f"metadata page {pointer.key} does not hold the {pointer.json_bytes} bytes it should")
        return decoder_of(ClusterImage).decode(raw)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        raise Corrupt(f"metadata page {pointer.key} is not readable: {broken}") from broken


def image_of(content: Content, page: bytes | None) -> ClusterImage:
    """The image of a root's content and the bytes of the page it names (None: it names none). Raises Corrupt."""
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
