"""History as Arrow batches for a script or a notebook, without Spark and without a broker.

    with thermocline.read("s3://bucket/prefix", "orders", partitions=[0]) as rows:
        for batch in rows:                      # pyarrow.RecordBatch, offsets ascending within a partition
            ...

Batches come partition after partition, in offset order. At most `threads` + `WINDOWS_AHEAD` windows are in memory. An
error is raised after the rows before it. A reader that is closed, exhausted or forgotten leaves no thread.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final

import pyarrow as pa

from coldstore.url import S3Url, parse_bucket_url
from logformat.errors import InvalidRequest
from thermocline.extras import require
from thermocline.pipeline.history import History, PartitionHistory
from thermocline.pipeline.reader_pool import ReaderPool, WindowRows
from thermocline.pipeline.rows import DEFAULT_COLUMNS, schema_of
from thermocline.pipeline.scan import PIECES_AHEAD, SplitReader, ahead
from thermocline.pipeline.split import Loss, LossPolicy, Split
from thermocline.pipeline.windows import WINDOW_BYTES

# Measured over 1 KB and 100 B records: these take 245 MiB with one thread and 290 with two, of which numba and pyarrow
# take 184. Windows of 4 MiB, 2 ahead, and batches of 8 MiB take 265 and 340 MiB and are no faster.
NEAR_WINDOW_BYTES: Final = 3 * 1024 * 1024  # only for a directory bucket, because on S3 each window costs a request
WINDOWS_AHEAD: Final = 1  # windows started beyond one per thread, so that no thread waits for the reader
BATCH_BYTES: Final = 9 * 512 * 1024  # bytes of rows; one window, with its fixed-width columns, fits
FETCHERS_PER_CORE: Final = 2  # threads on a remote store: half of them wait for the network
_ONE_SPLIT: Final = 1 << 62
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

Offsets = int | Mapping[int, int] | None


def read(
    bucket: str,
    topic: str,
    start: Offsets = None,
    end: Offsets = None,
    *,
    partitions: Sequence[int] | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    start_timestamp: datetime | int | None = None,
    end_timestamp: datetime | int | None = None,
    late_ms: int | None = None,
    threads: int | None = None,
    fail_on_data_loss: bool = True,
    isolation_level: str = "read_committed",
) -> Reader:
    """Rows of `topic` in the bucket behind the URL, as Arrow batches with the columns of Spark's Kafka source.

    `start` and `end` are offsets, `[start, end)`: one for all partitions, or by partition; None: the first or last
    offset in the bucket. Timestamps are datetimes or ms since 1970, `[start, end)`: rows outside are dropped, and
    segments that end before `start_timestamp` are not fetched. Segments after `end_timestamp` are fetched too, because
    a late record may be older than the records before it. `late_ms` bounds that lateness: the read stops once the log
    is `late_ms` past `end_timestamp`, and misses records that come even later. 300 000 is twice a producer's
    delivery.timeout.ms, plus a minute of clock skew. `threads` decode in parallel (all cores by default). `columns` may
    include `headers`.

    Raises MissingExtra, InvalidRequest (URL, topic, column, partition), DataLoss for missing or damaged history (also
    while reading), StoreError, AccessRefused. With `fail_on_data_loss=False` loss is skipped and listed in
    `Reader.loss`. `isolation_level="read_uncommitted"` gives the records of aborted transactions too.
    """
    if isolation_level not in ("read_committed", "read_uncommitted"):
        raise InvalidRequest(f"isolation_level={isolation_level!r} is neither read_committed nor read_uncommitted")
    require("read", "thermocline.read", "numpy", "numba")
    try:
        schema = schema_of(columns)
    except KeyError as unknown:
        raise InvalidRequest(f"no column {unknown}; there are {', '.join((*DEFAULT_COLUMNS, 'headers'))}") from None
    far = isinstance(parse_bucket_url(bucket), S3Url)
    if threads is None:
        threads = len(os.sched_getaffinity(0)) * (FETCHERS_PER_CORE if far else 1)
    if threads < 1:
        raise InvalidRequest(f"threads={threads}: give at least 1")
    history = History.open(bucket)
    try:
        found = history.topic(topic)
        chosen = range(found.partitions) if partitions is None else sorted(set(partitions))
        parts = history.partitions((topic, partition) for partition in chosen)
        loss = Loss()
        splits = history.plan(
            {place: _range(part, start, end) for place, part in parts.items()},
            parts=parts,
            min_timestamp_ms=_milliseconds("start_timestamp", start_timestamp),
            max_timestamp_ms=_milliseconds("end_timestamp", end_timestamp),
            late_ms=late_ms,
            target_bytes=_ONE_SPLIT,
            fail_on_data_loss=fail_on_data_loss,
            loss=loss,
        )
    except BaseException:
        history.close()
        raise
    window_bytes = WINDOW_BYTES if far else NEAR_WINDOW_BYTES
    damage, read_committed = LossPolicy(loss, fail=fail_on_data_loss), isolation_level == "read_committed"
    return Reader(history, splits, schema, damage, threads, window_bytes, read_committed=read_committed)


class Reader:
    """An iterator over record batches, and a context manager. One thread at a time may iterate.

    `schema` is the schema of every batch. `loss` has the declared gaps and the skipped damage so far.
    """

    def __init__(
        self,
        history: History,
        splits: Sequence[Split],
        schema: pa.Schema,
        damage: LossPolicy,
        threads: int,
        window_bytes: int = WINDOW_BYTES,
        *,
        read_committed: bool = True,
    ) -> None:
        self.schema = schema
        self.loss = damage.loss
        self.splits = tuple(splits)
        self._pool = ReaderPool(threads, history)
        self._windows = _windows(history, self.splits, schema.names, damage, window_bytes, read_committed)
        self._started: deque[WindowRows] = deque()
        self._limit = threads + WINDOWS_AHEAD
        self._failed: BaseException | None = None
        self._end = weakref.finalize(self, self._pool.close)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return self._next()
        except BaseException:
            self.close()  # exhausted, failed or interrupted
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the threads. Iteration then ends at once. Idempotent."""
        self._windows.close()
        self._started.clear()
        self._end()

    def to_table(self) -> pa.Table:
        """All remaining rows, in memory."""
        with self:
            return pa.Table.from_batches(list(self), schema=self.schema)

    @property
    def bytes_fetched(self) -> int:
        """Bytes fetched from the bucket so far, manifests and footers included."""
        return self._pool.history.store.bytes_read

    def _next(self) -> pa.RecordBatch:
        while True:
            while self._failed is None and len(self._started) < self._limit:
                if not self._start_one():
                    break
            if not self._started:
                raise self._failed or StopIteration
            batch = self._started[0].take()
            if batch is not None:
                return batch
            self._started.popleft()

    def _start_one(self) -> bool:
        """Start one more window. If a piece cannot be opened, the read fails after the rows before it."""
        try:
            rows = next(self._windows, None)
        except Exception as error:  # noqa: BLE001 - _next raises it behind the rows before it
            self._failed = error
            return False
        if rows is not None:
            self._pool.submit(rows)
            self._started.append(rows)
        return rows is not None


def _windows(
    history: History,
    splits: Sequence[Split],
    columns: Sequence[str],
    damage: LossPolicy,
    window_bytes: int,
    read_committed: bool,
) -> Generator[WindowRows, None, None]:
    """Windows in the order of delivery, while the footers of later pieces are fetched ahead."""
    pool = ThreadPoolExecutor(PIECES_AHEAD, thread_name_prefix="open")
    try:
        for split in splits:
            reader = SplitReader(
                history.store,
                split,
                columns,
                damage,
                read_committed=read_committed,
                target_bytes=BATCH_BYTES,
                window_bytes=window_bytes,
                footers=history.footers,
            )
            reader.note_gaps()
            for opened in ahead(pool, reader.open, split.pieces, PIECES_AHEAD):
                if opened is not None:
                    for window in reader.windows(opened):
                        yield WindowRows(reader, opened, window)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _range(part: PartitionHistory, start: Offsets, end: Offsets) -> tuple[int, int]:
    first = start.get(part.partition) if isinstance(start, Mapping) else start
    after = end.get(part.partition) if isinstance(end, Mapping) else end
    if first is None:
        first = part.log_start
    elif not 0 <= first <= max(part.remote_end, part.log_start):
        raise InvalidRequest(f"start {first} of {part.topic}-{part.partition} is outside 0 to {part.remote_end}")
    return first, part.remote_end if after is None else after


def _milliseconds(name: str, moment: datetime | int | None) -> int | None:
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise InvalidRequest(f"{name}={moment!r} has no time zone; say which, as in datetime(…, tzinfo=UTC)")
    # A log has whole milliseconds, so both ends of `[start, end)` round up; a float has no room for microseconds.
    return -((_EPOCH - moment) // _MILLISECOND)
