"""A run of produce requests is one function: from the bytes that arrived to the joined answers.

Three steps over plain columns: what lies in the window is walked and checked (`frame_parser`, `mixed_frame`,
`batch_checks`), the batches of each partition are appended by one write (`run`, `append`), the answers
are packed (`responses`).
Owns what is taken this way. Always true: a request is taken only if what stands before its topics equals, byte for
byte, that of one which the general way read, and the same principal on the same listener was allowed every topic it
names; every batch of it passed the checks; nobody has to wait for room, offsets or a worker. Whatever else there is
ends the run before it and goes the general way, of which nothing was written yet. What the log refuses is answered
here: the general way's append is this one, with a run of one. Must not know what a request or an answer looks like.

Hot path: 100-byte records in runs of five, acks=1: see docs/adr/0003 for what a request costs.
"""

from __future__ import annotations

from functools import partial

from broker.context import Context
from broker.handlers.produce.append import Refused
from broker.handlers.produce.frame_parser import walk_alike
from broker.handlers.produce.mixed_frame import MixedWalk
from broker.handlers.produce.produce import PendingAcks
from broker.handlers.produce.routes import Route, Routes
from broker.handlers.produce.run import AlikeRun, MixedRun, Share
from broker.handlers.request_deadline import deadline_s
from broker.net.dispatch import Answer, CloseConnection, Later, Peer


class FastPath:
    """One for all connections. `routes`: what it has learned of them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._partitions = context.registry.partitions
        self._frame_bytes_max = context.config.request_bytes_max
        self.routes = Routes(self._partitions)

    def answer(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, Answer]:
        """See `Dispatcher.dispatch_run`."""
        context, route = self._context, peer.produce_route
        assert isinstance(route, Route)
        if route.principal != peer.principal or context.throttle.is_busy or not context.gate.is_open():
            return 0, pos, None
        now_ms = context.world.clock.wall_ms()
        run: AlikeRun | MixedRun | None = self._alike(route, view, pos, end, now_ms)
        if run is None and (route.alike is None or not route.alike.begins(view, pos, end)):
            run = MixedWalk(context, route.head, now_ms).run(route, view, pos, end)
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

    def _later(self, run: AlikeRun | MixedRun, timeout_ms: int) -> Later | None:
        """The answer that leaves when every batch is committed, failed, or past the timeout; None: they are."""
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
