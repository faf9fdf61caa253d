"""Which of several brokers is started, started again, or ends them all: conversations with the machine."""

from __future__ import annotations

import pytest

from thermocline.cli.serve.supervision import BACKOFF_S_MAX, STEADY_S, Command, Do, Supervision
from thermocline.cli.terminal.outcome import Exit

ANNOUNCE, END = Command(Do.ANNOUNCE), Command(Do.END)


def start(*node_ids: int) -> list[Command]:
    return [Command(Do.START, node_id) for node_id in node_ids]


def stop(*node_ids: int) -> list[Command]:
    return [Command(Do.STOP, node_id) for node_id in node_ids]


def serving(*node_ids: int) -> Supervision:
    """All ready at 0 s."""
    machine = Supervision(node_ids)
    machine.begin()
    for node_id in node_ids:
        machine.ready(node_id, 0.0)
    return machine


def test_the_first_serves_before_the_others_start_and_all_before_it_is_told() -> None:
    """The first may have to make the cluster that the others join. One ready line, though one was restarted since."""
    machine = Supervision([4, 5, 6])
    assert machine.begin() == start(4)
    assert machine.ready(4, 1.0) == start(5, 6)
    assert machine.ready(6, 2.0) == []
    assert machine.exited(4, -9, 3.0) == []
    assert machine.ready(5, 4.0) == []
    assert machine.due(machine.due_s or 0) == start(4)
    assert machine.ready(4, 5.0) == [ANNOUNCE], "and the others are not started a second time"
    machine.exited(5, 1, 6.0)
    assert machine.due(60.0) == start(5)
    assert machine.ready(5, 61.0) == [], "it was told"


def test_one_that_does_not_stay_up_is_started_ever_later() -> None:
    """Killed, failed, or ended by itself: 1 s, 2 s, 4 s … 30 s; after a minute of service 1 s again."""
    machine = serving(1, 2)
    waits = []
    now_s = 0.0
    for code in (-9, 1, 0, -11, 1, 1, 1):
        assert machine.exited(2, code, now_s) == []
        assert machine.due_s is not None
        waits.append(machine.due_s - now_s)
        assert machine.due(machine.due_s - 0.001) == []
        now_s = machine.due_s
        assert machine.due(now_s) == start(2)
        assert machine.due_s is None and machine.due(now_s) == []
    assert waits == [1, 2, 4, 8, 16, BACKOFF_S_MAX, BACKOFF_S_MAX]
    machine.ready(2, now_s)
    machine.exited(2, -9, now_s + STEADY_S)
    assert machine.due_s == now_s + STEADY_S + 1


@pytest.mark.parametrize("code", [Exit.USAGE, Exit.REFUSED, Exit.STORAGE_FAILED])
@pytest.mark.parametrize("is_up", [False, True])
def test_what_a_person_has_to_look_at_ends_all_with_its_code(code: Exit, is_up: bool) -> None:
    """At the start, and after years; others' codes while they stop say nothing more, and none is started any more."""
    machine = serving(1, 2, 3)
    if not is_up:
        machine.exited(3, -9, 1.0)
        assert machine.due(2.0) == start(3)
    machine.exited(2, -9, 2.5)
    assert machine.exited(3, code, 3.0) == stop(1)
    assert machine.due(1000.0) == []
    assert machine.stop() == [], "they are told already"
    assert machine.exited(1, 1, 4.0) == [END]
    assert machine.exit_code == code


def test_the_first_that_is_refused_ends_it_before_any_other_started() -> None:
    machine = Supervision([1, 2])
    machine.begin()
    assert machine.exited(1, Exit.REFUSED, 0.5) == [END]
    assert machine.exit_code == Exit.REFUSED


@pytest.mark.parametrize(("codes", "said"), [((0, 0), 0), ((0, 4), 4), ((-9, 0), 1), ((1, 4), 1)])
def test_told_to_stop_it_ends_when_all_have(codes: tuple[int, int], said: int) -> None:
    """Clean when all were; a broker that waits to be started again is not waited for."""
    machine = serving(1, 2, 3)
    machine.exited(3, -9, 1.0)
    assert machine.stop() == stop(2)
    assert machine.due_s is None
    assert machine.exited(2, codes[0], 2.0) == stop(1)
    assert machine.exited(1, codes[1], 3.0) == [END]
    assert machine.exit_code == said


def test_the_first_hears_last_that_all_are_to_stop() -> None:
    """It was the first to serve, so as a rule it decides: the others leave by telling it."""
    machine = serving(1, 2, 3)
    assert machine.stop() == stop(2, 3)
    assert machine.exited(3, 0, 1.0) == []
    assert machine.exited(2, 0, 1.1) == stop(1)
    assert machine.exited(1, 0, 1.2) == [END]


def test_the_others_are_not_waited_for_by_one_that_ends_by_itself() -> None:
    machine = serving(1, 2)
    assert machine.stop() == stop(2)
    assert machine.exited(1, 0, 1.0) == []
    assert machine.exited(2, 0, 1.1) == [END]


def test_one_that_gets_ready_while_all_stop_changes_nothing() -> None:
    machine = Supervision([1, 2])
    machine.begin()
    assert machine.stop() == stop(1)
    assert machine.ready(1, 1.0) == []
    assert machine.exited(1, 0, 2.0) == [END]
    assert machine.exit_code == 0
