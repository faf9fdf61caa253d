"""Who reads on, and loading ahead of them, over the borders of chunks and segments.

Owns the memory of sequential readers: a reader is known by the offset it will ask for next, so it needs no identity.
Always true: the memory is bounded, least recently served first out; a reader's window doubles with every read that
goes on where one stopped, up to `window_max` chunks; what is loaded ahead and not yet read never exceeds the share of
the cache given to it, so readers cannot push out one another's next chunk. Deciding is pure (`Streams`, `to_load`);
`ReadAhead` begins what they say. Must not know files, or what is answered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from seams.clock import Clock
from tiering.reading.batch_slices import OpenSegment
from tiering.reading.chunk_table import ChunkTable, LogPlace
from tiering.reading.loader import Loader, ManifestView

WINDOW_FIRST: Final = 1
STREAMS_MAX: Final = 4096
# Chunks one reader has under way: the four ranged GETs at once that saturate a loop (measured), and two
# that were fetched and are being checked and written.
LOADING_MAX: Final = 6
OPEN_AHEAD_MAX: Final = 4  # footers asked for at once, ahead of a reader of small segments


class ChunkState(Enum):
    """How a chunk ahead of a reader stands."""

    HELD = "held"
    LOADING = "loading"
    ABSENT = "absent"
    FAILED = "failed"  # its reader is to hear of that before it is tried again


class Streams:
    """Sequential readers and their windows, in chunks; each by the place it asks for next."""

    def __init__(self, window_max: int, streams_max: int = STREAMS_MAX) -> None:
        self._window_max = window_max
        self._streams_max = streams_max
        self._windows: OrderedDict[LogPlace, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def window(self, stream: LogPlace) -> int:
        """Chunks to load ahead of a read; 0 for one that goes on from nowhere."""
        return self._windows.get(stream, 0)

    def served(self, stream: LogPlace, following: LogPlace) -> None:
        """A read was answered up to `following`: whoever asks there next is the same reader."""
        if not self._window_max:
            return
        windows = self._windows
        before = windows.get(stream, 0)
        # The old entry stays until it ages out: another reader may follow at the same offset.
        windows[following] = min(max(2 * before, WINDOW_FIRST), self._window_max)
        windows.move_to_end(following)
        if len(windows) > self._streams_max:
            windows.popitem(last=False)


def to_load(ahead: Iterable[tuple[ChunkState, int]], *, room_bytes: int, places: int) -> Sequence[int]:
    """Which of the chunks ahead of a reader, nearest first as (state, bytes), to begin loading now: their indexes.

    `places`: loads that may begin at all. In order and without leaving one out, so that the reader never meets a hole.
    """
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


class ReadAhead:
    """Begins loads that nobody waits for yet, where `hydrator` has room for them."""

    def __init__(self, hold: ChunkTable, hydrator: Loader, clock: Clock, window_max: int) -> None:
        self._hold = hold
        self._hydrator = hydrator
        self._clock = clock
        self._streams = Streams(window_max)

    def served(
        self, manifests: ManifestView, place: LogPlace, following: LogPlace, opened: OpenSegment, position: int
    ) -> None:
        """A reader got what lies between two places, and will ask for `position` of `opened` next."""
        self._streams.served(place, following)
        self.read_on(manifests, following, opened, opened.chunk_at(min(position, opened.footer.log_bytes - 1)))

    def read_on(self, manifests: ManifestView, place: LogPlace, opened: OpenSegment, index: int) -> None:
        """Whoever asks for `place` needs chunk `index` next: load it and those behind it, if he reads in order."""
        window = self._streams.window(place)
        if window:
            self._load(manifests, opened, index, window + 1)

    def _load(self, manifests: ManifestView, opened: OpenSegment, index: int, count: int) -> None:
        """Begin to load `count` chunks from chunk `index` of a segment on, and to open the segments they reach into."""
        free = self._hydrator.flights.free_ahead()
        if not free:
            return
        ahead: list[tuple[OpenSegment, int]] = []
        while len(ahead) < count:
            if index < len(opened.footer.chunk_crcs):
                ahead.append((opened, index))
                index += 1
                continue
            place = (opened.key.topic_id.int, opened.key.partition, opened.entry.end_offset)
            following = self._hold.segments.beginning_at(place)
            if following is None:
                self._open(manifests, place, count - len(ahead), opened.footer.chunk_bytes)
                break
            opened, index = following, 0
        room = self._hold.chunks.room_ahead(self._clock.monotonic_s())
        states = [self._state(segment, number) for segment, number in ahead]
        for number in to_load(states, room_bytes=room, places=free):
            self._hydrator.load_ahead(manifests, *ahead[number])

    def _open(self, manifests: ManifestView, place: LogPlace, count: int, chunk_bytes: int) -> None:
        """Open the segment at `place`, then load `count` chunks from there; meanwhile open small ones behind it."""
        manifest = manifests.manifest
        if manifest is None or not manifest.coverage_start <= place[2] < manifest.remote_end_offset:
            return
        self._hydrator.open_ahead(manifests, place, lambda opened: self._load(manifests, opened, 0, count))
        at = manifest.tail_index(place[2])  # what pages hold is opened one after the other
        for entry in manifest.tail[at : at + OPEN_AHEAD_MAX]:
            if count <= 0:
                break
            if entry.base_offset > place[2]:
                self._hydrator.open_ahead(manifests, (place[0], place[1], entry.base_offset), _nothing)
            count -= -(-entry.log_bytes // chunk_bytes)

    def _state(self, opened: OpenSegment, index: int) -> tuple[ChunkState, int]:
        chunk_id = (opened.entry.uuid.int, index)
        length = min(opened.footer.chunk_bytes, opened.footer.log_bytes - index * opened.footer.chunk_bytes)
        if chunk_id in self._hold.chunks:
            return ChunkState.HELD, length
        if chunk_id in self._hydrator.flights:
            return ChunkState.LOADING, length
        return (ChunkState.FAILED if self._hydrator.flights.failed(chunk_id) else ChunkState.ABSENT), length


def _nothing(_opened: OpenSegment) -> None:
    """What follows when a segment was opened that nobody reads yet."""
