"""Reads splits: fetches the windows of their pieces, checks and decodes them, and reports losses.

Rows come in offset order. Every offset of a piece is in a batch with its CRC, or is named in a DataLoss (or counted in
`Loss`). Memory is bounded by the windows in flight and one batch of rows. A window whose offsets do not add up, or with
a bad batch, is fetched again and salvaged batch by batch (`salvage.salvage`), after the rows already delivered.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from uuid import UUID

import pyarrow as pa

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest_reader import ManifestReader
from coldstore.object_store import ObjectMissing
from coldstore.segments.segment_object import SegmentFooter, TransactionOutcome, entry_from_footer
from logformat.errors import Corrupt
from logformat.record_batch import check_stored, read_header
from logformat.values import NewerFormat
from thermocline.pipeline.arrow_store import ArrowStore, finished
from thermocline.pipeline.decode.batches import TARGET_BYTES, BatchDecoder, PoisonBatch
from thermocline.pipeline.footers import read_footer, rebuild_index
from thermocline.pipeline.plan import cover
from thermocline.pipeline.salvage import Lost, salvage
from thermocline.pipeline.split import VERIFY, Loss, LossPolicy, Split, SplitPart
from thermocline.pipeline.windows import WINDOW_BYTES, OpenPiece, Window, windows_of

log = logging.getLogger(__name__)

PREFETCH: Final = 2  # windows fetched ahead of the decoder: 4 MiB of decoding hide the network's latency
# Size of a window of a directory bucket. The decoding thread reads these windows itself, so they are in its CPU cache:
# 0.39 CPU s per GiB of 1 KB values, against 0.69 when other threads read 4 MiB ahead.
NEAR_WINDOW_BYTES: Final = 2 * 1024 * 1024
ANNOUNCED: Final = 4  # windows that the operating system may read ahead from disk
PIECES_AHEAD: Final = 4  # pieces whose footers are fetched ahead, because small segments are many

MOVES_MAX: Final = 3  # objects replaced one after the other under one read

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class FetchedSplit:
    """A window and its `window.fetch_bytes` bytes. `asked`: the window as planned, before it was cut short."""

    opened: OpenPiece
    window: Window
    data: pa.Buffer
    asked: Window
    run: tuple[int, int] | None = None
    """Set for a window whose object was replaced: the range of its batches in `data`, which comes from the new object.
    """


class _Replaced(Exception):
    """Raised when the manifest names another object for the piece `part`."""

    def __init__(self, part: SplitPart) -> None:
        super().__init__(part)
        self.part = part


class SplitReader:
    """The steps of reading one split. Any thread may run any step; the caller orders the results."""

    def __init__(
        self,
        store: ArrowStore,
        split: Split,
        columns: Sequence[str],
        damage: LossPolicy,
        *,
        read_committed: bool = True,
        target_bytes: int = TARGET_BYTES,
        window_bytes: int,
        footers: Mapping[UUID, SegmentFooter] | None = None,
    ) -> None:
        """`footers`, by segment uuid, are not fetched again."""
        self.split = split
        self._store = store
        self._columns = tuple(columns)
        self._damage = damage
        self._read_committed = read_committed
        self._target_bytes = target_bytes
        self._window_bytes = window_bytes
        self._footers = footers or {}

    def note_gaps(self) -> None:
        """Log and count the split's declared gaps. The caller that starts the split calls this once."""
        split = self.split
        for first, end in split.gaps:
            log.info(
                "%s-%d: offsets [%d, %d) hold no records: they are a declared gap",
                split.topic,
                split.partition,
                first,
                end,
            )
            self._damage.loss.gaps.append((split.topic, split.partition, first, end))

    # ── fetching ─────────────────────────────────────────────────────────────────────────────────────────────────
    def open(self, piece: SplitPart, moves: int = 0) -> OpenPiece | None:
        """Fetch the footer and check the object's identity. If compaction replaced the object, its replacement is used.
        None when the piece is lost and counted. Raises DataLoss, StoreError.
        """
        segment = piece.segment
        key = segment.key(self.split.topic_id, self.split.partition)
        try:
            whole = None
            if self._store.size(str(key)) == segment.object_bytes <= self._window_bytes:
                whole = self._store.read(str(key), 0, segment.object_bytes)
            try:
                known = self._footers.get(segment.uuid)
                footer = known or read_footer(self._store, key, segment, whole)
            except NewerFormat:
                raise
            except Corrupt as broken:
                return self._without_footer(piece, key, broken)
        except ObjectMissing as gone:
            moved = self._moved(piece) if moves < MOVES_MAX else None
            if moved is not None:
                return self.open(moved, moves + 1)
            self._missing(piece, key, gone)
            return None
        try:
            same = entry_from_footer(footer, key) == segment
            why = "it is whole, but not the object that the manifest names; was it replaced?"
        except Corrupt as other:
            same, why = False, str(other)
        if not same:
            self._lost(piece, piece.start_offset, piece.end_offset, why, key)
            return None
        if moves:
            log_start, log_end = cover(segment, footer, piece.start_offset, piece.end_offset)
            piece = replace(piece, log_start=log_start, log_end=log_end)
        end, average = segment.end_offset, footer.log_bytes // max(1, footer.statistics.batches)
        return OpenPiece(piece, key, footer.offset_index, footer.log_bytes, end, _aborted(footer), whole, average)

    def _without_footer(self, piece: SplitPart, key: SegmentKey, broken: Corrupt) -> OpenPiece | None:
        """Report the damage and rebuild an index from the batch headers. None if the damaged footer had the outcome of
        transactions, because records of an aborted transaction must never be shown as committed."""
        what = f"the footer is damaged: {broken}"
        if self._damage.fail:
            self._lost(piece, piece.start_offset, piece.end_offset, what, key, broken)
        if self._read_committed and piece.segment.decided:
            # Only the footer knows which of them were aborted (TX45).
            what += f"; only it had the outcome of {piece.segment.decided} transactions"
            self._lost(piece, piece.start_offset, piece.end_offset, what, key, broken)
            return None
        rebuilt = rebuild_index(self._store, key, piece.segment)
        if rebuilt.end_offset <= piece.start_offset:
            self._lost(piece, piece.start_offset, piece.end_offset, f"{what}; {rebuilt.why}", key)
            return None
        end = min(rebuilt.end_offset, piece.end_offset)
        place = (self.split.topic, self.split.partition, piece.start_offset, end)
        self._damage.report(*place, what, key=str(key), verb="are read without an index")
        self._lost(piece, end, piece.end_offset, f"{rebuilt.why} (position {rebuilt.log_bytes} of the object)", key)
        found = SplitPart(piece.segment, piece.start_offset, end, 0, rebuilt.log_bytes)
        return OpenPiece(found, key, rebuilt.index, rebuilt.log_bytes, rebuilt.end_offset)

    def windows(self, opened: OpenPiece) -> list[Window]:
        return windows_of(opened, self._window_bytes)

    def announce(self, opened: OpenPiece, window: Window) -> None:
        """Hint that the window is fetched soon."""
        if opened.whole is None:
            self._store.announce(str(opened.key), window.start, window.fetch_bytes)

    def fetch(self, opened: OpenPiece, window: Window) -> FetchedSplit | None:
        """The window's bytes, or None when they are lost. Raises DataLoss, StoreError, AccessRefused."""
        try:
            return self._fetch(opened, window)
        except _Replaced as replaced:
            return self._fetch_moved(replaced.part, opened, window)

    def _fetch_moved(self, part: SplitPart, before: OpenPiece, window: Window) -> FetchedSplit | None:
        """The batches of a window in the object that replaced its own: those whose last offsets are inside the window.
        A batch that survives compaction keeps its last offset, so each is in one window.
        """
        first, end = window.offsets
        is_fetched_again = False
        for _ in range(MOVES_MAX):
            opened = self.open(part, 1)
            if opened is None:
                return None
            start = opened.index.lookup(first).position if first > opened.piece.segment.base_offset else 0
            entries = list(opened.index.entries())
            at = bisect_left(entries, end, key=lambda entry: entry.offset)
            stop = entries[at].position if at < len(entries) else opened.log_bytes
            try:
                data = self._read_bytes(opened, start, stop - start, (first, end))
            except _Replaced as again:
                part = again.part
                continue
            if data is None:
                return None
            try:
                run = moved_run(data, opened, start, (first, end))
            except Corrupt as damage:
                if is_fetched_again:
                    what = f"{damage} (in the object that replaced it)"
                    self._lost(part, first, end, what, opened.key, damage)
                    return None
                is_fetched_again = True  # the damage may have happened in transit
                self._store.forget(str(opened.key))
                continue
            return None if run is None else FetchedSplit(opened, window, data, window, run)
        self._missing(part, before.key, ObjectMissing(f"{before.key} was replaced again and again"))
        return None

    def _fetch(self, opened: OpenPiece, window: Window) -> FetchedSplit | None:
        data = self._read(opened, window)
        if data is None or window.last is None:
            return None if data is None else FetchedSplit(opened, window, data, window)
        cut = window.cut(data) or window.uncut
        if cut.fetch_bytes <= data.size:
            return FetchedSplit(opened, cut, data.slice(0, cut.fetch_bytes), window)
        rest = self._read(opened, cut, behind=data.size)
        return None if rest is None else FetchedSplit(opened, cut, joined(data, rest), window)

    def _read(self, opened: OpenPiece, window: Window, behind: int = 0) -> pa.Buffer | None:
        """The window's bytes, without the first `behind`."""
        return self._read_bytes(opened, window.start + behind, window.fetch_bytes - behind, window.offsets)

    def _read_bytes(self, opened: OpenPiece, start: int, length: int, offsets: tuple[int, int]) -> pa.Buffer | None:
        if opened.whole is not None:
            return opened.whole.slice(start, length)
        try:
            return self._store.read(str(opened.key), start, length)
        except ObjectMissing as gone:
            moved = self._moved(opened.piece)
            if moved is not None:
                raise _Replaced(moved) from gone
            self._missing(opened.piece, opened.key, gone)
        except Corrupt as short:
            self._lost(opened.piece, *offsets, str(short), opened.key, short)
        return None

    def _fetch_again(self, fetched: FetchedSplit) -> FetchedSplit | None:
        opened = fetched.opened
        self._store.forget(str(opened.key))
        return self.fetch(replace(opened, whole=None), fetched.asked)

    # ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────
    def rows(self, fetched: FetchedSplit) -> Iterator[pa.RecordBatch]:
        """The window's rows. Raises DataLoss after the rows that precede the damage."""
        if fetched.run is not None:
            yield from self._run(fetched, *fetched.run)
            return
        window, data = fetched.window, fetched.data
        decoder = self._decoder(fetched.opened)
        given = 0
        sound = window.starts_as_indexed(data)
        if sound:
            try:
                for batch in decoder.decode(data.slice(0, window.end - window.start)):
                    if len(decoder.covered) > 1:
                        break
                    yield batch
                    given += batch.num_rows
            except PoisonBatch:
                sound = False
            covered = decoder.covered
            sound = sound and len(covered) == 1 and covered[0][1] == window.end_offset(data)
        if not sound:
            yield from self._salvaged(fetched, given)

    def _decoder(self, opened: OpenPiece) -> BatchDecoder:
        split, piece = self.split, opened.piece
        rows = replace(  # an object that replaced several is read once for each of their pieces
            split.rows,
            start_offset=max(split.rows.start_offset, piece.start_offset),
            end_offset=min(split.rows.end_offset, piece.end_offset),
        )
        return BatchDecoder(
            split.topic,
            split.partition,
            self._columns,
            rows,
            aborted=opened.aborted,
            read_committed=self._read_committed,
            target_bytes=self._target_bytes,
        )

    def _salvaged(self, fetched: FetchedSplit, given: int) -> Iterator[pa.RecordBatch]:
        """The rows of the window's sound batches, fetched again, after the first `given` rows; each loss is reported in
        its place.
        """
        again = self._fetch_again(fetched)  # the damage may have happened in transit
        if again is None:
            return
        if again.run is None:
            yield from _without(given, self._sound_rows(again))
        elif not given:
            yield from self._run(again, *again.run)
        else:  # how many of these rows the other object has is unknown
            what = "the object is damaged, and it was replaced while it was read; read again"
            self._lost(fetched.opened.piece, *fetched.asked.offsets, what, fetched.opened.key)

    def _sound_rows(self, fetched: FetchedSplit) -> Iterator[pa.RecordBatch]:
        for part in salvage(fetched.data, fetched.window):
            if isinstance(part, Lost):
                position = fetched.window.start + part.position
                what = f"{part.why} (position {position} of the object)"
                self._lost(fetched.opened.piece, part.first, part.end, what, fetched.opened.key)
            else:
                yield from self._run(fetched, part.start, part.end)

    def _run(self, fetched: FetchedSplit, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Rows of batches with valid checksums. A client may still have written malformed records."""
        opened = fetched.opened
        while start < end:
            decoder = self._decoder(opened)
            try:
                yield from decoder.decode(fetched.data.slice(start, end - start))
                return
            except PoisonBatch as poison:
                header = read_header(fetched.data, start + poison.position)
                what = f"{poison.reason} (position {fetched.window.start + start + poison.position} of the object)"
                self._lost(opened.piece, header.base_offset, header.next_offset, what, opened.key, poison)
                start += poison.position + header.size

    # ── losses ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _lost(
        self, piece: SplitPart, first: int, end: int, what: str, key: SegmentKey, cause: BaseException | None = None
    ) -> None:
        first, end = max(first, piece.start_offset), min(end, piece.end_offset)
        if first < end:
            self._damage.report(self.split.topic, self.split.partition, first, end, what, key=str(key), cause=cause)

    def _moved(self, piece: SplitPart) -> SplitPart | None:
        """The piece in the object that the newest manifest names for its offsets; None if it is the same object."""
        split = self.split
        reader = ManifestReader(self._store, split.topic_id, split.partition)
        manifest = finished(reader.load())
        if manifest is None or manifest.log_start_offset > piece.start_offset:
            return None
        found = finished(reader.segments(manifest, piece.start_offset, piece.end_offset)).segments
        if len(found) != 1 or found[0].uuid == piece.segment.uuid:
            return None
        if found[0].base_offset > piece.start_offset or found[0].end_offset < piece.end_offset:
            return None
        self._store.forget(str(found[0].key(split.topic_id, split.partition)))
        return SplitPart(found[0], piece.start_offset, piece.end_offset, 0, found[0].log_bytes)

    def _missing(self, piece: SplitPart, key: SegmentKey, gone: ObjectMissing) -> None:
        """An object is gone. The newest manifest says whether retention removed it or it is lost."""
        split = self.split
        manifest = finished(ManifestReader(self._store, split.topic_id, split.partition).load())
        remedy = "start a new read at the log start (earliest)"
        if manifest is None:
            what = "the topic was deleted while it was read"
            remedy = "nothing is left to read"
        elif manifest.log_start_offset > piece.start_offset:
            what = f"expired while reading: the log starts at {manifest.log_start_offset} now"
        else:
            what, remedy = f"the object is missing, and the manifest still names it: {gone}", VERIFY
        self._damage.report(
            split.topic,
            split.partition,
            piece.start_offset,
            piece.end_offset,
            what,
            key=str(key),
            cause=gone,
            remedy=remedy,
        )


def scan(
    store: ArrowStore,
    split: Split,
    columns: Sequence[str],
    *,
    fail_on_data_loss: bool = True,
    loss: Loss | None = None,
    read_committed: bool = True,
    target_bytes: int = TARGET_BYTES,
    window_bytes: int | None = None,
    prefetch: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The split's rows in offset order, in batches of about `target_bytes` with schema `schema_of(columns)`.

    Decodes in the caller's thread while other threads fetch `prefetch` windows of `window_bytes`. With 0, the default
    for a directory, the caller's thread reads them too. Closing or exhausting the iterator ends the threads. Declared
    gaps, and with `fail_on_data_loss=False` damage, are counted in `loss`. Raises DataLoss, StoreError (retries are
    used up: run the task again), AccessRefused, NewerFormat.
    """
    if window_bytes is None:
        window_bytes = NEAR_WINDOW_BYTES if store.is_directory else WINDOW_BYTES
    if prefetch is None:
        prefetch = 0 if store.is_directory else PREFETCH
    damage = LossPolicy(loss if loss is not None else Loss(), fail=fail_on_data_loss)
    reader = SplitReader(
        store,
        split,
        columns,
        damage,
        read_committed=read_committed,
        target_bytes=target_bytes,
        window_bytes=window_bytes,
    )
    reader.note_gaps()
    with closing(_fetched_ahead(reader, prefetch) if prefetch else _fetched_here(reader)) as fetched:
        for window in fetched:
            if window is not None:
                yield from reader.rows(window)


def _fetched_here(reader: SplitReader) -> Generator[FetchedSplit | None, None, None]:
    for piece in reader.split.pieces:
        opened = reader.open(piece)
        windows = [] if opened is None else reader.windows(opened)
        for number, window in enumerate(windows):
            assert opened is not None
            ahead_of = number + ANNOUNCED
            for soon in windows[1 : ANNOUNCED + 1] if number == 0 else windows[ahead_of : ahead_of + 1]:
                reader.announce(opened, soon)
            yield reader.fetch(opened, window)


def _fetched_ahead(reader: SplitReader, prefetch: int) -> Generator[FetchedSplit | None, None, None]:
    pool = ThreadPoolExecutor(prefetch + 1, thread_name_prefix="scan")
    try:
        opened = ahead(pool, reader.open, reader.split.pieces, PIECES_AHEAD)
        windows = ((piece, window) for piece in opened if piece is not None for window in reader.windows(piece))
        yield from ahead(pool, lambda one: reader.fetch(*one), windows, prefetch)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def ahead(pool: ThreadPoolExecutor, step: Callable[[T], U], over: Iterable[T], count: int) -> Generator[U, None, None]:
    """The results of `step` for each item, in order, while up to `count` further calls run in `pool`."""
    pending: deque[Future[U]] = deque()
    for item in over:
        pending.append(pool.submit(step, item))
        if len(pending) > count:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def joined(first: pa.Buffer, second: pa.Buffer) -> pa.Buffer:
    both = pa.allocate_buffer(first.size + second.size)
    view = memoryview(both)
    view[: first.size] = memoryview(first)
    view[first.size :] = memoryview(second)
    return both


def moved_run(data: pa.Buffer, opened: OpenPiece, start: int, offsets: tuple[int, int]) -> tuple[int, int] | None:
    """The range in `data` of the batches with last offsets in [first, end). `data`: bytes of a replacement object from
    position `start` to a position that its index names, or to its end. None: no batch is left. Raises Corrupt unless
    the batches are sound and contiguous; objects have no holes, so then no record is missing."""
    anchors = {entry.position - start: entry.offset for entry in opened.index.entries()}
    begin = after = at = 0
    expected = opened.piece.segment.base_offset if start == 0 else -1
    while at < data.size:
        header = check_stored(data, at, data.size)
        if expected not in (-1, header.base_offset) or anchors.get(at, header.last_offset) != header.last_offset:
            raise Corrupt(f"batch at position {start + at} has offsets {header.base_offset} to {header.last_offset}")
        if offsets[0] <= header.last_offset < offsets[1]:
            begin, after = (begin, at + header.size) if after else (at, at + header.size)
        at += header.size
        expected = header.next_offset
    following = anchors.get(at)  # the last offset of the next batch
    if expected != opened.end_offset if following is None else expected > following:
        raise Corrupt(f"the batches before position {start + at} end at offset {expected}")
    return (begin, after) if after else None


def _aborted(footer: SegmentFooter) -> tuple[tuple[int, int, int], ...]:
    decided = footer.transactions
    return tuple(
        (t.producer_id, t.first_offset, t.marker_offset) for t in decided if t.outcome is TransactionOutcome.ABORTED
    )


def _without(count: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`batches` without their first `count` rows."""
    for batch in batches:
        skipped = min(count, batch.num_rows)
        count -= skipped
        if skipped < batch.num_rows:
            yield batch.slice(skipped)
