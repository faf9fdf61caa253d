"""The invariants of a run only look: what they look at goes on as it would without them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from logformat.record_batch import read_header
from logformat.records import Record, encode_batch
from logformat.transaction_marker import TransactionMarker
from tests.sim.actors import Stage
from tests.sim.checks.history import History
from tests.sim.checks.invariants import look_at
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import new_log

_FIRST_END = 1  # the end of the first batch of `_open_log`


def _begun() -> PartitionLog:
    """A log with an open transaction of producer 7 at offset 0."""
    _, log = new_log(CrashDisk(), LogConfig(segment_bytes=600, index_interval_bytes=100))
    data = encode_batch(
        [Record(0, 1_000, b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    view = memoryview(bytearray(data))
    assert log.append_transactional(view, read_header(view), 0, 10_000).base_offset == 0
    return log


def _open_log() -> PartitionLog:
    """An open transaction at offset 0, and two batches of others behind it."""
    log = _begun()
    for _ in range(2):
        view = memoryview(bytearray(encode_batch([Record(0, 1_000, b"k", b"v")])))
        log.append_as_leader([view], [read_header(view)], 0, 10_000)
    return log


async def _looked_at(
    log: PartitionLog, *, start: int, remote_end: int, high_watermark: int, stable: int, leading: bool = True
) -> list[str]:
    """The findings of one look at a partition with these offsets."""
    found: list[str] = []
    partition = SimpleNamespace(
        topic="t",
        index=0,
        leading=leading,
        log=log,
        tier=SimpleNamespace(
            enabled=True,
            partition_state=SimpleNamespace(manifests=SimpleNamespace(manifest=object()), claimed=True),
            remote_end_offset=remote_end,
        ),
        log_start_offset=start,
        high_watermark=high_watermark,
        last_stable_offset=stable,
        undecided={},
    )
    replicas = SimpleNamespace(_registry=[partition])
    node: Any = SimpleNamespace(name="n", broker=SimpleNamespace(components=SimpleNamespace(replicas=replicas)))
    cluster: Any = SimpleNamespace(seed="looks")
    look_at(node, Stage(cluster, History(), lambda: node, asyncio.Event(), found, {}))
    return found


async def test_a_copy_of_an_open_transaction_is_found() -> None:
    found = await _looked_at(_open_log(), start=0, remote_end=2, high_watermark=3, stable=0)
    assert len(found) == 1
    assert "not remote_end <= last_stable" in found[0]


async def test_a_transaction_below_the_log_start_holds_back_no_copy() -> None:
    """DeleteRecords removed all records of an open transaction. A leader whose log began there did not know it and
    copied more (seeds 96006 and 96904 of three brokers, --late)."""
    assert await _looked_at(_open_log(), start=_FIRST_END, remote_end=3, high_watermark=3, stable=_FIRST_END) == []


async def test_a_look_decides_no_transaction() -> None:
    """The look of a tiered log asked for the last stable offset of the log's end, and with that the log forgot markers
    above the high watermark: it copied what a leader change undid (TX21; seed 221 of three brokers, --late)."""
    log = _begun()
    (marker,) = log.append_markers([TransactionMarker(7, 0, True, 0, 0)], 0, 10_000)
    high_watermark = marker  # which is below it only later
    assert isinstance(high_watermark, int)

    stable = log.last_stable_offset(high_watermark)
    found = await _looked_at(log, start=0, remote_end=0, high_watermark=high_watermark, stable=stable)
    assert found == []
    assert log.last_stable_offset(high_watermark) == 0, "its marker is above the high watermark"


async def test_a_fenced_leader_may_know_the_log_start_of_a_later_one() -> None:
    """It read the root that fenced it, whose leader rewrote the internal topic and moved the log start beyond its end
    (seed 472 of three brokers with rewrites)."""
    log = _open_log()
    beyond = log.log_end_offset + 1
    offsets = {"start": beyond, "remote_end": 0, "high_watermark": 1, "stable": 0}
    assert len(await _looked_at(log, **offsets)) == 1
    assert await _looked_at(log, **offsets, leading=False) == []
