"""What clients see of `cleanup.policy=compact`: produce wants keys, retention and DeleteRecords want delete.

Codes and texts are those Apache Kafka 4.3.1 answered to the same requests.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.handlers.produce import produce
from broker.handlers.produce.produce import RECORD_ERRORS_MAX
from broker.net.dispatch import Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import ProduceRequest, ProduceRequestPartition, ProduceRequestTopic, ProduceResponsePartition
from logformat.record_batch import HEADER_SIZE, Codec, read_header
from logformat.records import Record, encode_batch
from seams.loop.workers import Lane
from tests.fuzz.targets.record_batch import resealed
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.broker_kit import NEWEST, SMALL_SEGMENTS, Life, Place, parts_of, produce_request
from tests.support.wire.proportion import CALLS_MAX, cost_of
from tests.unit.broker.handlers.test_broker_admin import TOPIC, altered
from tests.unit.broker.handlers.test_delete_records import cut, outcome

SET, DELETE, APPEND, SUBTRACT = range(4)
COMPACT = {"cleanup_policy": "compact"}
INVALID = int(ErrorCode.INVALID_RECORD)
SAID = "Compacted topic cannot accept message without key in topic partition log-0"


def batch(*keys: bytes | None, at_ms: int = EPOCH_MS, **how: Any) -> bytes:
    return encode_batch([Record(at, at_ms, key, b"v") for at, key in enumerate(keys)], **how)


def refusal(count: int, *named: int) -> str:
    """As Kafka says it."""
    each = ", ".join(f"RecordError(batchIndex={at}, message='{SAID}')" for at in named)
    return (
        f"One or more records have been rejected due to {count} record errors in total, and only showing the first "
        f"three errors at most: [{each}]"
    )


async def sent(life: Life, batch: bytes, version: int = 9) -> ProduceResponsePartition:
    response = await life.call(ApiKey.PRODUCE, produce_request("log", batch), version)
    part: ProduceResponsePartition = response.responses[0].partition_responses[0]
    return part


def told(part: ProduceResponsePartition) -> tuple[Any, ...]:
    named = [(error.batch_index, error.batch_index_error_message) for error in part.record_errors]
    return part.error_code, part.base_offset, part.log_append_time_ms, part.log_start_offset, part.error_message, named


async def started(*settings: str, **configs: str) -> Life:
    life = await Place(*settings).start()
    await life.create("log", **(COMPACT | configs))
    await asyncio.sleep(1)
    return life


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("how", [{}, {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}])
async def test_a_record_without_key_is_refused_with_its_whole_batch(codec: Codec, how: dict[str, int]) -> None:
    """INVALID_RECORD, each such record named, in every codec; the next batch takes the offset."""
    life = await started()
    answer = told(await sent(life, batch(b"a", b"b", None, b"c", b"d", codec=codec, **how)))
    assert answer == (INVALID, -1, -1, 0, refusal(1, 2), [(2, SAID)])
    answer = told(await sent(life, batch(None, None, None, None, None, codec=codec, **how)))
    assert answer == (INVALID, -1, -1, 0, refusal(5, 0, 1, 2), [(at, SAID) for at in range(5)])
    assert told(await sent(life, batch(b"", b"k", codec=codec, **how)))[:2] == (0, 0)
    await life.stop()


async def test_older_versions_have_the_code_alone() -> None:
    """Names and message came with Produce 8."""
    life = await started()
    assert told(await sent(life, batch(None), 8)) == (INVALID, -1, -1, 0, refusal(1, 0), [(0, SAID)])
    assert told(await sent(life, batch(None), 7)) == (INVALID, -1, -1, 0, None, [])
    await life.stop()


async def test_tombstones_are_taken_and_times_judged_first() -> None:
    """A key without value is what deletes; of a batch late and without key Kafka answers INVALID_TIMESTAMP."""
    life = await started()
    assert (await sent(life, encode_batch([Record(0, EPOCH_MS, b"k", None)]))).error_code == 0
    late = EPOCH_MS + 10**9
    assert (await sent(life, batch(None, b"k", at_ms=late))).error_code == ErrorCode.INVALID_TIMESTAMP
    records = [Record(0, EPOCH_MS, b"k", b""), Record(1, EPOCH_MS, None, b""), Record(2, late, b"k", b"")]
    assert (await sent(life, encode_batch(records))).error_code == ErrorCode.INVALID_TIMESTAMP
    await life.stop()


async def test_records_that_the_cleaner_could_not_read_are_refused() -> None:
    """Under a right CRC: any client could keep a log from ever being cleaned."""
    life = await started()
    whole = batch(b"a", b"b", b"c")
    damaged = resealed(whole[: HEADER_SIZE + 1] + b"\x7f" + whole[HEADER_SIZE + 2 : -1] + b"\x02")
    answer = await sent(life, damaged)
    assert answer.error_code == INVALID
    assert life.partition("log").log.log_end_offset == 0
    await life.create("plain")
    await asyncio.sleep(1)
    response = await life.call(ApiKey.PRODUCE, produce_request("plain", damaged))
    assert response.responses[0].partition_responses[0].error_code == 0
    await life.stop()


async def test_a_run_of_requests_ends_before_the_one_without_key() -> None:
    """The fast path takes what has keys, and the general path refuses the next; topics that are not compacted take
    both."""
    life = await started()
    await life.create("plain")
    await asyncio.sleep(1)
    for topic, taken in (("log", 2), ("plain", 4)):
        peer = Peer(7, "127.0.0.1:50001", "PLAINTEXT")
        for _ in range(3):
            await life.call(ApiKey.PRODUCE, produce_request(topic, batch(b"k")), peer=peer)
        requests = [produce_request(topic, batch(key)) for key in (b"a", b"b", None, b"c")]
        count, _ = life.dispatch_run(
            [life.frame(ApiKey.PRODUCE, NEWEST[ApiKey.PRODUCE], one) for one in requests], peer
        )
        assert count == taken
        await asyncio.sleep(1)
        assert life.partition(topic).log.log_end_offset == 3 + taken
    await life.stop()


async def test_the_policy_changes_on_a_living_topic_for_a_connection_that_knows_it() -> None:
    """delete → compact → delete, with the requests of one peer before, between and after."""
    life = await started(cleanup_policy="delete")
    codes = []
    for policy in ("delete", "compact", "compact,delete", "delete", ""):
        assert await altered(life, (TOPIC, "log", [("cleanup.policy", SET, policy)])) == [(0, None)]
        await asyncio.sleep(1)
        codes.append([(await sent(life, batch(None))).error_code for _ in range(3)])
    assert codes == [[0] * 3, [INVALID] * 3, [INVALID] * 3, [0] * 3, [0] * 3]
    await life.stop()


def rows(count: int, *keys: bytes | None, **how: Any) -> ProduceRequest:
    data = [
        ProduceRequestPartition(index=index, records=memoryview(bytearray(batch(*keys, **how))))
        for index in range(count)
    ]
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[ProduceRequestTopic(name="log", partition_data=data)])


@pytest.mark.not_fast
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_records_are_not_looked_into_on_the_loop(codec: Codec) -> None:
    """1 MiB of small records in one batch, and in many: a worker reads all but a thousand."""
    life = await started()
    await sent(life, batch(b"k"))
    many = batch(*[b"k"] * 60_000, codec=codec)
    cost = await cost_of(life, life.frame(ApiKey.PRODUCE, 9, produce_request("log", many)), memory=False)
    assert cost.calls < CALLS_MAX / 60
    assert life.partition("log").log.log_end_offset == 60_001
    await life.stop()


def lanes_noted(life: Life) -> list[Lane]:
    """The lanes of the worker calls from now on."""
    lanes: list[Lane] = []
    run = life.workers.run

    def noted(*arguments: Any, lane: Lane = Lane.FILES) -> Any:
        lanes.append(lane)
        return run(*arguments, lane=lane)

    life.workers.run = noted  # type: ignore[method-assign]
    return lanes


async def test_of_many_small_batches_the_loop_reads_a_thousand_records() -> None:
    """40 batches of 150 records in one request: six on the loop, the others by a worker; all are appended."""
    life = await Place().start()
    await life.create("log", 40, **COMPACT)
    await asyncio.sleep(1)
    lanes = lanes_noted(life)
    response = await life.call(ApiKey.PRODUCE, rows(40, *[b"k"] * 150))
    assert {part.error_code for part in response.responses[0].partition_responses} == {0}
    assert all(life.partition("log", index).log.log_end_offset == 150 for index in range(40))
    assert lanes.count(Lane.RECORDS) == 34
    await life.stop()


@pytest.mark.parametrize(
    ("settings", "configs"),
    [([], COMPACT), (["thermocline.validate.records=true"], {})],
    ids=["compacted", "validated"],
)
async def test_many_headers_are_not_looked_into_on_the_loop(settings: list[str], configs: dict[str, str]) -> None:
    """Regression: a produced record of 1 MB of headers held the loop for 0.4 s, and a request may have many such
    batches."""
    life = await Place(*settings).start()
    await life.create("log", **configs)
    await asyncio.sleep(1)
    lanes = lanes_noted(life)
    for headers in 50_000, 100_000:
        ugly = encode_batch([Record(0, EPOCH_MS, b"k", b"v", (("", None),) * headers)])
        assert (await sent(life, ugly)).error_code == 0
        assert lanes.count(Lane.RECORDS) == (headers > 50_000)
    assert life.partition("log").log.log_end_offset == 2
    await life.stop()


async def test_the_records_of_users_are_looked_into_in_turn() -> None:
    """Regression: one thread reads the records, in the order of arrival, and a user with ten connections and batches of
    1.2 KB that decompress to 12 MiB delayed every other user's batch by ten seconds."""
    life = await started()
    may_read, counts, run = asyncio.Event(), [], life.workers.run

    async def noted(function: Any, *arguments: Any, lane: Lane = Lane.FILES) -> Any:
        if lane is Lane.RECORDS:
            counts.append(read_header(function.args[0]).record_count)
            await may_read.wait()
        return await run(function, *arguments, lane=lane)

    life.workers.run = noted  # type: ignore[method-assign]
    asked = [
        life.dispatch(
            ApiKey.PRODUCE,
            produce_request("log", batch(*[b"k"] * number, codec=Codec.LZ4)),
            peer=Peer(number, f"10.0.0.{3 if number == 9 else 2}:{number}", life.peer.listener),
        )
        for number in range(1, 10)
    ]
    await asyncio.sleep(1)
    may_read.set()
    for answer in asked:
        assert await parts_of(answer)
    assert counts == [1, 2, 9, 3, 4, 5, 6, 7, 8]
    await life.stop()


async def test_a_batch_that_is_not_looked_into_in_its_time_is_refused_alone() -> None:
    """Regression: its connection was closed after a minute, with the answers to earlier batches of the request."""
    life = await started()
    may_read, run = asyncio.Event(), life.workers.run

    async def noted(function: Any, *arguments: Any, lane: Lane = Lane.FILES) -> Any:
        if lane is Lane.RECORDS:
            await may_read.wait()
        return await run(function, *arguments, lane=lane)

    life.workers.run = noted  # type: ignore[method-assign]
    keyed = batch(b"k", codec=Codec.LZ4)
    first = asyncio.create_task(sent(life, keyed))
    second = asyncio.create_task(sent(life, keyed))
    late = await second
    assert late.error_code == ErrorCode.REQUEST_TIMED_OUT and "send it again" in str(late.error_message)
    assert not first.done()
    may_read.set()
    assert [(await first).base_offset, (await sent(life, keyed)).base_offset] == [0, 1]
    await life.stop()


async def test_a_response_names_a_bounded_number_of_records() -> None:
    """Kafka names them all; here a thousand, and the message counts them."""
    life = await Place().start()
    await life.create("log", 3, **COMPACT)
    await asyncio.sleep(1)
    response = await life.call(ApiKey.PRODUCE, rows(3, *[None] * 700))
    parts = response.responses[0].partition_responses
    assert [len(part.record_errors) for part in parts] == [700, RECORD_ERRORS_MAX - 700, 0]
    assert all("due to 700 record errors" in part.error_message for part in parts)
    await life.stop()


@pytest.mark.parametrize(
    ("policy", "code"),
    [("compact", int(ErrorCode.POLICY_VIOLATION)), ("compact,delete", 0), ("delete", 0), ("", 0)],
)
async def test_delete_records_needs_delete_in_a_compacted_topic(policy: str, code: int) -> None:
    """As Kafka: an empty policy allows it too."""
    life = await started(cleanup_policy=policy)
    await sent(life, batch(b"a", b"b", b"c"))
    assert await outcome(life, cut((0, 2))) == [(0, code, -1 if code else 2)]
    await life.stop()


@pytest.mark.parametrize("tiered", ["true", "false"])
@pytest.mark.parametrize(("policy", "expires"), [("compact", False), ("compact,delete", True)])
async def test_only_a_policy_with_delete_expires(tiered: str, policy: str, expires: bool) -> None:
    """By time and size, in both tiers, whatever retention.* says; switched to delete, the living topic expires."""
    configs = {"internal_segment_bytes": "1000", "retention_ms": "60000", "retention_bytes": "2000"}
    life = await started(cleanup_policy=policy, remote_storage_enable=tiered, **configs)
    for _ in range(40):
        assert (await sent(life, batch(b"k" * 200))).error_code == 0
    await asyncio.sleep(900)
    assert (life.partition("log").log_start_offset > 0) is expires
    assert await altered(life, (TOPIC, "log", [("cleanup.policy", SET, "delete")])) == [(0, None)]
    await asyncio.sleep(900)
    assert life.partition("log").log_start_offset > 0
    await life.stop()


async def test_local_retention_frees_the_disk_of_a_tiered_compacted_topic() -> None:
    """Copied segments leave the disk; the bucket keeps them, and a consumer reads them."""
    life = await started(retention_ms="60000", **SMALL_SEGMENTS)
    for at in range(40):
        assert (await sent(life, batch(b"%d" % at * 100))).error_code == 0
    await asyncio.sleep(900)
    partition = life.partition("log")
    assert partition.log_start_offset == 0 and partition.log.local_log_start_offset > 0
    assert len(await life.read_all("log")) == 40
    await life.stop()


async def test_a_compacted_topic_is_tiered_only_when_it_says_so() -> None:
    """As in Kafka by default; explicitly it may be, unlike in Kafka. One that was tiered stays so."""
    life = await started()
    await life.create("said", remote_storage_enable="true", **COMPACT)
    await life.create("was")
    assert await altered(life, (TOPIC, "was", [("cleanup.policy", APPEND, "compact")])) == [(0, None)]
    await asyncio.sleep(1)
    configs = {name: life.partition(name).config for name in ("log", "said", "was")}
    assert {name: config.remote_storage_enable for name, config in configs.items()} == {
        "log": False,
        "said": True,
        "was": True,
    }
    assert configs["was"].cleanup_policy == ("delete", "compact")
    assert all(life.partition(name).log.config.compacts for name in configs)
    await life.stop()


async def test_a_batch_that_was_inspected_before_its_topic_was_compacted_is_inspected_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a worker had read its times only, and a record without key was appended to the compacted topic."""
    life = await started(cleanup_policy="delete")
    inspect = produce.inspect_in_worker

    async def compacted_meanwhile(*how: Any) -> produce.Inspections:
        found = await inspect(*how)
        assert found
        await altered(life, (TOPIC, "log", [("cleanup.policy", SET, "compact")]))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(produce, "inspect_in_worker", compacted_meanwhile)
        sarama = {"base_sequence": 0, "codec": Codec.GZIP}  # its times have to be read
        answer = await sent(life, batch(None, b"k", **sarama))
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT, "the producer sends it again"
    assert life.partition("log").log.log_end_offset == 0
    assert (await sent(life, batch(None, b"k", **sarama))).error_code == INVALID
    await life.stop()
