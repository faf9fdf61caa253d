"""Fetch over both tiers: what leaves at once, what waits for what and how long, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from broker.error_codes import ErrorCode
from broker.net.dispatch import Answer, Later, Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import FetchResponse
from logformat.records import iter_records
from tests.support.brokers.broker_kit import (
    SMALL_SEGMENTS,
    Life,
    Place,
    batch_of,
    batches_of,
    decoded,
    fetch_request,
    parts_of,
    produce_request,
    values_of,
)
from tests.support.store.faulty_store import FaultPlan

VALUE = b"v" * 150


def now() -> float:
    return asyncio.get_running_loop().time()


async def timed(life: Life, request: object) -> tuple[float, FetchResponse]:
    """How long the answer took in virtual seconds, and the answer."""
    began = now()
    response = await life.call(ApiKey.FETCH, request)
    return now() - began, response


async def sunk(life: Life, topic: str, batches: int = 40) -> int:
    """A topic of small segments whose older ones are in the bucket only; the local log start."""
    await life.create(topic, **SMALL_SEGMENTS)
    for at in range(batches):
        assert (await life.produce(topic, b"%d " % at + VALUE)).base_offset == at
    await asyncio.sleep(60)
    start = life.partition(topic).log.local_log_start_offset
    assert start > 10, "nothing sank"
    return start


async def test_a_fetch_answers_at_once_what_is_there() -> None:
    """Whole batches from the offset asked for; a position inside a batch gets that batch."""
    life = await Place().start()
    await life.create("log")
    await life.produce("log", b"a", b"b", b"c")
    await life.produce("log", b"d")
    took, response = await timed(life, fetch_request(("log", 0, 1), max_wait_ms=10_000))
    part = response.responses[0].partitions[0]
    assert took < 0.1
    assert values_of(part) == [b"a", b"b", b"c", b"d"]
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (4, 4, 0)
    assert part.aborted_transactions is None
    await life.stop()


async def test_nothing_above_the_high_watermark_leaves() -> None:
    """With `sync`, an appended record is not readable before its flush: a power cut could still take it (C11)."""
    life = await Place().start()
    await life.create("log")
    await life.produce("log", b"a")
    life.workers.slow = True  # the flush takes its time
    acked = life.dispatch(ApiKey.PRODUCE, produce_request("log", batch_of(b"b")))
    assert life.partition("log").log.log_end_offset == 2
    assert values_of(await life.fetch("log", 0)) == [b"a"]
    assert batches_of(await life.fetch("log", 1)) == []
    assert await parts_of(acked)
    assert values_of(await life.fetch("log", 0)) == [b"a", b"b"]
    await life.stop()


async def test_design_c11_no_consumer_sees_a_record_that_a_power_cut_takes() -> None:
    """Whatever was fetched before a power cut is there after it, byte for byte, and nothing else at its offset."""
    place = Place()
    life = await place.start()
    await life.create("log")
    for at in range(20):
        life.dispatch(ApiKey.PRODUCE, produce_request("log", batch_of(b"%d" % at), acks=1))
        await asyncio.sleep(0.001)
    seen = batches_of(await life.fetch("log", 0))
    assert 0 < life.partition("log").high_watermark < life.partition("log").log.log_end_offset
    disk = place.disk
    place.power_cut(keep=0.0)
    after = await place.start()
    found = batches_of(await after.fetch("log", 0))
    assert found[: len(seen)] == seen
    await after.stop()
    place.disk = disk
    await life.crash()


async def test_a_long_poll_waits_for_its_time_and_no_longer() -> None:
    """Nothing new: empty after max_wait_ms."""
    life = await Place().start()
    await life.create("log")
    took, response = await timed(life, fetch_request(("log", 0, 0), max_wait_ms=700))
    assert took == pytest.approx(0.7, abs=0.01)
    assert response.responses[0].partitions[0].error_code == 0
    assert not life.partition("log").waiters._watchers
    await life.stop()


async def test_a_long_poll_ends_when_enough_came() -> None:
    """min_bytes: a first small batch does not end it, the one that fills it does, with both."""
    life = await Place().start()
    await life.create("log")
    answer = life.dispatch(ApiKey.FETCH, fetch_request(("log", 0, 0), max_wait_ms=30_000, min_bytes=200))
    assert isinstance(answer, Later)
    await life.produce("log", b"a")
    await asyncio.sleep(1)
    assert not answer.future.done()
    await life.produce("log", b"b" * 200)
    response = decoded(ApiKey.FETCH, 12, await asyncio.wait_for(answer.future, 1))
    assert values_of(response.responses[0].partitions[0]) == [b"a", b"b" * 200]
    await life.stop()


@pytest.mark.parametrize(
    ("configs", "limits"),
    [
        ({}, {"partition_max_bytes": 2000, "min_bytes": 2000}),
        ({}, {"max_bytes": 2000, "min_bytes": 2000}),
        ({}, {"max_bytes": 2000, "min_bytes": 1 << 20}),
        ({"internal_segment_bytes": "1000", "remote_storage_enable": "false"}, {"min_bytes": 5000}),
        (SMALL_SEGMENTS, {"min_bytes": 5000}),
    ],
    ids=["partition limit", "answer limit", "above the answer limit", "older segments", "bucket"],
)
async def test_a_reader_that_is_behind_does_not_wait(configs: dict[str, str], limits: dict[str, int]) -> None:
    """min_bytes near a limit that whole batches never fill, or more than a segment has left: each fetch waited max.wait
    with megabytes ready (2.1 against 500 MB/s). Kafka counts what the limit allows; who is behind waits for nothing."""
    life = await Place().start()
    await life.create("log", **configs)
    for _ in range(60):
        await life.produce("log", b"x" * 300)
    await asyncio.sleep(60)
    took, answer = await timed(life, fetch_request(("log", 0, 0), max_wait_ms=30_000, **limits))
    assert values_of(answer.responses[0].partitions[0])
    assert took < 1
    assert life.partition("log").high_watermark == 60
    tail = fetch_request(("log", 0, 59), max_wait_ms=3_000, **(limits | {"min_bytes": 900}))
    took, _ = await timed(life, tail)
    assert took == pytest.approx(3, abs=0.1)  # at the end of the log min_bytes is waited for as before
    await life.stop()


async def test_min_bytes_0_never_waits() -> None:
    """fetch.min.bytes=0 is Kafka's way to say "answer with what there is"."""
    life = await Place().start()
    await life.create("log")
    took, _ = await timed(life, fetch_request(("log", 0, 0), max_wait_ms=10_000, min_bytes=0))
    assert took < 0.1
    await life.stop()


async def test_a_poll_nobody_waits_for_any_more_leaves_nothing_behind() -> None:
    """A topic deleted under a long poll answers it by its error, at once."""
    life = await Place().start()
    await life.create("log")
    answer = life.dispatch(ApiKey.FETCH, fetch_request(("log", 0, 0), max_wait_ms=30_000))
    await life.context.controller.delete_topic("log")
    assert isinstance(answer, Later)
    response = decoded(ApiKey.FETCH, 12, await asyncio.wait_for(answer.future, 1))
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await life.stop()


async def test_a_poll_without_a_wait_is_answered_while_it_is_dispatched() -> None:
    """max_wait_ms=0: no timer, no task, no turn of the loop."""
    life = await Place().start()
    await life.create("log")
    assert not isinstance(life.dispatch(ApiKey.FETCH, fetch_request(("log", 0, 0), max_wait_ms=0)), Later)
    await life.stop()


async def test_limits_hold_but_for_the_first_batch() -> None:
    """KIP-74: at least one batch comes, whatever the limits; after it they hold, over all partitions."""
    life = await Place().start()
    await life.create("log", 2)
    for index in (0, 1):
        for _ in range(5):
            await life.produce("log", VALUE, index=index)
    size = len(batch_of(VALUE))
    request = fetch_request(("log", 0, 0), ("log", 1, 0), max_bytes=1)
    sizes = [len(p.records) for p in (await life.call(ApiKey.FETCH, request)).responses[0].partitions]
    assert sizes == [size, 0]
    request = fetch_request(("log", 0, 0), ("log", 1, 0), max_bytes=3 * size, partition_max_bytes=2 * size)
    sizes = [len(p.records) for p in (await life.call(ApiKey.FETCH, request)).responses[0].partitions]
    assert sizes == [2 * size, size]
    request = fetch_request(("log", 0, 0), partition_max_bytes=0)
    assert len((await life.call(ApiKey.FETCH, request)).responses[0].partitions[0].records) == size
    await life.stop()


@pytest.mark.parametrize(
    ("offset", "code"),
    [(-1, ErrorCode.OFFSET_OUT_OF_RANGE), (0, ErrorCode.NONE), (3, ErrorCode.NONE), (4, ErrorCode.OFFSET_OUT_OF_RANGE)],
)
async def test_offsets_outside_the_log_are_out_of_range(offset: int, code: ErrorCode) -> None:
    """The end itself is a place to wait at; one beyond it is not."""
    life = await Place().start()
    await life.create("log")
    await life.produce("log", b"a", b"b", b"c")
    part = await life.fetch("log", offset)
    assert part.error_code == code
    await life.stop()


async def test_a_client_cannot_pose_as_a_replica() -> None:
    """Replica ids are for replicas: there are none yet. −2 is Kafka's debugging consumer."""
    life = await Place().start()
    await life.create("log")
    for replica_id, code in ((1, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), (-2, ErrorCode.NONE)):
        assert (await life.fetch("log", 0, replica_id=replica_id)).error_code == code
    await life.stop()


async def test_leader_epochs_are_compared() -> None:
    """KIP-320: an older idea of the leader is fenced, a newer one is unknown here, the right one and none are fine."""
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.stop()
    life = await place.start()
    mine = life.partition("log").leader_epoch
    assert mine == 1
    for epoch, code in (
        (mine - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (mine, ErrorCode.NONE),
        (-1, ErrorCode.NONE),
        (mine + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        assert (await life.fetch("log", 0, current_leader_epoch=epoch)).error_code == code
    await life.stop()


async def test_a_reader_of_a_truncated_past_is_told_where_it_diverged() -> None:
    """KIP-595: epoch 0 ended at 2 here; a reader that claims to have read epoch 0 up to 5 gets that end."""
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.produce("log", b"a", b"b")
    await life.stop()
    life = await place.start()
    await life.produce("log", b"c", b"d", b"e", b"f")
    part = await life.fetch("log", 5, last_fetched_epoch=0, max_wait_ms=10_000)
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 2)
    assert part.error_code == 0
    assert not batches_of(part)
    part = await life.fetch("log", 2, last_fetched_epoch=0)
    assert values_of(part) == [b"c", b"d", b"e", b"f"]
    assert part.diverging_epoch is None
    await life.stop()


async def test_read_committed_gets_a_list_of_aborted_transactions() -> None:
    """Empty, not null: clients iterate over it."""
    life = await Place().start()
    await life.create("log")
    await life.produce("log", b"a")
    part = await life.fetch("log", 0, isolation_level=1)
    assert part.aborted_transactions == []
    assert values_of(part) == [b"a"]
    await life.stop()


# --- the cold tier --------------------------------------------------------------------------------------------------


async def test_one_log_over_both_tiers() -> None:
    """From offset 0, long gone from the disk, to the end: every record once, in order."""
    life = await Place().start()
    await sunk(life, "log")
    found = await life.read_all("log")
    assert found == [(at, b"%d " % at + VALUE) for at in range(40)]
    await life.stop()


async def test_a_hot_partition_is_answered_while_a_cold_one_loads() -> None:
    """kafka#20045: the slow bucket delays the cold partition only."""
    place = Place()
    life = await place.start()
    await sunk(life, "deep")
    await life.create("hot")
    await life.produce("hot", b"now")
    place.store.plan = FaultPlan(latency_s=(2.0, 2.0))
    request = fetch_request(("deep", 0, 0), ("hot", 0, 0), max_wait_ms=500)
    took, response = await timed(life, request)
    assert took < 0.2
    assert [len(topic.partitions[0].records or b"") > 0 for topic in response.responses] == [False, True]
    place.store.calm()
    await life.stop()


async def test_a_cold_read_that_outlives_its_fetch_goes_on_into_the_cache() -> None:
    """The fetch ends empty after its wait; the next poll finds the chunk without asking the bucket again."""
    place = Place("remote.fetch.max.wait.ms=500")
    life = await place.start()
    await sunk(life, "deep")
    place.store.plan = FaultPlan(latency_s=(3.0, 3.0))
    took, response = await timed(life, fetch_request(("deep", 0, 0), max_wait_ms=100))
    assert took == pytest.approx(0.5, abs=0.1)
    part = response.responses[0].partitions[0]
    assert (part.error_code, batches_of(part)) == (0, [])
    await asyncio.sleep(30)
    place.store.down = True
    part = await life.fetch("deep", 0)
    assert next(iter_records(batches_of(part)[0])).value == b"0 " + VALUE
    place.store.down = False
    place.store.calm()
    await life.stop()


async def test_a_missing_object_fails_its_range_retriably_and_nothing_else() -> None:
    """Evidence 6b in small: one object is gone; reads elsewhere go on."""
    place = Place("thermocline.prefetch.bytes=0")
    life = await place.start()
    await sunk(life, "deep")
    keys = sorted(key for key in place.memory.objects if "/segments/" in key and "__consumer" not in key)
    taken = place.memory.objects.pop(keys[1])
    first_missing = int(keys[1].rsplit("/", 1)[1][:20])
    part = await life.fetch("deep", first_missing, max_wait_ms=5000)
    assert ErrorCode(part.error_code).retriable, part.error_code
    for offset in (0, 39):
        part = await life.fetch("deep", offset, max_wait_ms=5000)
        assert (part.error_code, bool(batches_of(part))) == (0, True)
    place.memory.objects[keys[1]] = taken
    await asyncio.sleep(60)
    assert len(await life.read_all("deep")) == 40
    await life.stop()


async def test_a_produce_is_not_delayed_by_cold_readers() -> None:
    """Cold work has its own bounded queue: twenty readers of a bucket that hangs cost a producer nothing."""
    place = Place()
    life = await place.start()
    await sunk(life, "deep")
    await life.create("hot")
    place.store.plan = FaultPlan(latency_s=(60.0, 60.0))
    answers: list[Answer] = []
    for number in range(20):
        request = fetch_request(("deep", 0, number % 8), max_wait_ms=30_000)
        answers.append(life.dispatch(ApiKey.FETCH, request, peer=Peer(100 + number, "", "PLAINTEXT")))
    began = now()
    assert (await life.produce("hot", b"x")).error_code == 0
    assert now() - began < 0.1
    place.store.calm()
    for answer in answers:
        await parts_of(answer)
    await life.stop()
