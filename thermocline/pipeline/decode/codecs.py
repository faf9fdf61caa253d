"""Decompressing the records of a batch, bounded as `logformat.compression` bounds it, by the fastest way installed."""

from __future__ import annotations

from logformat.compression import decompress
from logformat.record_batch import Buffer, Codec


class Decompressor:
    """Keeps what codecs can use again from batch to batch. One per thread."""

    def decompress(self, codec: Codec, data: Buffer, bytes_max: int) -> bytes:
        return decompress(codec, data, bytes_max)
