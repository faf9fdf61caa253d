"""Keys as a listing returns them: never an error, and only what our makers write is taken for ours. Input: the key."""

from __future__ import annotations

from uuid import UUID

from coldstore.keys import (
    MetadataKey,
    PageKey,
    RootKey,
    RootKind,
    SegmentKey,
    SnapshotKey,
    cluster_key,
    lease_key,
    manifest_key,
    parse_key,
    partition_prefix,
)
from tests.support.tier.cold_values import TOPIC_ID

_ID = UUID("5b3f2a9e-1c55-4b0e-9b1d-8a4c6f1d2e3f")


def seeds() -> list[bytes]:
    keys = (
        cluster_key(),
        lease_key(),
        manifest_key(TOPIC_ID, 0),
        SegmentKey(TOPIC_ID, 2**31 - 1, 2**63 - 1, 2**31 - 1, _ID),
        SegmentKey(TOPIC_ID, 0, 0, 0, _ID),
        PageKey(TOPIC_ID, 3, 5, 9, 1, _ID),
        SnapshotKey(TOPIC_ID, 3, 77, 1, _ID),
        MetadataKey(12, 3, _ID),
        partition_prefix(TOPIC_ID, 3),
        f"topics/{TOPIC_ID}/0/segments/../manifest.json",
        f"topics/{TOPIC_ID}/2147483649/manifest.json",  # just outside
        f"metadata/{2**63 + 1:020d}-2147483649-{_ID}.json",
    )
    return [str(key).encode() for key in keys]


def run(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    found = parse_key(text)
    if found is None:
        return
    assert str(found) == text, (str(found), text)
    for name in found.__struct_fields__:
        number = getattr(found, name)
        if isinstance(number, int):
            assert 0 <= number <= (2**31 - 1 if name in ("partition", "epoch") else 2**63 - 1), text
    if isinstance(found, RootKey) and found.kind is not RootKind.MANIFEST:
        assert found.topic_id is None and found.partition is None
