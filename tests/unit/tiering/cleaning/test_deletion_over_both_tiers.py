"""A reader that passes from the local log into the bucket sees the deletion of each key that it read."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from tests.support.tier.tier_kit import House, local_bytes, settle
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
