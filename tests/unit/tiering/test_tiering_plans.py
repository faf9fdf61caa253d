"""The pure parts of the write side: what to copy, what to reserve, the local copy's bytes, when work runs again."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstore.log.segment import SegmentInfo
from logformat.errors import Retryable
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.fast_loop import run_fast
from tests.support.repository import ROOT
from tiering.copying.copy_plan import CopyRange, NoCopy, copy_lag, next_copy, seal_in_ms
from tiering.opening.reservation import (
    AppendRate,
    LocalReservation,
    block_size,
    decode_reservation,
    encode_reservation,
    raise_to,
    read_reservation,
    remove_reservation,
    write_reservation,
)
from tiering.work_queue import Backoff, StoreRecovery, WorkQueue

TOPIC_ID = UUID(int=7)


def segments(*ends: int) -> list[SegmentInfo]:
    return [
        SegmentInfo(base, end, 100 * (end - base), 5, 1000 + base) for base, end in zip((0, *ends), ends, strict=False)
    ]


# ── copy plan ────────────────────────────────────────────────────────────────────────────────────────────────────────


def plan(sealed: list[SegmentInfo], remote_end: int = 0, log_start: int = 0, stable: int = 10**9) -> CopyRange | NoCopy:
    return next_copy(sealed, remote_end_offset=remote_end, log_start_offset=log_start, stable_end_offset=stable)


def test_the_oldest_segment_above_the_remote_end_is_next() -> None:
    """In order, one at a time."""
    assert plan(segments(10, 20, 30)) == CopyRange(0, 10, 1000)
    assert plan(segments(10, 20, 30), remote_end=10) == CopyRange(10, 20, 1000)
    assert plan(segments(10, 20, 30), remote_end=30) is NoCopy.DONE
    assert plan([]) is NoCopy.DONE


def test_design_c05_the_plan_cuts_a_segment_at_the_remote_end() -> None:
    """Neither overlap nor waiting for ever."""
    assert plan(segments(10, 20, 30), remote_end=13) == CopyRange(13, 20, 1000)


def test_design_c06_the_plan_stops_at_the_stable_end() -> None:
    """A segment that is not flushed and visible to its last offset waits."""
    assert plan(segments(10, 20), stable=9) is NoCopy.UNSTABLE
    assert plan(segments(10, 20), stable=10) == CopyRange(0, 10, 1000)


def test_what_lies_below_the_log_start_is_not_copied() -> None:
    """Deleted records need no archive; the range may then begin above the remote end."""
    assert plan(segments(10, 20, 30), log_start=20) == CopyRange(20, 30, 1000)
    assert plan(segments(10, 20, 30), log_start=15) == CopyRange(10, 20, 1000)


def test_a_hole_between_the_tiers_is_named_not_bridged() -> None:
    """Local segments that begin above the remote end, with readable offsets between: something was lost."""
    assert plan(segments(10, 20, 30)[1:], remote_end=5) is NoCopy.HOLE


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(0, 1000),
)
def test_a_planned_range_keeps_the_invariants(sizes: list[int], remote_end: int, log_start: int, stable: int) -> None:
    """Whatever the offsets: begins at the remote end or below the log start, ends at a segment's end, is stable."""
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    found = plan(segments(*ends), remote_end, log_start, stable)
    if isinstance(found, CopyRange):
        assert found.start_offset == remote_end or remote_end < found.start_offset <= log_start
        assert found.end_offset in ends and found.end_offset <= stable
        assert found.end_offset > max(remote_end, log_start)


def test_lag_counts_what_is_sealed_and_not_copied() -> None:
    """Bytes, segments, and the age of the oldest by its first append."""
    lag = copy_lag(segments(10, 20, 30), 10, 0, 3000)
    assert (lag.bytes, lag.segments, lag.age_ms) == (2000, 2, 3000 - 1010)
    assert copy_lag(segments(10, 20), 20, 0, 3000) == copy_lag([], 0, 0, 0)


def test_the_seal_is_due_by_the_brokers_clock() -> None:
    """The smaller of seal.ms and segment.ms; a clock that jumped back does not hold it up for ever."""
    assert seal_in_ms(None, 0, seal_ms=10, segment_ms=10) is None
    assert seal_in_ms(1000, 1004, seal_ms=10, segment_ms=100) == 6
    assert seal_in_ms(1000, 1004, seal_ms=100, segment_ms=3) == 0
    assert seal_in_ms(10**12, 1000, seal_ms=10, segment_ms=100) == 10


# ── reservation ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_block_is_asked_for_at_half() -> None:
    """While more than half a block is left, nothing; then a whole block above the log's end."""
    assert raise_to(0, 1000, 1000) is None
    assert raise_to(499, 1000, 1000) is None
    assert raise_to(500, 1000, 1000) == 1500
    assert raise_to(1000, 1000, 1000) == 2000
    assert raise_to(0, 1000, 1000, needed_end=1000) is None
    assert raise_to(0, 1000, 1000, needed_end=5000) == 5000
    assert raise_to(900, 1000, 1000, needed_end=1200) == 1900


def test_a_block_grows_with_the_last_hours_appends() -> None:
    """An hour's appends, but never less than the least; samples older than an hour are forgotten."""
    rate = AppendRate()
    for minute in range(0, 121, 5):
        rate.note(minute * 60_000, minute * 1000)
    assert rate.last_hour(120_000) == 60_000
    assert block_size(1 << 20, 60_000) == 1 << 20 and block_size(1000, 60_000) == 60_000


RESERVATIONS = st.builds(
    LocalReservation,
    st.uuids(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.booleans(),
    st.from_regex(r"[0-9a-f-]{1,36}", fullmatch=True),
)


@given(RESERVATIONS)
def test_the_local_copy_comes_back_as_written(value: LocalReservation) -> None:
    """Bytes and back."""
    assert decode_reservation(encode_reservation(value)) == value


def test_the_documents_example_is_what_is_written() -> None:
    """docs/formats/reservation.md shows these very bytes."""
    page = (ROOT / "docs/formats/reservation.md").read_text()
    example = page.rsplit("```\n", 2)[1].encode()
    found = decode_reservation(example)
    assert found is not None and encode_reservation(found) == example
    assert (found.partition, found.reserved_end, found.flush_sync) == (3, 1 << 20, True)


@given(RESERVATIONS, st.data())
def test_a_damaged_local_copy_is_as_good_as_missing(value: LocalReservation, data: st.DataObject) -> None:
    """Any flipped bit, any cut: never another number."""
    good = encode_reservation(value)
    at = data.draw(st.integers(0, len(good) - 1))
    flipped = bytearray(good)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    assert decode_reservation(bytes(flipped)) in (None, value)
    assert decode_reservation(good[: at // 2]) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_reservation_or_none(data: bytes) -> None:
    """Hostile bytes raise nothing."""
    decode_reservation(data)


def test_a_reservation_of_another_partition_is_not_ours() -> None:
    """A directory that was copied or renamed has no usable reservation."""
    disk = CrashDisk()
    disk.make_dirs("/data/a-0")
    directory = disk.open_dir("/data/a-0")
    write_reservation(directory, LocalReservation(TOPIC_ID, 0, 5, True, "b"))
    assert read_reservation(directory, TOPIC_ID, 0) is not None
    assert read_reservation(directory, TOPIC_ID, 1) is None
    assert read_reservation(directory, UUID(int=8), 0) is None
    remove_reservation(directory)
    remove_reservation(directory)
    assert read_reservation(directory, TOPIC_ID, 0) is None


# ── work queue ───────────────────────────────────────────────────────────────────────────────────────────────────────


def queued(places: int, scenario: Callable[[WorkQueue, list[str]], object]) -> list[tuple[str, BaseException]]:
    """Run a scenario with a queue; the failures that were reported."""
    reported: list[tuple[str, BaseException]] = []

    async def body() -> None:
        tasks = Tasks(lambda name, failure: reported.append((name, failure)))
        queue = WorkQueue(places, Backoff(1.0, 8.0, 0.0), SeededRng(1), tasks, StoreRecovery(SeededRng(1)))
        result = scenario(queue, [])
        assert asyncio.iscoroutine(result)
        await result
        queue.close()
        await tasks.close()

    run_fast(body())
    return reported


def test_a_wake_during_a_run_starts_another_run() -> None:
    """Nothing that happens while a job works is missed, and it never runs beside itself."""

    async def scenario(queue: WorkQueue, ran: list[str]) -> None:
        async def work() -> float | None:
            ran.append("begin")
            await asyncio.sleep(1)
            ran.append("end")
            return None

        job = queue.add("job", work)
        queue.wake(job)
        await asyncio.sleep(0.5)
        queue.wake(job)
        queue.wake(job)
        await asyncio.sleep(10)
        assert ran == ["begin", "end", "begin", "end"]

    queued(4, scenario)


def test_a_failure_backs_off_and_a_wake_does_not_shorten_it() -> None:
    """1, 2, 4, 8, 8 s; after a success at once again. Retryable is expected, anything else is reported."""

    async def scenario(queue: WorkQueue, _: list[str]) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        times: list[float] = []

        async def work() -> float | None:
            times.append(loop.time() - start)
            if len(times) < 6:
                raise Retryable("later") if len(times) % 2 else MemoryError
            return None

        job = queue.add("job", work)
        queue.wake(job)
        for _ in range(60):
            await asyncio.sleep(0.5)
            queue.wake(job)
        assert [round(t) for t in times[:6]] == [0, 1, 3, 7, 15, 23]
        assert len(times) > 10, "after it succeeded every wake runs it"

    assert [type(failure) for _, failure in queued(1, scenario)] == [MemoryError, MemoryError]


def test_places_are_bounded_and_served_in_order() -> None:
    """Two places, five jobs: never more than two at once, first come first served."""

    async def scenario(queue: WorkQueue, ran: list[str]) -> None:
        async def work(name: str) -> None:
            assert queue.running <= 2
            ran.append(name)
            await asyncio.sleep(1)

        jobs = [queue.add(n, lambda n=n: work(n)) for n in "abcde"]  # type: ignore[misc]
        for job in jobs:
            queue.wake(job)
        assert queue.waiting == 3
        await asyncio.sleep(10)
        assert ran == list("abcde")

    queued(2, scenario)


def test_a_job_asks_for_its_next_look_and_a_removed_one_never_looks_again() -> None:
    """The earliest of several timers counts; removal cancels what runs."""

    async def scenario(queue: WorkQueue, ran: list[str]) -> None:
        async def work() -> float | None:
            ran.append("run")
            return 3.0

        job = queue.add("job", work)
        queue.wake_in(job, 50)
        queue.wake_in(job, 2)
        queue.wake_in(job, 20)
        await asyncio.sleep(9)
        assert len(ran) == 3
        await queue.remove(job)
        queue.wake(job)
        await asyncio.sleep(9)
        assert len(ran) == 3

        async def endless() -> float | None:
            await asyncio.sleep(10**6)
            return None

        stuck = queue.add("stuck", endless)
        queue.wake(stuck)
        await asyncio.sleep(1)
        await queue.remove(stuck)
        assert queue.running == 0

    assert queued(1, scenario) == []


def test_backoff_has_jitter() -> None:
    """Thousands of partitions do not come back in step."""
    backoff = Backoff(1.0, 8.0, 0.2)
    waits = {backoff.wait_s(1, SeededRng(n)) for n in range(20)}
    assert len(waits) == 20 and all(0.8 <= wait <= 1.2 for wait in waits)
    assert backoff.wait_s(10**9, SeededRng(1)) == pytest.approx(8.0, rel=0.2)


def test_a_reservation_whose_removal_was_refused_once_stays_removed() -> None:
    """The name was unlinked, its sync failed, and the next attempt found nothing to remove: after a power cut the copy
    was there again, and allowed offsets that later leaders had assigned."""
    disk = CrashDisk()
    disk.make_dirs("/log")
    disk.sync_dir("/")
    directory = disk.open_dir("/log")
    write_reservation(directory, LocalReservation(TOPIC_ID, 0, 70, flush_sync=True, boot_id="b"))
    disk.inject("sync_dir", errno.EIO)
    disk.inject("sync", errno.EIO)
    with pytest.raises(OSError, match="injected"):
        remove_reservation(directory)
    remove_reservation(directory)
    after = disk.crash(SeededRng(1), 0.0)
    assert read_reservation(after.open_dir("/log"), TOPIC_ID, 0) is None
