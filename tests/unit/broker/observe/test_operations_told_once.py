"""What the log says of trouble: at once, then ever more rarely, and its end; never once an event."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest

from broker.metrics.outage_log import LOG_AGAIN_MAX_S, OutageLog
from broker.partition.leading.produce_backpressure import (
    REFUSALS_END_S,
    REFUSALS_OVER_S,
    AppendRefusal,
    ProduceBackpressure,
)
from coldstore.object_store import StoreUnavailable
from hotstore.errors import LogFull
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Place
from tests.support.fast_loop import HOUR_S, run_fast
from thermocline.cli.serve.log_lines import LINES_MAX, WINDOW_S, NoFlood
from tiering.copying.backlog import LAG_LOGGED_MS, Backlog, PartitionLag, lag_message
from tiering.tier_config import TierStatus


class SetClock:
    """Time as the test says."""

    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


AWAY = StoreUnavailable("PUT x: no answer")


def test_a_night_of_outage_is_a_page_of_log() -> None:
    """Ten hours, a try every 10 s: told at once, at growing distances, then every five minutes; and the end of it."""
    clock = SetClock()
    outage = OutageLog(clock)
    told = []
    for _ in range(3600):
        if outage.failed(AWAY):
            told.append(clock.now_s - 100)
        clock.now_s += 10
    assert told[:4] == [0, 10, 30, 70]
    assert len(told) < 130
    assert max(later - earlier for earlier, later in pairwise(told)) <= LOG_AGAIN_MAX_S
    assert str(outage) == "PUT x: no answer; 3600 tries in 10h"
    assert outage.answered() == "10h"
    assert (outage.tries, outage.failure, outage.answered(), outage.seconds) == (0, "", "", 0)


def test_a_store_that_fails_every_other_call_is_no_flood_either() -> None:
    """Each success ends the outage; what was not told is not told as over."""
    clock = SetClock()
    outage = OutageLog(clock)
    told = over = 0
    for _ in range(600):
        told += outage.failed(AWAY)
        clock.now_s += 1
        over += bool(outage.answered())
        clock.now_s += 1
    assert told == over <= 10
    clock.now_s += 2 * LOG_AGAIN_MAX_S
    assert outage.failed(AWAY), "after a quiet time the next one is told at once"


def test_an_unreachable_bucket_at_start_is_told_rarely_and_readyz_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """Five minutes away: a handful of warnings that say what was tried, how often, for how long, and what to do."""

    async def scenario() -> None:
        place = Place()
        place.store.down = True
        life = place.make()
        starting = asyncio.ensure_future(life.start())
        await asyncio.sleep(300)
        warnings = [r.getMessage() for r in caplog.records if "does not answer" in r.getMessage()]
        assert 1 <= len(warnings) <= 8, warnings
        assert "check the URL, the credentials and the network" in warnings[-1]
        assert " tries in " in warnings[-1]
        why = life.broker.views.not_ready()
        assert "does not answer" in why and " tries in " in why
        assert not starting.done(), "it never exits for this"
        place.store.down = False
        async with asyncio.timeout(30):
            await starting
        assert life.broker.views.not_ready() == ""
        assert any("the bucket answers, after" in r.getMessage() for r in caplog.records)
        await life.stop()

    caplog.set_level(logging.INFO)
    run_fast(scenario(), timeout_s=HOUR_S)


def test_an_outage_while_serving_is_told_rarely(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty minutes of it, the lease is polled every five seconds; what lags is one line a minute at most."""

    async def scenario() -> None:
        place = Place()
        life = await place.start()
        await life.create("log", **SMALL_SEGMENTS)
        await asyncio.sleep(5)  # claimed
        place.store.down = True
        for at in range(30):
            await life.produce("log", b"%d" % at * 60)
        caplog.clear()
        await asyncio.sleep(1200)
        said = [record.getMessage() for record in caplog.records]
        assert 3 <= sum("the bucket does not answer" in line for line in said) <= 10
        lags = [line for line in said if line.startswith("tiering lags")]
        assert 17 <= len(lags) <= 20
        assert "MB are not in the bucket (" in lags[-1] and "partitions: 1), the oldest for " in lags[-1]
        assert "blocked by store (1): log-0; put_segment topics/" in lags[-1] and lags[-1].endswith("(outage)")
        place.store.down = False
        await asyncio.sleep(120)
        caplog.clear()
        await asyncio.sleep(600)
        assert not caplog.records, "an idle broker that is well says nothing"
        await life.stop()

    caplog.set_level(logging.INFO)
    run_fast(scenario(), timeout_s=HOUR_S)


# --- produces that find no room --------------------------------------------------------------------------------------


class Roomy:
    """No pressure."""

    local_excess_ratio = 0.0


def test_refused_produces_are_counted_each_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand producers that try again are one error line, and one info line when appends go on."""

    async def scenario() -> None:
        life = await Place().start()
        await life.create("log")
        throttle = ProduceBackpressure(life.broker._tasks, Roomy())
        full = LogFull("log-0: no space left; free space below /data, appends go on by themselves")
        for _ in range(1000):
            throttle.refuse(full)
        assert throttle.refused == {AppendRefusal.DISK_FULL: 1000}
        assert [r.levelname for r in caplog.records] == ["ERROR"]
        assert "free space below /data" in caplog.text
        throttle.appended(life.partition("log"))
        assert len(caplog.records) == 1, "another log's append right after a refusal is not the end of it"
        await asyncio.sleep(REFUSALS_OVER_S + 1)
        throttle.appended(life.partition("log"))
        assert caplog.records[-1].getMessage() == "produces are accepted again: none was refused (disk_full) for 6 s"
        await asyncio.sleep(REFUSALS_END_S + 1)
        throttle.refuse(full)
        assert caplog.records[-1].levelname == "ERROR"
        await life.stop()

    caplog.set_level(logging.INFO, "broker.partition.leading.produce_backpressure")
    run_fast(scenario(), timeout_s=HOUR_S)


# --- what lags ------------------------------------------------------------------------------------------------------


def lag(
    name: str, size: int, segments: int, age_ms: int, blocked_by: str | None, blocked_why: str = ""
) -> PartitionLag:
    """A partition and its status."""
    status = TierStatus(
        copy_lag_bytes=size,
        copy_lag_segments=segments,
        copy_lag_ms=age_ms,
        seal_age_ms=0,
        gaps=(),
        blocked_by=blocked_by,
        blocked_why=blocked_why,
        cold_bytes=0,
        remote_end_offset=0,
    )
    return name, status


class Partition:
    """One that lags as it is told."""

    def __init__(self, name: str, segments: int = 0, age_ms: int = 0, blocked_by: str | None = None) -> None:
        self.name = name
        self.looks = 0
        self.segments, self.age_ms, self.blocked_by = segments, age_ms, blocked_by

    def status(self) -> TierStatus:
        self.looks += 1
        return lag(self.name, self.segments * 1_000_000, self.segments, self.age_ms, self.blocked_by)[1]


def test_who_has_nothing_left_to_copy_is_looked_at_no_more() -> None:
    """An idle broker with thousands of partitions costs nothing."""
    backlog = Backlog()
    idle, late = Partition("idle-0"), Partition("late-0", 2, LAG_LOGGED_MS)
    for each in (idle, late, late):
        backlog.note(each)
    for _ in range(3):
        assert [name for name, _ in backlog.lagging()] == ["late-0"]
    assert (idle.looks, late.looks) == (1, 3)
    late.segments = 0
    assert backlog.lagging() == backlog.lagging() == []
    assert late.looks == 4
    backlog.note(late)
    backlog.forget(late)
    assert backlog.lagging() == [] and late.looks == 4


def test_what_is_on_its_way_needs_no_words() -> None:
    """A segment that was sealed a moment ago is no lag; one that is blocked is, whatever its age."""
    assert lag_message([]) is None
    assert lag_message([lag("a-0", 10, 1, LAG_LOGGED_MS - 1, None)]) is None
    assert lag_message([lag("a-0", 0, 0, 0, "reservation")]) is not None
    line = lag_message([lag("a-0", 3_000_000, 3, 90_000, "store"), lag("b-0", 1_000_000, 1, 10, None)])
    assert line == (
        "tiering lags: 4.0 MB are not in the bucket (sealed segments: 4, partitions: 2), the oldest for 90 s; "
        "blocked by store (1): a-0"
    )
    told = lag_message([lag("a-0", 1, 1, 90_000, "store", "PUT x: 403 AccessDenied")])
    assert told is not None and told.endswith("blocked by store (1): a-0; PUT x: 403 AccessDenied")
    many = [lag(f"p-{at}", 1, 1, LAG_LOGGED_MS, "store") for at in range(1000)]
    assert len(lag_message(many) or "") < 250


# --- any line of code -------------------------------------------------------------------------------------------------


def record(line: int, created_s: float, text: str = "append of %d writes") -> logging.LogRecord:
    made = logging.LogRecord("broker", logging.WARNING, "writer.py", line, text, (3,), None)
    made.created = created_s
    return made


def test_one_line_of_code_is_no_flood() -> None:
    """Ten of a kind a minute; others are not held back by them; the next one says how many were left out."""
    calm = NoFlood()
    passed = [calm.filter(record(7, 1000 + at / 100)) for at in range(500)]
    assert passed == [True] * LINES_MAX + [False] * (500 - LINES_MAX)
    assert calm.filter(record(8, 1005))
    later = record(7, 1000 + WINDOW_S)
    assert calm.filter(later)
    assert later.getMessage() == "append of 3 writes (490 lines like it were left out before)"
    after = record(7, 1001 + WINDOW_S)
    assert calm.filter(after) and after.getMessage() == "append of 3 writes"
    assert calm.filter(record(7, 500)), "a clock that went back holds nothing back"
