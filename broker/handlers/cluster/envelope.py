"""Envelope: the controller executes a client's request that another broker forwarded.

An envelope contains only an API that brokers forward, never another envelope. The client is authorized as if it had
connected here. The forwarding broker names its principal and host, so only brokers may send envelopes (`brokers_only`).
A broker that is not the controller does not open the envelope. The response carries the position of the controller's
image, which includes all earlier decisions. Source: KIP-590; docs/formats/broker-requests.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.net.dispatch import Part, Peer
from broker.peers.forward import FORWARDED
from broker.security.brokers_only import BrokersOnly
from broker.security.client_access import ClientAccess
from broker.wire.apis import is_served
from broker.wire.codec import decode_request
from broker.wire.errors import MalformedFrame
from broker.wire.framing import FRAME_PREFIX_SIZE, RequestHeader, parse_request_header
from broker.wire.message import Message
from broker.wire.messages import EnvelopeRequest, EnvelopeResponse

Decide = Callable[[RequestHeader, Call, Message], Awaitable[list[Part]]]
"""Handles a request and returns the parts of its response frame."""


async def opened(
    context: Context,
    brokers_only: BrokersOnly,
    clients: ClientAccess,
    decide: Decide,
    request: EnvelopeRequest,
    call: Call,
) -> EnvelopeResponse:
    """The inner response, framed without length prefix, or the error because of which the envelope was not opened."""
    if context.forward.is_elsewhere():
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    try:
        peer = _client(request, call.peer)
        frame = memoryview(request.request_data)
        header, at = parse_request_header(frame)
        if header.api_key not in FORWARDED:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        if not is_served(header.api_key, header.api_version):
            return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        inside = decode_request(header.api_key, header.api_version, frame[at:])
    except MalformedFrame:
        context.metrics.malformed += 1
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    context.metrics.requests[header.api_key] += 1
    access = clients.of(peer)
    refusal = brokers_only.refusal(peer, header.api_key, inside, is_client=access.is_enforced)
    if refusal is not None:
        return EnvelopeResponse(error_code=refusal)
    parts = await decide(header, Call(header.api_version, peer, header.client_id or "", access), inside)
    data = b"".join(parts)[FRAME_PREFIX_SIZE:]  # type: ignore[arg-type]
    return EnvelopeResponse(response_data=data, position=context.images.position)


def _client(request: EnvelopeRequest, broker: Peer) -> Peer:
    """The client, as described by the broker that it is connected to. Without a principal the request is the broker's
    own. Raises MalformedFrame."""
    if request.request_principal is None:
        return Peer(broker.connection_id, broker.address, broker.listener, principal=broker.principal)
    try:
        principal = request.request_principal.decode()
        address = str(ip_address(request.client_host_address)) if request.client_host_address else ""
    except ValueError as malformed:  # includes UnicodeDecodeError
        raise MalformedFrame(f"the sender of an envelope cannot be read: {malformed}") from None
    if not principal:
        raise MalformedFrame("an envelope has no principal")
    return Peer(broker.connection_id, address and f"{address}:0", request.client_listener, principal=principal)
