"""Steps of a produce request, in order: wait for backpressure and offsets, inspect records in a worker, verify new
transactions with their coordinator, recompress in workers, append, wait for acks.

A request that need not wait is appended while it is dispatched. A request with very many partitions or with batches to
recompress is appended in pieces, in its order. The event loop runs other work between the pieces. The connection's next
request is dispatched once the request is completely appended; it does not wait for the acks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.handlers.produce import produce, recompression
from broker.handlers.produce.verification import Verification, unverified, verify
from broker.handlers.request_limits import deadline_s
from broker.handlers.responder import Responder
from broker.handlers.slots import owner_of
from broker.net.dispatch import Answer, CloseConnection, Peer
from broker.wire.framing import RequestHeader
from broker.wire.messages import ProduceRequest, ProduceRequestTopic, ProduceResponse
from logformat.errors import StorageFailed
from seams.loop.slots import Slots
from seams.loop.turns import ROWS_PER_TURN, next_turn

_RESERVATION_WAIT_MAX_S: Final = 10.0


class ProduceFlow:
    def __init__(self, context: Context, responder: Responder) -> None:
        self._context = context
        self._responder = responder
        self._recompressor = recompression.Recompressor(context)
        self._inspecting = Slots(1)  # one thread reads records

    def answer(self, header: RequestHeader, call: Call, request: ProduceRequest) -> Answer:
        """Append at once unless the request has to wait. Raises CloseConnection for a refused batch with acks=0."""
        if recompression.jobs(self._context, request, call.version):
            return self._responder.later(self.answer_wide(header, call, request))
        wait, uninspected = self._wait_for_room(request), produce.uninspected(self._context, request)
        if wait is not None or uninspected or unverified(self._context, request):
            return self._responder.later(self._after(wait, uninspected, header, call, request))
        return self._append(header, call, request, {}, None)

    async def answer_wide(self, header: RequestHeader, call: Call, request: ProduceRequest) -> Answer:
        """Append piece by piece, in order. The connection's next request waits until all pieces are appended."""
        context, until_s = self._context, deadline_s(request.timeout_ms)
        response = ProduceResponse()
        pending = produce.PendingAcks()
        recompresses = bool(recompression.jobs(context, request, call.version))
        for piece in pieces(request, recompression.BATCHES_MAX if recompresses else ROWS_PER_TURN):
            if response.responses:
                await next_turn()
            uninspected = produce.uninspected(context, piece)
            inspections = await self._ready(self._wait_for_room(piece), uninspected, call.peer, until_s)
            if not context.gate.is_open():
                await context.gate.opened()
            verification = await self._verified(call, piece)
            try:
                appended = await self._append_piece(call, piece, pending, inspections, verification, until_s)
            finally:
                if verification is not None:
                    verification.end()
            join(response, appended)
        response.responses += call.refused
        if request.acks == 0:
            _check_unacknowledged(response)
            return None
        if pending:
            return produce.later(response, pending, partial(self._responder.complete, header))
        return await self._responder.in_turns(header, response)

    async def _append_piece(
        self,
        call: Call,
        piece: ProduceRequest,
        pending: produce.PendingAcks,
        inspections: produce.Inspections,
        verification: Verification | None,
        until_s: float,
    ) -> ProduceResponse:
        """Append one piece, in the codecs of its topics. A batch that is not recompressed by `until_s` is refused."""
        append = partial(produce.append_all, self._context, call, piece, pending, inspections, verification)
        jobs = recompression.jobs(self._context, piece, call.version)
        if not jobs:
            return append()
        owner = owner_of(call.peer)
        try:
            recompressed = await self._recompressor.run(jobs, until_s, owner)
        except TimeoutError:
            late = TimeoutError(
                "the batch was not recompressed within the request's timeout, and nothing is written; send it again"
            )
            return append(
                {id(job.data): recompression.Recompressed(job.partition, job.leader_epoch, late) for job in jobs}
            )
        try:
            return append(recompressed)
        finally:
            self._recompressor.release(jobs, owner)

    def _wait_for_room(self, request: ProduceRequest) -> Awaitable[object] | None:
        """The backpressure or reservation that the request must wait for, or None."""
        wait: Awaitable[object] | None = self._context.throttle.wait(request)
        if wait is None and (short := produce.short_of_offsets(self._context, request)):
            # While the store is slow or away, the reservation is used up. A request is then delayed, and at last gets
            # KAFKA_STORAGE_ERROR.
            wait = produce.more_offsets(short, min(max(request.timeout_ms, 0) / 1000, _RESERVATION_WAIT_MAX_S))
        return wait

    def _append(
        self,
        header: RequestHeader,
        call: Call,
        request: ProduceRequest,
        inspections: produce.Inspections,
        verification: Verification | None,
    ) -> Answer:
        pending = produce.PendingAcks()
        response = produce.append_all(self._context, call, request, pending, inspections, verification)
        response.responses += call.refused
        if request.acks == 0:
            _check_unacknowledged(response)
            return None
        if pending:
            return produce.later(response, pending, partial(self._responder.complete, header))
        return self._responder.now(header, response)

    async def _after(
        self,
        throttled: Awaitable[object] | None,
        uninspected: produce.Uninspected,
        header: RequestHeader,
        call: Call,
        request: ProduceRequest,
    ) -> Answer:
        inspections = await self._ready(throttled, uninspected, call.peer, deadline_s(request.timeout_ms))
        verification = await self._verified(call, request)
        try:
            return self._append(header, call, request, inspections, verification)
        finally:
            if verification is not None:
                verification.end()

    async def _verified(self, call: Call, request: ProduceRequest) -> Verification | None:
        """The coordinators' answers about transactions that begin here; None if no transaction begins. A transaction
        marker that is written before the append invalidates the answers.
        """
        wanted = unverified(self._context, request)
        return await verify(self._context, call, request, wanted) if wanted else None

    async def _ready(
        self, throttled: Awaitable[object] | None, uninspected: produce.Uninspected, peer: Peer, until_s: float
    ) -> produce.Inspections:
        """Wait for backpressure and, until the loop's time `until_s`, for the worker that inspects records."""
        if throttled is not None:
            # Wait only once; if the pressure lasts, the append decides. If the log failed meanwhile, its error refuses
            # the batch.
            with suppress(StorageFailed):
                await throttled
        return await produce.inspect_in_worker(self._context, uninspected, self._inspecting, owner_of(peer), until_s)


def _check_unacknowledged(response: ProduceResponse) -> None:
    # acks=0 has no response. As in Kafka, an error closes the connection, so that the producer refreshes its metadata.
    failed = [answer for topic in response.responses for answer in topic.partition_responses if answer.error_code]
    if failed:
        why = failed[0].error_message or ErrorCode(failed[0].error_code).name
        raise CloseConnection(f"produce with acks=0 failed: {why}")


def pieces(request: ProduceRequest, rows_max: int = ROWS_PER_TURN) -> Iterator[ProduceRequest]:
    """The request in parts of at most `rows_max` partitions, in its order."""
    topics: list[ProduceRequestTopic] = []
    room = rows_max
    for topic in request.topic_data:
        rows = topic.partition_data
        for start in range(0, len(rows), rows_max) or (0,):
            part = rows[start : start + rows_max]
            if topics and len(part) + 1 > room:
                yield _piece(request, topics)
                topics, room = [], rows_max
            topics.append(ProduceRequestTopic(name=topic.name, partition_data=part))
            room -= len(part) + 1
    yield _piece(request, topics)


def join(response: ProduceResponse, answered: ProduceResponse) -> None:
    """Add the response of the next piece. If a topic is split between two pieces, it has one entry, because Sarama
    reads only the last entry of a topic."""
    topics, more = response.responses, answered.responses
    if topics and more and topics[-1].name == more[0].name:
        topics[-1].partition_responses += more[0].partition_responses
        more = more[1:]
    topics += more


def _piece(request: ProduceRequest, topics: list[ProduceRequestTopic]) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=request.transactional_id, acks=request.acks, timeout_ms=request.timeout_ms, topic_data=topics
    )
