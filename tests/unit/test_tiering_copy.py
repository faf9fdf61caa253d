"""Copying: what is sealed, flushed and visible sinks into the bucket, and nothing else does."""

from __future__ import annotations

from tests.support.fast_loop import run_fast
from tests.support.tier_kit import House, cold_bytes, local_bytes, settle


def test_sealed_segments_sink_byte_for_byte() -> None:
    """Every sealed segment becomes one object with the same log bytes, named by the manifest, and is verified."""

    async def scenario() -> None:
        house = House()
        life = await house.start()
        opened = await life.open(new=True)
        await life.fill(60)
        sealed_end = opened.log.active_info().base_offset
        assert sealed_end > 0
        await settle(lambda: opened.tier.remote_end_offset == sealed_end)
        manifest = await house.manifest()
        manifest.check()
        assert cold_bytes(house, manifest) == local_bytes(opened.log, 0, sealed_end)
        assert len(house.objects()) == len(manifest.tail)
        assert life.service.copy_counters.verified_segments == len(manifest.tail)
        assert not house.failures
        await life.stop()

    run_fast(scenario())


def test_a_clean_restart_serves_at_once_and_goes_on() -> None:
    """The next life finds its log and reservation, claims in the background, and copies on from the remote end."""

    async def scenario() -> None:
        house = House()
        life = await house.start()
        await life.open(new=True)
        end = await life.fill(60)
        await life.stop()

        life = await house.start()
        opened = await life.open()
        assert opened.log.log_end_offset == end
        await life.fill(60)
        await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset)
        manifest = await house.manifest()
        assert manifest.leader_epoch == 2 and not manifest.gaps
        assert cold_bytes(house, manifest) == local_bytes(opened.log, 0, manifest.remote_end_offset)
        assert not house.failures
        await life.stop()

    run_fast(scenario())
