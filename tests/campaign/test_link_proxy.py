"""The links of the campaign: a way that is cut is silence, and what it held back arrives when it heals."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tests.support.processes.link_proxy import Links
from tests.support.waiting import wait_until

SILENCE_S = 0.2
"""As long as the test listens for what must not come: through a loopback it would be here in well under 1 ms."""


@pytest.fixture
def links() -> Iterator[Links]:
    with Links() as found:
        found.owners["a"] = os.getpid()
        yield found


def connected(links: Links) -> tuple[socket.socket, socket.socket]:
    """The ends of a connection from a to b."""
    server = socket.create_server(("127.0.0.1", 0))
    with server:
        client = socket.create_connection(("127.0.0.1", links.door("b", server.getsockname()[1])), timeout=5)
        behind, _ = server.accept()
    behind.settimeout(5)
    return client, behind


def is_silent(end: socket.socket) -> bool:
    end.settimeout(SILENCE_S)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    finally:
        end.settimeout(5)
    return False


def test_one_way_is_cut_and_the_other_carries(links: Links) -> None:
    """What a says is held until the way heals; what b says arrives meanwhile."""
    a, b = connected(links)
    with a, b:
        a.sendall(b"before")
        assert b.recv(10) == b"before"
        links.cut("a", "b")
        a.sendall(b"held")
        b.sendall(b"answer")
        assert a.recv(10) == b"answer"
        assert is_silent(b)
        links.heal()
        assert b.recv(10) == b"held"
        wait_until(lambda: links.carried() == {("a", "b"): 10, ("b", "a"): 6}, "all carried", 5)


def test_an_end_is_not_told_across_a_silent_way(links: Links) -> None:
    """A process that dies behind a cut link is silent, not gone, until the link heals."""
    a, b = connected(links)
    with a:
        links.cut("b", "a")
        b.close()
        assert is_silent(a)
        a.sendall(b"to nobody")
        assert is_silent(a)
        links.heal()
        with pytest.raises(ConnectionError):
            if a.recv(10) == b"":
                raise ConnectionResetError


def test_a_new_connection_waits_at_a_cut_link_and_is_refused_at_a_shut_door(links: Links) -> None:
    """Nobody answers behind a cut link; nobody listens at the door of a process that died."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SILENCE_S)
        port = links.door("b", server.getsockname()[1])
        links.cut("b", "a")
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            with pytest.raises(TimeoutError):
                server.accept()
            links.heal()
            server.settimeout(5)
            server.accept()[0].close()
        links.set_open("b", False)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
