"""Every API has a rule, and a client without any ACL gets nothing out of any of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.error_codes import ErrorCode
from broker.net.dispatch import Peer
from broker.security.authorizer.access import Unrestricted
from broker.security.rules.table import RULES
from broker.security.rules.verdict import ALLOWED
from broker.wire import messages as wire
from broker.wire.apis import APIS, BROKERS_ONLY, ApiKey
from tests.support.brokers.broker_kit import Place, batch_of, produce_request

STANDARD = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
DENIALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
OPEN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
FILTERED = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
"""Whose answer is less, not an error."""


def test_every_api_has_a_rule() -> None:
    assert RULES.keys() == APIS.keys()


def test_only_an_open_api_needs_nothing() -> None:
    assert {key for key, rule in RULES.items() if not rule.needs} == OPEN


async def test_what_everybody_may_is_split_nowhere() -> None:
    """An unrestricted client's request stays as it is, or its answer does."""
    for key, rule in RULES.items():
        request: Any = REQUESTS[ApiKey(key)]
        verdict = await rule.split(Unrestricted(), request, APIS[ApiKey(key)].version_max, _NoTopics())
        assert verdict.response is None and not verdict.refused, ApiKey(key).name
        assert verdict is ALLOWED or verdict.request == request, ApiKey(key).name


class _NoTopics:
    def name_of(self, topic_id: UUID) -> str | None:
        return None

    def facts(self, name: str) -> Any:
        return None


def _errors(found: Any) -> set[int]:
    """All error codes in a response."""
    codes: set[int] = set()
    for field in getattr(found, "__struct_fields__", ()):
        value = getattr(found, field)
        if field.endswith("error_code") and value:
            codes.add(value)
        for each in value if isinstance(value, list) else [value]:
            codes |= _errors(each)
    return codes


T, G, X = "secret", "group", "txn"
REQUESTS: dict[ApiKey, Any] = {
    ApiKey.SASL_HANDSHAKE: wire.SaslHandshakeRequest("PLAIN"),
    ApiKey.SASL_AUTHENTICATE: wire.SaslAuthenticateRequest(b"x"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: wire.DescribeUserScramCredentialsRequest(),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: wire.AlterUserScramCredentialsRequest(
        deletions=[wire.AlterUserScramCredentialsRequestDeletion("alice", 1)]
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: wire.DescribeClientQuotasRequest(),
    ApiKey.ALTER_CLIENT_QUOTAS: wire.AlterClientQuotasRequest(
        entries=[wire.AlterClientQuotasRequestEntry(entity=[wire.AlterClientQuotasRequestEntity("user", "eve")])]
    ),
    ApiKey.API_VERSIONS: wire.ApiVersionsRequest(client_software_name="kit", client_software_version="1"),
    ApiKey.PRODUCE: produce_request(T, batch_of(b"x")),
    ApiKey.FETCH: wire.FetchRequest(
        replica_id=-1,
        max_bytes=1000,
        topics=[wire.FetchRequestTopic(topic=T, partitions=[wire.FetchRequestPartition(partition_max_bytes=1000)])],
    ),
    ApiKey.LIST_OFFSETS: wire.ListOffsetsRequest(
        replica_id=-1, topics=[wire.ListOffsetsRequestTopic(T, [wire.ListOffsetsRequestPartition(timestamp=-1)])]
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: wire.OffsetForLeaderEpochRequest(
        topics=[wire.OffsetForLeaderEpochRequestTopic(T, [wire.OffsetForLeaderEpochRequestPartition(0, -1, 0)])]
    ),
    ApiKey.DELETE_RECORDS: wire.DeleteRecordsRequest(
        topics=[wire.DeleteRecordsRequestTopic(T, [wire.DeleteRecordsRequestPartition(0, 0)])], timeout_ms=1000
    ),
    ApiKey.DESCRIBE_PRODUCERS: wire.DescribeProducersRequest(topics=[wire.DescribeProducersRequestTopic(T, [0])]),
    ApiKey.METADATA: wire.MetadataRequest(topics=[wire.MetadataRequestTopic(name=T)]),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: wire.DescribeTopicPartitionsRequest(
        topics=[wire.DescribeTopicPartitionsRequestTopic(T)]
    ),
    ApiKey.DESCRIBE_CLUSTER: wire.DescribeClusterRequest(include_cluster_authorized_operations=True),
    ApiKey.FIND_COORDINATOR: wire.FindCoordinatorRequest(coordinator_keys=[G]),
    ApiKey.JOIN_GROUP: wire.JoinGroupRequest(group_id=G, session_timeout_ms=10_000, protocol_type="consumer"),
    ApiKey.SYNC_GROUP: wire.SyncGroupRequest(group_id=G, protocol_type="consumer", protocol_name="range"),
    ApiKey.HEARTBEAT: wire.HeartbeatRequest(group_id=G),
    ApiKey.LEAVE_GROUP: wire.LeaveGroupRequest(group_id=G),
    ApiKey.OFFSET_COMMIT: wire.OffsetCommitRequest(
        group_id=G, topics=[wire.OffsetCommitRequestTopic(name=T, partitions=[wire.OffsetCommitRequestPartition()])]
    ),
    ApiKey.OFFSET_FETCH: wire.OffsetFetchRequest(
        groups=[wire.OffsetFetchRequestGroup(G, topics=[wire.OffsetFetchRequestGroupTopic(T, partition_indexes=[0])])]
    ),
    ApiKey.LIST_GROUPS: wire.ListGroupsRequest(),
    ApiKey.DESCRIBE_GROUPS: wire.DescribeGroupsRequest(groups=[G]),
    ApiKey.DELETE_GROUPS: wire.DeleteGroupsRequest(groups_names=[G]),
    ApiKey.OFFSET_DELETE: wire.OffsetDeleteRequest(
        group_id=G, topics=[wire.OffsetDeleteRequestTopic(T, [wire.OffsetDeleteRequestPartition(0)])]
    ),
    ApiKey.INIT_PRODUCER_ID: wire.InitProducerIdRequest(transactional_id=None),
    ApiKey.ADD_PARTITIONS_TO_TXN: wire.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=X, v3_and_below_topics=[wire.AddPartitionsToTxnRequestTopic(T, [0])]
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: wire.AddOffsetsToTxnRequest(transactional_id=X, group_id=G),
    ApiKey.END_TXN: wire.EndTxnRequest(transactional_id=X),
    ApiKey.TXN_OFFSET_COMMIT: wire.TxnOffsetCommitRequest(
        transactional_id=X,
        group_id=G,
        topics=[wire.TxnOffsetCommitRequestTopic(T, [wire.TxnOffsetCommitRequestPartition()])],
    ),
    ApiKey.WRITE_TXN_MARKERS: wire.WriteTxnMarkersRequest(
        markers=[wire.WriteTxnMarkersRequestMarker(1, 0, False, [wire.WriteTxnMarkersRequestTopic(T, [0])])]
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: wire.DescribeTransactionsRequest(transactional_ids=[X]),
    ApiKey.LIST_TRANSACTIONS: wire.ListTransactionsRequest(),
    ApiKey.CREATE_TOPICS: wire.CreateTopicsRequest(topics=[wire.CreateTopicsRequestTopic("new", 1, 1)]),
    ApiKey.DELETE_TOPICS: wire.DeleteTopicsRequest(topics=[wire.DeleteTopicsRequestTopic(T)], timeout_ms=1000),
    ApiKey.CREATE_PARTITIONS: wire.CreatePartitionsRequest(
        topics=[wire.CreatePartitionsRequestTopic(T, 2, None)], timeout_ms=1000
    ),
    ApiKey.DESCRIBE_CONFIGS: wire.DescribeConfigsRequest(resources=[wire.DescribeConfigsRequestResource(2, T, None)]),
    ApiKey.ALTER_CONFIGS: wire.AlterConfigsRequest(resources=[wire.AlterConfigsRequestResource(2, T)]),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: wire.IncrementalAlterConfigsRequest(
        resources=[wire.IncrementalAlterConfigsRequestResource(4, "1")]
    ),
    ApiKey.LIST_CONFIG_RESOURCES: wire.ListConfigResourcesRequest(),
    ApiKey.DESCRIBE_LOG_DIRS: wire.DescribeLogDirsRequest(topics=None),
    ApiKey.ALTER_REPLICA_LOG_DIRS: wire.AlterReplicaLogDirsRequest(
        dirs=[wire.AlterReplicaLogDirsRequestDir("/x", [wire.AlterReplicaLogDirsRequestTopic(T, [0])])]
    ),
    ApiKey.ELECT_LEADERS: wire.ElectLeadersRequest(topic_partitions=[wire.ElectLeadersRequestTopic(T, [0])]),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: wire.AlterPartitionReassignmentsRequest(
        topics=[
            wire.AlterPartitionReassignmentsRequestTopic(T, [wire.AlterPartitionReassignmentsRequestPartition(0, [1])])
        ]
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: wire.ListPartitionReassignmentsRequest(),
    ApiKey.UNREGISTER_BROKER: wire.UnregisterBrokerRequest(broker_id=7),
    ApiKey.DESCRIBE_ACLS: wire.DescribeAclsRequest(1, None, 1, None, None, 1, 1),
    ApiKey.CREATE_ACLS: wire.CreateAclsRequest(
        creations=[wire.CreateAclsRequestCreation(2, T, 3, "User:eve", "*", 2, 3)]
    ),
    ApiKey.DELETE_ACLS: wire.DeleteAclsRequest(filters=[wire.DeleteAclsRequestFilter(1, None, 1, None, None, 1, 1)]),
    ApiKey.BROKER_REGISTRATION: wire.BrokerRegistrationRequest(),
    ApiKey.BROKER_HEARTBEAT: wire.BrokerHeartbeatRequest(),
    ApiKey.ALTER_PARTITION: wire.AlterPartitionRequest(),
    ApiKey.ENVELOPE: wire.EnvelopeRequest(),
}


@pytest.mark.parametrize("listener", ["PLAINTEXT", "BROKERS"])
async def test_a_client_without_acls_gets_nothing_out_of_any_api(listener: str) -> None:
    """Neither on the clients' listener nor on the brokers'; and what it asks for changes nothing."""
    life = await Place().start(STANDARD)
    await life.create(T)
    eve = Peer(7, "10.0.0.7:1", listener, principal="User:eve")
    before = life.context.metadata.image
    for key, request in REQUESTS.items():
        version = {ApiKey.FETCH: 12, ApiKey.OFFSET_COMMIT: 9, ApiKey.OFFSET_FETCH: 9, ApiKey.ADD_PARTITIONS_TO_TXN: 3}
        answer = await life.call(key, request, version.get(key, APIS[key].version_max), eve)
        errors = _errors(answer)
        if key in OPEN | FILTERED or key is ApiKey.DESCRIBE_CLUSTER:
            assert errors <= {ErrorCode.ILLEGAL_SASL_STATE}, (key.name, answer)  # it has logged in already
        else:
            assert errors and errors <= DENIALS, (key.name, answer)
        if key in FILTERED:
            assert not any(
                getattr(answer, field) for field in ("groups", "transaction_states") if hasattr(answer, field)
            )
    assert life.context.metadata.image is before
    assert REQUESTS.keys() >= BROKERS_ONLY
    assert sum(life.broker.audit.counts.values()) > len(REQUESTS) / 2
    await life.stop()
