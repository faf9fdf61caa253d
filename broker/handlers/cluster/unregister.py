"""UnregisterBroker: a node that does not come back leaves the cluster, or what lies on it is given up.

Owns how it is answered. Must not know what makes it right (`broker.controller.decisions.registrations`). Source:
KIP-631.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.context import Call, Context
from broker.errors import code_of
from broker.handlers.admin.bounded_changes import within
from broker.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse
from logformat.errors import ThermoclineError

_DECIDED_S: Final = 30.0  # the request has no time-out of its own


async def handle_unregister_broker(
    context: Context, request: UnregisterBrokerRequest, call: Call
) -> UnregisterBrokerResponse:
    """Take the node out; `is_given_up`: partitions may be assigned to it still (`thermocline cluster forget`)."""
    act = context.controller.give_up if request.is_given_up else context.controller.unregister
    until_s = asyncio.get_running_loop().time() + _DECIDED_S
    try:
        await within(until_s, lambda: act(request.broker_id))
    except (ThermoclineError, TimeoutError) as refused:
        return UnregisterBrokerResponse(error_code=code_of(refused), error_message=str(refused))
    return UnregisterBrokerResponse(error_message=None)
