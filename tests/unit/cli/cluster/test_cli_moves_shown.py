"""What a plan of moves and its progress look like, to the letter."""

from __future__ import annotations

import json

from thermocline.cli.cluster.moves.plan import Assignment, Move, Plan
from thermocline.cli.cluster.moves.render import bar, moves_sentence, plan_json, plan_lines, progress

MIB = 1 << 20
PLAN = Plan(
    (
        Move("orders", 0, (3, 1, 2), (1, 4, 2), 12 * MIB, 1200 * MIB),
        Move("orders", 1, (1, 2, 3), (2, 1, 3), 0, 0),
        Move("wide-topic", 11, (3,), (4,), None, None),
    ),
    (Assignment("orders", 2, (3, 1), (4, 1)),),
)


def test_a_plan_as_a_table() -> None:
    assert plan_lines(PLAN) == [
        "partition      from   to       copied  in the bucket",
        "orders-0       3,1,2  1,4,2  12.0 MiB        1.2 GiB",
        "orders-1       1,2,3  2,1,3   nothing    leader only",
        "wide-topic-11  3      4             -              -",
        "1 partition moving already",
        "moves 12.0 MiB between brokers, plus an unknown size for 1 partition (2 replicas of 3 partitions); 1.2 GiB "
        "stay where they are, in the bucket",
    ]
    assert plan_lines(Plan()) == []
    many = plan_lines(Plan(tuple(Move("t", index, (1,), (2,), MIB, 0) for index in range(50))))
    assert many[41] == "and 10 more (--json has all)"
    assert many[-1] == "moves 50.0 MiB between brokers (50 replicas of 50 partitions)"


def test_a_plan_as_json_lines() -> None:
    """Names are a contract: docs/cli.md."""
    assert json.loads(plan_json(PLAN)[0]) == {
        "topic": "orders",
        "partition": 0,
        "from": [3, 1, 2],
        "to": [1, 4, 2],
        "hot_bytes": 12 * MIB,
        "cold_bytes": 1200 * MIB,
    }
    assert plan_json(PLAN)[2] == (
        '{"topic": "wide-topic", "partition": 11, "from": [3], "to": [4], "hot_bytes": null, "cold_bytes": null}'
    )


def test_one_replica_of_one_partition() -> None:
    assert moves_sentence([Move("t", 0, (1,), (2,), 5, 7)]) == (
        "moves 5 B between brokers (1 replica of 1 partition); 7 B stay where they are, in the bucket"
    )


def test_a_bar_and_its_words() -> None:
    assert bar(0.5, plain=False, cells=4) == "██░░" and bar(0.5, plain=True, cells=4) == "##.."
    assert bar(7, plain=True, cells=2) == "##" and bar(-1, plain=True, cells=2) == ".."
    assert progress(30 * MIB, 60 * MIB, 1e6, plain=True) == (
        "[###############...............]  50 %  30.0 MiB of 60.0 MiB copied, 1 MB/s, 31s left"
    )
    assert progress(0, 0, None, plain=True).startswith("[##############################] 100 %  0 B of 0 B")
