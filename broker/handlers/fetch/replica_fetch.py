"""The leader's side of a follower's fetch: its session, its records, and the report in its offset (R3, R5, R16).

* A replica is served up to the log end, including bytes that the leader has not flushed. This is safe, because the high
  watermark never exceeds the leader's own flushed end.
* A replica's offset counts as its flushed end only after its lineage agreed, and only in the session of the applied
  image. A fetch that is answered with divergence or an error reports no offset. A fetch that is referred to the bucket
  reports its offset.
* A replica gets no records that it should read from the bucket (`replication.catch_up`), and no bytes of the bucket.

The authorizer admits fetches of replicas on the brokers' listener only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.handlers.fetch.attempt import FetchAttempt, diverges
from broker.metadata.records import NO_EPOCH, Node
from broker.partition.leading.leader_replica import LeaderReplica
from broker.replication.catch_up import LEFT_IN_BUCKET, LaggingReplica, bytes_between, skips_to_bucket
from broker.replication.leader import Report
from broker.security.brokers_only import is_from_follower
from broker.wire.messages import FetchRequest, FetchRequestPartition, FetchResponsePartition


class FollowerSession(NamedTuple):
    """The session of a broker that fetches as a replica."""

    node_id: int
    broker_epoch: int


def follower_session(request: FetchRequest, nodes: Mapping[int, Node]) -> FollowerSession | None:
    """The session of a fetching broker; None for a consumer.

    Returns NO_EPOCH, which is refused as an ended session, in two cases. In the first the request has a version below
    15 and names no session. In the second the process differs from the one in the image. This happens in a cluster on a
    copy of this bucket, which assigns the same epochs again.
    """
    if not is_from_follower(request):
        return None
    state = request.replica_state
    if state is None:
        return FollowerSession(request.replica_id, NO_EPOCH)
    node = nodes.get(state.replica_id)
    is_other = node is not None and state.incarnation not in ("", node.incarnation)
    return FollowerSession(state.replica_id, NO_EPOCH if is_other else state.replica_epoch)


def read(
    result: FetchAttempt,
    by: FollowerSession,
    partition: LeaderReplica,
    wanted: FetchRequestPartition,
    answer: FetchResponsePartition,
    skip_bytes: int,
) -> bool:
    """Fill `answer`. Returns True if no more can be read until the partition moves. `skip_bytes`: bytes that are copied
    even if the bucket holds them (thermocline.follower.skip.bytes). Raises ThermoclineError and OSError, which refuse
    the partition and not the fetch.
    """
    _check_session(by, partition, wanted)
    log, log_start_offset = partition.log, partition.log_start_offset
    offset = wanted.fetch_offset
    answer.log_start_offset = log_start_offset
    answer.aborted_transactions = None
    state = partition.tier.partition_state
    if state.config.copies:
        # This process deletes only segments that it verified in the bucket, so all offsets below the local start are
        # verified.
        answer.verified_end = max(log.local_log_start_offset, state.sure_end_offset)
    elif state.is_in_bucket:
        answer.verified_end = LEFT_IN_BUCKET
    elif log.config.compacts:
        answer.clean_end = partition.clean_end()
    answer.reserved_end = log.reserved_end
    if wanted.last_fetched_epoch < 0 and not log_start_offset <= offset <= log.log_end_offset:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if wanted.last_fetched_epoch >= 0 and diverges(partition, wanted, answer):
        answer.high_watermark = answer.last_stable_offset = partition.high_watermark
        result.failed = True
        return False
    report = Report(offset, by.broker_epoch, wanted.log_start_offset, wanted.clean_end)
    partition.reported(by.node_id, report, wanted.current_leader_epoch)
    answer.high_watermark = answer.last_stable_offset = partition.high_watermark
    is_member = by.node_id in partition.leader.in_sync.union
    if not is_member and _takes_from_bucket(partition, wanted, answer.verified_end, skip_bytes):
        raise ApiError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
    if offset < log.local_log_start_offset:
        answer.verified_end = max(answer.verified_end, log.local_log_start_offset)  # sent even if tiering is off
        raise ApiError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
    if offset == log.log_end_offset:
        return True
    result.read_hot(partition, wanted, answer, log.log_end_offset)
    return False


def _takes_from_bucket(
    partition: LeaderReplica, wanted: FetchRequestPartition, verified_end: int, skip_bytes: int
) -> bool:
    """Whether the replica takes the records up to the verified end from the bucket. Raises ApiError while the search
    for a later verified end is running; the replica then asks again."""
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


def _check_session(by: FollowerSession, partition: LeaderReplica, wanted: FetchRequestPartition) -> None:
    """Check the session of the fetching broker. As in Kafka, a broker that is not a replica asks again, because it may
    become a replica. A broker whose session differs from the image's has to look for the leader."""
    leader = partition.leader
    session = None if by.node_id == leader.node_id else leader.in_sync.row.sessions.get(by.node_id)
    if session is not None and session == by.broker_epoch:
        return
    is_stranger = session is None and wanted.current_leader_epoch >= 0
    raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH if is_stranger else ErrorCode.NOT_LEADER_OR_FOLLOWER)
