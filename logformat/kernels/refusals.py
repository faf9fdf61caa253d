"""Reasons why a kernel refuses a batch: numbers for kernels, texts for messages."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Reason(IntEnum):
    """Reason of a refusal. The kernels use the numbers; `text` is for messages."""

    CUT = 1
    LENGTH = 2
    MAGIC = 3
    CRC = 4
    OFFSETS = 5
    COUNT = 6
    CODEC = 7
    RECORD = 8
    VARINT = 9
    FIELD = 10
    RECORD_SIZE = 11
    DELTA = 12
    TIMESTAMP = 13
    HEADERS = 14
    TRAILING = 15

    @property
    def text(self) -> str:
        return _TEXTS[self]


_TEXTS: Final = {
    Reason.CUT: "too few bytes are left for a batch header",
    Reason.LENGTH: "its length is impossible or beyond the bytes that are there",
    Reason.MAGIC: "its magic is not 2",
    Reason.CRC: "the CRC does not match",
    Reason.OFFSETS: "its offsets are impossible or go back",
    Reason.COUNT: "it claims more records than it has offsets or bytes for",
    Reason.CODEC: "unknown compression codec",
    Reason.RECORD: "a record is cut short, or claims more bytes than are there",
    Reason.VARINT: "a varint is too long",
    Reason.FIELD: "a field claims a negative length, or more bytes than its record has",
    Reason.RECORD_SIZE: "a record's fields do not end where the record does",
    Reason.DELTA: "offset deltas do not grow, or leave the batch's range",
    Reason.TIMESTAMP: "a timestamp is out of range",
    Reason.HEADERS: "a record's headers are malformed",
    Reason.TRAILING: "bytes follow the last record",
}
