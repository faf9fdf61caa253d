"""Frame of a segment object's footer: typed sections, then a trailer of fixed size (docs/formats/segment-object.md).

A read checks the CRC32Cs of trailer, footer and every section, and that every length is within the bytes. A section of
unknown type is skipped if its writer marked it optional. Otherwise it is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final

import msgspec
from crc32c import crc32c

from coldstore.encryption.marker import refuse_encrypted
from logformat.errors import Corrupt, ThermoclineError
from logformat.values import NewerFormat

MAGIC: Final = b"THERMSEG"
VERSION: Final = 1
OPTIONAL: Final = 0x0001
FILLER: Final = 9  # a section of zeros that every reader skips
FOOTER_BYTES_MAX: Final = 64 * 1024 * 1024
SECTIONS_MAX: Final = 256

_SECTION: Final = struct.Struct(">HHII")  # type, flags, length, CRC32C of the payload
_TRAILER: Final = struct.Struct(">QQIIHHI8s")  # fields of Trailer, version, reserved, CRC32C of these, magic
_COVERED: Final = struct.Struct(">QQIIHH")  # the part covered by the trailer's CRC
SECTION_HEADER_SIZE: Final = _SECTION.size
TRAILER_SIZE: Final = _TRAILER.size


class Section(IntEnum):
    """Types of the sections of an object. A number is never used again, not even that of the filler."""

    OFFSET_INDEX = 1
    TIME_INDEX = 2
    CHUNK_CRCS = 3
    STATISTICS = 4
    LEADER_EPOCHS = 5
    PRODUCER_STATE = 6
    DECIDED_TRANSACTIONS = 7
    PACKED_INDEXES = 8


class Trailer(msgspec.Struct, frozen=True):
    """The trailer's fields. `log_bytes`: size of the segment's log for readers. `footer_position`: end of the stored
    log bytes in the object."""

    log_bytes: int
    footer_position: int
    footer_length: int
    footer_crc32c: int


class FooterOutgrown(ThermoclineError):
    """The footer is longer than announced. The copy has to be repeated with its real size."""


def footer_bytes(payloads: Iterable[int]) -> int:
    """Size of a footer and its trailer, with a filler, for payloads of these lengths."""
    return sum(SECTION_HEADER_SIZE + length for length in (*payloads, 0)) + TRAILER_SIZE


def encode_footer(log_bytes: int, sections: Sequence[tuple[int, int, bytes]], size: int | None = None) -> bytes:
    """The bytes after `log_bytes` of log: the sections, given as (type, flags, payload), then the trailer.

    With `size` a filler pads the result to exactly that many bytes. Raises FooterOutgrown if `size` is too small."""
    if size is not None:
        needed = footer_bytes(len(payload) for _, _, payload in sections)
        if needed > size:
            raise FooterOutgrown(f"a footer of {size} bytes was announced, but its sections take {needed}")
        sections = (*sections, (FILLER, OPTIONAL, bytes(size - needed)))
    parts: list[bytes] = []
    for kind, flags, payload in sections:
        parts += (_SECTION.pack(kind, flags, len(payload), crc32c(payload)), payload)
    footer = b"".join(parts)
    assert len(footer) <= FOOTER_BYTES_MAX, f"footer of {len(footer)} bytes"
    covered = _COVERED.pack(log_bytes, log_bytes, len(footer), crc32c(footer), VERSION, 0)
    return footer + covered + struct.pack(">I", crc32c(covered)) + MAGIC


def read_trailer(tail: bytes | memoryview, object_bytes: int) -> Trailer:
    """The trailer of an object of `object_bytes`, whose last bytes are `tail`. Raises Corrupt, NewerFormat."""
    if len(tail) < TRAILER_SIZE or object_bytes < len(tail):
        raise Corrupt(f"{len(tail)} of {object_bytes} bytes are too few for a segment object's trailer")
    raw = bytes(tail[-TRAILER_SIZE:])
    log_bytes, position, length, footer_crc, version, reserved, crc, magic = _TRAILER.unpack(raw)
    refuse_encrypted("segment", tail)
    if magic != MAGIC:
        raise Corrupt(f"object of {object_bytes} bytes ends with {magic!r}: not a segment object, or cut short")
    if crc32c(raw[: _COVERED.size]) != crc:
        raise Corrupt(f"segment object of {object_bytes} bytes: its trailer fails its CRC {crc:#010x}")
    if version > VERSION:
        raise NewerFormat(f"segment object has version {version}, but this program knows {VERSION}; upgrade")
    if version < 1 or reserved or log_bytes == 0 or position + length + TRAILER_SIZE != object_bytes:
        raise Corrupt(
            f"segment object of {object_bytes} bytes: its trailer says {log_bytes} bytes of log and {length} of footer"
        )
    if length > FOOTER_BYTES_MAX or position != log_bytes:
        raise Corrupt(
            f"segment object: a footer of {length} bytes at {position} does not fit behind {log_bytes} log bytes"
        )
    return Trailer(log_bytes, position, length, footer_crc)


def read_sections(trailer: Trailer, footer: bytes | memoryview, known: Iterable[int]) -> Mapping[int, memoryview]:
    """The payloads by type. `footer` has the bytes of the sections, without the trailer. Raises Corrupt,
    NewerFormat."""
    view = memoryview(footer)
    if len(view) != trailer.footer_length or crc32c(view) != trailer.footer_crc32c:
        raise Corrupt(
            f"segment footer: {len(view)} bytes are not the {trailer.footer_length} written, or their CRC differs"
        )
    types = frozenset(known)
    found: dict[int, memoryview] = {}
    at = count = 0
    while at < len(view):
        count += 1
        if len(view) - at < SECTION_HEADER_SIZE or count > SECTIONS_MAX:
            raise Corrupt(f"segment footer: no room for section {count} at {at} of {len(view)}")
        kind, flags, length, crc = _SECTION.unpack_from(view, at)
        at += SECTION_HEADER_SIZE
        if length > len(view) - at:
            raise Corrupt(f"segment footer: section {kind} claims {length} bytes, but only {len(view) - at} are left")
        payload = view[at : at + length]
        at += length
        if kind not in types:
            if flags & OPTIONAL:
                continue
            raise NewerFormat(f"segment footer: section {kind} is required and unknown to this program; upgrade")
        if kind in found or crc32c(payload) != crc:
            raise Corrupt(f"segment footer: section {kind} appears twice or fails its CRC")
        found[kind] = payload
    return found
