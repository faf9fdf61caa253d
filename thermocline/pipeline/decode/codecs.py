"""Fast decompression of record batches: one attempt per batch, with a guessed size. If the attempt fails (several
frames, a wrong guess, damage), `logformat.compression` decompresses.

An attempt allocates no more than `logformat.compression` would, for any declared size. Its result equals that of
`logformat.compression.decompress` (a test checks).

GB/s of output on one core, for 16 KiB and 1 MiB of events (in parentheses: `logformat.compression`): zstd 1.0 and 1.5
(0.3 and 1.1), lz4 2.7 and 3.2 (2.2 and 1.6), gzip by isal 1.0 and 1.3 (0.55 and 0.5), snappy 2.0 and 2.4 (1.6 and 1.7).
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import cramjam
import lz4.frame
import pyarrow as pa
import zstandard

from logformat.compression import RATIO_FLOOR_BYTES, RATIO_MAX, decompress
from logformat.record_batch import Buffer, Codec

_WINDOW_MAX: Final = 1 << 27  # as in logformat.compression
_GZIP_WBITS: Final = 31
_GZIP_HEADER_BYTES: Final = 10
_GZIP_RESERVED: Final = 0xE0  # flags that must be zero (RFC 1952, 2.3.1.2): isal ignores them, zlib refuses
_SLACK_BYTES: Final = 16 << 10
_HEADROOM: Final = 1.25  # a guess is this multiple of the greatest ratio so far
_RATIO_FIRST: Final = 8.0
_RATIO_DECAY: Final = 0.995  # per batch, so that one high ratio does not raise allocations for ever
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_RUN: Final = 1  # block type: one byte, repeated
_ZSTD_CHECKSUM: Final = 4  # frame header descriptor
_SNAPPY_RATIO_MAX: Final = 22
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16


def _fast_gzip() -> ModuleType | None:
    try:
        from isal import isal_zlib
    except ImportError:
        return None
    module: ModuleType = isal_zlib
    return module


_isal: Final = _fast_gzip()


class Decompressor:
    """Reuses codec contexts, and guesses sizes from the ratios so far. One per thread."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MAX)
        self._ratios = dict.fromkeys((Codec.ZSTD, Codec.LZ4), _RATIO_FIRST)

    def decompress(self, codec: Codec, data: memoryview, bytes_max: int) -> Buffer | pa.Buffer:
        """The whole of `data`, decompressed. Raises CorruptBatch, or DecompressedTooLarge beyond `bytes_max`."""
        data = data.cast("B")  # an Arrow buffer's view holds signed bytes
        cap = min(bytes_max, max(RATIO_FLOOR_BYTES, RATIO_MAX * len(data)))
        out: Buffer | pa.Buffer | None = None
        if codec is Codec.ZSTD:
            out = self._unzstd(data, min(cap, self._guess(codec, len(data))))
        elif codec is Codec.LZ4:
            out = _unlz4(data, min(cap, self._guess(codec, len(data))))
        elif codec is Codec.SNAPPY:
            out = _unsnappy(data, cap)
        elif codec is Codec.GZIP:
            out = _gunzip(data, cap)
        if out is None:
            out = decompress(codec, data, bytes_max)
        if codec in self._ratios:
            self._ratios[codec] = max(self._ratios[codec] * _RATIO_DECAY, len(out) / max(1, len(data)))
        return out

    def _guess(self, codec: Codec, size: int) -> int:
        return int(size * self._ratios[codec] * _HEADROOM) + _SLACK_BYTES

    def _unzstd(self, data: memoryview, size_max: int) -> bytes | None:
        """One frame of at most `size_max` bytes. The declared size is checked first, because it would be allocated."""
        try:
            if zstandard.frame_content_size(data) > size_max or not _is_one_zstd_frame(data):
                return None
            return self._zstd.decompress(data, max_output_size=size_max) or None
        except zstandard.ZstdError:
            return None


def _is_one_zstd_frame(data: memoryview) -> bool:
    """Whether the frame ends at the end of the data; one-shot decompression does not check that (RFC 8878, 3.1.1)."""
    if bytes(data[:4]) != _ZSTD_MAGIC:
        return False
    at = zstandard.frame_header_size(data)
    last = 0
    while not last:
        if len(data) - at < 3:
            return False
        block = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        last = block & 1
        at += 3 + (1 if block >> 1 & 3 == _ZSTD_RUN else block >> 3)
    if data[4] & _ZSTD_CHECKSUM:
        at += 4
    return at == len(data)


def _unlz4(data: memoryview, size_max: int) -> bytes | None:
    frame = lz4.frame.LZ4FrameDecompressor()
    try:
        out: bytes = frame.decompress(data, max_length=size_max)
    except (RuntimeError, EOFError):
        return None
    return out if frame.eof and not frame.unused_data else None


def _gunzip(data: memoryview, cap: int) -> bytes | None:
    if _isal is None or len(data) < _GZIP_HEADER_BYTES or data[3] & _GZIP_RESERVED:
        return None
    member = _isal.decompressobj(wbits=_GZIP_WBITS)
    try:
        out: bytes = member.decompress(data, cap + 1)
    except _isal.error:
        return None
    return out if member.eof and not member.unused_data and len(out) <= cap else None


def _unsnappy(data: memoryview, cap: int) -> pa.Buffer | None:
    """Xerial's blocks, or one raw block, into one buffer. Trusts declared sizes up to `cap`."""
    blocks = _snappy_blocks(data)
    total = sum(claimed for _, claimed in blocks)
    if not blocks or total > cap:
        return None
    out = pa.allocate_buffer(total)
    target = memoryview(out)
    at = 0
    try:
        for block, claimed in blocks:
            if cramjam.snappy.decompress_raw_into(block, target[at : at + claimed]) != claimed:
                return None
            at += claimed
    except cramjam.DecompressionError:
        return None
    return out


def _snappy_blocks(data: memoryview) -> list[tuple[memoryview, int]]:
    """(block, declared size) of each; empty when a block is malformed."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _with_claim(data)
    blocks: list[tuple[memoryview, int]] = []
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        block = _with_claim(data[at : at + size]) if 0 < size <= len(data) - at else []
        if not block:
            return []
        blocks += block
        at += size
    return blocks


def _with_claim(block: memoryview) -> list[tuple[memoryview, int]]:
    claimed = 0
    for place, byte in enumerate(block[:5]):
        claimed |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return [(block, claimed)] if claimed <= _SNAPPY_RATIO_MAX * len(block) else []
    return []
