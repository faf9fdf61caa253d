"""A run of produce requests is one function: from the bytes that arrived to the joined answers.

Three steps over plain columns: what lies in the window is walked and checked (`produce_walk`, `batch_checks`), the
batches of each partition are appended by one write (`produce_append`), the answers are packed (`produce_answers`).
Owns what is taken this way. Always true: a request is taken only if what stands before its topics equals, byte for
byte, that of one which the general way read, and the same principal on the same listener was allowed every topic it
names; every batch of it passed the checks; nobody has to wait for room, offsets or a worker. Whatever else there is
ends the run before it and goes the general way, of which nothing was written yet. What the log refuses is answered
here: the general way's append is this one, with a run of one. Must not know what a request or an answer looks like.

Hot path: 100-byte records in runs of five, acks=1: see docs/adr/0003 for what a request costs.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.context import Call, Context
from broker.handlers.batch_checks import BatchChecks
from broker.handlers.produce import ACKS, PendingAcks
from broker.handlers.produce_answers import ALIKE_SINCE, AlikeAnswer
from broker.handlers.produce_append import Refused
from broker.handlers.produce_run import AlikeRun, MixedRun, Place, Share
from broker.handlers.produce_walk import (
    BATCHES_MAX,
    REQUESTS_MAX,
    AlikeHead,
    Head,
    Row,
    alike_head,
    head_bytes,
    rows,
    walk_alike,
)
from broker.handlers.request_deadline import deadline_s
from broker.net.dispatch import Answer, CloseConnection, Later, Peer
from broker.wire.messages import ProduceRequest
from logformat.errors import ThermoclineError
from logformat.record_batch import RECORD_COUNT, Fields

_TOPICS_MAX: Final = 10_000
"""Topics of all heads together: clients with ever new names cost the general way, not memory (1.3 KB each at most)."""

HeadKey = tuple[str, str, bytes, bytes]
"""Listener and principal of the peer, and a head: what one principal was allowed is never taken for another."""


class Route:
    """What one peer does again and again, as that principal."""

    __slots__ = ("alike", "checks", "form", "head", "key", "principal")

    def __init__(self, head: Head, principal: str) -> None:
        self.head = head
        self.principal = principal
        self.key: tuple[str, int] | None = None  # of its last request for one partition
        # These three once it was not the first for that partition:
        self.alike: AlikeHead | None = None
        self.form: AlikeAnswer
        self.checks: BatchChecks


class FastPath:
    """One table for all connections; each peer has a Route."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._partitions = context.registry.partitions
        self._frame_bytes_max = context.config.request_bytes_max
        self._heads: dict[HeadKey, Head] = {}
        self._topics = 0

    def learn(self, peer: Peer, frame: memoryview, body_at: int, call: Call, request: ProduceRequest) -> None:
        """The general way took this request, whose body begins at `body_at`: remember its head and its topics."""
        if request.transactional_id is not None or request.acks not in ACKS:
            return  # refused
        partitions = self._partitions
        names = [
            topic.name
            for topic in request.topic_data
            if any((topic.name, data.index) in partitions for data in topic.partition_data)
        ]  # those nobody knows may be of any length and number
        begins = head_bytes(frame, body_at, call.version)
        if not names or begins is None:
            return
        key = (peer.listener, peer.principal, *begins)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = Head(call.version, request.acks, request.timeout_ms, *begins)
        for name in names:
            self._remember(key, head, name)
        route = peer.produce_route
        if not isinstance(route, Route) or route.head is not head:
            peer.produce_route = Route(head, peer.principal)

    def _remember(self, key: HeadKey, head: Head, name: str) -> None:
        encoded = name.encode()
        if encoded in head.topics:
            return
        if self._topics >= _TOPICS_MAX:
            for other in self._heads.values():
                other.topics.clear()  # peers hold on to their heads
            self._heads = {key: head}
            self._topics = 0
        head.topics[encoded] = name
        self._topics += 1

    def answer(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, Answer]:
        """See `Dispatcher.dispatch_run`."""
        context, route = self._context, peer.produce_route
        assert isinstance(route, Route)
        if route.principal != peer.principal or context.throttle.is_busy or not context.gate.is_open():
            return 0, pos, None
        now_ms = context.world.clock.wall_ms()
        run: AlikeRun | MixedRun | None = self._alike(route, view, pos, end, now_ms)
        if run is None and (route.alike is None or not route.alike.begins(view, pos, end)):
            run = self._mixed(route, view, pos, end, now_ms)
        if run is None:
            return 0, pos, None
        acks = route.head.acks
        # A refusal closes the connection of acks=0: what came behind it is not looked at, as in Kafka.
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

    def _alike(self, route: Route, view: memoryview, pos: int, end: int, now_ms: int) -> AlikeRun | None:
        """The requests that are for the same partition as the peer's last one."""
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
        share = Share(checks, batches, headers)
        if sum(share.counts) > share.offsets_left:
            return None
        return AlikeRun(pos, share, correlation_ids, route.form)

    def _mixed(self, route: Route, view: memoryview, pos: int, end: int, now_ms: int) -> MixedRun | None:
        """The requests that begin as the peer's last one did, whatever their partitions are."""
        head = route.head
        shares: dict[tuple[str, int], Share] = {}
        requests: list[tuple[int, list[Row], list[Place]]] = []
        batches = 0
        requests_max = 1 if head.acks == 0 else REQUESTS_MAX  # one's refusal must keep the next from being appended
        while end - pos >= head.size and len(requests) < requests_max:
            size, start, correlation_id, rest = head.unpack(view, pos)
            stop = pos + 4 + size
            if start != head.start or rest != head.rest or stop > end or size > self._frame_bytes_max:
                break
            found = rows(head, view, pos + head.size, stop)
            if found is None or batches + len(found) > BATCHES_MAX:
                break
            places = self._take(head, shares, view, found, now_ms)
            if places is None:
                break
            batches += len(found)
            requests.append((correlation_id, found, places))
            if len(found) == 1:
                self._expect(route, view, pos, found[0], places[0][0].checks)
            pos = stop
        if not requests:
            return None
        return MixedRun(pos, [share for share in shares.values() if share.batches], head.version, requests)

    @staticmethod
    def _expect(route: Route, view: memoryview, pos: int, row: Row, checks: BatchChecks) -> None:
        """The request at `pos` is for one partition: after the second one for the same, more of them are expected."""
        head, topic, index = route.head, row[0], row[1]
        if route.key != (topic, index):
            route.key = topic, index
            route.alike = None
        elif route.alike is None and head.version >= ALIKE_SINCE:
            route.alike = alike_head(head, view, pos, row)
            route.form = AlikeAnswer(head.version, topic, index)
            route.checks = checks

    def _take(
        self, head: Head, shares: dict[tuple[str, int], Share], view: memoryview, found: list[Row], now_ms: int
    ) -> list[Place] | None:
        """Give each row's batch to its partition's share: which, and its place there. None: the request has to go the
        general way, and no share has anything of it."""
        checked: list[tuple[Share, Fields]] = []
        for topic, index, at, to in found:
            share = shares.get((topic, index))
            if share is None:
                share = self._share(head, topic, index, now_ms)
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

    def _share(self, head: Head, topic: str, index: int, now_ms: int) -> Share | None:
        """An empty one; None where no batch would do."""
        partition = self._partitions.get((topic, index))
        if partition is None:
            return None
        try:
            checks = BatchChecks(self._context, partition, head.version, head.acks, now_ms)
        except ThermoclineError:
            return None
        return Share(checks, [], [])

    def _later(self, run: AlikeRun | MixedRun, timeout_ms: int) -> Later | None:
        """The answer that leaves when every batch is committed, failed, or past the timeout; None: they are."""
        pending = PendingAcks()
        until_s = deadline_s(timeout_ms)
        for share in run.shares:
            pending.wait(share.checks.partition, share.end_offset, until_s, share.fail)
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
