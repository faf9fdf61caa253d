"""No tick looks at idle partitions: whole brokers in virtual time, everything that runs counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from hotstore.host.offset_checkpoints import OffsetCheckpoints
from hotstore.log.partition_log import PartitionLog
from tests.support.brokers.broker_kit import Life, Place
from tests.support.fast_loop import run_fast
from tiering.work_queue import Job, WorkQueue

PARTITIONS = 20
DEFAULTS = (
    "remote.log.manager.task.interval.ms=30000",
    "log.retention.check.interval.ms=300000",
    "log.retention.ms=604800000",
)
HOUR_S = 3600.0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a background job began, by its kind, a log was sampled, a checkpoint written."""
    counted: Counter[str] = Counter()
    start, sample, save = WorkQueue._start_next, vars(PartitionLog)["start_to_checkpoint"].fget, OffsetCheckpoints._save

    def started(self: WorkQueue) -> None:
        job: Job = self._ready[0]
        counted[job.name.split(" ")[0]] += 1
        start(self)

    def sampled(self: PartitionLog) -> Any:
        counted["sampled"] += 1
        return sample(self)

    def saved(self: OffsetCheckpoints, name: str) -> None:
        counted[name] += 1
        save(self, name)

    monkeypatch.setattr(WorkQueue, "_start_next", started)
    monkeypatch.setattr(PartitionLog, "start_to_checkpoint", property(sampled))
    monkeypatch.setattr(OffsetCheckpoints, "_save", saved)
    return counted


async def settled(**configs: str) -> Life:
    """A broker whose partitions were made a while ago."""
    life = await Place(*DEFAULTS).start()
    await life.create("idle", PARTITIONS, **configs)
    return life


@pytest.mark.parametrize("tiered", ["true", "false"])
def test_an_hour_of_empty_partitions_runs_nothing(looks: Counter[str], tiered: str) -> None:
    """Neither for the bucket, nor for retention, nor for checkpoints."""

    async def scenario() -> None:
        life = await settled(remote_storage_enable=tiered)
        await asyncio.sleep(1200)
        looks.clear()
        await asyncio.sleep(HOUR_S)
        assert looks == {}
        await life.stop()

    run_fast(scenario(), timeout_s=10 * HOUR_S)


def test_partitions_that_hold_something_are_looked_at_when_time_may_have_made_it_due(looks: Counter[str]) -> None:
    """An hour after the last record all is sealed and copied; then a look an hour each (seven days of retention)."""

    async def scenario() -> None:
        life = await settled(remote_storage_enable="true")
        for index in range(PARTITIONS):
            await life.produce("idle", b"v", index=index)
        await asyncio.sleep(2 * HOUR_S)
        assert all(life.partition("idle", index).tier.remote_end_offset == 1 for index in range(PARTITIONS))
        looks.clear()
        await asyncio.sleep(HOUR_S)
        assert looks["expire"] <= PARTITIONS
        assert set(looks) <= {"expire"}
        await life.stop()

    run_fast(scenario(), timeout_s=10 * HOUR_S)


def test_one_busy_partition_does_not_make_the_others_looked_at(looks: Counter[str]) -> None:
    """A record a second into one: only its own log is sampled for the checkpoints."""

    async def scenario() -> None:
        life = await settled()
        await asyncio.sleep(1200)
        looks.clear()
        for _ in range(60):
            await life.produce("idle", b"v", index=7)
            await asyncio.sleep(1)
        assert 10 <= looks["sampled"] <= 60
        await life.stop()

    run_fast(scenario(), timeout_s=10 * HOUR_S)


def test_retention_still_ends_what_is_idle() -> None:
    """Two hours of retention, nothing appended since: gone soon after they are over, from both tiers."""

    async def scenario() -> None:
        life = await settled(remote_storage_enable="true", retention_ms="7200000")
        for at in range(5):
            await life.produce("idle", b"%d" % at, index=3)
        await asyncio.sleep(1.9 * HOUR_S)
        assert life.partition("idle", 3).log_start_offset == 0
        await asyncio.sleep(0.5 * HOUR_S)
        assert life.partition("idle", 3).log_start_offset == 5
        await life.stop()

    run_fast(scenario(), timeout_s=40 * HOUR_S)
