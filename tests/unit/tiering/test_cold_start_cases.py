"""What the bucket says of a log that begins where everything below expired, or is not verified (D34, D79; R26)."""

from __future__ import annotations

import pytest

from coldstore.object_store import ObjectMissing
from logformat.leader_epochs import LeaderEpochs
from tests.support.disk.hotstore_kit import batch, batches_of
from tests.support.store.memory_store import MemoryStore
from tests.support.tier.cold_values import TOPIC_ID, remote_segment
from tests.support.tier.tier_kit import TOPIC_ID as TIERED_ID
from tests.support.tier.tier_kit import House
from tests.unit.coldstore.test_coldstore_manifest_store import claimed, opened
from tiering.opening.cold_start import state_at

PLACE = (TOPIC_ID, 0)


async def test_cluster_d79_where_everything_cold_expired_a_log_begins_with_nothing_known() -> None:
    """At the log start, which is the remote end: no entry holds what lies below. Lineage and producers are empty."""
    store = MemoryStore()
    leader = await claimed(store)
    entries = [remote_segment(0, 10, epoch=1), remote_segment(10, 20, epoch=1)]
    for entry in entries:
        await leader.commit(lambda m, e=entry: m.add(e))  # type: ignore[misc]
    await leader.commit(lambda m: m.set_log_start(20))
    await leader.commit(lambda m: m.expire(entries))
    manifests = opened(store, 9)
    manifest = await manifests.load()
    assert manifest is not None and manifest.tail == () and manifest.log_start_offset == 20
    assert await state_at(store, manifests, PLACE, 20, 30.0) == (LeaderEpochs(), (), 0)
    assert await state_at(store, manifests, PLACE, 0, 30.0) == (LeaderEpochs(), (), 0)


async def test_cluster_d34_an_object_that_is_not_whole_begins_no_log() -> None:
    """The root names it, nobody saw it whole: whoever began there, by the remote end instead of the verified one, would
    have no lineage. It is refused, not taken for an empty one."""
    store = MemoryStore()
    leader = await claimed(store)
    await leader.commit(lambda m: m.add(remote_segment(0, 10, epoch=1)))
    manifests = opened(store, 9)
    await manifests.load()
    with pytest.raises(ObjectMissing):
        await state_at(store, manifests, PLACE, 10, 30.0)


async def test_a_log_that_begins_within_an_object_knows_no_epoch_of_later() -> None:
    """Its next question would name an epoch that its leader began above it: divergence where there is none."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    life.append(count=6)
    opened.log.begin_epoch(opened.log.leader_epoch + 1)
    appended = batch(4)
    opened.log.append_as_leader(*batches_of(appended), opened.log.leader_epoch, 10_000)
    await opened.tier.seal_and_copy()
    (only,) = (await house.manifest()).tail
    assert (only.base_offset, only.end_offset, len(only.epochs)) == (0, 10, 2)
    for offset, known in ((10, 2), (7, 2), (6, 1), (3, 1)):
        epochs = (await life.service.state_at(TIERED_ID, 0, offset, 0)).epochs
        assert len(epochs.entries) == known and all(entry.start_offset < offset for entry in epochs.entries)
    await life.stop()
