"""The parts of an outgoing frame: buffers, and file ranges that are never read into memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from seams.files.disk import FileRange

Buffer = bytes | bytearray | memoryview
"""A memoryview must be of bytes (format B, one dimension), so that `len` counts bytes."""


Part = Buffer | FileRange


class Records(msgspec.Struct, frozen=True):
    """The value of a `records` field in an outgoing message: `size` bytes in `parts`, which are sent unchanged."""

    size: int
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return self.size


RecordsField = bytes | bytearray | memoryview | list[Buffer] | Records | None
"""Values of a `records` field for encoding. Decoded ones are always `memoryview` or None."""


_BUFFERS: Final = (bytes, bytearray, memoryview)  # built once: a union in the loop would be built each time


def frame_size(parts: Sequence[Part]) -> int:
    """Bytes of `parts` on the wire."""
    size = 0
    for part in parts:
        size += len(part) if isinstance(part, _BUFFERS) else part.length
    return size


def scatter(records: bytes | bytearray | memoryview | list[Buffer] | Records) -> tuple[int, Sequence[Part]]:
    """Size and parts of a non-null `records` value. No bytes are copied."""
    kind = type(records)
    if kind is Records:
        return records.size, records.parts  # type: ignore[union-attr]  # `kind is` is the cheap isinstance of a hot path
    if kind is list:
        return frame_size(records), records  # type: ignore[arg-type, return-value]
    return len(records), (records,)  # type: ignore[return-value]
