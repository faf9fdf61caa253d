"""What keeps a partition from sinking is named with its cause wherever an operator looks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import pytest
from msgspec import to_builtins

from broker.observe.conditions import Facts, conditions
from broker.observe.tier_view import broker_status, missing_keys, refusals, status_json
from coldstore.encryption.encrypted_store import EncryptedStore
from coldstore.encryption.marker import KeyRefused
from coldstore.object_store import AccessRefused, ObjectInfo, StoreUnavailable, Upload
from coldstore.stores.metered import MeteredStore
from seams.clock import SystemClock
from seams.rng import SystemRng
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place
from tests.support.store.keys import ring_of
from tests.support.store.memory_store import MemoryStore
from tests.support.workers import InlineWorkers
from tests.unit.broker.observe.test_broker_observe import metrics_of, sources_of, value
from tiering.service import LOG_LAG_EVERY_S

CAUSES = {
    "full": StoreUnavailable("file:///b: [Errno 28] No space left on device"),
    "forbidden": AccessRefused("PUT topics/x.log: 403 AccessDenied: not authorized to perform s3:PutObject"),
}


def refuse_segments(place: Place, failure: Exception) -> Callable[[], None]:
    """The bucket takes small objects and no segments, until what is returned is called."""
    put_segment = place.memory.put_segment

    def refused(key: str, body: Upload) -> Awaitable[ObjectInfo]:
        if key.endswith(".log"):
            raise failure
        return put_segment(key, body)

    place.memory.put_segment = refused  # type: ignore[method-assign,assignment]

    def mend() -> None:
        place.memory.put_segment = put_segment  # type: ignore[method-assign]

    return mend


async def sealed(life: Life) -> None:
    await life.create("log", **SMALL_SEGMENTS)
    for at in range(30):
        await life.produce("log", b"%d" % at * 60)


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
async def test_a_bucket_that_takes_no_segments_is_told_with_its_cause(
    cause: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A full directory bucket: `blocked by store`, and nothing said why; 403 to PUT: not even that. The store counts as
    reachable in both, because the lease is a small object."""
    place = Place()
    life = await place.start()
    mend = refuse_segments(place, cause)
    await sealed(life)
    with caplog.at_level(logging.INFO):
        await asyncio.sleep(LOG_LAG_EVERY_S + 30)
    (line,) = json.loads(status_json(sources_of(life)))
    assert line["blocked_by"] == "store"
    found = to_builtins(broker_status(life.broker._startup, sources_of(life)))
    assert found["blocked"] == [{"by": "store", "partitions": 1, "partition": "log-0", "why": str(cause)}]
    (condition,) = found["conditions"]
    assert condition["name"] == "store_refuses"
    assert f"put_segment ({cause}; " in condition["says"]
    assert any(str(cause) in record.getMessage() and "blocked by store" in record.getMessage()
               for record in caplog.records)  # fmt: skip
    metrics = metrics_of(life)
    assert value(metrics, "thermocline_store_reachable") == 1
    assert value(metrics, "thermocline_condition", name="store_refuses") == 1
    assert value(metrics, "thermocline_blocked_partitions", topic="log") == 1
    mend()
    await asyncio.sleep(120)
    found = to_builtins(broker_status(life.broker._startup, sources_of(life)))
    assert (found["blocked"], found["conditions"]) == ([], [])
    await life.stop()


async def test_a_missing_key_is_told_as_that_and_not_as_a_refusal_of_the_bucket() -> None:
    """It was `store_refuses … check its policy`, and a bucket's policy has nothing to do with a key file."""
    below = MemoryStore()
    await encrypted(below, "old").put_root("root", b"{}", None)
    metered = MeteredStore(encrypted(below, "new"), SystemClock())
    for _ in range(20):
        with pytest.raises(KeyRefused):
            await metered.get("root")
    assert refusals(metered) == ()
    (told,) = missing_keys(metered)
    assert told.startswith("old (get: object root is encrypted under key 'old'") and "20 tries in" in told
    (held,) = conditions(Facts(data_dir="/data", missing_keys=(told,)))
    assert held.name == "key_missing" and "thermocline.encryption.key.file: key old (" in held.says
    await encrypted(below, "new").put_root("root", b"{}", (await below.head("root")).etag)
    await metered.get("root")
    assert missing_keys(metered) == ()


def encrypted(below: MemoryStore, key_id: str) -> EncryptedStore:
    return EncryptedStore(below, ring_of(key_id), InlineWorkers(), SystemRng())


async def test_one_call_that_failed_is_nobodys_business() -> None:
    """It is tried again: a condition is what lasts."""
    place = Place()
    life = await place.start()
    mend = refuse_segments(place, CAUSES["full"])
    await sealed(life)
    await asyncio.sleep(0.2)
    mend()
    await asyncio.sleep(5)
    assert value(metrics_of(life), "thermocline_store_errors", operation="put_segment") > 0
    assert to_builtins(broker_status(life.broker._startup, sources_of(life)))["conditions"] == []
    await life.stop()
