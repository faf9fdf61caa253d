"""Loads, stores, copies and CRC steps on raw addresses, as numba intrinsics: one machine instruction each.

This is the only unchecked memory access of the project; kernels check the bounds before every call. Raw addresses are
used because array arguments to inlined helpers take four times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.core import config as _config
from numba.extending import intrinsic

cgutils: Final[Any] = _cgutils  # numba has no types for these two
config: Final[Any] = _config

_I8: Final = ir.IntType(8)
_I32: Final = ir.IntType(32)
_I64: Final = ir.IntType(64)


def _load(kind: ir.IntType, *, swap: bool = False, signed: bool = True) -> Any:
    """An intrinsic (address) → int64: loads `kind`, big-endian when `swap`, and extends it."""

    def build(_typing: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            loaded = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            if swap:
                loaded = builder.bswap(loaded)
            if kind.width == 64:
                return loaded
            return builder.sext(loaded, _I64) if signed else builder.zext(loaded, _I64)

        return types.int64(types.int64), generate

    return intrinsic(build)


def _store(kind: ir.IntType, *, swap: bool = False) -> Any:
    """An intrinsic (address, value): stores the low bits of an int64, big-endian when `swap`."""

    def build(_typing: Any, address: Any, value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value = arguments[1] if kind.width == 64 else builder.trunc(arguments[1], kind)
            if swap:
                value = builder.bswap(value)
            builder.store(value, builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return _context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return intrinsic(build)


def _build_copy(_typing: Any, target: Any, source: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(address, _I8.as_pointer()) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _crc_step(name: str, kind: ir.IntType) -> Any:
    """An intrinsic (crc, data) → crc over `kind`'s bytes, by the machine's own CRC32C instruction `name`."""

    def build(_typing: Any, crc: Any, data: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            # x86 returns the CRC of its 8-byte step in 64 bits, other machines in 32.
            crc_type = _I64 if name.startswith("llvm.x86") and kind.width == 64 else _I32
            declared = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(crc_type, (crc_type, kind if kind.width == 64 else _step_type)), name
            )
            crc, data = arguments
            if crc_type.width == 32:
                crc = builder.trunc(crc, _I32)
            if kind.width != 64:
                data = builder.trunc(data, _step_type)
            crc = builder.call(declared, (crc, data))
            return crc if crc_type.width == 64 else builder.zext(crc, _I64)

        _step_type = _I8 if name.startswith("llvm.x86") else _I32
        return types.int64(types.int64, types.int64), generate

    return intrinsic(build)


def _crc_instructions() -> tuple[str, str] | None:
    """LLVM's names of the CRC32C steps over 8 bytes and over one, or None where the CPU has none."""
    features = llvm.get_host_cpu_features()
    if config.CPU_NAME or config.CPU_FEATURES:
        return None  # the target is not this CPU
    if features.get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64", "llvm.x86.sse42.crc32.32.8"
    if features.get("crc"):
        return "llvm.aarch64.crc32cx", "llvm.aarch64.crc32cb"
    return None


load_u8: Final[Callable[[int], int]] = _load(_I8, signed=False)
load_be16: Final[Callable[[int], int]] = _load(ir.IntType(16), swap=True)
load_be32: Final[Callable[[int], int]] = _load(_I32, swap=True)
load_be32_unsigned: Final[Callable[[int], int]] = _load(_I32, swap=True, signed=False)
load_be64: Final[Callable[[int], int]] = _load(_I64, swap=True)
load_i32: Final[Callable[[int], int]] = _load(_I32)
load_i64: Final[Callable[[int], int]] = _load(_I64)
store_u8: Final[Callable[[int, int], None]] = _store(_I8)
store_i32: Final[Callable[[int, int], None]] = _store(_I32)
store_i64: Final[Callable[[int, int], None]] = _store(_I64)
store_be16: Final[Callable[[int, int], None]] = _store(ir.IntType(16), swap=True)
store_be32: Final[Callable[[int, int], None]] = _store(_I32, swap=True)
store_be64: Final[Callable[[int, int], None]] = _store(_I64, swap=True)
copy: Final[Callable[[int, int, int], None]] = cast(Any, intrinsic(_build_copy))  # (target, source, bytes)


def _get_word(block: int, place: int) -> int:
    return load_i64(block + 8 * place)


def _put_word(block: int, place: int, value: int) -> None:
    store_i64(block + 8 * place, value)


word: Final[Callable[[int, int], int]] = numba.njit(nogil=True, forceinline=True)(_get_word)  # (block, place) of int64s
put: Final[Callable[[int, int, int], None]] = numba.njit(nogil=True, forceinline=True)(_put_word)

_INSTRUCTIONS: Final = _crc_instructions()
HAS_CRC: Final = _INSTRUCTIONS is not None
_names: Final = _INSTRUCTIONS or ("", "")
crc_step_8: Final[Callable[[int, int], int]] = _crc_step(_names[0], _I64)
crc_step_1: Final[Callable[[int, int], int]] = _crc_step(_names[1], _I8)
