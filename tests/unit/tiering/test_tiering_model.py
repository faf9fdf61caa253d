"""A partition through many lives against a list: whatever happens, no offset means two records and none is lost.

The model is the list of records a consumer may have seen: flushed, hence visible. Each step appends, lets time pass,
moves retention, ends the life one way or another, or breaks the store; after each start the log is compared with it.
"""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hotstore.errors import ReservationExhausted
from logformat.errors import Retryable
from seams.rng import SeededRng
from tests.support.fast_loop import run_fast
from tests.support.store.faulty_store import FaultPlan, FaultyStore, even_rates
from tests.support.tier.tier_kit import LIMITS, LOG, TIER, House, Life, Opened, read_everything, settle

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fill"), st.integers(1, 30)),
        st.tuples(st.just("wait"), st.integers(1, 20)),
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("seal"), st.just(0)),
        st.tuples(st.just("faults"), st.integers(0, 4)),
        st.tuples(st.just("delete"), st.integers(0, 100)),
        st.tuples(st.just("end"), st.sampled_from([0, 1, 2, 3, 4])),
    ),
    min_size=3,
    max_size=14,
)
COLD = replace(TIER, local_retention_ms=3_000)
QUICK = replace(LIMITS, reservation_offsets=64)


class Model:
    """What consumers may have seen, and the house it happened in."""

    def __init__(self, seed: int, *, flush_sync: bool) -> None:
        self.house = House(seed=seed)
        self.store = FaultyStore(self.house.memory, SeededRng(seed), FaultPlan(late_s=(0.1, 5.0)))
        self.log = replace(LOG, flush_sync=flush_sync)
        self.seen: dict[int, bytes] = {}  # acknowledged, or still in a page cache that was never lost
        self.given: dict[int, bytes] = {}  # every offset ever given, to any record
        self.remote_end = 0
        self.log_start = 0
        self.life: Life
        self.opened: Opened

    async def start(self, *, new: bool = False) -> None:
        self.life = await self.house.start(limits=QUICK, store=self.store)
        while True:
            try:
                self.opened = await self.life.open(new=new, log=self.log, tier=COLD)
                return
            except Retryable:
                await asyncio.sleep(1)

    async def fill(self, batches: int) -> None:
        log = self.opened.log
        for _ in range(batches):
            start = log.log_end_offset
            try:
                self.life.append(2)
            except ReservationExhausted:
                await asyncio.sleep(2)
                continue
            for offset in (start, start + 1):
                value = b"%d/%08d" % (self.house.lives, offset) + b"x" * 100
                known = self.given.get(offset)
                assert known is None or offset not in self.seen, f"offset {offset} is given twice"
                self.given[offset] = value
            if self.log.waits_for_flush:
                await self.opened.flusher.flush()
            self.seen.update((offset, self.given[offset]) for offset in (start, start + 1))
        if self.log.waits_for_flush:
            await self.opened.flusher.flush()

    async def delete(self, percent: int) -> None:
        offset = self.opened.log.log_end_offset * percent // 100
        if offset <= max(self.opened.log.log_start_offset, self.opened.tier.log_start_offset):
            return
        try:
            await self.opened.tier.delete_records(offset)
        except Retryable:
            return
        self.log_start = offset

    async def end(self, how: int) -> None:
        """0 clean, 1 clean after sealing, 2 kill, 3 power cut, 4 the disk is lost."""
        self.remote_end = max(self.remote_end, self.opened.tier.remote_end_offset)
        if how <= 1:
            self.store.calm()
            await self.life.stop(seal=bool(how))
        elif how == 2:
            await self.life.kill()
        elif how == 3:
            await self.life.power_cut(keep=0.5)
            if not self.log.waits_for_flush:
                self._forget(self.remote_end)
        else:
            await self.life.lose_disk()
            self._forget((await self.house.manifest()).remote_end_offset)
        await self.start()
        await self.check()

    def _forget(self, end: int) -> None:
        """Records at or above `end` may be gone; their offsets stay given."""
        self.lost = {o: v for o, v in self.seen.items() if o >= end}
        self.seen = {o: v for o, v in self.seen.items() if o < end}

    async def check(self) -> None:
        self.store.calm()
        await self.store.settle()
        opened = self.opened
        await settle(lambda: opened.tier.partition_state.claimed)
        log = opened.log
        start = max(log.log_start_offset, opened.tier.log_start_offset)
        assert start >= self.log_start, "deleted records are back"
        self.log_start = start
        assert start <= log.local_log_start_offset <= log.log_end_offset
        assert log.local_log_start_offset <= max(start, opened.tier.remote_end_offset)
        assert opened.tier.remote_end_offset <= log.flushed_end_offset
        found = await read_everything(self.house, opened)
        for offset, value in self.seen.items():
            if offset >= start:
                assert found.get(offset) == value, f"record at {offset} is lost or changed"
        for offset, value in found.items():
            assert self.given[offset] == value, f"offset {offset} holds what nobody wrote there last"
            if offset in getattr(self, "lost", {}):
                assert self.lost[offset] == value, f"offset {offset} means two records"
        self.seen = found
        manifest = await self.house.manifest()
        manifest.check()
        assert manifest.reserved_end_offset >= log.log_end_offset

    async def run(self, steps: list[tuple[str, int]]) -> None:
        await self.start(new=True)
        for name, argument in [*steps, ("end", 2)]:
            match name:
                case "fill":
                    await self.fill(argument)
                case "wait":
                    await asyncio.sleep(argument)
                case "roll":
                    self.opened.log.roll()
                    self.opened.tier.rolled()
                case "seal":
                    self.store.calm()
                    await self.opened.tier.seal_and_copy()
                case "faults":
                    self.store.plan = replace(self.store.plan, rates=even_rates(argument / 50), flips=lambda key: False)
                case "delete":
                    await self.delete(argument)
                case "end":
                    await self.end(argument)
        await self.check()
        await self.life.kill()
        await self.store.close()
        unexpected = [failure for _, failure in self.house.failures if not isinstance(failure, OSError)]
        assert not unexpected


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(0, 10**6))
def test_no_offset_means_two_records_and_none_is_lost_sync(steps: list[tuple[str, int]], seed: int) -> None:
    """`thermocline.flush=sync`: what was flushed survives all but a lost disk, which loses what was not copied."""
    run_fast(Model(seed, flush_sync=True).run(steps))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(0, 10**6))
def test_no_offset_means_two_records_and_none_is_lost_os(steps: list[tuple[str, int]], seed: int) -> None:
    """`os`: a power cut may lose what was not copied; its offsets are never given to another record."""
    run_fast(Model(seed, flush_sync=False).run(steps))
