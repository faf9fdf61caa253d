"""Requests that begin alike, whatever their partitions are: walked, checked, and gathered into a share a partition.

Owns how far such a run goes. Always true: a request is taken whole or not at all: where one of its batches may not be
appended, or the log would have to wait for offsets, no share has anything of it and the run ends before it. Must not
know how a share is appended, nor what an answer looks like.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.context import Context
from broker.handlers.produce.batch_checks import BatchChecks
from broker.handlers.produce.frame_parser import BATCHES_MAX, REQUESTS_MAX, Head, Row, rows
from broker.handlers.produce.routes import Route
from broker.handlers.produce.run import MixedRequest, MixedRun, Place, Share
from broker.partition.leading.leader_replica import LeaderReplica
from logformat.errors import ThermoclineError
from logformat.record_batch import RECORD_COUNT, Fields


class MixedWalk:
    """One walk over what arrived, as of `now_ms`."""

    __slots__ = ("_context", "_head", "_now_ms", "_partitions", "_shares")

    def __init__(self, context: Context, head: Head, now_ms: int) -> None:
        self._context = context
        self._partitions: Mapping[tuple[str, int], LeaderReplica] = context.registry.partitions
        self._head = head
        self._now_ms = now_ms
        self._shares: dict[tuple[str, int], Share] = {}

    def run(self, route: Route, view: memoryview, pos: int, end: int) -> MixedRun | None:
        """The requests of `view[pos:end]` that begin as the peer's last one did; None where there is none."""
        head, frame_bytes_max = self._head, self._context.config.request_bytes_max
        requests: list[MixedRequest] = []
        batches = 0
        requests_max = 1 if head.acks == 0 else REQUESTS_MAX  # one's refusal must keep the next from being appended
        while end - pos >= head.size and len(requests) < requests_max:
            size, start, correlation_id, rest = head.unpack(view, pos)
            stop = pos + 4 + size
            if start != head.start or rest != head.rest or stop > end or size > frame_bytes_max:
                break
            found = rows(head, view, pos + head.size, stop)
            if found is None or batches + len(found) > BATCHES_MAX:
                break
            places = self._take(view, found)
            if places is None:
                break
            batches += len(found)
            requests.append((correlation_id, found, places))
            if len(found) == 1:
                route.expect(view, pos, found[0], places[0][0].checks)
            pos = stop
        if not requests:
            return None
        return MixedRun(pos, [share for share in self._shares.values() if share.batches], head.version, requests)

    def _take(self, view: memoryview, found: list[Row]) -> list[Place] | None:
        """Give each row's batch to its partition's share: which, and its place there. None: the request has to go the
        general way, and no share has anything of it."""
        shares = self._shares
        checked: list[tuple[Share, Fields]] = []
        for topic, index, at, to in found:
            share = shares.get((topic, index))
            if share is None:
                share = self._share(topic, index)
                if share is None:
                    return None
                shares[topic, index] = share
            try:
                header = share.checks.check(view, at, to)
            except ThermoclineError:
                return None
            share.offsets_left -= header[RECORD_COUNT]
            if share.offsets_left < 0:
                return None
            checked.append((share, header))
        places: list[Place] = []
        for (share, header), (_, _, at, to) in zip(checked, found, strict=True):
            places.append((share, len(share.batches)))
            share.batches.append(view[at:to])
            share.headers.append(header)
            share.counts.append(header[RECORD_COUNT])
        return places

    def _share(self, topic: str, index: int) -> Share | None:
        """An empty one; None where no batch would do."""
        partition = self._partitions.get((topic, index))
        if partition is None:
            return None
        head = self._head
        try:
            checks = BatchChecks(self._context, partition, head.version, head.acks, self._now_ms)
        except ThermoclineError:
            return None
        return Share(checks, [], [])
