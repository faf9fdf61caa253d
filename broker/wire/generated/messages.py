"""Message classes, made from `broker.wire.table` by `python -m broker.wire.generate`: do not edit.

A comment behind a field names the versions that carry it; a field without one is in all of them.
"""
# ruff: noqa: RUF012  # msgspec copies an empty list default for every instance

from __future__ import annotations

from uuid import UUID

from broker.wire.message import Message
from broker.wire.primitives import ZERO_UUID
from broker.wire.scatter import RecordsField


class ProduceRequestPartition(Message):
    """`partition_data` of ProduceRequestTopic."""

    index: int = 0
    records: memoryview | None = None


class ProduceRequestTopic(Message):
    """`topic_data` of ProduceRequest."""

    name: str = ""
    partition_data: list[ProduceRequestPartition] = []


class ProduceRequest(Message):
    """Versions 0-12, flexible from 9."""

    transactional_id: str | None = None  # 3+
    acks: int = 0
    timeout_ms: int = 0
    topic_data: list[ProduceRequestTopic] = []


class ProduceResponseRecordError(Message):
    """`record_errors` of ProduceResponsePartition."""

    batch_index: int = 0
    batch_index_error_message: str | None = None


class ProduceResponseLeaderIdAndEpoch(Message):
    """Tagged `current_leader` of ProduceResponsePartition."""

    leader_id: int = -1
    leader_epoch: int = -1


class ProduceResponsePartition(Message):
    """`partition_responses` of ProduceResponseTopic."""

    index: int = 0
    error_code: int = 0
    base_offset: int = 0
    log_append_time_ms: int = -1  # 2+
    log_start_offset: int = -1  # 5+
    record_errors: list[ProduceResponseRecordError] = []  # 8+
    error_message: str | None = None  # 8+
    current_leader: ProduceResponseLeaderIdAndEpoch | None = None  # 10+


class ProduceResponseTopic(Message):
    """`responses` of ProduceResponse."""

    name: str = ""
    partition_responses: list[ProduceResponsePartition] = []


class ProduceResponseNodeEndpoint(Message):
    """`node_endpoints` of ProduceResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


class ProduceResponse(Message):
    """Versions 0-12, flexible from 9."""

    responses: list[ProduceResponseTopic] = []
    throttle_time_ms: int = 0  # 1+
    node_endpoints: list[ProduceResponseNodeEndpoint] = []  # 10+


class FetchRequestReplicaState(Message):
    """Tagged `replica_state` of FetchRequest."""

    replica_id: int = -1
    replica_epoch: int = -1
    incarnation: str = ""


class FetchRequestPartition(Message):
    """`partitions` of FetchRequestTopic."""

    partition: int = 0
    current_leader_epoch: int = -1  # 9+
    fetch_offset: int = 0
    last_fetched_epoch: int = -1  # 12+
    log_start_offset: int = -1  # 5+
    partition_max_bytes: int = 0
    replica_directory_id: UUID = ZERO_UUID  # 17+
    high_watermark: int = 9223372036854775807  # 18+
    copies_on: bool = False  # 17+
    clean_end: int = 0  # 17+


class FetchRequestTopic(Message):
    """`topics` of FetchRequest."""

    topic: str = ""  # 0-12
    topic_id: UUID = ZERO_UUID  # 13+
    partitions: list[FetchRequestPartition] = []


class FetchRequestForgottenTopic(Message):
    """`forgotten_topics_data` of FetchRequest."""

    topic: str = ""  # 0-12
    topic_id: UUID = ZERO_UUID  # 13+
    partitions: list[int] = []


class FetchRequest(Message):
    """Versions 4-18, flexible from 12."""

    cluster_id: str | None = None  # 12+
    replica_state: FetchRequestReplicaState | None = None  # 15+
    replica_id: int = -1  # 0-14
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0  # 7+
    session_epoch: int = -1  # 7+
    topics: list[FetchRequestTopic] = []
    forgotten_topics_data: list[FetchRequestForgottenTopic] = []  # 7+
    rack_id: str = ""  # 11+


class FetchResponseEpochEndOffset(Message):
    """Tagged `diverging_epoch` of FetchResponsePartition."""

    epoch: int = -1
    end_offset: int = -1


class FetchResponseLeaderIdAndEpoch(Message):
    """Tagged `current_leader` of FetchResponsePartition."""

    leader_id: int = -1
    leader_epoch: int = -1


class FetchResponseSnapshotId(Message):
    """Tagged `snapshot_id` of FetchResponsePartition."""

    end_offset: int = -1
    epoch: int = -1


class FetchResponseAbortedTransaction(Message):
    """`aborted_transactions` of FetchResponsePartition."""

    producer_id: int = 0
    first_offset: int = 0


class FetchResponsePartition(Message):
    """`partitions` of FetchResponseTopic."""

    partition_index: int = 0
    error_code: int = 0
    high_watermark: int = 0
    last_stable_offset: int = -1
    log_start_offset: int = -1  # 5+
    diverging_epoch: FetchResponseEpochEndOffset | None = None  # 12+
    current_leader: FetchResponseLeaderIdAndEpoch | None = None  # 12+
    snapshot_id: FetchResponseSnapshotId | None = None  # 12+
    verified_end: int = -1  # 17+
    reserved_end: int = -1  # 17+
    clean_end: int = 0  # 17+
    aborted_transactions: list[FetchResponseAbortedTransaction] | None = []
    preferred_read_replica: int = -1  # 11+
    records: RecordsField = None


class FetchResponseTopic(Message):
    """`responses` of FetchResponse."""

    topic: str = ""  # 0-12
    topic_id: UUID = ZERO_UUID  # 13+
    partitions: list[FetchResponsePartition] = []


class FetchResponseNodeEndpoint(Message):
    """`node_endpoints` of FetchResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


class FetchResponse(Message):
    """Versions 4-18, flexible from 12."""

    throttle_time_ms: int = 0
    error_code: int = 0  # 7+
    session_id: int = 0  # 7+
    responses: list[FetchResponseTopic] = []
    node_endpoints: list[FetchResponseNodeEndpoint] = []  # 16+
    quiet_ms: int = -1  # 17+


class ListOffsetsRequestPartition(Message):
    """`partitions` of ListOffsetsRequestTopic."""

    partition_index: int = 0
    current_leader_epoch: int = -1  # 4+
    timestamp: int = 0


class ListOffsetsRequestTopic(Message):
    """`topics` of ListOffsetsRequest."""

    name: str = ""
    partitions: list[ListOffsetsRequestPartition] = []


class ListOffsetsRequest(Message):
    """Versions 1-11, flexible from 6."""

    replica_id: int = 0
    isolation_level: int = 0  # 2+
    topics: list[ListOffsetsRequestTopic] = []
    timeout_ms: int = 0  # 10+


class ListOffsetsResponsePartition(Message):
    """`partitions` of ListOffsetsResponseTopic."""

    partition_index: int = 0
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1  # 4+


class ListOffsetsResponseTopic(Message):
    """`topics` of ListOffsetsResponse."""

    name: str = ""
    partitions: list[ListOffsetsResponsePartition] = []


class ListOffsetsResponse(Message):
    """Versions 1-11, flexible from 6."""

    throttle_time_ms: int = 0  # 2+
    topics: list[ListOffsetsResponseTopic] = []


class OffsetForLeaderEpochRequestPartition(Message):
    """`partitions` of OffsetForLeaderEpochRequestTopic."""

    partition: int = 0
    current_leader_epoch: int = -1
    leader_epoch: int = 0


class OffsetForLeaderEpochRequestTopic(Message):
    """`topics` of OffsetForLeaderEpochRequest."""

    topic: str = ""
    partitions: list[OffsetForLeaderEpochRequestPartition] = []
    topic_id: UUID = ZERO_UUID  # 4+


class OffsetForLeaderEpochRequest(Message):
    """Versions 2-4, flexible from 4."""

    replica_id: int = -2  # 3+
    topics: list[OffsetForLeaderEpochRequestTopic] = []
    of_candidates: bool = False  # 4+


class OffsetForLeaderEpochResponsePartition(Message):
    """`partitions` of OffsetForLeaderEpochResponseTopic."""

    error_code: int = 0
    partition: int = 0
    leader_epoch: int = -1
    end_offset: int = -1
    seen_epoch: int = -1  # 4+
    high_watermark: int = -1  # 4+
    usable_end: int = -1  # 4+


class OffsetForLeaderEpochResponseTopic(Message):
    """`topics` of OffsetForLeaderEpochResponse."""

    topic: str = ""
    partitions: list[OffsetForLeaderEpochResponsePartition] = []


class OffsetForLeaderEpochResponse(Message):
    """Versions 2-4, flexible from 4."""

    throttle_time_ms: int = 0
    topics: list[OffsetForLeaderEpochResponseTopic] = []


class InitProducerIdRequest(Message):
    """Versions 0-5, flexible from 2."""

    transactional_id: str | None = ""
    transaction_timeout_ms: int = 0
    producer_id: int = -1  # 3+
    producer_epoch: int = -1  # 3+


class InitProducerIdResponse(Message):
    """Versions 0-5, flexible from 2."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = 0


class ApiVersionsRequest(Message):
    """Versions 0-4, flexible from 3."""

    client_software_name: str = ""  # 3+
    client_software_version: str = ""  # 3+


class ApiVersionsResponseApi(Message):
    """`api_keys` of ApiVersionsResponse."""

    api_key: int = 0
    min_version: int = 0
    max_version: int = 0


class ApiVersionsResponseSupportedFeature(Message):
    """`supported_features` of ApiVersionsResponse."""

    name: str = ""
    min_version: int = 0
    max_version: int = 0


class ApiVersionsResponseFinalizedFeature(Message):
    """`finalized_features` of ApiVersionsResponse."""

    name: str = ""
    max_version_level: int = 0
    min_version_level: int = 0


class ApiVersionsResponse(Message):
    """Versions 0-4, flexible from 3."""

    error_code: int = 0
    api_keys: list[ApiVersionsResponseApi] = []
    throttle_time_ms: int = 0  # 1+
    supported_features: list[ApiVersionsResponseSupportedFeature] = []  # 3+
    finalized_features_epoch: int = -1  # 3+
    finalized_features: list[ApiVersionsResponseFinalizedFeature] = []  # 3+
    zk_migration_ready: bool = False  # 3+


class MetadataRequestTopic(Message):
    """`topics` of MetadataRequest."""

    topic_id: UUID = ZERO_UUID  # 10+
    name: str | None = ""


class MetadataRequest(Message):
    """Versions 0-12, flexible from 9."""

    topics: list[MetadataRequestTopic] | None = []
    allow_auto_topic_creation: bool = True  # 4+
    include_cluster_authorized_operations: bool = False  # 8-10
    include_topic_authorized_operations: bool = False  # 8+


class MetadataResponseBroker(Message):
    """`brokers` of MetadataResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None  # 1+


class MetadataResponsePartition(Message):
    """`partitions` of MetadataResponseTopic."""

    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1  # 7+
    replica_nodes: list[int] = []
    isr_nodes: list[int] = []
    offline_replicas: list[int] = []  # 5+


class MetadataResponseTopic(Message):
    """`topics` of MetadataResponse."""

    error_code: int = 0
    name: str | None = ""
    topic_id: UUID = ZERO_UUID  # 10+
    is_internal: bool = False  # 1+
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: int = -2147483648  # 8+


class MetadataResponse(Message):
    """Versions 0-12, flexible from 9."""

    throttle_time_ms: int = 0  # 3+
    brokers: list[MetadataResponseBroker] = []
    cluster_id: str | None = None  # 2+
    controller_id: int = -1  # 1+
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: int = -2147483648  # 8-10


class DescribeClusterRequest(Message):
    """Versions 0-2, flexible from 0."""

    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1  # 1+
    include_fenced_brokers: bool = False  # 2+


class DescribeClusterResponseBroker(Message):
    """`brokers` of DescribeClusterResponse."""

    broker_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False  # 2+


class DescribeClusterResponse(Message):
    """Versions 0-2, flexible from 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1  # 1+
    cluster_id: str = ""
    controller_id: int = -1
    brokers: list[DescribeClusterResponseBroker] = []
    cluster_authorized_operations: int = -2147483648


class FindCoordinatorRequest(Message):
    """Versions 0-6, flexible from 3."""

    key: str = ""  # 0-3
    key_type: int = 0  # 1+
    coordinator_keys: list[str] = []  # 4+


class FindCoordinatorResponseCoordinator(Message):
    """`coordinators` of FindCoordinatorResponse."""

    key: str = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    error_code: int = 0
    error_message: str | None = ""


class FindCoordinatorResponse(Message):
    """Versions 0-6, flexible from 3."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0  # 0-3
    error_message: str | None = ""  # 1-3
    node_id: int = 0  # 0-3
    host: str = ""  # 0-3
    port: int = 0  # 0-3
    coordinators: list[FindCoordinatorResponseCoordinator] = []  # 4+


class JoinGroupRequestProtocol(Message):
    """`protocols` of JoinGroupRequest."""

    name: str = ""
    metadata: bytes = b""


class JoinGroupRequest(Message):
    """Versions 0-9, flexible from 6."""

    group_id: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = -1  # 1+
    member_id: str = ""
    group_instance_id: str | None = None  # 5+
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: str | None = None  # 8+


class JoinGroupResponseMember(Message):
    """`members` of JoinGroupResponse."""

    member_id: str = ""
    group_instance_id: str | None = None  # 5+
    metadata: bytes = b""


class JoinGroupResponse(Message):
    """Versions 0-9, flexible from 6."""

    throttle_time_ms: int = 0  # 2+
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None  # 7+
    protocol_name: str | None = ""
    leader: str = ""
    skip_assignment: bool = False  # 9+
    member_id: str = ""
    members: list[JoinGroupResponseMember] = []


class SyncGroupRequestAssignment(Message):
    """`assignments` of SyncGroupRequest."""

    member_id: str = ""
    assignment: bytes = b""


class SyncGroupRequest(Message):
    """Versions 0-5, flexible from 4."""

    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None  # 3+
    protocol_type: str | None = None  # 5+
    protocol_name: str | None = None  # 5+
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Message):
    """Versions 0-5, flexible from 4."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0
    protocol_type: str | None = None  # 5+
    protocol_name: str | None = None  # 5+
    assignment: bytes = b""


class HeartbeatRequest(Message):
    """Versions 0-4, flexible from 4."""

    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None  # 3+


class HeartbeatResponse(Message):
    """Versions 0-4, flexible from 4."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0


class LeaveGroupRequestMember(Message):
    """`members` of LeaveGroupRequest."""

    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = None  # 5+


class LeaveGroupRequest(Message):
    """Versions 0-5, flexible from 4."""

    group_id: str = ""
    member_id: str = ""  # 0-2
    members: list[LeaveGroupRequestMember] = []  # 3+


class LeaveGroupResponseMember(Message):
    """`members` of LeaveGroupResponse."""

    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: int = 0


class LeaveGroupResponse(Message):
    """Versions 0-5, flexible from 4."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0
    members: list[LeaveGroupResponseMember] = []  # 3+


class OffsetCommitRequestPartition(Message):
    """`partitions` of OffsetCommitRequestTopic."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # 6+
    committed_metadata: str | None = ""


class OffsetCommitRequestTopic(Message):
    """`topics` of OffsetCommitRequest."""

    name: str = ""  # 0-9
    topic_id: UUID = ZERO_UUID  # 10+
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Message):
    """Versions 2-10, flexible from 8."""

    group_id: str = ""
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None  # 7+
    retention_time_ms: int = -1  # 2-4
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Message):
    """`partitions` of OffsetCommitResponseTopic."""

    partition_index: int = 0
    error_code: int = 0


class OffsetCommitResponseTopic(Message):
    """`topics` of OffsetCommitResponse."""

    name: str = ""  # 0-9
    topic_id: UUID = ZERO_UUID  # 10+
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Message):
    """Versions 2-10, flexible from 8."""

    throttle_time_ms: int = 0  # 3+
    topics: list[OffsetCommitResponseTopic] = []


class OffsetFetchRequestTopic(Message):
    """`topics` of OffsetFetchRequest."""

    name: str = ""
    partition_indexes: list[int] = []


class OffsetFetchRequestGroupTopic(Message):
    """`topics` of OffsetFetchRequestGroup."""

    name: str = ""  # 8-9
    topic_id: UUID = ZERO_UUID  # 10+
    partition_indexes: list[int] = []


class OffsetFetchRequestGroup(Message):
    """`groups` of OffsetFetchRequest."""

    group_id: str = ""
    member_id: str | None = None  # 9+
    member_epoch: int = -1  # 9+
    topics: list[OffsetFetchRequestGroupTopic] | None = []


class OffsetFetchRequest(Message):
    """Versions 1-10, flexible from 6."""

    group_id: str = ""  # 1-7
    topics: list[OffsetFetchRequestTopic] | None = []  # 1-7
    groups: list[OffsetFetchRequestGroup] = []  # 8+
    require_stable: bool = False  # 7+


class OffsetFetchResponsePartition(Message):
    """`partitions` of OffsetFetchResponseTopic."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # 5+
    metadata: str | None = ""
    error_code: int = 0


class OffsetFetchResponseTopic(Message):
    """`topics` of OffsetFetchResponse."""

    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponseGroupPartition(Message):
    """`partitions` of OffsetFetchResponseGroupTopic."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


class OffsetFetchResponseGroupTopic(Message):
    """`topics` of OffsetFetchResponseGroup."""

    name: str = ""  # 8-9
    topic_id: UUID = ZERO_UUID  # 10+
    partitions: list[OffsetFetchResponseGroupPartition] = []


class OffsetFetchResponseGroup(Message):
    """`groups` of OffsetFetchResponse."""

    group_id: str = ""
    topics: list[OffsetFetchResponseGroupTopic] = []
    error_code: int = 0


class OffsetFetchResponse(Message):
    """Versions 1-10, flexible from 6."""

    throttle_time_ms: int = 0  # 3+
    topics: list[OffsetFetchResponseTopic] = []  # 1-7
    error_code: int = 0  # 2-7
    groups: list[OffsetFetchResponseGroup] = []  # 8+


class ListGroupsRequest(Message):
    """Versions 0-5, flexible from 3."""

    states_filter: list[str] = []  # 4+
    types_filter: list[str] = []  # 5+


class ListGroupsResponseGroup(Message):
    """`groups` of ListGroupsResponse."""

    group_id: str = ""
    protocol_type: str = ""
    group_state: str = ""  # 4+
    group_type: str = ""  # 5+


class ListGroupsResponse(Message):
    """Versions 0-5, flexible from 3."""

    throttle_time_ms: int = 0  # 1+
    error_code: int = 0
    groups: list[ListGroupsResponseGroup] = []


class DescribeGroupsRequest(Message):
    """Versions 0-6, flexible from 5."""

    groups: list[str] = []
    include_authorized_operations: bool = False  # 3+


class DescribeGroupsResponseMember(Message):
    """`members` of DescribeGroupsResponseGroup."""

    member_id: str = ""
    group_instance_id: str | None = None  # 4+
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


class DescribeGroupsResponseGroup(Message):
    """`groups` of DescribeGroupsResponse."""

    error_code: int = 0
    error_message: str | None = None  # 6+
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribeGroupsResponseMember] = []
    authorized_operations: int = -2147483648  # 3+


class DescribeGroupsResponse(Message):
    """Versions 0-6, flexible from 5."""

    throttle_time_ms: int = 0  # 1+
    groups: list[DescribeGroupsResponseGroup] = []


class DeleteGroupsRequest(Message):
    """Versions 0-2, flexible from 2."""

    groups_names: list[str] = []


class DeleteGroupsResponseResult(Message):
    """`results` of DeleteGroupsResponse."""

    group_id: str = ""
    error_code: int = 0


class DeleteGroupsResponse(Message):
    """Versions 0-2, flexible from 2."""

    throttle_time_ms: int = 0
    results: list[DeleteGroupsResponseResult] = []


class OffsetDeleteRequestPartition(Message):
    """`partitions` of OffsetDeleteRequestTopic."""

    partition_index: int = 0


class OffsetDeleteRequestTopic(Message):
    """`topics` of OffsetDeleteRequest."""

    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Message):
    """Versions 0."""

    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Message):
    """`partitions` of OffsetDeleteResponseTopic."""

    partition_index: int = 0
    error_code: int = 0


class OffsetDeleteResponseTopic(Message):
    """`topics` of OffsetDeleteResponse."""

    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Message):
    """Versions 0."""

    error_code: int = 0
    throttle_time_ms: int = 0
    topics: list[OffsetDeleteResponseTopic] = []


class CreateTopicsRequestAssignment(Message):
    """`assignments` of CreateTopicsRequestTopic."""

    partition_index: int = 0
    broker_ids: list[int] = []


class CreateTopicsRequestConfig(Message):
    """`configs` of CreateTopicsRequestTopic."""

    name: str = ""
    value: str | None = ""


class CreateTopicsRequestTopic(Message):
    """`topics` of CreateTopicsRequest."""

    name: str = ""
    num_partitions: int = 0
    replication_factor: int = 0
    assignments: list[CreateTopicsRequestAssignment] = []
    configs: list[CreateTopicsRequestConfig] = []


class CreateTopicsRequest(Message):
    """Versions 2-7, flexible from 5."""

    topics: list[CreateTopicsRequestTopic] = []
    timeout_ms: int = 60000
    validate_only: bool = False


class CreateTopicsResponseConfig(Message):
    """`configs` of CreateTopicsResponseTopic."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False


class CreateTopicsResponseTopic(Message):
    """`topics` of CreateTopicsResponse."""

    name: str = ""
    topic_id: UUID = ZERO_UUID  # 7+
    error_code: int = 0
    error_message: str | None = ""
    topic_config_error_code: int = 0  # 5+
    num_partitions: int = -1  # 5+
    replication_factor: int = -1  # 5+
    configs: list[CreateTopicsResponseConfig] | None = []  # 5+


class CreateTopicsResponse(Message):
    """Versions 2-7, flexible from 5."""

    throttle_time_ms: int = 0
    topics: list[CreateTopicsResponseTopic] = []


class DeleteTopicsRequestTopic(Message):
    """`topics` of DeleteTopicsRequest."""

    name: str | None = None
    topic_id: UUID = ZERO_UUID


class DeleteTopicsRequest(Message):
    """Versions 1-6, flexible from 4."""

    topics: list[DeleteTopicsRequestTopic] = []  # 6+
    topic_names: list[str] = []  # 1-5
    timeout_ms: int = 0


class DeleteTopicsResponseTopic(Message):
    """`responses` of DeleteTopicsResponse."""

    name: str | None = ""
    topic_id: UUID = ZERO_UUID  # 6+
    error_code: int = 0
    error_message: str | None = None  # 5+


class DeleteTopicsResponse(Message):
    """Versions 1-6, flexible from 4."""

    throttle_time_ms: int = 0
    responses: list[DeleteTopicsResponseTopic] = []


class CreatePartitionsRequestAssignment(Message):
    """`assignments` of CreatePartitionsRequestTopic."""

    broker_ids: list[int] = []


class CreatePartitionsRequestTopic(Message):
    """`topics` of CreatePartitionsRequest."""

    name: str = ""
    count: int = 0
    assignments: list[CreatePartitionsRequestAssignment] | None = []


class CreatePartitionsRequest(Message):
    """Versions 0-3, flexible from 2."""

    topics: list[CreatePartitionsRequestTopic] = []
    timeout_ms: int = 0
    validate_only: bool = False


class CreatePartitionsResponseTopic(Message):
    """`results` of CreatePartitionsResponse."""

    name: str = ""
    error_code: int = 0
    error_message: str | None = None


class CreatePartitionsResponse(Message):
    """Versions 0-3, flexible from 2."""

    throttle_time_ms: int = 0
    results: list[CreatePartitionsResponseTopic] = []


class DeleteRecordsRequestPartition(Message):
    """`partitions` of DeleteRecordsRequestTopic."""

    partition_index: int = 0
    offset: int = 0


class DeleteRecordsRequestTopic(Message):
    """`topics` of DeleteRecordsRequest."""

    name: str = ""
    partitions: list[DeleteRecordsRequestPartition] = []


class DeleteRecordsRequest(Message):
    """Versions 0-2, flexible from 2."""

    topics: list[DeleteRecordsRequestTopic] = []
    timeout_ms: int = 0


class DeleteRecordsResponsePartition(Message):
    """`partitions` of DeleteRecordsResponseTopic."""

    partition_index: int = 0
    low_watermark: int = 0
    error_code: int = 0


class DeleteRecordsResponseTopic(Message):
    """`topics` of DeleteRecordsResponse."""

    name: str = ""
    partitions: list[DeleteRecordsResponsePartition] = []


class DeleteRecordsResponse(Message):
    """Versions 0-2, flexible from 2."""

    throttle_time_ms: int = 0
    topics: list[DeleteRecordsResponseTopic] = []


class DescribeConfigsRequestResource(Message):
    """`resources` of DescribeConfigsRequest."""

    resource_type: int = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = []


class DescribeConfigsRequest(Message):
    """Versions 1-4, flexible from 4."""

    resources: list[DescribeConfigsRequestResource] = []
    include_synonyms: bool = False
    include_documentation: bool = False  # 3+


class DescribeConfigsResponseSynonym(Message):
    """`synonyms` of DescribeConfigsResponseConfig."""

    name: str = ""
    value: str | None = ""
    source: int = 0


class DescribeConfigsResponseConfig(Message):
    """`configs` of DescribeConfigsResponseResult."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsResponseSynonym] = []
    config_type: int = 0  # 3+
    documentation: str | None = ""  # 3+


class DescribeConfigsResponseResult(Message):
    """`results` of DescribeConfigsResponse."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResponseConfig] = []


class DescribeConfigsResponse(Message):
    """Versions 1-4, flexible from 4."""

    throttle_time_ms: int = 0
    results: list[DescribeConfigsResponseResult] = []


class AlterConfigsRequestConfig(Message):
    """`configs` of AlterConfigsRequestResource."""

    name: str = ""
    value: str | None = ""


class AlterConfigsRequestResource(Message):
    """`resources` of AlterConfigsRequest."""

    resource_type: int = 0
    resource_name: str = ""
    configs: list[AlterConfigsRequestConfig] = []


class AlterConfigsRequest(Message):
    """Versions 0-2, flexible from 2."""

    resources: list[AlterConfigsRequestResource] = []
    validate_only: bool = False


class AlterConfigsResponseResource(Message):
    """`responses` of AlterConfigsResponse."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""


class AlterConfigsResponse(Message):
    """Versions 0-2, flexible from 2."""

    throttle_time_ms: int = 0
    responses: list[AlterConfigsResponseResource] = []


class IncrementalAlterConfigsRequestConfig(Message):
    """`configs` of IncrementalAlterConfigsRequestResource."""

    name: str = ""
    config_operation: int = 0
    value: str | None = ""


class IncrementalAlterConfigsRequestResource(Message):
    """`resources` of IncrementalAlterConfigsRequest."""

    resource_type: int = 0
    resource_name: str = ""
    configs: list[IncrementalAlterConfigsRequestConfig] = []


class IncrementalAlterConfigsRequest(Message):
    """Versions 0-1, flexible from 1."""

    resources: list[IncrementalAlterConfigsRequestResource] = []
    validate_only: bool = False


class IncrementalAlterConfigsResponseResource(Message):
    """`responses` of IncrementalAlterConfigsResponse."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""


class IncrementalAlterConfigsResponse(Message):
    """Versions 0-1, flexible from 1."""

    throttle_time_ms: int = 0
    responses: list[IncrementalAlterConfigsResponseResource] = []


class ListConfigResourcesRequest(Message):
    """Versions 0-1, flexible from 0."""

    resource_types: list[int] = []  # 1+


class ListConfigResourcesResponseResource(Message):
    """`config_resources` of ListConfigResourcesResponse."""

    resource_name: str = ""
    resource_type: int = 16  # 1+


class ListConfigResourcesResponse(Message):
    """Versions 0-1, flexible from 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    config_resources: list[ListConfigResourcesResponseResource] = []


class AlterReplicaLogDirsRequestTopic(Message):
    """`topics` of AlterReplicaLogDirsRequestDir."""

    name: str = ""
    partitions: list[int] = []


class AlterReplicaLogDirsRequestDir(Message):
    """`dirs` of AlterReplicaLogDirsRequest."""

    path: str = ""
    topics: list[AlterReplicaLogDirsRequestTopic] = []


class AlterReplicaLogDirsRequest(Message):
    """Versions 1-2, flexible from 2."""

    dirs: list[AlterReplicaLogDirsRequestDir] = []


class AlterReplicaLogDirsResponsePartition(Message):
    """`partitions` of AlterReplicaLogDirsResponseTopic."""

    partition_index: int = 0
    error_code: int = 0


class AlterReplicaLogDirsResponseTopic(Message):
    """`results` of AlterReplicaLogDirsResponse."""

    topic_name: str = ""
    partitions: list[AlterReplicaLogDirsResponsePartition] = []


class AlterReplicaLogDirsResponse(Message):
    """Versions 1-2, flexible from 2."""

    throttle_time_ms: int = 0
    results: list[AlterReplicaLogDirsResponseTopic] = []


class DescribeLogDirsRequestTopic(Message):
    """`topics` of DescribeLogDirsRequest."""

    topic: str = ""
    partitions: list[int] = []


class DescribeLogDirsRequest(Message):
    """Versions 1-5, flexible from 2."""

    topics: list[DescribeLogDirsRequestTopic] | None = []


class DescribeLogDirsResponsePartition(Message):
    """`partitions` of DescribeLogDirsResponseTopic."""

    partition_index: int = 0
    partition_size: int = 0
    offset_lag: int = 0
    is_future_key: bool = False


class DescribeLogDirsResponseTopic(Message):
    """`topics` of DescribeLogDirsResponseLogDir."""

    name: str = ""
    partitions: list[DescribeLogDirsResponsePartition] = []


class DescribeLogDirsResponseLogDir(Message):
    """`results` of DescribeLogDirsResponse."""

    error_code: int = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsResponseTopic] = []
    total_bytes: int = -1  # 4+
    usable_bytes: int = -1  # 4+
    is_cordoned: bool = False  # 5+


class DescribeLogDirsResponse(Message):
    """Versions 1-5, flexible from 2."""

    throttle_time_ms: int = 0
    error_code: int = 0  # 3+
    results: list[DescribeLogDirsResponseLogDir] = []


class DescribeTopicPartitionsRequestTopic(Message):
    """`topics` of DescribeTopicPartitionsRequest."""

    name: str = ""


class DescribeTopicPartitionsRequestCursor(Message):
    """Tagged `cursor` of DescribeTopicPartitionsRequest."""

    topic_name: str = ""
    partition_index: int = 0


class DescribeTopicPartitionsRequest(Message):
    """Versions 0, flexible from 0."""

    topics: list[DescribeTopicPartitionsRequestTopic] = []
    response_partition_limit: int = 2000
    cursor: DescribeTopicPartitionsRequestCursor | None = None


class DescribeTopicPartitionsResponsePartition(Message):
    """`partitions` of DescribeTopicPartitionsResponseTopic."""

    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = []
    isr_nodes: list[int] = []
    eligible_leader_replicas: list[int] | None = None
    last_known_elr: list[int] | None = None
    offline_replicas: list[int] = []


class DescribeTopicPartitionsResponseTopic(Message):
    """`topics` of DescribeTopicPartitionsResponse."""

    error_code: int = 0
    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: int = -2147483648


class DescribeTopicPartitionsResponseCursor(Message):
    """Tagged `next_cursor` of DescribeTopicPartitionsResponse."""

    topic_name: str = ""
    partition_index: int = 0


class DescribeTopicPartitionsResponse(Message):
    """Versions 0, flexible from 0."""

    throttle_time_ms: int = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: DescribeTopicPartitionsResponseCursor | None = None


class DescribeProducersRequestTopic(Message):
    """`topics` of DescribeProducersRequest."""

    name: str = ""
    partition_indexes: list[int] = []


class DescribeProducersRequest(Message):
    """Versions 0, flexible from 0."""

    topics: list[DescribeProducersRequestTopic] = []


class DescribeProducersResponseProducer(Message):
    """`active_producers` of DescribeProducersResponsePartition."""

    producer_id: int = 0
    producer_epoch: int = 0
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = 0
    current_txn_start_offset: int = -1


class DescribeProducersResponsePartition(Message):
    """`partitions` of DescribeProducersResponseTopic."""

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    active_producers: list[DescribeProducersResponseProducer] = []


class DescribeProducersResponseTopic(Message):
    """`topics` of DescribeProducersResponse."""

    name: str = ""
    partitions: list[DescribeProducersResponsePartition] = []


class DescribeProducersResponse(Message):
    """Versions 0, flexible from 0."""

    throttle_time_ms: int = 0
    topics: list[DescribeProducersResponseTopic] = []


class ElectLeadersRequestTopic(Message):
    """`topic_partitions` of ElectLeadersRequest."""

    topic: str = ""
    partitions: list[int] = []


class ElectLeadersRequest(Message):
    """Versions 0-2, flexible from 2."""

    election_type: int = 0  # 1+
    topic_partitions: list[ElectLeadersRequestTopic] | None = []
    timeout_ms: int = 60000


class ElectLeadersResponsePartition(Message):
    """`partition_result` of ElectLeadersResponseTopic."""

    partition_id: int = 0
    error_code: int = 0
    error_message: str | None = ""


class ElectLeadersResponseTopic(Message):
    """`replica_election_results` of ElectLeadersResponse."""

    topic: str = ""
    partition_result: list[ElectLeadersResponsePartition] = []


class ElectLeadersResponse(Message):
    """Versions 0-2, flexible from 2."""

    throttle_time_ms: int = 0
    error_code: int = 0  # 1+
    replica_election_results: list[ElectLeadersResponseTopic] = []


class UnregisterBrokerRequest(Message):
    """Versions 0, flexible from 0."""

    broker_id: int = 0
    is_given_up: bool = False
    broker_epoch: int = -1


class UnregisterBrokerResponse(Message):
    """Versions 0, flexible from 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""


class AlterPartitionReassignmentsRequestPartition(Message):
    """`partitions` of AlterPartitionReassignmentsRequestTopic."""

    partition_index: int = 0
    replicas: list[int] | None = None


class AlterPartitionReassignmentsRequestTopic(Message):
    """`topics` of AlterPartitionReassignmentsRequest."""

    name: str = ""
    partitions: list[AlterPartitionReassignmentsRequestPartition] = []


class AlterPartitionReassignmentsRequest(Message):
    """Versions 0-1, flexible from 0."""

    timeout_ms: int = 60000
    allow_replication_factor_change: bool = True  # 1+
    topics: list[AlterPartitionReassignmentsRequestTopic] = []


class AlterPartitionReassignmentsResponsePartition(Message):
    """`partitions` of AlterPartitionReassignmentsResponseTopic."""

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""


class AlterPartitionReassignmentsResponseTopic(Message):
    """`responses` of AlterPartitionReassignmentsResponse."""

    name: str = ""
    partitions: list[AlterPartitionReassignmentsResponsePartition] = []


class AlterPartitionReassignmentsResponse(Message):
    """Versions 0-1, flexible from 0."""

    throttle_time_ms: int = 0
    allow_replication_factor_change: bool = True  # 1+
    error_code: int = 0
    error_message: str | None = ""
    responses: list[AlterPartitionReassignmentsResponseTopic] = []


class ListPartitionReassignmentsRequestTopic(Message):
    """`topics` of ListPartitionReassignmentsRequest."""

    name: str = ""
    partition_indexes: list[int] = []


class ListPartitionReassignmentsRequest(Message):
    """Versions 0, flexible from 0."""

    timeout_ms: int = 60000
    topics: list[ListPartitionReassignmentsRequestTopic] | None = None


class ListPartitionReassignmentsResponsePartition(Message):
    """`partitions` of ListPartitionReassignmentsResponseTopic."""

    partition_index: int = 0
    replicas: list[int] = []
    adding_replicas: list[int] = []
    removing_replicas: list[int] = []


class ListPartitionReassignmentsResponseTopic(Message):
    """`topics` of ListPartitionReassignmentsResponse."""

    name: str = ""
    partitions: list[ListPartitionReassignmentsResponsePartition] = []


class ListPartitionReassignmentsResponse(Message):
    """Versions 0, flexible from 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    topics: list[ListPartitionReassignmentsResponseTopic] = []


class DescribeAclsRequest(Message):
    """Versions 1-3, flexible from 2."""

    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0


class DescribeAclsResponseAcl(Message):
    """`acls` of DescribeAclsResponseResource."""

    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class DescribeAclsResponseResource(Message):
    """`resources` of DescribeAclsResponse."""

    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    acls: list[DescribeAclsResponseAcl] = []


class DescribeAclsResponse(Message):
    """Versions 1-3, flexible from 2."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResponseResource] = []


class CreateAclsRequestCreation(Message):
    """`creations` of CreateAclsRequest."""

    resource_type: int = 0
    resource_name: str = ""
    resource_pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class CreateAclsRequest(Message):
    """Versions 1-3, flexible from 2."""

    creations: list[CreateAclsRequestCreation] = []


class CreateAclsResponseResult(Message):
    """`results` of CreateAclsResponse."""

    error_code: int = 0
    error_message: str | None = ""


class CreateAclsResponse(Message):
    """Versions 1-3, flexible from 2."""

    throttle_time_ms: int = 0
    results: list[CreateAclsResponseResult] = []


class DeleteAclsRequestFilter(Message):
    """`filters` of DeleteAclsRequest."""

    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0


class DeleteAclsRequest(Message):
    """Versions 1-3, flexible from 2."""

    filters: list[DeleteAclsRequestFilter] = []


class DeleteAclsResponseAcl(Message):
    """`matching_acls` of DeleteAclsResponseResult."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class DeleteAclsResponseResult(Message):
    """`filter_results` of DeleteAclsResponse."""

    error_code: int = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsResponseAcl] = []


class DeleteAclsResponse(Message):
    """Versions 1-3, flexible from 2."""

    throttle_time_ms: int = 0
    filter_results: list[DeleteAclsResponseResult] = []


class AlterPartitionRequestBrokerState(Message):
    """`new_isr_with_epochs` of AlterPartitionRequestPartition."""

    broker_id: int = 0
    broker_epoch: int = -1


class AlterPartitionRequestPartition(Message):
    """`partitions` of AlterPartitionRequestTopic."""

    partition_index: int = 0
    leader_epoch: int = 0
    new_isr_with_epochs: list[AlterPartitionRequestBrokerState] = []
    leader_recovery_state: int = 0
    partition_epoch: int = 0


class AlterPartitionRequestTopic(Message):
    """`topics` of AlterPartitionRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[AlterPartitionRequestPartition] = []


class AlterPartitionRequest(Message):
    """Versions 3, flexible from 0."""

    broker_id: int = 0
    broker_epoch: int = -1
    topics: list[AlterPartitionRequestTopic] = []


class AlterPartitionResponsePartition(Message):
    """`partitions` of AlterPartitionResponseTopic."""

    partition_index: int = 0
    error_code: int = 0
    leader_id: int = 0
    leader_epoch: int = 0
    isr: list[int] = []
    leader_recovery_state: int = 0
    partition_epoch: int = 0


class AlterPartitionResponseTopic(Message):
    """`topics` of AlterPartitionResponse."""

    topic_id: UUID = ZERO_UUID
    partitions: list[AlterPartitionResponsePartition] = []


class AlterPartitionResponse(Message):
    """Versions 3, flexible from 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    topics: list[AlterPartitionResponseTopic] = []


class EnvelopeRequest(Message):
    """Versions 0, flexible from 0."""

    request_data: bytes = b""
    request_principal: bytes | None = b""
    client_host_address: bytes = b""
    client_listener: str = ""


class EnvelopeResponse(Message):
    """Versions 0, flexible from 0."""

    response_data: bytes | None = None
    error_code: int = 0
    position: int = -1


class BrokerRegistrationRequestListener(Message):
    """`listeners` of BrokerRegistrationRequest."""

    name: str = ""
    host: str = ""
    port: int = 0
    security_protocol: int = 0


class BrokerRegistrationRequestFeature(Message):
    """`features` of BrokerRegistrationRequest."""

    name: str = ""
    min_supported_version: int = 0
    max_supported_version: int = 0


class BrokerRegistrationRequestLostLog(Message):
    """`lost_logs` of BrokerRegistrationRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = []


class BrokerRegistrationRequestHeldLog(Message):
    """`held_logs` of BrokerRegistrationRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = []


class BrokerRegistrationRequest(Message):
    """Versions 4, flexible from 0."""

    broker_id: int = 0
    cluster_id: str = ""
    incarnation_id: UUID = ZERO_UUID
    listeners: list[BrokerRegistrationRequestListener] = []
    features: list[BrokerRegistrationRequestFeature] = []
    rack: str | None = ""
    is_migrating_zk_broker: bool = False
    log_dirs: list[UUID] = []
    previous_broker_epoch: int = -1
    boot_id: str = ""
    lost_logs: list[BrokerRegistrationRequestLostLog] = []
    take_over: bool = False
    held_logs: list[BrokerRegistrationRequestHeldLog] = []
    lease_counter: int = -2
    wants_bump: bool = False


class BrokerRegistrationResponse(Message):
    """Versions 4, flexible from 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    broker_epoch: int = -1
    error_message: str | None = None


class BrokerHeartbeatRequestLostLog(Message):
    """`lost_logs` of BrokerHeartbeatRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = []


class BrokerHeartbeatRequestUnfit(Message):
    """`unfit` of BrokerHeartbeatRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = []


class BrokerHeartbeatRequest(Message):
    """Versions 2, flexible from 0."""

    broker_id: int = 0
    broker_epoch: int = -1
    current_metadata_offset: int = 0
    want_fence: bool = False
    want_shut_down: bool = False
    offline_log_dirs: list[UUID] = []
    cordoned_log_dirs: list[UUID] | None = None
    lost_logs: list[BrokerHeartbeatRequestLostLog] = []
    unfit: list[BrokerHeartbeatRequestUnfit] = []
    no_claim_ms: int = 0
    since_epoch: int = -1
    since_ms: int = 0


class BrokerHeartbeatResponse(Message):
    """Versions 2, flexible from 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False
    controller_epoch: int = -1
    root: bytes | None = None
    lease_counter: int = -1
    is_store_away: bool = False
    boottime_ms: int = 0


class AddPartitionsToTxnRequestTransactionTopic(Message):
    """`topics` of AddPartitionsToTxnRequestTransaction."""

    name: str = ""
    partitions: list[int] = []
    topic_id: UUID = ZERO_UUID  # 4+


class AddPartitionsToTxnRequestTransaction(Message):
    """`transactions` of AddPartitionsToTxnRequest."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnRequestTransactionTopic] = []


class AddPartitionsToTxnRequestTopic(Message):
    """`v3_and_below_topics` of AddPartitionsToTxnRequest."""

    name: str = ""
    partitions: list[int] = []


class AddPartitionsToTxnRequest(Message):
    """Versions 0-5, flexible from 3."""

    transactions: list[AddPartitionsToTxnRequestTransaction] = []  # 4+
    v3_and_below_transactional_id: str = ""  # 0-3
    v3_and_below_producer_id: int = 0  # 0-3
    v3_and_below_producer_epoch: int = 0  # 0-3
    v3_and_below_topics: list[AddPartitionsToTxnRequestTopic] = []  # 0-3


class AddPartitionsToTxnResponseResultPartition(Message):
    """`results_by_partition` of AddPartitionsToTxnResponseResultTopic."""

    partition_index: int = 0
    partition_error_code: int = 0


class AddPartitionsToTxnResponseResultTopic(Message):
    """`topic_results` of AddPartitionsToTxnResponseResult."""

    name: str = ""
    results_by_partition: list[AddPartitionsToTxnResponseResultPartition] = []


class AddPartitionsToTxnResponseResult(Message):
    """`results_by_transaction` of AddPartitionsToTxnResponse."""

    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnResponseResultTopic] = []


class AddPartitionsToTxnResponsePartition(Message):
    """`results_by_partition` of AddPartitionsToTxnResponseTopic."""

    partition_index: int = 0
    partition_error_code: int = 0


class AddPartitionsToTxnResponseTopic(Message):
    """`results_by_topic_v3_and_below` of AddPartitionsToTxnResponse."""

    name: str = ""
    results_by_partition: list[AddPartitionsToTxnResponsePartition] = []


class AddPartitionsToTxnResponse(Message):
    """Versions 0-5, flexible from 3."""

    throttle_time_ms: int = 0
    error_code: int = 0  # 4+
    results_by_transaction: list[AddPartitionsToTxnResponseResult] = []  # 4+
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResponseTopic] = []  # 0-3


class AddOffsetsToTxnRequest(Message):
    """Versions 0-4, flexible from 3."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    group_id: str = ""


class AddOffsetsToTxnResponse(Message):
    """Versions 0-4, flexible from 3."""

    throttle_time_ms: int = 0
    error_code: int = 0


class EndTxnRequest(Message):
    """Versions 0-5, flexible from 3."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    committed: bool = False
    started_ms: int = -1  # 5+


class EndTxnResponse(Message):
    """Versions 0-5, flexible from 3."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1  # 5+
    producer_epoch: int = -1  # 5+


class WriteTxnMarkersRequestTopic(Message):
    """`topics` of WriteTxnMarkersRequestMarker."""

    name: str = ""
    partition_indexes: list[int] = []
    topic_id: UUID = ZERO_UUID  # 1+


class WriteTxnMarkersRequestMarker(Message):
    """`markers` of WriteTxnMarkersRequest."""

    producer_id: int = 0
    producer_epoch: int = 0
    transaction_result: bool = False
    topics: list[WriteTxnMarkersRequestTopic] = []
    coordinator_epoch: int = 0
    transaction_version: int = 0  # 2+


class WriteTxnMarkersRequest(Message):
    """Versions 1-2, flexible from 1."""

    markers: list[WriteTxnMarkersRequestMarker] = []


class WriteTxnMarkersResponsePartition(Message):
    """`partitions` of WriteTxnMarkersResponseTopic."""

    partition_index: int = 0
    error_code: int = 0


class WriteTxnMarkersResponseTopic(Message):
    """`topics` of WriteTxnMarkersResponseMarker."""

    name: str = ""
    partitions: list[WriteTxnMarkersResponsePartition] = []


class WriteTxnMarkersResponseMarker(Message):
    """`markers` of WriteTxnMarkersResponse."""

    producer_id: int = 0
    topics: list[WriteTxnMarkersResponseTopic] = []


class WriteTxnMarkersResponse(Message):
    """Versions 1-2, flexible from 1."""

    markers: list[WriteTxnMarkersResponseMarker] = []


class TxnOffsetCommitRequestPartition(Message):
    """`partitions` of TxnOffsetCommitRequestTopic."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # 2+
    committed_metadata: str | None = ""


class TxnOffsetCommitRequestTopic(Message):
    """`topics` of TxnOffsetCommitRequest."""

    name: str = ""
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(Message):
    """Versions 0-5, flexible from 3."""

    transactional_id: str = ""
    group_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    generation_id: int = -1  # 3+
    member_id: str = ""  # 3+
    group_instance_id: str | None = None  # 3+
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Message):
    """`partitions` of TxnOffsetCommitResponseTopic."""

    partition_index: int = 0
    error_code: int = 0


class TxnOffsetCommitResponseTopic(Message):
    """`topics` of TxnOffsetCommitResponse."""

    name: str = ""
    partitions: list[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponse(Message):
    """Versions 0-5, flexible from 3."""

    throttle_time_ms: int = 0
    topics: list[TxnOffsetCommitResponseTopic] = []


class DescribeTransactionsRequest(Message):
    """Versions 0, flexible from 0."""

    transactional_ids: list[str] = []


class DescribeTransactionsResponseTopic(Message):
    """`topics` of DescribeTransactionsResponseState."""

    topic: str = ""
    partitions: list[int] = []
    topic_id: UUID = ZERO_UUID


class DescribeTransactionsResponseState(Message):
    """`transaction_states` of DescribeTransactionsResponse."""

    error_code: int = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: list[DescribeTransactionsResponseTopic] = []


class DescribeTransactionsResponse(Message):
    """Versions 0, flexible from 0."""

    throttle_time_ms: int = 0
    transaction_states: list[DescribeTransactionsResponseState] = []


class ListTransactionsRequest(Message):
    """Versions 0-2, flexible from 0."""

    state_filters: list[str] = []
    producer_id_filters: list[int] = []
    duration_filter: int = -1  # 1+
    transactional_id_pattern: str | None = None  # 2+
    partition_topic_id: UUID = ZERO_UUID  # 2+
    partition_index: int = -1  # 2+


class ListTransactionsResponseState(Message):
    """`transaction_states` of ListTransactionsResponse."""

    transactional_id: str = ""
    producer_id: int = 0
    transaction_state: str = ""
    producer_epoch: int = -1  # 2+
    client_version: int = 0  # 2+
    has_partition: bool = False  # 2+
    started_ms: int = -1  # 2+
    previous_producer_id: int = -1  # 2+


class ListTransactionsResponse(Message):
    """Versions 0-2, flexible from 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_state_filters: list[str] = []
    transaction_states: list[ListTransactionsResponseState] = []
    led_partitions: list[int] = []  # 2+


class DescribeClientQuotasRequestComponent(Message):
    """`components` of DescribeClientQuotasRequest."""

    entity_type: str = ""
    match_type: int = 0
    match: str | None = ""


class DescribeClientQuotasRequest(Message):
    """Versions 0-1, flexible from 1."""

    components: list[DescribeClientQuotasRequestComponent] = []
    strict: bool = False


class DescribeClientQuotasResponseEntity(Message):
    """`entity` of DescribeClientQuotasResponseEntry."""

    entity_type: str = ""
    entity_name: str | None = None


class DescribeClientQuotasResponseValue(Message):
    """`values` of DescribeClientQuotasResponseEntry."""

    key: str = ""
    value: float = 0.0


class DescribeClientQuotasResponseEntry(Message):
    """`entries` of DescribeClientQuotasResponse."""

    entity: list[DescribeClientQuotasResponseEntity] = []
    values: list[DescribeClientQuotasResponseValue] = []


class DescribeClientQuotasResponse(Message):
    """Versions 0-1, flexible from 1."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    entries: list[DescribeClientQuotasResponseEntry] | None = []


class AlterClientQuotasRequestEntity(Message):
    """`entity` of AlterClientQuotasRequestEntry."""

    entity_type: str = ""
    entity_name: str | None = None


class AlterClientQuotasRequestOp(Message):
    """`ops` of AlterClientQuotasRequestEntry."""

    key: str = ""
    value: float = 0.0
    remove: bool = False


class AlterClientQuotasRequestEntry(Message):
    """`entries` of AlterClientQuotasRequest."""

    entity: list[AlterClientQuotasRequestEntity] = []
    ops: list[AlterClientQuotasRequestOp] = []


class AlterClientQuotasRequest(Message):
    """Versions 0-1, flexible from 1."""

    entries: list[AlterClientQuotasRequestEntry] = []
    validate_only: bool = False


class AlterClientQuotasResponseEntity(Message):
    """`entity` of AlterClientQuotasResponseEntry."""

    entity_type: str = ""
    entity_name: str | None = None


class AlterClientQuotasResponseEntry(Message):
    """`entries` of AlterClientQuotasResponse."""

    error_code: int = 0
    error_message: str | None = None
    entity: list[AlterClientQuotasResponseEntity] = []


class AlterClientQuotasResponse(Message):
    """Versions 0-1, flexible from 1."""

    throttle_time_ms: int = 0
    entries: list[AlterClientQuotasResponseEntry] = []


class SaslHandshakeRequest(Message):
    """Versions 0-1."""

    mechanism: str = ""


class SaslHandshakeResponse(Message):
    """Versions 0-1."""

    error_code: int = 0
    mechanisms: list[str] = []


class SaslAuthenticateRequest(Message):
    """Versions 0-2, flexible from 2."""

    auth_bytes: bytes = b""


class SaslAuthenticateResponse(Message):
    """Versions 0-2, flexible from 2."""

    error_code: int = 0
    error_message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0  # 1+


class DescribeUserScramCredentialsRequestUser(Message):
    """`users` of DescribeUserScramCredentialsRequest."""

    name: str = ""


class DescribeUserScramCredentialsRequest(Message):
    """Versions 0, flexible from 0."""

    users: list[DescribeUserScramCredentialsRequestUser] | None = None


class DescribeUserScramCredentialsResponseCredentialInfo(Message):
    """`credential_infos` of DescribeUserScramCredentialsResponseResult."""

    mechanism: int = 0
    iterations: int = 0


class DescribeUserScramCredentialsResponseResult(Message):
    """`results` of DescribeUserScramCredentialsResponse."""

    user: str = ""
    error_code: int = 0
    error_message: str | None = None
    credential_infos: list[DescribeUserScramCredentialsResponseCredentialInfo] = []


class DescribeUserScramCredentialsResponse(Message):
    """Versions 0, flexible from 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    results: list[DescribeUserScramCredentialsResponseResult] = []


class AlterUserScramCredentialsRequestDeletion(Message):
    """`deletions` of AlterUserScramCredentialsRequest."""

    name: str = ""
    mechanism: int = 0


class AlterUserScramCredentialsRequestUpsertion(Message):
    """`upsertions` of AlterUserScramCredentialsRequest."""

    name: str = ""
    mechanism: int = 0
    iterations: int = 0
    salt: bytes = b""
    salted_password: bytes = b""


class AlterUserScramCredentialsRequest(Message):
    """Versions 0, flexible from 0."""

    deletions: list[AlterUserScramCredentialsRequestDeletion] = []
    upsertions: list[AlterUserScramCredentialsRequestUpsertion] = []


class AlterUserScramCredentialsResponseResult(Message):
    """`results` of AlterUserScramCredentialsResponse."""

    user: str = ""
    error_code: int = 0
    error_message: str | None = None


class AlterUserScramCredentialsResponse(Message):
    """Versions 0, flexible from 0."""

    throttle_time_ms: int = 0
    results: list[AlterUserScramCredentialsResponseResult] = []


class OffsetCommitKey(Message):
    """Versions 0-1."""

    group: str = ""
    topic: str = ""
    partition: int = 0


class OffsetCommitValue(Message):
    """Versions 0-4, flexible from 4."""

    offset: int = 0
    leader_epoch: int = -1  # 3+
    metadata: str = ""
    commit_timestamp: int = 0
    expire_timestamp: int = -1  # 1
    topic_id: UUID = ZERO_UUID  # 4+
    own_expire_timestamp: int = -1  # 4+


class GroupMetadataKey(Message):
    """Versions 2."""

    group: str = ""


class GroupMetadataValueMember(Message):
    """`members` of GroupMetadataValue."""

    member_id: str = ""
    group_instance_id: str | None = None  # 3+
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: int = 0  # 1+
    session_timeout: int = 0
    subscription: bytes = b""
    assignment: bytes = b""


class GroupMetadataValue(Message):
    """Versions 0-4, flexible from 4."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: int = -1  # 2+
    members: list[GroupMetadataValueMember] = []


class TransactionLogKey(Message):
    """Versions 0."""

    transactional_id: str = ""


class TransactionLogValuePartitions(Message):
    """`transaction_partitions` of TransactionLogValue."""

    topic: str = ""
    partition_ids: list[int] = []
    topic_id: UUID = ZERO_UUID  # 1+


class TransactionLogValue(Message):
    """Versions 0-1, flexible from 1."""

    producer_id: int = 0
    previous_producer_id: int = -1  # 1+
    next_producer_id: int = -1  # 1+
    producer_epoch: int = 0
    transaction_timeout_ms: int = 0
    transaction_status: int = 0
    transaction_partitions: list[TransactionLogValuePartitions] | None = []
    transaction_last_update_timestamp_ms: int = 0
    transaction_start_timestamp_ms: int = 0
    client_transaction_version: int = 0  # 1+
    needs_fresh_producer_id: bool = False  # 1+
