"""The demos' records: values computed from their numbers, so that every byte can be checked without keeping them."""

from __future__ import annotations

import hashlib
import random
import zlib
from typing import NamedTuple

TOPIC = "events"
PARTITIONS = 4
VALUE_BYTES = 4096
RECORDS = 250_000  # 1 GB in all
KILL_AFTER = 100_000  # records produced before the broker is killed
BLOCK_BYTES = 1 << 20
OFFSET_WEIGHT = 1009  # a sum over 62 500 offsets of 32 bits times this stays below 2^63


class Failed(Exception):
    pass


class Records:
    """Record `n` has value `n`: a slice of one random block.

    It is in partition `n % partitions`, at offset `n // partitions`.
    """

    def __init__(self, topic: str, partitions: int, value_bytes: int, block_bytes: int, seed: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.value_bytes = value_bytes
        self._block_bytes = block_bytes
        self._block = random.Random(seed).randbytes(block_bytes + value_bytes)

    def value(self, number: int) -> bytes:
        at = number * 7919 % self._block_bytes
        return number.to_bytes(8, "big") + self._block[at : at + self.value_bytes - 8]


class Bulk(Records):
    """The history of the cluster demo: `count` records of 64 KiB in six partitions."""

    TOPIC, PARTITIONS, VALUE_BYTES = "history", 6, 64 << 10

    def __init__(self, count: int) -> None:
        super().__init__(self.TOPIC, self.PARTITIONS, self.VALUE_BYTES, 4 << 20, 16)
        self.count = count

    @property
    def size(self) -> int:
        return self.count * self.VALUE_BYTES

    def sums(self) -> list[int]:
        """CRC-32 of each partition's values in order."""
        found = [0] * self.PARTITIONS
        for number in range(self.count):
            found[number % self.PARTITIONS] = zlib.crc32(self.value(number), found[number % self.PARTITIONS])
        return found


class Sums(NamedTuple):
    """Sums of a partition's rows; other bytes, or other offsets for the same bytes, give other sums."""

    rows: int
    first_offset: int
    last_offset: int
    crc32: int  # the sum of crc32(value) * (offset % OFFSET_WEIGHT + 1)
    md5: int  # the sum of the last 8 bytes of md5(value), because DuckDB has no CRC


class Payload(Records):
    """The records of the first demo, and the sums that Spark and DuckDB must find."""

    def __init__(self) -> None:
        super().__init__(TOPIC, PARTITIONS, VALUE_BYTES, BLOCK_BYTES, 2026)

    def sums(self) -> list[Sums]:
        return [self._sums(partition) for partition in range(PARTITIONS)]

    def _sums(self, partition: int) -> Sums:
        crc32 = md5 = 0
        sequences = range(partition, RECORDS, PARTITIONS)
        for offset, sequence in enumerate(sequences):
            value = self.value(sequence)
            crc32 += zlib.crc32(value) * (offset % OFFSET_WEIGHT + 1)
            md5 += int.from_bytes(hashlib.md5(value, usedforsecurity=False).digest()[8:], "little")
        return Sums(len(sequences), 0, len(sequences) - 1, crc32, md5)
