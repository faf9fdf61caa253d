"""Authorization of requests about the whole cluster: one operation on the cluster allows or refuses the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.security.authorizer.access import NOT_REQUESTED, Unrestricted
from broker.security.authorizer.kinds import CLUSTER_NAME, Operation, ResourceType
from broker.security.rules.verdict import ALLOWED, CLUSTER, MESSAGES, KnownTopics, Rule, Verdict, refused_whole
from broker.wire import messages as wire
from broker.wire.message import Message

_WORDS: Final = MESSAGES[CLUSTER]


def on_cluster(operation: Operation, refused: Callable[[Any, int], Message]) -> Rule:
    """A rule that needs `operation` on the cluster. `refused` makes the response from a refused request and its
    version."""

    async def split(access: Unrestricted, request: Any, version: int, topics: KnownTopics) -> Verdict:
        return ALLOWED if access.allows_cluster(operation) else refused_whole(refused(request, version))

    return Rule(((operation, ResourceType.CLUSTER),), split)


def error_only(response: Callable[..., Message]) -> Callable[[Any, int], Message]:
    return lambda request, version: response(error_code=CLUSTER)


def error_and_message(response: Callable[..., Message]) -> Callable[[Any, int], Message]:
    return lambda request, version: response(error_code=CLUSTER, error_message=_WORDS)


def elections_refused(request: wire.ElectLeadersRequest, version: int) -> Message:
    return wire.ElectLeadersResponse(
        error_code=CLUSTER,
        replica_election_results=[
            wire.ElectLeadersResponseTopic(
                topic=topic.topic,
                partition_result=[
                    wire.ElectLeadersResponsePartition(partition_id=index, error_code=CLUSTER, error_message=_WORDS)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def reassignments_refused(request: wire.AlterPartitionReassignmentsRequest, version: int) -> Message:
    return wire.AlterPartitionReassignmentsResponse(
        error_code=CLUSTER,
        error_message=_WORDS,
        responses=[
            wire.AlterPartitionReassignmentsResponseTopic(
                name=topic.name,
                partitions=[
                    wire.AlterPartitionReassignmentsResponsePartition(
                        partition_index=row.partition_index, error_code=CLUSTER, error_message=_WORDS
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def log_dirs_refused(request: wire.AlterReplicaLogDirsRequest, version: int) -> Message:
    return wire.AlterReplicaLogDirsResponse(
        results=[
            wire.AlterReplicaLogDirsResponseTopic(
                topic_name=topic.name,
                partitions=[
                    wire.AlterReplicaLogDirsResponsePartition(partition_index=index, error_code=CLUSTER)
                    for index in topic.partitions
                ],
            )
            for place in request.dirs
            for topic in place.topics
        ]
    )


def new_acls_refused(request: wire.CreateAclsRequest, version: int) -> Message:
    row = wire.CreateAclsResponseResult(error_code=CLUSTER, error_message=_WORDS)
    return wire.CreateAclsResponse(results=[row] * len(request.creations))


def acl_deletion_refused(request: wire.DeleteAclsRequest, version: int) -> Message:
    row = wire.DeleteAclsResponseResult(error_code=CLUSTER, error_message=_WORDS)
    return wire.DeleteAclsResponse(filter_results=[row] * len(request.filters))


def cluster_operations(access: Unrestricted, *, asked: bool) -> int:
    """The value of a `cluster_authorized_operations` field."""
    if not asked:
        return NOT_REQUESTED
    if not access.allows_cluster(Operation.DESCRIBE):
        return 0
    return access.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def credentials_refused(request: wire.AlterUserScramCredentialsRequest, version: int) -> Message:
    users = dict.fromkeys((*(one.name for one in request.deletions), *(one.name for one in request.upsertions)))
    return wire.AlterUserScramCredentialsResponse(
        results=[
            wire.AlterUserScramCredentialsResponseResult(user=user, error_code=CLUSTER, error_message=_WORDS)
            for user in users
        ]
    )


def quotas_refused(request: wire.AlterClientQuotasRequest, version: int) -> Message:
    return wire.AlterClientQuotasResponse(
        entries=[
            wire.AlterClientQuotasResponseEntry(
                error_code=CLUSTER,
                error_message=_WORDS,
                entity=[
                    wire.AlterClientQuotasResponseEntity(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )
