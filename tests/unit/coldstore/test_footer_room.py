"""How much room a footer is given before its log was looked at: enough, and little more than it takes."""

from __future__ import annotations

import random
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstore.keys import SegmentKey
from coldstore.segments.footer_room import footer_room
from coldstore.segments.segment_object import SegmentFooter, build_footer
from coldstore.segments.segment_scanner import CHUNK_BYTES, Scan, interval_of
from coldstore.segments.segment_sections import FooterOutgrown
from logformat.indexes.segment_index import SegmentIndexer
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.producer_snapshot import BatchRecord, ProducerEntry, ProducerState
from logformat.record_batch import LOG_OVERHEAD, Fields
from tests.support.tier.cold_objects import T0
from tests.support.tier.cold_values import TOPIC_ID

KEY = SegmentKey(TOPIC_ID, 0, 0, 1, UUID(int=7, version=4))
MIB = 1 << 20
Sizes = Callable[[random.Random], int]

KINDS: dict[str, tuple[Sizes, int]] = {
    "full batches of a Java producer": (lambda rng: rng.randint(15_900, 16_384), 0),
    "full batches of one size": (lambda rng: 16_300, 0),
    "2 to 16 KB": (lambda rng: rng.randint(2000, 16_000), 0),
    "2 to 16 KB, out of order by seconds": (lambda rng: rng.randint(2000, 16_000), 5000),
    "records of 100 B one by one": (lambda rng: rng.randint(150, 190), 0),
    "records of 1 KB one by one": (lambda rng: rng.randint(900, 1200), 0),
    "just what Kafka's indexes miss": (lambda rng: 4096, 0),
    "about that": (lambda rng: rng.randint(4000, 4200), 0),
    "that among large ones": (lambda rng: rng.choice([4096, 4096, 4096, 20_000]), 0),
    "100 B to 30 KB": (lambda rng: int(100 * 300 ** rng.random()), 0),
    "few large ones among small": (lambda rng: rng.choice([200, 200, 200, 200, 16_300]), 100),
    "64 KB": (lambda rng: rng.randint(60_000, 65_536), 0),
    "1 MiB": (lambda rng: rng.randint(900_000, MIB), 0),
}


class Made:
    """What a scan and what the local log's indexes say of batches that nobody wrote."""

    def __init__(self, sizes: Sizes, log_bytes: int, late_ms: int, seed: int) -> None:
        rng = random.Random(seed)
        headers: list[Fields] = []
        total, now = 0, float(T0)
        while total < log_bytes:
            size = sizes(rng)
            count = max(1, size // 116)
            now += rng.expovariate(30 / size)
            newest = int(now) + rng.randint(-late_ms, late_ms)
            headers.append((0, size - LOG_OVERHEAD, 1, 2, 0, 0, count - 1, newest, newest, -1, -1, -1, count))
            total += size
        self.log_bytes, self.end_offset = total, sum(header[12] for header in headers)
        seen, local = SegmentIndexer(0, interval_of(total)), SegmentIndexer(0)
        for indexer in (seen, local):
            indexer.add_run(headers, 0, 0)
            indexer.seal()
        self.local = local.offset_index, local.time_index
        self.scan = Scan(
            base_offset=0,
            end_offset=self.end_offset,
            log_bytes=total,
            batches=len(headers),
            records=self.end_offset,
            min_timestamp_ms=T0,
            max_timestamp_ms=seen.max_timestamp,
            gaps=(),
            epochs=((1, 0),),
            offset_index=seen.offset_index,
            time_index=seen.time_index,
            chunk_bytes=CHUNK_BYTES,
            chunk_crcs=(2**32 - 1,) * -(-total // CHUNK_BYTES),
            log_crc32c=7,
        )

    def footers(self, lineage: LeaderEpochs, producers: ProducerState) -> tuple[bytes, bytes]:
        """The footer in its room, and without a filler. Raises FooterOutgrown."""
        room = footer_room(
            KEY, "t", self.end_offset, self.log_bytes, lineage=lineage, producers=producers, indexes=self.local
        )
        exact = build_footer(KEY, "t", self.scan, lineage=lineage, producers=producers)
        return build_footer(KEY, "t", self.scan, lineage=lineage, producers=producers, size=room), exact


def producers_of(end_offset: int, count: int) -> ProducerState:
    last = (BatchRecord(0, 0, end_offset - 1, end_offset - 1, T0),)
    return ProducerState(end_offset, tuple(ProducerEntry(n, 0, last, T0) for n in range(count)))


@pytest.mark.parametrize("log_mib", [3, 20, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_a_footers_room_is_enough_and_little_more(kind: str, log_mib: int) -> None:
    """What producers write is never announced too small, and a reader fetches at most 7 KB of filler with a footer; by
    the log's size alone it would be up to 58 KB."""
    sizes, late_ms = KINDS[kind]
    made = Made(sizes, log_mib * MIB, late_ms, seed=log_mib)
    footer, exact = made.footers(LeaderEpochs((EpochStart(1, 0),)), producers_of(made.end_offset, 1))
    assert len(footer) - len(exact) <= 7 * 1024
    parsed = SegmentFooter.parse(footer, made.log_bytes + len(footer))
    assert parsed.offset_index.to_bytes() == made.scan.offset_index.to_bytes()
    assert parsed.time_index.to_bytes() == made.scan.time_index.to_bytes()


def test_producers_and_epochs_are_given_what_they_take() -> None:
    """5000 producers and 300 epochs add nothing to the filler: their sections' lengths are known."""
    made = Made(KINDS["2 to 16 KB"][0], 20 * MIB, 0, seed=1)
    lineage = LeaderEpochs(tuple(EpochStart(n, n) for n in range(300)))
    few, few_exact = made.footers(LeaderEpochs((EpochStart(0, 0),)), producers_of(made.end_offset, 1))
    many, many_exact = made.footers(lineage, producers_of(made.end_offset, 5000))
    assert len(many_exact) > len(few_exact) + 100_000
    statistics = 300 * len("[2147483647,9223372036854775807],")  # one for each epoch that the range may hold
    assert 0 <= (len(many) - len(many_exact)) - (len(few) - len(few_exact)) <= statistics


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(70, 60_000), min_size=1, max_size=6),
    log_bytes=st.integers(1, 12 * MIB),
    late_ms=st.sampled_from([0, 1, 1000, 100_000]),
    producers=st.integers(0, 50),
    seed=st.integers(0, 2**32),
)
def test_any_batches_fit_or_are_told(sizes: list[int], log_bytes: int, late_ms: int, producers: int, seed: int) -> None:
    """Batches of any few sizes in any order: the filler is small, or the footer outgrew its room and says so."""
    made = Made(lambda rng: rng.choice(sizes), log_bytes, late_ms, seed)
    lineage, state = LeaderEpochs((EpochStart(1, 0),)), producers_of(made.end_offset, producers)
    try:
        footer, exact = made.footers(lineage, state)
    except FooterOutgrown as outgrown:
        assert "was announced" in str(outgrown)
    else:
        assert 0 <= len(footer) - len(exact) <= 7 * 1024


def test_without_indexes_the_room_is_what_is_probable_at_most() -> None:
    """A log whose own indexes are too sparse to tell: still enough."""
    made = Made(KINDS["2 to 16 KB"][0], 20 * MIB, 0, seed=2)
    lineage, state = LeaderEpochs((EpochStart(1, 0),)), producers_of(made.end_offset, 1)
    loose = footer_room(KEY, "t", made.end_offset, made.log_bytes, lineage=lineage, producers=state)
    footer, _ = made.footers(lineage, state)
    assert len(footer) < loose
    assert len(build_footer(KEY, "t", made.scan, lineage=lineage, producers=state, size=loose)) == loose
