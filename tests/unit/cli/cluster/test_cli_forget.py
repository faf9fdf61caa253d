"""`cluster forget` beside a broker that comes back while somebody is asked."""

from __future__ import annotations

from argparse import Namespace
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from broker.controller.controller_requests import ControllerRequests
from broker.handlers.cluster.brokers import handle_unregister_broker
from broker.metadata.image import ClusterImage
from broker.metadata.records import FORGOTTEN, Row, TopicCreated
from broker.observe.cluster_status import broker_row, partition_row
from seams.rng import SeededRng
from tests.support.brokers.cluster_kit import id_of, session
from tests.support.fast_loop import HOUR_S, run_fast
from thermocline.cli.cluster import forget, reader
from thermocline.cli.terminal.outcome import CommandFailed, Exit


class Cluster:
    """Broker 2, whose session is over, holds a partition alone. This is its own reader, client and controller."""

    epoch = 1
    image_bytes = 0

    def __init__(self) -> None:
        sessions = [session(node_id=1, broker_epoch=1), session(node_id=2, broker_epoch=2, active=False)]
        alone = TopicCreated(id_of(1), "log", (Row((2,), -1, 1, 1, (2,), 1),), {})
        self.image = ClusterImage().with_records([*sessions, alone])

    def returns_and_goes(self) -> None:
        self.image = self.image.with_records([replace(self.image.nodes[2], broker_epoch=3)])

    def read(self) -> Any:
        (topic,) = self.image.topics.values()
        brokers = [broker_row(node) for node in self.image.nodes.values()]
        return SimpleNamespace(
            brokers=brokers, partitions=[partition_row(topic, 0, self.image)], token_refused=frozenset()
        )

    def bytes_of(self, *_: object) -> dict[Any, Any]:
        return {}

    def connect(self) -> Any:
        return nullcontext(self)

    async def decide(self, decider: Any, rows: int = 0) -> Any:
        decision = decider(self.image)
        self.image = self.image.with_records(decision.records)
        return decision.answer

    def call(self, _: object, request: Any, __: object) -> Any:
        requests = ControllerRequests(self, cast(Any, None), cast(Any, None), SeededRng(1), cast(Any, None))
        return run_fast(
            handle_unregister_broker(cast(Any, SimpleNamespace(controller=requests)), request, cast(Any, None)),
            timeout_s=HOUR_S,
        )


@pytest.mark.parametrize("returns", [False, True])
def test_a_node_that_had_a_session_while_somebody_was_asked_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    """It led alone, perhaps, and acknowledged what the plan did not show."""
    cluster = Cluster()

    def asks(*_: object) -> None:
        if returns:
            cluster.returns_and_goes()

    monkeypatch.setattr(reader, "ClusterReader", lambda _: cluster)
    monkeypatch.setattr(forget, "can_ask", lambda: True)
    monkeypatch.setattr(forget, "confirm", asks)
    arguments = Namespace(node=2, bootstrap_server="", json=False, yes=False)
    if returns:
        with pytest.raises(CommandFailed, match="broker 2 had a session since its partitions were listed"):
            forget.run(arguments)
    else:
        assert forget.run(arguments) == Exit.DONE
    assert (cluster.image.nodes[2].directory_id == FORGOTTEN) is not returns
