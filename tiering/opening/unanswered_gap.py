"""Whether the coordinators may still have to be asked about the newest gap of a log (TX32).

A gap may have taken the beginning of a transaction, of which nothing is left here. Until every coordinator aborted what
it lists for the partition, its leader lets no transaction begin. So a transaction that began behind the gap proves that
they answered, to this leader or one before it. Without one the question is open, or asked again: after a restart, and
by the next leader. Where none began for long they abort at most what was added to the partition and wrote nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hotstore.errors import DamagedLog
from hotstore.log.partition_log import PartitionLog
from logformat.errors import Corrupt, InvalidRequest, Retryable, StorageFailed
from logformat.record_batch import walk

LOOK_BYTES: Final = 4 << 20  # behind the gap
_READ_BYTES: Final = 256 << 10


def is_unanswered(log: PartitionLog, gaps: Sequence[tuple[int, int]]) -> bool:
    """`gaps`: [first, end) of those that are known, in any order. Blocking, a few ms at most."""
    if not gaps:
        return False
    behind = max(end for _, end in gaps)
    if any(first >= behind for first in log.producers.transactions.first_offsets.values()):
        return False
    return not _any_began(log, max(behind, log.local_log_start_offset, log.log_start_offset))


def _any_began(log: PartitionLog, offset: int) -> bool:
    """Whether a batch of a transaction lies in the first bytes from `offset` on. What cannot be read holds none."""
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
