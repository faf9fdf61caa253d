"""Latencies, topics, offsets, gaps, syncs, the loop and the process in /metrics: right, explained, and bounded."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client.metrics_core import Metric

from broker.metrics.counters import BOUNDS_S, Latencies
from broker.observe.metrics import topics as topics_module
from broker.observe.metrics.process import EVERY_S, LoopLag
from broker.observe.metrics.tiering import TEXTS
from broker.observe.metrics.topics import collect_figures_in_turns
from broker.wire.apis import ApiKey
from broker.wire.messages import MetadataRequest
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place, batch_of, fetch_request, produce_request
from tests.support.brokers.transaction_kit import end, produce_in, with_transactions
from tests.unit.broker.observe.test_broker_observe import metrics_of, sources_of, value


def histogram_of(metrics: dict[str, Metric], family: str, **labels: str) -> dict[str, float]:
    """Bucket bound → cumulative count, and `count` and `sum`."""
    found = {}
    for sample in metrics[family].samples:
        rest = {name: of for name, of in sample.labels.items() if name != "le"}
        if rest == labels:
            found[sample.labels.get("le", sample.name.rpartition("_")[2])] = sample.value
    return found


async def test_requests_are_timed_by_api() -> None:
    """A produce with acks=all waits for its sync, a fetch for its data, as long as virtual time says; each request is
    in one bucket, whichever way it went."""
    life = await Place().start()
    await life.create("log")
    life.workers.slow = True  # syncs take 20 to 600 ms
    for _ in range(10):
        await life.produce("log", b"x")
    life.workers.slow = False
    for _ in range(5):
        await life.produce("log", b"x", acks=1)
    waiting = asyncio.ensure_future(life.fetch("log", 15, max_wait_ms=3000))
    await life.call(ApiKey.METADATA, MetadataRequest(topics=None))
    await waiting
    metrics = metrics_of(life)
    produced = histogram_of(metrics, "thermocline_request_seconds", api="produce")
    assert produced["count"] == value(metrics, "thermocline_requests", api="produce") == 15
    assert 5 <= produced["0.01"] <= 6 and 0.2 <= produced["sum"] <= 6.0
    fetched = histogram_of(metrics, "thermocline_request_seconds", api="fetch")
    assert (fetched["count"], fetched["1.0"], fetched["5.0"]) == (1, 0, 1)
    assert fetched["sum"] == pytest.approx(3.0, abs=0.1)
    assert histogram_of(metrics, "thermocline_request_seconds", api="metadata")["count"] == 1
    synced = histogram_of(metrics, "thermocline_sync_seconds")
    assert synced["count"] >= 10 and 0.2 <= synced["sum"] <= 6.0
    assert value(metrics, "thermocline_sync_failures") == 0
    await life.stop()


async def test_a_run_of_the_fast_path_counts_each_request() -> None:
    """Answered together, timed together, counted one by one."""
    life = await Place().start()
    await life.create("log")
    request = produce_request("log", batch_of(b"x"), acks=1)
    await life.call(ApiKey.PRODUCE, request, 9)
    frames = [life.frame(ApiKey.PRODUCE, 9, request) for _ in range(8)]
    count, _ = life.dispatch_run(frames)
    assert count == 8
    metrics = metrics_of(life)
    assert histogram_of(metrics, "thermocline_request_seconds", api="produce")["count"] == 9
    assert value(metrics, "thermocline_topic_produced_batches", topic="log") == 9
    await life.stop()


async def test_topics_count_what_clients_wrote_and_read() -> None:
    """Bytes, records and batches in; bytes and answers out, of a fetch that names two topics, and of a session."""
    life = await Place().start()
    await life.create("a", 2)
    await life.create("b")
    sizes = {}
    for topic, values in (("a", [b"1", b"2", b"3"]), ("b", [b"4"])):
        await life.produce(topic, *values)
        sizes[topic] = len(batch_of(*values))
    await life.produce("a", b"5", index=1)
    sizes["a"] += len(batch_of(b"5"))
    await life.call(ApiKey.FETCH, fetch_request(("a", 0, 0), ("b", 0, 0)))
    await life.call(ApiKey.FETCH, fetch_request(("a", 1, 0), session_id=0, session_epoch=0))
    metrics = metrics_of(life)
    for topic, records, batches, answers in (("a", 4, 2, 2), ("b", 1, 1, 1)):
        assert value(metrics, "thermocline_topic_produced_bytes", topic=topic) == sizes[topic]
        assert value(metrics, "thermocline_topic_produced_records", topic=topic) == records
        assert value(metrics, "thermocline_topic_produced_batches", topic=topic) == batches
        assert value(metrics, "thermocline_topic_fetched_bytes", topic=topic) == sizes[topic]
        assert value(metrics, "thermocline_topic_fetched_answers", topic=topic) == answers
    await life.stop()


async def test_offsets_and_gaps_are_those_of_the_partitions() -> None:
    """After a lost disk: the gap is counted, and the offsets say where each tier begins and ends."""
    place = Place("thermocline.reservation.offsets=100")
    life = await place.start()
    await life.create("log", **SMALL_SEGMENTS)
    for at in range(30):
        await life.produce("log", b"%d" % at * 60)
    await asyncio.sleep(30)
    await life.crash()
    place.lose_disk()
    life = await place.start()
    await asyncio.sleep(30)
    metrics, partition = metrics_of(life), life.partition("log")
    ((first, end),) = partition.tier.status().gaps
    assert value(metrics, "thermocline_declared_gaps", topic="log") == 1
    assert value(metrics, "thermocline_declared_gap_offsets", topic="log") == end - first > 0
    shown = {
        name: value(metrics, f"thermocline_{name}", topic="log", partition="0")
        for name in ("log_start_offset", "local_log_start_offset", "remote_end_offset", "high_watermark",
                     "log_end_offset", "last_stable_offset_lag")
    }  # fmt: skip
    assert shown == {
        "log_start_offset": 0,
        "local_log_start_offset": partition.log.local_log_start_offset,
        "remote_end_offset": end,
        "high_watermark": end,
        "log_end_offset": end,
        "last_stable_offset_lag": 0,
    }
    await life.stop()


async def test_many_topics_and_partitions_make_bounded_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limits all is added up without a label, so that sums are right whatever is shown."""
    monkeypatch.setattr(topics_module, "TOPICS_MAX", 3)
    monkeypatch.setattr(topics_module, "PARTITIONS_MAX", 4)
    life = await Place().start()
    for at in range(6):
        await life.create(f"log-{at}", 2)
        for _ in range(at + 1):
            await life.produce(f"log-{at}", b"x", index=1)
    metrics = metrics_of(life)
    records = {s.labels["topic"]: s.value for s in metrics["thermocline_topic_produced_records"].samples}
    assert records == {"log-0": 1, "log-1": 2, "log-2": 3, "": 4 + 5 + 6}
    ends = {(s.labels["topic"], s.labels["partition"]): s.value for s in metrics["thermocline_log_end_offset"].samples}
    assert ends == {
        ("log-0", "0"): 0, ("log-0", "1"): 1, ("log-1", "0"): 0, ("log-1", "1"): 2,
        ("log-2", ""): 3, ("", ""): 15,
    }  # fmt: skip
    await life.stop()


async def test_five_thousand_partitions_are_walked_in_turns() -> None:
    """A walk of 100 ms would hold up every produce; no series beyond the limits."""
    life = await Place().start()
    for at in range(10):
        await life.create(f"log-{at}")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.get_running_loop().create_task(others())
    looked = await collect_figures_in_turns(tuple(life.context.registry) * 500)
    beside.cancel()
    assert len(looked.found) == 5000
    assert turns >= 20, "others had the loop in between"
    assert sum(len(family.samples) for family in looked.families()) <= 13 * 201 + 5 * (500 + 201)
    await life.stop()


async def test_what_tiering_counts_is_explained() -> None:
    """Each figure has a text, and each text a figure."""
    life = await Place().start()
    assert set(sources_of(life).tiers.figures()) == set(TEXTS)
    await life.stop()


async def test_help_is_a_sentence_for_whoever_reads_it() -> None:
    """Not the name again: several words, none of them only what the name says."""
    life = await Place().start()
    for name, family in metrics_of(life).items():
        words = family.documentation.split()
        assert len(words) >= 2, name
        assert family.documentation.replace(" ", "_") not in name, name
    await life.stop()


async def test_the_process_says_what_it_is_and_uses() -> None:
    """From the first second, by the names every exporter has."""
    place = Place()
    life: Life = place.make()
    from tests.unit.broker.observe.test_observe_start import metrics_of as metrics_at_start

    found = await metrics_at_start(life.broker.views)
    (build,) = found["thermocline_build_info"].samples
    assert build.value == 1 and build.labels["version"] and build.labels["python"].startswith("3.")
    assert value(found, "process_resident_memory_bytes") > 10 << 20
    assert value(found, "process_open_fds") >= 3
    assert value(found, "process_cpu_seconds") > 0
    assert abs(value(found, "process_start_time_seconds") - time.time()) < 86_400 * 30
    await life.crash()


def test_a_loop_that_is_held_is_late() -> None:
    """By as much as it was held; the longest is told once."""
    lag = LoopLag()

    async def scenario() -> None:
        task = asyncio.get_running_loop().create_task(lag.keep())
        await asyncio.sleep(EVERY_S * 1.5)
        asyncio.get_running_loop().call_soon(time.sleep, 0.25)  # holds the loop
        await asyncio.sleep(EVERY_S * 2)
        task.cancel()

    asyncio.run(scenario())
    assert 0.15 <= lag.take_longest() < 5.0
    assert lag.take_longest() == 0.0
    assert sum(lag.buckets) >= 2 and lag.seconds >= 0.15


def test_the_buckets_of_latencies() -> None:
    """A duration on a bound belongs below it; the last bucket takes the rest."""
    latencies = Latencies(2)
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.001, BOUNDS_S[-1], 1e9):
        latencies.note(1, seconds, 2)
    assert latencies.buckets[0] == [0] * (len(BOUNDS_S) + 1)
    assert latencies.buckets[1] == [4, 2, *[0] * (len(BOUNDS_S) - 3), 2, 2]


async def test_an_open_transaction_shows_in_its_partition() -> None:
    """Kafka's LastStableOffsetLag: the high watermark less the last stable offset."""
    place = Place()
    life = await place.start()
    with_transactions(life)
    await life.create("log", **SMALL_SEGMENTS)

    def lag() -> float:
        return value(metrics_of(life), "thermocline_last_stable_offset_lag", topic="log", partition="0")

    await life.produce("log", b"plain")
    await produce_in(life, "log", 7, 0, b"open")
    await life.produce("log", b"plain")
    assert lag() == 2
    await end(life, "log", 7, commit=True)
    assert lag() == 0
    await life.stop()
