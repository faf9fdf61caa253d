"""What a frame is made of on its way out: buffers, and file ranges that are never read into memory.

Owns the vocabulary between whoever has record bytes and whoever writes the socket. Always true: the length of a frame
is known before its first byte is sent. Must not know files or sockets: a file range only has a length here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview
"""A memoryview must be of bytes (format B, one dimension), so that `len` counts bytes."""


class FileRange(Protocol):
    """Bytes that lie in a file and are sent from there (sendfile). `length` in bytes."""

    @property
    def length(self) -> int: ...


Part = Buffer | FileRange


@dataclass(frozen=True, slots=True)
class Records:
    """A `records` field on its way out: `size` bytes made of `parts`, in order, put into the frame as they are."""

    size: int
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return self.size

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Records:
        """`Records` over `parts`, their sizes added up."""
        whole = tuple(parts)
        return cls(frame_size(whole), whole)


RecordsField = bytes | bytearray | memoryview | list[Buffer] | Records | None
"""What a `records` field may hold when a message is encoded. Decoded ones are always `memoryview` or None."""


_BUFFERS: Final = (bytes, bytearray, memoryview)  # a tuple: a union written in the loop would be built each time


def frame_size(parts: Sequence[Part]) -> int:
    """Bytes that `parts` will put on the wire."""
    size = 0
    for part in parts:
        size += len(part) if isinstance(part, _BUFFERS) else part.length
    return size


def scatter(records: bytes | bytearray | memoryview | list[Buffer] | Records) -> tuple[int, Sequence[Part]]:
    """Size and parts of a non-null `records` value; nothing is copied."""
    kind = type(records)
    if kind is Records:
        return records.size, records.parts  # type: ignore[union-attr]  # `kind is` is the cheap isinstance of a hot path
    if kind is list:
        return frame_size(records), records  # type: ignore[arg-type, return-value]
    return len(records), (records,)  # type: ignore[return-value]
