"""The leader's side of a follower's fetch: who may ask, what it is given, what its offset says (R3, R5, R16).

Always true: a replica is served to the log's end, bytes that are not flushed here included, because its leader's own
flushed end is one of those that the high watermark is made of; its offset is taken as its flushed end only after its
lineage was found to agree, and only from the session that the applied image names; whoever is told of divergence, or
of an error, reported nothing. Runs for `handlers.fetch`, on the brokers' listener alone (the authorizer sees to that).
Must not know how a fetch waits, nor what a follower does with the answer.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.authorizer import is_from_follower
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.handlers.fetch_attempt import FetchAttempt, diverges
from broker.partition.replica import Partition
from broker.replication.leader import Report
from broker.wire.messages import FetchRequest, FetchRequestPartition, FetchResponsePartition


class Asking(NamedTuple):
    """The session of a broker that fetches as a replica."""

    node_id: int
    broker_epoch: int


def asking(request: FetchRequest) -> Asking | None:
    """None: a consumer asks. Below version 15 no session can be named: it is refused, as one that is over."""
    if not is_from_follower(request):
        return None
    state = request.replica_state
    return Asking(request.replica_id, -1) if state is None else Asking(state.replica_id, state.replica_epoch)


def read(
    result: FetchAttempt,
    by: Asking,
    partition: Partition,
    wanted: FetchRequestPartition,
    answer: FetchResponsePartition,
) -> bool:
    """Fill the answer; whether nothing more can be read until the partition moves. Raises ThermoclineError and OSError,
    which refuse the partition and not the fetch."""
    _check_session(by, partition, wanted)
    log, log_start_offset = partition.log, partition.log_start_offset
    offset = wanted.fetch_offset
    answer.log_start_offset = log_start_offset
    answer.aborted_transactions = None
    state = partition.tier.partition_state
    if state.config.copies:
        # What this process deleted here was in the bucket, verified: its local start is as sure as what it verified.
        answer.verified_end = max(log.local_log_start_offset, state.sure_end_offset)
    answer.reserved_end = log.reserved_end
    if wanted.last_fetched_epoch < 0 and not log_start_offset <= offset <= log.log_end_offset:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if wanted.last_fetched_epoch >= 0 and diverges(partition, wanted, answer):
        answer.high_watermark = answer.last_stable_offset = partition.high_watermark
        result.failed = True
        return False
    report = Report(offset, by.broker_epoch, wanted.log_start_offset)
    partition.reported(by.node_id, report, wanted.current_leader_epoch)
    answer.high_watermark = answer.last_stable_offset = partition.high_watermark
    if offset < log.local_log_start_offset:
        raise ApiError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
    if offset == log.log_end_offset:
        return True
    result.read_hot(partition, wanted, answer, log.log_end_offset)
    return False


def _check_session(by: Asking, partition: Partition, wanted: FetchRequestPartition) -> None:
    """As Kafka: one that is none of the partition's asks again, when it may have become one; one of another session
    than the applied image has is told to look who leads."""
    leader = partition.leader
    session = None if by.node_id == leader.node_id else leader.in_sync.row.sessions.get(by.node_id)
    if session is not None and session == by.broker_epoch:
        return
    is_stranger = session is None and wanted.current_leader_epoch >= 0
    raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH if is_stranger else ErrorCode.NOT_LEADER_OR_FOLLOWER)
