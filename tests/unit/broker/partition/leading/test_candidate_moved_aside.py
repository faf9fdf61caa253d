"""A damaged log that is moved aside when its role ends is no candidate in the next role: the answer named records that
lay there no more, and the other replica was cut to nothing (R20)."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from broker.controller.unclean_recovery import Candidate, Question, best
from broker.controller.unclean_recovery_manager import request_of
from broker.metadata.image import ClusterImage
from broker.metadata.records import NO_LEADER
from broker.partition.leading import unclean_candidates
from broker.partition.removing.stray_logs import StrayLogs
from logformat.record_batch import walk
from seams.files.disk import read_file
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, Pair, both, until
from tests.unit.broker.partition.late_work.test_late_threads import slow
from tests.unit.broker.partition.leading.test_unclean_start import begin, done, values

LOG = f"/data/a/{NAME}-0/00000000000000000000.log"


@pytest.fixture(autouse=True)
def logs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start of these brokers knows an image without the topic: the test is the controller."""

    async def move_all(_: StrayLogs, __: ClusterImage) -> None:
        pass

    monkeypatch.setattr(StrayLogs, "move_all", move_all)


def said(pair: Pair, node_id: int) -> Candidate | None:
    """What it answers a controller that looks for who has most."""
    question = Question((TOPIC_ID, 0), NAME, pair.row.leader_epoch)
    answer = unclean_candidates.answer(pair.lives[node_id].context.registry, request_of([question]))
    part = answer.topics[0].partitions[0]
    return None if part.error_code else Candidate(part.seen_epoch, part.high_watermark, part.usable_end)


async def stopped_with_damage() -> Pair:
    """1 stopped with three records, which 2 has too. 2 led after that, and stopped with eight; the last is damaged."""
    pair = await both()
    for number in range(3):
        assert (await pair.lives[1].produce(NAME, b"%d" % number)).error_code == 0
    await until(lambda: pair.followed(2).high_watermark == 3, "2 knows")  # type: ignore[union-attr]
    pair.elect(2, (2,))
    pair.publish(2)  # 1 hears of nothing until later, and holds three
    await until(lambda: pair.leads(2), "2 leads")
    await pair.lives.pop(1).crash()
    for number in range(3, 8):
        assert (await pair.lives[2].produce(NAME, b"%d" % number)).error_code == 0
    await pair.lives.pop(2).stop()
    disk = pair.places[2].disk
    at, header = list(walk(read_file(disk, LOG)))[-1]
    disk.flip_bit(LOG, at + header.size - 1, 2)
    return pair


async def test_a_log_that_went_aside_for_a_role_that_is_over_is_no_candidate() -> None:
    pair = await stopped_with_damage()
    third = replace(pair.session(1), node_id=3, broker_epoch=pair.image.next_broker_epoch)
    # A third one has all of it, and leads; the others are out of the set.
    pair.note(third)
    pair.change(replicas=(3, 2, 1), leader=3, leader_epoch=pair.row.leader_epoch + 1, in_sync=(3,))
    await pair.start(1)
    await pair.start(2)
    began = slow(pair.lives[2], "move_stray")
    pair.publish()
    await until(lambda: bool(began), "it goes aside")
    # The third is lost for good, and nobody is in sync.
    pair.note(replace(third, active=False))
    pair.elect(NO_LEADER, ())
    pair.publish()
    await until(lambda: said(pair, 1) is not None, "1 says what it holds")
    await asyncio.sleep(30.0)  # it is aside by now
    assert any(name.endswith("-stray") for name in pair.places[2].disk.list_dir("/data/a"))
    heard = {node_id: one for node_id in (1, 2) if (one := said(pair, node_id)) is not None}
    chosen = best(pair.row, heard)
    await begin(pair, chosen)
    done(pair)
    await until(lambda: pair.leads(chosen), "it serves")
    assert await values(pair, chosen) == [(0, b"0"), (1, b"1"), (2, b"2")], f"{chosen} was chosen of {heard}"
    await pair.stop()
