"""The hash of keys against the published vectors of SipHash-2-4 with 128 bits."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from logformat.compaction.hash_kernel import siphash128

KEY = bytes(range(16))
VECTORS = {  # of the reference implementation (vectors_sip128): input 00 01 02 …, by its length
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
}


@numba.njit
def _hash(at, size, k0, k1):  # type: ignore[no-untyped-def]
    return siphash128(at, size, k0, k1)


@pytest.mark.parametrize("size", VECTORS)
def test_published_vectors(size: int) -> None:
    data = np.arange(size + 1, dtype=np.uint8)
    words = [int.from_bytes(KEY[at : at + 8], "little", signed=True) for at in (0, 8)]
    made = _hash(data.ctypes.data, size, *words)
    assert b"".join(int(word).to_bytes(8, "little", signed=True) for word in made).hex() == VECTORS[size]
