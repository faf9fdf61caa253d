"""Sequential readers and prefetching for them, across chunks and segments.

A reader is identified by the offset of its next request. Its window doubles with every sequential read, up to
`window_max` chunks. Prefetched unread bytes never exceed their share of the cache, so readers cannot evict one
another's next chunk. Deciding is pure (`Streams`, `to_load`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from coldstore.manifest.manifest import Manifest
from seams.clock import Clock
from tiering.reading.batch_slices import OpenSegment
from tiering.reading.chunk_table import ChunkTable, LogPlace
from tiering.reading.loader import Loader, ManifestView

WINDOW_FIRST: Final = 1
STREAMS_MAX: Final = 4096
# Chunks that one reader has in progress: four concurrent ranged GETs, which saturate a loop (measured), and two fetched
# chunks that are being checked and written.
LOADING_MAX: Final = 6
OPEN_AHEAD_MAX: Final = 4  # concurrent requests for footers ahead of a reader of small segments


class ChunkState(Enum):
    """State of a chunk ahead of a reader."""

    HELD = "held"
    LOADING = "loading"
    ABSENT = "absent"
    FAILED = "failed"  # the reader gets the error before the next try


class Streams:
    """Sequential readers and their windows in chunks, by the place that each requests next; LRU-bounded."""

    def __init__(self, window_max: int, streams_max: int = STREAMS_MAX) -> None:
        self._window_max = window_max
        self._streams_max = streams_max
        self._windows: OrderedDict[LogPlace, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def window(self, stream: LogPlace) -> int:
        """Chunks to prefetch for a read; 0 if it does not continue an earlier read."""
        return self._windows.get(stream, 0)

    def served(self, stream: LogPlace, following: LogPlace) -> None:
        """A read was answered up to `following`; the next read there counts as the same reader."""
        if not self._window_max:
            return
        windows = self._windows
        before = windows.get(stream, 0)
        # The old entry stays until it is evicted: another reader may follow at the same offset.
        windows[following] = min(max(2 * before, WINDOW_FIRST), self._window_max)
        windows.move_to_end(following)
        if len(windows) > self._streams_max:
            windows.popitem(last=False)


def to_load(ahead: Iterable[tuple[ChunkState, int]], *, room_bytes: int, places: int) -> Sequence[int]:
    """Indexes of the chunks to load now. `ahead`: chunks ahead of a reader, nearest first, as (state, bytes). `places`:
    number of loads that may begin. The chunks are in order and contiguous, so the reader never meets a hole."""
    started: list[int] = []
    loading = 0
    for index, (state, length) in enumerate(ahead):
        if state is ChunkState.LOADING:
            loading += 1
        elif state is ChunkState.FAILED:
            break
        elif state is ChunkState.ABSENT:
            if loading >= LOADING_MAX or len(started) >= places or length > room_bytes:
                break
            started.append(index)
            loading += 1
            room_bytes -= length
    return started


class Prefetcher:
    """Starts loads that no reader waits for yet, while `loader` has room for them."""

    def __init__(self, table: ChunkTable, loader: Loader, clock: Clock, window_max: int) -> None:
        self._table = table
        self._loader = loader
        self._clock = clock
        self._streams = Streams(window_max)

    def served(
        self, manifests: ManifestView, place: LogPlace, following: LogPlace, opened: OpenSegment, position: int
    ) -> None:
        """A reader got the bytes between two places, and will read `position` of `opened` next."""
        self._streams.served(place, following)
        self.read_on(manifests, following, opened, opened.chunk_at(min(position, opened.footer.log_bytes - 1)))

    def read_on(self, manifests: ManifestView, place: LogPlace, opened: OpenSegment, index: int) -> None:
        """The reader at `place` needs chunk `index` next: prefetch it and the chunks after it, if the reader is
        sequential."""
        window = self._streams.window(place)
        if window:
            self._load(manifests, opened, index, window + 1)

    def _load(self, manifests: ManifestView, opened: OpenSegment, index: int, count: int) -> None:
        """Begin to load `count` chunks from chunk `index` of a segment on, and to open the segments they reach into."""
        free = self._loader.flights.free_ahead()
        if not free:
            return
        manifest = manifests.manifest
        if manifest is None:
            return
        ahead: list[tuple[OpenSegment, int]] = []
        while len(ahead) < count:
            if index < len(opened.footer.chunk_crcs):
                ahead.append((opened, index))
                index += 1
                continue
            place = (opened.key.topic_id.int, opened.key.partition, opened.entry.end_offset)
            following = self._table.beginning_at(place, manifest)
            if following is None:
                self._open(manifests, manifest, place, count - len(ahead), opened.footer.chunk_bytes)
                break
            opened, index = following, 0
        room = self._table.chunks.room_ahead(self._clock.monotonic_s())
        states = [self._state(segment, number) for segment, number in ahead]
        for number in to_load(states, room_bytes=room, places=free):
            self._loader.load_ahead(manifests, *ahead[number])

    def _open(self, manifests: ManifestView, manifest: Manifest, place: LogPlace, count: int, chunk_bytes: int) -> None:
        """Open the segment at `place`, then load `count` chunks from there; meanwhile open the small segments after
        it."""
        if not manifest.coverage_start <= place[2] < manifest.remote_end_offset:
            return
        self._loader.open_ahead(manifests, place, lambda opened: self._load(manifests, opened, 0, count))
        at = manifest.tail_index(place[2])  # segments in pages are opened one after the other
        for entry in manifest.tail[at : at + OPEN_AHEAD_MAX]:
            if count <= 0:
                break
            if entry.base_offset > place[2]:
                self._loader.open_ahead(manifests, (place[0], place[1], entry.base_offset), _nothing)
            count -= -(-entry.log_bytes // chunk_bytes)

    def _state(self, opened: OpenSegment, index: int) -> tuple[ChunkState, int]:
        chunk_id = (opened.entry.uuid.int, index)
        length = min(opened.footer.chunk_bytes, opened.footer.log_bytes - index * opened.footer.chunk_bytes)
        if chunk_id in self._table.chunks:
            return ChunkState.HELD, length
        if chunk_id in self._loader.flights:
            return ChunkState.LOADING, length
        return (ChunkState.FAILED if self._loader.flights.failed(chunk_id) else ChunkState.ABSENT), length


def _nothing(_opened: OpenSegment) -> None:
    """The segment was opened; no reader needs it yet."""
