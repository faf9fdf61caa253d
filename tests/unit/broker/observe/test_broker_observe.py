"""What operators read: the exposition parses and explains itself, status has cli.md's fields."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from broker.net.dispatch import CloseConnection
from broker.observe.http import HttpServer, Protection, Views
from broker.observe.metrics.exposition import exposition
from broker.observe.sources import Sources
from broker.observe.status import Health
from broker.observe.tier_view import status_json
from broker.wire.apis import ApiKey
from broker.wire.messages import MetadataRequest
from logformat.errors import Retryable
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place
from tests.support.workers import InlineWorkers

# cli.md, `tier status --json`.
STATUS_FIELDS = [
    "topic",
    "partition",
    "leader",
    "log_start_offset",
    "local_log_start_offset",
    "remote_end_offset",
    "high_watermark",
    "log_end_offset",
    "local_bytes",
    "cold_bytes",
    "copy_lag_bytes",
    "copy_lag_segments",
    "copy_lag_ms",
    "seal_age_ms",
    "gaps",
    "blocked_by",
    "hot_bytes",
    "stale_bytes",
    "rewrite_requests",
    "rewrite_bytes",
    "replaced_bytes",
]


def sources_of(life: Life) -> Sources:
    sources = life.broker._sources
    assert sources is not None
    return sources


def metrics_of(life: Life) -> dict[str, Metric]:
    """By family; the parser refuses what Prometheus would."""
    text = exposition(life.broker._startup, sources_of(life)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(metrics: dict[str, Metric], family: str, **labels: str) -> float:
    (found,) = (
        sample.value
        for sample in metrics[family].samples
        if sample.labels == labels and not sample.name.endswith("_created")
    )
    return found


async def busy(life: Life) -> None:
    """A bit of everything: both tiers, a refusal, a malformed frame."""
    await life.create("log", **SMALL_SEGMENTS)
    for at in range(30):
        await life.produce("log", b"%d" % at * 60)
    await asyncio.sleep(60)
    await life.read_all("log")
    await life.produce("nowhere", b"x")
    await life.fetch("nowhere", 0)
    with pytest.raises(CloseConnection):
        life.dispatcher.dispatch(life.peer, memoryview(bytearray(b"\0\0")))


async def test_every_metric_parses_and_has_help() -> None:
    """Names begin with ours, help is a sentence for people, no family comes twice, nothing is NaN or negative."""
    life = await Place().start()
    for _ in range(2):  # empty, then busy
        text = exposition(life.broker._startup, sources_of(life)).decode()
        families = list(text_string_to_metric_families(text))
        assert len({family.name for family in families}) == len(families)
        for family in families:
            assert family.name.startswith(("thermocline_", "process_")), family.name
            assert len(family.documentation) > 3, family.name
            assert family.type in ("gauge", "counter", "histogram"), family.name
            for sample in family.samples:
                assert sample.value >= 0, sample
        if "log" not in life.context.registry.topics:
            await busy(life)
    await life.stop()


async def test_the_figures_are_those_of_the_broker() -> None:
    """What was produced, refused, malformed, copied and asked of the store shows in the right place."""
    life = await Place().start()
    await busy(life)
    await life.call(ApiKey.METADATA, MetadataRequest(topics=None))
    metrics = metrics_of(life)
    assert value(metrics, "thermocline_ready") == 1
    assert value(metrics, "thermocline_store_reachable") == 1
    assert value(metrics, "thermocline_controller_epoch") == 1
    assert value(metrics, "thermocline_produce_records") == 30
    assert value(metrics, "thermocline_requests", api="produce") == 31
    assert value(metrics, "thermocline_requests", api="metadata") == 1
    assert value(metrics, "thermocline_failed_produce_requests") == 1
    assert value(metrics, "thermocline_failed_fetch_requests") == 1
    assert value(metrics, "thermocline_malformed_requests") == 1
    assert value(metrics, "thermocline_background_failures") == 0
    partition = life.partition("log")
    assert value(metrics, "thermocline_local_bytes", topic="log") == partition.log.local_bytes
    assert value(metrics, "thermocline_cold_bytes", topic="log") == partition.tier.status().cold_bytes > 0
    assert value(metrics, "thermocline_copy_lag_bytes", topic="log") == 0
    assert value(metrics, "thermocline_store_requests", operation="put_segment") > 0
    assert value(metrics, "thermocline_estimated_dollars_per_day") > 0
    latency = [s for s in metrics["thermocline_store_seconds"].samples if s.labels.get("operation") == "put_root"]
    counts = [s.value for s in latency if s.name.endswith("_bucket")]
    assert counts == sorted(counts)
    assert counts[-1] == next(s.value for s in latency if s.name.endswith("_count"))
    await life.stop()


async def test_an_outage_and_a_lag_show() -> None:
    """The store is away: it is said so, sealed bytes pile up, and both are over when it is back."""
    place = Place()
    life = await place.start()
    await life.create("log", **SMALL_SEGMENTS)
    place.store.down = True
    for at in range(30):
        await life.produce("log", b"%d" % at * 60)
    await asyncio.sleep(30)
    metrics = metrics_of(life)
    assert value(metrics, "thermocline_store_reachable") == 0
    for name in ("copy_lag_bytes", "copy_lag_segments", "copy_lag_seconds", "blocked_partitions"):
        assert value(metrics, f"thermocline_{name}", topic="log") > 0, name
    assert json.loads(status_json(sources_of(life)))[0]["blocked_by"]
    place.store.down = False
    await asyncio.sleep(120)
    metrics = metrics_of(life)
    assert value(metrics, "thermocline_store_reachable") == 1
    assert value(metrics, "thermocline_copy_lag_bytes", topic="log") == 0
    assert value(metrics, "thermocline_blocked_partitions", topic="log") == 0
    await life.stop()


async def test_status_has_exactly_the_fields_of_the_contract() -> None:
    """Scripts rely on their names; the offsets are ordered as the log's invariants say."""
    life = await Place().start()
    await busy(life)
    await life.create("many", 3)
    found: list[dict[str, Any]] = json.loads(status_json(sources_of(life)))
    assert [(line["topic"], line["partition"]) for line in found] == [
        ("log", 0),
        ("many", 0),
        ("many", 1),
        ("many", 2),
    ]
    for line in found:
        assert list(line) == STATUS_FIELDS
        assert line["log_start_offset"] <= line["local_log_start_offset"] <= line["log_end_offset"]
        assert line["remote_end_offset"] <= line["high_watermark"] <= line["log_end_offset"]
        assert (line["gaps"], line["blocked_by"]) == ([], None)
        assert line["copy_lag_bytes"] <= line["hot_bytes"] <= line["local_bytes"]
        assert (line["hot_bytes"] > 0) == (line["remote_end_offset"] < line["log_end_offset"])
    assert found[0]["local_log_start_offset"] > 0
    await life.stop()


async def test_a_gap_after_a_lost_disk_is_named() -> None:
    """[[first, end)] of the offsets that nobody will ever get."""
    place = Place("thermocline.reservation.offsets=100")
    life = await place.start()
    await life.create("log", **SMALL_SEGMENTS)
    for at in range(30):
        await life.produce("log", b"%d" % at * 60)
    await asyncio.sleep(30)
    remote_end = life.partition("log").tier.remote_end_offset
    await life.crash()
    place.lose_disk()
    life = await place.start()
    await asyncio.sleep(30)
    (line,) = json.loads(status_json(sources_of(life)))
    ((first, end),) = line["gaps"]
    assert first == remote_end
    assert end > first
    assert (await life.produce("log", b"on")).base_offset == end
    await life.stop()


def test_health_says_what_is_waited_for_and_what_failed_lately() -> None:
    """Not ready until ready; the last twenty failures, by name."""
    health = Health()
    assert not health.is_ready
    assert health.waiting_for == "starting"
    health.starting("opening logs")
    assert health.waiting_for == "opening logs"
    health.ready()
    assert (health.is_ready, health.waiting_for) == (True, "")
    for at in range(30):
        health.failed("copy", OSError(f"failure {at}"))
    assert len(health.failures) == 20
    assert health.failures[-1] == "copy: OSError: failure 29"
    assert health.is_ready


# --- HTTP, on a real port -------------------------------------------------------------------------------------------


def with_http(views: Views, scenario: Callable[[aiohttp.ClientSession, str], Awaitable[None]]) -> None:
    async def run() -> None:
        server = HttpServer(views, Protection(), InlineWorkers())
        await server.start("127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession() as session:
                await scenario(session, "http://{}:{}".format(*server.address))
        finally:
            await server.close()

    asyncio.run(run())


def views(**changed: Any) -> Views:
    async def seal(topic: str | None) -> None:
        return None

    async def metrics() -> bytes:
        return b"thermocline_ready 1.0\n"

    async def cluster() -> bytes:
        return b"{}"

    async def reload() -> bytes:
        return b"[]"

    kept: dict[str, Any] = {
        "metrics": metrics,
        "status": lambda: b"[]",
        "broker": lambda: b"{}",
        "cluster": cluster,
        "not_ready": lambda: "",
        "failures": list,
        "seal": seal,
        "reload": reload,
    }
    return Views(**{**kept, **changed})


def test_readyz_follows_readiness() -> None:
    """503 with the reason, then 200."""
    waiting = ["opening logs"]

    async def scenario(session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(f"{url}/readyz") as answer:
            assert answer.status == 503
            assert "opening logs" in await answer.text()
        waiting[0] = ""
        async with session.get(f"{url}/readyz") as answer:
            assert answer.status == 200
        async with session.get(f"{url}/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        async with session.get(f"{url}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        async with session.get(f"{url}/status") as answer:
            assert await answer.json() == []

    with_http(views(not_ready=lambda: waiting[0]), scenario)


def test_sealing_asks_for_json_and_says_what_came_of_it() -> None:
    """No web page can send it; a body that is no request is 400, a failure 503, GET is no way to seal."""
    sealed: list[str | None] = []

    async def seal(topic: str | None) -> None:
        sealed.append(topic)
        if topic == "away":
            raise Retryable("the bucket does not answer")

    async def scenario(session: aiohttp.ClientSession, url: str) -> None:
        async with session.post(f"{url}/tier/seal", data="topic=a") as answer:
            assert answer.status == 415
        async with session.post(f"{url}/tier/seal", data="{", headers={"Content-Type": "application/json"}) as answer:
            assert answer.status == 400
        # A page whose server's name now means this port: its browser sends any content type, and its origin.
        page = {"Host": "evil.example", "Origin": "http://evil.example"}
        async with session.post(f"{url}/tier/seal", json={}, headers=page) as answer:
            assert answer.status == 403
        async with session.get(f"{url}/tier/seal") as answer:
            assert answer.status == 405
        assert sealed == []
        async with session.post(f"{url}/tier/seal", json={"topic": "a", "wait": True}) as answer:
            assert (answer.status, (await answer.json())["done"]) == (200, True)
        async with session.post(f"{url}/tier/seal", json={}) as answer:
            assert answer.status == 200
        async with session.post(f"{url}/tier/seal", json={"topic": "away", "wait": True}) as answer:
            assert answer.status == 503
        assert sealed == ["a", None, "away"]

    with_http(views(seal=seal), scenario)
