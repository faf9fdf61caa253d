"""ApiVersions, DescribeCluster.

ApiVersions advertises exactly the served APIs and versions, and Produce 0–2 (KAFKA-18659). Source: KIP-35, KIP-511,
KIP-584, KIP-700.
"""

from __future__ import annotations

from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.handlers.metadata.cluster_view import ClusterView, controller_id, fenced_brokers
from broker.security.rules.cluster import cluster_operations
from broker.wire import messages as wire
from broker.wire.apis import APIS

TRANSACTION_VERSION: Final = 2
"""Supported level of the feature `transaction.version`: each end of a transaction takes an epoch (KIP-890 part 2)."""
_FEATURES_FROM_ZERO_SINCE: Final = 4
"""Java's clients of ApiVersions 3 throw at a feature whose versions begin at 0 (KAFKA-17492)."""
_BROKERS_ENDPOINT: Final = 1
_ADVERTISED: Final = [
    wire.ApiVersionsResponseApi(api_key=api.key, min_version=api.advertised_min, max_version=api.version_max)
    for api in APIS.values()
    if not api.brokers_only
]


def api_versions(version: int, error: ErrorCode = ErrorCode.NONE) -> wire.ApiVersionsResponse:
    """The table of the served APIs."""
    supported = [wire.ApiVersionsResponseSupportedFeature("transaction.version", 0, TRANSACTION_VERSION)]
    return wire.ApiVersionsResponse(
        error_code=error,
        api_keys=_ADVERTISED,
        supported_features=supported if version >= _FEATURES_FROM_ZERO_SINCE else [],
        finalized_features_epoch=0,
        finalized_features=[
            wire.ApiVersionsResponseFinalizedFeature("transaction.version", TRANSACTION_VERSION, TRANSACTION_VERSION)
        ],
    )


async def handle_api_versions(
    context: Context, request: wire.ApiVersionsRequest, call: Call
) -> wire.ApiVersionsResponse:
    return api_versions(call.version)


async def handle_describe_cluster(
    context: Context, request: wire.DescribeClusterRequest, call: Call
) -> wire.DescribeClusterResponse:
    """Brokers with a session, and on request also brokers whose session ended (KIP-1073)."""
    if request.endpoint_type != _BROKERS_ENDPOINT:
        return wire.DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker endpoint; there are no controller endpoints",
            endpoint_type=_BROKERS_ENDPOINT,
        )
    listener = call.peer.listener
    brokers = [wire.DescribeClusterResponseBroker(*each) for each in ClusterView(context, listener).brokers.values()]
    if request.include_fenced_brokers:
        brokers += [
            wire.DescribeClusterResponseBroker(*each, is_fenced=True) for each in fenced_brokers(context, listener)
        ]
    return wire.DescribeClusterResponse(
        cluster_id=context.metadata.cluster_id,
        controller_id=controller_id(context),
        brokers=brokers,
        cluster_authorized_operations=cluster_operations(
            call.access, asked=request.include_cluster_authorized_operations
        ),
    )
