"""Whole record batches in, Arrow rows out: the door of this room.

Owns the choice between the two ways of decoding: kernels where numba is installed, numpy where not. Always true,
whichever way: a batch of rows has exactly `rows.schema_of(columns)`, owns its memory, and holds rows in the log's
order; every batch that overlaps the wanted offsets has its CRC checked; a batch gives all of its wanted rows or, as
PoisonBatch, none, and rows before a poisonous batch are given out before the error. Must not know where the bytes came
from, nor Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import pyarrow as pa

from logformat.record_batch import Buffer
from thermocline.pipeline.decode.asked import Asked
from thermocline.pipeline.decode.poison import Coverage as Coverage
from thermocline.pipeline.decode.poison import PoisonBatch as PoisonBatch
from thermocline.pipeline.rows import schema_of
from thermocline.pipeline.split import RowFilter

TARGET_BYTES: Final = 8 << 20


class Way(Protocol):
    """One way of decoding."""

    coverage: Coverage

    def __init__(self, asked: Asked) -> None: ...

    def decode(self, log: Buffer | pa.Buffer) -> Iterator[pa.RecordBatch]: ...


def _best_way() -> type[Way]:
    try:
        from thermocline.pipeline.decode.kernel_way import KernelWay
    except ImportError:
        from thermocline.pipeline.decode.numpy_way import NumpyWay

        return NumpyWay
    return KernelWay


class BatchDecoder:
    """Decodes pieces of one topic-partition's log, one after the other. One per thread; one `decode` at a time.

    What becomes rows: records inside `rows`, except those of control batches (transaction markers, gaps) and, when
    `read_committed`, of `aborted` transactions: (producer id, first offset, last offset). A record without timestamp
    (−1) is outside every time range; its timestamp is null, as is one that microseconds cannot hold. Headers are null
    where a record has none (as in Spark's Kafka source). With no columns at all, batches have rows and no columns.
    Fields of no wanted column are not validated.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str],
        rows: RowFilter,
        aborted: Sequence[tuple[int, int, int]] = (),
        read_committed: bool = True,
        target_bytes: int = TARGET_BYTES,
        *,
        way: type[Way] | None = None,
    ) -> None:
        """`target_bytes`: of one batch of rows, exceeded only by a single record that is larger."""
        self.schema = schema_of(columns)
        kind = _best_way() if way is None else way
        left_out = tuple(aborted) if read_committed else ()
        self._way = kind(Asked(topic, partition, tuple(columns), rows, left_out, target_bytes))

    @property
    def covered(self) -> list[tuple[int, int]]:
        """Offsets [first, end) of all batches met so far, wanted or not, poison left out, adjacent ranges merged.

        Complete up to what `decode` was given once it is exhausted or has raised. Where two ranges do not touch, the
        log had a hole.
        """
        return self._way.coverage.ranges

    def decode(self, log: Buffer | pa.Buffer) -> Iterator[pa.RecordBatch]:
        """The wanted rows of `log`: whole batches, one behind the other, offsets growing. Zero-copy for the input.

        Raises PoisonBatch after giving out all rows that come before that batch; call again with
        `log[next_position:]` to go on. `log` must not change while the iterator lives; rows do not refer to it.
        """
        return self._way.decode(log)
