"""A log that is not tiered and goes on where the bucket's snapshot ends: a crash right after its restart."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.tier.tier_kit import LOG, TIER, House

INTERNAL = replace(TIER, enabled=False, internal=True)
OS = replace(LOG, flush_sync=False)


async def test_a_crash_between_the_restart_and_its_checkpoint_leaves_a_log_that_opens() -> None:
    """`os` mode and a power cut: the local log ends below the snapshot, so it begins again there. The old checkpoint
    of its start must not make the next opening miss segments that nobody needs."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, log=OS, tier=INTERNAL)
    life.append(5)
    await opened.flusher.flush()
    life.data_dir.checkpoints.sample([opened.log]).run()
    life.append(20, size=10)  # in the page cache only, and visible
    await opened.tier.commit_snapshot(25, b"state")
    await life.power_cut()

    second = await house.start()

    def dies(*_: object) -> None:
        raise OSError("power cut")

    second.logs.checkpoint_start = dies  # type: ignore[assignment,method-assign]
    with pytest.raises(OSError, match="power cut"):
        await second.open(log=OS, tier=INTERNAL)
    await second.power_cut()

    third = await house.start()
    again = await third.open(log=OS, tier=INTERNAL)
    assert again.log.log_start_offset == 25 and again.log.log_end_offset >= 1000
    assert await again.tier.read_snapshot() == (25, b"state")
    await third.stop()
