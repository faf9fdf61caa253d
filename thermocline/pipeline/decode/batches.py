"""Decodes whole record batches to Arrow rows.

A batch of rows has exactly `rows.schema_of(columns)`, owns its memory, and has the log's order. Every batch that
overlaps the wanted offsets has its CRC checked. A batch gives all of its wanted rows or, as PoisonBatch, none; rows
before a bad batch are delivered before the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from logformat.record_batch import Buffer
from thermocline.pipeline.decode.poison import Coverage as Coverage
from thermocline.pipeline.decode.poison import PoisonBatch as PoisonBatch
from thermocline.pipeline.rows import schema_of
from thermocline.pipeline.split import RowFilter

TARGET_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """Wanted rows and columns of one topic-partition, in batches of about `target_bytes`.

    `aborted`: (producer id, first offset, last offset) of transactions whose records are left out.
    """

    topic: str
    partition: int
    columns: tuple[str, ...]
    rows: RowFilter
    aborted: tuple[tuple[int, int, int], ...]
    target_bytes: int


class Way(Protocol):
    """A decoder: the kernels, or the tests' numpy oracle."""

    coverage: Coverage

    def __init__(self, asked: DecodeRequest) -> None: ...

    def decode(self, log: Buffer | pa.Buffer) -> Iterator[pa.RecordBatch]: ...


class BatchDecoder:
    """Decodes pieces of one topic-partition's log, one after the other. One per thread; one `decode` at a time.

    Rows are the records inside `rows`, without control batches (transaction markers, gaps) and, when `read_committed`,
    without records of `aborted` transactions: (producer id, first offset, last offset). A record without timestamp (−1)
    is outside every time range, and its timestamp is null. A timestamp that microseconds cannot hold is also null. The
    headers of a record without headers are null (as in Spark's Kafka source). Without columns, batches have rows and no
    columns. Fields of unwanted columns are not validated.
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
        """`target_bytes`: size of one batch of rows; only a single larger record exceeds it."""
        self.schema = schema_of(columns)
        if way is None:
            from thermocline.pipeline.decode.kernel_way import KernelWay  # numba's import takes a second

            way = KernelWay
        left_out = tuple(aborted) if read_committed else ()
        self._way: Way = way(DecodeRequest(topic, partition, tuple(columns), rows, left_out, target_bytes))

    @property
    def covered(self) -> list[tuple[int, int]]:
        """Offsets [first, end) of all batches so far, wanted or not, except poison batches; adjacent ranges are merged.

        The list is complete once `decode` has ended or raised. Ranges that do not touch show a hole in the log.
        """
        return self._way.coverage.ranges

    def decode(self, log: Buffer | pa.Buffer) -> Iterator[pa.RecordBatch]:
        """The wanted rows of `log`, which has whole, contiguous batches with growing offsets. The input is not copied.

        Raises PoisonBatch after the rows before that batch; call again with `log[next_position:]` to resume. `log` must
        not change while the iterator lives; rows do not refer to it.
        """
        return self._way.decode(log)
