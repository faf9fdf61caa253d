"""A broker that waits at its start says so where alerts look, from the first second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from broker.observe.conditions import Condition
from broker.observe.http import Views
from coldstore.object_store import ObjectInfo, Upload
from coldstore.stores.operations import Operation
from tests.support.brokers.broker_kit import Life, Place
from tests.support.store.faulty_store import Fault
from tests.unit.broker.observe.test_broker_observe import value


async def metrics_of(views: Views) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families((await views.metrics()).decode())}


async def held(views: Views) -> list[str]:
    """The conditions of /metrics, which /broker must name as well."""
    samples = (await metrics_of(views))["thermocline_condition"].samples
    assert [sample.labels["name"] for sample in samples] == [condition.value for condition in Condition]
    found = [sample.labels["name"] for sample in samples if sample.value]
    assert [condition["name"] for condition in json.loads(await views.broker())["conditions"]] == found
    return found


@asynccontextmanager
async def starting(life: Life) -> AsyncIterator[Views]:
    """While it tries to come up."""
    coming = asyncio.get_running_loop().create_task(life.broker.start(life.stop_event))
    try:
        yield life.broker.views
        async with asyncio.timeout(600):
            await coming
    finally:
        coming.cancel()


async def test_a_broker_that_waits_for_its_bucket_can_be_alerted_on() -> None:
    """/metrics was empty until clients were served: `thermocline_ready == 0` never fired."""
    place = Place()
    place.store.down = True
    life = place.make()
    async with starting(life) as views:
        first = await metrics_of(views)
        assert value(first, "thermocline_ready") == 0
        assert value(first, "thermocline_store_reachable") == 1, "nobody asked it yet"
        await asyncio.sleep(5)
        waiting = await metrics_of(views)
        assert value(waiting, "thermocline_ready") == 0
        assert value(waiting, "thermocline_store_reachable") == 0
        assert await held(views) == ["not_ready", "store_unreachable"]
        says = {found["name"]: found["says"] for found in json.loads(await views.broker())["conditions"]}
        assert "the start waits for it" in says["store_unreachable"] and "produce" not in says["store_unreachable"]
        assert json.loads(await views.broker())["not_ready"] == "probing the bucket memory://bucket"
        place.store.down = False
    served = await metrics_of(views)
    assert value(served, "thermocline_ready") == value(served, "thermocline_store_reachable") == 1
    assert await held(views) == []
    assert set(first) < set(served)
    await life.stop()


async def test_a_start_tells_its_first_refusal_and_goes_on_trying() -> None:
    """The probe asks a busy store again, request by request: one refusal was told to nobody, an outage after 6 s. And
    the look whether there is a cluster had no second try: a refusal of that began the whole probe anew."""
    place = Place()
    place.store.script(Operation.GET, Fault.BEFORE, match="root", times=2)
    place.store.script(Operation.GET, Fault.BEFORE, match="cluster.json")
    puts: list[str] = []
    put_segment = place.store.put_segment

    async def counted(key: str, body: Upload) -> ObjectInfo:
        puts.append(key)
        return await put_segment(key, body)

    place.store.put_segment = counted  # type: ignore[method-assign]
    life = place.make()
    async with starting(life) as views:
        while value(await metrics_of(views), "thermocline_store_reachable"):
            await asyncio.sleep(0.01)
        assert json.loads(await views.broker())["not_ready"] == "probing the bucket memory://bucket"
    assert sum(key.endswith("/segment") for key in puts) == 1, "one probe"
    assert value(await metrics_of(views), "thermocline_store_reachable") == 1
    await life.stop()


async def test_a_broker_that_waits_for_a_lease_is_not_ready_either() -> None:
    """The bucket answers, and another broker held it a moment ago."""
    place = Place()
    life = await place.start()
    await life.crash()
    place.lose_disk()
    life = place.make(directory="b")
    async with starting(life) as views:
        await asyncio.sleep(3)
        found = await metrics_of(views)
        assert (value(found, "thermocline_ready"), value(found, "thermocline_store_reachable")) == (0, 1)
        assert value(found, "thermocline_store_requests", operation="get") > 0, "meters are shown as well"
        assert await held(views) == ["not_ready"]
    assert await held(views) == []
    await life.stop()
