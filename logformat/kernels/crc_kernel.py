"""CRC32C over raw addresses, for kernels: three interleaved streams of the CPU instruction, or a table.

A test checks that the result equals `crc32c.crc32c`. A kernel needs no Python call per batch, so 170-byte batches are
checked ten times as fast. Source: Castagnoli polynomial 0x1EDC6F41 reflected (RFC 3720 B.4); interleaving after M.
Adler's "crc32c.c".
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from logformat.kernels.raw_memory import HAS_CRC, crc_step_1, crc_step_8, load_i64, load_u8

_POLYNOMIAL: Final = 0x82F63B78
_ONES: Final = 0xFFFFFFFF
# Bytes of each of the three streams: the instruction has a latency of 3 cycles and a throughput of one per cycle.
_LONG: Final = 4096
_SHORT: Final = 256


def _byte_table() -> NDArray[np.int64]:
    crc = np.arange(256, dtype=np.int64)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ _POLYNOMIAL, crc >> 1)
    return crc


_TABLE: Final = _byte_table()


def _after_zeros(size: int) -> NDArray[np.int64]:
    """Flat [4][256]: the value of each byte of a CRC register after `size` zero bytes (CRCs are linear)."""
    register = (np.arange(256, dtype=np.int64)[None, :] << (8 * np.arange(4, dtype=np.int64)[:, None])).reshape(-1)
    # Doubling: the operator over 2n zeros is the operator over n applied to itself.
    operator: NDArray[np.int64] = _TABLE[register & 0xFF] ^ (register >> 8)
    while size > 1:
        assert size % 2 == 0, size
        operator = (
            operator[operator & 0xFF]
            ^ operator[256 + (operator >> 8 & 0xFF)]
            ^ operator[512 + (operator >> 16 & 0xFF)]
            ^ operator[768 + (operator >> 24)]
        )
        size //= 2
    return operator


_LONG_ZEROS: Final = _after_zeros(_LONG)
_SHORT_ZEROS: Final = _after_zeros(_SHORT)


def _crc_by_instruction(at: int, end: int) -> int:
    crc = _ONES
    while end - at >= 3 * _LONG:
        second = third = 0
        for place in range(at, at + _LONG, 8):
            crc = crc_step_8(crc, load_i64(place))
            second = crc_step_8(second, load_i64(place + _LONG))
            third = crc_step_8(third, load_i64(place + 2 * _LONG))
        crc = _shift(_LONG_ZEROS, _shift(_LONG_ZEROS, crc) ^ second) ^ third
        at += 3 * _LONG
    while end - at >= 3 * _SHORT:
        second = third = 0
        for place in range(at, at + _SHORT, 8):
            crc = crc_step_8(crc, load_i64(place))
            second = crc_step_8(second, load_i64(place + _SHORT))
            third = crc_step_8(third, load_i64(place + 2 * _SHORT))
        crc = _shift(_SHORT_ZEROS, _shift(_SHORT_ZEROS, crc) ^ second) ^ third
        at += 3 * _SHORT
    while end - at >= 8:
        crc = crc_step_8(crc, load_i64(at))
        at += 8
    while at < end:
        crc = crc_step_1(crc, load_u8(at))
        at += 1
    return crc ^ _ONES


def _crc_by_table(at: int, end: int) -> int:
    crc = _ONES
    while at < end:
        crc = _TABLE[(crc ^ load_u8(at)) & 0xFF] ^ (crc >> 8)
        at += 1
    return crc ^ _ONES


def _shift_by(zeros: NDArray[np.int64], crc: int) -> int:
    low = zeros[crc & 0xFF] ^ zeros[256 + (crc >> 8 & 0xFF)]
    high = zeros[512 + (crc >> 16 & 0xFF)] ^ zeros[768 + (crc >> 24 & 0xFF)]
    return int(low ^ high)


_shift: Final = numba.njit(nogil=True)(_shift_by)
crc_of: Final = numba.njit(nogil=True)(_crc_by_instruction if HAS_CRC else _crc_by_table)  # (address, its end) → CRC
