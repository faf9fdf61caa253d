"""History in a bucket, for readers without a broker: topics, partitions, and a plan to read them.

Fetches manifests and footers in parallel. A known manifest is fetched again only when it changed. A `PartitionHistory`
is one version of a manifest. Any thread may call this module.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, TypeVar
from uuid import UUID

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_entries import RemoteSegment
from coldstore.manifest.manifest_reader import LiveSegments, ManifestReader
from coldstore.manifest.page_reader import PageCache
from coldstore.object_store import ObjectMissing, StoreError
from coldstore.segments.segment_object import SegmentFooter
from coldstore.segments.segment_reader import fetch_footer
from logformat.errors import Corrupt, InvalidRequest
from thermocline.pipeline.arrow_store import ArrowStore, finished, open_arrow_store
from thermocline.pipeline.plan import ANY_TIME, TARGET_BYTES, OffsetSpan, Plan, TimeRange, plan
from thermocline.pipeline.split import DataLoss, Loss, Split
from thermocline.pipeline.topics import TopicHistory, by_name, read_topics

log = logging.getLogger(__name__)

THREADS: Final = 16  # small GETs at once: manifests and footers wait for the network, not for the CPU
PAGE_CACHE_BYTES: Final = 8 * 1024 * 1024  # decoded pages of one partition
_TRIES: Final = 3  # a newer root may replace pages while they are read

T = TypeVar("T")
R = TypeVar("R")


class PartitionHistory:
    """A partition as one version of its manifest describes it. The bucket holds offsets `[log_start, remote_end)`."""

    def __init__(self, topic: str, manifest: Manifest, reader: ManifestReader) -> None:
        self.topic = topic
        self.topic_id = manifest.topic_id
        self.partition = manifest.partition
        self.manifest = manifest
        self._reader = reader

    @property
    def log_start(self) -> int:
        """First readable offset in any tier; above `remote_end` when everything in the bucket has expired."""
        return self.manifest.log_start_offset

    @property
    def remote_end(self) -> int:
        """Exclusive end offset in the bucket."""
        return self.manifest.remote_end_offset

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """The newest 256 declared gaps. Each segment's entry lists the gaps in its range."""
        return self.manifest.gaps

    def segments(
        self,
        start: int,
        end: int,
        min_timestamp_ms: int | None = None,
        max_timestamp_ms: int | None = None,
        late_ms: int | None = None,
    ) -> list[RemoteSegment]:
        """Live segments that overlap `[start, end)` and may have a timestamp in `[min, max)`, in order.

        Times as in `plan.TimeRange`. Raises Corrupt, NewerFormat, StoreError, AccessRefused; DataLoss when the topic
        was deleted.
        """
        times = TimeRange(min_timestamp_ms, max_timestamp_ms, late_ms)
        return [segment for segment in self.live(start, end, times).segments if times.may_hold(segment)]

    def live(self, start: int, end: int, times: TimeRange = ANY_TIME) -> LiveSegments:
        """As `segments`, but times exclude whole pages only, and the result names these pages. Errors: as
        `segments`."""
        manifest = self.manifest
        for attempt in range(_TRIES):
            try:
                return finished(
                    self._reader.segments(
                        manifest, start, end, min_timestamp_ms=times.min_ms, horizon_ms=times.horizon_ms
                    )
                )
            except ObjectMissing as gone:  # a newer root names another page for the same range
                newer = finished(self._reader.load())
                if newer is None:
                    raise DataLoss(deleted(self.topic, self.partition)) from gone
                if attempt + 1 == _TRIES or newer is manifest:
                    raise Corrupt(f"a page of the manifest of {self.topic}-{self.partition} is gone: {gone}") from gone
                manifest = newer
        raise AssertionError("the last attempt returns or raises")


class History:
    """The content of the bucket behind `store`. Close it, or use it as a context manager."""

    def __init__(self, store: ArrowStore) -> None:
        self.store = store
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="history")
        self._readers: dict[tuple[UUID, int], ManifestReader] = {}
        self._topics: dict[str, TopicHistory] | None = None
        self.footers: Mapping[UUID, SegmentFooter] = {}
        """Footers that the last plan fetched, by segment uuid, for a reader in the same process."""

    @classmethod
    def open(cls, url: str) -> History:
        """The bucket behind a URL (`coldstore.url`). Raises InvalidRequest for a bad URL. Nothing is read yet."""
        return cls(open_arrow_store(url))

    def __enter__(self) -> History:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        finished(self.store.close())

    # ── what is there ────────────────────────────────────────────────────────────────────────────────────────────
    def topics(self) -> dict[str, TopicHistory]:
        """Live topics by name, without internal topics; reads them anew. Raises Corrupt, NewerFormat, StoreError,
        AccessRefused; InvalidRequest when cluster.json is lost and two topics have one name.
        """
        self._topics = by_name(read_topics(self.store, self._pool, self._manifest_of))
        return dict(self._topics)

    def topic(self, name: str) -> TopicHistory:
        """The topic with this name or id, as of the last `topics`. Raises InvalidRequest with the nearest name."""
        known = self._topics if self._topics is not None else self.topics()
        if name not in known:
            known = self.topics()
        found = known.get(name) or next((topic for topic in known.values() if str(topic.topic_id) == name), None)
        if found is None:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            hint = f"did you mean {near[0]!r}?" if near else "it holds no topics"
            raise InvalidRequest(f"{self.store.url} has no topic {name!r}; {hint}")
        return found

    def partition(self, topic: str, partition: int) -> PartitionHistory:
        """The partition by its present manifest. A manifest that was read already is fetched by a conditional GET.

        Raises InvalidRequest for an unknown partition, Corrupt, NewerFormat, StoreError, AccessRefused; DataLoss when
        the manifest is gone.
        """
        found = self.topic(topic)
        if not 0 <= partition < found.partitions:
            raise InvalidRequest(f"{found.topic} has partitions 0 to {found.partitions - 1}, not {partition}")
        reader = self._reader(found.topic_id, partition)
        manifest = finished(reader.load())
        if manifest is None:
            raise DataLoss(deleted(found.topic, partition))
        return PartitionHistory(found.topic, manifest, reader)

    def partitions(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], PartitionHistory]:
        """As `partition`, for many in parallel."""
        places = list(wanted)
        for topic in {topic for topic, _ in places}:
            self.topic(topic)  # read the topics once, before threads need them
        return dict(zip(places, self.map(lambda place: self.partition(*place), places), strict=True))

    # ── a plan ───────────────────────────────────────────────────────────────────────────────────────────────────
    def plan(
        self,
        ranges: Mapping[tuple[str, int], tuple[int, int]],
        *,
        min_timestamp_ms: int | None = None,
        max_timestamp_ms: int | None = None,
        late_ms: int | None = None,
        target_bytes: int = TARGET_BYTES,
        min_partitions: int | None = None,
        max_records: int | None = None,
        fail_on_data_loss: bool = True,
        loss: Loss | None = None,
        parts: Mapping[tuple[str, int], PartitionHistory] | None = None,
    ) -> list[Split]:
        """Splits that read offsets `[start, end)` of each partition. Reads footers where they make the plan finer.

        Times as in `plan.TimeRange`: without `late_ms` a maximum drops rows only. `parts`: the partitions, if the
        caller has them. Errors: `plan.plan`, `partition`, `segments`.
        """
        known = dict(parts) if parts is not None else self.partitions(ranges)
        times = TimeRange(min_timestamp_ms, max_timestamp_ms, late_ms)

        def span(entry: tuple[tuple[str, int], tuple[int, int]]) -> OffsetSpan:
            place, (start, end) = entry
            part = known[place]
            live = part.live(max(start, part.log_start), end, times)
            where = (part.topic, part.topic_id, part.partition, start, end)
            return OffsetSpan(*where, part.log_start, part.remote_end, live.segments, live.skipped)

        spans = self.map(span, [(place, wanted) for place, wanted in ranges.items() if wanted[0] < wanted[1]])

        def planned(footers: Mapping[UUID, SegmentFooter], lost: Loss) -> Plan:
            return plan(
                spans,
                footers,
                times,
                target_bytes=target_bytes,
                min_partitions=min_partitions,
                max_records=max_records,
                fail_on_data_loss=fail_on_data_loss,
                loss=lost,
            )

        lost = Loss()
        made = planned({}, lost)
        if made.wanted:
            lost = Loss()
            self.footers = self._footers(made.wanted)
            made = planned(self.footers, lost)
        for line in lost.damage:
            log.warning("%s", line)
        if loss is not None:
            loss.damage += lost.damage
        return list(made.splits)

    def _footers(self, wanted: Mapping[SegmentKey, RemoteSegment]) -> dict[UUID, SegmentFooter]:
        """Footers that could be read. A missing footer makes the plan coarser; the reader of the object reports the
        error."""

        def fetch(entry: tuple[SegmentKey, RemoteSegment]) -> SegmentFooter | None:
            key, segment = entry
            try:
                return finished(fetch_footer(self.store, key, segment.object_bytes, segment.log_bytes))
            except (Corrupt, ObjectMissing, StoreError):
                return None

        found = self.map(fetch, list(wanted.items()))
        return {footer.statistics.uuid: footer for footer in found if footer is not None}

    # ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────
    def map(self, function: Callable[[T], R], over: Iterable[T]) -> list[R]:
        """The results of `function` for each item, in order; `THREADS` calls run at once. Raises the first error. Not
        reentrant."""
        return list(self._pool.map(function, over))

    def _reader(self, topic_id: UUID, partition: int) -> ManifestReader:
        reader = self._readers.get((topic_id, partition))
        if reader is None:
            fresh = ManifestReader(self.store, topic_id, partition, page_cache=PageCache(PAGE_CACHE_BYTES))
            reader = self._readers.setdefault((topic_id, partition), fresh)
        return reader

    def _manifest_of(self, topic_id: UUID, partition: int) -> Manifest | None:
        return finished(self._reader(topic_id, partition).load())


def deleted(topic: str, partition: int) -> str:
    return (
        f"{topic}-{partition} has no manifest in the bucket: was the topic deleted? Look with `thermocline bucket ls`"
    )
