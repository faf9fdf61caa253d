"""Compacted topics with transactions (TX17): aborted records go at the first pass and supersede nothing, markers and
the index of aborted transactions stay, nothing undecided is cleaned."""

from __future__ import annotations

from random import Random

import pytest

from hotstore.host.lease import Lease
from logformat.record_batch import Codec, read_header
from logformat.records import Record, encode_batch, iter_records
from logformat.transaction_marker import TransactionMarker, marker_of
from seams import crash_points
from tests.support.disk.hotstore_kit import read_all
from tests.unit.hotstore.cleaning.test_log_cleaner import CONFIG, TABLE, Scene


def put_in(scene: Scene, lease: Lease, producer_id: int, sequence: int, *pairs: tuple[bytes, bytes | None]) -> int:
    records = [Record(at, 1_000, key, value) for at, (key, value) in enumerate(pairs)]
    codec = Codec.LZ4 if sequence % 3 == 2 else Codec.NONE
    data = memoryview(
        bytearray(
            encode_batch(
                records,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
        )
    )
    return lease.log.append_transactional(data, read_header(data), 1, scene.clock.wall_ms()).base_offset


def end(scene: Scene, lease: Lease, producer_id: int, *, commit: bool) -> int:
    (offset,) = lease.log.append_markers([TransactionMarker(producer_id, 0, commit, 0)], 1, scene.clock.wall_ms())
    assert isinstance(offset, int)
    return offset


def committed(lease: Lease) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The table as a read_committed consumer sees it."""
    log = lease.log
    aborted = log.aborted_between(0, log.log_end_offset)
    found: dict[bytes | None, tuple[int, bytes | None]] = {}
    for data in read_all(log, log.local_log_start_offset):
        header = read_header(data)
        hidden = header.is_transactional and any(
            of.producer_id == header.producer_id and of.first_offset <= header.base_offset <= of.last_offset
            for of in aborted
        )
        if not header.is_control and not hidden:
            found |= {record.key: (record.offset, record.value) for record in iter_records(data)}
    return found


def markers(lease: Lease) -> list[int]:
    return [read_header(data).base_offset for data in read_all(lease.log, 0) if marker_of(data) is not None]


async def test_an_aborted_record_supersedes_nothing() -> None:
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k", b"first"), (b"l", b"l")])
    put_in(scene, lease, 7, 0, (b"k", b"aborted"))
    marker = end(scene, lease, 7, commit=False)
    await scene.put(lease, [(b"x%d" % n, b"x" * 60) for n in range(20)])
    assert await scene.clean()
    assert committed(lease)[b"k"] == (0, b"first")
    data = [read_header(batch) for batch in read_all(lease.log, 0)]
    left = sum(header.record_count for header in data if header.is_transactional and not header.is_control)
    assert left == 0, "gone at the first pass; the batch stays, because it is its producer's last"
    assert markers(lease) == [marker]


async def test_what_is_undecided_is_not_cleaned() -> None:
    """The dirty end is the last stable offset."""
    scene = Scene()
    lease = await scene.lent()
    first = put_in(scene, lease, 7, 0, (b"k", b"open"))
    await scene.put(lease, [(b"x%d" % (n % 3), b"x" * 60) for n in range(40)])
    owner = lease.log.owner
    owner.cleanable = lease.log.last_stable_offset(lease.log.log_end_offset)  # type: ignore[attr-defined]
    assert owner.cleanable == first == 0  # type: ignore[attr-defined]
    assert not await scene.clean()


@pytest.mark.parametrize("seed", range(8))
async def test_readers_see_the_same_table_after_passes_and_restarts(seed: int) -> None:
    rng = Random(seed)
    scene = Scene()
    lease = await scene.lent()
    sequences: dict[int, int] = {}
    for _ in range(4):
        for _ in range(30):
            producer_id = rng.randint(1, 3)
            if producer_id in lease.log.producers.transactions.first_offsets and rng.random() < 0.4:
                end(scene, lease, producer_id, commit=rng.random() < 0.5)
            else:
                sequence = sequences.get(producer_id, 0)
                pairs = [(b"k%d" % rng.randint(0, 6), b"v%d" % rng.randint(0, 999)) for _ in range(rng.randint(1, 3))]
                put_in(scene, lease, producer_id, sequence, *pairs)
                sequences[producer_id] = sequence + len(pairs)
        for producer_id in tuple(lease.log.producers.transactions.first_offsets):
            end(scene, lease, producer_id, commit=rng.random() < 0.5)
        before, marked = committed(lease), markers(lease)
        await scene.put(lease, [(b"pad", b"p" * 60) for n in range(12)])
        await scene.clean()
        now = committed(lease)
        now.pop(b"pad", None)
        before.pop(b"pad", None)
        assert now == before and markers(lease) == marked
        aborted = lease.log.aborted_between(0, lease.log.log_end_offset)
        lease.end()
        await lease.returned()
        await scene.logs.close(lease.opened, clean=rng.random() < 0.5)
        opened = await scene.logs.open(TABLE, lease.opened.topic_id, CONFIG)
        assert opened is not None
        lease = scene.lend(opened)
        assert sorted(lease.log.aborted_between(0, lease.log.log_end_offset)) == sorted(aborted)
        now = committed(lease)
        now.pop(b"pad", None)
        assert now == before


@pytest.mark.parametrize("point", ["clean.written", "clean.committed", "clean.replaced"])
async def test_a_swap_that_a_crash_interrupts_keeps_the_index(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever names the files have: the aborted list after the start is that of before."""
    scene = Scene()
    lease = await scene.lent()
    kept = put_in(scene, lease, 7, 0, (b"k", b"aborted"))
    marker = end(scene, lease, 7, commit=False)
    await scene.put(lease, [(b"x%d" % (n % 3), b"x" * 60) for n in range(30)])

    class Died(OSError):
        pass

    def reach(name: str) -> None:
        if name == point:
            raise Died(5, "the process died here")

    with monkeypatch.context() as dying:
        dying.setattr(crash_points, "reach", reach)
        await scene.clean()
    lease.end()
    await lease.returned()
    await scene.logs.close(lease.opened, clean=False)
    opened = await scene.logs.open(TABLE, lease.opened.topic_id, CONFIG)
    assert opened is not None
    found = opened.log.aborted_between(0, opened.log.log_end_offset)
    assert [(of.producer_id, of.first_offset, of.last_offset) for of in found] == [(7, kept, marker)]
