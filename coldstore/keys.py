"""Keys of objects in the bucket, made and parsed (docs/formats/manifest.md).

A key has the topic's id, not its name (C9). An immutable object's key has its offsets or sequence, the epoch of its
root and a fresh UUID, so no key is used twice. `parse_key` accepts exactly the keys that this module makes, and never
raises.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final
from uuid import UUID

import msgspec

from logformat.record_batch import INT32_MAX, INT64_MAX

CLUSTER_KEY: Final = "cluster.json"
LEASE_KEY: Final = "lease.json"
TOPICS_PREFIX: Final = "topics/"
METADATA_PREFIX: Final = "metadata/"

_KEY_CHARS_MAX: Final = 300  # the longest valid key has 176


class RootKind(Enum):
    """The three kinds of root."""

    CLUSTER = "cluster"
    LEASE = "lease"
    MANIFEST = "manifest"


class RootKey(msgspec.Struct, frozen=True):
    """A root. `topic_id` and `partition` are set only for manifests."""

    kind: RootKind
    topic_id: UUID | None = None
    partition: int | None = None

    def __str__(self) -> str:
        if self.kind is RootKind.CLUSTER:
            return CLUSTER_KEY
        if self.kind is RootKind.LEASE:
            return LEASE_KEY
        assert self.topic_id is not None and self.partition is not None
        return f"{partition_prefix(self.topic_id, self.partition)}manifest.json"


class SegmentKey(msgspec.Struct, frozen=True):
    """A segment object: log bytes from `base_offset` on, written by the leader of `epoch`."""

    topic_id: UUID
    partition: int
    base_offset: int
    epoch: int
    uuid: UUID

    def __str__(self) -> str:
        folder = f"{partition_prefix(self.topic_id, self.partition)}segments/"
        return f"{folder}{self.base_offset:020d}-{self.epoch}-{self.uuid}.log"


class PageKey(msgspec.Struct, frozen=True):
    """A manifest page: entries, or pointers to pages, for offsets `[first_offset, end_offset)`."""

    topic_id: UUID
    partition: int
    first_offset: int
    end_offset: int
    epoch: int
    uuid: UUID

    def __str__(self) -> str:
        return (
            f"{partition_prefix(self.topic_id, self.partition)}pages/"
            f"{self.first_offset:020d}-{self.end_offset:020d}-{self.epoch}-{self.uuid}.parquet"
        )


class SnapshotKey(msgspec.Struct, frozen=True):
    """The live state of an internal topic's partition after all offsets below `end_offset`."""

    topic_id: UUID
    partition: int
    end_offset: int
    epoch: int
    uuid: UUID

    def __str__(self) -> str:
        folder = f"{partition_prefix(self.topic_id, self.partition)}snapshots/"
        return f"{folder}{self.end_offset:020d}-{self.epoch}-{self.uuid}.log"


class MetadataKey(msgspec.Struct, frozen=True):
    """A snapshot or delta page of the cluster's metadata, named by `cluster.json`."""

    sequence: int
    epoch: int
    uuid: UUID
    suffix: str = "json"

    def __str__(self) -> str:
        return f"{METADATA_PREFIX}{self.sequence:020d}-{self.epoch}-{self.uuid}.{self.suffix}"


ImmutableKey = SegmentKey | PageKey | SnapshotKey | MetadataKey
Key = ImmutableKey | RootKey


def partition_prefix(topic_id: UUID, partition: int) -> str:
    """The prefix of one partition's keys, with a slash at its end."""
    return f"{TOPICS_PREFIX}{topic_id}/{partition}/"


def manifest_key(topic_id: UUID, partition: int) -> str:
    return str(RootKey(RootKind.MANIFEST, topic_id, partition))


def cluster_key() -> str:
    return CLUSTER_KEY


def lease_key() -> str:
    return LEASE_KEY


def metadata_key(sequence: int, epoch: int, uuid: UUID, suffix: str = "json") -> str:
    return str(MetadataKey(sequence, epoch, uuid, suffix))


_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_NUMBER: Final = r"0|[1-9][0-9]{0,9}"
_OFFSET: Final = r"[0-9]{20}"
_PARTITION: Final = re.compile(
    rf"topics/(?P<topic>{_UUID})/(?P<partition>{_NUMBER})/(?:"
    r"(?P<manifest>manifest\.json)"
    rf"|segments/(?P<base>{_OFFSET})-(?P<segment_epoch>{_NUMBER})-(?P<segment>{_UUID})\.log"
    rf"|pages/(?P<first>{_OFFSET})-(?P<page_end>{_OFFSET})-(?P<page_epoch>{_NUMBER})-(?P<page>{_UUID})\.parquet"
    rf"|snapshots/(?P<end>{_OFFSET})-(?P<snapshot_epoch>{_NUMBER})-(?P<snapshot>{_UUID})\.log)",
    re.ASCII,
)
_METADATA: Final = re.compile(
    rf"metadata/(?P<sequence>{_OFFSET})-(?P<epoch>{_NUMBER})-(?P<uuid>{_UUID})\.(?P<suffix>[a-z0-9]{{1,16}})", re.ASCII
)


def parse_key(key: str) -> Key | None:
    """Parse `key` (relative to the prefix). None for a foreign object, which is never changed."""
    if key == CLUSTER_KEY:
        return RootKey(RootKind.CLUSTER)
    if key == LEASE_KEY:
        return RootKey(RootKind.LEASE)
    if len(key) > _KEY_CHARS_MAX:
        return None
    if (found := _METADATA.fullmatch(key)) is not None:
        sequence, epoch = _offset(found["sequence"]), _int32(found["epoch"])
        if sequence is None or epoch is None:
            return None
        return MetadataKey(sequence, epoch, UUID(found["uuid"]), found["suffix"])
    if (found := _PARTITION.fullmatch(key)) is None:
        return None
    return _parse_partition_key(found)


def _parse_partition_key(found: re.Match[str]) -> Key | None:
    topic_id, partition = UUID(found["topic"]), _int32(found["partition"])
    if partition is None:
        return None
    if found["manifest"] is not None:
        return RootKey(RootKind.MANIFEST, topic_id, partition)
    if found["segment"] is not None:
        base, epoch = _offset(found["base"]), _int32(found["segment_epoch"])
        if base is None or epoch is None:
            return None
        return SegmentKey(topic_id, partition, base, epoch, UUID(found["segment"]))
    if found["page"] is not None:
        first, end, epoch = _offset(found["first"]), _offset(found["page_end"]), _int32(found["page_epoch"])
        if first is None or end is None or epoch is None or first > end:
            return None
        return PageKey(topic_id, partition, first, end, epoch, UUID(found["page"]))
    end, epoch = _offset(found["end"]), _int32(found["snapshot_epoch"])
    if end is None or epoch is None:
        return None
    return SnapshotKey(topic_id, partition, end, epoch, UUID(found["snapshot"]))


def _offset(digits: str) -> int | None:
    value = int(digits)
    return value if value <= INT64_MAX else None


def _int32(digits: str) -> int | None:
    value = int(digits)
    return value if value <= INT32_MAX else None
