"""Fast path of Produce: answers a run of requests by one function, from the received bytes to the joined responses.

1. Walk the buffer and check its batches (`frame_parser`, `batch_checks`).
2. Append the batches of each partition by one write (`run`, `append`).
3. Pack the responses (`responses`).

A request is taken only under three conditions:
* its bytes before the topics equal the bytes of an earlier request on the general path. For this principal, host and
  listener, the current ACLs allowed every topic of that request;
* each of its batches passed the checks;
* it need not wait for backpressure, offsets or a worker.

Any other request takes the general path, without a write here, and the run ends before this request. A request is never
split between the paths. Errors of the log are answered here, because the general path appends in the same way, with a
run of one.

Hot path: 100-byte records in runs of five, acks=1: see docs/adr/0003 for the cost of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from broker.context import Context
from broker.handlers.produce.append import Refused
from broker.handlers.produce.batch_checks import BYTES_AT_ONCE_MAX, RECORDS_AT_ONCE_MAX, BatchChecks, LoopBudget
from broker.handlers.produce.frame_parser import BATCHES_MAX, REQUESTS_MAX, Head, Row, rows, walk_alike
from broker.handlers.produce.produce import PendingAcks
from broker.handlers.produce.routes import ProduceRoute, Routes
from broker.handlers.produce.run import AlikeRun, BatchIndex, MixedRequest, MixedRun, PartitionBatches
from broker.handlers.request_limits import deadline_s
from broker.net.dispatch import Answer, CloseConnection, Later, Peer
from broker.partition.leading.leader_replica import LeaderReplica
from logformat.errors import ThermoclineError
from logformat.record_batch import RECORD_COUNT, Fields


class FastPath:
    """The fast path of all connections. `routes`: heads and topics of earlier requests."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._partitions = context.registry.partitions
        self._frame_bytes_max = context.config.request_bytes_max
        self._budget = LoopBudget()  # the budget of one run
        self.routes = Routes(self._partitions)

    def answer(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, Answer]:
        """See `Dispatcher.dispatch_run`."""
        context, route = self._context, peer.produce_route
        assert isinstance(route, ProduceRoute)
        if (
            route.principal != peer.principal
            or route.allowed_at != self.routes.forgotten
            or context.throttle.is_busy
            or not context.gate.is_open()
        ):
            return 0, pos, None
        now_ms = context.world.clock.wall_ms()
        self._budget.records, self._budget.bytes = RECORDS_AT_ONCE_MAX, BYTES_AT_ONCE_MAX
        run: AlikeRun | MixedRun | None = self._alike(route, view, pos, end, now_ms)
        if run is None and (route.alike is None or not route.alike.begins(view, pos, end)):
            run = MixedWalk(context, route.head, now_ms, self._budget).run(route, view, pos, end)
        if run is None:
            return 0, pos, None
        acks = route.head.acks
        # With acks=0 an error closes the connection: as in Kafka, later requests are not read.
        ends_refused = acks == 0 and run.count > 1
        refused: list[Refused] = []
        for share in run.shares:
            refused += share.append(context, now_ms, ends_refused=ends_refused)
        context.metrics.requests[0] += run.tried
        context.metrics.failed_produce_requests += len(refused)
        if acks == 0:
            if refused:
                raise CloseConnection(f"produce with acks=0 failed: {refused[0]}")
            return run.count, run.end, None
        if acks == -1 and (later := self._later(run, route.head.timeout_ms)) is not None:
            return run.count, run.end, later
        return run.count, run.end, [run.answers()]

    def _alike(self, route: ProduceRoute, view: memoryview, pos: int, end: int, now_ms: int) -> AlikeRun | None:
        """The requests for the same partition as the peer's last request."""
        known = route.alike
        if known is None or route.key is None:
            return None
        checks = route.checks
        if checks.partition is not self._partitions.get(route.key) or not checks.renew(now_ms):
            route.alike = None
            return None
        walked = walk_alike(known, checks.check, view, pos, end, self._frame_bytes_max)
        pos, correlation_ids, batches, headers = walked
        if not correlation_ids:
            return None
        share = PartitionBatches(checks, batches, headers)
        if sum(share.counts) > share.offsets_left:
            return None
        return AlikeRun(pos, share, correlation_ids, route.form)

    def _later(self, run: AlikeRun | MixedRun, timeout_ms: int) -> Later | None:
        """The response that is sent when every batch is committed, failed or timed out; None if all are committed
        already."""
        pending = PendingAcks()
        until_s = deadline_s(timeout_ms)
        for share in run.shares:
            pending.wait(share.partition, share.end_offset, until_s, share.fail)
        if not pending:
            return None
        later = Later(blocks=False)
        pending.when_done(partial(self._complete, later, run))
        return later

    def _complete(self, later: Later, run: AlikeRun | MixedRun) -> None:
        if self._context.gate.is_open():
            later.answer([run.answers()])
        else:
            later.fail(CloseConnection("this process slept or was superseded while the request was under way"))


class MixedWalk:
    """Collects requests with the same head, for any partitions, into one share per partition."""

    __slots__ = ("_budget", "_context", "_head", "_now_ms", "_partitions", "_shares")

    def __init__(self, context: Context, head: Head, now_ms: int, budget: LoopBudget) -> None:
        self._context = context
        self._budget = budget
        self._partitions: Mapping[tuple[str, int], LeaderReplica] = context.registry.partitions
        self._head = head
        self._now_ms = now_ms
        self._shares: dict[tuple[str, int], PartitionBatches] = {}

    def run(self, route: ProduceRoute, view: memoryview, pos: int, end: int) -> MixedRun | None:
        """The requests of `view[pos:end]` that have the head of the peer's last request; None if there is no such
        request."""
        head, frame_bytes_max = self._head, self._context.config.request_bytes_max
        requests: list[MixedRequest] = []
        batches = 0
        requests_max = 1 if head.acks == 0 else REQUESTS_MAX  # requests after a refused request are not appended
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

    def _take(self, view: memoryview, found: list[Row]) -> list[BatchIndex] | None:
        """Add the batch of each row to its partition's share. None if the request must take the general path; no share
        then has a batch of it."""
        shares = self._shares
        checked: list[tuple[PartitionBatches, Fields]] = []
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
        places: list[BatchIndex] = []
        for (share, header), (_, _, at, to) in zip(checked, found, strict=True):
            places.append((share, len(share.batches)))
            share.batches.append(view[at:to])
            share.headers.append(header)
            share.counts.append(header[RECORD_COUNT])
        return places

    def _share(self, topic: str, index: int) -> PartitionBatches | None:
        """An empty share; None when the partition accepts no batch."""
        partition = self._partitions.get((topic, index))
        if partition is None:
            return None
        head = self._head
        try:
            checks = BatchChecks(self._context, partition, head.version, head.acks, self._now_ms, self._budget)
        except ThermoclineError:
            return None
        return PartitionBatches(checks, [], [])
