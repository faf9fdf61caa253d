"""Maps a group or transactional id to its partition of an internal topic. Pure."""

from __future__ import annotations


def partition_of(key: str, partitions: int) -> int:
    """Kafka's partition of a group or transactional id: the magnitude of Java's String.hashCode (Utils.abs), modulo
    `partitions`."""
    value = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    # As Utils.abs: the magnitude as an int32; 0 for the least int32, which has no magnitude.
    magnitude = value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF
    return magnitude % partitions
