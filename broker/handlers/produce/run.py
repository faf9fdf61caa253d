"""A run of produce requests with one joined answer.

Batches are appended partition by partition (`PartitionBatches`), each batch once and in the order of arrival. Responses
follow the order of the requests. A response has the results of its request's batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from broker.context import Context
from broker.errors import code_of
from broker.handlers.produce.append import Refused, append_run
from broker.handlers.produce.batch_checks import BatchChecks
from broker.handlers.produce.frame_parser import Row
from broker.handlers.produce.responses import AlikeAnswer, Outcome, answer
from hotstore.log.partition_log import Appended
from logformat.record_batch import RECORD_COUNT, Fields

BatchIndex = tuple["PartitionBatches", int]
"""A batch: the batches of its partition, and its number among them."""

MixedRequest = tuple[int, Sequence[Row], Sequence[BatchIndex]]
"""Correlation id, the named partitions, and the position of each batch."""


class PartitionBatches:
    """The batches of a run for one partition, and their results."""

    __slots__ = (
        "_committed_end",
        "_failure",
        "appended",
        "batches",
        "checks",
        "counts",
        "each",
        "end_offset",
        "headers",
        "offsets_left",
        "partition",
    )

    def __init__(self, checks: BatchChecks, batches: list[memoryview], headers: list[Fields]) -> None:
        self.checks = checks
        self.partition = partition = checks.partition
        self.batches = batches
        self.headers = headers
        self.counts = [header[RECORD_COUNT] for header in headers]
        log = partition.log
        self.offsets_left = log.assignable_end_offset - log.log_end_offset
        """Offsets that the log may assign without a new reservation."""
        self.end_offset = 0
        """Set by the append: all batches are committed when the high watermark is at or above it."""
        self.appended: Appended | None = None
        """Set if the offsets of the batches are contiguous and no commit failed."""
        self.each: Sequence[Appended | Refused] = ()
        """The result of each batch, if `appended` is not set."""
        self._failure: Exception | None = None
        self._committed_end = 0  # the high watermark when the commit failed

    def append(self, context: Context, now_ms: int, *, ends_refused: bool) -> Sequence[Refused]:
        """Append the batches (`append_run`). Returns the errors."""
        result = append_run(context, self.partition, self.batches, self.headers, now_ms, ends_refused=ends_refused)
        self.batches = []  # the connection reuses the buffer from now on
        if isinstance(result, Appended):
            self.appended = result
            self.end_offset = result.last_offset + 1
            return ()
        self.each = result
        self.end_offset = max([one.last_offset + 1 for one in result if isinstance(one, Appended)], default=0)
        return [one for one in result if not isinstance(one, Appended)]

    def fail(self, why: Exception) -> None:
        """The commit failed with `why`. Batches that were already committed succeed, as if each batch had been appended
        alone."""
        appended = self.appended
        if appended is not None:
            ends = zip(self.base_offsets(appended), self.counts, strict=True)
            self.each = [appended._replace(base_offset=base, last_offset=base + count - 1) for base, count in ends]
            self.appended = None
        self._failure, self._committed_end = why, self.partition.high_watermark

    def base_offsets(self, appended: Appended) -> Iterable[int]:
        """Base offset of each batch, if their offsets are contiguous."""
        if len(self.counts) == 1:
            return (appended.base_offset,)
        return accumulate(self.counts[:-1], initial=appended.base_offset)

    def outcomes(self) -> list[Outcome]:
        appended, start = self.appended, self.partition.log_start_offset
        if appended is not None:
            time_ms = appended.log_append_time_ms
            return [(0, offset, time_ms, start, None) for offset in self.base_offsets(appended)]
        return [self._outcome(one, start) for one in self.each]

    def _outcome(self, one: Appended | Refused, log_start_offset: int) -> Outcome:
        if not isinstance(one, Appended):
            return code_of(one), -1, -1, -1, str(one)
        why = self._failure
        if why is not None and one.last_offset >= self._committed_end:
            return code_of(why), -1, -1, log_start_offset, str(why)
        return 0, one.base_offset, one.log_append_time_ms, log_start_offset, None


class MixedRun:
    """Requests of one version for any partitions. `end`: where the next request begins."""

    __slots__ = ("_requests", "_version", "count", "end", "shares")

    def __init__(
        self, end: int, shares: Sequence[PartitionBatches], version: int, requests: Sequence[MixedRequest]
    ) -> None:
        self.end = end
        self.count = len(requests)
        self.shares = shares
        self._version = version
        self._requests = requests

    @property
    def tried(self) -> int:
        """Number of tried requests: all of them (see `AlikeRun.tried`)."""
        return self.count

    def answers(self) -> bytes:
        outcomes = {share: share.outcomes() for share in self.shares}
        return b"".join(
            [
                answer(
                    self._version,
                    correlation_id,
                    [(row[0], row[1], outcomes[share][at]) for row, (share, at) in zip(rows, places, strict=True)],
                )
                for correlation_id, rows, places in self._requests
            ]
        )


class AlikeRun:
    """Requests with one batch each for the same partition, the most common shape."""

    __slots__ = ("_correlation_ids", "_form", "count", "end", "shares")

    def __init__(self, end: int, share: PartitionBatches, correlation_ids: Sequence[int], form: AlikeAnswer) -> None:
        self.end = end
        self.count = len(correlation_ids)
        self.shares = (share,)
        self._correlation_ids = correlation_ids
        self._form = form

    @property
    def tried(self) -> int:
        """Number of requests whose batch was tried. A refused batch can end the run before later batches."""
        return len(self.shares[0].each) or self.count

    def answers(self) -> bytes:
        (share,), form, ids = self.shares, self._form, self._correlation_ids
        appended = share.appended
        if appended is None:
            return b"".join([form.one(*of) for of in zip(ids, share.outcomes(), strict=True)])
        start, time_ms = share.partition.log_start_offset, appended.log_append_time_ms
        return form.joined(ids, share.base_offsets(appended), time_ms, start)
