"""How far behind groups are, as /metrics shows it."""

from __future__ import annotations

import asyncio
from uuid import UUID

from prometheus_client.parser import text_string_to_metric_families

from broker.error_codes import ErrorCode as E
from broker.groups import lag
from broker.groups.machine.events import GroupState
from broker.groups.offset_requests import CommitRow
from broker.metadata.image import TopicFacts
from tests.support.brokers.broker_kit import Life, Place
from tests.support.groups.group_world import GroupWorld, commit_rows, in_world


def shown(survey: lag.Survey) -> list[tuple[int, str, str, int]]:
    return [tuple(row) for row in survey.shown]


@in_world
async def test_lag_is_the_end_less_what_was_committed(w):
    """Per group, topic and partition; no less than 0; a partition that is not served has none."""
    await w.commit("a", 3)
    await w.commit("a", 9, partition=1)
    await w.commit("b", 0)
    await w.commit("b", 1, topic="not served here")
    await w.member("c")
    ends = {("t", 0): 5, ("t", 1): 4}
    found = await w.groups.survey(lambda topic, partition: ends.get((topic, partition)))
    assert shown(found) == [(5, "b", "t", 0), (2, "a", "t", 0), (0, "a", "t", 1)]
    assert found.positions == 3
    assert found.states == {GroupState.EMPTY: 2, GroupState.STABLE: 1}


async def test_a_topic_that_was_made_again_has_no_lag_of_its_predecessor():
    """Before any tombstone."""
    w = GroupWorld()
    w.topics = {"t": TopicFacts(UUID(int=1), 1)}
    await w.ready()
    await w.commit("g", 3)
    w.topics["t"] = TopicFacts(UUID(int=2), 1)
    assert shown(await w.groups.survey(lambda _, __: 100)) == []
    await w.kill()


@in_world
async def test_a_survey_is_bounded_and_shows_what_lags_most(w):
    """10 000 positions of 100 groups: 2 000 are shown, the largest lags; all are counted."""
    for group in range(100):
        rows = [CommitRow("t", partition, group, -1, "") for partition in range(100)]
        assert set(await commit_rows(w.groups, f"g{group:02}", rows)) == {E.NONE}
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    other = w.ask(beat())
    found = await w.groups.survey(lambda _, __: 100)
    other.cancel()
    assert len(found.shown) == lag.SHOWN_MAX and found.positions == 10_000
    assert {row.group_id for row in found.shown} == {f"g{group:02}" for group in range(20)}
    assert found.shown[0].records == 100 and found.shown[-1].records == 81
    assert beats >= 2, "others had their turns"


async def test_the_lag_of_a_whole_broker_is_scraped():
    """From the high watermark; a group that caught up shows 0."""

    async def commit(life: Life, group: str, offset: int) -> None:
        rows = [CommitRow("log", 0, offset, -1, "")]
        assert await commit_rows(life.context.groups, group, rows) == [E.NONE]

    life = await Place().start()
    await life.create("log")
    await life.produce("log", b"1", b"2", b"3")
    assert await life.context.groups.find("behind") is E.NONE
    await commit(life, "behind", 1)
    await commit(life, 'odd "\\ \n name', 3)
    text = (await life.broker.views.metrics()).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    lags = {
        (s.labels["group"], s.labels["topic"], s.labels["partition"]): s.value
        for s in families["thermocline_group_lag"].samples
    }
    assert lags == {("behind", "log", "0"): 2, ('odd "\\ \n name', "log", "0"): 0}
    states = {s.labels["state"]: s.value for s in families["thermocline_groups"].samples}
    assert states == {state.value: 2 * (state is GroupState.EMPTY) for state in GroupState}
    (positions,) = families["thermocline_group_positions"].samples
    assert positions.value == 2
    await life.stop()
