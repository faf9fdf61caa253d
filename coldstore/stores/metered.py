"""A store wrapper that counts requests, bytes, outcomes and latency by operation, for /metrics and the estimated bill.

Results and errors pass unchanged. Counting costs about a microsecond a call and a fixed amount of memory. A request is
the unit that a store bills: a page of a listing, a thousand deletions, a part of a multipart upload.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from coldstore.encryption.marker import KeyRefused
from coldstore.object_store import (
    AccessRefused,
    ChecksumRefused,
    ConditionalConflict,
    Got,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    StoreUnavailable,
    Upload,
)
from coldstore.stores.limits import segment_requests
from coldstore.stores.operations import Operation
from logformat.errors import ThermoclineError
from seams.clock import Clock
from seams.files.disk import File

# Upper bounds of the latency buckets in milliseconds. One more bucket counts longer times.
LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
_PER_REQUEST = 1000  # listed entries or deleted keys in one request
_FAILURE_CHARS = 200


class CallOutcome(Enum):
    """The outcome of a call. The value is its label in metrics. A 304, a 404 and a lost race are answers, not
    errors."""

    OK = "ok"
    UNCHANGED = "unchanged"  # 304
    MISSING = "missing"  # 404
    LOST_RACE = "lost_race"  # 412
    CONFLICT = "conflict"  # 409: another conditional write was in flight; the caller tries again
    UNAVAILABLE = "unavailable"  # 5xx, reset, time-out, an invalid answer
    REFUSED = "refused"  # 401, 403
    CHECKSUM = "checksum"  # the store received other bytes than were sent
    ABANDONED = "abandoned"  # the caller stopped waiting
    OTHER = "other"


ANSWERS: Final = frozenset({CallOutcome.OK, CallOutcome.UNCHANGED, CallOutcome.MISSING, CallOutcome.LOST_RACE})
_OUTCOMES: Final = {
    ObjectMissing: CallOutcome.MISSING,
    PreconditionFailed: CallOutcome.LOST_RACE,
    ConditionalConflict: CallOutcome.CONFLICT,
    StoreUnavailable: CallOutcome.UNAVAILABLE,
    AccessRefused: CallOutcome.REFUSED,
    ChecksumRefused: CallOutcome.CHECKSUM,
}


@dataclass(slots=True)
class Meter:
    """One operation's counts. `bytes`: size of the bodies that puts sent and gets received. `failed_in_a_row`: failures
    since the last answer. `failing_since_s`: time of the first of them. `failure`: message of the last one.
    `missing_key`: id of the key for whose absence the last one failed.
    """

    requests: int = 0
    bytes: int = 0
    outcomes: Counter[CallOutcome] = field(default_factory=Counter)
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))  # by LATENCY_BOUNDS_MS
    failed_in_a_row: int = 0
    failing_since_s: float = 0.0
    failure: str = ""
    missing_key: str = ""

    def ended(self, outcome: CallOutcome, failure: str, now_s: float, missing_key: str = "") -> None:
        """Count the outcome of a call. A lost race for a root (412, 409) is an answer. An abandoned call has no
        answer."""
        self.outcomes[outcome] += 1
        if outcome is not CallOutcome.ABANDONED:
            self.missing_key = missing_key
        if outcome in ANSWERS or outcome is CallOutcome.CONFLICT:
            self.failed_in_a_row, self.failure = 0, ""
            return
        if not self.failed_in_a_row:
            self.failing_since_s = now_s
        self.failed_in_a_row += 1
        self.failure = failure[:_FAILURE_CHARS] or "no answer in time"

    @property
    def calls(self) -> int:
        return sum(self.outcomes.values())

    @property
    def errors(self) -> int:
        """Number of calls that got no answer or were refused."""
        return sum(count for outcome, count in self.outcomes.items() if outcome not in ANSWERS)


class Failing(NamedTuple):
    """An operation whose most recent calls all failed."""

    operation: Operation
    failure: str
    tries: int
    seconds: float
    missing_key: str


class LoggedCall(msgspec.Struct, frozen=True):
    """One call. `start` and `length`: the requested range."""

    operation: Operation
    key: str
    start: int = 0
    length: int | None = None
    bytes: int = 0
    outcome: CallOutcome = CallOutcome.OK


@dataclass(slots=True, eq=False)
class _Call:
    """Counts of a running call."""

    requests: int = 1
    bytes: int = 0
    start: int = 0
    length: int | None = None
    outcome: CallOutcome = CallOutcome.OK


class MeteredStore:
    """An `ObjectStore` that counts. With `log_max` > 0 the last calls are kept in `log` (for tests)."""

    def __init__(
        self,
        inner: ObjectStore,
        clock: Clock,
        *,
        segment_requests: Callable[[int], int] = segment_requests,
        log_max: int = 0,
    ) -> None:
        self.meters = {operation: Meter() for operation in Operation}
        self.log: deque[LoggedCall] = deque(maxlen=log_max)
        self._inner = inner
        self._clock = clock
        self._segment_requests = segment_requests

    @property
    def url(self) -> str:
        return self._inner.url

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        with self._counting(Operation.GET, key) as call:
            call.start, call.length = start, length
            got = await self._inner.get(key, start, length)
            call.bytes = len(got.data)
            return got

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        with self._counting(Operation.GET_IF_CHANGED, key) as call:
            got = await self._inner.get_if_changed(key, etag)
            if got is None:
                call.outcome = CallOutcome.UNCHANGED
            else:
                call.bytes = len(got.data)
            return got

    async def head(self, key: str) -> ObjectInfo:
        with self._counting(Operation.HEAD, key):
            return await self._inner.head(key)

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        with self._counting(Operation.PUT_SEGMENT, key) as call:
            call.bytes, call.requests = body.size, self._segment_requests(body.size)
            return await self._inner.put_segment(key, body)

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        with self._counting(Operation.PUT_ROOT, key) as call:
            call.bytes = len(data)
            return await self._inner.put_root(key, data, if_match)

    async def delete(self, keys: Sequence[str]) -> None:
        with self._counting(Operation.DELETE, keys[0] if keys else "") as call:
            call.requests = -(-len(keys) // _PER_REQUEST)
            await self._inner.delete(keys)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        # For a listing only requests are counted, one per page of entries: its latency would include the consumer's
        # time.
        meter, entries, outcome = self.meters[Operation.LIST], 0, CallOutcome.OK
        said = missing_key = ""
        meter.requests += 1
        try:
            async for info in self._inner.list(prefix):
                entries += 1
                if entries % _PER_REQUEST == 0:
                    meter.requests += 1
                yield info
        except ThermoclineError as failure:
            outcome, said, missing_key = _outcome_of(failure), str(failure), _missing_key(failure)
            raise
        finally:
            meter.ended(outcome, said, self._clock.monotonic_s(), missing_key)
        self.log.append(LoggedCall(Operation.LIST, prefix, length=entries))

    def failing(self, tries_min: int) -> Sequence[Failing]:
        """Operations that failed at least `tries_min` times in a row, with the last failure."""
        now_s = self._clock.monotonic_s()
        return [
            Failing(operation, meter.failure, meter.failed_in_a_row, now_s - meter.failing_since_s, meter.missing_key)
            for operation, meter in self.meters.items()
            if meter.failed_in_a_row >= tries_min
        ]

    def open_local(self, key: str) -> File | None:
        return self._inner.open_local(key)

    async def close(self) -> None:
        await self._inner.close()

    @contextmanager
    def _counting(self, operation: Operation, key: str) -> Iterator[_Call]:
        call = _Call()
        began = self._clock.monotonic_s()
        outcome, said, missing_key = CallOutcome.ABANDONED, "", ""
        try:
            yield call
            outcome = call.outcome
        except ThermoclineError as failure:
            outcome, said, missing_key = _outcome_of(failure), str(failure), _missing_key(failure)
            raise
        finally:
            now_s = self._clock.monotonic_s()
            seconds = now_s - began
            meter = self.meters[operation]
            meter.ended(outcome, said, now_s, missing_key)
            meter.requests += call.requests
            meter.bytes += call.bytes
            meter.seconds += seconds
            meter.buckets[bisect_left(LATENCY_BOUNDS_MS, seconds * 1000)] += 1
            if self.log.maxlen:
                self.log.append(LoggedCall(operation, key, call.start, call.length, call.bytes, outcome))


def _missing_key(failure: ThermoclineError) -> str:
    return failure.key_id if isinstance(failure, KeyRefused) else ""


def _outcome_of(failure: ThermoclineError) -> CallOutcome:
    return next((outcome for kind, outcome in _OUTCOMES.items() if isinstance(failure, kind)), CallOutcome.OTHER)
