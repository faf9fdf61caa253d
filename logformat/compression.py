"""The four codecs of record batches.

The caller, not the data, sets the bounds on decompression. `decompress` returns at most `bytes_max` bytes and never
more than RATIO_MAX times its input (beyond a floor). It allocates at most a few MiB more. It raises CorruptBatch for
truncated data, trailing bytes or another codec. Declared sizes are not trusted: an attacker chooses them in zstd frames
and snappy preambles, and `zstandard` allocates a declared size even above its own limit. Source: Kafka's compress
package; xerial's snappy framing; docs/design/failures.md, "compression bombs".
"""

from __future__ import annotations

import struct
import traceback
import zlib
from typing import Final, NamedTuple

import cramjam
import lz4.frame
import zstandard

from logformat.record_batch import Buffer, Codec, CorruptBatch

RATIO_FLOOR_BYTES: Final = 16 << 20  # an output below this size may have any ratio
RATIO_MAX: Final = 1100  # just above gzip's greatest ratio (1 032:1); zstd reaches 32 768:1
_ZSTD_BLOCK_RATIO_MAX: Final = 32768  # a 4-byte run-length block stands for 128 KiB
_ZSTD_INPUT_MIN: Final = 256  # least bytes fed at once; the output exceeds the cap by at most 8 MiB
_ZSTD_WINDOW_MAX: Final = 1 << 27  # zstd's decoders accept this window by default, and its highest level needs it
_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_INPUT_MIN: Final = 1024  # first bytes fed at once; doubled for each further slice of a member
_GZIP_INPUT_MAX: Final = 1 << 20
_SNAPPY_RATIO_MAX: Final = 22  # a 3-byte copy stands for at most 64 bytes

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = struct.Struct(">8sii")
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_INT32: Final = struct.Struct(">i")


_LZ4_DEFAULT: Final = 9  # Kafka's default; stands for lz4's fast compressor, not for its level 9
_LZ4_LEVEL_MAX: Final = 16  # the highest level of the frame library; also used for Kafka's level 17


class Compression(NamedTuple):
    """A codec and its level, in the units of Kafka's compression.{gzip,lz4,zstd}.level; snappy has none."""

    codec: Codec
    level: int = 0


class DecompressedTooLarge(CorruptBatch):
    """The data would decompress to more than the caller allows."""


def decompress(codec: Codec, data: Buffer, bytes_max: int) -> bytes:
    """The whole of `data`, decompressed. Raises CorruptBatch, DecompressedTooLarge above the cap."""
    view = memoryview(data).cast("B")  # a view may hold signed bytes, as Arrow's do
    cap = min(bytes_max, max(RATIO_FLOOR_BYTES, RATIO_MAX * len(view)))
    try:
        return _decompressed(codec, view, cap)
    except CorruptBatch as error:
        # Otherwise the error's stack frames would hold the output so far (up to 128 MiB) as long as the error is
        # referenced.
        traceback.clear_frames(error.__traceback__)
        raise


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compress like Kafka's Java client: xerial snappy, lz4 frames of independent blocks without content size."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        compressor = zlib.compressobj(wbits=_GZIP)
        return compressor.compress(data) + compressor.flush()
    if codec is Codec.SNAPPY:
        return _snappy_xerial(data)
    if codec is Codec.LZ4:
        framed: bytes = lz4.frame.compress(data, block_linked=False, store_size=False)
        return framed
    # The frames have no content size, like those of a streaming producer: readers must not need it.
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def compress_at(compression: Compression, data: Buffer) -> bytes:
    """`compress` at a level."""
    codec, level = compression
    if codec is Codec.GZIP:
        compressor = zlib.compressobj(level, wbits=_GZIP)
        return compressor.compress(data) + compressor.flush()
    if codec is Codec.LZ4:
        lz4_level = 0 if level == _LZ4_DEFAULT else min(level, _LZ4_LEVEL_MAX)
        framed: bytes = lz4.frame.compress(data, compression_level=lz4_level, block_linked=False, store_size=False)
        return framed
    if codec is Codec.ZSTD:
        return zstandard.ZstdCompressor(level=level, write_content_size=False).compress(data)
    return compress(codec, data)


def _decompressed(codec: Codec, data: memoryview, cap: int) -> bytes:
    if codec is Codec.NONE:
        out = bytes(data)
    elif codec is Codec.GZIP:
        out = _gunzip(data, cap)
    elif codec is Codec.SNAPPY:
        out = _unsnappy(data, cap)
    elif codec is Codec.LZ4:
        out = _unlz4(data, cap)
    else:
        out = _unzstd(data, cap)
    if len(out) > cap:
        raise DecompressedTooLarge(f"records decompress to more than {cap} bytes")
    return out


def _gunzip(data: memoryview, cap: int) -> bytes:
    """Decompress gzip. The input is fed in slices, small ones first, because zlib copies the input beyond a member's
    end, and 1 MiB may have 50 000 members."""
    parts: list[bytes] = []
    left = cap + 1
    pos = 0
    try:
        while pos < len(data) and left > 0:  # members may be concatenated (RFC 1952)
            member = zlib.decompressobj(wbits=_GZIP)
            step = _GZIP_INPUT_MIN
            while not member.eof and left > 0:
                if pos >= len(data):
                    raise CorruptBatch("gzip data is cut short")
                piece = data[pos : pos + step]
                parts.append(member.decompress(piece, left))
                left -= len(parts[-1])
                pos += len(piece) - len(member.unused_data)
                step = min(2 * step, _GZIP_INPUT_MAX)
    except zlib.error as error:
        raise CorruptBatch(f"the data is not gzip: {error}") from None
    if not parts:
        raise CorruptBatch("gzip data is empty")
    return b"".join(parts)


def _unlz4(data: memoryview, cap: int) -> bytes:
    frame = lz4.frame.LZ4FrameDecompressor()
    try:
        out: bytes = frame.decompress(data, max_length=cap + 1)
    except (RuntimeError, EOFError) as error:
        raise CorruptBatch(f"the data is not lz4: {error}") from None
    if len(out) <= cap and (not frame.eof or frame.unused_data):
        raise CorruptBatch("lz4 data is cut short or followed by other bytes")
    return out


def _unzstd(data: memoryview, cap: int) -> bytes:
    """Decompress zstd. The input is fed in small slices, so that the output of a slice exceeds the cap by little."""
    parts: list[bytes] = []
    left = cap + 1
    pos = 0
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    try:
        while pos < len(data) and left > 0:
            frame = context.decompressobj()
            while not frame.eof and pos < len(data) and left > 0:
                step = max(_ZSTD_INPUT_MIN, left // _ZSTD_BLOCK_RATIO_MAX)
                parts.append(frame.decompress(data[pos : pos + step]))
                left -= len(parts[-1])
                pos += step
            if frame.eof:  # frames may be concatenated; input beyond this frame belongs to the next
                pos = min(pos, len(data)) - len(frame.unused_data)
            elif left > 0:
                raise CorruptBatch("zstd data is cut short")
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"the data is not zstd: {error}") from None
    if not parts:
        raise CorruptBatch("zstd data is empty")
    del frame, context  # they hold a window as large as the output, and the join below holds the output twice
    return b"".join(parts)


def _unsnappy(data: memoryview, cap: int) -> bytes:
    """Decompress snappy: xerial's framing (Java and Python clients) or one raw block (librdkafka)."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnappy_block(data, cap)
    parts: list[bytes] = []
    left = cap
    pos = _XERIAL_HEADER.size
    if len(data) < pos:
        raise CorruptBatch("xerial snappy header is cut short")
    while pos < len(data):
        if len(data) - pos < _INT32.size:
            raise CorruptBatch("xerial snappy block is cut short")
        (size,) = _INT32.unpack_from(data, pos)
        pos += _INT32.size
        if size <= 0 or size > len(data) - pos:
            raise CorruptBatch(f"xerial snappy block claims {size} bytes, but only {len(data) - pos} are there")
        parts.append(_unsnappy_block(data[pos : pos + size], left))
        left -= len(parts[-1])
        pos += size
    return b"".join(parts)


def _unsnappy_block(block: memoryview, cap: int) -> bytes:
    claimed = _snappy_preamble(block)
    if claimed > cap:
        raise DecompressedTooLarge(f"snappy block claims {claimed} bytes, but only {cap} are allowed")
    if claimed > _SNAPPY_RATIO_MAX * len(block):
        raise CorruptBatch(f"snappy block of {len(block)} bytes cannot hold the {claimed} it claims")
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"the data is not snappy: {error}") from None


def _snappy_preamble(block: memoryview) -> int:
    """The uncompressed length that a raw block declares: an unsigned varint of at most 32 bits."""
    value = 0
    for place, byte in enumerate(block[:5]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value
    raise CorruptBatch("the data is not snappy: the length in front is missing")


def _snappy_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1)]
    for pos in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[pos : pos + _XERIAL_BLOCK_BYTES]))
        parts.append(_INT32.pack(len(block)) + block)
    return b"".join(parts)
