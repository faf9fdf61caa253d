"""Converts a record batch to another codec, with the same records, offsets, timestamps and producer fields.

The records are not decoded, because their decompressed bytes are the same in every codec. Only the length, the codec
bits and the CRC of the header change. Kafka's LogValidator rebuilds the batch from its records instead, and consumers
read the same records. *Blocking* in proportion to the decompressed records; the codecs run without the interpreter's
lock.
"""

from __future__ import annotations

from typing import Final

from logformat.compression import Compression, DecompressedTooLarge, compress_at
from logformat.errors import InvalidRequest
from logformat.record_batch import (
    CODEC_MASK,
    HEADER_SIZE,
    INT64_MAX,
    BatchTooLarge,
    Codec,
    CorruptBatch,
    InvalidRecordBatch,
    batch_of,
    check_batch,
)
from logformat.records import records_bytes

CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""Codecs by Kafka's names in compression.type; `producer` is not a codec."""


def recompress(batch: memoryview, compression: Compression, batch_bytes_max: int, records_bytes_max: int) -> memoryview:
    """A writable copy of a produced batch, with its records compressed as `compression` says.

    `batch_bytes_max` bounds the batch before and after (max.message.bytes), `records_bytes_max` its decompressed
    records. Memory: the decompressed records and both batches. Raises CorruptBatch if the batch was damaged in transit;
    InvalidRequest if it has a valid CRC but cannot be decompressed, or if it is too large for the topic."""
    header = check_batch(
        batch,
        0,
        len(batch),
        bytes_max=batch_bytes_max,
        timestamp_min=-INT64_MAX,
        timestamp_max=INT64_MAX,
        allow_transactional=True,
    )
    if compression.codec is Codec.NONE:
        records_bytes_max = min(records_bytes_max, batch_bytes_max - HEADER_SIZE)
    try:
        _, records = records_bytes(batch, 0, records_bytes_max)
    except DecompressedTooLarge as error:
        if compression.codec is Codec.NONE:
            raise _too_large(f"more than {records_bytes_max + HEADER_SIZE}", batch_bytes_max) from None
        raise InvalidRecordBatch(str(error)) from None
    except CorruptBatch as error:  # the client wrote these bytes and would resend them
        raise InvalidRecordBatch(str(error)) from None
    body = compress_at(compression, records)
    size = HEADER_SIZE + len(body)
    if size > batch_bytes_max:
        raise _too_large(str(size), batch_bytes_max)
    attributes = header.attributes & ~CODEC_MASK | compression.codec
    return memoryview(batch_of(header._replace(attributes=attributes), body))


def _too_large(size: str, batch_bytes_max: int) -> InvalidRequest:
    return BatchTooLarge(
        f"batch of {size} bytes in the topic's codec (compression.type); the topic takes at most {batch_bytes_max} "
        "(max.message.bytes)"
    )
