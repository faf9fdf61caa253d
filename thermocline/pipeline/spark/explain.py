"""`explain(df)`: prints the amounts that a query reads, and that its filters prune.

Spark's own `explain` shows only the name and columns of a Python source (4.3). The plan's summary travels with its
first input partition and is read from there; only Spark's planning runs. Needs Spark's driver in this process; over
Spark Connect the summary is in the driver's log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from logformat.errors import InvalidRequest
from thermocline.pipeline.spark.planning.plan_summary import PlanSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FirstPartition(InputPartition):
    def __init__(self, value: object, summary: PlanSummary) -> None:
        super().__init__(value)
        self.summary = summary


def explain(frame: DataFrame) -> None:
    print("\n\n".join(map(str, plan_summaries(frame))))


def plan_summaries(frame: DataFrame) -> list[PlanSummary]:
    """The summaries of the query's plan, one for each batch read of the source. Raises InvalidRequest when there is
    none."""
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
