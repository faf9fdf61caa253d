"""The send path: every byte in order, or the connection is gone; memory bounded whatever the peer does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.net.counters import NetCounters
from broker.net.dispatch import CloseReason, Part
from broker.net.send_path import SendPath
from seams.disk import FileRange
from tests.support.scripted_net import BytesFile, ScriptedNet, ScriptedTransport, flat

MIB = 1 << 20


class Shell(asyncio.BufferedProtocol):
    """What a connection does for its send path."""

    def __init__(self, net: ScriptedNet, room: int) -> None:
        self.transport = ScriptedTransport(self, room)
        self.counters = NetCounters()
        self.drained = 0
        self.failures: list[CloseReason] = []
        self.path = SendPath(net, self.counters, self.transport, self._drained, lambda r, d: self.failures.append(r))

    def _drained(self) -> None:
        self.drained += 1

    def pause_writing(self) -> None:
        self.path.pause()

    def resume_writing(self) -> None:
        asyncio.get_running_loop().call_soon(self.path.resume)

    async def settle(self) -> None:
        """Let callbacks run until nothing changes by itself."""
        for _ in range(10):
            await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


CONTENT = bytes(range(256)) * (3 * MIB // 256)
PARTS = st.one_of(
    st.integers(0, 200).map(lambda n: b"s" * n),
    st.integers(60_000, 70_000).map(lambda n: bytearray(b"m" * n)),
    st.integers(MIB - 3, 2 * MIB).map(lambda n: memoryview(b"L" * n)),
    st.tuples(st.integers(0, MIB), st.integers(0, 2 * MIB)),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(PARTS, max_size=4), min_size=1, max_size=5),
    st.lists(st.integers(1, 2 * MIB), min_size=1, max_size=10),
    st.booleans(),
)
def test_bytes_leave_in_order_however_the_peer_takes_them(
    answers: list[list[object]], rooms: list[int], native: bool
) -> None:
    """Small, large and file parts, a socket that fills at any point: the wire holds exactly what was given."""

    async def scenario() -> None:
        file = BytesFile(CONTENT)
        shell = Shell(ScriptedNet(native), rooms[0])
        expected = b""
        for answer in answers:
            parts = [FileRange(file, *part) if isinstance(part, tuple) else part for part in answer]
            expected += flat(parts)  # type: ignore[arg-type]
            shell.path.send(parts)  # type: ignore[arg-type]
        turn = 1
        while shell.path.busy:
            shell.transport.take(max(rooms[turn % len(rooms)], len(expected) // 100))
            turn += 1
            await shell.settle()
            assert len(shell.transport.buffered) <= MIB
        assert shell.transport.wire == expected
        assert shell.counters.bytes_out == len(expected)
        assert shell.failures == []

    run(scenario)


def test_small_answers_leave_in_one_write() -> None:
    """The point of gathering: one system call for all that is ready."""

    async def scenario() -> None:
        shell = Shell(ScriptedNet(), MIB)
        shell.path.send([b"one", bytearray(b"two"), memoryview(b"three")])
        assert (shell.transport.writes, bytes(shell.transport.wire)) == (1, b"onetwothree")

    run(scenario)


def test_a_file_range_is_not_read_into_memory_while_the_kernel_can_send_it() -> None:
    """Only the piece that waits for a full socket is copied."""

    async def scenario() -> None:
        file = BytesFile(CONTENT)
        shell = Shell(ScriptedNet(), 2 * MIB)
        shell.path.send([b"head", FileRange(file, 0, 3 * MIB)])
        assert file.bytes_read <= 16 << 10
        while shell.path.busy:
            shell.transport.take(MIB)
            await shell.settle()
        assert bytes(shell.transport.wire) == b"head" + CONTENT
        assert file.bytes_read <= 48 << 10
        assert shell.drained == 1

    run(scenario)


def test_a_large_buffer_is_handed_over_in_slices() -> None:
    """A peer that takes nothing makes the transport copy one slice, not ten megabytes."""

    async def scenario() -> None:
        shell = Shell(ScriptedNet(), 100)
        shell.path.send([bytes(10 * MIB)])
        assert len(shell.transport.buffered) <= MIB

    run(scenario)


@pytest.mark.parametrize("native", [True, False])
def test_a_truncated_file_aborts_the_connection(native: bool) -> None:
    """The announced length cannot be kept any more: nothing else may follow on this connection."""

    async def scenario() -> None:
        file = BytesFile(CONTENT[: MIB + 5])
        shell = Shell(ScriptedNet(native), 1 << 30)
        shell.path.send([b"head", FileRange(file, 0, 3 * MIB), b"next answer"])
        assert shell.transport.aborted
        assert shell.failures == [CloseReason.SHORT_FILE]
        assert b"next" not in shell.transport.wire
        shell.path.send([b"more"])
        assert b"more" not in shell.transport.wire

    run(scenario)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(OSError(5, "EIO"), CloseReason.SEND_FAILED), (BrokenPipeError(), CloseReason.PEER)],
)
def test_a_failed_send_aborts_and_is_named(failure: OSError, reason: CloseReason) -> None:
    """A sick disk and a peer that went are told apart."""

    async def scenario() -> None:
        net = ScriptedNet()
        shell = Shell(net, 1 << 30)
        net.failure = failure
        shell.path.send([FileRange(BytesFile(CONTENT), 0, 10)])
        assert shell.transport.aborted and shell.failures == [reason]

    run(scenario)


def test_a_failed_read_aborts_too() -> None:
    """The fallback reads the file itself."""

    async def scenario() -> None:
        file = BytesFile(CONTENT)
        file.failure = OSError(5, "EIO")
        shell = Shell(ScriptedNet(native=False), 1 << 30)
        shell.path.send([FileRange(file, 0, 10)])
        assert shell.failures == [CloseReason.SEND_FAILED]

    run(scenario)


def test_a_fast_peer_does_not_keep_the_loop() -> None:
    """After a few megabytes others get their turn, and the rest follows without being asked for."""

    async def scenario() -> None:
        file = BytesFile(CONTENT)
        shell = Shell(ScriptedNet(), 1 << 30)
        parts: list[Part] = [FileRange(file, 0, 3 * MIB)] * 4
        shell.path.send(parts)
        assert shell.path.busy and len(shell.transport.wire) < 6 * MIB
        shell.path.send([b"behind"])
        await shell.settle()
        assert bytes(shell.transport.wire) == CONTENT * 4 + b"behind" and shell.drained == 1

    run(scenario)


def test_closed_means_silent() -> None:
    """A resume that comes after the end wakes nothing."""

    async def scenario() -> None:
        shell = Shell(ScriptedNet(), 10)
        shell.path.send([b"x" * 100, b"y" * 100_000])
        shell.path.close()
        shell.transport.take(1 << 20)
        await shell.settle()
        assert shell.path.busy and shell.drained == 0
        assert b"y" not in shell.transport.wire

    run(scenario)
