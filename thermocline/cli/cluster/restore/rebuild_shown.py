"""What `cluster rebuild` prints before it asks: topics, what is damaged or missing, and what the bucket cannot tell.

Owns the names of the JSON fields (a contract, cli.md). Must not know what is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from thermocline.cli.cluster.restore.rebuild_plan import RebuildPlan
from thermocline.cli.terminal.output import Cell, json_line, table


def show(plan: RebuildPlan, cluster_id: str, *, is_new: bool, as_json: bool) -> None:
    """On stdout: a table, or an object a line. `is_new`: the cluster's id is none that it had before."""
    if as_json:
        print(json_line({"kind": "cluster", "cluster_id": cluster_id, "is_new_id": is_new, "epoch": plan.epoch}))
        for of in plan.topics:
            row: dict[str, Cell] = {"kind": "topic", "topic_id": str(of.topic_id), "topic": of.name}
            print(
                json_line(
                    {**row, "partitions": of.partitions, "damaged": list(of.damaged), "missing": list(of.missing)}
                )
            )
        for topic_id in plan.unnamed:
            print(json_line({"kind": "unnamed", "topic_id": str(topic_id)}))
        for name, ids in plan.twice.items():
            print(json_line({"kind": "twice", "topic": name, "topic_ids": [str(one) for one in ids]}))
        for topic_id in plan.left_out:
            print(json_line({"kind": "left_out", "topic_id": str(topic_id)}))
        for what in _untold(plan, is_new=is_new):
            print(json_line({"kind": "note", "what": what}))
        return
    print(f"cluster {cluster_id}; epochs go on at {plan.epoch}")
    rows = [
        (of.name, str(of.topic_id), str(of.partitions), _indexes(sorted(of.damaged)), _indexes(of.missing))
        for of in plan.topics
    ]
    print(table(("topic", "id", "partitions", "damaged", "missing"), rows, right=("partitions",)))
    for topic_id in plan.unnamed:
        print(f"{topic_id} has no manifest that can be read: nobody knows its name")
    for name, ids in plan.twice.items():
        print(f"{name} is the name of several topics, deleted ones perhaps: {', '.join(map(str, ids))}")
    for topic_id in plan.left_out:
        print(f"{topic_id} is left out; what the bucket has of it stays there")
    for what in _untold(plan, is_new=is_new):
        print(f"note: {what}")


def _untold(plan: RebuildPlan, *, is_new: bool) -> Sequence[str]:
    """What the bucket cannot tell."""
    found = [
        "what was set on brokers and on the cluster is not in the bucket: set it again (kafka-configs.sh)",
        "a topic that was being deleted is back: delete it again",
    ]
    if any(of.configs_differ for of in plan.topics):
        found.append("configs of some topics differ between their partitions: they were being changed; look at them")
    if is_new:
        found.append(
            "the id of the cluster is a new one: brokers refuse to start on directories of the old one; "
            "--cluster-id says which it was"
        )
    if any(of.missing for of in plan.topics):
        found.append("partitions of which the bucket has nothing begin empty")
    return found


def _indexes(found: Sequence[int]) -> str:
    return ",".join(map(str, found)) or "-"
