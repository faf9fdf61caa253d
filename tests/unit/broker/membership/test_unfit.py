"""Brokers that should not lead, in virtual time: a log that failed, a full disk, a bucket that is away from one of them
(R9; D20, D38, D39), and how soon the controller hears of it."""

from __future__ import annotations

import asyncio
import errno

import pytest

from broker.config.times import ClusterTimes
from broker.controller.cluster_control import ClusterControl
from broker.membership.broker_fitness import CUT_OFF_S
from broker.membership.controlled_shutdown import LEAVE_S
from broker.metadata.records import NO_LEADER
from broker.wire.apis import ApiKey
from logformat.records import iter_records
from tests.support.brokers.broker_kit import batches_of, fetch_request
from tests.support.brokers.house import House, house
from tests.support.waiting import until


def unfit(it: House) -> set[int]:
    """As the controller has heard."""
    cluster_control = it.lives[it.controllers[0]].context.brokers
    assert isinstance(cluster_control, ClusterControl)
    return set(cluster_control.unfit(it.lives[2].context.metadata.image))


def leader_of(it: House) -> int:
    return it.row().leader


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("operation", ["sync", "write"])
async def test_cluster_d38_a_leader_whose_log_failed_hands_it_over_at_once(operation: str, index: int) -> None:
    """Be it the controller or not; what was acknowledged is there, and that broker leads its other partitions on."""
    async with house(3) as it:
        before = [it.row(i) for i in range(3)]
        leader = before[index].leader
        assert (await it.lives[leader].produce("log", b"a", index=index)).error_code == 0
        path = f"/data/{leader}/log-{index}/{0:020}.log"
        it.disks[leader].inject(operation, errno.EIO, path, times=-1)
        asyncio.get_running_loop().create_task(it.lives[leader].produce("log", b"b", index=index))
        took_s = await until(lambda: it.row(index).leader != leader, 5)
        assert took_s < 1, "the heartbeat that is parked does not delay it"
        now = it.row(index)
        assert now.leader != NO_LEADER and now.leader_epoch == before[index].leader_epoch + 1
        assert [it.row(i) for i in range(3) if i != index] == [before[i] for i in range(3) if i != index]
        await it.led_by(now.leader, 5, index)
        took_s = await until(lambda: it.lives[now.leader].partition("log", index).high_watermark >= 1, 5)
        assert took_s < 2, "nobody waits for a report of what failed"
        assert (await it.lives[now.leader].produce("log", b"c", index=index)).error_code == 0
        values = [value for _, value in await it.lives[now.leader].read_all("log", index)]
        assert values[0] == b"a" and values[-1] == b"c"


async def test_cluster_d39_a_leader_with_a_full_disk_hands_over_and_is_fit_again_with_room() -> None:
    """Nobody leaves the set for it by itself; when there is room its heartbeats say so, and it may lead again."""
    async with house(3) as it:
        leader = it.row().leader
        disk = it.disks[leader]
        disk.allocate("/filler", disk.space("/").free)
        await it.lives[leader].produce("log", b"a" * 1000)
        await until(lambda: leader not in [it.row(i).leader for i in range(3)], 15)
        now = leader_of(it)
        await it.led_by(now, 5)
        disk.unlink("/filler")
        await until(lambda: not unfit(it), 15)
        await until(lambda: len(it.row().in_sync) == 3, 60)
        assert (await it.lives[now].produce("log", b"b")).error_code == 0


async def test_cluster_d20_a_leader_cut_from_the_bucket_for_a_minute_hands_over() -> None:
    """Others reach it: the controller beats its lease. Back again, it is fit."""
    async with house(3) as it:
        cut = 3
        assert cut in [it.row(i).leader for i in range(3)]
        it.stores[cut].down = True
        took_s = await until(lambda: cut not in [it.row(i).leader for i in range(3)], 2 * CUT_OFF_S)
        assert CUT_OFF_S < took_s < CUT_OFF_S + 30
        assert cut in it.row().in_sync and it.lives[2].context.metadata.image.nodes[cut].active
        it.stores[cut].calm()
        await until(lambda: not unfit(it), 30)


async def test_followers_that_were_sent_damage_lead_when_its_leader_is_gone() -> None:
    """Their logs are whole up to there, and in their next role they are fit. Nobody led on for as long as the one with
    the damaged disk stayed away: what nobody led was looked at for sessions alone."""
    async with house(3) as it:
        index = next(index for index in range(3) if it.row(index).leader not in it.controllers)
        leader = it.row(index).leader
        others = {1, 2, 3} - {leader}
        it.watched = min(others)
        assert (await it.lives[leader].produce("log", b"a", index=index)).error_code == 0
        place = it.lives[leader].context.metadata.topic("log").topic_id, index
        log_failures = [it.lives[node_id].context.registry.log_failures for node_id in others]
        for of in log_failures:
            of.failed(place, "what comes is damaged, again")
        await until(lambda: len(it.row(index).in_sync) == 2, 5)  # the minimum
        await it.kill(leader)
        await until(lambda: leader not in it.sessions, 60)
        await until(lambda: it.serves(index) and not any(of.unfit for of in log_failures), 60)
        # One fetch: the leadership moves back while a poll at the end waits.
        request = fetch_request(("log", index, 0), max_wait_ms=500)
        part = (await it.lives[it.row(index).leader].call(ApiKey.FETCH, request)).responses[0].partitions[0]
        assert part.error_code == 0, part
        assert b"a" in [record.value for batch in batches_of(part) for record in iter_records(batch)]


async def test_an_outage_for_all_makes_nobody_unfit() -> None:
    """Nobody reaches the bucket: to pass leaderships round would help no one, and could not be committed."""
    async with house(3) as it:
        before = [it.row(i) for i in range(3)]
        for store in it.stores.values():
            store.down = True
        await asyncio.sleep(2 * CUT_OFF_S)
        for store in it.stores.values():
            store.calm()
        await asyncio.sleep(30)
        assert [it.row(i) for i in range(3)] == before


async def test_what_is_known_to_be_fresh_is_told_by_when_it_was_asked_for() -> None:
    """Of polls and heartbeats; while the bucket is away from all nothing is known to be the newest, but everybody is in
    session, the controller too."""
    async with house() as it:
        await asyncio.sleep(10)
        clock = it.lives[1].clock
        sessions = [session for life in it.lives.values() if (session := life.session) is not None]
        assert len(sessions) == 3
        for session in sessions:
            assert clock.boottime_s() - 6 < session.fresh.confirmed_s <= clock.boottime_s()
            assert session.fresh.is_in_session
        for store in it.stores.values():
            store.down = True
        went_s = clock.boottime_s()
        for _ in range(60):
            await asyncio.sleep(0.5)
            assert all(session.fresh.is_in_session for session in sessions), clock.boottime_s() - went_s
        for session in sessions:
            assert session.fresh.confirmed_s <= went_s + 8, (
                "the controller knows after half a lease that it cannot beat it"
            )
        await it.kill(2, 3)
        await asyncio.sleep(12)
        assert not sessions[0].fresh.is_in_session, "nobody says any more that he does not claim"


@pytest.mark.parametrize("who", [1, 3])
async def test_cluster_d48_a_stop_without_bucket_or_controller_waits_five_seconds_for_each_word_and_goes(
    who: int,
) -> None:
    """Nobody can be told: leaderships wait until the session is over. Its logs are closed all the same, and a stop with
    the bucket there is over sooner."""
    async with house(3) as it:
        assert (await it.lives[it.row().leader].produce("log", b"a")).error_code == 0
        await asyncio.sleep(10)
        for store in it.stores.values():
            store.down = True
        life = it.lives.pop(who)
        began_s = asyncio.get_running_loop().time()
        await it.within(who, life.stop())
        # Between the two words the heartbeats that others parked here are answered.
        assert asyncio.get_running_loop().time() - began_s < 2 * LEAVE_S + ClusterTimes().parked_s + 0.5
