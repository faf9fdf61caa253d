"""The life of one copied range, as a table: what may follow what, and why nothing else may.

Always true: a range is readable from the bucket only from COMMITTED on, its local bytes may go only in VERIFIED, and an
attempt that did not commit ends as garbage under a name that is never used again. Pure. Must not know: stores, files.

    SEALED ─started─► CHECKING ─checked─► UPLOADING ─uploaded─► COMMITTING ─committed─► COMMITTED ─verified─► VERIFIED
      ▲                   │ failed            │ failed              │ refused, unsettled    │ verify refused     │
      └───────────────────┴──── GARBAGE ◄─────┴─────────────────────┘                       ▼                    ▼
              (deleted by us once settled, else by gc)                                   DAMAGED            REMOTE_ONLY
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class CopyState(Enum):
    """Where a range, or one attempt at it, stands."""

    SEALED = "sealed"
    CHECKING = "checking"  # every batch's CRC, while the object's checksums are made
    UPLOADING = "uploading"
    COMMITTING = "committing"
    COMMITTED = "committed"  # the manifest names it; its local bytes stay
    VERIFIED = "verified"  # seen again in the store after the commit: its local bytes may go
    REMOTE_ONLY = "remote only"
    GARBAGE = "garbage"  # no manifest names this attempt's object; the range itself is SEALED again
    DAMAGED = "damaged"  # committed, but the store does not hold what was sent: local bytes must stay


class CopyEvent(Enum):
    """What happened to it."""

    STARTED = "started"
    CHECKED = "checked"
    UPLOADED = "uploaded"
    COMMITTED = "committed"
    VERIFIED = "verified"
    VERIFY_REFUSED = "the object is missing or different"
    FAILED = "failed"  # retryable, corrupt, cancelled: this attempt is over
    FENCED = "fenced"  # somebody newer leads: the attempt is over, and there is no other
    LOCAL_EXPIRED = "local bytes deleted"
    RESTARTED = "the process is new"  # what it verified is forgotten: the store may have changed meanwhile


NEXT: Final[dict[tuple[CopyState, CopyEvent], CopyState]] = {
    (CopyState.SEALED, CopyEvent.STARTED): CopyState.CHECKING,
    (CopyState.CHECKING, CopyEvent.CHECKED): CopyState.UPLOADING,
    (CopyState.CHECKING, CopyEvent.FAILED): CopyState.SEALED,  # nothing was sent: nothing to clean up
    (CopyState.CHECKING, CopyEvent.FENCED): CopyState.SEALED,
    (CopyState.UPLOADING, CopyEvent.UPLOADED): CopyState.COMMITTING,
    (CopyState.UPLOADING, CopyEvent.FAILED): CopyState.GARBAGE,  # it may exist, and may still appear
    (CopyState.UPLOADING, CopyEvent.FENCED): CopyState.GARBAGE,
    (CopyState.COMMITTING, CopyEvent.COMMITTED): CopyState.COMMITTED,
    (CopyState.COMMITTING, CopyEvent.FAILED): CopyState.GARBAGE,  # refused, or unknown: the manifest decides which
    (CopyState.COMMITTING, CopyEvent.FENCED): CopyState.GARBAGE,
    (CopyState.COMMITTED, CopyEvent.VERIFIED): CopyState.VERIFIED,
    (CopyState.COMMITTED, CopyEvent.VERIFY_REFUSED): CopyState.DAMAGED,
    (CopyState.COMMITTED, CopyEvent.FAILED): CopyState.COMMITTED,  # the store did not answer: verify again later
    (CopyState.COMMITTED, CopyEvent.FENCED): CopyState.COMMITTED,
    (CopyState.DAMAGED, CopyEvent.VERIFIED): CopyState.VERIFIED,  # an operator put the object back
    (CopyState.DAMAGED, CopyEvent.VERIFY_REFUSED): CopyState.DAMAGED,
    (CopyState.DAMAGED, CopyEvent.FAILED): CopyState.DAMAGED,
    (CopyState.VERIFIED, CopyEvent.RESTARTED): CopyState.COMMITTED,
    (CopyState.VERIFIED, CopyEvent.LOCAL_EXPIRED): CopyState.REMOTE_ONLY,
}


def step(state: CopyState, event: CopyEvent) -> CopyState:
    """The next state. AssertionError for a pair the table lacks: our own bug, never the world's."""
    following = NEXT.get((state, event))
    assert following is not None, f"{event} in state {state} means nothing"
    return following
