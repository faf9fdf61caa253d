"""Messages between `ProcessEngine` and its child, in msgpack: one request at a time, then its reply.

A request's files are sent with it as descriptors, in the order of its paths. Paths are used only in error messages.
They are bytes, because a file name may not be UTF-8.
"""

from __future__ import annotations

from errno import ENOMEM
from typing import Final, TypeAlias

import msgspec

from hotstore.errors import DamagedLog

_TEXT_CHARACTERS_MAX: Final = 2_000  # characters of an error's text, to fit `seams.child_process.MESSAGE_BYTES_MAX`


ABORTED_MAX: Final = 1_500  # entries in one message
LAST_OFFSETS_MAX: Final = 4_500  # entries in one message


class Aborted(msgspec.Struct, tag=True, frozen=True):
    """A part of the aborted transactions of the next pass (`CleanRules.aborted`). Several messages may be needed."""

    transactions: tuple[tuple[int, int, int], ...]


class LastOffsets(msgspec.Struct, tag=True, frozen=True):
    """A part of `CleanRules.last_offsets` of the next pass, in order. Several messages may be needed."""

    offsets: tuple[int, ...]


class Begin(msgspec.Struct, tag=True, frozen=True):
    buffer_bytes: int
    now_ms: int
    delete_retention_ms: int
    tombstones_end: int


class Map(msgspec.Struct, tag=True, frozen=True):
    path: bytes
    position: int
    length: int


class BeginSegment(msgspec.Struct, tag=True, frozen=True):
    base_offset: int
    interval_bytes: int
    paths: tuple[bytes, bytes, bytes]


class Clean(msgspec.Struct, tag=True, frozen=True):
    path: bytes
    position: int
    length: int


class FinishSegment(msgspec.Struct, tag=True, frozen=True):
    pass


class End(msgspec.Struct, tag=True, frozen=True):
    pass


class Done(msgspec.Struct, tag=True, frozen=True):
    """The child is ready for the first request, or has done a request that has no other result."""


class MapDone(msgspec.Struct, tag=True, frozen=True):
    taken_bytes: int
    end_offset: int
    is_full: bool


class CleanDone(msgspec.Struct, tag=True, frozen=True):
    taken_bytes: int


class SegmentDone(msgspec.Struct, tag=True, frozen=True):
    size: int
    end_offset: int
    max_timestamp: int
    max_timestamp_offset: int
    stats: dict[str, int]


class FileError(msgspec.Struct, tag=True, frozen=True):
    """An OSError."""

    number: int | None
    text: str
    path: bytes | None


class Damage(msgspec.Struct, tag=True, frozen=True):
    """A DamagedLog."""

    path: bytes
    position: int
    offset: int
    what: str
    hint: str


class Defect(msgspec.Struct, tag=True, frozen=True):
    """Any other error. The child then exits."""

    text: str


Request: TypeAlias = Aborted | LastOffsets | Begin | Map | BeginSegment | Clean | FinishSegment | End
Reply: TypeAlias = Done | MapDone | CleanDone | SegmentDone | FileError | Damage | Defect

encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(Request).decode
decode_reply: Final = msgspec.msgpack.Decoder(Reply).decode


def path_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def path_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def error_reply(error: Exception) -> FileError | Damage | Defect:
    if isinstance(error, DamagedLog):
        what, hint = _short(error.what), _short(error.hint)
        return Damage(path_bytes(error.file), error.position, error.offset, what, hint)
    if isinstance(error, MemoryError):
        return FileError(ENOMEM, "the cleaner's process ran out of memory", None)
    if isinstance(error, OSError):
        path = path_bytes(error.filename) if isinstance(error.filename, str) else None
        return FileError(error.errno, _short(error.strerror or str(error)), path)
    return Defect(_short(f"{type(error).__name__}: {error}"))


def raised(reply: FileError | Damage) -> OSError | DamagedLog:
    """Raise the error that the child raised."""
    if isinstance(reply, Damage):
        return DamagedLog(path_text(reply.path), reply.position, reply.offset, reply.what, reply.hint)
    if reply.number is None:
        return OSError(reply.text)
    return OSError(reply.number, reply.text, None if reply.path is None else path_text(reply.path))


def _short(text: str) -> str:
    """The text as bounded, valid UTF-8."""
    return text[:_TEXT_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode()
