"""BrokerRegistration, BrokerHeartbeat, AlterPartition, UnregisterBroker.

The authorizer admits the first three on the brokers' listener only. A broker that is not the controller answers
NOT_CONTROLLER. A heartbeat has a separate connection, so it may be parked. Source: KIP-631, KIP-497.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

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
from broker.handlers.request_limits import within
from broker.wire import messages as wire
from logformat.errors import ThermoclineError

_DECIDED_S: Final = 30.0  # UnregisterBroker has no time-out field


async def handle_broker_registration(
    context: Context, request: wire.BrokerRegistrationRequest, call: Call
) -> wire.BrokerRegistrationResponse:
    """Begin a session; the response leaves once it is committed."""
    try:
        return wire.BrokerRegistrationResponse(
            broker_epoch=await _controller(context).register(registration_request(request))
        )
    except (ThermoclineError, OSError) as refused:
        return wire.BrokerRegistrationResponse(error_code=code_of(refused), error_message=str(refused))


async def handle_broker_heartbeat(
    context: Context, request: wire.BrokerHeartbeatRequest, call: Call
) -> wire.BrokerHeartbeatResponse:
    """Renew a session. The controller is informed when the connection closes."""
    try:
        controller = _controller(context)
        call.peer.on_closed = partial(controller.closed, request.broker_id, request.broker_epoch)
        return heartbeat_response(await controller.heartbeat(heartbeat_request(request)))
    except (ThermoclineError, OSError) as refused:
        return wire.BrokerHeartbeatResponse(error_code=code_of(refused))


async def handle_alter_partition(
    context: Context, request: wire.AlterPartitionRequest, call: Call
) -> wire.AlterPartitionResponse:
    """Decide on a leader's proposals, each partition separately. The state is in the image, not in the response
    (R17)."""
    try:
        return proposals_response(request, await _controller(context).alter_partition(proposals_request(request)))
    except (ThermoclineError, OSError) as refused:
        return wire.AlterPartitionResponse(error_code=code_of(refused))


async def handle_unregister_broker(
    context: Context, request: wire.UnregisterBrokerRequest, call: Call
) -> wire.UnregisterBrokerResponse:
    """Remove the node. `is_given_up`: remove it even if partitions are assigned to it (`thermocline cluster forget`),
    unless it had a session that is later than `broker_epoch`."""
    controller, node_id = context.controller, request.broker_id
    until_s = asyncio.get_running_loop().time() + _DECIDED_S
    try:
        if request.is_given_up:
            await within(until_s, lambda: controller.give_up(node_id, request.broker_epoch))
        else:
            await within(until_s, lambda: controller.unregister(node_id))
    except (ThermoclineError, TimeoutError) as refused:
        return wire.UnregisterBrokerResponse(error_code=code_of(refused), error_message=str(refused))
    return wire.UnregisterBrokerResponse(error_message=None)


def _controller(context: Context) -> BrokerRpc:
    if context.brokers is None:
        raise ApiError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller of a cluster")
    return context.brokers
