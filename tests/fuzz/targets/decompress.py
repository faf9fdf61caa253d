"""The four codecs: at most the cap comes out, memory stays near it, and the pipeline's fast ways give the same bytes.

Input: the codec (one byte), then the data. Oracle for what is honest: compressing what came out and reading it again.
"""

from __future__ import annotations

import lz4.frame
import zstandard

from logformat.compression import compress, decompress
from logformat.record_batch import Codec, CorruptBatch
from tests.fuzz.inputs import Cursor, memory_within
from thermocline.pipeline.decode.codecs import Decompressor

CAP = 1 << 20
# zstd asks for the window that its frame names (128 MiB at most), and a slice may become 8 MiB more than is left.
GROWTH_MAX = (1 << 27) + 24 * CAP
_CODECS = tuple(Codec)
_fast = Decompressor()


def seeds() -> list[bytes]:
    texts = (b"", b"a", b"hello, hello, hello " * 30, bytes(70_000), bytes(range(256)) * 3)
    made = [bytes([codec]) + compress(codec, text) for codec in Codec for text in texts]
    made.append(bytes([Codec.ZSTD]) + zstandard.ZstdCompressor(write_checksum=True).compress(texts[2]))
    made.append(bytes([Codec.ZSTD]) + zstandard.ZstdCompressor().compress(bytes(CAP + 1)))
    made.append(bytes([Codec.LZ4]) + lz4.frame.compress(texts[2], block_linked=True, content_checksum=True))
    made.append(bytes([Codec.GZIP]) + compress(Codec.GZIP, texts[1]) * 2)
    made.append(bytes([Codec.SNAPPY]) + b"\xff\xff\xff\xff\x0f" + bytes(9))
    return made


def run(data: bytes) -> None:
    cursor = Cursor(data)
    codec = _CODECS[cursor.number() % len(_CODECS)]
    packed = cursor.rest()
    with memory_within(GROWTH_MAX):
        out = _outcome(lambda: decompress(codec, packed, CAP))
        fast = _outcome(lambda: _fast.decompress(codec, memoryview(packed).cast("b"), CAP))  # as of an Arrow buffer
    assert out == fast, (codec, out is None, fast is None)
    if out is not None:
        assert len(out) <= CAP
        assert decompress(codec, compress(codec, out), CAP) == out


def _outcome(attempt: object) -> bytes | None:
    try:
        return bytes(attempt())  # type: ignore[operator]
    except CorruptBatch:
        return None
