"""Who reads on, and how far ahead of them to load. Pure.

Owns the memory of sequential readers: a reader is known by the offset it will ask for next, so it needs no identity.
Always true: the memory is bounded, least recently served first out; a reader's window doubles with every read that
goes on where one stopped, up to `window_max` chunks; what is loaded ahead and not yet read never exceeds the share of
the cache given to it, so readers cannot push out one another's next chunk. Must not know files, segments' bytes, tasks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final
from uuid import UUID

WINDOW_FIRST: Final = 1
STREAMS_MAX: Final = 4096
# Chunks one reader has under way: the four ranged GETs at once that saturate a loop (measured), and two
# that were fetched and are being checked and written.
LOADING_MAX: Final = 6

Stream = tuple[UUID, int, int]  # topic id, partition, the offset it asks for next


class ChunkState(Enum):
    """How a chunk ahead of a reader stands."""

    HELD = "held"
    LOADING = "loading"
    ABSENT = "absent"
    FAILED = "failed"  # its reader is to hear of that before it is tried again


class Streams:
    """Sequential readers and their windows, in chunks."""

    def __init__(self, window_max: int, streams_max: int = STREAMS_MAX) -> None:
        self._window_max = window_max
        self._streams_max = streams_max
        self._windows: OrderedDict[Stream, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def window(self, stream: Stream) -> int:
        """Chunks to load ahead of a read; 0 for one that goes on from nowhere."""
        return self._windows.get(stream, 0)

    def served(self, stream: Stream, next_offset: int) -> None:
        """A read was answered up to `next_offset`: whoever asks there next is the same reader."""
        if not self._window_max:
            return
        windows = self._windows
        before = windows.get(stream, 0)
        # The old entry stays until it ages out: another reader may follow at the same offset.
        following = (stream[0], stream[1], next_offset)
        windows[following] = min(max(2 * before, WINDOW_FIRST), self._window_max)
        windows.move_to_end(following)
        if len(windows) > self._streams_max:
            windows.popitem(last=False)


class Unread:
    """Chunks that were loaded ahead and nobody asked for yet: at most `bytes_max`, each for at most `keep_s`."""

    def __init__(self, bytes_max: int, keep_s: float) -> None:
        self._bytes_max = bytes_max
        self._keep_s = keep_s
        self._bytes = 0
        self._chunks: OrderedDict[tuple[UUID, int], tuple[int, float]] = OrderedDict()

    @property
    def nbytes(self) -> int:
        return self._bytes

    def room(self, now_s: float) -> int:
        """Bytes that may be loaded ahead now. Forgets what nobody came for."""
        while self._chunks:
            length, since_s = next(iter(self._chunks.values()))
            if now_s - since_s < self._keep_s:
                break
            self._chunks.popitem(last=False)
            self._bytes -= length
        return self._bytes_max - self._bytes

    def add(self, chunk: tuple[UUID, int], length: int, now_s: float) -> None:
        self.read(chunk)
        self._chunks[chunk] = (length, now_s)
        self._bytes += length

    def read(self, chunk: tuple[UUID, int]) -> None:
        """Somebody asked for it, or it is gone."""
        found = self._chunks.pop(chunk, None)
        if found is not None:
            self._bytes -= found[0]


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
