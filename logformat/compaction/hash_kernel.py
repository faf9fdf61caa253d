"""SipHash-2-4 with 128 bits (Aumasson, Bernstein). Its secret seed prevents a client from finding keys that collide.

Kernels compute with signed words that wrap around, so each rotation masks the bits that an arithmetic shift brings
in."""

from __future__ import annotations

from typing import Final

from logformat.kernels.raw_memory import load_i64, load_u8
from logformat.kernels.record_kernel import inlined

_V0: Final = 0x736F6D6570736575
_V1: Final = 0x646F72616E646F6D
_V2: Final = 0x6C7967656E657261
_V3: Final = 0x7465646279746573


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 += v1
    v1 = (v1 << 13) | ((v1 >> 51) & 0x1FFF)
    v1 ^= v0
    v0 = (v0 << 32) | ((v0 >> 32) & 0xFFFFFFFF)
    v2 += v3
    v3 = (v3 << 16) | ((v3 >> 48) & 0xFFFF)
    v3 ^= v2
    v0 += v3
    v3 = (v3 << 21) | ((v3 >> 43) & 0x1FFFFF)
    v3 ^= v0
    v2 += v1
    v1 = (v1 << 17) | ((v1 >> 47) & 0x1FFFF)
    v1 ^= v2
    v2 = (v2 << 32) | ((v2 >> 32) & 0xFFFFFFFF)
    return v0, v1, v2, v3


_sip: Final = inlined(_round)


def _siphash(at: int, size: int, k0: int, k1: int) -> tuple[int, int]:
    v0, v1, v2, v3 = k0 ^ _V0, k1 ^ _V1 ^ 0xEE, k0 ^ _V2, k1 ^ _V3
    whole = at + (size & ~7)
    for place in range(at, whole, 8):
        word = load_i64(place)
        v3 ^= word
        v0, v1, v2, v3 = _sip(v0, v1, v2, v3)
        v0, v1, v2, v3 = _sip(v0, v1, v2, v3)
        v0 ^= word
    word = (size & 0xFF) << 56
    for byte in range(size & 7):
        word |= load_u8(whole + byte) << (8 * byte)
    v3 ^= word
    v0, v1, v2, v3 = _sip(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= 0xEE
    for _ in range(4):
        v0, v1, v2, v3 = _sip(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= 0xDD
    for _ in range(4):
        v0, v1, v2, v3 = _sip(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


siphash128: Final = inlined(_siphash)
"""(address, bytes, key's two words) → the hash's two words. Little-endian machines give the published values."""
