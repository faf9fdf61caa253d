"""`explain(df)`: what the reads of a query will fetch, and what their filters spare.

Spark's own `explain` shows of a Python source its name and columns, and has no place for more (4.3); the summary of a
plan travels with its first input partition, and is read from there. Always true: nothing runs but Spark's planning.
Only in the driver's process: over Spark Connect the same sums stand in the driver's log. Must not know how a plan is
made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from logformat.errors import InvalidRequest
from thermocline.pipeline.spark.plan_summary import PlanSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FirstPartition(InputPartition):
    """A task, and what the whole plan adds up to."""

    def __init__(self, value: object, summary: PlanSummary) -> None:
        super().__init__(value)
        self.summary = summary


def explain(frame: DataFrame) -> None:
    """Print `plan_summaries(frame)`, one under the other."""
    print("\n\n".join(map(str, plan_summaries(frame))))


def plan_summaries(frame: DataFrame) -> list[PlanSummary]:
    """One for each batch read of the source in the query's plan. InvalidRequest when there is none."""
    java: Any = getattr(frame, "_jdf", None)
    if java is None:
        raise InvalidRequest("explain needs Spark's driver in this process; over Spark Connect see the driver's log")
    found = list(_summaries(java.queryExecution().sparkPlan().collectLeaves()))
    if not found:
        raise InvalidRequest("the query reads no batch of format('thermocline') (a stream plans each trigger anew)")
    return found


def _summaries(leaves: Any) -> Iterator[PlanSummary]:
    from pyspark.serializers import CPickleSerializer

    unpickle: Any = CPickleSerializer().loads
    for at in range(leaves.size()):
        leaf = leaves.apply(at)
        if leaf.getClass().getSimpleName() != "BatchScanExec":
            continue
        partitions = leaf.batch().planInputPartitions()
        if not len(partitions) or partitions[0].getClass().getSimpleName() != "PythonInputPartition":
            continue
        first = unpickle(bytes(partitions[0].pickedPartition()))
        if isinstance(first, FirstPartition):
            yield first.summary
