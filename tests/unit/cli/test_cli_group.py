"""`thermocline group`: what a row says, and what a plan asks for, before anybody is asked."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import ConsumerGroupState

from thermocline.cli.group.command import _STATES, _constant
from thermocline.cli.group.lag import GroupLag, LagReader, json_lines, picture, rows_of, state_name
from thermocline.cli.group.reset import Log, OffsetReset, plan
from thermocline.cli.group.reset import picture as plan_picture
from thermocline.cli.main import main

READER = LagReader("reader-1-uuid", "reader-1", "10.0.0.7")


def test_a_row_for_what_was_committed_or_is_read() -> None:
    """In order; lag only where both ends are known; a lost tail makes it negative, as Kafka's tool says too."""
    committed = {("b", 0): 7, ("a", 10): 5, ("a", 2): 9, ("gone", 0): 3}
    rows = rows_of(
        committed, {("a", 2): READER, ("c", 0): READER}, {("a", 2): 12, ("a", 10): 5, ("b", 0): 4, ("c", 0): 8}
    )
    assert [(row.topic, row.partition, row.lag, row.reader) for row in rows] == [
        ("a", 2, 3, READER),
        ("a", 10, 0, None),
        ("b", 0, -3, None),
        ("c", 0, None, READER),
        ("gone", 0, None, None),
    ]


def test_the_pictures_of_a_group() -> None:
    """A table with its sum for people, a partition a line for programs."""
    rows = rows_of({("t", 0): 7}, {("t", 0): READER, ("t", 1): READER}, {("t", 0): 10, ("t", 1): 4})
    found = GroupLag("g", "Stable", "range", 1, rows)
    assert picture(found).splitlines() == [
        "g: Stable, 1 member, assigned by range",
        "topic  partition  committed  log end  lag  client    host",
        "t              0          7       10    3  reader-1  10.0.0.7",
        "t              1          -        4    -  reader-1  10.0.0.7",
        "lag 3 in 1 partition",
    ]
    assert [json.loads(line) for line in json_lines(found)][1] == {
        "group": "g",
        "state": "Stable",
        "topic": "t",
        "partition": 1,
        "committed_offset": None,
        "log_end_offset": 4,
        "lag": None,
        "member_id": "reader-1-uuid",
        "client_id": "reader-1",
        "host": "10.0.0.7",
    }
    assert picture(GroupLag("g", "Empty", "", 0, [])) == "g: Empty, 0 members\nnothing committed, nothing read"


def test_states_have_kafkas_names() -> None:
    """Both ways, whatever the client calls them."""
    assert [state_name(ConsumerGroupState[_constant(state)]) for state in _STATES] == list(_STATES)


def test_a_plan_stays_within_the_log() -> None:
    """And says where it could not do what was asked for."""
    logs = {("t", 0): Log(10, 20), ("t", 1): Log(0, 5), ("t", 2): Log(30, 40)}
    moves = plan(dict.fromkeys(reversed(logs), (15, "")), {("t", 0): 18}, logs)
    assert moves == [
        OffsetReset("t", 0, 18, 15),
        OffsetReset("t", 1, None, 5, "the log ends here, not at 15"),
        OffsetReset("t", 2, None, 30, "the log begins here, not at 15"),
    ]
    assert plan_picture(moves).splitlines() == [
        "topic  partition  committed  new  change",
        "t              0         18   15      -3",
        "t              1          -    5       -  the log ends here, not at 15",
        "t              2          -   30       -  the log begins here, not at 15",
    ]
    assert (
        plan({("t", 1): (5, "the end: the group committed nothing")}, {}, logs)[0].why
        == "the end: the group committed nothing"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["reset", "g"],
        ["reset", "g", "--to-offset", "-1"],
        ["reset", "g", "--to-offset", "5", "--to-latest"],
        ["reset", "g", "--to-datetime", "yesterday"],
        ["reset", "g", "--by-duration", "soon"],
        ["reset", "g", "--to-latest", "--topic", "t:"],
        ["reset", "g", "--to-latest", "--topic", ":1"],
        ["list", "--state", "Busy"],
        ["delete"],
    ],
)
def test_what_cannot_be_meant_is_exit_2(words: list[str]) -> None:
    """Before any broker is asked."""
    with pytest.raises(SystemExit) as ended:
        main(["group", *words])
    assert ended.value.code == 2
