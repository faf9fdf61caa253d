"""Every short conversation of a leader and its followers, through elections, a restart and cuts (KIP-101, 279, 320)."""

from __future__ import annotations

import pytest

from tests.playbooks.conversations import EVENTS_MAX, STARTS, Core, search, three


def short(start: object) -> int:
    return EVENTS_MAX - 4 if start is three else EVENTS_MAX - 3


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)
def test_every_short_conversation_keeps_what_was_acknowledged(start: type[Core]) -> None:
    """Whatever order messages, elections, a restart and images come in: a clean leader has what was acknowledged,
    nobody shows anything else, nobody goes offline, and from wherever it got to the replicas agree again."""
    found = search(start, short(start))
    print(f"{start.__name__}: {found}")
    assert found.conversations > 5_000 and found.positions > 1_000 and found.elections > 500, found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)
def test_every_conversation_of_eight_events_keeps_what_was_acknowledged(start: type[Core]) -> None:
    """The same, all of it; of three replicas seven events, which are as many positions as eight of two."""
    found = search(start, EVENTS_MAX - 1 if start is three else EVENTS_MAX)
    print(f"{start.__name__}: {found}")
    assert found.conversations > 500_000 and found.positions > 20_000 and found.cuts > 2, found
