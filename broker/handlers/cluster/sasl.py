"""SaslHandshake and SaslAuthenticate of a client that needs no login or is logged in already: refused in Kafka's words.

Logins are handled by `broker.security.sasl.login_dispatcher`.
"""

from __future__ import annotations

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.wire import messages as wire


async def handle_sasl_handshake(
    context: Context, request: wire.SaslHandshakeRequest, call: Call
) -> wire.SaslHandshakeResponse:
    return wire.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


async def handle_sasl_authenticate(
    context: Context, request: wire.SaslAuthenticateRequest, call: Call
) -> wire.SaslAuthenticateResponse:
    return wire.SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
