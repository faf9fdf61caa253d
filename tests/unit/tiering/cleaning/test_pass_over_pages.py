"""A pass over a manifest with pages: one edit replaces objects of one page, or of the tail."""

from __future__ import annotations

from msgspec.structs import replace

from coldstore.inspection.bucket_inspection import BucketInspector
from tests.support.tier.tier_kit import TIER, TOPIC_ID, House
from tests.support.workers import LoopWorkers
from tests.unit.tiering.cleaning.test_cold_cleaner import COMPACT, COMPACT_TIER, FAST, VALUE, passed, table


async def test_a_pass_goes_on_behind_the_end_of_a_page() -> None:
    """Regression: objects on both sides of a page's end went into one edit, which was refused. The pass began again
    every five minutes, with the same reads and uploads."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    opened.tier.partition_state.manifests._content_bytes_max = 4000  # a root of few entries
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    for number in range(100):
        key = b"key-%d" % number if number % 5 else b"shared"  # each object loses one record of five
        newest[key] = (life.put((key, VALUE)), VALUE)
    await opened.tier.seal_and_copy()
    before = await house.manifest()
    assert before.pages and before.tail
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await passed(life)
    view = await BucketInspector(house.memory, LoopWorkers()).view(TOPIC_ID, 0)
    assert view is not None
    data = b"".join(house.memory.objects[str(view.key(each))].data[: each.log_bytes] for each in view.live)
    assert table(data) == newest
    await life.stop()
