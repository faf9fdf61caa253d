"""The leader's side of a follower's fetch: who may ask, what it is given, what its offset says (R3, R5, R16).

Always true: a replica is served to the log's end, bytes that are not flushed here included, because its leader's own
flushed end is one of those that the high watermark is made of; its offset is taken as its flushed end only after its
lineage was found to agree, and only from the session that the applied image names; whoever is told of divergence, or
of an error, reported nothing, but for one who is sent on; nobody is given what it is to take from the bucket
(`replication.catch_up`), and nobody anything out of the bucket. Runs for `handlers.fetch`, on the brokers' listener
alone (the authorizer sees to that). Must not know how a fetch waits, nor what a follower does with the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.handlers.fetch.attempt import FetchAttempt, diverges
from broker.metadata.records import NO_EPOCH, Node
from broker.partition.leading.leader_replica import LeaderReplica
from broker.replication.catch_up import LaggingReplica, bytes_between, skips_to_bucket
from broker.replication.leader import Report
from broker.security.authorizer import is_from_follower
from broker.wire.messages import FetchRequest, FetchRequestPartition, FetchResponsePartition


class Asking(NamedTuple):
    """The session of a broker that fetches as a replica."""

    node_id: int
    broker_epoch: int


def asking(request: FetchRequest, nodes: Mapping[int, Node]) -> Asking | None:
    """None: a consumer asks. Below version 15 no session can be named: it is refused, as one that is over. So is a
    session of another process than the image names: of a cluster on a copy of this bucket, where the same numbers are
    given again."""
    if not is_from_follower(request):
        return None
    state = request.replica_state
    if state is None:
        return Asking(request.replica_id, NO_EPOCH)
    node = nodes.get(state.replica_id)
    is_other = node is not None and state.incarnation not in ("", node.incarnation)
    return Asking(state.replica_id, NO_EPOCH if is_other else state.replica_epoch)


def read(
    result: FetchAttempt,
    by: Asking,
    partition: LeaderReplica,
    wanted: FetchRequestPartition,
    answer: FetchResponsePartition,
    skip_bytes: int,
) -> bool:
    """Fill the answer; whether nothing more can be read until the partition moves. `skip_bytes`: how much of what the
    bucket holds is copied all the same (thermocline.follower.skip.bytes). Raises ThermoclineError and OSError, which
    refuse the partition and not the fetch."""
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
    is_member = by.node_id in partition.leader.in_sync.union
    if not is_member and _skips_to_bucket(partition, wanted, answer.verified_end, skip_bytes):
        raise ApiError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
    if offset < log.local_log_start_offset:
        answer.verified_end = max(answer.verified_end, log.local_log_start_offset)  # also where no copying goes on
        raise ApiError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
    if offset == log.log_end_offset:
        return True
    result.read_hot(partition, wanted, answer, log.log_end_offset)
    return False


def _skips_to_bucket(
    partition: LeaderReplica, wanted: FetchRequestPartition, verified_end: int, skip_bytes: int
) -> bool:
    """To the verified end. Raises ApiError while that is looked at, and may come to lie much further: ask again."""
    log, tier, offset = partition.log, partition.tier, wanted.fetch_offset
    if verified_end < 0:
        return False
    replica = LaggingReplica(offset, is_empty=wanted.last_fetched_epoch < 0, copies_on=wanted.copies_on)

    def lacks(end: int) -> int:
        return bytes_between(log.segments_between(offset, end), offset, end)

    held_end = tier.remote_end_offset if tier.partition_state.claimed else partition.high_watermark
    if held_end > verified_end and skips_to_bucket(replica, held_end, lacks, skip_bytes) and tier.is_verifying():
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return skips_to_bucket(replica, verified_end, lacks, skip_bytes)


def _check_session(by: Asking, partition: LeaderReplica, wanted: FetchRequestPartition) -> None:
    """As Kafka: one that is none of the partition's asks again, when it may have become one; one of another session
    than the applied image has is told to look who leads."""
    leader = partition.leader
    session = None if by.node_id == leader.node_id else leader.in_sync.row.sessions.get(by.node_id)
    if session is not None and session == by.broker_epoch:
        return
    is_stranger = session is None and wanted.current_leader_epoch >= 0
    raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH if is_stranger else ErrorCode.NOT_LEADER_OR_FOLLOWER)
