"""The APIs, their served versions, and their header versions (docs/compatibility.md compares them with Kafka's).

Every advertised version is served, except for Produce 0–2. These are advertised because librdkafka 2.0 stops
compressing without them (KAFKA-18659), and answered UNSUPPORTED_VERSION. APIs between brokers are not advertised. Each
has one version, because all brokers run one release (docs/formats/broker-requests.md).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec


class ApiKey(IntEnum):
    """The served API keys, with Kafka's names and numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    ALTER_PARTITION = 56
    ENVELOPE = 58
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class Api(msgspec.Struct, frozen=True):
    """One API. Versions are inclusive.

    `flexible_from`: first version with compact lengths and tagged fields (KIP-482). `brokers_only`: served only on the
    brokers' listener.
    """

    key: ApiKey
    name: str
    version_min: int
    version_max: int
    flexible_from: int
    advertised_min: int
    brokers_only: bool = False


def _api(key: ApiKey, name: str, low: int, high: int, flexible_from: int, advertised_min: int | None = None) -> Api:
    return Api(key, name, low, high, flexible_from, low if advertised_min is None else advertised_min)


def _of_brokers(key: ApiKey, name: str, version: int) -> Api:
    return Api(key, name, version, version, 0, version, brokers_only=True)


_NEVER_FLEXIBLE: Final = 1 << 15

APIS: Final[dict[ApiKey, Api]] = {
    api.key: api
    for api in (
        _api(ApiKey.PRODUCE, "Produce", 3, 12, 9, advertised_min=0),
        _api(ApiKey.FETCH, "Fetch", 4, 18, 12),
        _api(ApiKey.LIST_OFFSETS, "ListOffsets", 1, 11, 6),
        _api(ApiKey.METADATA, "Metadata", 0, 12, 9),
        _api(ApiKey.OFFSET_COMMIT, "OffsetCommit", 2, 10, 8),
        _api(ApiKey.OFFSET_FETCH, "OffsetFetch", 1, 10, 6),
        _api(ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3),
        _api(ApiKey.JOIN_GROUP, "JoinGroup", 0, 9, 6),
        _api(ApiKey.HEARTBEAT, "Heartbeat", 0, 4, 4),
        _api(ApiKey.LEAVE_GROUP, "LeaveGroup", 0, 5, 4),
        _api(ApiKey.SYNC_GROUP, "SyncGroup", 0, 5, 4),
        _api(ApiKey.DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5),
        _api(ApiKey.LIST_GROUPS, "ListGroups", 0, 5, 3),
        _api(ApiKey.API_VERSIONS, "ApiVersions", 0, 4, 3),
        _api(ApiKey.CREATE_TOPICS, "CreateTopics", 2, 7, 5),
        _api(ApiKey.DELETE_TOPICS, "DeleteTopics", 1, 6, 4),
        _api(ApiKey.DELETE_RECORDS, "DeleteRecords", 0, 2, 2),
        _api(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2),
        _api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
        _api(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5, 3),
        _api(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4, 3),
        _api(ApiKey.END_TXN, "EndTxn", 0, 5, 3),
        _api(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 2, 1),
        _api(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 5, 3),
        _api(ApiKey.DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2),
        _api(ApiKey.CREATE_ACLS, "CreateAcls", 1, 3, 2),
        _api(ApiKey.DELETE_ACLS, "DeleteAcls", 1, 3, 2),
        _api(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
        _api(ApiKey.ALTER_CONFIGS, "AlterConfigs", 0, 2, 2),
        _api(ApiKey.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", 1, 2, 2),
        _api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5, 2),
        _api(ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2),
        _api(ApiKey.DELETE_GROUPS, "DeleteGroups", 0, 2, 2),
        _api(ApiKey.ELECT_LEADERS, "ElectLeaders", 0, 2, 2),
        _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
        _api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1, 0),
        _api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0),
        _api(ApiKey.UNREGISTER_BROKER, "UnregisterBroker", 0, 0, 0),
        _api(ApiKey.OFFSET_DELETE, "OffsetDelete", 0, 0, _NEVER_FLEXIBLE),
        _api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1, 1),
        _api(ApiKey.ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 1, 1),
        _api(ApiKey.SASL_HANDSHAKE, "SaslHandshake", 0, 1, _NEVER_FLEXIBLE),
        _api(ApiKey.SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2),
        _api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", 0, 0, 0),
        _api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", 0, 0, 0),
        _of_brokers(ApiKey.ALTER_PARTITION, "AlterPartition", 3),
        _of_brokers(ApiKey.ENVELOPE, "Envelope", 0),
        _api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
        _api(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0),
        _of_brokers(ApiKey.BROKER_REGISTRATION, "BrokerRegistration", 4),
        _of_brokers(ApiKey.BROKER_HEARTBEAT, "BrokerHeartbeat", 2),
        _api(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0),
        _api(ApiKey.LIST_TRANSACTIONS, "ListTransactions", 0, 2, 0),
        _api(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, 0),
        _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0),
    )
}

BROKERS_ONLY: Final = frozenset(int(api.key) for api in APIS.values() if api.brokers_only)
"""APIs that clients may not use (CVE-2018-1288)."""

# The keys are plain ints for the hot path: one dict look-up per frame, no enum construction.
_BY_NUMBER: Final[dict[int, Api]] = {int(key): api for key, api in APIS.items()}


def api_of(api_key: int) -> Api | None:
    """The API of `api_key`, or None."""
    return _BY_NUMBER.get(api_key)


def is_served(api_key: int, api_version: int) -> bool:
    """Whether requests of this API and version are decoded and answered (Produce 0-2 are not)."""
    api = _BY_NUMBER.get(api_key)
    return api is not None and api.version_min <= api_version <= api.version_max


def is_flexible(api_key: int, api_version: int) -> bool:
    """Whether this version has tagged fields; False for an unknown API."""
    api = _BY_NUMBER.get(api_key)
    return api_version >= (_NEVER_FLEXIBLE if api is None else api.flexible_from)


def response_header_version(api_key: int, api_version: int) -> int:
    """Version of the response header: 0 has the correlation id, 1 also tagged fields.

    ApiVersions always has header 0: a client that asked for an unknown version must be able to read the response
    (KIP-511).
    """
    return 1 if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version) else 0
