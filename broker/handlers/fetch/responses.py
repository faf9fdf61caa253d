"""What the answer to a fetch says: of a full one, of one of a session, of one that its peer may not make.

Always true: an answer of a session is final, so what it says counts as told from here on. Must not know what was read,
nor when the answer leaves (`fetch`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.error_codes import ErrorCode
from broker.fetch_sessions.cache import NO_SESSION, Incremental
from broker.fetch_sessions.session import Target
from broker.handlers.fetch.attempt import FetchAttempt
from broker.wire.messages import FetchRequest, FetchResponse, FetchResponsePartition, FetchResponseTopic
from seams.turns import Turns, next_turn

NO_RECORDS: Final = b""


def by_topic(answers: Iterable[tuple[Target, FetchResponsePartition]]) -> list[FetchResponseTopic]:
    """Neighbours of one topic share its entry, as in Kafka."""
    topics: list[FetchResponseTopic] = []
    last: Target | None = None
    for target, answer in answers:
        if (
            last is None
            or target.topic != last.topic
            or (target.topic_id is not last.topic_id and target.topic_id != last.topic_id)
        ):
            topics.append(FetchResponseTopic(topic=target.topic or "", topic_id=target.topic_id))
            last = target
        topics[-1].partitions.append(answer)
    return topics


def incremental(at: Incremental, result: FetchAttempt) -> FetchResponse:
    """What changed since the session was told last; from here on it counts as told."""
    session = at.session
    response = FetchResponse(session_id=session.session_id)
    if session.epoch != at.epoch:
        response.error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return response
    told = [(target, answer) for target, answer in (*result.answers, *result.unknown) if target.must_answer(answer)]
    for target, answer in told:
        target.answered(answer)
        if answer.records:
            session.last(target)
    response.responses = by_topic(told)
    return response


async def refused(request: FetchRequest, code: ErrorCode) -> FetchResponse:
    """The answer to a fetch that its peer may not make: every partition named, refused; its session is not touched."""
    response = FetchResponse(error_code=code, session_id=NO_SESSION)
    turns = Turns()
    for wanted in request.topics:
        topic = FetchResponseTopic(topic=wanted.topic, topic_id=wanted.topic_id)
        for partition in wanted.partitions:
            answer = FetchResponsePartition(partition_index=partition.partition, error_code=code, records=NO_RECORDS)
            answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
            answer.aborted_transactions = None
            topic.partitions.append(answer)
            if turns.over():
                await next_turn()
        response.responses.append(topic)
        if turns.over():
            await next_turn()
    return response
