"""`partition.metadata` and `meta.properties`: Corrupt, or the same identity after writing and reading again.

Input: bit 0 of the first byte: meta.properties; then the file.
"""

from __future__ import annotations

from logformat.checkpoints import (
    MetaProperties,
    decode_partition_metadata,
    encode_partition_metadata,
    parse_properties,
)
from logformat.errors import Corrupt
from logformat.properties import format_properties


def seeds() -> list[bytes]:
    meta = MetaProperties("eVGDrcSeSvinoZwBGM8ODg", 3, "9IDRFFGNTfSmnKBNy4t6CQ").to_bytes()
    odd = format_properties({"version": "1", "cluster.id": " =:#!\\\té𝄞", "node.id": "0", "directory.id": ""})
    return [
        b"\0" + encode_partition_metadata(bytes(range(16))),
        b"\x01" + meta,
        b"\x01" + odd,
        b"\x01# a comment\n" + meta.replace(b"=", b" : ") + b"more=a\\\n   b\n",
    ]


def run(data: bytes) -> None:
    kind, file = data[:1], data[1:]
    try:
        if kind == b"\x01":
            properties = parse_properties(file)
            assert parse_properties(format_properties(properties)) == properties
            meta = MetaProperties.from_bytes(file)
            assert meta.node_id >= 0 and MetaProperties.from_bytes(meta.to_bytes()) == meta
        else:
            topic_id = decode_partition_metadata(file)
            assert len(topic_id) == 16 and decode_partition_metadata(encode_partition_metadata(topic_id)) == topic_id
    except Corrupt:
        return
