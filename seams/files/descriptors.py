"""Descriptors of this process: its limit, and the share of the limit that each kind of use may take.

New logs stop first, then new connections of clients, then of brokers. The rest is for logs that a restart opens, new
segments, sockets to other brokers and to the bucket, and other work that must not fail. The kernel gives the lowest
free number, so the number of a new descriptor says how many are open.
"""

from __future__ import annotations

import resource
from typing import Final

LOGS: Final = 0.75
CONNECTIONS: Final = 0.875
BROKERS: Final = 0.9375  # connections to the brokers' listener


def raise_limit() -> None:
    """Raise the limit to the largest one that this process may have, as Java does (systemd gives 1 024 of 524 288)."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def has_room(descriptor: int, share: float) -> bool:
    """Whether a use that may take `share` of the limit may keep this new descriptor."""
    limit = _limit()
    return limit == resource.RLIM_INFINITY or descriptor < limit * share


def shortage(share: float) -> str:
    """Text of the error if there is no room."""
    return (
        f"{share:.1%} of the {_limit()} descriptors that this process may have are open, and the rest is kept for other"
        " work: raise the limit (LimitNOFILE, ulimit -n)"
    )


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
