"""Whole brokers of several nodes on one bucket, in virtual time: who belongs, who decides, how facts travel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker.membership.session import Refused
from broker.metadata.cluster_content import Controller
from broker.metadata.cluster_root import ImageAt
from broker.metadata.records import NO_LEADER
from coldstore.keys import lease_key
from coldstore.stores.operations import Operation
from tests.support.brokers.broker_kit import LEASE_S, Life, Place
from tests.support.brokers.cluster_kit import cluster_root
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.store.faulty_store import Fault
from tests.support.waiting import until

Lives = dict[int, Life]


@asynccontextmanager
async def brokers(place: Place, *node_ids: int) -> AsyncIterator[Lives]:
    """Started in this order; those that are left are stopped at the end, the last first."""
    lives: Lives = {}
    for node_id in node_ids:
        lives[node_id] = await place.start(f"node.id={node_id}", directory=str(node_id))
    serving = {n: asyncio.ensure_future(life.broker.serve(life.stop_event)) for n, life in lives.items()}
    yield lives
    for node_id, life in reversed(lives.items()):
        life.stop_event.set()
        await serving[node_id]
        await life.broker.close()


def active(life: Life) -> set[int]:
    return {n for n, node in life.context.metadata.image.nodes.items() if node.active}


def controllers(lives: Lives) -> list[int]:
    return [n for n, life in lives.items() if life.session.is_controller]


async def test_all_obey_one_image_and_one_controller() -> None:
    """The first one decides; each that comes has a session of its own, and everybody sees all of them."""
    place = Place()
    async with brokers(place, 1, 2, 3) as lives:
        await until(lambda: all(active(life) == {1, 2, 3} for life in lives.values()), 5)
        assert controllers(lives) == [1]
        named = {life.context.metadata.controller for life in lives.values()}
        assert len(named) == 1


async def test_what_is_committed_is_told_at_once() -> None:
    """Parked heartbeats carry the root: nobody waits for his next poll, which comes after 5 s."""
    place = Place()
    async with brokers(place, 1, 2, 3) as lives:
        await asyncio.sleep(7)
        await lives[1].create("log")
        for life in lives.values():
            assert await until(lambda life=life: life.context.metadata.topic_named("log") is not None, 5) < 1


async def test_a_broker_that_dies_is_missed_after_half_a_second_and_what_it_led_waits() -> None:
    """Its connection was closed, and its port refuses. At one replica nobody else may lead; everybody is told."""
    place = Place()
    async with brokers(place, 1, 2, 3) as lives:
        await lives[1].create("log", 3)
        image = lives[1].context.metadata.image
        led = [row.leader for row in image.topics[next(iter(image.topics))].rows]
        assert sorted(led) == [1, 2, 3]
        await lives.pop(3).crash()
        took_s = await until(lambda: active(lives[2]) == {1, 2}, 10)
        assert 0.5 <= took_s < 1
        topic = lives[2].context.metadata.topic("log")
        assert [row.leader for row in topic.rows] == [NO_LEADER if n == 3 else n for n in led]
        lives[3] = await place.start("node.id=3", directory="3")
        await until(lambda: [r.leader for r in lives[2].context.metadata.topic("log").rows] == led, 10)
        await lives.pop(3).crash()


async def test_cluster_d11_of_two_candidates_one_decides_and_stays() -> None:
    """Both see the lease stand still; the CAS says who, and nobody ousts a controller that beats."""
    place = Place()
    async with brokers(place, 1, 2, 3) as lives:
        await asyncio.sleep(5)
        await lives.pop(1).crash()
        await until(lambda: len(controllers(lives)) == 1, LEASE_S + 5)
        first = controllers(lives)
        await until(lambda: all(active(life) == {2, 3} for life in lives.values()), 10)
        epoch = lives[2].context.metadata.controller
        await asyncio.sleep(6 * LEASE_S)
        assert controllers(lives) == first and active(lives[2]) == {2, 3}
        assert lives[2].context.metadata.controller == lives[3].context.metadata.controller == epoch


async def test_cluster_d12_a_claim_that_comes_true_late_makes_its_author_controller() -> None:
    """Its PUT landed a minute after everybody gave it up: the image names it, so it takes office and decides."""
    place = Place()
    async with brokers(place, 1, 2) as lives:
        await asyncio.sleep(5)
        late = cluster_root(place.memory, "late")
        found = await late.load()
        assert found is not None
        await late.claim(found.cluster_id, Controller(2, lives[2].session.incarnation), lambda _: ())
        await until(lambda: controllers(lives) == [2], 20)
        await lives[2].create("log")
        await until(lambda: lives[1].context.metadata.topic_named("log") is not None, 10)
        await asyncio.sleep(2 * LEASE_S)
        assert controllers(lives) == [2] and active(lives[1]) == {1, 2}


async def test_cluster_d14_an_outage_of_the_store_makes_nobody_controller() -> None:
    """Everybody sees the counter where it was: only successful polls over a whole lease count."""
    place = Place()
    async with brokers(place, 1, 2, 3) as lives:
        await asyncio.sleep(5)
        before = lives[1].context.metadata.controller
        place.store.down = True
        await asyncio.sleep(3 * LEASE_S)
        assert all(active(life) == {1, 2, 3} for life in lives.values())
        place.store.down = False
        await asyncio.sleep(3 * LEASE_S)
        assert lives[3].context.metadata.controller == before
        assert active(lives[3]) == {1, 2, 3}


async def test_a_controller_that_cannot_beat_is_replaced_though_it_answers() -> None:
    """It says that its store is away: who hears that watches the lease, as if it heard nothing."""
    place = Place()
    async with brokers(place, 1, 2) as lives:
        await asyncio.sleep(5)
        assert controllers(lives) == [1]
        place.store.script(Operation.PUT_ROOT, Fault.BEFORE, match=lease_key(), times=10_000)
        await until(lambda: controllers(lives) == [2], 4 * LEASE_S)
        place.store.calm()
        await until(lambda: active(lives[2]) == {1, 2}, 30)


@pytest.mark.parametrize("who", [1, 2])
async def test_who_stops_hands_over_first(who: int) -> None:
    """Replicated partitions are led by others before the last answers leave, the session ends after the marker (R9);
    the controller hands its own over as well."""
    place = Place()
    async with brokers(place, 1, 2, 3) as lives:
        left = 3
        await lives[1].context.controller.create_topic("log", 3, {}, replication_factor=3)
        leaders: list[tuple[bool, list[int]]] = []

        def note(at: ImageAt) -> None:
            topic = at.image.topic_named("log")
            assert topic is not None
            leaders.append((at.image.nodes[who].active, [row.leader for row in topic.rows]))

        session = lives[left].session
        assert session._feed is not None
        await until(lambda: lives[left].context.metadata.topic_named("log") is not None, 10)
        session._feed.watch(note)
        await lives.pop(who).stop()
        await until(lambda: bool(leaders) and not leaders[-1][0], LEASE_S)
        in_session = [led for is_active, led in leaders if is_active]
        assert in_session and all(who not in led and NO_LEADER not in led for led in in_session)


async def test_who_leaves_is_missed_at_once() -> None:
    """A clean stop ends the session with its last word; the controller's releases the lease too."""
    place = Place()
    async with brokers(place, 1, 2, 3) as lives:
        await lives.pop(3).stop()
        assert await until(lambda: active(lives[2]) == {1, 2}, 5) < 1
        await lives.pop(1).stop()
        assert await until(lambda: controllers(lives) == [2], LEASE_S) < LEASE_S / 2
        assert active(lives[2]) == {2}


@pytest.mark.parametrize("others", [{2}, {2, 3}])
async def test_a_controller_whose_stop_takes_long_ends_no_other_session(others: set[int]) -> None:
    """Regression: its listeners were closed, so nobody could send it a heartbeat. It ended the sessions of all others,
    led their partitions with the set {1}, and left: with min.insync.replicas=1 nobody led until it was back."""
    place = Place()
    async with brokers(place, 1, *others) as lives:
        await until(lambda: all(active(life) == {1, *others} for life in lives.values()), 5)
        controller, rest = lives.pop(1), lives[2]
        replicas, seen = controller.replicas, list[set[int]]()
        close = replicas.close

        async def close_slowly(*, clean: bool) -> bool:
            await until(lambda: bool(controllers(lives)), 3 * LEASE_S)  # as many logs that are flushed
            return await close(clean=clean)

        replicas.close = close_slowly  # type: ignore[method-assign]
        assert rest.session._feed is not None
        rest.session._feed.watch(lambda _: seen.append(active(rest)))
        await controller.stop()
        await until(lambda: active(rest) == others, 3 * LEASE_S)
        assert all(found >= others for found in seen) and len(controllers(lives)) == 1


def test_an_empty_directory_under_the_node_id_of_a_living_controller_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A mistyped --node-id: it waited for ever for the lease to stand still, with a line a second. What is waited for
    is told when it changes, and every three seconds."""

    async def scenario() -> None:
        place = Place()
        async with brokers(place, 1, 2):
            with pytest.raises(Refused, match=r"node 1 runs already and is the controller: .*another --node-id"):
                async with asyncio.timeout(20 * LEASE_S):
                    await place.start("node.id=1", directory="other")

    with caplog.at_level(logging.INFO):
        run_fast(scenario(), timeout_s=HOUR_S)
    waited = [record for record in caplog.records if "not ready: " in record.getMessage()]
    assert 1 <= len(waited) <= 2 + 2 * LEASE_S / 3


async def test_an_empty_directory_replaces_a_controller_that_died() -> None:
    """As soon as another one decides, and its session is over."""
    place = Place()
    async with brokers(place, 2) as lives:
        first = await place.start("node.id=1", directory="1")
        await until(lambda: active(lives[2]) == {1, 2}, 5)
        assert lives[2].session.is_controller
        await first.crash()
        again = await place.start("node.id=1", directory="new")
        assert active(again) == {1, 2}
        await again.stop()
