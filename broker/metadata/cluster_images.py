"""Makes images from `cluster.json`: from its page and the records since then.

Every image was checked. A page is read and decoded in a worker. If a root adds records to the newest image, the loop
applies only these records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.metadata.cluster_content import ClusterContent, Content, check_page, image_of
from broker.metadata.image import ClusterImage, check
from broker.metadata.records import MetadataRecord, RowsSet, TopicCreated
from coldstore.object_store import ObjectStore
from seams.loop.workers import Workers

_ROWS_ON_LOOP_MAX: Final = 1000  # rows of a commit: 3 ms of the loop; a worker applies and checks a larger commit


class Made(NamedTuple):
    """The image of the first `position` records."""

    position: int
    image: ClusterImage


class Images:
    """Makes the images of one cluster. Pages are read from `store`."""

    def __init__(self, store: ObjectStore, workers: Workers) -> None:
        self._store = store
        self._workers = workers
        self._newest: tuple[Content, Made] | None = None

    async def of(self, content: Content) -> Made:
        """The image of `content`. Raises Corrupt, and as `ObjectStore.get` when the page has to be read."""
        newest = self._newest
        if newest is not None and newest[0] is content:
            return newest[1]
        made = await self._read(content, newest)
        self._newest = content, made
        return made

    def note(self, content: Content, made: Made) -> None:
        self._newest = content, made

    async def after(self, before: Made, records: Sequence[MetadataRecord]) -> Made:
        """`before` with `records` applied. Raises Corrupt if the records cannot be applied."""
        rows = sum(len(record.rows) for record in records if isinstance(record, RowsSet | TopicCreated))
        if rows > _ROWS_ON_LOOP_MAX:
            image = await self._workers.run(_applied, before.image, records)
        else:
            image = _applied(before.image, records)
        return Made(before.position + len(records), image)

    async def _read(self, content: Content, newest: tuple[Content, Made] | None) -> Made:
        position = 0
        if isinstance(content, ClusterContent):
            position = content.position
            if newest is not None and isinstance(newest[0], ClusterContent) and newest[0].page == content.page:
                records = newest[0].records
                if content.records[: len(records)] == records:
                    added, image = content.records[len(records) :], newest[1].image
                    return Made(position, _applied(image, added) if added else image)
        pointer = content.page
        page = None if pointer is None else check_page((await self._store.get(pointer.key)).data, pointer)
        return Made(position, await self._workers.run(image_of, content, page))


def _applied(image: ClusterImage, records: Sequence[MetadataRecord]) -> ClusterImage:
    after = image.with_records(records)
    check(after, image)
    return after
