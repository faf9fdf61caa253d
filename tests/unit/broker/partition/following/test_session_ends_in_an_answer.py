"""A follower's session ends and the next begins while an answer is taken: what the leader told belongs to the session
that asked. Else the replica led without asking the root, and deleted records were there again (D66, R7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.metadata.records import Row, TopicCreated
from broker.replication import fetcher as fetchers
from broker.replication.fetcher import Fetcher
from seams.loop.turns import Turns
from tests.support.brokers.cluster_kit import id_of
from tests.support.brokers.shared_bucket import NAME, both, until
from tests.support.store.faulty_store import FaultPlan


@pytest.mark.parametrize("goes_on", ["in its session", "in the next"])
async def test_records_that_were_deleted_while_it_had_no_session_do_not_come_back(
    monkeypatch: pytest.MonkeyPatch, goes_on: str
) -> None:
    pair = await both()
    pair.note(TopicCreated(id_of(5), "before", (Row((1, 2), 1, 0, 0, (1, 2), 0),), {}))
    pair.publish()
    await until(lambda: ("before", 0) in pair.lives[2].context.registry.followed, "both are followed")
    for number in range(10):
        assert (await pair.lives[1].produce(NAME, b"%d" % number)).error_code == 0
    await asyncio.sleep(3.0)
    stopped, go_on = asyncio.Event(), asyncio.Event()
    take = Fetcher._take

    async def held(self: Any, answer: Any, *rest: Any) -> int:
        names = [str(topic.topic_id) for topic in answer.responses]
        if not stopped.is_set() and len(names) == 2:
            # "before" comes first; then the turn of the loop is over, and the process is stopped there.
            answer.responses.sort(key=lambda topic: str(topic.topic_id) != id_of(5))
            stopped.set()
            monkeypatch.setattr(fetchers, "Turns", lambda: Turns(1))
            monkeypatch.setattr(fetchers, "next_turn", go_on.wait)
        return await take(self, answer, *rest)

    monkeypatch.setattr(Fetcher, "_take", held)
    producing = [asyncio.ensure_future(pair.lives[1].produce(name, b"last", acks=1)) for name in ("before", NAME)]
    await asyncio.wait_for(stopped.wait(), 30)
    await asyncio.gather(*producing)
    pair.end(2)
    pair.publish(1)
    await asyncio.sleep(1.0)
    found = await pair.delete_records(1, 8)
    assert found.error_code == 0 and found.low_watermark == 8
    if goes_on == "in its session":
        go_on.set()
        await asyncio.sleep(0)
    pair.renew(2)
    pair.publish(2)
    go_on.set()
    await asyncio.sleep(0.02)
    await pair.lives[1].crash()
    pair.places[2].store.plan = FaultPlan(latency_s=(2.0, 2.0))
    pair.elect(2, (2,))
    pair.publish(2)
    await until(lambda: pair.leads(2), "it leads")
    assert pair.lives[2].partition(NAME).log_start_offset >= 8
    await pair.lives[2].stop()
