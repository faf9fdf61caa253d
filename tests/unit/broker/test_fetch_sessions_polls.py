"""Long polls of sessions, and what a fetch of a session looks at: in virtual time, on a whole broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.handlers.fetch import fetch
from broker.net.dispatch import Answer, Later, Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import FetchRequest, FetchResponse
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place, decoded, fetch_request, values_of
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.store.faulty_store import FaultPlan

WAIT_MS = 30_000


class Session:
    """A session over `wanted`, told of everything there is."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.session_id = 0
        self.epoch = 0

    @classmethod
    async def over(cls, life: Life, *wanted: tuple[str, int, int]) -> Session:
        session = cls(life)
        begun: FetchResponse = await life.call(ApiKey.FETCH, fetch_request(*wanted, session_epoch=0))
        session.session_id = begun.session_id
        assert session.session_id
        session.epoch = 1
        await session.fetch()
        return session

    def request(self, *wanted: tuple[str, int, int], **how: Any) -> FetchRequest:
        request = fetch_request(*wanted, session_id=self.session_id, session_epoch=self.epoch, **how)
        self.epoch += 1
        return request

    async def fetch(self, *wanted: tuple[str, int, int], **how: Any) -> FetchResponse:
        response: FetchResponse = await self.life.call(ApiKey.FETCH, self.request(*wanted, **how))
        return response

    def park(self, *wanted: tuple[str, int, int], **how: Any) -> Later:
        """A long poll that does not end by itself."""
        asked = self.request(*wanted, max_wait_ms=WAIT_MS, **how)
        answer: Answer = self.life.dispatch(ApiKey.FETCH, asked, peer=Peer(self.epoch, "", "PLAINTEXT"))
        assert isinstance(answer, Later)
        return answer


async def soon(answer: Later) -> FetchResponse:
    """The answer, which has to come at once."""
    response: FetchResponse = decoded(ApiKey.FETCH, 12, await asyncio.wait_for(answer.future, 0.5))
    return response


async def test_a_poll_goes_on_until_enough_came() -> None:
    """Too little is kept in mind: the record that fills it ends the wait, also on the partition that had some."""
    life = await Place().start()
    await life.create("log", 2)
    session = await Session.over(life, ("log", 0, 0), ("log", 1, 0))
    await life.produce("log", b"a")
    answer = session.park(min_bytes=200)
    await asyncio.sleep(1)
    await life.produce("log", b"b")
    await asyncio.sleep(1)
    assert not answer.future.done()
    await life.produce("log", b"c" * 200)
    response = await soon(answer)
    assert values_of(response.responses[0].partitions[0]) == [b"a", b"b", b"c" * 200]
    await life.stop()


async def test_a_topic_deleted_under_a_poll_ends_it() -> None:
    """By its error, which is told for as long as the partition is asked for."""
    life = await Place().start()
    await life.create("log")
    session = await Session.over(life, ("log", 0, 0))
    answer = session.park()
    await life.context.controller.delete_topic("log")
    for response in (await soon(answer), await session.fetch()):
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await life.stop()


async def test_another_request_takes_the_session_over() -> None:
    """The one that waited is told that its epoch is over; the session goes on."""
    life = await Place().start()
    await life.create("log")
    session = await Session.over(life, ("log", 0, 0))
    first = session.park()
    second = session.park()
    refused = await soon(first)
    assert (refused.error_code, refused.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id)
    await life.produce("log", b"a")
    assert values_of((await soon(second)).responses[0].partitions[0]) == [b"a"]
    await life.stop()


async def test_a_session_that_ends_under_a_poll_answers_it() -> None:
    """Closed over another connection: nobody waits for what will not be told any more."""
    life = await Place().start()
    await life.create("log")
    session = await Session.over(life, ("log", 0, 0))
    answer = session.park()
    await life.call(
        ApiKey.FETCH, fetch_request(session_id=session.session_id, session_epoch=-1), peer=Peer(9, "", "PLAINTEXT")
    )
    assert (await soon(answer)).error_code == 0
    assert (await session.fetch()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not life.partition("log").waiters._readers
    await life.stop()


async def test_retention_is_told_to_a_quiet_session() -> None:
    """The log start moved while nothing was produced: told once."""
    life = await Place().start()
    await life.create("log", 2)
    await life.produce("log", b"a", b"b")
    session = await Session.over(life, ("log", 0, 2), ("log", 1, 0))
    assert (await session.fetch()).responses == []
    life.partition("log").log.advance_log_start(1)
    (topic,) = (await session.fetch()).responses
    assert [(part.partition_index, part.log_start_offset) for part in topic.partitions] == [(0, 1)]
    assert (await session.fetch()).responses == []
    await life.stop()


async def test_cold_records_reach_a_session() -> None:
    """A chunk that takes seconds ends the poll that waits for it, or is there for the next one."""
    place = Place("remote.fetch.max.wait.ms=500")
    life = await place.start()
    await life.create("deep", **SMALL_SEGMENTS)
    for at in range(40):
        await life.produce("deep", b"%d " % at + b"v" * 150)
    await asyncio.sleep(60)
    assert life.partition("deep").log.local_log_start_offset > 10
    session = await Session.over(life, ("deep", 0, 40))
    place.store.plan = FaultPlan(latency_s=(3.0, 3.0))
    late = decoded(ApiKey.FETCH, 12, await session.park(("deep", 0, 0)).future)
    found = late.responses
    for _ in range(200):
        if found:
            break
        found = (await session.fetch(max_wait_ms=100)).responses
    assert values_of(found[0].partitions[0])[0] == b"0 " + b"v" * 150
    place.store.calm()
    await life.stop()


@pytest.mark.parametrize("acks", [1, -1])
def test_a_record_reaches_a_waiting_session_at_once(acks: int) -> None:
    """Appended with acks=1 while the client was away, it may lie unsynced for 10 ms; a poll that waits hurries it."""

    async def scenario() -> float:
        life = await Place().start()
        await life.create("log")
        session = await Session.over(life, ("log", 0, 0))
        await life.produce("log", b"a", acks=acks)
        began = asyncio.get_running_loop().time()
        answer = session.park() if acks == 1 else None
        response = await session.fetch() if answer is None else await soon(answer)
        assert values_of(response.responses[0].partitions[0]) == [b"a"]
        took = asyncio.get_running_loop().time() - began
        await life.stop()
        return took

    assert run_fast(scenario(), timeout_s=HOUR_S) < 0.009


async def test_a_fetch_looks_only_at_what_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 partitions: nothing new costs no look, one record one; a record while the poll waits one more."""
    looks: list[tuple[str | None, int]] = []
    answer = fetch.Fetch._answer

    def counted(self: fetch.Fetch, target: Any, result: Any) -> None:
        looks.append((target.topic, target.index))
        answer(self, target, result)

    life = await Place().start()
    await life.create("log", 500)
    session = await Session.over(life, *(("log", index, 0) for index in range(500)))
    monkeypatch.setattr(fetch.Fetch, "_answer", counted)
    assert (await session.fetch()).responses == []
    assert looks == []
    await life.produce("log", b"a", index=77)
    assert len((await session.fetch()).responses) == 1
    assert looks == [("log", 77)]
    looks.clear()
    answered = session.park(("log", 77, 1))
    await life.produce("log", b"b", index=5)
    assert len((await soon(answered)).responses) == 1
    assert looks == [("log", 77), ("log", 5)]
    await life.stop()
