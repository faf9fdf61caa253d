"""What `cluster status` shows of copies: bars to the letter, and the book of a watch."""

from __future__ import annotations

from thermocline.cli.cluster.moves.copying import CopyBook, Copying, beside

MIB = 1 << 20


def copy(partition: int = 0, copied: int | None = 0, hot: int | None = 20 * MIB, node: int = 3) -> Copying:
    return Copying("log", partition, node, copied, hot, 180 * MIB, is_move=True)


def test_nothing_is_shown_where_nothing_was_copied() -> None:
    book = CopyBook()
    book.note([], 1.0)
    assert book.lines(plain=True) == []


def test_what_has_to_move_beside_what_does_not() -> None:
    """Progress, pace and both tiers to one scale; each copy a row."""
    book = CopyBook()
    book.note([copy(), copy(1)], 10.0)
    book.note([copy(copied=10 * MIB), copy(1, copied=5 * MIB)], 12.0)
    assert book.lines(plain=True) == [
        "2 replicas are being copied",
        "[###########...................]  37 %  15.0 MiB of 40.0 MiB copied, 8 MB/s, 3s left",
        "  has to move          ####                                     40.0 MiB",
        "  stays in the bucket  ######################################## 360.0 MiB",
        "partition  to broker  and                  copied        of  in the bucket",
        "log-0              3  joins  #####.....  10.0 MiB  20.0 MiB      180.0 MiB",
        "log-1              3  joins  ##........   5.0 MiB  20.0 MiB      180.0 MiB",
    ]
    assert "█" in book.lines(plain=False)[1]


def test_what_is_over_counts_as_whole_while_the_watch_lasts() -> None:
    """Its leader's tail sinks meanwhile, or what it copied leaves its disk again: neither takes anything back."""
    book = CopyBook()
    book.note([copy(copied=10 * MIB)], 1.0)
    book.note([copy(copied=4 * MIB, hot=8 * MIB)], 2.0)
    assert (book.copied_bytes, book.hot_bytes) == (10 * MIB, 20 * MIB)
    book.note([], 3.0)
    assert book.copied_bytes == book.hot_bytes == 20 * MIB and book.per_second is None
    assert book.lines(plain=True)[0] == "nothing is being copied; copied since this watch began: 1"
    book.note([copy(node=2, copied=0)], 4.0)
    assert book.lines(plain=True)[0] == "1 replica is being copied; copied since this watch began: 1"
    assert book.hot_bytes == 40 * MIB


def test_what_is_not_known_is_a_dash_and_no_part_of_the_bar() -> None:
    book = CopyBook()
    book.note([Copying("log", 0, 3)], 1.0)
    assert book.lines(plain=True)[-1] == "log-0              3  catches up  ##########       -   -              -"


def test_many_copies_are_shown_by_ten() -> None:
    book = CopyBook()
    book.note([copy(partition) for partition in range(12)], 1.0)
    assert book.lines(plain=True)[-1] == "and 2 more (--json has all)"


def test_something_small_has_a_mark_beside_something_large() -> None:
    first, second = beside(1, 1 << 40, plain=True)
    assert first.count("#") == 1 and second.count("#") == 40
    assert all("#" not in line for line in beside(0, 0, plain=True))
