"""OffsetCommit and OffsetFetch: messages to the coordinator and back, by version; from version 10 on topics have ids.

An unknown topic id is UNKNOWN_TOPIC_ID for its own rows. An offset is returned for an id only if it was committed to
the topic of that id. Source: Kafka protocol guide; KIP-447, 516, 709, 848.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.groups.coordinator import GroupCoordinator
from broker.groups.machine.events import AdmitCommit
from broker.groups.offset_requests import BegunCommit, CommitRow
from broker.groups.offsets import NO_OFFSET, UNSTABLE, FetchedOffset, Wanted
from broker.groups.records import CommittedOffset
from broker.handlers.groups.members import ClientInfo
from broker.wire import messages as wire
from broker.wire.primitives import ZERO_UUID
from seams.loop.turns import next_turn

_TOPIC_IDS_SINCE: Final = 10  # versions of OffsetCommit and OffsetFetch
_OFFSET_FETCH_TOP_ERROR_SINCE: Final = 2
_OFFSET_FETCH_GROUPS_SINCE: Final = 8
_COMMIT_ROWS_PER_TURN: Final = 1_500  # 15 µs each on the loop
_ANSWER_ROWS_MAX: Final = 100_000  # rows of one OffsetFetch, over all its groups; more are INVALID_REQUEST
_ANSWER_METADATA_BYTES_MAX: Final = 16 << 20


# ---- OffsetCommit 2–10 -----------------------------------------------------------------------------------------------


async def handle_offset_commit(
    coordinator: GroupCoordinator, request: wire.OffsetCommitRequest, version: int, client: ClientInfo
) -> wire.OffsetCommitResponse:
    """OffsetCommit. A member of a missing group gets GROUP_ID_NOT_FOUND; in versions below 9 it gets
    ILLEGAL_GENERATION."""
    by_id = version >= _TOPIC_IDS_SINCE
    strangers: set[int] = set()  # indexes in request.topics whose id is unknown
    rows: list[CommitRow] = []
    for at, topic in enumerate(request.topics):
        name = coordinator.topic_name(topic.topic_id) if by_id else topic.name
        if name is None:
            strangers.add(at)
        else:  # all rows get one id, even if the topic is created again while the first rows are written
            rows += _commit_rows(name, topic, topic.topic_id if by_id else coordinator.topic_id(name))
    member = AdmitCommit(None, request.member_id, request.generation_id_or_member_epoch, request.group_instance_id)
    unknown_group = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    # One write per turn. As in Kafka every row has its own error. Unlike in Kafka, the first rows of a commit in
    # several writes may be durable although later rows are not. No write waits for the one before it: meanwhile the
    # client may connect again, and its next commit must come after all rows of this one.
    begun: list[BegunCommit] = []
    until_s = coordinator.deadline()
    for start in range(0, len(rows), _COMMIT_ROWS_PER_TURN) or ((0,) if not strangers else ()):
        if start:
            await next_turn()
        one = coordinator.offsets.begin_commit(
            request.group_id,
            member,
            rows[start : start + _COMMIT_ROWS_PER_TURN],
            retention_ms=request.retention_time_ms,
            unknown_group=unknown_group,
            until_s=until_s,
        )
        begun.append(one)
    answered = [code for one in begun for code in await one.outcome(until_s)]
    codes = iter(answered if by_id else map(_by_name, answered))
    answers = [
        wire.OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                wire.OffsetCommitResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID if at in strangers else next(codes),
                )
                for partition in topic.partitions
            ],
        )
        for at, topic in enumerate(request.topics)
    ]
    return wire.OffsetCommitResponse(topics=answers)


def _by_name(code: ErrorCode) -> ErrorCode:
    """The error for a client that uses topic names: such a client does not know UNKNOWN_TOPIC_ID."""
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if code is ErrorCode.UNKNOWN_TOPIC_ID else code


def _commit_rows(name: str, topic: wire.OffsetCommitRequestTopic, topic_id: UUID) -> Iterable[CommitRow]:
    for partition in topic.partitions:
        yield CommitRow(
            name,
            partition.partition_index,
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata or "",
            topic_id,
        )


# ---- OffsetFetch 1–10 ------------------------------------------------------------------------------------------------


async def handle_offset_fetch(
    coordinator: GroupCoordinator, request: wire.OffsetFetchRequest, version: int, client: ClientInfo
) -> wire.OffsetFetchResponse:
    """OffsetFetch. v8+ asks for several groups (KIP-709); null topics mean all.

    Commits are visible only when durable. If an open transaction may change an offset, a request with `require_stable`
    (v7+) gets UNSTABLE_OFFSET_COMMIT. A group or partition named twice is answered once (Kafka: twice), so the size of
    a response is bounded by the stored offsets.
    """
    room, until_s = _ResponseQuota(), coordinator.deadline()
    if version >= _OFFSET_FETCH_GROUPS_SINCE:
        groups = []
        by_id = version >= _TOPIC_IDS_SINCE
        for group_id, asked in _by_group(coordinator, request.groups, by_id=by_id).items():
            error, fetched = await _fetch(coordinator, group_id, asked.positions, room, until_s, request.require_stable)
            answer = _group_answer(group_id, error, fetched, asked if by_id else None, coordinator.topic_id)
            groups.append(answer)
            await next_turn()
        return wire.OffsetFetchResponse(groups=groups)
    positions = None if request.topics is None else _by_topic(request.topics)
    error, fetched = await _fetch(coordinator, request.group_id, positions, room, until_s, request.require_stable)
    if error is not ErrorCode.NONE and version < _OFFSET_FETCH_TOP_ERROR_SINCE:
        fetched = tuple(
            FetchedOffset(t, tuple((i, NO_OFFSET) for i in indexes)) for t, indexes in (positions or {}).items()
        )
    return wire.OffsetFetchResponse(error_code=error, topics=[_topic_answer(topic, error) for topic in fetched])


_Positions = dict[str, dict[int, None]]
"""Partitions by topic, in the order of the request."""


@dataclass(slots=True)
class _GroupQuery:
    """The request for one group; `positions` None: all. `ids`: topic ids by name. `strangers`: partitions of unknown
    topics, by the bytes of the id, because a client could choose many ids of which Python's hash is the same."""

    positions: _Positions | None = field(default_factory=dict)
    ids: dict[str, UUID] = field(default_factory=dict)
    strangers: dict[bytes, dict[int, None]] = field(default_factory=dict)


def _by_group(
    coordinator: GroupCoordinator, groups: Sequence[wire.OffsetFetchRequestGroup], *, by_id: bool
) -> dict[str, _GroupQuery]:
    found: dict[str, _GroupQuery] = {}
    for group in groups:
        asked = found.setdefault(group.group_id, _GroupQuery())
        if group.topics is None or asked.positions is None:
            asked.positions = None
            continue
        for topic in group.topics:
            name = coordinator.topic_name(topic.topic_id) if by_id else topic.name
            if name is None:
                asked.strangers.setdefault(topic.topic_id.bytes, {}).update(dict.fromkeys(topic.partition_indexes))
            else:
                asked.ids[name] = topic.topic_id
                asked.positions.setdefault(name, {}).update(dict.fromkeys(topic.partition_indexes))
    return found


def _by_topic(topics: Sequence[wire.OffsetFetchRequestTopic]) -> _Positions:
    found: _Positions = {}
    for topic in topics:
        found.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return found


class _ResponseQuota:
    """Rows and metadata bytes that a response may still contain."""

    def __init__(self) -> None:
        self._rows = _ANSWER_ROWS_MAX
        self._bytes = _ANSWER_METADATA_BYTES_MAX

    def take(self, fetched: tuple[FetchedOffset, ...]) -> bool:
        """Subtract these rows. False when they do not fit."""
        self._rows -= sum(len(topic.partitions) for topic in fetched)
        if self._rows >= 0:
            self._bytes -= sum(len(value.metadata) for topic in fetched for _, value in topic.partitions)
        return self._rows >= 0 and self._bytes >= 0


async def _fetch(
    coordinator: GroupCoordinator,
    group_id: str,
    positions: _Positions | None,
    room: _ResponseQuota,
    until_s: float,
    require_stable: bool,
) -> tuple[ErrorCode, tuple[FetchedOffset, ...]]:
    wanted = None if positions is None else [Wanted(topic, tuple(indexes)) for topic, indexes in positions.items()]
    error, fetched = await coordinator.offsets.fetch(group_id, wanted, until_s=until_s, require_stable=require_stable)
    await next_turn()
    return (error, fetched) if room.take(fetched) else (ErrorCode.INVALID_REQUEST, ())


def _topic_answer(topic: FetchedOffset, error: ErrorCode) -> wire.OffsetFetchResponseTopic:
    return wire.OffsetFetchResponseTopic(
        name=topic.topic,
        partitions=[
            wire.OffsetFetchResponsePartition(
                partition_index=index,
                committed_offset=value.offset,
                committed_leader_epoch=value.leader_epoch,
                metadata=value.metadata,
                error_code=error or _row_error(value),
            )
            for index, value in topic.partitions
        ],
    )


def _row_error(value: CommittedOffset) -> ErrorCode:
    return ErrorCode.UNSTABLE_OFFSET_COMMIT if value is UNSTABLE else ErrorCode.NONE


def _group_answer(
    group_id: str,
    error: ErrorCode,
    fetched: tuple[FetchedOffset, ...],
    asked: _GroupQuery | None,
    topic_id_of: Callable[[str], UUID],
) -> wire.OffsetFetchResponseGroup:
    """The answer for one group. `asked`: set if topics are named by id. `topic_id_of`: the id of the topic that has a
    name now."""
    topics = [_named(topic) if asked is None else _identified(topic, asked, topic_id_of) for topic in fetched]
    if asked is not None and error is ErrorCode.NONE:
        topics += [_stranger(UUID(bytes=topic_id), indexes) for topic_id, indexes in asked.strangers.items()]
    return wire.OffsetFetchResponseGroup(group_id=group_id, error_code=error, topics=topics)


def _named(topic: FetchedOffset, topic_id: UUID = ZERO_UUID) -> wire.OffsetFetchResponseGroupTopic:
    return wire.OffsetFetchResponseGroupTopic(
        name=topic.topic,
        topic_id=topic_id,
        partitions=[
            wire.OffsetFetchResponseGroupPartition(
                partition_index=index,
                committed_offset=value.offset,
                committed_leader_epoch=value.leader_epoch,
                metadata=value.metadata,
                error_code=_row_error(value),
            )
            for index, value in topic.partitions
        ],
    )


def _identified(
    topic: FetchedOffset, asked: _GroupQuery, topic_id_of: Callable[[str], UUID]
) -> wire.OffsetFetchResponseGroupTopic:
    """A topic's rows by its id. A topic may have been created again under the name, so an offset of another topic id is
    not returned. If the request named no topics, the id of the first offset counts; an unstable row has no id."""
    topic_id = asked.ids.get(topic.topic)
    if topic_id is None:
        held = (value.topic_id for _, value in topic.partitions if value is not UNSTABLE)
        topic_id = next(held, None) or topic_id_of(topic.topic)
    rows = tuple(
        (index, value if value is UNSTABLE or value.topic_id == topic_id else NO_OFFSET)
        for index, value in topic.partitions
    )
    return _named(FetchedOffset(topic.topic, rows), topic_id)


def _stranger(topic_id: UUID, indexes: Iterable[int]) -> wire.OffsetFetchResponseGroupTopic:
    rows = [
        wire.OffsetFetchResponseGroupPartition(
            partition_index=index, committed_offset=-1, metadata="", error_code=ErrorCode.UNKNOWN_TOPIC_ID
        )
        for index in indexes
    ]
    return wire.OffsetFetchResponseGroupTopic(topic_id=topic_id, partitions=rows)
