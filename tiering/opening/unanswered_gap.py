"""Check whether the leader must ask the transaction coordinators about the newest gap of a log (TX32).

A gap may include the complete part of a transaction in this log. Until every coordinator has aborted the transactions
that it lists for the partition, the leader lets no transaction begin. A transaction that began after the gap thus
proves that the coordinators answered this leader or an earlier one. If there is no such transaction, the leader asks
them after each restart or leader change. A question that was not needed has a small effect: it aborts only transactions
that list the partition but have no record in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hotstore.errors import DamagedLog
from hotstore.log.partition_log import PartitionLog
from logformat.errors import Corrupt, InvalidRequest, Retryable, StorageFailed
from logformat.record_batch import walk

LOOK_BYTES: Final = 4 << 20  # bytes that are searched after the gap
_READ_BYTES: Final = 256 << 10


def is_unanswered(log: PartitionLog, gaps: Sequence[tuple[int, int]]) -> bool:
    """`gaps`: [first, end) of the known gaps, in any order. Blocking, a few ms at most."""
    if not gaps:
        return False
    behind = max(end for _, end in gaps)
    if any(first >= behind for first in log.producers.transactions.first_offsets.values()):
        return False
    return not _any_began(log, max(behind, log.local_log_start_offset, log.log_start_offset))


def _any_began(log: PartitionLog, offset: int) -> bool:
    """Whether the first bytes from `offset` on contain a batch of a transaction. Unreadable bytes count as none."""
    left = LOOK_BYTES
    try:
        while left > 0:
            part = log.read(offset, _READ_BYTES, log.log_end_offset, min_one=True)
            if part is None or not part.length:
                return False
            left -= part.length
            for _, header in walk(part.file.read_at(part.position, part.length)):
                if header.is_transactional and not header.is_control:
                    return True
                offset = header.next_offset
    except (DamagedLog, StorageFailed, InvalidRequest, Retryable, Corrupt, OSError):
        return False
    return False
