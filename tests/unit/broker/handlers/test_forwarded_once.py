"""A request that was passed on to the controller, and not answered, is not done here: it may have been heard."""

from __future__ import annotations

import pytest

from broker.error_codes import ErrorCode
from broker.net.dispatch import Peer
from broker.wire import messages as m
from broker.wire.apis import ApiKey
from broker.wire.framing import RequestHeader
from broker.wire.message import Message
from tests.support.brokers.broker_kit import Place


async def test_a_deletion_that_outlives_its_controller_deletes_no_topic_that_is_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller commits it and hangs before it answers. This broker claims, a client makes the topic again and
    writes to it; then the time of the first request is over. It was decided a second time, by the broker that had
    passed it on, and the new topic was gone with all that was acknowledged."""
    life = await Place().start()
    forward = life.context.forward

    async def pass_on(peer: Peer, header: RequestHeader, request: Message) -> None:
        monkeypatch.undo()  # from here on this broker is the controller
        await life.create("orders")
        await life.produce("orders", b"acknowledged")

    monkeypatch.setattr(forward, "is_elsewhere", lambda: True)
    monkeypatch.setattr(forward, "pass_on", pass_on)
    request = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name="orders")], timeout_ms=30_000)
    (answer,) = (await life.call(ApiKey.DELETE_TOPICS, request)).responses
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
    assert life.context.metadata.topic_named("orders") is not None
    await life.stop()
