"""Fetch responses: full, incremental, refused; and their hints to another broker (KIP-392, KIP-951).

An incremental response is final: its session counts its content as sent. A response names a leader only if the image
has one. It has the leader's address only if the client's listener reaches the leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.context import Context
from broker.error_codes import ErrorCode
from broker.fetch_sessions.cache import NO_SESSION, Incremental
from broker.fetch_sessions.session import Target
from broker.handlers.fetch.attempt import FetchAttempt
from broker.handlers.metadata.cluster_view import broker_at
from broker.metadata.records import NO_LEADER
from broker.net.dispatch import Peer
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.readable import Readable
from broker.partition.registry import Registry
from broker.replication.read_replica_selection import HERE, RedirectMemory, nearest
from broker.wire import messages as wire
from seams.loop.turns import Turns, next_turn

NO_RECORDS: Final = b""


def by_topic(answers: Iterable[tuple[Target, wire.FetchResponsePartition]]) -> list[wire.FetchResponseTopic]:
    """The partitions by topic. Consecutive partitions of one topic share an entry, as in Kafka."""
    topics: list[wire.FetchResponseTopic] = []
    last: Target | None = None
    for target, answer in answers:
        if (
            last is None
            or target.topic != last.topic
            or (target.topic_id is not last.topic_id and target.topic_id != last.topic_id)
        ):
            topics.append(wire.FetchResponseTopic(topic=target.topic or "", topic_id=target.topic_id))
            last = target
        topics[-1].partitions.append(answer)
    return topics


def incremental(at: Incremental, result: FetchAttempt) -> wire.FetchResponse:
    """Changes since the session's last response."""
    session = at.session
    response = wire.FetchResponse(session_id=session.session_id)
    if session.epoch != at.epoch:
        response.error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return response
    told = [(target, answer) for target, answer in (*result.answers, *result.unknown) if target.must_answer(answer)]
    for target, answer in told:
        target.answered(answer)
        if answer.records:
            session.move_to_end(target)
    response.responses = by_topic(told)
    return response


def throttled(at: Incremental | None, throttle_ms: int) -> wire.FetchResponse:
    """A response without records that does not change the session (Kafka's `getThrottledResponse`)."""
    response = wire.FetchResponse(throttle_time_ms=throttle_ms, session_id=NO_SESSION)
    if at is not None:
        response.session_id = at.session.session_id
        if at.session.epoch != at.epoch:
            response.error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    return response


async def refused(request: wire.FetchRequest, code: ErrorCode) -> wire.FetchResponse:
    """The response to a fetch that the authorizer refused: every partition has the error, and no session changes."""
    response = wire.FetchResponse(error_code=code, session_id=NO_SESSION)
    turns = Turns()
    for wanted in request.topics:
        topic = wire.FetchResponseTopic(topic=wanted.topic, topic_id=wanted.topic_id)
        for partition in wanted.partitions:
            answer = wire.FetchResponsePartition(
                partition_index=partition.partition, error_code=code, records=NO_RECORDS
            )
            answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
            answer.aborted_transactions = None
            topic.partitions.append(answer)
            if turns.over():
                await next_turn()
        response.responses.append(topic)
        if turns.over():
            await next_turn()
    return response


def refuse_partition(registry: Registry, topic: str, answer: wire.FetchResponsePartition) -> bool:
    """Set the error for a partition not led here in `answer`. Returns True if the answer names the leader."""
    answer.error_code = registry.refusal(topic, answer.partition_index)
    if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        answer.aborted_transactions = None
    row = registry.led_elsewhere(topic, answer.partition_index)
    if row is None:
        return False
    answer.current_leader = wire.FetchResponseLeaderIdAndEpoch(leader_id=row.leader, leader_epoch=row.leader_epoch)
    return row.leader != NO_LEADER


def leaders_of(
    context: Context, listener: str, refused: Iterable[tuple[Target, wire.FetchResponsePartition]]
) -> list[wire.FetchResponseNodeEndpoint]:
    """Addresses of the leaders named in these responses, each once, if the client's listener reaches them."""
    leaders = {
        answer.current_leader.leader_id: None
        for _, answer in refused
        if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and answer.current_leader is not None
    }
    found = (broker_at(context, listener, node_id) for node_id in leaders)
    return [wire.FetchResponseNodeEndpoint(*each) for each in found if each is not None]


def send_to_nearest(
    context: Context,
    peer: Peer,
    request: wire.FetchRequest,
    partition: Readable,
    wanted: wire.FetchRequestPartition,
    answer: wire.FetchResponsePartition,
) -> bool:
    """Name the replica in the client's rack in `answer` (KIP-392). Returns False if the client should read here.

    Only a leader redirects, and only to a broker that has a session and that the client's listener reaches.
    """
    if not isinstance(partition, LeaderReplica):
        return False

    def rack_of(node_id: int) -> str | None:
        found = broker_at(context, peer.listener, node_id)
        return None if found is None else found.rack

    node_id = nearest(partition.leader, wanted.fetch_offset, request.rack_id, rack_of)
    if node_id == HERE:
        return False
    away = peer.redirects
    if not isinstance(away, RedirectMemory):
        away = peer.redirects = RedirectMemory()
    place = partition.topic, partition.index
    if not away.may_go(place, wanted.fetch_offset, context.world.clock.monotonic_s()):
        return False
    context.metrics.sent_to_nearest += 1
    answer.preferred_read_replica = node_id
    answer.high_watermark = partition.high_watermark
    answer.last_stable_offset = partition.last_stable_offset
    answer.log_start_offset = partition.log_start_offset
    answer.aborted_transactions = None
    return True
