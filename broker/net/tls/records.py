"""Records of one TLS session, by their plaintext headers: the end of each record, and the amount of data that it can
hold. Pure.

A KeyUpdate of TLS 1.3 costs a client 27 bytes and OpenSSL 40 µs to derive keys. OpenSSL has no limit, and one call
processes all received KeyUpdates. A client without a login could thus block the loop with a megabyte a second. Python's
ssl does not report these messages. In TLS 1.3 these messages show as records that brought less data than their length
allows. In TLS 1.2 the header shows records without data (renegotiations, alerts). Honest clients send few such records:
a KeyUpdate after 2^24 records or more, and the alert at the end. Padding would also count, but no Kafka client pads.

Hot path: 0.6 µs a record.
"""

from __future__ import annotations

import struct
from typing import Final

RECORDS_AT_ONCE: Final = 64
"""Records decrypted in one call; KeyUpdates take 3 ms."""

_WASTED_BYTES_MAX: Final = 1024
"""Wasted bytes allowed in any session: 200 KeyUpdates, 8 ms."""
_WASTED_SHARE_SHIFT: Final = 14
"""Further wasted bytes allowed: one for each 16 KiB of data."""

_HEADER: Final = struct.Struct(">BHH")  # type, version, length
_DATA: Final = 23
_OVERHEAD_1_3: Final = 17  # one byte for the type, and the authentication tag; the same in every suite


class Records:
    """The records of an established session, from the first record on."""

    __slots__ = ("_begun", "_left", "_of_record", "_overhead", "_possible", "_wasted")

    def __init__(self, version: str | None) -> None:
        self._overhead = _OVERHEAD_1_3 if version == "TLSv1.3" else None
        self._begun = b""  # the received part of a header
        self._left = 0  # bytes of the current record that are not received yet
        self._of_record = 0  # data that this record can hold; negative: it holds no data, and its bytes count as wasted
        self._possible = 0  # data that the complete records can hold
        self._wasted = 0

    def take(self, data: memoryview) -> int:
        """Count the next bytes: the rest of the present record and at most `RECORDS_AT_ONCE` records. Returns their
        number."""
        at, end, count = 0, len(data), 0
        while at < end and count <= RECORDS_AT_ONCE:
            if not self._left:
                if not self._begun and at + _HEADER.size <= end:
                    kind, _, length = _HEADER.unpack_from(data, at)
                    at += _HEADER.size
                else:
                    more = data[at : at + _HEADER.size - len(self._begun)]
                    self._begun += bytes(more)
                    at += len(more)
                    if len(self._begun) < _HEADER.size:
                        break
                    kind, _, length = _HEADER.unpack(self._begun)
                    self._begun = b""
                self._left = length
                self._of_record = self._room(kind, length)
            taken = min(self._left, end - at)
            at += taken
            self._left -= taken
            if not self._left:
                count += 1
                if self._of_record >= 0:
                    self._possible += self._of_record
                else:
                    self._wasted -= self._of_record
        return at

    def _room(self, kind: int, length: int) -> int:
        if kind != _DATA:
            return -length - 1
        return 0 if self._overhead is None else max(0, length - self._overhead)

    def are_wasted(self, decrypted: int) -> bool:
        """Whether the complete records wasted more bytes than any client would. `decrypted`: bytes of data that these
        records contained."""
        wasted = self._wasted if self._overhead is None else self._wasted + self._possible - decrypted
        return wasted > _WASTED_BYTES_MAX + (decrypted >> _WASTED_SHARE_SHIFT)
