"""What brokers of one cluster ask the controller: BrokerRegistration, BrokerHeartbeat, AlterPartition.

Owns how its answers are said. Always true: what reaches a handler came by the brokers' own listener (authorizer);
whoever is not the controller answers NOT_CONTROLLER and nothing else. A heartbeat is parked by whoever answers it: it
comes on a connection of its own, so nothing waits behind it. Must not know how the controller decides.
Source: KIP-631, KIP-497.
"""

from __future__ import annotations

from functools import partial

from broker.context import Call, Context
from broker.controller.broker_rpc import BrokerRpc
from broker.controller.remote_controller import (
    heartbeat_request,
    heartbeat_response,
    proposals_request,
    proposals_response,
    registration_request,
)
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from logformat.errors import ThermoclineError


async def handle_broker_registration(
    context: Context, request: BrokerRegistrationRequest, call: Call
) -> BrokerRegistrationResponse:
    """Begin a session: the answer comes when it is committed."""
    try:
        return BrokerRegistrationResponse(broker_epoch=await _door(context).register(registration_request(request)))
    except (ThermoclineError, OSError) as refused:
        return BrokerRegistrationResponse(error_code=code_of(refused), error_message=str(refused))


async def handle_broker_heartbeat(
    context: Context, request: BrokerHeartbeatRequest, call: Call
) -> BrokerHeartbeatResponse:
    """Keep a session. From the first on the controller is told when the connection is closed."""
    try:
        door = _door(context)
        call.peer.farewell = partial(door.closed, request.broker_id, request.broker_epoch)
        return heartbeat_response(await door.heartbeat(heartbeat_request(request)))
    except (ThermoclineError, OSError) as refused:
        return await heartbeat_refused(request, code_of(refused))


async def handle_alter_partition(
    context: Context, request: AlterPartitionRequest, call: Call
) -> AlterPartitionResponse:
    """Decide on what a leader proposes, each partition by itself. The answer has no state: the image has (R17)."""
    try:
        return proposals_response(request, await _door(context).alter_partition(proposals_request(request)))
    except (ThermoclineError, OSError) as refused:
        return await alter_partition_refused(request, code_of(refused))


async def registration_refused(request: BrokerRegistrationRequest, error: ErrorCode) -> BrokerRegistrationResponse:
    """No session."""
    return BrokerRegistrationResponse(error_code=error)


async def heartbeat_refused(request: BrokerHeartbeatRequest, error: ErrorCode) -> BrokerHeartbeatResponse:
    """Nothing about the sender."""
    return BrokerHeartbeatResponse(error_code=error)


async def alter_partition_refused(request: AlterPartitionRequest, error: ErrorCode) -> AlterPartitionResponse:
    """No partition is looked at."""
    return AlterPartitionResponse(error_code=error)


def _door(context: Context) -> BrokerRpc:
    if context.brokers is None:
        raise ApiError(ErrorCode.NOT_CONTROLLER, "this broker does not decide for others")
    return context.brokers
