"""A partition's root where leadership goes from A to B and back to A within one upload (D21; C1, C2)."""

from __future__ import annotations

import pytest

from coldstore.manifest.manifest import EditRefused
from logformat.errors import Fenced
from tests.support.store.memory_store import MemoryStore
from tests.support.tier.cold_values import remote_segment
from tests.unit.coldstore.test_coldstore_manifest_store import KEY, claimed, opened


async def test_cluster_d21_a_leader_that_comes_back_does_not_finish_what_it_began_before() -> None:
    """A uploads, B claims and adds the same offsets, A leads again: its old claim does not count though the node leads,
    nor does an object of its first epoch under the new claim; a new object of the new epoch does."""
    store = MemoryStore()
    first = await claimed(store, 1)
    uploaded = remote_segment(0, 10, epoch=1)
    other = opened(store, 2)
    await other.claim(2, "events", {})
    await other.commit(lambda m: m.add(remote_segment(0, 10, epoch=2)))
    again = opened(store, 3)
    await again.claim(3, "events", {})
    named = store.objects[KEY].data
    with pytest.raises(Fenced):
        await first.commit(lambda m: m.add(uploaded))
    late = remote_segment(10, 20, epoch=1)
    with pytest.raises(EditRefused):
        await again.commit(lambda m: m.add(late))
    assert store.objects[KEY].data == named
    await again.commit(lambda m: m.add(remote_segment(10, 20, epoch=3)))
    manifest = await opened(store, 4).load()
    assert manifest is not None and [entry.base_offset for entry in manifest.tail] == [0, 10]
