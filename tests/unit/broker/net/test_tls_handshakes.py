"""Whose handshake goes on: bounds, and turns by address."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from broker.net.tls.handshakes import Handshakes, HandshakeTurns, Handshaking
from tests.support.net.net_house import settled
from tests.support.workers import InlineWorkers


@dataclass(eq=False)
class Session:
    address: str
    name: str = ""
    failure: Exception | None = None
    steps: int = 0
    told: int = 0
    gave_way: bool = False

    def step(self) -> None:
        self.steps += 1
        if self.failure is not None:
            raise self.failure

    def stepped(self, failure: BaseException | None) -> None:
        assert failure is self.failure
        self.told += 1

    def give_way(self) -> None:
        self.gave_way = True


def taken(turns: HandshakeTurns) -> list[Handshaking]:
    found = []
    while (session := turns.next()) is not None:
        found.append(session)
    return found


def test_a_crowd_delays_another_address_by_one_step() -> None:
    turns = HandshakeTurns()
    for _ in range(100):
        turns.ask(Session("10.0.0.1"))
    late = Session("10.0.0.2")
    turns.ask(late)
    turns.next()
    assert turns.next() is late


def test_sessions_that_began_come_first() -> None:
    turns = HandshakeTurns()
    first, second = Session("a"), Session("b")
    turns.ask(first)
    assert turns.next() is first
    turns.ask(second)
    turns.ask(first)
    assert turns.next() is first


def test_one_address_does_not_hold_every_place() -> None:
    turns = HandshakeTurns(under_way_max=8, per_address_max=3)
    for _ in range(20):
        turns.ask(Session("a"))
    assert len(taken(turns)) == 3
    for _ in range(20):
        turns.ask(Session("b"))
        turns.ask(Session("c"))
    assert Counter(session.address for session in taken(turns)) == {"b": 3, "c": 2}


def test_silent_addresses_do_not_hold_every_place_together() -> None:
    """Four of them fill all places, up to the end of their time, and again at once."""
    turns = HandshakeTurns(under_way_max=8, per_address_max=2)
    silent = [Session(f"10.0.0.{number % 4}") for number in range(12)]
    for session in silent:
        turns.ask(session)
    assert len(taken(turns)) == 8 and turns.crowded_out() is None, "they are as many for each address"
    late = Session("10.0.0.9")
    turns.ask(late)
    assert turns.crowded_out() is silent[0] and turns.crowded_out() is None
    assert taken(turns) == [late], "the silent addresses have their share"
    turns.ask(Session("10.0.0.9"))
    assert turns.crowded_out() is None, "no address has two more"
    turns.leave(silent[0])  # it is told when its connection is closed
    assert turns.under_way == 8


async def test_a_session_gives_way_to_another_address() -> None:
    handshakes = Handshakes(
        InlineWorkers(), lambda name, failure: None, HandshakeTurns(under_way_max=2, per_address_max=2)
    )
    silent, late = [Session("a"), Session("a")], Session("b")
    for session in (*silent, late):
        handshakes.ask(session)
        await settled()
    assert [session.gave_way for session in (*silent, late)] == [True, False, False]
    assert late.steps == late.told == 1
    await handshakes.close()


@given(st.lists(st.tuples(st.sampled_from(["ask", "next", "leave"]), st.integers(0, 9)), max_size=200))
def test_bounds_hold_and_nobody_is_forgotten(acts: list[tuple[str, int]]) -> None:
    """Any order of what sessions do: no more under way than allowed, and all that asked have their turn in the end."""
    turns = HandshakeTurns(under_way_max=4, per_address_max=2)
    sessions = [Session(f"10.0.0.{number % 3}") for number in range(10)]
    asking: dict[Handshaking, None] = {}
    began: dict[Handshaking, None] = {}
    over: set[int] = set()
    for act, number in acts:
        session: Handshaking | None = sessions[number]
        if act == "ask" and session not in asking and number not in over:
            turns.ask(session)
            asking[session] = None
        elif act == "next" and (session := turns.next()) is not None:
            del asking[session]
            began[session] = None
        elif act == "leave":
            assert session is not None
            turns.leave(session)
            over.add(number)
            asking.pop(session, None)
            began.pop(session, None)
        assert turns.under_way == len(began) <= 4
        assert all(count <= 2 for count in Counter(one.address for one in began).values())
        assert turns.waiting == len(asking)
    while asking:
        session = turns.next()
        if session is not None:
            del asking[session]
        else:
            session = next(iter(began))
        began[session] = None
        turns.leave(session)
        del began[session]
    for session in began:
        turns.leave(session)
    assert turns.under_way == turns.waiting == 0


async def test_a_failed_step_is_told_and_others_go_on() -> None:
    handshakes = Handshakes(InlineWorkers(), lambda name, failure: None)
    sessions = [Session("a", failure=ValueError("no")), *(Session("b") for _ in range(5))]
    for session in sessions:
        handshakes.ask(session)
    await settled()
    assert all(session.steps == session.told == 1 for session in sessions)
    await handshakes.close()
