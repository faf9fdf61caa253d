"""What a produce request waits for, before its append and after it; in pieces when it names very many partitions.

Owns the order: room and offsets first, then what workers find in records, then the append, then the acknowledgement.
Always true: a request that need not wait is appended while it is dispatched; the pieces of a wide one are appended in
its order, and the loop is left to others in between. Must not know what makes a batch good: `produce` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from broker.context import Call, Context
from broker.handlers.produce import produce
from broker.handlers.responding import Responding
from broker.net.dispatch import Answer, CloseConnection, Later, Part
from broker.wire.framing import RequestHeader
from broker.wire.messages import ProduceRequest, ProduceRequestTopic, ProduceResponse
from logformat.errors import StorageFailed
from seams.turns import ROWS_PER_TURN, next_turn

_RESERVATION_WAIT_MAX_S: Final = 10.0


class ProduceFlow:
    """For one broker."""

    def __init__(self, context: Context, answering: Responding) -> None:
        self._context = context
        self._answering = answering

    def answer(self, header: RequestHeader, call: Call, request: ProduceRequest) -> Answer:
        """Append now if nothing has to be waited for. Raises CloseConnection (acks=0 of what is refused)."""
        wait, unseen = self._room_for(request), produce.unseen(self._context, request)
        if wait is not None or unseen:
            return self._answering.later(self._after(wait, unseen, header, call, request))
        return self._append(header, call, request)

    async def answer_wide(self, header: RequestHeader, call: Call, request: ProduceRequest) -> list[Part] | None:
        """Piece by piece, in order: this connection's next request waits until all of it is appended."""
        context = self._context
        response = ProduceResponse()
        pending = produce.PendingAcks()
        for piece in pieces(request):
            looks = await self._ready(self._room_for(piece), produce.unseen(context, piece))
            if not context.gate.is_open():
                await context.gate.opened()
            join(response, produce.append_all(context, call, piece, pending, looks))
            await next_turn()
        if request.acks == 0:
            _check_unacknowledged(response)
            return None
        if pending:
            return await produce.later(response, pending, partial(self._answering.complete, header)).future
        return await self._answering.in_turns(header, response)

    def _room_for(self, request: ProduceRequest) -> Awaitable[object] | None:
        """What to wait for before the request may be appended."""
        wait: Awaitable[object] | None = self._context.throttle.wait(request)
        if wait is None and (short := produce.short_of_offsets(self._context, request)):
            # Throttle first, then KAFKA_STORAGE_ERROR: the reservation is used up while the store is slow or away.
            wait = produce.more_offsets(short, min(max(request.timeout_ms, 0) / 1000, _RESERVATION_WAIT_MAX_S))
        return wait

    def _append(
        self, header: RequestHeader, call: Call, request: ProduceRequest, looks: produce.Looks = produce.NO_LOOKS
    ) -> Answer:
        pending = produce.PendingAcks()
        response = produce.append_all(self._context, call, request, pending, looks)
        if request.acks == 0:
            _check_unacknowledged(response)
            return None
        if pending:
            return produce.later(response, pending, partial(self._answering.complete, header))
        return self._answering.now(header, response)

    async def _after(
        self,
        throttled: Awaitable[object] | None,
        unseen: produce.Unseen,
        header: RequestHeader,
        call: Call,
        request: ProduceRequest,
    ) -> list[Part] | None:
        looks = await self._ready(throttled, unseen)
        answer = self._append(header, call, request, looks)
        return await answer.future if isinstance(answer, Later) else answer

    async def _ready(self, throttled: Awaitable[object] | None, unseen: produce.Unseen) -> produce.Looks:
        """Wait for room, and for what workers find in records."""
        if throttled is not None:
            # Once: under lasting pressure the append itself decides. A log that failed meanwhile refuses it by name.
            with suppress(StorageFailed):
                await throttled
        return await produce.look_into(self._context, unseen)


def _check_unacknowledged(response: ProduceResponse) -> None:
    # acks=0 has no answer; Kafka's way to tell such a producer of a failure is to close its connection, so that it asks
    # for fresh metadata.
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
    """Add the answer to the next piece: a topic that two pieces share is answered once, for clients that keep the last
    of two (Sarama)."""
    topics, more = response.responses, answered.responses
    if topics and more and topics[-1].name == more[0].name:
        topics[-1].partition_responses += more[0].partition_responses
        more = more[1:]
    topics += more


def _piece(request: ProduceRequest, topics: list[ProduceRequestTopic]) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=request.transactional_id, acks=request.acks, timeout_ms=request.timeout_ms, topic_data=topics
    )
