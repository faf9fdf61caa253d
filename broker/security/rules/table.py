"""`RULES`: the rule of every API.

Only brokers may call an API without a rule, so a new API is closed to clients until it has a rule. A test compares
`APIS` with the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.security.authorizer.access import Unrestricted
from broker.security.authorizer.kinds import Operation, ResourceType
from broker.security.rules import admin, cluster, data, groups, transactions
from broker.security.rules.verdict import ALLOWED, KnownTopics, Rule, Verdict
from broker.wire import messages as wire
from broker.wire.apis import ApiKey

_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP
_CLUSTER, _TXN = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
_Op = Operation


async def _allowed(access: Unrestricted, request: Any, version: int, topics: KnownTopics) -> Verdict:
    """Allow every request: the API is open to every client, or its handler checks `Call.access`."""
    return ALLOWED


_OPEN: Final = Rule((), _allowed)


def _in_handler(*needs: tuple[Operation, ResourceType]) -> Rule:
    """A rule whose needs the handler checks with `Call.access`."""
    return Rule(needs, _allowed)


RULES: Final[Mapping[int, Rule]] = {
    ApiKey.API_VERSIONS: _OPEN,
    ApiKey.SASL_HANDSHAKE: _OPEN,
    ApiKey.SASL_AUTHENTICATE: _OPEN,
    # records and offsets of logs
    ApiKey.PRODUCE: Rule(((_Op.WRITE, _TOPIC), (_Op.WRITE, _TXN)), data.produce),
    ApiKey.FETCH: _in_handler((_Op.READ, _TOPIC)),
    ApiKey.LIST_OFFSETS: Rule(((_Op.DESCRIBE, _TOPIC),), data.on_topics(_Op.DESCRIBE, data.offsets_refused)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Rule(
        ((_Op.DESCRIBE, _TOPIC), (_Op.CLUSTER_ACTION, _CLUSTER)), data.offset_for_leader_epoch
    ),
    ApiKey.DELETE_RECORDS: Rule(((_Op.DELETE, _TOPIC),), data.on_topics(_Op.DELETE, data.deletion_refused)),
    ApiKey.DESCRIBE_PRODUCERS: Rule(((_Op.READ, _TOPIC),), data.describe_producers),
    # metadata of the cluster
    ApiKey.METADATA: _in_handler(
        (_Op.DESCRIBE, _TOPIC), (_Op.CREATE, _TOPIC), (_Op.CREATE, _CLUSTER), (_Op.DESCRIBE, _CLUSTER)
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _in_handler((_Op.DESCRIBE, _TOPIC)),
    ApiKey.DESCRIBE_CLUSTER: _in_handler((_Op.DESCRIBE, _CLUSTER)),
    # groups
    ApiKey.FIND_COORDINATOR: Rule(((_Op.DESCRIBE, _GROUP), (_Op.DESCRIBE, _TXN)), groups.find_coordinator),
    ApiKey.JOIN_GROUP: Rule(((_Op.READ, _GROUP),), groups.member(groups.join_refused)),
    ApiKey.SYNC_GROUP: Rule(((_Op.READ, _GROUP),), groups.member(groups.refused_alike(wire.SyncGroupResponse))),
    ApiKey.HEARTBEAT: Rule(((_Op.READ, _GROUP),), groups.member(groups.refused_alike(wire.HeartbeatResponse))),
    ApiKey.LEAVE_GROUP: Rule(((_Op.READ, _GROUP),), groups.member(groups.refused_alike(wire.LeaveGroupResponse))),
    ApiKey.OFFSET_COMMIT: Rule(((_Op.READ, _GROUP), (_Op.READ, _TOPIC)), groups.offset_commit),
    ApiKey.OFFSET_FETCH: Rule(((_Op.DESCRIBE, _GROUP), (_Op.DESCRIBE, _TOPIC)), groups.offset_fetch),
    ApiKey.LIST_GROUPS: Rule(((_Op.DESCRIBE, _GROUP), (_Op.DESCRIBE, _CLUSTER)), groups.list_groups),
    ApiKey.DESCRIBE_GROUPS: Rule(((_Op.DESCRIBE, _GROUP),), groups.describe_groups),
    ApiKey.DELETE_GROUPS: Rule(((_Op.DELETE, _GROUP),), groups.delete_groups),
    ApiKey.OFFSET_DELETE: Rule(((_Op.DELETE, _GROUP), (_Op.READ, _TOPIC)), groups.offset_delete),
    # transactions
    ApiKey.INIT_PRODUCER_ID: Rule(
        ((_Op.WRITE, _TXN), (_Op.IDEMPOTENT_WRITE, _CLUSTER), (_Op.WRITE, _TOPIC)), transactions.init_producer_id
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Rule(
        ((_Op.WRITE, _TXN), (_Op.WRITE, _TOPIC), (_Op.CLUSTER_ACTION, _CLUSTER)), transactions.add_partitions
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Rule(((_Op.WRITE, _TXN), (_Op.READ, _GROUP)), transactions.add_offsets),
    ApiKey.END_TXN: Rule(((_Op.WRITE, _TXN),), transactions.end_txn),
    ApiKey.TXN_OFFSET_COMMIT: Rule(
        ((_Op.WRITE, _TXN), (_Op.READ, _GROUP), (_Op.READ, _TOPIC)), groups.txn_offset_commit
    ),
    ApiKey.WRITE_TXN_MARKERS: Rule(((_Op.ALTER, _CLUSTER), (_Op.CLUSTER_ACTION, _CLUSTER)), transactions.write_markers),
    ApiKey.DESCRIBE_TRANSACTIONS: Rule(
        ((_Op.DESCRIBE, _TXN), (_Op.DESCRIBE, _TOPIC)), transactions.describe_transactions
    ),
    ApiKey.LIST_TRANSACTIONS: Rule(((_Op.DESCRIBE, _TXN),), transactions.list_transactions),
    # topics and configs
    ApiKey.CREATE_TOPICS: Rule(
        ((_Op.CREATE, _CLUSTER), (_Op.CREATE, _TOPIC), (_Op.DESCRIBE_CONFIGS, _TOPIC)), admin.create_topics
    ),
    ApiKey.DELETE_TOPICS: Rule(
        ((_Op.DELETE, _CLUSTER), (_Op.DELETE, _TOPIC), (_Op.DESCRIBE, _TOPIC)), admin.delete_topics
    ),
    ApiKey.CREATE_PARTITIONS: Rule(((_Op.ALTER, _TOPIC),), admin.create_partitions),
    ApiKey.DESCRIBE_CONFIGS: Rule(
        tuple((_Op.DESCRIBE_CONFIGS, kind) for kind in (_TOPIC, _GROUP, _CLUSTER)), admin.describe_configs
    ),
    ApiKey.ALTER_CONFIGS: Rule(
        tuple((_Op.ALTER_CONFIGS, kind) for kind in (_TOPIC, _GROUP, _CLUSTER)),
        admin.alter_configs(wire.AlterConfigsResponseResource),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Rule(
        tuple((_Op.ALTER_CONFIGS, kind) for kind in (_TOPIC, _GROUP, _CLUSTER)),
        admin.alter_configs(wire.IncrementalAlterConfigsResponseResource),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: cluster.on_cluster(
        _Op.DESCRIBE_CONFIGS, cluster.error_only(wire.ListConfigResourcesResponse)
    ),
    # the cluster
    ApiKey.DESCRIBE_LOG_DIRS: cluster.on_cluster(_Op.DESCRIBE, cluster.error_only(wire.DescribeLogDirsResponse)),
    ApiKey.ALTER_REPLICA_LOG_DIRS: cluster.on_cluster(_Op.ALTER, cluster.log_dirs_refused),
    ApiKey.ELECT_LEADERS: cluster.on_cluster(_Op.ALTER, cluster.elections_refused),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: cluster.on_cluster(_Op.ALTER, cluster.reassignments_refused),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: cluster.on_cluster(
        _Op.DESCRIBE, cluster.error_and_message(wire.ListPartitionReassignmentsResponse)
    ),
    ApiKey.UNREGISTER_BROKER: cluster.on_cluster(_Op.ALTER, cluster.error_and_message(wire.UnregisterBrokerResponse)),
    ApiKey.DESCRIBE_ACLS: cluster.on_cluster(_Op.DESCRIBE, cluster.error_and_message(wire.DescribeAclsResponse)),
    ApiKey.CREATE_ACLS: cluster.on_cluster(_Op.ALTER, cluster.new_acls_refused),
    ApiKey.DELETE_ACLS: cluster.on_cluster(_Op.ALTER, cluster.acl_deletion_refused),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: cluster.on_cluster(
        _Op.DESCRIBE, cluster.error_and_message(wire.DescribeUserScramCredentialsResponse)
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: cluster.on_cluster(_Op.ALTER, cluster.credentials_refused),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: cluster.on_cluster(
        _Op.DESCRIBE_CONFIGS, cluster.error_and_message(wire.DescribeClientQuotasResponse)
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: cluster.on_cluster(_Op.ALTER_CONFIGS, cluster.quotas_refused),
    # only for brokers, on their listener (`broker.security.brokers_only`)
    ApiKey.BROKER_REGISTRATION: cluster.on_cluster(
        _Op.CLUSTER_ACTION, cluster.error_only(wire.BrokerRegistrationResponse)
    ),
    ApiKey.BROKER_HEARTBEAT: cluster.on_cluster(_Op.CLUSTER_ACTION, cluster.error_only(wire.BrokerHeartbeatResponse)),
    ApiKey.ALTER_PARTITION: cluster.on_cluster(_Op.CLUSTER_ACTION, cluster.error_only(wire.AlterPartitionResponse)),
    ApiKey.ENVELOPE: cluster.on_cluster(_Op.CLUSTER_ACTION, cluster.error_only(wire.EnvelopeResponse)),
}
