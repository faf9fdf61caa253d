"""From ranges to tasks: small parts share a task, the tail is cut where it must be, and what a stream goes on from."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.values import TopicPartition
from thermocline.pipeline.spark.planning.offsets import Progress
from thermocline.pipeline.spark.planning.planner import PACK_BYTES, TAIL_OFFSET_BYTES, _tail_parts, fail_or_log, packed
from thermocline.pipeline.spark.planning.ranges import Extent
from thermocline.pipeline.spark.stream import resumed
from thermocline.pipeline.spark.tail import TailPart
from thermocline.pipeline.spark.tiers import PartitionState, state_of
from thermocline.pipeline.split import DataLoss, RowFilter

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
OLD, NEW = UUID(int=1), UUID(int=2)


@given(st.lists(st.integers(1, 3 * PACK_BYTES // TAIL_OFFSET_BYTES), max_size=30))
def test_packing_keeps_every_part_in_order(sizes: list[int]) -> None:
    """No task is larger than the limit unless one part is; two neighbours never fit into one."""
    parts = [TailPart("t", n, RowFilter(0, size)) for n, size in enumerate(sizes)]
    tasks = packed(parts)
    assert [part for task in tasks for part in task] == parts
    weights = [sum(part.offsets for part in task) * TAIL_OFFSET_BYTES for task in tasks]
    assert all(weight <= PACK_BYTES or len(task) == 1 for weight, task in zip(weights, tasks, strict=True))
    for weight, after in zip(weights, tasks[1:], strict=False):
        assert weight + after[0].offsets * TAIL_OFFSET_BYTES > PACK_BYTES


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 500), st.integers(1, 500)), min_size=1),
    st.integers(0, 40),
    st.one_of(st.none(), st.integers(1, 100)),
)
def test_the_tail_is_covered_once(ranges: dict[int, tuple[int, int]], least: int, records_max: int | None) -> None:
    """Parts of a partition follow each other from its start to its end; none is too large."""
    hot = {TopicPartition("t", p): RowFilter(start, start + size, 5, None) for p, (start, size) in ranges.items()}
    parts = _tail_parts(hot, dict.fromkeys(hot, OLD), least, records_max)
    for tp, rows in hot.items():
        at = rows.start_offset
        for part in (part for part in parts if part.partition == tp.partition):
            assert part.rows.start_offset == at and part.rows.min_timestamp_ms == 5 and part.topic_id == OLD
            at = part.rows.end_offset
        assert at == rows.end_offset
    if records_max is not None:
        assert max(part.offsets for part in parts) <= records_max
    assert len(parts) >= min(least, sum(size for _, size in ranges.values())) // 2


def test_loss_fails_or_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        fail_or_log(["a-0: gone"], True)
    fail_or_log(["a-0: gone"], False)
    assert "data loss: a-0: gone" in caplog.text
    fail_or_log([], True)


def state(start: int, end: int, topic_id: UUID = OLD) -> PartitionState:
    return PartitionState(topic_id, None, Extent(start, end), start)


def test_a_new_partition_starts_at_its_first_offset() -> None:
    """The others go on where they were."""
    starts, lost = resumed(Progress({A0: 7}, {"a": OLD}), {A0: state(2, 10), A1: state(0, 5)})
    assert starts == {A0: 7, A1: 0} and not lost


def test_finding_5_a_new_partition_whose_beginning_expired_is_told() -> None:
    """Retention took it before the stream saw the partition: loss, as in Spark's own source."""
    starts, lost = resumed(Progress({A0: 7}, {"a": OLD}), {A0: state(0, 10), A1: state(3, 5)})
    assert starts == {A0: 7, A1: 3}
    assert len(lost) == 1 and "a-1" in lost[0] and "its log starts at 3" in lost[0]


def test_a_topic_made_again_starts_anew_and_is_told() -> None:
    starts, lost = resumed(Progress({A0: 7}, {"a": OLD}), {A0: state(0, 10, NEW)})
    assert starts == {A0: 0} and "created again; the stream was at 7" in lost[0]


def test_a_partition_that_is_gone_is_told() -> None:
    starts, lost = resumed(Progress({A0: 7, A1: 1}), {A0: state(0, 10)})
    assert starts == {A0: 7} and "a-1" in lost[0]


class Cold:
    """What `state_of` asks a PartitionHistory."""

    def __init__(self, log_start: int, remote_end: int) -> None:
        self.log_start, self.remote_end = log_start, remote_end


@pytest.mark.parametrize(
    ("cold", "cluster", "extent", "seam"),
    [
        (Cold(5, 80), (None, 100), Extent(5, 100), 80),  # both tiers
        (Cold(5, 80), (None, None), Extent(5, 80), 80),  # the bucket alone
        (Cold(5, 80), (None, 60), Extent(5, 80), 80),  # what is copied was committed, whatever an old answer says
        (Cold(90, 80), (90, 100), Extent(90, 100), 90),  # all that the bucket held has expired
        (Cold(90, 80), (None, None), Extent(90, 90), 90),
        (None, (3, 9), Extent(3, 9), 3),  # nothing copied yet
        (None, (None, None), Extent(0, 0), 0),
    ],
)
def test_the_seam(cold: Cold | None, cluster: tuple[int | None, int | None], extent: Extent, seam: int) -> None:
    """Below it the bucket, from it on the cluster; every offset of the extent on one side."""
    found = state_of(OLD, cold, *cluster)  # type: ignore[arg-type]
    assert (found.extent, found.seam) == (extent, seam)
