"""The partition of a group or transactional id, beside Java's loop."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.internal_topics.partitioning import partition_of
from broker.wire.primitives import STRING_BYTES_MAX


def java_partition(key: str, partitions: int) -> int:
    """`Utils.abs(key.hashCode()) % partitions`."""
    value = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


@given(st.text(max_size=40), st.integers(1, 1 << 31), st.sampled_from([1, 1, 1, 60, 700]))
def test_ids_have_kafkas_partition(key: str, partitions: int, times: int) -> None:
    assert partition_of(key * times, partitions) == java_partition(key * times, partitions)


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 2048, 2049, STRING_BYTES_MAX])
def test_blocks_are_joined(length: int) -> None:
    key = "".join(chr(33 + at % 90) for at in range(length))
    assert partition_of(key, 1 << 31) == java_partition(key, 1 << 31)


def test_the_least_number_of_java_has_no_magnitude() -> None:
    key = "polygenelubricants"  # its hashCode is -2^31
    assert partition_of(key, 50) == java_partition(key, 50) == 0


def test_the_longest_id_takes_little_time() -> None:
    """Found by a penetration test: it took 4 ms and more, and FindCoordinator names a thousand before it yields."""
    key = "a" * STRING_BYTES_MAX
    took_s = []
    for of in (partition_of, java_partition):
        began_s = time.process_time()
        for _ in range(20):
            of(key, 50)
        took_s.append(time.process_time() - began_s)
    assert 2 * took_s[0] < took_s[1]
