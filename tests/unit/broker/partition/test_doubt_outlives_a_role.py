"""What nobody settled of a log's tail is in doubt later, too: no offset that somebody saw is given again."""

from __future__ import annotations

import asyncio

import pytest

from broker.metadata.image import ClusterImage
from broker.metadata.records import NO_LEADER, Row, TopicCreated
from broker.partition.removing.stray_logs import StrayLogs
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, Pair, both, until
from tests.unit.broker.partition.late_work.test_late_threads import slow


@pytest.fixture(autouse=True)
def _start_knows_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it holds would be a stray: the test publishes after the start."""

    async def move_all(_: StrayLogs, __: ClusterImage) -> None:
        pass

    monkeypatch.setattr(StrayLogs, "move_all", move_all)


async def _held_by_2(*settings: str) -> Pair:
    """2 alone holds `log-0`; a consumer saw five records."""
    pair = Pair(*settings)
    await pair.start(1)
    await pair.start(2)
    pair.note(TopicCreated(TOPIC_ID, NAME, (Row((2,), 2, 0, 0, (2,), 0),), {}))
    pair.publish()
    await until(lambda: pair.leads(2), "it leads")
    for number in range(5):
        assert (await pair.lives[2].produce(NAME, b"%d" % number)).error_code == 0
    assert len(await pair.lives[2].read_all(NAME)) == 5
    await asyncio.sleep(2.0)
    return pair


async def _goes_on(pair: Pair) -> None:
    """2 starts and leads again, and gives no offset of the five again. The pair ends."""
    await pair.start(2)
    pair.elect(2, (2,))
    pair.publish()
    await until(lambda: pair.leads(2), "it leads again")
    answer = await pair.lives[2].produce(NAME, b"new")
    assert answer.error_code == 0 and answer.base_offset >= 5
    await pair.stop()


async def test_a_log_that_nobody_led_since_the_power_was_cut_is_not_vouched_for() -> None:
    """It held the log alone, and was stopped in order before it was elected: its marker said that the log is whole."""
    pair = await _held_by_2("thermocline.flush=os")
    await pair.lives.pop(2).crash()
    pair.places[2].power_cut()
    pair.elect(NO_LEADER, (2,))
    await pair.start(2)
    pair.publish()
    await until(lambda: pair.followed(2) is not None, "it waits to be elected")
    await pair.lives.pop(2).stop()
    await _goes_on(pair)


async def test_a_gap_that_a_role_did_not_come_to_flush_is_flushed_by_the_next() -> None:
    """The next found the hole closed, and noted a new reservation over a gap that the power could still take."""
    pair = await _held_by_2("thermocline.flush=os")
    await pair.lives.pop(2).crash()
    pair.places[2].power_cut()
    pair.places[2].settings = ("node.id=2",)  # from now on it flushes
    await pair.start(2)
    life = pair.lives[2]
    began = slow(life, "sync_each", seconds=600.0)
    pair.elect(2, (2,))
    pair.publish()
    await until(lambda: bool(began), "the gap is being flushed")
    pair.elect(2, (2,))
    pair.publish()
    await asyncio.sleep(20.0)
    pair.places[2].power_cut()
    await pair.lives.pop(2).crash()
    await _goes_on(pair)


async def test_a_role_that_did_not_come_to_begin_is_in_doubt_as_one_that_did() -> None:
    """The image came as the stop began: nothing was opened since the power cut, and the marker vouched for it."""
    pair = await _held_by_2("thermocline.flush=os")
    await pair.lives.pop(2).crash()
    pair.places[2].power_cut()
    await pair.start(2)
    pair.change()
    pair.elect(2, (2,))
    pair.publish()
    replicas = pair.lives[2].replicas
    assert not await replicas.close(clean=True)
    for life in pair.lives.values():
        await life.crash()


async def test_what_a_leader_said_is_let_go_though_the_log_is_given_back_before_it_goes() -> None:
    """The copy's end took a while. Alone, its leader gave back what it had said may be given (R21)."""
    pair = await both(replicas=(1,), remote_storage_enable="true")
    pair.change(replicas=(1, 2))
    pair.publish()
    await until(lambda: pair.followed(2) is not None, "it follows")
    assert (await pair.lives[1].produce(NAME, b"x", acks=1)).error_code == 0
    copy = pair.followed(2)
    assert copy is not None
    await until(lambda: copy.log.flushed_end_offset == 1, "it has all")
    go_on, over = asyncio.Event(), copy.over

    async def slow_over() -> None:
        await go_on.wait()
        await over()

    copy.over = slow_over  # type: ignore[method-assign]
    pair.change(replicas=(1,), leader_epoch=1)
    pair.publish()
    await until(lambda: pair.leads(1), "alone")
    tier = pair.lives[1].partition(NAME).tier
    await tier.seal_and_copy()
    assert await tier.partition_state.give_back()
    pair.change(replicas=(1, 2), in_sync=(1, 2))
    pair.elect(2, (1, 2))
    pair.publish()
    await asyncio.sleep(1.0)
    go_on.set()
    await until(lambda: pair.leads(2), "it leads")
    assert pair.lives[2].partition(NAME).log.reserved_end <= (await pair.manifest()).reserved_end_offset
    await pair.stop()
