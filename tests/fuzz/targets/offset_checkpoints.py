"""The three offset checkpoints: Corrupt, or offsets that are written and read again as the same. Input: the file."""

from __future__ import annotations

from logformat.checkpoints import decode_offsets, encode_offsets
from logformat.errors import Corrupt
from logformat.values import TopicPartition, is_topic_name


def seeds() -> list[bytes]:
    offsets = {TopicPartition("events", 0): 0, TopicPartition("a.b_c-d", 2**31 - 1): 2**63 - 1}
    return [encode_offsets(offsets), encode_offsets({}), b"", b"0\n1\nevents 0 5\n", b"0\n2\ne 0 5\ne 0 6\n", b"1\n0\n"]


def run(data: bytes) -> None:
    try:
        offsets = decode_offsets(data, "fuzzed")
    except Corrupt:
        return
    assert all(
        is_topic_name(key.topic) and 0 <= key.partition < 2**31 and 0 <= offset < 2**63
        for key, offset in offsets.items()
    )
    assert decode_offsets(encode_offsets(offsets), "fuzzed") == offsets
