"""`cluster.json` where a commit is interrupted, or the store takes one write a second (D51, D61; R13)."""

from __future__ import annotations

import asyncio

import pytest

from coldstore.object_store import StoreAway
from logformat.errors import Retryable
from tests.support.brokers.cluster_kit import created, id_of
from tests.support.store.memory_store import MemoryStore
from tests.unit.broker.metadata.test_broker_metadata import Bench


class Limited(MemoryStore):
    """Takes a root once a second, as R2 and GCS do; before, it says 429 and looks at nothing. `is_away`: takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = self.is_limited = False
        self.refusals = 0
        self._written_s: dict[str, float] = {}

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        now_s = asyncio.get_running_loop().time()
        if self.is_away or (self.is_limited and now_s - self._written_s.get(key, -10.0) < 1.0):
            self.refusals += 1
            raise StoreAway(f"PUT {key}: 429 Too Many Requests")
        etag = await super().put_root(key, data, if_match)
        self._written_s[key] = now_s
        return etag


async def test_cluster_d61_a_store_that_takes_one_write_a_second_takes_every_change() -> None:
    """The second commit within a second is refused, again and again: it waits for its second, and none is lost."""
    bench = Bench()
    bench.memory = bench.store = store = Limited()
    cluster = await bench.controller()
    store.is_limited = True
    began_s = asyncio.get_running_loop().time()
    for number in range(5):
        await cluster.commit([created(number)])
    assert store.refusals >= 4 and asyncio.get_running_loop().time() - began_s < 30.0
    assert set((await bench.image()).topics) == {id_of(number) for number in range(5)}


async def test_cluster_d51_a_crash_between_page_and_root_leaves_a_page_that_nobody_names() -> None:
    """The page was put, the root was not, and the process is gone: the image is as it was before, the next controller
    goes on, and what it writes is all there."""
    bench = Bench()
    bench.memory = bench.store = store = Limited()
    cluster = await bench.controller()
    await cluster.commit([created(1)])
    before, pages = await bench.image(), bench.pages()
    store.is_away = True
    with pytest.raises(Retryable):
        await asyncio.wait_for(cluster.commit([created(2, 5000)]), 3600.0)
    assert len(bench.pages()) > len(pages), "the page is there"
    store.is_away = False
    assert await bench.image() == before
    again = await bench.controller()
    image = (await again.commit([created(3, 5000)])).image
    assert set(image.topics) == {id_of(1), id_of(3)} and await bench.image() == image
