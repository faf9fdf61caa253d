"""Cache of long encoded responses about the cluster, by request.

All entries belong to one version of the cluster view, which its stamp names. A request at another stamp clears the
cache. The key names everything that the response depends on except the stamp.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

BYTES_MIN: Final = 4 << 10  # a shorter response is made again in about 0.2 ms (100 partitions)
BYTES_MAX: Final = 8 << 20  # size of all entries: 190 000 partitions of three replicas, 42 bytes each
ANSWERS_MAX: Final = 16  # each listener, version and flag has its own response; clients use few of these


class ResponseCache:
    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._stamp: Hashable = None
        self._bodies: dict[Hashable, bytes] = {}  # least recently used first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def kept_bytes(self) -> int:
        return self._bytes

    def get(self, stamp: Hashable, question: Hashable) -> bytes | None:
        """The cached body, if it was cached at this stamp. Another stamp clears the cache."""
        if stamp != self._stamp:
            self._bodies.clear()
            self._bytes = 0
            self._stamp = stamp
        body = self._bodies.pop(question, None)
        if body is not None:
            self._bodies[question] = body
        return body

    def keep(self, stamp: Hashable, question: Hashable, body: bytes) -> None:
        """Keep `body` unless it is shorter than `BYTES_MIN` or exceeds the cache. The least recently used entries are
        evicted."""
        if not BYTES_MIN <= len(body) <= self._bytes_max:
            return
        self.get(stamp, None)
        self._bytes += len(body) - len(self._bodies.pop(question, b""))
        self._bodies[question] = body
        while self._bytes > self._bytes_max or len(self._bodies) > ANSWERS_MAX:
            self._bytes -= len(self._bodies.pop(next(iter(self._bodies))))
