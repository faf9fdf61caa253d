"""Order of a produce request: wait for backpressure and offsets, inspect records in a worker, append, wait for acks.

A request that need not wait is appended while it is dispatched. A request of very many partitions is appended in
pieces, in its order; the event loop runs other work in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from broker.context import Call, Context
from broker.handlers.produce import produce
from broker.handlers.responder import Responder
from broker.net.dispatch import Answer, CloseConnection, Later, Part
from broker.wire.framing import RequestHeader
from broker.wire.messages import ProduceRequest, ProduceRequestTopic, ProduceResponse
from logformat.errors import StorageFailed
from seams.loop.turns import ROWS_PER_TURN, next_turn

_RESERVATION_WAIT_MAX_S: Final = 10.0


class ProduceFlow:
    def __init__(self, context: Context, responder: Responder) -> None:
        self._context = context
        self._responder = responder

    def answer(self, header: RequestHeader, call: Call, request: ProduceRequest) -> Answer:
        """Append now unless the request has to wait. Raises CloseConnection for a refused batch with acks=0."""
        wait, uninspected = self._wait_for_room(request), produce.uninspected(self._context, request)
        if wait is not None or uninspected:
            return self._responder.later(self._after(wait, uninspected, header, call, request))
        return self._append(header, call, request)

    async def answer_wide(self, header: RequestHeader, call: Call, request: ProduceRequest) -> list[Part] | None:
        """Append piece by piece, in order. The connection's next request waits until all pieces are appended."""
        context = self._context
        response = ProduceResponse()
        pending = produce.PendingAcks()
        for piece in pieces(request):
            inspections = await self._ready(self._wait_for_room(piece), produce.uninspected(context, piece))
            if not context.gate.is_open():
                await context.gate.opened()
            join(response, produce.append_all(context, call, piece, pending, inspections))
            await next_turn()
        if request.acks == 0:
            _check_unacknowledged(response)
            return None
        if pending:
            return await produce.later(response, pending, partial(self._responder.complete, header)).future
        return await self._responder.in_turns(header, response)

    def _wait_for_room(self, request: ProduceRequest) -> Awaitable[object] | None:
        """The backpressure or reservation that the request has to wait for; None when there is none."""
        wait: Awaitable[object] | None = self._context.throttle.wait(request)
        if wait is None and (short := produce.short_of_offsets(self._context, request)):
            # The reservation is used up while the store is slow or away: delay first, then KAFKA_STORAGE_ERROR.
            wait = produce.more_offsets(short, min(max(request.timeout_ms, 0) / 1000, _RESERVATION_WAIT_MAX_S))
        return wait

    def _append(
        self,
        header: RequestHeader,
        call: Call,
        request: ProduceRequest,
        inspections: produce.Inspections = produce.NO_INSPECTIONS,
    ) -> Answer:
        pending = produce.PendingAcks()
        response = produce.append_all(self._context, call, request, pending, inspections)
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
    ) -> list[Part] | None:
        inspections = await self._ready(throttled, uninspected)
        answer = self._append(header, call, request, inspections)
        return await answer.future if isinstance(answer, Later) else answer

    async def _ready(
        self, throttled: Awaitable[object] | None, uninspected: produce.Uninspected
    ) -> produce.Inspections:
        """Wait for backpressure and for the workers that inspect records."""
        if throttled is not None:
            # One wait only: under lasting pressure the append decides. A log that failed meanwhile refuses it by name.
            with suppress(StorageFailed):
                await throttled
        return await produce.inspect_in_worker(self._context, uninspected)


def _check_unacknowledged(response: ProduceResponse) -> None:
    # acks=0 has no response. As in Kafka, an error closes the connection, so that the producer refreshes its metadata.
    failed = [answer for topic in response.responses for answer in topic.partition_responses if answer.error_code]
    if failed:
        raise CloseConnection(f"produce with acks=0 failed: {failed[0].error_message}")


def pieces(request: ProduceRequest) -> Iterator[ProduceRequest]:
    """The request in parts of at most `ROWS_PER_TURN` partitions, in its order."""
    topics: list[ProduceRequestTopic] = []
    room = ROWS_PER_TURN
    for topic in request.topic_data:
        rows = topic.partition_data
        for start in range(0, len(rows), ROWS_PER_TURN) or (0,):
            part = rows[start : start + ROWS_PER_TURN]
            if topics and len(part) + 1 > room:
                yield _piece(request, topics)
                topics, room = [], ROWS_PER_TURN
            topics.append(ProduceRequestTopic(name=topic.name, partition_data=part))
            room -= len(part) + 1
    yield _piece(request, topics)


def join(response: ProduceResponse, answered: ProduceResponse) -> None:
    """Add the response to the next piece. A topic split between two pieces has one entry: Sarama keeps only the last of
    two."""
    topics, more = response.responses, answered.responses
    if topics and more and topics[-1].name == more[0].name:
        topics[-1].partition_responses += more[0].partition_responses
        more = more[1:]
    topics += more


def _piece(request: ProduceRequest, topics: list[ProduceRequestTopic]) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=request.transactional_id, acks=request.acks, timeout_ms=request.timeout_ms, topic_data=topics
    )
