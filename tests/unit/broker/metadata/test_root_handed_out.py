"""What leaves with heartbeats was seen committed before: the root's bytes while a commit is under way."""

from __future__ import annotations

import asyncio

from broker.metadata.cluster_content import Controller
from broker.metadata.cluster_root import ClusterRoot
from coldstore.keys import cluster_key
from tests.support.brokers.cluster_kit import CLUSTER, claim, cluster_root, created
from tests.support.store.memory_store import MemoryStore


class Looking(MemoryStore):
    """Notes what `root` would hand out when a PUT of `cluster.json` leaves, and refuses it while `refuses`."""

    root: ClusterRoot
    refuses = False

    def __init__(self) -> None:
        super().__init__()
        self.handed_out: list[int] = []

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        if key == cluster_key():
            found = self.root.encoded
            self.handed_out.append(-1 if found is None else found[0])
            if self.refuses:
                await asyncio.sleep(3600.0)
        return await super().put_root(key, data, if_match)


async def test_a_root_is_handed_out_when_its_cas_was_answered_and_not_before() -> None:
    """A commit that is under way may be refused: another controller's claim stands there, and whoever obeyed ours would
    lead what the cluster never gave it."""
    store = Looking()
    store.root = root = cluster_root(store)
    at = await claim(root)
    before = at.position
    at = await root.commit([created(1)])
    assert store.handed_out == [-1, before] and at.position == before + 1
    found = root.encoded
    assert found is not None and found[0] == at.position
    store.refuses = True
    committing = asyncio.ensure_future(root.commit([created(2)]))
    await asyncio.sleep(5.0)
    found = root.encoded
    assert found is not None and found[0] == at.position and not committing.done()
    committing.cancel()
    other = cluster_root(store, "other")
    assert await other.load() is not None
    store.refuses = False
    await other.claim(CLUSTER, Controller(1, "other"), lambda _: ())
