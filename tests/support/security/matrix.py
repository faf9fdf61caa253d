"""The matrix: every API and version × what ACLs allow, as requests with names that are allowed, denied, there, absent.

Owns the cases. `one` and `two` exist, `gone` and `nowhere` do not; ACLs name `one` and `gone` only (and, of groups and
transactional ids, the same). Always true: a case changes nothing that a later one sees, so that both brokers can be
asked in any order of ACL sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from broker.metadata.records import Acl
from broker.security.authorizer.kinds import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from broker.security.rules.table import RULES
from broker.wire import messages as wire
from broker.wire.apis import APIS, ApiKey
from tests.support.brokers.broker_kit import batch_of

ALLOWED, DENIED = ("one", "gone"), ("two", "nowhere")
EXISTING: Final = ("one", "two")
NAMES: Final = ("one", "two", "gone", "nowhere")
WHO: Final = "User:ANONYMOUS"
_BROKERS: Final = frozenset(
    {ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT, ApiKey.ALTER_PARTITION, ApiKey.ENVELOPE}
)


class Case(NamedTuple):
    """One request under one set of ACLs (`allows`: pairs of operation and resource type)."""

    api: ApiKey
    version: int
    label: str
    allows: tuple[tuple[Operation, ResourceType], ...]
    request: Any


def acls_of(allows: tuple[tuple[Operation, ResourceType], ...]) -> list[Acl]:
    found = []
    for operation, kind in allows:
        for name in (CLUSTER_NAME,) if kind == ResourceType.CLUSTER else ALLOWED:
            found.append(Acl(kind, name, PatternType.LITERAL, WHO, "*", operation, Permission.ALLOW))
    return found


def sets_of(api: ApiKey) -> Iterator[tuple[tuple[Operation, ResourceType], ...]]:
    """Nothing, each need alone, all needs."""
    needs = RULES[api].needs
    yield ()
    for need in needs:
        yield (need,)
    if len(needs) > 1:
        yield needs


def cases() -> Iterator[Case]:
    for api in APIS:
        if api in _BROKERS:
            continue
        for version in range(max(APIS[api].version_min, APIS[api].advertised_min), APIS[api].version_max + 1):
            for allows in sets_of(api):
                for label, request in requests(api, version):
                    yield Case(api, version, label, allows, request)


def requests(api: ApiKey, version: int) -> Iterator[tuple[str, Any]]:
    """The requests of one API; the label says of which name a request for one name is."""
    make = globals().get(f"_{api.name.lower()}")
    if make is None:
        return
    for found in make(version):
        yield found if isinstance(found, tuple) else ("", found)


def _produce(version: int) -> Iterator[Any]:
    yield wire.ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=1000,
        topic_data=[
            wire.ProduceRequestTopic(name, [wire.ProduceRequestPartition(0, memoryview(batch_of(b"x")))])
            for name in NAMES
        ],
    )


def _fetch(version: int) -> Iterator[Any]:
    if version > 12:
        return  # by id: ids differ
    for max_wait_ms in (0, 1):
        yield (
            f"wait {max_wait_ms}",
            wire.FetchRequest(
                replica_id=-1,
                max_wait_ms=max_wait_ms,
                min_bytes=0,
                max_bytes=1 << 20,
                session_epoch=-1,
                topics=[
                    wire.FetchRequestTopic(
                        topic=name,
                        partitions=[wire.FetchRequestPartition(fetch_offset=0, partition_max_bytes=1 << 20)],
                    )
                    for name in NAMES
                ],
            ),
        )


def _list_offsets(version: int) -> Iterator[Any]:
    yield wire.ListOffsetsRequest(
        replica_id=-1,
        topics=[wire.ListOffsetsRequestTopic(name, [wire.ListOffsetsRequestPartition(timestamp=-2)]) for name in NAMES],
        timeout_ms=1000,
    )


def _offset_for_leader_epoch(version: int) -> Iterator[Any]:
    yield wire.OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            wire.OffsetForLeaderEpochRequestTopic(name, [wire.OffsetForLeaderEpochRequestPartition(0, -1, 0)])
            for name in NAMES
        ],
    )


def _delete_records(version: int) -> Iterator[Any]:
    yield wire.DeleteRecordsRequest(
        topics=[wire.DeleteRecordsRequestTopic(name, [wire.DeleteRecordsRequestPartition(0, 0)]) for name in NAMES],
        timeout_ms=1000,
    )


def _describe_producers(version: int) -> Iterator[Any]:
    yield wire.DescribeProducersRequest(
        topics=[wire.DescribeProducersRequestTopic(name, [0]) for name in (*NAMES, "in valid")]
    )


def _metadata(version: int) -> Iterator[Any]:
    for creates in (False, True) if version >= 4 else (True,):
        for asks in (False, True) if version >= 8 else (False,):
            yield (
                f"named, creates {creates}, asks {asks}",
                wire.MetadataRequest(
                    topics=[wire.MetadataRequestTopic(name=name) for name in NAMES],
                    allow_auto_topic_creation=creates,
                    include_topic_authorized_operations=asks,
                    include_cluster_authorized_operations=asks and version <= 10,
                ),
            )
    yield (
        "all",
        wire.MetadataRequest(
            topics=[] if version == 0 else None,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=version >= 8,
        ),
    )


def _describe_topic_partitions(version: int) -> Iterator[Any]:
    yield (
        "named",
        wire.DescribeTopicPartitionsRequest(
            topics=[wire.DescribeTopicPartitionsRequestTopic(name) for name in sorted(NAMES)]
        ),
    )
    yield "all", wire.DescribeTopicPartitionsRequest()


def _describe_cluster(version: int) -> Iterator[Any]:
    for asks in (False, True):
        yield f"asks {asks}", wire.DescribeClusterRequest(include_cluster_authorized_operations=asks)


def _find_coordinator(version: int) -> Iterator[Any]:
    for kind in (0, 1) if version >= 1 else (0,):
        if version >= 4:
            yield f"of {kind}", wire.FindCoordinatorRequest(key_type=kind, coordinator_keys=list(NAMES))
        else:
            for name in ("one", "two"):
                yield f"{name} of {kind}", wire.FindCoordinatorRequest(key=name, key_type=kind)


def _join_group(version: int) -> Iterator[Any]:
    if version < 4:
        return  # an allowed one joins
    for name in ("one", "two"):
        yield (
            name,
            wire.JoinGroupRequest(
                group_id=name,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[wire.JoinGroupRequestProtocol("range", b"x")],
            ),
        )


def _sync_group(version: int) -> Iterator[Any]:
    for name in ("one", "two"):
        yield (
            name,
            wire.SyncGroupRequest(
                group_id=name, generation_id=1, member_id="m", protocol_type="consumer", protocol_name="range"
            ),
        )


def _heartbeat(version: int) -> Iterator[Any]:
    for name in ("one", "two"):
        yield name, wire.HeartbeatRequest(group_id=name, generation_id=1, member_id="m")


def _leave_group(version: int) -> Iterator[Any]:
    for name in ("one", "two"):
        yield (
            name,
            wire.LeaveGroupRequest(group_id=name, member_id="m", members=[wire.LeaveGroupRequestMember("m")]),
        )


def _offset_commit(version: int) -> Iterator[Any]:
    if version >= 10:
        return  # by id
    for name in ("one", "two"):
        yield (
            name,
            wire.OffsetCommitRequest(
                group_id=name,
                topics=[
                    wire.OffsetCommitRequestTopic(
                        name=topic, partitions=[wire.OffsetCommitRequestPartition(0, 5, -1, "")]
                    )
                    for topic in NAMES
                ],
            ),
        )


def _offset_fetch(version: int) -> Iterator[Any]:
    if version >= 10:
        return
    if version >= 8:
        for label, topics in (
            ("named", [wire.OffsetFetchRequestGroupTopic(topic, partition_indexes=[0]) for topic in NAMES]),
            ("all", None),
        ):
            yield (
                label,
                wire.OffsetFetchRequest(groups=[wire.OffsetFetchRequestGroup(name, topics=topics) for name in NAMES]),
            )
        return
    for name in ("one", "two"):
        yield (
            f"{name}, named",
            wire.OffsetFetchRequest(
                group_id=name, topics=[wire.OffsetFetchRequestTopic(topic, [0]) for topic in NAMES]
            ),
        )
        if version >= 2:
            yield f"{name}, all", wire.OffsetFetchRequest(group_id=name, topics=None)


def _list_groups(version: int) -> Iterator[Any]:
    yield wire.ListGroupsRequest()


def _describe_groups(version: int) -> Iterator[Any]:
    for asks in (False, True) if version >= 3 else (False,):
        yield f"asks {asks}", wire.DescribeGroupsRequest(groups=list(NAMES), include_authorized_operations=asks)


def _delete_groups(version: int) -> Iterator[Any]:
    yield wire.DeleteGroupsRequest(groups_names=["gone", "nowhere", "two"])


def _offset_delete(version: int) -> Iterator[Any]:
    for name in ("gone", "two"):
        yield (
            name,
            wire.OffsetDeleteRequest(
                group_id=name,
                topics=[
                    wire.OffsetDeleteRequestTopic(topic, [wire.OffsetDeleteRequestPartition(0)]) for topic in NAMES
                ],
            ),
        )


def _init_producer_id(version: int) -> Iterator[Any]:
    yield "none", wire.InitProducerIdRequest(transactional_id=None)
    for name in ("one", "two"):
        yield name, wire.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)


def _add_partitions_to_txn(version: int) -> Iterator[Any]:
    if version >= 4:
        return  # of brokers, which have a listener of their own here
    for name, topics in (("other-one", NAMES), ("two", NAMES), ("one", NAMES), ("one", ("one", "two"))):
        yield (
            f"{name} {topics}",
            wire.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=99,
                v3_and_below_topics=[wire.AddPartitionsToTxnRequestTopic(topic, [0, 7]) for topic in topics],
            ),
        )


def _add_offsets_to_txn(version: int) -> Iterator[Any]:
    for txn in ("gone", "two"):
        for group in ("one", "two"):
            yield f"{txn} {group}", wire.AddOffsetsToTxnRequest(txn, 99, 0, group)


def _end_txn(version: int) -> Iterator[Any]:
    for name in ("gone", "two"):
        yield name, wire.EndTxnRequest(name, 99, 0, True)


def _txn_offset_commit(version: int) -> Iterator[Any]:
    for txn in ("gone", "two"):
        for group in ("one", "two"):
            yield (
                f"{txn} {group}",
                wire.TxnOffsetCommitRequest(
                    transactional_id=txn,
                    group_id=group,
                    producer_id=99,
                    topics=[
                        wire.TxnOffsetCommitRequestTopic(topic, [wire.TxnOffsetCommitRequestPartition(0, 5, -1, "")])
                        for topic in (*EXISTING, "nowhere")
                    ],
                ),
            )


def _describe_transactions(version: int) -> Iterator[Any]:
    yield wire.DescribeTransactionsRequest(transactional_ids=["gone", "two", "nowhere"])


def _list_transactions(version: int) -> Iterator[Any]:
    yield wire.ListTransactionsRequest()


def _create_topics(version: int) -> Iterator[Any]:
    yield wire.CreateTopicsRequest(
        topics=[wire.CreateTopicsRequestTopic(name, 1, 1) for name in (*NAMES, "twice", "twice")],
        validate_only=True,
        timeout_ms=5000,
    )


def _delete_topics(version: int) -> Iterator[Any]:
    names = ["two", "gone", "nowhere"]
    if version >= 6:
        yield (
            wire.DeleteTopicsRequest(
                topics=[wire.DeleteTopicsRequestTopic(name) for name in [*names, "nowhere2", "nowhere2"]],
                timeout_ms=5000,
            )
        )
    else:
        yield wire.DeleteTopicsRequest(topic_names=names, timeout_ms=5000)


def _create_partitions(version: int) -> Iterator[Any]:
    yield wire.CreatePartitionsRequest(
        topics=[wire.CreatePartitionsRequestTopic(name, 2, None) for name in NAMES],
        timeout_ms=5000,
        validate_only=True,
    )


def _describe_configs(version: int) -> Iterator[Any]:
    resources = [(2, name) for name in NAMES] + [(4, "1"), (4, "")]
    yield wire.DescribeConfigsRequest(
        resources=[wire.DescribeConfigsRequestResource(kind, name, ["retention.ms"]) for kind, name in resources]
    )


def _alter_configs(version: int) -> Iterator[Any]:
    resources = [(2, name) for name in NAMES] + [(4, "1")]
    yield wire.AlterConfigsRequest(
        resources=[wire.AlterConfigsRequestResource(kind, name, []) for kind, name in resources], validate_only=True
    )


def _incremental_alter_configs(version: int) -> Iterator[Any]:
    resources = [(2, name) for name in NAMES] + [(4, "")]
    yield wire.IncrementalAlterConfigsRequest(
        resources=[wire.IncrementalAlterConfigsRequestResource(kind, name, []) for kind, name in resources],
        validate_only=True,
    )


def _list_config_resources(version: int) -> Iterator[Any]:
    if version >= 1:
        yield wire.ListConfigResourcesRequest(resource_types=[2])


def _describe_log_dirs(version: int) -> Iterator[Any]:
    yield wire.DescribeLogDirsRequest(topics=[wire.DescribeLogDirsRequestTopic(name, [0]) for name in NAMES])


def _alter_replica_log_dirs(version: int) -> Iterator[Any]:
    yield wire.AlterReplicaLogDirsRequest(
        dirs=[
            wire.AlterReplicaLogDirsRequestDir(
                "/no/such/place", [wire.AlterReplicaLogDirsRequestTopic(name, [0]) for name in NAMES]
            )
        ]
    )


def _elect_leaders(version: int) -> Iterator[Any]:
    yield wire.ElectLeadersRequest(
        topic_partitions=[wire.ElectLeadersRequestTopic(name, [0]) for name in NAMES], timeout_ms=5000
    )


def _alter_partition_reassignments(version: int) -> Iterator[Any]:
    yield wire.AlterPartitionReassignmentsRequest(
        topics=[
            wire.AlterPartitionReassignmentsRequestTopic(
                name, [wire.AlterPartitionReassignmentsRequestPartition(0, None)]
            )
            for name in NAMES
        ],
        timeout_ms=5000,
    )


def _list_partition_reassignments(version: int) -> Iterator[Any]:
    yield wire.ListPartitionReassignmentsRequest(timeout_ms=5000)


def _unregister_broker(version: int) -> Iterator[Any]:
    yield wire.UnregisterBrokerRequest(broker_id=77)


def _describe_acls(version: int) -> Iterator[Any]:
    for label, asked in {
        "any": (1, None, 1, None, None, 1, 1),
        "match": (2, "one", 2, None, None, 1, 1),
        "literal": (2, "one", 3, WHO, "*", 1, 3),
        "prefixed": (2, "one", 4, None, None, 1, 1),
    }.items():
        yield label, wire.DescribeAclsRequest(*asked)


def _create_acls(version: int) -> Iterator[Any]:
    """One binding each, none of them valid. (Of ANY and MATCH Kafka's own classes throw: it answers -1.)"""
    for label, row in {
        "cluster": (4, "other", 3, "User:x", "*", 3, 3),
        "empty": (2, "", 3, "User:x", "*", 3, 3),
        "no colon": (2, "t", 3, "x", "*", 3, 3),
        "no principal": (2, "t", 3, "", "*", 3, 3),
        "unknown type": (99, "t", 3, "User:x", "*", 3, 3),
    }.items():
        yield label, wire.CreateAclsRequest(creations=[wire.CreateAclsRequestCreation(*row)])


def _delete_acls(version: int) -> Iterator[Any]:
    row = wire.DeleteAclsRequestFilter
    yield wire.DeleteAclsRequest(
        filters=[row(2, "no-such", 3, None, None, 1, 1), row(2, "no-such", 2, None, None, 1, 1)]
    )


def _write_txn_markers(version: int) -> Iterator[Any]:
    yield wire.WriteTxnMarkersRequest(
        markers=[
            wire.WriteTxnMarkersRequestMarker(
                4711, 0, False, [wire.WriteTxnMarkersRequestTopic(name, [0]) for name in ("gone", "nowhere")]
            )
        ]
    )
