"""The lineage of a log: Kafka's answers about epochs, and its checkpoint text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.errors import Corrupt
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.values import NewerFormat


def lineage(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(tuple(EpochStart(*entry) for entry in entries))


LOG = lineage((2, 10), (5, 20), (7, 35))


@st.composite
def lineages(draw: st.DrawFn) -> LeaderEpochs:
    epochs = LeaderEpochs()
    epoch, start = -1, -1
    for up, along in draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), max_size=6)):
        epoch, start = epoch + up, start + along
        epochs = epochs.assign(epoch, start)
    return epochs


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),  # undefined
        (0, (0, 10)),  # older than anything known: begin at the first known start
        (2, (2, 20)),
        (3, (2, 20)),  # never led here: the epoch before it, and its end
        (5, (5, 35)),
        (6, (5, 35)),
        (7, (7, 50)),  # the latest runs to the log end
        (8, (-1, -1)),  # not known yet
    ],
)
def test_offset_for_leader_epoch(epoch: int, answer: tuple[int, int]):
    """The answers of Kafka's cache to OffsetForLeaderEpoch."""
    assert LOG.end_offset_for(epoch, log_end=50) == answer
    assert LeaderEpochs().end_offset_for(epoch, log_end=50) == (-1, -1)


def test_epoch_of_an_offset():
    """Floor by start offset; nothing is known below the first."""
    assert [LOG.epoch_for(offset) for offset in (0, 9, 10, 19, 20, 34, 35, 999)] == [None, None, 2, 2, 5, 5, 7, 7]
    assert LeaderEpochs().epoch_for(5) is None
    assert (LOG.latest, LeaderEpochs().latest) == ((7, 35), None)


@pytest.mark.parametrize(
    ("epoch", "start", "after"),
    [
        (8, 50, ((2, 10), (5, 20), (7, 35), (8, 50))),
        (7, 40, LOG.entries),  # already leading
        (7, 30, ((2, 10), (5, 20), (7, 30))),  # the same epoch from further back
        (8, 35, ((2, 10), (5, 20), (8, 35))),  # epoch 7 wrote nothing
        (8, 15, ((2, 10), (8, 15))),
        (6, 40, ((2, 10), (5, 20), (6, 40))),
        (1, 5, ((1, 5),)),
    ],
)
def test_assigning(epoch: int, start: int, after: tuple[tuple[int, int], ...]):
    """A new epoch displaces what contradicts it."""
    assert LOG.assign(epoch, start).entries == after


def test_an_assignment_that_changes_nothing_is_the_same_object():
    """So the owner knows whether to write the checkpoint."""
    assert LOG.assign(7, 99) is LOG
    assert LOG.truncate_from_end(36) is LOG
    assert LOG.truncate_from_start(10) is LOG
    assert LOG.truncate_from_start(3) is LOG


def test_truncation():
    """From the end by exclusive offset; from the start the epoch of the offset moves up to it."""
    assert LOG.truncate_from_end(35).entries == ((2, 10), (5, 20))
    assert LOG.truncate_from_end(10).entries == ()
    assert LOG.truncate_from_start(20).entries == ((5, 20), (7, 35))
    assert LOG.truncate_from_start(21).entries == ((5, 21), (7, 35))
    assert LOG.truncate_from_start(99).entries == ((7, 99),)


@given(lineages(), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 150)), max_size=5), st.integers(0, 150))
def test_entries_always_grow(epochs: LeaderEpochs, assigned: list[tuple[int, int]], cut: int):
    """Whatever is assigned or cut, both columns grow, the epoch of every kept offset stays, and the bytes come back."""
    for epoch, start in assigned:
        epochs = epochs.assign(epoch, start)
        assert epochs.latest is not None and epochs.latest.epoch == epoch
    for each in (epochs, epochs.truncate_from_end(cut), epochs.truncate_from_start(cut)):
        for column in (0, 1):
            values = [entry[column] for entry in each.entries]
            assert values == sorted(set(values))
        assert LeaderEpochs.from_bytes(each.to_bytes()) == each
    for offset in range(cut, cut + 30):
        assert epochs.truncate_from_start(cut).epoch_for(offset) == epochs.epoch_for(offset)


def test_checkpoint_text():
    """Kafka's bytes, and an empty file as Kafka creates it."""
    assert LOG.to_bytes() == b"0\n3\n2 10\n5 20\n7 35\n"
    assert LeaderEpochs.from_bytes(b"") == LeaderEpochs()
    assert LeaderEpochs.from_bytes(b"0\n0\n") == LeaderEpochs()
    with pytest.raises(NewerFormat):
        LeaderEpochs.from_bytes(b"1\n0\n")


@pytest.mark.parametrize(
    "text",
    [
        "0", "0\n", "0\n0", "x\n0\n", "0\n1\n", "0\n0\n1 2\n", "0\n1\n1\n", "0\n1\n1 2 3\n", "0\n1\n-1 2\n",
        "0\n1\n1 -2\n", "0\n1\n1 9223372036854775808\n", "0\n1\n2147483648 1\n", "0\n2\n1 5\n1 6\n",
        "0\n2\n1 5\n2 5\n", "0\n2\n2 5\n1 6\n", "0\n1\n1_0 2\n", "0\n1\n+1 2\n", "0\n1\n\u0661 2\n", "0\n1\n1 2",
        "0\n99999999999999999999\n", "0\n1\n\n",
    ],
)  # fmt: skip
def test_malformed_checkpoints(text: str):
    """Cut short, miscounted, out of order, not plain numbers."""
    with pytest.raises(Corrupt):
        LeaderEpochs.from_bytes(text.encode())


@given(st.binary(max_size=40) | st.text("0123456789 \n-", max_size=30).map(str.encode))
def test_hostile_text_raises_corrupt_only(data: bytes):
    """Any bytes."""
    with contextlib.suppress(Corrupt):
        LeaderEpochs.from_bytes(data)


@pytest.mark.parametrize(("epoch", "end"), [(0, 10), (2, 20), (4, 20), (5, 35), (7, 50), (8, 50)])
def test_a_log_is_another_leaders_up_to_where_a_later_one_wrote(epoch: int, end: int) -> None:
    assert LOG.shared_end(epoch, 50) == end
    assert LeaderEpochs().shared_end(epoch, 50) == 50
