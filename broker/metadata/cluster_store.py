"""The cluster's metadata in the bucket: `cluster.json` and its snapshot pages.

Owns how the image is kept: a snapshot page under a unique name, and the records since then in the root itself. Always
true: the root alone says what the cluster is; a page is written before the root that names it; the root stays below
64 KiB because records are folded into a new page before they outgrow it, by a claim too: a broker that is only ever
restarted adds a record each time. Must not know who may decide (controller).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from broker.metadata.image import ClusterImage
from broker.metadata.records import MetadataRecord, NodeStarted, ProducerIdsReserved, TopicCreated, check_topic
from coldstore.keys import cluster_key, metadata_key
from coldstore.object_store import ObjectMissing, ObjectStore, Upload
from coldstore.root import Root, RootStore
from logformat.errors import Corrupt, InvalidRequest
from seams.clock import Clock
from seams.rng import Rng

log = logging.getLogger(__name__)

_FOLD_AT_BYTES: Final = 40 * 1024  # of the root's 64 KiB: room for the largest single commit that still fits beside
COMMIT_BYTES_MAX: Final = 8 * 1024  # a topic's name and configs take 5 KiB at most
IMAGE_BYTES_MAX: Final = 16 * 1024 * 1024  # a page is encoded on the loop (1.5 ms a MiB), and read whole at every start


class SnapshotPointer(msgspec.Struct, frozen=True):
    """Names an immutable snapshot page."""

    key: str
    size: int
    crc32c: int


class ClusterContent(msgspec.Struct, frozen=True):
    """What `cluster.json` holds: the image at `snapshot` (None: empty) plus `records`."""

    cluster_id: str
    snapshot: SnapshotPointer | None = None
    records: tuple[MetadataRecord, ...] = ()


class ImageAt(NamedTuple):
    """The image of the root's version `position`."""

    position: int
    image: ClusterImage


class CommitTooLarge(InvalidRequest):
    """Records that would not leave the root room for the next ones: whoever takes them from a client bounds them."""


class ClusterStore:
    """`cluster.json` as this process sees it. Errors are those of `coldstore.root.RootStore.commit`."""

    def __init__(self, store: ObjectStore, rng: Rng, clock: Clock) -> None:
        self._store = store
        self._rng = rng
        self._root: RootStore[ClusterContent] = RootStore(
            store, cluster_key(), ClusterContent, rng, clock, validate=_check_root
        )
        self._snapshot: tuple[SnapshotPointer, ClusterImage] | None = None
        self.epoch = 0

    @property
    def known(self) -> Root[ClusterContent] | None:
        return self._root.known

    async def load(self) -> tuple[str, ClusterImage] | None:
        """Cluster id and image as they stand now; None where the bucket was never formatted."""
        root = await self._root.load()
        while root is not None:
            try:
                return root.content.cluster_id, await self._image(root.content)
            except ObjectMissing as missing:
                # The controller folded between our two reads and deleted the page we were about to get.
                folded = await self._root.load_if_changed()
                if folded is None:
                    raise Corrupt(f"cluster.json names a metadata snapshot that is gone: {missing}") from missing
                root = folded
        return None

    async def superseded_by(self) -> int | None:
        """Poll: the controller epoch of whoever serves the bucket now, None while that is us."""
        changed = await self._root.load_if_changed()
        return changed.epoch if changed is not None and changed.epoch > self.epoch else None

    async def claim(self, cluster_id: str, node: NodeStarted) -> ImageAt:
        """Become the controller.

        Commit the next controller epoch together with our start. Fenced: another was first.
        """
        known = self._root.known
        epoch = 1 if known is None else known.epoch + 1
        before = None if known is None else known.content
        # Written before we know whether we are first: a page that no root names is garbage.
        page = None if before is None else await self._page_if_full(before, epoch)

        def edit(content: ClusterContent) -> ClusterContent:
            return _with_records(content if page is None else _folded(content, before, page), (node,))

        root = await self._root.commit(
            edit, epoch=epoch, claim=True, exclusive=True, initial=ClusterContent(cluster_id=cluster_id)
        )
        self.epoch = epoch
        if page is not None:
            await self._forget_page_before(before)
        return ImageAt(root.version, await self._image(root.content))

    @property
    def image_bytes(self) -> int:
        """About what the image takes, encoded."""
        known = self._root.known
        if known is None:
            return 0
        page = known.content.snapshot
        return self._root.content_size(known.content) + (0 if page is None else page.size)

    async def commit(self, records: Sequence[MetadataRecord]) -> ImageAt:
        """Make `records` facts.

        Returns the image with them. Fenced when this process is not the controller any more. Raises CommitTooLarge
        before anything is written.
        """
        size = len(msgspec.json.encode(records))
        if size > COMMIT_BYTES_MAX:
            raise CommitTooLarge(f"a change of {size} bytes; cluster.json takes {COMMIT_BYTES_MAX} at a time")
        await self._fold_if_full()
        root = await self._root.commit(lambda content: _with_records(content, records), epoch=self.epoch)
        return ImageAt(root.version, await self._image(root.content))

    async def settle(self) -> ImageAt:
        """After a commit with an unknown outcome: the image in which it is a fact, or never will be.

        Whatever was under way was conditional on a state that this commit, which always changes the root, replaces.
        Errors as `commit`.
        """

        def edit(content: ClusterContent) -> ClusterContent:
            # Says nothing new: the end of the producer ids never falls.
            return ClusterContent(content.cluster_id, content.snapshot, (*content.records, ProducerIdsReserved(0)))

        await self._fold_if_full()
        root = await self._root.commit(edit, epoch=self.epoch)
        return ImageAt(root.version, await self._image(root.content))

    async def _fold_if_full(self) -> None:
        known = self._root.known
        assert known is not None, "commit before claim"
        content = known.content
        page = await self._page_if_full(content, self.epoch)
        if page is not None:
            await self._root.commit(lambda now: _folded(now, content, page), epoch=self.epoch)
            await self._forget_page_before(content)

    async def _page_if_full(self, content: ClusterContent, epoch: int) -> SnapshotPointer | None:
        """A new page of what `content` adds up to; None while the root has room."""
        if self._root.content_size(content) < _FOLD_AT_BYTES:
            return None
        known = self._root.known
        assert known is not None
        data = msgspec.json.encode(await self._image(content))
        key = metadata_key(known.version, epoch, self._rng.uuid())
        pointer = SnapshotPointer(key, len(data), crc32c(data))
        await self._store.put_segment(key, Upload(len(data), pointer.crc32c, lambda: iter((data,))))
        return pointer

    async def _forget_page_before(self, folded: ClusterContent | None) -> None:
        if folded is not None and folded.snapshot is not None and self._root.settled:
            await self._store.delete([folded.snapshot.key])

    async def _image(self, content: ClusterContent) -> ClusterImage:
        if content.snapshot is None:
            return ClusterImage().with_records(content.records)
        if self._snapshot is None or self._snapshot[0] != content.snapshot:
            self._snapshot = (content.snapshot, await self._read_snapshot(content.snapshot))
        return self._snapshot[1].with_records(content.records)

    async def _read_snapshot(self, pointer: SnapshotPointer) -> ClusterImage:
        got = await self._store.get(pointer.key)
        if len(got.data) != pointer.size or crc32c(got.data) != pointer.crc32c:
            raise Corrupt(f"metadata snapshot {pointer.key} fails its checksum; restore the object from a version")
        return decode_image(got.data, pointer.key)


def decode_image(data: bytes, key: str) -> ClusterImage:
    """The image of a snapshot page; raises Corrupt for bytes that hold none. `key` is for the message."""
    try:
        image = msgspec.json.decode(data, type=ClusterImage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        raise Corrupt(f"metadata snapshot {key} is not readable: {broken}") from broken
    for topic in (*image.topics.values(), *image.deleted.values()):
        check_topic(topic.topic_id, topic.name, topic.partitions)
    return image


def check_content(content: ClusterContent) -> None:
    """Raises Corrupt for records that no controller wrote: a bucket is not trusted with names that become paths."""
    for record in content.records:
        if isinstance(record, TopicCreated):
            check_topic(record.topic_id, record.name, record.partitions)


def _check_root(root: Root[ClusterContent]) -> None:
    check_content(root.content)


def _folded(now: ClusterContent, before: ClusterContent | None, page: SnapshotPointer) -> ClusterContent:
    """`now`, with `page` in place of what it was made of: `before`."""
    assert before is not None
    folded = before.records
    if now.snapshot != before.snapshot or now.records[: len(folded)] != folded:
        return now  # somebody folded meanwhile; our page is garbage
    return ClusterContent(now.cluster_id, page, now.records[len(folded) :])


def _with_records(content: ClusterContent, records: Sequence[MetadataRecord]) -> ClusterContent:
    # A commit that is made again after an unknown outcome finds its records at the end: the controller is the only
    # writer, and it makes one commit at a time.
    added = tuple(records)
    if content.records[-len(added) :] == added:
        return content
    return ClusterContent(content.cluster_id, content.snapshot, content.records + added)
