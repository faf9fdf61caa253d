"""G12 and G13: the store is away for ten simulated hours, with an upload and a cold read in flight when it goes.

The broker has default settings but for sizes (lease 5 s, backoff up to 30 s, gc grace 10 min): the figures printed are
those of a real one. `refused`: every request fails at once. `held`: none is ever answered; each waits for ten minutes,
and what was held when the store came back takes effect minutes later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from coldstore.stores.operations import Operation
from tests.sim.scripted import script
from tests.sim.scripted.store_away import HOUR_S, STORE_LATENCY_S, Day, begun
from tests.sim.world.cluster import Cluster
from tests.sim.world.loop import SimLoop
from tests.support.scenario import by

AWAY_S = 10 * HOUR_S
HELD_S = 600.0
LOCAL_MAX = 1_000_000
THROTTLED_S = 0.1  # what a produce waits before it is refused
SLOW_S = 0.05  # well above what one takes here, well below a throttled one
UPLOAD_TIMEOUT_S = 300.0
WRITES_RESUME_S, READERS_REACH_END_S, DRAINS_S = 10.0, 30.0, 30.0
GRACES_S = 1500.0  # gc grace, spread over as much again, and a little
ATTEMPTS_PER_S = 1.5  # of all queues, polls and readers together
# What a consumer answers by asking again. A cold read whose bytes this process still holds is served.
RETRIABLE = {"KAFKA_STORAGE_ERROR", "EMPTY", "TimeoutError", "Disconnected"}


def played(scene: Callable[[Day], Awaitable[None]], *settings: str, pace_s: float = 20.0) -> None:
    async def act(loop: SimLoop) -> Cluster:
        cluster = Cluster(loop, "away", directory_bucket=False)
        await scene(await begun(cluster, settings, pace_s))
        return cluster

    script.in_virtual_time(act)


async def go_away(day: Day, held_s: float) -> float:
    """The store goes in the middle of an upload and of a cold read; when that was."""
    store = day.store
    store.latency_s = (0.3, 0.5)
    await day.until(lambda: store.under_way[Operation.PUT_SEGMENT], HOUR_S, "an upload in flight")
    day.cold_end = day.tier().log.local_log_start_offset
    assert day.cold_end > 100
    day.read_cold_now()
    await day.until(lambda: store.under_way[Operation.GET], 1.0, "a cold read in flight")
    assert store.under_way[Operation.PUT_SEGMENT]
    store.down, store.held_s, store.latency_s = True, held_s, STORE_LATENCY_S
    return day.now()


async def stay_away(day: Day, gone_s: float, blocked_by: str) -> float:
    """Ten hours; returns when the first produce was refused. What G12 promises of them is asserted on the way."""
    kept_from = day.tier().tier.remote_end_offset
    for hour in range(1, 11):
        await asyncio.sleep(AWAY_S / 10)
        assert day.tier().tier.remote_end_offset == kept_from
        assert day.tier().log.local_log_start_offset <= kept_from, "nothing that is not in the bucket is dropped"
        print(
            f"hour {hour}: backlog {day.lag_bytes()} of {day.local_bytes()} local bytes, blocked by {day.blocked_by()}"
        )
    back_s = day.now()
    refused_s = day.sends.first("KAFKA_STORAGE_ERROR", gone_s)
    assert refused_s is not None, "the limit was never reached"
    sends = day.sends.between(gone_s, back_s)
    asked = day.store.asked_between(gone_s, back_s)
    per_s = asked.total() / (back_s - gone_s)
    slowest_s = day.sends.slowest_s(gone_s, back_s, "KAFKA_STORAGE_ERROR")
    print(f"produces {dict(sends)}, first refused after {refused_s / HOUR_S:.1f} h, in {slowest_s:.1f} s at most")
    print(f"  asked the store {per_s:.2f}/s")
    print("  " + ", ".join(f"{operation.value} {count}" for operation, count in sorted(asked.items(), key=str)))
    assert set(sends) == {"NONE", "KAFKA_STORAGE_ERROR"}
    at_s = day.sends.first_asked("KAFKA_STORAGE_ERROR", gone_s)
    assert set(day.sends.between(gone_s, at_s)) == {"NONE"}
    assert set(day.sends.between(at_s, back_s)) == {"KAFKA_STORAGE_ERROR"}
    assert day.blocked_by() == blocked_by
    assert per_s <= ATTEMPTS_PER_S
    judge_reads(day, gone_s, back_s)
    return gone_s + refused_s


def judge_reads(day: Day, gone_s: float, back_s: float) -> None:
    """Hot reads went on, all of them; cold ones were answered with what a consumer asks again for."""
    hot, cold = day.hot.between(gone_s, back_s), day.cold.between(gone_s, back_s)
    print(f"  hot reads {dict(hot)}, slowest {day.hot.slowest_s(gone_s, back_s):.3f} s; cold reads {dict(cold)}")
    assert set(hot) == {"NONE"} and hot.total() >= 590
    assert set(cold) <= RETRIABLE | {"NONE"}
    failed = Counter({outcome: count for outcome, count in cold.items() if outcome in RETRIABLE})
    assert failed.total() >= 30, "the cold tier was asked for while it was away"


async def come_back(day: Day, resume_s: float) -> None:
    """What G13 promises, then the books. An upload that is held ends by its own time-out, and is waited for."""
    store, held_s = day.store, UPLOAD_TIMEOUT_S if day.store.held_s else 0.0
    backlog, day.retry_s = day.lag_bytes(), 1.0
    await asyncio.sleep(60.0)
    healed_s = day.now()
    store.down, store.held_s = False, 0.0
    reading = asyncio.get_running_loop().create_task(day.read_everything(READERS_REACH_END_S))
    await day.until(lambda: day.sends.first("NONE", healed_s) is not None, resume_s, "a write is taken")
    wrote_s = day.now() - healed_s
    await day.until(lambda: day.lag_bytes() == 0, DRAINS_S + held_s, "the backlog drained")
    drained_s = day.now() - healed_s
    read_s = await reading
    print(
        f"after the heal: writes {wrote_s:.1f} s, end reached {read_s:.1f} s, {backlog} bytes drained {drained_s:.1f} s"
    )
    await asyncio.sleep(2 * HELD_S)  # what was held lands
    await day.stop()
    await day.read_everything(READERS_REACH_END_S)
    assert await day.findings() == []
    left = await day.orphans()
    await day.restart()
    await asyncio.sleep(GRACES_S)
    print(f"orphans before the next claim {len(left)}, after it {len(await day.orphans())}")
    assert await day.orphans() == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("held_s", [0.0, pytest.param(HELD_S, marks=pytest.mark.slow)], ids=["refused", "held"])
@by(played, f"thermocline.local.bytes.max={LOCAL_MAX}")
async def test_away_until_the_disk_is_at_its_limit(day: Day, /, held_s: float) -> None:
    """Produce goes on to the limit, waits, is refused; all of it is there afterwards, and the bucket holds no more."""
    await asyncio.sleep(HOUR_S)
    gone_s = await go_away(day, held_s)
    refused_at_s = await stay_away(day, gone_s, "store")
    throttled_s = day.sends.first_slower(SLOW_S, gone_s)
    assert throttled_s is not None and gone_s + throttled_s < refused_at_s, "slowed down before it was refused"
    assert day.sends.slowest_s(gone_s, gone_s + throttled_s - 60) < SLOW_S, "and not before the limit"
    assert LOCAL_MAX * 1.1 <= day.local_bytes() <= LOCAL_MAX * 1.15
    print(f"slowed down after {throttled_s / HOUR_S:.1f} h")
    # Room comes of an upload that is answered.
    await come_back(day, UPLOAD_TIMEOUT_S + WRITES_RESUME_S if held_s else WRITES_RESUME_S)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("held_s", [0.0, HELD_S], ids=["refused", "held"])
@by(played, "thermocline.reservation.offsets=2000")
async def test_away_until_the_reservation_is_used_up(day: Day, /, held_s: float) -> None:
    """No offset beyond the reserved end is given, however long the store is away."""
    await asyncio.sleep(HOUR_S)
    gone_s = await go_away(day, held_s)
    reserved = day.tier().log.reserved_end
    await stay_away(day, gone_s, "reservation")
    assert day.tier().log.log_end_offset == day.tier().log.reserved_end == reserved
    await come_back(day, WRITES_RESUME_S)


@by(played)
async def test_a_poll_that_is_held_is_no_pause_of_the_broker(day: Day, /) -> None:
    """A store that answers nothing, and few clients: the broker took its own wait for a stopped process, and was mute
    until the store came back."""
    await asyncio.sleep(300.0)
    gone_s = day.now()
    day.store.down, day.store.held_s = True, HELD_S
    await asyncio.sleep(300.0)
    assert set(day.sends.between(gone_s, day.now())) == {"NONE"}
    assert day.sends.slowest_s(gone_s, day.now()) < SLOW_S
    await day.stop()
