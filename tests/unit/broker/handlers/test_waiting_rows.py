"""Waiting fetches name a bounded number of partitions together: one above the bound is answered at once."""

from __future__ import annotations

import asyncio

import pytest

from broker.fetch_sessions.waiting_rows import PAUSE_MS, SMALL, WaitingRows, rows_of
from broker.handlers.fetch import fetch
from broker.net.dispatch import Later, Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import FetchRequest
from tests.support.brokers.broker_kit import Life, Place, fetch_request, parts_of

MANY = SMALL + 100
WIDE = 5_000  # above READ_AT_ONCE_MAX: it waits in a task


def naming(rows: int, max_wait_ms: int = 30_000) -> FetchRequest:
    """A fetch that names one empty partition, and others that do not exist."""
    return fetch_request(*(("log", index, 0) for index in range(rows)), max_wait_ms=max_wait_ms)


async def narrow(rows_max: int) -> Life:
    life = await Place().start()
    await life.create("log")
    life.context.waiting_rows._rows_max = rows_max
    return life


@pytest.mark.parametrize("rows", [MANY, WIDE])
async def test_a_fetch_above_the_bound_is_answered_at_once(rows: int) -> None:
    """Twenty fetches of 19 900 partitions held 58 MiB for a minute, and hundreds could wait."""
    life = await narrow(2 * rows - 1)
    loop_s = asyncio.get_running_loop().time
    first = life.dispatch(ApiKey.FETCH, naming(rows))
    began_s = loop_s()
    assert await parts_of(life.dispatch(ApiKey.FETCH, naming(rows)))
    assert loop_s() - began_s < 1.0
    assert isinstance(first, Later) and not first.is_done
    await life.produce("log", b"moved")
    assert await parts_of(first)
    assert life.context.waiting_rows.count == 0
    await life.stop()


@pytest.mark.parametrize("rows", [MANY, WIDE])
async def test_a_client_whose_fetch_could_not_wait_pauses(rows: int) -> None:
    """Regression: while the fetches of one user filled the bound, three consumers of 600 empty partitions fetched 690
    times a second and took the whole loop."""
    life = await narrow(rows)
    pauses: list[int] = []
    peer = Peer(2, "10.0.0.2:1", life.peer.listener, throttle=pauses.append)
    first = life.dispatch(ApiKey.FETCH, naming(rows), peer=peer)
    await asyncio.sleep(0.1)
    assert pauses == []
    assert await parts_of(life.dispatch(ApiKey.FETCH, naming(rows), peer=peer))
    assert await parts_of(life.dispatch(ApiKey.FETCH, naming(rows, max_wait_ms=20), peer=peer))
    assert pauses == [PAUSE_MS, 20]
    await life.produce("log", b"moved")
    assert await parts_of(life.dispatch(ApiKey.FETCH, naming(rows), peer=peer))
    assert await parts_of(first)
    assert pauses == [PAUSE_MS, 20], "there were records"
    await life.stop()


async def test_small_fetches_wait_beside_a_full_bound() -> None:
    life = await narrow(MANY)
    waiting = [life.dispatch(ApiKey.FETCH, naming(rows)) for rows in (MANY, 1, SMALL)]
    await asyncio.sleep(0.1)
    assert all(isinstance(answer, Later) and not answer.is_done for answer in waiting)
    assert life.context.waiting_rows.count == MANY
    await life.produce("log", b"moved")
    for answer in waiting:
        assert await parts_of(answer)
    assert life.context.waiting_rows.count == 0
    await life.stop()


async def test_rows_are_given_back_when_the_time_is_over() -> None:
    life = await narrow(MANY)
    for _ in range(3):
        assert await parts_of(life.dispatch(ApiKey.FETCH, naming(MANY, max_wait_ms=50)))
    assert life.context.waiting_rows.count == 0
    await life.stop()


def test_forgotten_and_repeated_partitions_count() -> None:
    request = naming(SMALL)
    assert rows_of(request) == 0
    request.topics *= 2
    assert rows_of(request) == 2 * SMALL
    waiting = WaitingRows(10)
    waiting.take(10)
    assert waiting.has_room(0) and not waiting.has_room(1)


async def test_the_rows_of_a_waiting_fetch_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each poll of a consumer counted its rows twice before it waited."""
    counted: list[FetchRequest] = []

    def noted(request: FetchRequest) -> int:
        counted.append(request)
        return rows_of(request)

    monkeypatch.setattr(fetch, "rows_of", noted)
    life = await narrow(MANY)
    waiting = life.dispatch(ApiKey.FETCH, naming(MANY))
    assert life.context.waiting_rows.count == MANY and len(counted) == 1
    await life.produce("log", b"moved")
    assert await parts_of(waiting)
    assert life.context.waiting_rows.count == 0 and len(counted) == 1
    await life.stop()
