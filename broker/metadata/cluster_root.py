"""The cluster's metadata in the bucket: `cluster.json` and its pages.

- The root alone defines the cluster: a page under a unique name, and the records since then.
- The result of records is checked before they are written. A page is written before the root that names it. A page
  without a root is garbage.
- The root stays below 64 KiB. If a commit does not fit, it writes a page of all records, which a worker makes (two
  PUTs).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c
from msgspec.structs import replace

from broker.metadata.cluster_content import (
    CLUSTER_FORMAT,
    PAGE_BYTES_MAX,
    PAGE_SUFFIX,
    ClusterContent,
    ClusterPage,
    Content,
    Controller,
    ControllerAt,
    controller_of,
    encode_page,
)
from broker.metadata.cluster_images import Images, Made
from broker.metadata.image import ClusterImage
from broker.metadata.records import MetadataRecord
from broker.metrics.counters import Latencies
from coldstore.keys import cluster_key, metadata_key
from coldstore.object_store import AccessRefused, Got, ObjectMissing, ObjectStore, Upload
from coldstore.roots.root import ENVELOPE_BYTES_MAX, ROOT_BYTES_MAX, Root, RootCodec, RootStore
from logformat.errors import Corrupt, Fenced, InvalidRequest, Retryable
from seams.clock import Clock
from seams.loop.workers import Workers
from seams.rng import Rng

log = logging.getLogger(__name__)

COMMIT_BYTES_MAX: Final = 8 * 1024  # changes combined into one commit; a larger change is committed alone
_CONTENT_BYTES_MAX: Final = ROOT_BYTES_MAX - ENVELOPE_BYTES_MAX
_TRIES: Final = 3
_CODEC: Final[RootCodec[Content]] = RootCodec(CLUSTER_FORMAT)


class ImageAt(NamedTuple):
    """The image of the first `position` records, and the controller at the time of the read or write (None: a root of
    format 1, which does not name a controller)."""

    position: int
    image: ClusterImage
    controller: ControllerAt | None = None


class Loaded(NamedTuple):
    """Content and version of `cluster.json` from one read. `epoch`: the controller epoch."""

    cluster_id: str
    image: ClusterImage
    position: int
    epoch: int
    controller: ControllerAt | None

    @property
    def at(self) -> ImageAt:
        return ImageAt(self.position, self.image, self.controller)


class CommitTooLarge(InvalidRequest):
    """The image with the records is larger than a page may be. The caller bounds the changes of clients."""


class _Moved(Retryable):
    """The root changed since the commit was decided."""


class ClusterRoot:
    """`cluster.json` for this process. Errors are as in `coldstore.roots.root.RootStore.commit`."""

    def __init__(self, store: ObjectStore, rng: Rng, clock: Clock, workers: Workers) -> None:
        self._store = store
        self._rng = rng
        self._workers = workers
        self._clock = clock
        self.commit_times = Latencies(1)  # times of commits, successful or not
        self._root: RootStore[Content] = RootStore(store, cluster_key(), CLUSTER_FORMAT, rng, clock)
        self._images = Images(store, workers)
        self.epoch = 0
        self.claimed_s = float("-inf")
        """Boot time when this process sent its last claim, which was stored then or later. −inf: it sent no claim."""

    @property
    def known(self) -> Root[Content] | None:
        return self._root.known

    @property
    def is_settled(self) -> bool:
        """As `RootStore.settled`: no earlier write of this process can still be stored, except one in progress."""
        return self._root.settled

    @property
    def image_bytes(self) -> int:
        known = self._root.known
        if known is None:
            return 0
        page = known.content.page
        in_page = 0 if page is None else page.json_bytes if isinstance(page, ClusterPage) else page.size
        return self._root.content_size(known.content) + in_page

    async def is_formatted(self) -> bool:
        return await self._root.load() is not None

    async def load(self) -> Loaded | None:
        """The current cluster; None if the bucket was never formatted."""
        root = await self._root.load()
        return None if root is None else await self._loaded(root)

    async def poll(self) -> Loaded:
        """The newest known root, after a conditional GET."""
        root = await self._root.load_if_changed() or self._root.known
        assert root is not None, "poll before load"
        return await self._loaded(root)

    async def observe(self, data: bytes) -> Loaded:
        """Take the bytes of a committed root that the controller sent. Commits are not based on this root. Raises
        Corrupt (also for the root of another cluster), NewerFormat, and as `poll` when the root's page has to be
        read."""
        root = _CODEC.decode(cluster_key(), Got(data, "", len(data)))
        known = self._root.known
        if known is not None and known.content.cluster_id != root.content.cluster_id:
            raise Corrupt(
                f"cluster.json belongs to cluster {root.content.cluster_id}, not to {known.content.cluster_id}"
            )
        return await self._loaded(root)

    @property
    def encoded(self) -> tuple[int, bytes] | None:
        """Position and bytes of the newest root that was read or committed, for brokers with an older root. None before
        the first root, and for a root of format 1.
        """
        known = self._root.known
        if known is None or not isinstance(known.content, ClusterContent):
            return None
        return known.content.position, _CODEC.encode(known.version, known.epoch, known.ring, known.content)

    async def _loaded(self, root: Root[Content]) -> Loaded:
        while True:
            try:
                position, image = await self._images.of(root.content)
                controller = controller_of(root.content, root.epoch)
                return Loaded(root.content.cluster_id, image, position, root.epoch, controller)
            except ObjectMissing as missing:
                # Between the two reads, the controller wrote a new page and deleted this page.
                folded = await self._root.load_if_changed()
                if folded is None:
                    raise Corrupt(f"cluster.json names a page that is gone: {missing}") from missing
                root = folded

    async def claim(
        self, cluster_id: str, controller: Controller, records: Callable[[ClusterImage], Sequence[MetadataRecord]]
    ) -> ImageAt:
        """Become the controller. Commits the next controller epoch together with `records`, which were decided on the
        image that was loaded last. Raises Fenced if another process claimed first."""
        sent_s = self._clock.boottime_s()
        if self.is_settled:  # otherwise an earlier claim may be stored before this one is sent
            self.claimed_s = sent_s
        known = self._root.known
        epoch = 1 if known is None else known.epoch + 1
        before = ClusterContent(cluster_id, controller) if known is None else known.content
        image = (await self._images.of(before)).image
        try:
            added = await self._workers.run(records, image)
            root = await self._write(before, added, controller, epoch, claim=True)
        except _Moved as moved:
            raise Fenced(f"cluster.json changed while controller epoch {epoch} was claimed") from moved
        self.epoch, self.claimed_s = epoch, sent_s  # no earlier claim was stored
        return await self._ours(root)

    async def commit(self, records: Sequence[MetadataRecord]) -> ImageAt:
        """Commit `records`. Returns the image with them. Raises Fenced when this process is no longer the controller,
        even if the records were stored before another process claimed. Raises Corrupt for an impossible image and
        CommitTooLarge for more records than a page may hold; in both cases nothing is written. The commit belongs to
        the epoch of the call, and fails after a later claim."""
        epoch = self.epoch
        for _ in range(_TRIES):
            known = self._root.known
            assert known is not None and isinstance(known.content, ClusterContent), "commit before claim"
            began_s = self._clock.monotonic_s()
            try:
                root = await self._write(known.content, records, known.content.controller, epoch)
                return await self._ours(root)
            except _Moved:
                continue  # a commit of unknown outcome was stored meanwhile
            finally:
                self.commit_times.note(0, self._clock.monotonic_s() - began_s)
        raise Retryable("cluster.json changed under every attempt to commit")

    async def settle(self) -> ImageAt:
        """Resolve a commit of unknown outcome. Returns an image that contains it, or that excludes it for good. The
        call makes a commit that always changes the root, so that a request in flight fails its condition. Errors as
        `commit`.
        """

        def look(now: Content) -> Content:
            assert isinstance(now, ClusterContent), "settle before claim"
            return replace(now, controller=replace(now.controller, looks=now.controller.looks + 1))

        root = await self._root.commit(look, epoch=self.epoch)
        return await self._ours(root)

    async def _ours(self, root: Root[Content]) -> ImageAt:
        """The image of a root that this process's commit returned. Raises Fenced if another controller has claimed
        since that commit, because the image of the claim may name another process for this node."""
        if root.epoch != self.epoch:
            raise Fenced(f"controller epoch {self.epoch} is over: epoch {root.epoch} was claimed after its last commit")
        position, image = await self._images.of(root.content)
        return ImageAt(position, image, controller_of(root.content, root.epoch))

    async def _write(
        self,
        before: Content,
        records: Sequence[MetadataRecord],
        controller: Controller,
        epoch: int,
        *,
        claim: bool = False,
    ) -> Root[Content]:
        """Replace `before`, the newest known content. Raises _Moved when the root differs."""
        added = tuple(records)
        after = await self._images.after(await self._images.of(before), added)
        content = await self._content(before, after, added, controller, epoch)

        def edit(now: Content) -> Content:
            # A retry after an unknown outcome finds its records at the end: the controller is the only writer, and
            # makes one commit at a time.
            if now == content or (added and not claim and now.records[-len(added) :] == added):
                return now
            if now != before:
                raise _Moved("cluster.json changed after the decision")
            return content

        known, initial = self._root.known, before if self._root.known is None else None
        root = await self._root.commit(edit, epoch=epoch, claim=claim, exclusive=claim, initial=initial)
        if root.content == content:
            self._images.note(content, after)
        if known is not None and before.page not in (None, root.content.page) and self._root.settled:
            assert before.page is not None
            await self._delete_page(before.page.key)
        return root

    async def _delete_page(self, key: str) -> None:
        """Delete a page that no root names. A failure does not matter to the commit."""
        try:
            await self._store.delete([key])
        except (Retryable, AccessRefused) as refused:
            log.warning("metadata page %s, which no root names, stays in the bucket: %s", key, refused)

    async def _content(
        self, before: Content, after: Made, added: tuple[MetadataRecord, ...], controller: Controller, epoch: int
    ) -> ClusterContent:
        """The content with the image `after`, which is `before` and the records `added`; with a new page if the content
        would not fit."""
        if isinstance(before, ClusterContent):
            content = replace(before, controller=controller, records=before.records + added)
            if self._root.content_size(content) <= _CONTENT_BYTES_MAX:
                return content
        data, json_bytes = await self._workers.run(encode_page, after.image)
        if json_bytes > PAGE_BYTES_MAX:
            raise CommitTooLarge(f"cluster.json would name a page of {json_bytes} bytes, at most {PAGE_BYTES_MAX}")
        known = self._root.known
        key = metadata_key(0 if known is None else known.version, epoch, self._rng.uuid(), PAGE_SUFFIX)
        page = ClusterPage(key, len(data), crc32c(data), json_bytes)
        # Written before the outcome of the commit is known: a page that no root names is garbage.
        await self._store.put_segment(key, Upload(len(data), page.crc32c, lambda: iter((data,))))
        return ClusterContent(before.cluster_id, controller, page, after.position)
