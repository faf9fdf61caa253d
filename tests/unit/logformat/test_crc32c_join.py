"""The CRC of a whole from those of its parts."""

from __future__ import annotations

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from logformat.crc32c_join import join_crc32c


@given(st.binary(max_size=5000), st.binary(max_size=5000))
def test_a_joined_crc_is_that_of_the_joined_bytes(first: bytes, second: bytes) -> None:
    """Also of empty parts."""
    assert join_crc32c(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_lengths_of_chunks_and_of_their_rests() -> None:
    """4 MiB, and what is left of a segment behind the last whole chunk."""
    for size in (4 << 20, (4 << 20) - 1, 999_983):
        second = bytes(n % 251 for n in range(251)) * (size // 251 + 1)
        assert join_crc32c(crc32c(b"log"), crc32c(second[:size]), size) == crc32c(b"log" + second[:size])
