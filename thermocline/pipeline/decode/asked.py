"""What a decoder is asked for, as one value for both ways of decoding.

Must not know how it is done.
"""

from __future__ import annotations

from dataclasses import dataclass

from thermocline.pipeline.split import RowFilter


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows of one topic-partition: which, with which columns, in batches of about `target_bytes`.

    `aborted`: (producer id, first offset, last offset) of transactions whose records are left out.
    """

    topic: str
    partition: int
    columns: tuple[str, ...]
    rows: RowFilter
    aborted: tuple[tuple[int, int, int], ...]
    target_bytes: int
