"""A pass of compaction that a power cut interrupts, before an unclean start cuts the log."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from hotstore.host.lease import Lease
from hotstore.host.log_host import LogHost
from tests.support.brokers.shared_bucket import both, until
from tests.unit.broker.partition.test_compacted_and_tiered_again import filled, put
from tests.unit.broker.partition.test_tombstones_of_replicas import NOT_TIERED, OFTEN, values_of
from tests.unit.broker.partition.test_unclean_cut_of_a_compacted_log import follows, lead_uncleanly

RARELY: Final = tuple(
    f"{name}.interval.ms=3600000"
    for name in (
        "log.flush.offset.checkpoint",
        "log.flush.start.offset.checkpoint",
        "replica.high.watermark.checkpoint",
    )
)


async def test_a_log_is_copied_anew_though_its_last_pass_and_its_high_watermark_are_not_checkpointed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pass removed a value because of a newer one above the high watermark in the checkpoint. The unclean start cut
    the log between the two."""

    pair = await both(OFTEN, *RARELY, replicas=(1, 2), **NOT_TIERED)
    checkpoint = LogHost.checkpoint_cleaned

    async def cut_off(*args: Any) -> None:
        if values_of(pair, 1) == [b"newer"]:
            await asyncio.sleep(1)
        else:
            await checkpoint(*args)

    monkeypatch.setattr(LogHost, "checkpoint_cleaned", cut_off)
    await put(pair, b"deleted", b"value")
    await filled(pair, "a")
    await until(lambda: values_of(pair, 2) == [b"value"], "2 has the record")
    pair.end(2)
    pair.elect(1, (1,))
    pair.publish(1)
    await until(lambda: pair.leads(1), "1 leads alone")
    await asyncio.sleep(3)
    await put(pair, b"deleted", b"newer")
    for _ in range(4):
        await filled(pair, "c")
        await asyncio.sleep(3)
    assert values_of(pair, 1) == [b"newer"]

    def as_after_a_restart(self: Lease, _: int) -> None:
        self.opened.high_watermark = self.host._data_dir.checkpoints.high_watermark(self.opened.place)

    monkeypatch.setattr(Lease, "move_high_watermark", as_after_a_restart)
    await lead_uncleanly(pair)
    pair.publish()
    await follows(pair)
    assert values_of(pair, 1) == [b"value"]
    await pair.stop()
