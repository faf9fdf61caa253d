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
    """`log_bytes`: from the log start on. `is_whole`: that is all a load needs; else it needs the bucket. `live_bytes`:
    what lived when it was looked at last, None: not in this leader epoch."""

    log_bytes: int
    is_whole: bool
    live_bytes: int | None = None

    @property
    def is_due(self) -> bool:
        """A rewrite costs what lives, once for as many bytes of changes at least. While `live_bytes` is not known, this
        is the least that makes it worth a look."""
        return not self.is_whole or self.log_bytes > 2 * (self.live_bytes or 0) + GROWTH_BYTES

    def rewritten(self, bytes_before: int, live_bytes: int) -> None:
        """The log start moved to where a rewrite began, `bytes_before` bytes behind the last one."""
        self.log_bytes -= bytes_before
        self.live_bytes = live_bytes
        self.is_whole = True
