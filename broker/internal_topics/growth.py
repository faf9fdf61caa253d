"""How far the log of one shard grew beyond what lives in it, and when it is rewritten for that.

Pure. Must not know how a rewrite is made (rewriting), nor snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROWTH_BYTES: Final = 4 << 20
"""Beyond twice what lives: a load reads that at most, some hundreds of ms."""


@dataclass(slots=True)
class Growth:
    """`log_bytes`: since the last rewrite began. `is_whole`: the log from its start on is all a load needs; else it
    needs the bucket. `live_bytes`: what lived when it was looked at last, None: not in this leader epoch. `start`:
    where a rewrite began that is committed, while the log start is still to be moved there."""

    log_bytes: int
    is_whole: bool
    live_bytes: int | None = None
    start: int | None = None

    @property
    def is_due(self) -> bool:
        """A rewrite costs what lives, once for as many bytes of changes at least. While `live_bytes` is not known, this
        is the least that makes it worth a look."""
        needs_bucket = not self.is_whole and self.start is None
        return needs_bucket or self.log_bytes > 2 * (self.live_bytes or 0) + GROWTH_BYTES

    def rewritten(self, start: int, bytes_before: int, live_bytes: int) -> None:
        """All that lives is committed from `start` on, `bytes_before` bytes behind where the last rewrite began."""
        self.start = start
        self.log_bytes -= bytes_before
        self.live_bytes = live_bytes

    def start_moved(self) -> None:
        """The log starts at `start` now."""
        self.start = None
        self.is_whole = True
