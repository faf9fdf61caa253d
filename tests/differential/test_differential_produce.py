"""Two brokers live the same histories: the short way of Produce makes no difference."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.differential.batches import batch, plain
from tests.differential.brokers import Pair
from tests.differential.history import Burst, Cut, Happening, Kind, Site, Topic, draw, site
from tests.differential.reference import indexes, walk
from tests.differential.requests import Frame, Part, Style, produce
from tests.differential.run import Tally, run_site
from tests.differential.shrink import shrink, told
from tests.sim.world.clock import EPOCH_MS

HISTORIES = 40  # of a site
FIXED = [f"fixed.{number}" for number in range(6)]
FRESH = [f"{os.urandom(4).hex()}.{number}" for number in range(4)]


def live(seeds: list[str]) -> Tally:
    """All sites; a difference fails with what repeats it, made small."""
    total = Tally()
    for seed in seeds:
        try:
            total.add(run_site(seed, range(HISTORIES)))
        except Exception as failure:  # noqa: BLE001 - whatever it is, it is told with what repeats it
            pytest.fail(told(seed, failure, trials=30))
    return total


@pytest.mark.timeout(900)
def test_the_short_way_makes_no_difference_in_the_same_histories_every_time() -> None:
    """240 histories; and they are no idle ones: runs of many lengths, segments that roll, every kind of trouble."""
    tally = live(FIXED)
    assert tally.histories == len(FIXED) * HISTORIES
    assert sum(count for length, count in tally.runs.items() if length > 1) > 200, tally.runs
    assert max(tally.runs) >= 15, tally.runs
    assert tally.batches > 5_000 and tally.segments > 300, tally
    assert len(tally.happened) >= 10, tally.happened


@pytest.mark.timeout(900)
def test_the_short_way_makes_no_difference_in_fresh_histories() -> None:
    """160 histories nobody lived before; a failure prints the seed that repeats it."""
    assert live(FRESH).histories == len(FRESH) * HISTORIES


def test_a_resend_that_is_committed_succeeds_though_the_leadership_ends_before_its_run_is() -> None:
    """It is in one run with a batch that waits for a sync: the short way refused both."""
    assert run_site("e96323ec.1", (34,)).histories == 1


def test_nothing_is_appended_behind_a_request_refused_by_a_worker_with_acks_0() -> None:
    """acks=all requests before it wait for their sync: the long way appended the request behind it."""
    assert run_site("79421b8f.1", (37,)).histories == 1


def test_a_checkpoint_in_the_middle_of_a_step_is_no_difference() -> None:
    """It recorded the high watermark of one way before an acknowledgement, of the other after it."""
    assert run_site("9f4d19a7.2", range(40)).histories == 40


@pytest.mark.parametrize("topics", [("at-once", "flushed"), ("flushed", "at-once")])
async def test_a_run_is_acknowledged_once_all_of_its_partitions_are(topics: tuple[str, str]) -> None:
    """One topic counts the page cache, the other waits for a sync that does not end: neither way answers before it."""
    place = Site(
        (Topic("at-once", 1, {}), Topic("flushed", 1, {"flush.messages": "1"})),
        ("auto.create.topics.enable=false", "thermocline.flush=os"),
    )

    def burst(count: int) -> Burst:
        batches = [Part(topic, 0, bytes(batch(plain(1, 10, 0, False), EPOCH_MS))) for topic in topics]
        frames = [Frame(produce(Style(9, "c", -1, 30_000), batches, number), "") for number in range(count)]
        return Burst(0, frames, Cut.AT_ONCE, False, 0)

    pair = Pair(place)
    await pair.start()
    await pair.perform(burst(1))  # from now on the short way knows them
    for way in pair.ways:
        way.wires[0].answered.clear()
    await pair.perform(Happening(Kind.HOLD))
    await pair.perform(burst(3))
    assert [bytes(way.wires[0].answered) for way in pair.ways] == [b"", b""]
    await pair.perform(Happening(Kind.RELEASE))
    short, long = (bytes(way.wires[0].answered) for way in pair.ways)
    assert short == long != b"" and pair.ways[0].runs[3] == 1
    await pair.close()


def test_a_seed_is_one_history() -> None:
    """Drawn twice it is the same, byte for byte; another one is another."""
    first, again, other = (draw(site(Random("site/x")), seed) for seed in ("x/1", "x/1", "x/2"))
    assert first == again != other


def test_a_difference_is_made_small() -> None:
    """Of many steps and frames those are left without which it is none."""
    steps = draw(site(Random("site/x")), "x/1")
    culprit = next(step for step in steps if isinstance(step, Burst)).frames[-1]

    def differs(fewer: object) -> bool:
        return any(culprit in step.frames for step in fewer if isinstance(step, Burst))  # type: ignore[attr-defined]

    (left,) = shrink(steps, differs, 1000)  # type: ignore[arg-type]
    assert isinstance(left, Burst) and left.frames == [culprit] and left.cut is Cut.AT_ONCE


def test_the_reference_puts_entries_where_kafka_does() -> None:
    """By hand: three batches of 100 bytes' values, an interval that the first two do not exceed together."""
    body = plain(1, 100, 0, False)
    data = bytearray()
    for offset, first_ms in enumerate((5000, 7000, 6000)):
        one = batch(body, first_ms)
        one[:8] = offset.to_bytes(8, "big")
        data += one
    batches = walk(bytes(data), "here")
    size = batches[0].size
    offsets, times = indexes(batches, 0, 2 * size - 1, sealed=False)
    assert offsets == (2).to_bytes(4, "big") + (2 * size).to_bytes(4, "big")
    assert times == (7000).to_bytes(8, "big") + (1).to_bytes(4, "big")
    assert indexes(batches, 0, 2 * size, sealed=False) == (b"", b"")
    assert indexes(batches, 0, 2 * size, sealed=True) == (b"", times)
