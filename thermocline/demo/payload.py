"""What the demo writes: values that can be checked byte by byte without keeping them, and what Spark must find of them.

Owns the sizes of the demo. Always true: everything here is computed from sequence numbers, never read back. Must not
know brokers or Spark.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from typing import NamedTuple

TOPIC = "events"
PARTITIONS = 4
VALUE_BYTES = 4096
RECORDS = 250_000  # 1 GB in all
KILL_AFTER = 100_000  # records produced when the broker is killed
BLOCK_BYTES = 1 << 20
OFFSET_WEIGHT = 1009  # a sum over 62 500 offsets of 32 bits times this stays below 2^63


class Failed(Exception):
    """The demo saw something it must not see."""


class Sums(NamedTuple):
    """What a partition's rows add up to; other bytes, or other offsets for the same bytes, give other sums."""

    rows: int
    first_offset: int
    last_offset: int
    crc32: int  # the sum of crc32(value) * (offset % OFFSET_WEIGHT + 1)
    md5: int  # the sum of the last 8 bytes of md5(value): DuckDB has no CRC


class Payload:
    """Values that can be checked byte by byte without keeping them: a slice of one random block per sequence number."""

    def __init__(self) -> None:
        self._block = random.Random(2026).randbytes(BLOCK_BYTES + VALUE_BYTES)

    def value(self, sequence: int) -> bytes:
        at = sequence * 7919 % BLOCK_BYTES
        return sequence.to_bytes(8, "big") + self._block[at : at + VALUE_BYTES - 8]

    def sums(self) -> list[Sums]:
        """Of every partition, for all `RECORDS`: sequence number `n` is offset `n // PARTITIONS`."""
        return [self._sums(partition) for partition in range(PARTITIONS)]

    def _sums(self, partition: int) -> Sums:
        crc32 = md5 = 0
        sequences = range(partition, RECORDS, PARTITIONS)
        for offset, sequence in enumerate(sequences):
            value = self.value(sequence)
            crc32 += zlib.crc32(value) * (offset % OFFSET_WEIGHT + 1)
            md5 += int.from_bytes(hashlib.md5(value, usedforsecurity=False).digest()[8:], "little")
        return Sums(len(sequences), 0, len(sequences) - 1, crc32, md5)
