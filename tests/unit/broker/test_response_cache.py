"""What is kept of encoded answers, and for how long: the bounds and the stamp."""

from __future__ import annotations

from broker.following.response_cache import ANSWERS_MAX, BYTES_MAX, BYTES_MIN, ResponseCache

BODY = bytes(BYTES_MIN)


def test_what_was_kept_goes_with_its_stamp() -> None:
    """Another one lets go of all, and what was made at an old one that is kept late lets go of the new in turn."""
    kept = ResponseCache()
    kept.keep(1, "all", BODY)
    assert kept.get(1, "all") is BODY and kept.get(1, "other") is None
    assert kept.get(2, "all") is None and (len(kept), kept.kept_bytes) == (0, 0)
    assert kept.get(1, "all") is None


def test_an_answer_that_is_short_or_longer_than_all_is_not_kept() -> None:
    kept = ResponseCache(bytes_max=2 * BYTES_MIN)
    kept.keep(1, "short", BODY[1:])
    kept.keep(1, "long", BODY * 2 + b"x")
    assert len(kept) == 0
    kept.keep(1, "fits", BODY * 2)
    assert len(kept) == 1


def test_bytes_and_count_are_bounded_and_the_one_not_asked_for_longest_goes() -> None:
    """However many questions there are, and however long the answers."""
    kept = ResponseCache()
    for number in range(3 * ANSWERS_MAX):
        kept.keep(1, number, BODY)
        assert kept.get(1, 0) is BODY  # asked for each time: it stays
        assert len(kept) <= ANSWERS_MAX
    assert kept.get(1, 1) is None
    third = bytes(BYTES_MAX // 3)
    for number in range(9):
        kept.keep(1, ("long", number), third)
        assert kept.kept_bytes <= BYTES_MAX
    assert [number for number in range(9) if kept.get(1, ("long", number)) is not None] == [6, 7, 8]


def test_an_answer_that_is_kept_twice_counts_once() -> None:
    """Two clients asked before either was answered."""
    kept = ResponseCache()
    for _ in range(3):
        kept.keep(1, "all", BODY)
    assert (len(kept), kept.kept_bytes) == (1, len(BODY))
