"""Varints, tagged fields, and the limits of all decoders.

A claimed count or length is compared with the remaining bytes before memory is allocated for it. Source: Kafka protocol
guide ("Protocol Primitive Types"), KIP-482 (tagged fields).
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from broker.wire.errors import MalformedFrame

ARRAY_ELEMENTS_MAX: Final = 1_000_000
"""Most elements in all arrays of one response or record, which bounds the memory of decoding it."""
REQUEST_UNITS_MAX: Final = 80_000
"""Most units in all arrays of one request: a structure is 4 units, a string 2, an integer 1. 20 000 structures take 20
ms and 4 MiB to decode; handler and response take as much again. No client names as many partitions. The limit holds for
OffsetCommit, too."""
STRUCTURE_UNITS: Final = 4
STRING_UNITS: Final = 2
STRING_BYTES_MAX: Final = 32_767
"""Longest string of a request, as in Kafka; in the older encodings a length has 16 bits."""
TAGS_MAX: Final = 10_000
"""Most tagged fields of one structure. In a request an unknown tagged field is also `STRUCTURE_UNITS` units, because
reading it takes as long as a structure."""
UVARINT_BYTES_MAX: Final = 5  # 32 bits, 7 in each byte
ZERO_UUID: Final = UUID(int=0)
"""Kafka's "no id" (`Uuid.ZERO_UUID`)."""

_UVARINT_ONE: Final = tuple(bytes((n,)) for n in range(0x80))


def read_uvarint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """The unsigned varint at `position` (32 bits at most), and the position after it.

    Raises IndexError if the buffer ends first. Decoders turn this into `MalformedFrame`, as for every short read.
    """
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise MalformedFrame(f"varint at byte {position} does not fit 32 bits")
            return value, position
        shift += 7
        if shift == 7 * UVARINT_BYTES_MAX:
            raise MalformedFrame(f"varint at byte {position} is longer than {UVARINT_BYTES_MAX} bytes")


def uvarint(value: int) -> bytes:
    """`value` (0 to 2^32 - 1) as an unsigned varint."""
    if value < 0x80:
        return _UVARINT_ONE[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_tag(buffer: bytes | memoryview, position: int, end: int, previous: int) -> tuple[int, int, int]:
    """Tag, start and end of the next tagged field. Refuses tags that do not ascend and sizes beyond `end`."""
    tag, position = read_uvarint(buffer, position)
    if tag <= previous:
        raise MalformedFrame(f"tag {tag} after tag {previous}: tags must ascend")
    size, position = read_uvarint(buffer, position)
    if size > end - position:
        raise MalformedFrame(f"tag {tag} claims {size} bytes, but only {end - position} are left")
    return tag, position, position + size


def read_tag_count(buffer: bytes | memoryview, position: int, end: int, count_max: int = TAGS_MAX) -> tuple[int, int]:
    """Number of tagged fields. Refuses more than `TAGS_MAX` or `count_max`, and more than the remaining bytes can
    hold."""
    count, position = read_uvarint(buffer, position)
    count_max = min(count_max, TAGS_MAX)
    if count > count_max or count * 2 > end - position:  # tag and size take 2 bytes or more
        raise MalformedFrame(f"{count} tagged fields are claimed in {end - position} bytes (at most {count_max})")
    return count, position


def skip_tags(buffer: bytes | memoryview, position: int, end: int) -> int:
    """Position after a section of tagged fields that are all unknown."""
    if position < end and buffer[position] == 0:
        return position + 1
    count, position = read_tag_count(buffer, position, end)
    return skip_counted_tags(buffer, position, end, count)


def skip_counted_tags(buffer: bytes | memoryview, position: int, end: int, count: int) -> int:
    """Position after `count` unknown tagged fields."""
    tag = -1
    for _ in range(count):
        tag, _, position = read_tag(buffer, position, end, tag)
    return position


def bad_length(field: str, length: int, left: int) -> MalformedFrame:
    """The error for a string, bytes or records field."""
    if length < 0:
        return MalformedFrame(
            f"{field} must not be null" if length == -1 else f"{field} has the impossible length {length}"
        )
    if length <= left:
        return MalformedFrame(f"{field} has {length} bytes, a string has at most {STRING_BYTES_MAX}")
    return MalformedFrame(f"{field} claims {length} bytes, but only {left} are left")


def bad_count(field: str, count: int, left: int, elements_max: int) -> MalformedFrame:
    """The error for the count of an array. `elements_max`: how many more elements the message may have."""
    if count < 0:
        return MalformedFrame(
            f"{field} must not be null" if count == -1 else f"{field} has the impossible count {count}"
        )
    return MalformedFrame(f"{field} claims {count} elements, {left} bytes are left (at most {elements_max} here)")
