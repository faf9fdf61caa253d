"""A thread that works by a log's path, or a job that goes on, is over before the path is another log's: a topic that is
deleted and made again keeps what was acknowledged in it (C9)."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.metadata.records import Row, TopicCreated, TopicDeleted
from logformat.errors import Fenced
from seams.files.disk import read_file
from seams.loop.workers import Lane
from tests.support.brokers.broker_kit import Life, Place
from tests.support.brokers.cluster_kit import id_of
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, Pair, both, until
from tests.support.store.faulty_store import FaultPlan

AGAIN = id_of(78)
TIERED = {"remote.storage.enable": "true"}


def slow(life: Life, name: str, *, times: int = 1, seconds: float = 20.0) -> list[str]:
    """The next calls of a blocking function of this name take so long; a thread that began is not undone."""
    loop, began, run = asyncio.get_running_loop(), [], life.workers.run

    async def held(function: Any, *args: Any, lane: Lane = Lane.FILES) -> Any:
        if getattr(function, "__name__", "") != name or len(began) >= times:
            return await run(function, *args, lane=lane)
        future = loop.create_future()

        def work() -> None:
            try:
                found = function(*args)
            except Exception as failed:  # noqa: BLE001
                if not future.done():
                    future.set_exception(failed)
            else:
                if not future.done():
                    future.set_result(found)

        began.append(name)
        loop.call_later(seconds, work)
        return await future

    life.workers.run = held  # type: ignore[method-assign]
    return began


def segments(place: Place, name: str = NAME) -> list[str]:
    return sorted(found for found in place.disk.list_dir(f"/data/a/{name}-0") if found.endswith(".log"))


async def made_again(pair: Pair, leader: int) -> None:
    """The topic is deleted, and one of its name made that `leader` holds alone; five records are acknowledged."""
    life = pair.lives[leader]
    pair.note(TopicDeleted(TOPIC_ID))
    pair.publish()
    await asyncio.sleep(0.2)
    pair.note(TopicCreated(AGAIN, NAME, (Row((leader,), leader, 0, 0, (leader,), 0),), {}))
    pair.publish()

    def leads() -> bool:
        found = life.context.registry.partitions.get((NAME, 0))
        return found is not None and found.leading and str(found.topic_id) == AGAIN

    await until(leads, "the new one is led")
    for _ in range(5):
        assert (await life.produce(NAME, b"acked")).error_code == 0


async def expiring(pair: Pair, node_id: int) -> None:
    """Records go, and this broker unlinks what held them, for 20 s."""
    for number in range(40):
        assert (await pair.lives[1].produce(NAME, b"%03d" % number + b"x" * 100)).error_code == 0
    await until(lambda: pair.followed(2).follower.end == 40, "copied")  # type: ignore[union-attr]
    began = slow(pair.lives[node_id], "unlink")
    assert (await pair.delete_records(1, 20, 8000)).error_code in (0, 7)
    await until(lambda: bool(began), "an unlink is under way")


async def test_a_follower_s_retention_takes_no_file_of_the_next_topic_of_the_name() -> None:
    """Its thread went on by path: the new topic's acknowledged file was unlinked, and missed at the next start."""
    pair = await both(internal_segment_bytes="1000")
    await expiring(pair, 2)
    await made_again(pair, 2)
    await asyncio.sleep(25.0)
    assert segments(pair.places[2]) == [f"{0:020}.log"]
    await pair.stop()


async def test_a_leader_s_retention_that_is_cut_off_twice_takes_no_file_of_the_next_topic_of_the_name() -> None:
    """Once as it resigns, once as the topic is withdrawn: the second let go of the thread."""
    pair = await both(internal_segment_bytes="1000")
    await expiring(pair, 1)
    pair.elect(2, (1, 2))
    pair.publish()
    await asyncio.sleep(0.2)
    await made_again(pair, 1)
    await asyncio.sleep(25.0)
    assert segments(pair.places[1]) == [f"{0:020}.log"]
    await pair.stop()


async def test_a_reservation_that_a_copy_removes_is_not_the_next_topic_s() -> None:
    """The role that removed it ended, and its thread took the file of the log made next."""
    pair = await both()
    assert (await pair.lives[1].produce(NAME, b"x")).error_code == 0
    await until(lambda: pair.followed(2).follower.end == 1, "copied")  # type: ignore[union-attr]
    began = slow(pair.lives[1], "remove_reservation")
    pair.elect(2, (1, 2))
    pair.publish()
    await until(lambda: bool(began), "it is being removed")
    await made_again(pair, 1)
    await asyncio.sleep(25.0)
    assert pair.places[1].disk.stat("/data/a/log-0/thermocline-reservation") is not None
    await pair.stop()


async def alone(*names: tuple[str, int]) -> tuple[Place, Life]:
    place = Place()
    life = await place.start()
    for name, partitions in names:
        await life.context.controller.create_topic(name, partitions, TIERED)
    await until(lambda: len(life.context.registry.partitions) == sum(count for _, count in names), "all are led")
    return place, life


async def again(life: Life, name: str, count: int) -> None:
    await life.context.controller.delete_topic(name)
    await life.context.controller.create_topic(name, 1, TIERED)
    await until(lambda: (name, 0) in life.context.registry.partitions, "it is led again")
    for _ in range(count):
        assert (await life.produce(name, b"new")).error_code == 0


async def test_a_seal_that_waited_for_its_turn_makes_no_segment_among_the_next_topic_s() -> None:
    """64 others were sealed first. The partition was refused by the next start: a segment in the middle of another."""
    place, life = await alone(("a-wide", 64), ("t", 1))
    for index in range(64):
        assert (await life.produce("a-wide", b"x", index=index)).error_code == 0
    for _ in range(7):
        assert (await life.produce("t", b"old")).error_code == 0
    place.store.plan = FaultPlan(latency_s=(0.8, 0.8))
    tiers = life.tiers
    seal = asyncio.ensure_future(tiers.seal_all(None))
    await asyncio.sleep(0.5)
    await again(life, "t", 12)
    place.store.plan = FaultPlan()
    await asyncio.wait([seal], timeout=60.0)
    assert not isinstance(seal.exception(), AssertionError), "it was refused before it came late"
    await life.stop()
    place.kill()
    life = await place.start()
    assert not life.replicas.damaged  # type: ignore[union-attr]
    assert len(await life.read_all("t")) == 12
    await life.crash()


async def test_a_seal_that_gives_a_reservation_back_writes_none_over_the_next_topic_s() -> None:
    """A gap of 2^20 offsets was declared by the next start, and a loss told that never was."""
    place, life = await alone(("t", 1))
    for _ in range(7):
        assert (await life.produce("t", b"old")).error_code == 0
    await asyncio.sleep(2.0)
    began, tiers = slow(life, "write_reservation"), life.tiers
    assert tiers is not None
    seal = asyncio.ensure_future(tiers.seal_all(["t"]))
    await until(lambda: bool(began), "it gives back")
    await again(life, "t", 5)
    topic_id = str(life.partition("t").topic_id)
    await asyncio.wait([seal], timeout=60.0)
    seal.exception()
    assert topic_id.encode() in read_file(place.disk, "/data/a/t-0/thermocline-reservation")
    await life.crash()
    place.kill()
    life = await place.start()
    assert (await life.produce("t", b"next")).base_offset == 5
    await life.crash()


async def test_a_seal_is_over_when_its_tier_is_closed() -> None:
    """A tier that closes ends its seals, also one that waits for a bucket which does not answer."""
    place, life = await alone(("t", 1))
    assert (await life.produce("t", b"old")).error_code == 0
    tiers = life.tiers
    place.store.down = True
    seal = asyncio.ensure_future(tiers.seal_all(["t"]))
    await asyncio.sleep(5.0)
    assert not seal.done()
    await life.partition("t").tier.close()
    assert seal.done() and isinstance(seal.exception(), Fenced)
    place.store.down = False
    await life.crash()
