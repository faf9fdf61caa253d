"""A reader that passes from the local log into the bucket sees the deletion of each key that it read."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from tests.support.tier.tier_kit import House, cold_bytes, local_bytes, settle
from tests.unit.tiering.cleaning.test_cold_cleaner import COMPACT, COMPACT_TIER, FAST, passed, put_until_copied, table
from tests.unit.tiering.cleaning.test_cold_readers_move_on import cold_read, header_end


async def test_a_tombstone_stays_in_the_bucket_while_the_local_log_has_the_deleted_record() -> None:
    """The local cleaner has not cleaned the log: its share of new bytes is small. So the local log serves the old
    record for as long as it holds it. A reader gets the record there, the local start moves, and the reader continues
    in the bucket. The tombstone was removed from the bucket before."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    await put_until_copied(life, keys=3, rounds=3)
    gone = life.put((b"key-1", None))
    await put_until_copied(life, keys=1, rounds=7)
    await passed(life)
    for _ in range(2):
        await asyncio.sleep(61)
        await put_until_copied(life, keys=1, rounds=12)
        await passed(life)

    seen: dict[bytes, bytes | None] = {}
    offset = 0

    def take(part: bytes) -> int:
        seen.update({key: value for key, (_, value) in table(part).items()})
        return 1 + max(header_end(part))

    while b"key-1" not in seen:
        offset = take(local_bytes(opened.log, offset, offset + 1))
    opened.tier.reconfigure(replace(COMPACT_TIER, local_retention_ms=0))
    await settle(lambda: opened.log.local_log_start_offset > gone)
    while offset <= gone:
        offset = take(await cold_read(life, offset))
    assert seen[b"key-1"] is None, "a deleted key came back"
    await life.stop()


async def test_a_tombstone_stays_for_its_time_after_a_pass_that_took_longer() -> None:
    """The first pass over a large topic may take days within `thermocline.cold.compaction.bytes.per.hour`. It removes a
    record in its last hour. The tombstone stays for `delete.retention.ms` from then on, not from the pass's begin."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=COMPACT_TIER)
    await put_until_copied(life, keys=3, rounds=3)
    gone = life.put((b"key-1", None))
    await put_until_copied(life, keys=1, rounds=7)
    opened.tier.reconfigure(replace(COMPACT_TIER, local_retention_ms=0))
    await settle(lambda: opened.log.local_log_start_offset > gone)
    shared = life.service.cleaning
    assert shared is not None
    shared.bytes_per_hour = 200_000  # the pass takes several minutes
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(replace(COMPACT_TIER, local_retention_ms=1))
    began_s = asyncio.get_running_loop().time()
    await passed(life)
    assert asyncio.get_running_loop().time() - began_s > 2 * COMPACT.delete_retention_ms / 1000
    shared.bytes_per_hour = 1 << 40
    await put_until_copied(life, keys=1, rounds=12)
    await passed(life)
    assert table(cold_bytes(house, await house.manifest()))[b"key-1"] == (gone, None)
    await asyncio.sleep(900)  # its time, and the most that the first pass could take
    await put_until_copied(life, keys=1, rounds=12)
    await passed(life)
    assert b"key-1" not in table(cold_bytes(house, await house.manifest()))
    await life.stop()
