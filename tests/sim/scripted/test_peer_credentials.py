"""Fault O8: a bucket that refuses (expired credentials, a policy, a lock) is an outage, not an end."""

from __future__ import annotations

import asyncio

import pytest

from coldstore.stores.operations import Operation
from tests.sim.scripted import script
from tests.sim.scripted.script import Story, aftermath, send
from tests.sim.scripted.test_sim_regressions import played
from tests.support.store.faulty_store import WRITES, Fault


@pytest.mark.parametrize("denied", [Fault.DENIED, Fault.READ_ONLY])
@pytest.mark.parametrize("seal", ["true", "false"])
def test_refused_credentials_stop_neither_produces_nor_a_clean_stop(denied: Fault, seal: str) -> None:
    """For ten simulated minutes 403 is the answer to everything, or to every write. Produces are acknowledged all the
    while; a clean stop in the middle of it ends with exit 0 (simulated seed 33: giving a reservation back ended the
    process); with the credentials back nothing was lost."""

    async def scene(story: Story) -> None:
        client = story.client()
        store = story.cluster.store
        for number in range(5):
            await send(story, number, client)
        await script.commit_offset(story, client, 3)
        store.denies = WRITES if denied is Fault.READ_ONLY else tuple(Operation)
        for number in range(5, 15):
            await send(story, number, client)
            await asyncio.sleep(60.0)
        assert story.node is not None and story.node.serving
        assert store.hits[denied] > 20
        story.node.stop.set()
        async with asyncio.timeout(120.0):
            assert await story.node.main == 0
        store.denies = ()
        assert await aftermath(story) == []

    played(scene, f"thermocline.seal.on.shutdown={seal}", "thermocline.reservation.offsets=1048576")
