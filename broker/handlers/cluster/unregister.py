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
    """Take the node out; `is_given_up`: partitions may be assigned to it still (`thermocline cluster forget`).
    `broker_epoch`: of its last session, as whoever asks saw it."""
    until_s = asyncio.get_running_loop().time() + _DECIDED_S
    try:
        if request.is_given_up:
            await within(until_s, lambda: context.controller.give_up(request.broker_id, request.broker_epoch))
        else:
            await within(until_s, lambda: context.controller.unregister(request.broker_id))
    except (ThermoclineError, TimeoutError) as refused:
        return UnregisterBrokerResponse(error_code=code_of(refused), error_message=str(refused))
    return UnregisterBrokerResponse(error_message=None)
