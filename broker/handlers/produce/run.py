"""Requests that are answered as one: what they bring to each partition, and what each of them is told.

Owns the bookkeeping between a run's batches, which are appended partition by partition, and its requests, which are
answered in their order. Always true: a share's batches are appended once, in the order they came; each request hears
what became of its own. Must not know how requests are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from broker.context import Context
from broker.errors import code_of
from broker.handlers.produce.append import Refused, append_run
from broker.handlers.produce.batch_checks import BatchChecks
from broker.handlers.produce.frame_parser import Row
from broker.handlers.produce.responses import AlikeAnswer, Outcome, answer
from hotstore.log.partition_log import Appended
from logformat.record_batch import RECORD_COUNT, Fields

Place = tuple["Share", int]
"""A batch: its share, and its number there."""

MixedRequest = tuple[int, Sequence[Row], Sequence[Place]]
"""Correlation id, the partitions it names, and where the batch for each of them is."""


class Share:
    """What a run brings to one partition, and what became of it."""

    __slots__ = (
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
        self.offsets_left = log.reserved_end - log.log_end_offset
        """How many the log may give before somebody has to wait."""
        self.end_offset = 0
        """Once it is appended: what has to be committed before all of it is."""
        self.appended: Appended | None = None
        """Where its batches lie one behind the other, and nobody failed to commit them."""
        self.each: Sequence[Appended | Refused] = ()
        """Else what became of each."""
        self._failure: Exception | None = None

    def append(self, context: Context, now_ms: int, *, ends_refused: bool) -> Sequence[Refused]:
        """Append it, as `append_run`; why what of it was refused."""
        result = append_run(context, self.partition, self.batches, self.headers, now_ms, ends_refused=ends_refused)
        self.batches = []  # the bytes are somebody else's from now on
        if isinstance(result, Appended):
            self.appended = result
            self.end_offset = result.last_offset + 1
            return ()
        self.each = result
        self.end_offset = max([one.last_offset + 1 for one in result if isinstance(one, Appended)], default=0)
        return [one for one in result if not isinstance(one, Appended)]

    def fail(self, why: Exception) -> None:
        """What was appended is not known to be committed."""
        appended = self.appended
        if appended is not None:
            self.appended, self.each = None, [appended] * len(self.headers)
        self._failure = why

    def base_offsets(self, appended: Appended) -> Iterator[int]:
        """Of each batch, where they lie one behind the other."""
        return accumulate(self.counts[:-1], initial=appended.base_offset)

    def outcomes(self) -> list[Outcome]:
        """What became of each batch."""
        appended, start = self.appended, self.partition.log_start_offset
        if appended is not None:
            time_ms = appended.log_append_time_ms
            return [(0, offset, time_ms, start, None) for offset in self.base_offsets(appended)]
        return [self._outcome(one, start) for one in self.each]

    def _outcome(self, one: Appended | Refused, log_start_offset: int) -> Outcome:
        if not isinstance(one, Appended):
            return code_of(one), -1, -1, -1, str(one)
        why = self._failure
        if why is not None:
            return code_of(why), -1, -1, log_start_offset, str(why)
        return 0, one.base_offset, one.log_append_time_ms, log_start_offset, None


class MixedRun:
    """Requests of one version, each with its correlation id, its rows and where their batches are.

    `end`: where the next request begins."""

    __slots__ = ("_requests", "_version", "count", "end", "shares")

    def __init__(self, end: int, shares: Sequence[Share], version: int, requests: Sequence[MixedRequest]) -> None:
        self.end = end
        self.count = len(requests)
        self.shares = shares
        self._version = version
        self._requests = requests

    @property
    def tried(self) -> int:
        """See `AlikeRun.tried`; a request's batches are all tried."""
        return self.count

    def answers(self) -> bytes:
        """In their order."""
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
    """Requests with one batch each for the same partition: a run of the most common shape."""

    __slots__ = ("_correlation_ids", "_form", "count", "end", "shares")

    def __init__(self, end: int, share: Share, correlation_ids: Sequence[int], form: AlikeAnswer) -> None:
        self.end = end
        self.count = len(correlation_ids)
        self.shares = (share,)
        self._correlation_ids = correlation_ids
        self._form = form

    @property
    def tried(self) -> int:
        """Of its requests, once they were appended: none behind a refused one where that ends the run."""
        return len(self.shares[0].each) or self.count

    def answers(self) -> bytes:
        """In their order."""
        (share,), form, ids = self.shares, self._form, self._correlation_ids
        appended = share.appended
        if appended is None:
            return b"".join([form.one(*of) for of in zip(ids, share.outcomes(), strict=True)])
        start, time_ms = share.partition.log_start_offset, appended.log_append_time_ms
        return form.joined(ids, share.base_offsets(appended), time_ms, start)
