"""Checks of all stores against hostile keys, impossible ranges and oversized answers.

A valid key stays below the bucket's root on every store. The size of a complete GET is checked before its first byte is
read.
"""

from __future__ import annotations

from logformat.errors import InvalidRequest

SYSTEM_DIRECTORY = ".thermocline"  # locks and temporary files of a directory bucket; not allowed in keys
KEY_BYTES_MAX = 1024  # S3
NAME_BYTES_MAX = 255  # a file system's limit for one part of a key (directory bucket, versitygw)
GET_BYTES_MAX = 256 << 20  # one answer in memory; sizes of objects are not trusted
PART_BYTES = 64 << 20  # size of one part of a multipart upload
SINGLE_PARTS = 4  # an object of up to this many parts (256 MiB) is one PUT, because every part is a billed request


def segment_requests(size: int) -> int:
    """Billed requests for storing an object of `size` bytes: one PUT, or the begin, the parts and the completion."""
    return 1 if size <= PART_BYTES * SINGLE_PARTS else 2 + -(-size // PART_BYTES)


def check_key(key: str) -> None:
    """Raise InvalidRequest for a key that would leave the bucket, or would name different objects on different
    stores."""
    parts = key.split("/")
    if not key or "" in parts or "." in parts or ".." in parts or parts[0] == SYSTEM_DIRECTORY:
        raise InvalidRequest(f"object key {key!r}: empty, '.', '..' and {SYSTEM_DIRECTORY!r} are not allowed in it")
    if not key.isprintable():
        raise InvalidRequest(f"object key {key!r}: control characters are not allowed in it")
    if len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise InvalidRequest(f"object key {key[:64]!r}…: longer than {KEY_BYTES_MAX} bytes")
    if any(len(part.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX for part in parts):
        raise InvalidRequest(f"object key {key[:64]!r}…: a part is longer than {NAME_BYTES_MAX} bytes")


def check_range(key: str, start: int, length: int | None) -> None:
    """Check a range for `ObjectStore.get`: a length is positive, and a tail has no length."""
    assert length is None or length > 0, f"{key}: empty range"
    assert start >= 0 or length is None, f"{key}: a tail GET has no length"
    if (asked := -start if start < 0 else length) is not None and asked > GET_BYTES_MAX:
        raise InvalidRequest(f"GET {key}: {asked} bytes asked at once, at most {GET_BYTES_MAX}; read it in ranges")


def resolve_range(key: str, start: int, length: int | None, size: int) -> tuple[int, int]:
    """First byte and length of the answer for an object of `size` bytes. Raises InvalidRequest for a start beyond the
    end, or a length above the limit."""
    if start < 0:
        start = max(0, size + start)
    elif start >= size and (start or length is not None):
        raise InvalidRequest(f"GET {key}: range starts at {start}, but the object ends at {size}")
    given = size - start if length is None else min(length, size - start)
    if given > GET_BYTES_MAX:
        raise InvalidRequest(f"GET {key}: {given} bytes at once, at most {GET_BYTES_MAX}; read it in ranges")
    return start, given
