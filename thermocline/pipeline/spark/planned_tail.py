"""The hot tail of the topic that was planned. Consumers read by name, so a topic that was deleted and created again
since the planning would be read as the planned topic.

An id is never used again. If the topic still has the planned id after the rows were read, all rows are of the planned
topic. Spark shows no row of a task before the task ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

import pyarrow as pa

from logformat.errors import Retryable
from thermocline.pipeline.spark.cluster import Cluster
from thermocline.pipeline.spark.tail import ConsumerSettings, TailPart, read_tail
from thermocline.pipeline.split import DataLoss, Loss

_AGAIN_S: Final = 0.2


def read_planned_tail(
    connection: ConsumerSettings, part: TailPart, columns: Sequence[str], *, fail_on_data_loss: bool, loss: Loss
) -> Iterator[pa.RecordBatch]:
    """As `read_tail`. A part of another topic raises DataLoss, or is counted in `loss` without a row. If the topic
    changed while it was read, and `fail_on_data_loss` is off, it raises Retryable, and the next attempt counts the
    loss.
    """
    planned = part.topic_id
    cluster = None if planned is None else Cluster(connection)
    timeout_s = connection.poll_timeout_ms / 1000
    line = f"{part}: the topic was deleted and created again since the query was planned"
    if cluster is not None and not fail_on_data_loss and _id_now(cluster, part.topic, timeout_s) != planned:
        loss.damage.append(line)
        return
    yield from read_tail(connection, part, columns, fail_on_data_loss=fail_on_data_loss, loss=loss)
    if cluster is not None and _id_now(cluster, part.topic, timeout_s) != planned:
        if fail_on_data_loss:
            raise DataLoss(f"{line}; start a new query")
        raise Retryable(line)


def _id_now(cluster: Cluster, topic: str, timeout_s: float) -> UUID | None:
    """The topic's id; None if it does not exist. Retries for at most `timeout_s` while brokers are unavailable."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            return cluster.topic_id(topic)
        except Retryable:
            if time.monotonic() >= until_s:
                raise
            time.sleep(_AGAIN_S)
