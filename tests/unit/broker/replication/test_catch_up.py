"""Where a replica goes on that lacks what its leader has: the choice alone (R3, R26, D79)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.replication.catch_up import LaggingReplica, Start, bytes_between, skips_to_bucket, start_of
from hotstore.log.segment import SegmentInfo

OFFSETS = st.integers(0, 1_000)
SKIP = 100


def test_who_is_sent_to_the_bucket() -> None:
    """An empty one at once; one that lacks more than the limit; nobody who is there already, or found the bucket of no
    use."""
    empty, some = LaggingReplica(0, is_empty=True), LaggingReplica(50, is_empty=False)
    assert skips_to_bucket(empty, 51, lambda _: 1, SKIP)
    assert not skips_to_bucket(some, 51, lambda _: SKIP, SKIP)
    assert skips_to_bucket(some, 51, lambda _: SKIP + 1, SKIP)
    assert not skips_to_bucket(some, 50, lambda _: SKIP + 1, SKIP), "nothing lies between"
    assert not skips_to_bucket(some, -1, lambda _: SKIP + 1, SKIP), "its topic has no bucket"
    assert not skips_to_bucket(empty._replace(copies_on=True), 51, lambda _: SKIP + 1, SKIP)


def test_where_it_begins() -> None:
    """At the verified end; at the log start, where all below that expired or was deleted (D79); nowhere, when it is
    there already: its leader will say more."""
    assert start_of(0, 500, 20) == Start(500, is_bare=False)
    assert start_of(0, 500, 700) == Start(700, is_bare=False)
    assert start_of(0, -1, 700) == Start(700, is_bare=True)
    assert start_of(500, 500, 20) is None and start_of(0, -1, 0) is None


@given(OFFSETS, st.booleans(), st.integers(-1, 1_000), OFFSETS, st.integers(0, 500), st.integers(0, 500))
def test_nobody_goes_back_nor_is_sent_for_ever(
    end: int, is_empty: bool, verified_end: int, log_start: int, size: int, skip: int
) -> None:
    """Whoever is sent on begins further on, at or above the log start, and is not sent there again; a larger limit
    sends nobody on who stayed with a smaller one."""
    replica = LaggingReplica(end, is_empty)
    if skips_to_bucket(replica, verified_end, lambda _: size, skip):
        start = start_of(end, verified_end, log_start)
        assert start is not None and start.offset > end and start.offset >= log_start and not start.is_bare
        assert not skips_to_bucket(replica._replace(end=start.offset), verified_end, lambda _: size, skip)
    else:
        assert not skips_to_bucket(replica, verified_end, lambda _: size, skip + 1)


def test_bytes_between_offsets_are_their_share_of_segments() -> None:
    segments = [SegmentInfo(0, 100, 1000, 0, 0), SegmentInfo(100, 200, 500, 0, 0), SegmentInfo(200, 200, 0, 0, 0)]
    assert bytes_between(segments, 0, 200) == 1500
    assert bytes_between(segments, 50, 200) == 1000
    assert bytes_between(segments, 50, 150) == 750
    assert bytes_between(segments, 150, 200) == 250
    assert bytes_between(segments, 200, 300) == bytes_between(segments, 90, 90) == 0
