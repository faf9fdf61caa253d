"""What brokers of one cluster ask each other: BrokerRegistration, BrokerHeartbeat, AlterPartition, Envelope.

Owns how their answers are said. Always true: what reaches a handler came by the brokers' own listener (authorizer);
whoever is not the controller answers NOT_CONTROLLER and nothing else. Must not know how the controller decides.
Source: KIP-631, KIP-497, KIP-590; the fields that are ours: docs/formats/broker-requests.md.
"""

from __future__ import annotations

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    EnvelopeRequest,
    EnvelopeResponse,
)


async def handle_broker_registration(
    context: Context, request: BrokerRegistrationRequest, call: Call
) -> BrokerRegistrationResponse:
    """Refused: each broker registers with itself."""
    return await registration_refused(request, ErrorCode.NOT_CONTROLLER)


async def handle_broker_heartbeat(
    context: Context, request: BrokerHeartbeatRequest, call: Call
) -> BrokerHeartbeatResponse:
    """Refused: nobody registered here."""
    return await heartbeat_refused(request, ErrorCode.NOT_CONTROLLER)


async def handle_alter_partition(
    context: Context, request: AlterPartitionRequest, call: Call
) -> AlterPartitionResponse:
    """Refused: every partition has one replica."""
    return await alter_partition_refused(request, ErrorCode.NOT_CONTROLLER)


async def handle_envelope(context: Context, request: EnvelopeRequest, call: Call) -> EnvelopeResponse:
    """Refused: each broker decides what its clients ask."""
    return await envelope_refused(request, ErrorCode.NOT_CONTROLLER)


async def registration_refused(request: BrokerRegistrationRequest, error: ErrorCode) -> BrokerRegistrationResponse:
    """No session."""
    return BrokerRegistrationResponse(error_code=error)


async def heartbeat_refused(request: BrokerHeartbeatRequest, error: ErrorCode) -> BrokerHeartbeatResponse:
    """Nothing about the sender."""
    return BrokerHeartbeatResponse(error_code=error)


async def alter_partition_refused(request: AlterPartitionRequest, error: ErrorCode) -> AlterPartitionResponse:
    """No partition is looked at."""
    return AlterPartitionResponse(error_code=error)


async def envelope_refused(request: EnvelopeRequest, error: ErrorCode) -> EnvelopeResponse:
    """What is inside is not looked at."""
    return EnvelopeResponse(error_code=error)
