"""A log counts as closed when no thread works in its directory any more, whoever was cut off from waiting for that."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

from broker.metadata.records import Row, TopicCreated, TopicDeleted
from broker.wire.apis import ApiKey
from broker.wire.messages import ProduceResponsePartition
from hotstore.file_names import TEMPORARY
from hotstore.host.data_dir import DataDir
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.log_loading import recover_log
from logformat.errors import ThermoclineError
from logformat.values import TopicPartition
from seams.loop.workers import Lane
from tests.support.brokers.broker_kit import Life, batch_of, produce_request
from tests.support.brokers.cluster_kit import id_of
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, Pair, both, until
from tests.support.disk.hotstore_kit import batches_of

AGAIN = id_of(78)
TAIL = b"tail" * 30
PRODUCER = 7


def seals_wait(life: Life) -> tuple[list[str], asyncio.Event]:
    """The threads that seal segments begin when the event is set; whoever awaits them may be gone."""
    loop, began, goes_on, run = asyncio.get_running_loop(), [], asyncio.Event(), life.workers.run

    async def held(function: Any, *args: Any, lane: Lane = Lane.FILES) -> Any:
        if type(getattr(function, "__self__", None)).__name__ != "SealJob":
            return await run(function, *args, lane=lane)
        began.append("seal")

        async def work() -> Any:
            await goes_on.wait()
            return await run(function, *args, lane=lane)

        return await asyncio.shield(loop.create_task(work()))

    life.workers.run = held  # type: ignore[method-assign]
    return began, goes_on


async def produce(life: Life, sequence: int) -> ProduceResponsePartition:
    batch = batch_of(TAIL, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
    answer = await life.call(ApiKey.PRODUCE, produce_request(NAME, batch, acks=1), 9)
    found: ProduceResponsePartition = answer.responses[0].partition_responses[0]
    return found


async def torn_while_it_seals() -> tuple[Pair, asyncio.Event]:
    """Broker 1 led and does not know yet that 2 does: it has a tail of its own, of which segments are being sealed. It
    is told, and its disk refuses the cut: its log is torn, and closed."""
    pair = await both("thermocline.flush=os", internal_segment_bytes="1000")
    first, second = pair.lives[1], pair.lives[2]
    for number in range(5):
        assert (await first.produce(NAME, b"%d" % number)).error_code == 0
    pair.elect(2, (2, 1))
    pair.publish(2)
    await until(lambda: pair.leads(2), "the copy leads")
    began, goes_on = seals_wait(first)
    for sequence in range(12):
        assert (await produce(first, sequence)).error_code == 0
    await until(lambda: bool(began), "it seals")
    for number in range(3):
        assert (await second.produce(NAME, b"of two %d" % number, acks=1)).error_code == 0
    disk = pair.places[1].disk
    refused = disk.inject("write", errno.ENOSPC, suffix="recovery-point-offset-checkpoint" + TEMPORARY, times=-1)
    pair.publish(1)
    await until(lambda: refused.struck > 0, "the cut is refused")
    await asyncio.sleep(1.0)
    disk.heal()
    return pair, goes_on


def recovered(pair: Pair, node_id: int) -> PartitionLog:
    """As the next process on its machine finds it."""
    now_ms = pair.lives[node_id].clock.wall_ms()
    pair.places[node_id].kill()
    directory = DataDir.open(pair.places[node_id].disk, "/data/a")
    directory.remove_clean_marker()
    return recover_log(directory, TopicPartition(NAME, 0), LogConfig(), now_ms)


async def test_the_next_topic_of_the_name_begins_when_the_last_thread_of_the_old_one_is_done() -> None:
    """The old topic's producers, indexes and lineage lay in its directory: it refused to start."""
    pair, goes_on = await torn_while_it_seals()
    first = pair.lives[1]
    pair.note(TopicDeleted(TOPIC_ID))
    pair.publish()
    await asyncio.sleep(0.5)
    pair.note(TopicCreated(AGAIN, NAME, (Row((1,), 1, 0, 0, (1,), 0),), {}))
    pair.publish()
    acked = 0
    for _ in range(40):  # it may wait for the thread, or go on elsewhere
        found = first.context.registry.partitions.get((NAME, 0))
        if found is not None and found.leading and str(found.topic_id) == AGAIN and acked < 5:
            acked += (await first.produce(NAME, b"acked")).error_code == 0
        await asyncio.sleep(0.1)
    goes_on.set()
    await asyncio.sleep(5.0)
    await until(lambda: (NAME, 0) in first.context.registry.partitions, "it is led at last")
    if not acked:
        acked += (await first.produce(NAME, b"acked")).error_code == 0
    await first.crash()
    assert acked
    assert recovered(pair, 1).log_end_offset == acked
    await pair.lives[2].stop()


async def test_a_copy_goes_on_in_the_next_epoch_when_the_last_thread_of_the_one_before_is_done() -> None:
    """What the cut tail's producers said was believed after a restart: a batch that is in no log was answered as a
    resend, at another record's offset."""
    pair, goes_on = await torn_while_it_seals()
    first, second = pair.lives[1], pair.lives[2]
    pair.elect(2, (2,))
    pair.publish()
    await until(lambda: pair.leads(2), "it leads on")
    for number in range(12):
        assert (await second.produce(NAME, b"of two %d" % number)).error_code == 0
    await asyncio.sleep(5.0)
    goes_on.set()

    def is_copied() -> bool:
        followed = pair.followed(1)
        return followed is not None and followed.follower.end == 20

    await until(is_copied, "all is copied")
    await asyncio.sleep(5.0)
    await first.crash()
    log = recovered(pair, 1)
    assert log.log_end_offset == 20
    log.begin_epoch(9)
    for sequence in reversed(range(12)):
        data = bytearray(batch_of(TAIL, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence))
        try:
            appended = log.append_as_leader(*batches_of(data), 9, pair.lives[2].clock.wall_ms())
        except ThermoclineError:
            continue  # out of order: nothing is known of this producer
        assert not appended.duplicate, f"sequence {sequence} is in no log, and is answered as a resend"
    await second.stop()
