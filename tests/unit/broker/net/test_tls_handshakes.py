"""Whose handshake goes on: bounds, and turns by address."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from broker.net.tls.handshakes import Handshakes, HandshakeTurns, Handshaking
from tests.support.net.net_house import settled


@dataclass(eq=False)
class Session:
    address: str
    name: str = ""
    failure: Exception | None = None
    steps: int = 0
    told: int = 0

    def step(self) -> None:
        self.steps += 1
        if self.failure is not None:
            raise self.failure

    def stepped(self, failure: BaseException | None) -> None:
        assert failure is self.failure
        self.told += 1


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
    handshakes = Handshakes(None, lambda name, failure: None)
    sessions = [Session("a", failure=ValueError("no")), *(Session("b") for _ in range(5))]
    for session in sessions:
        handshakes.ask(session)
    await settled()
    assert all(session.steps == session.told == 1 for session in sessions)
    await handshakes.close()
