"""Requests that are answered as one: what they bring to each partition, and what each of them is told.

Owns the bookkeeping between a run's batches, which are appended partition by partition, and its requests, which are
answered in their order. Always true: a share's batches are appended once, in the order they came; each request hears
what became of its own. Must not know how requests are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from broker.context import Context
from broker.errors import code_of
from broker.handlers.batch_checks import BatchChecks
from broker.handlers.produce_answers import AloneAnswer, Outcome, answer
from broker.handlers.produce_append import Refused, append_run
from broker.handlers.produce_walk import Row
from broker.partition.replica import Partition
from hotstore.partition_log import Appended
from logformat.record_batch import Fields

RECORD_COUNT: Final = 12  # of a header's fields

Place = tuple["Share", int]
"""A batch: whose, and the how manieth there."""


class Share:
    """What a run brings to one partition, and what became of it."""

    __slots__ = ("_failure", "_result", "batches", "check", "end_offset", "headers", "offsets_left", "partition")

    def __init__(self, partition: Partition, checks: BatchChecks) -> None:
        self.partition = partition
        self.check = checks.check
        self.offsets_left = partition.log.reserved_end - partition.log.log_end_offset
        """How many the log may give before somebody has to wait."""
        self.batches: list[memoryview] = []
        self.headers: list[Fields] = []
        self.end_offset = 0
        """Once it is appended: what has to be committed before all of it is."""
        self._result: Appended | Sequence[Appended | Refused] = ()
        self._failure: Exception | None = None

    def append(self, context: Context, now_ms: int) -> Sequence[Refused]:
        """Append it; why what of it was refused."""
        result = self._result = append_run(context, self.partition, self.batches, self.headers, now_ms)
        self.batches = []  # the bytes are somebody else's from now on
        if isinstance(result, Appended):
            self.end_offset = result.last_offset + 1
            return ()
        self.end_offset = max([one.last_offset + 1 for one in result if isinstance(one, Appended)], default=0)
        return [one for one in result if not isinstance(one, Appended)]

    def fail(self, why: Exception) -> None:
        """What was appended is not known to be committed."""
        self._failure = why

    def outcomes(self) -> list[Outcome]:
        """What became of each batch."""
        result, start = self._result, self.partition.log_start_offset
        if isinstance(result, Appended) and self._failure is None:
            time_ms = result.log_append_time_ms
            return [Outcome(0, offset, time_ms, start) for offset in self._base_offsets(result)]
        each = [result] * len(self.headers) if isinstance(result, Appended) else result
        return [self._outcome(one, start) for one in each]

    def answers(self, form: AloneAnswer, correlation_ids: Sequence[int]) -> bytes | None:
        """The answers to requests with a batch each; None where they differ by more than their offsets."""
        result = self._result
        if not isinstance(result, Appended) or self._failure is not None:
            return None
        start, time_ms = self.partition.log_start_offset, result.log_append_time_ms
        return form.joined(correlation_ids, self._base_offsets(result), time_ms, start)

    def _base_offsets(self, appended: Appended) -> list[int]:
        counts = [header[RECORD_COUNT] for header in self.headers]
        return list(accumulate(counts[:-1], initial=appended.base_offset))

    def _outcome(self, one: Appended | Refused, log_start_offset: int) -> Outcome:
        why = self._failure if isinstance(one, Appended) else one
        if why is not None:
            return Outcome(code_of(why), -1, -1, -1, str(why))
        assert isinstance(one, Appended)
        return Outcome(0, one.base_offset, one.log_append_time_ms, log_start_offset)


class MixedRun:
    """Requests of one version, each with its correlation id, its rows and where their batches are.

    `end`: where the next request begins."""

    __slots__ = ("_requests", "_version", "end", "shares")

    def __init__(
        self,
        end: int,
        shares: Sequence[Share],
        version: int,
        requests: Sequence[tuple[int, Sequence[Row], list[Place]]],
    ) -> None:
        self.end = end
        self.shares = shares
        self._version = version
        self._requests = requests

    @property
    def count(self) -> int:
        return len(self._requests)

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

    __slots__ = ("_correlation_ids", "_form", "_row", "_version", "end", "shares")

    def __init__(
        self, end: int, share: Share, version: int, row: tuple[str, int], ids: Sequence[int], form: AloneAnswer
    ) -> None:
        self.end = end
        self.shares = (share,)
        self._version = version
        self._row = row
        self._correlation_ids = ids
        self._form = form

    @property
    def count(self) -> int:
        return len(self._correlation_ids)

    def answers(self) -> bytes:
        """In their order."""
        (share,), ids = self.shares, self._correlation_ids
        return share.answers(self._form, ids) or b"".join(
            [
                answer(self._version, correlation_id, ((*self._row, outcome),))
                for correlation_id, outcome in zip(ids, share.outcomes(), strict=True)
            ]
        )
