"""SIGHUP of `serve`: a daemon reloads; a broker whose terminal was closed stops, as it did before it could reload."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from thermocline.cli.serve import process
from thermocline.cli.serve.process import HangUp


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("at_start", "handled", "later", "done"),
    [
        (False, signal.SIG_DFL, False, "reload"),  # of systemd, or a child of --brokers
        (True, signal.SIG_DFL, True, "reload"),  # kill -HUP beside an open terminal
        (True, signal.SIG_DFL, False, "stop"),  # the terminal was closed
        (True, signal.SIG_IGN, False, "reload"),  # nohup
    ],
)
def test_only_a_closed_terminal_stops(
    monkeypatch: pytest.MonkeyPatch, at_start: bool, handled: signal.Handlers, later: bool, done: str
) -> None:
    did: list[str] = []
    signal.signal(signal.SIGHUP, handled)
    monkeypatch.setattr(process, "_has_terminal", lambda: at_start)
    hang_up = HangUp(lambda: did.append("reload"), lambda: did.append("stop"))
    monkeypatch.setattr(process, "_has_terminal", lambda: later)
    hang_up()
    assert did == [done]
