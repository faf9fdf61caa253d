"""Topics of a bucket: names, ids and partition counts, from `cluster.json`, or from the manifests if it is lost.

Reads the part of docs/formats/cluster.md (formats 1 and 2) that concerns topics; skips unknown record kinds and fields.
A name stands for the topic that has the name now. `by_name` leaves out internal topics, because they are not tiered.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec
from crc32c import crc32c

from coldstore.keys import CLUSTER_KEY, TOPICS_PREFIX
from coldstore.manifest.manifest import Manifest
from coldstore.object_store import ObjectMissing
from coldstore.roots.root_format import RootCodec, RootFormat
from coldstore.roots.root_reading import read_root
from logformat.errors import Corrupt, InvalidRequest
from logformat.values import NewerFormat
from thermocline.pipeline.arrow_store import ArrowStore, finished

log = logging.getLogger(__name__)

_PAGE_BYTES_MAX = 64 * 1024 * 1024  # when inflated; brokers stop at a quarter of it
_PARTITIONS_MAX: Final = 10_000  # the controller's limit per topic; a folder with a higher number is not a partition
_TRIES = 3  # the controller may write a new page and delete the old one between our two reads


@dataclass(frozen=True, slots=True)
class TopicHistory:
    """A live topic. `partitions` is their number."""

    topic: str
    topic_id: UUID
    partitions: int


class MetadataPage(msgspec.Struct, frozen=True):
    """Reference to a metadata page: key, bytes and checksum. `json_bytes`: size when inflated, 0 for a plain page."""

    key: str
    size: int
    crc32c: int
    json_bytes: int = 0


class ClusterTopics(msgspec.Struct, frozen=True):
    """`cluster.json` as readers need it: a page, and the records after it."""

    page: MetadataPage | None = None
    records: tuple[msgspec.Raw, ...] = ()


class ClusterContent1(msgspec.Struct, frozen=True):
    """`cluster.json` in format 1, as readers need it."""

    snapshot: MetadataPage | None = None
    records: tuple[msgspec.Raw, ...] = ()

    @property
    def page(self) -> MetadataPage | None:
        return self.snapshot


CLUSTER_FORMAT: Final[RootFormat[ClusterTopics | ClusterContent1]] = RootFormat(
    2, {1: ClusterContent1, 2: ClusterTopics}
)


class _Topic(msgspec.Struct, frozen=True):
    topic_id: UUID
    name: str
    partitions: int
    internal: bool = False


class _TopicWritten(msgspec.Struct, frozen=True):
    """`rows` has one row per partition; format 1 had `partitions` instead."""

    topic_id: UUID
    name: str
    partitions: int = 0
    internal: bool = False
    rows: tuple[msgspec.Raw, ...] = ()

    def read(self) -> _Topic:
        return _Topic(self.topic_id, self.name, self.partitions or len(self.rows), self.internal)


class _Image(msgspec.Struct):
    topics: dict[str, _TopicWritten] = {}


class _Kind(msgspec.Struct):
    t: str


class _PartitionsAdded(msgspec.Struct):
    topic_id: UUID
    partitions: int


class _Rows(msgspec.Struct):
    topic_id: UUID
    rows: tuple[tuple[int, msgspec.Raw], ...]


class _Deleted(msgspec.Struct):
    topic_id: UUID


# At import, in one thread: two threads that make a type's first decoder at once crash (coldstore/roots/root_format.py).
_IMAGE: Final = msgspec.json.Decoder(_Image)
_KIND: Final = msgspec.json.Decoder(_Kind)
_TOPIC: Final = msgspec.json.Decoder(_TopicWritten)
_PARTITIONS_ADDED: Final = msgspec.json.Decoder(_PartitionsAdded)
_ROWS: Final = msgspec.json.Decoder(_Rows)
_DELETED: Final = msgspec.json.Decoder(_Deleted)


def read_topics(store: ArrowStore, pool: Executor, manifest_of: Callable[[UUID, int], Manifest | None]) -> list[_Topic]:
    """All live topics, also internal topics. Raises Corrupt, NewerFormat, AccessRefused, StoreError."""
    for attempt in range(_TRIES):
        try:
            content = finished(read_root(store, CLUSTER_KEY, RootCodec(CLUSTER_FORMAT).decode)).content
        except ObjectMissing:
            return _by_manifests(store, pool, manifest_of)
        try:
            image = _Image() if content.page is None else _read_image(store, content.page)
        except ObjectMissing as missing:
            if attempt + 1 == _TRIES:
                raise Corrupt(f"cluster.json names a page of metadata that is gone: {missing}") from missing
            continue
        return list(_applied(image, content.records).values())
    raise AssertionError("the last attempt returns or raises")


def by_name(topics: Iterable[_Topic]) -> dict[str, TopicHistory]:
    """Topics by name, without internal topics. Raises InvalidRequest when two topics have one name."""
    named: dict[str, TopicHistory] = {}
    for topic in topics:
        if topic.internal:
            continue
        if topic.name in named:
            raise InvalidRequest(
                f"topic {topic.name} was deleted and created again, and without cluster.json it is unknown "
                f"which topic id is the present one: {named[topic.name].topic_id} or {topic.topic_id}"
            )
        named[topic.name] = TopicHistory(topic.name, topic.topic_id, topic.partitions)
    return named


def _read_image(store: ArrowStore, page: MetadataPage) -> _Image:
    data = finished(store.get(page.key)).data
    if len(data) != page.size or crc32c(data) != page.crc32c:
        raise Corrupt(f"metadata page {page.key} fails its checksum; restore an earlier version of the object")
    try:
        return _IMAGE.decode(_inflated(data, page.json_bytes) if page.json_bytes else data)
    except (zlib.error, msgspec.MsgspecError) as broken:
        raise Corrupt(f"metadata page {page.key} is not readable: {broken}") from broken


def _inflated(data: bytes, json_bytes: int) -> bytes:
    return zlib.decompressobj().decompress(data, min(json_bytes, _PAGE_BYTES_MAX))


def _applied(image: _Image, records: Iterable[msgspec.Raw]) -> dict[str, _Topic]:
    topics = {topic_id: topic.read() for topic_id, topic in image.topics.items()}
    try:
        for raw in records:
            kind = _KIND.decode(raw).t
            if kind == "topic":
                created = _TOPIC.decode(raw)
                topics.setdefault(str(created.topic_id), created.read())
            elif kind == "partitions":
                added = _PARTITIONS_ADDED.decode(raw)
                if (topic := topics.get(str(added.topic_id))) is not None:
                    partitions = max(topic.partitions, added.partitions)
                    topics[str(added.topic_id)] = msgspec.structs.replace(topic, partitions=partitions)
            elif kind == "rows":
                changed = _ROWS.decode(raw)
                if changed.rows and (topic := topics.get(str(changed.topic_id))) is not None:
                    partitions = max(topic.partitions, 1 + max(index for index, _ in changed.rows))
                    topics[str(changed.topic_id)] = msgspec.structs.replace(topic, partitions=partitions)
            elif kind == "deleted":
                topics.pop(str(_DELETED.decode(raw).topic_id), None)
    except msgspec.MsgspecError as broken:
        raise Corrupt(f"cluster.json holds a record that is not readable: {broken}") from broken
    return topics


def _by_manifests(
    store: ArrowStore, pool: Executor, manifest_of: Callable[[UUID, int], Manifest | None]
) -> list[_Topic]:
    """Topics by listing. They include deleted topics whose objects remain: of two topics with one name, leader epochs
    do not show which one is newer.

    The name comes from the lowest partition's manifest, or from another manifest if that one is damaged or gone. A
    topic without a readable manifest is left out with a warning.
    """
    damage: dict[UUID, Corrupt] = {}

    def manifest(place: tuple[UUID, int]) -> Manifest | None:
        try:
            return manifest_of(*place)
        except NewerFormat:
            raise
        except Corrupt as damaged:
            damage[place[0]] = damaged
            return None

    def names(places: Sequence[tuple[UUID, int]]) -> dict[UUID, str]:
        return {found.topic_id: found.topic for found in pool.map(manifest, places) if found is not None}

    ids = [UUID(name) for name in store.children(TOPICS_PREFIX) if _is_uuid(name)]
    folders = pool.map(lambda topic_id: store.children(f"{TOPICS_PREFIX}{topic_id}/"), ids)
    listed = [sorted(int(name) for name in folder if _is_partition(name)) for folder in folders]
    partitions = {topic_id: numbers for topic_id, numbers in zip(ids, listed, strict=True) if numbers}
    named = names([(topic_id, numbers[0]) for topic_id, numbers in partitions.items()])
    unnamed = [topic_id for topic_id in partitions if topic_id not in named]
    named |= names([(topic_id, number) for topic_id in unnamed for number in partitions[topic_id][1:]])
    for topic_id in damage.keys() - named.keys():
        log.warning("topic %s is left out, because no manifest of it holds its name: %s", topic_id, damage[topic_id])
    return [
        _Topic(topic_id, named[topic_id], numbers[-1] + 1, named[topic_id].startswith("__"))
        for topic_id, numbers in partitions.items()
        if topic_id in named
    ]


def _is_partition(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6 and int(text) < _PARTITIONS_MAX


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
