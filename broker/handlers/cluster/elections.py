"""ElectLeaders: makes the preferred replica leader again, or elects an unclean leader.

A single broker answers as Apache Kafka does for partitions with one replica. Only partitions whose leader may change
are passed to the controller, as one change. Source: KIP-183, KIP-460.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.context import Call, Context
from broker.controller.decisions.elections import Election, ElectionType
from broker.error_codes import ErrorCode
from broker.errors import code_of
from broker.handlers.metadata.cluster_view import ClusterView
from broker.handlers.request_limits import deadline_s, within
from broker.metadata.image import Topic
from broker.metadata.records import NO_LEADER
from broker.wire.messages import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartition,
    ElectLeadersResponseTopic,
)
from logformat.errors import ThermoclineError
from logformat.values import TOPIC_NAME_CHARS_MAX

_NAMED_MAX: Final = 10_000  # partitions, and topics, of one request

Places = list[tuple[str, int]]
Elections = dict[tuple[str, int], Election]


async def handle_elect_leaders(context: Context, request: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    """Elect leaders. For null (all partitions) the response names all topics, but only the partitions that changed, as
    in Kafka."""
    wanted, view = request.topic_partitions, ClusterView(context, call.peer.listener)
    known = request.election_type in tuple(ElectionType)
    if wanted is not None and sum(max(1, len(topic.partitions)) for topic in wanted) > _NAMED_MAX:
        return ElectLeadersResponse(error_code=ErrorCode.POLICY_VIOLATION)
    if not known and (wanted is None or wanted):
        refused = Election(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
        asked = {(topic.topic, index): refused for topic in wanted or () for index in topic.partitions}
        return _response(ErrorCode.INVALID_REQUEST, ((topic.topic, topic.partitions) for topic in wanted or ()), asked)
    kind = ElectionType(request.election_type) if known else ElectionType.PREFERRED
    shown = {topic.name: topic for topic in context.metadata.image.topics.values() if view.shows(topic)}
    if wanted is None:
        places = [(name, index) for name in shown for index in range(shown[name].partitions)]
        places = [place for place in places if _may_change(shown, kind, *place)][:_NAMED_MAX]
        found = await _elect(context, kind, places, deadline_s(request.timeout_ms))
        changed = {place: election for place, election in found.items() if election.error is not _NOT_NEEDED}
        named: dict[str, list[int]] = {name: [] for name in sorted(shown)}
        for name, index in places:
            named[name].append(index)
        return _response(ErrorCode.NONE, named.items(), changed)
    answers: Elections = {}
    places = []
    for topic in wanted:
        for index in topic.partitions:
            if _may_change(shown, kind, topic.topic, index):
                places.append((topic.topic, index))
            else:
                answers[topic.topic, index] = _unchanged(
                    context, view, kind, shown.get(topic.topic), topic.topic, index
                )
    answers |= await _elect(context, kind, places, deadline_s(request.timeout_ms))
    return _response(ErrorCode.NONE, ((topic.topic, topic.partitions) for topic in wanted), answers)


_NOT_NEEDED: Final = ErrorCode.ELECTION_NOT_NEEDED


def _may_change(shown: dict[str, Topic], kind: ElectionType, name: str, index: int) -> bool:
    """Whether this broker's image allows an election of the partition. The controller decides by its own image, which
    may be newer."""
    topic = shown.get(name)
    if topic is None or not 0 <= index < topic.partitions:
        return False
    row = topic.rows[index]
    return row.leader == NO_LEADER or (kind is ElectionType.PREFERRED and row.leader != row.assigned[0])


async def _elect(context: Context, kind: ElectionType, places: Places, until_s: float) -> Elections:
    if not places:
        return {}
    try:
        return await within(until_s, lambda: context.controller.elect(kind, places))
    except (ThermoclineError, TimeoutError) as refused:
        return dict.fromkeys(places, Election(code_of(refused), str(refused)))


def _unchanged(
    context: Context, view: ClusterView, kind: ElectionType, topic: Topic | None, name: str, index: int
) -> Election:
    if topic is None:
        return Election(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name:.{TOPIC_NAME_CHARS_MAX}}")
    if not 0 <= index < topic.partitions:
        return Election(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if view.partition(topic, index).leader_id != NO_LEADER:
        return Election(_NOT_NEEDED, "Leader election not needed for topic partition.")
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    if kind is ElectionType.UNCLEAN:
        code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return Election(code, f"{name}-{index} is offline on its only replica, broker {context.config.node_id}")


def _response(error: ErrorCode, named: Iterable[tuple[str, list[int]]], elections: Elections) -> ElectLeadersResponse:
    def partition(name: str, index: int) -> ElectLeadersResponsePartition:
        election = elections[name, index]
        return ElectLeadersResponsePartition(index, election.error, election.message)

    topics = [
        ElectLeadersResponseTopic(name, [partition(name, index) for index in indexes if (name, index) in elections])
        for name, indexes in named
    ]
    return ElectLeadersResponse(error_code=error, replica_election_results=topics)
