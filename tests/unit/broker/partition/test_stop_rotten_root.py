"""A clean stop beside a manifest that nobody can read: that partition keeps its reservation, all are left in order."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from tests.support.brokers.broker_kit import Place


async def test_a_root_that_rotted_does_not_keep_the_broker_from_a_clean_stop() -> None:
    """Giving the reservation back asks the root: its damage ended the stop where it stood, the other logs were left as
    they were, and the lease was not released."""
    place = Place()
    life = await place.start()
    topic_id = await life.create("log", 2)
    for index in range(2):
        await life.produce("log", b"a", index=index)
    await life.crash()
    key = f"topics/{topic_id}/0/manifest.json"
    whole = place.memory.objects[key]
    place.memory.objects[key] = replace(whole, data=b"#" + whole.data[1:], etag="rotten")
    life = await place.start()
    await asyncio.sleep(5.0)
    await life.stop()
    assert place.disk.stat("/data/a/.kafka_cleanshutdown") is not None
    place.memory.objects[key] = whole
    life = await place.start()
    assert [value for index in range(2) for _, value in await life.read_all("log", index)] == [b"a", b"a"]
    await life.stop()
