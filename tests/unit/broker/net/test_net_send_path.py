"""The send path: every byte in order, or the connection is gone; memory bounded whatever the peer does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.net.dispatch import CloseReason, Part
from broker.net.shared import NetCounters
from broker.net.transport_writer import WIDE_BYTES, TransportWriter, WideSendBuffers
from seams.files.disk import FileRange
from tests.support.net.scripted_net import BytesFile, ScriptedNet, ScriptedTransport, flat
from tests.support.scenario import by

MIB = 1 << 20


class Shell(asyncio.BufferedProtocol):
    """What a connection does for its send path."""

    def __init__(self, net: ScriptedNet, room: int, wide_max: int = 0) -> None:
        self.transport = ScriptedTransport(self, room)
        self.counters = NetCounters()
        self.drained = 0
        self.failures: list[CloseReason] = []
        self.stalls = 0
        self.waits = False
        self.room = WideSendBuffers(net, wide_max)
        self.path = TransportWriter(net, self.room, self.counters, self.transport, self._drained, self)

    def stalled(self) -> None:
        self.stalls += 1
        self.waits = True

    def writable(self) -> None:
        self.waits = False

    def cut(self, reason: CloseReason, detail: str) -> None:
        self.failures.append(reason)

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
    st.sampled_from([(True, True), (True, False), (False, True)]),
    st.integers(0, 1),
)
def test_bytes_leave_in_order_however_the_peer_takes_them(
    answers: list[list[object]], components: list[int], kernel: tuple[bool, bool], wide_max: int
) -> None:
    """Small, large and file parts, a socket that fills at any point: the wire holds exactly what was given."""

    async def scenario() -> None:
        file = BytesFile(CONTENT)
        shell = Shell(ScriptedNet(*kernel), components[0], wide_max)
        expected = b""
        for answer in answers:
            parts = [FileRange(file, *part) if isinstance(part, tuple) else part for part in answer]
            expected += flat(parts)  # type: ignore[arg-type]
            shell.path.send(parts)  # type: ignore[arg-type]
        turn = 1
        while shell.path.busy:
            shell.transport.take(max(components[turn % len(components)], len(expected) // 100))
            turn += 1
            await shell.settle()
            assert len(shell.transport.buffered) <= MIB
        assert shell.transport.wire == expected
        assert shell.counters.bytes_out == len(expected)
        assert shell.failures == [] and not shell.waits
        assert not shell.transport.watched, "watched on: the loop would tell of room in every turn"

    run(scenario)


@by(run)
async def test_small_answers_leave_in_one_write() -> None:
    """The point of gathering: one system call for all that is ready."""
    shell = Shell(ScriptedNet(), MIB)
    shell.path.send([b"one", bytearray(b"two"), memoryview(b"three")])
    assert (shell.transport.writes, bytes(shell.transport.wire)) == (1, b"onetwothree")


@by(run)
async def test_a_file_range_is_not_read_into_memory_while_the_kernel_can_send_it() -> None:
    """Nothing of it, and the transport has nothing to do with a full socket."""
    file = BytesFile(CONTENT)
    net = ScriptedNet()
    shell = Shell(net, 2 * MIB)
    shell.path.send([b"head", FileRange(file, 0, 3 * MIB)])
    turns = 0
    while shell.path.busy:
        assert shell.transport.watched and shell.waits
        shell.transport.take(400_000)
        await shell.settle()
        turns += 1
    assert bytes(shell.transport.wire) == b"head" + CONTENT
    assert (file.bytes_read, shell.transport.writes, shell.drained) == (0, 1, 1)
    assert shell.stalls == turns and net.files_sent <= 2 + turns, "a full socket is not asked twice"


@by(run)
async def test_without_a_descriptor_to_watch_with_only_a_small_piece_is_copied() -> None:
    """The transport waits for room with it."""
    file = BytesFile(CONTENT)
    shell = Shell(ScriptedNet(watches=False), 2 * MIB)
    shell.path.send([b"head", FileRange(file, 0, 3 * MIB)])
    assert file.bytes_read <= 16 << 10
    while shell.path.busy:
        shell.transport.take(MIB)
        await shell.settle()
    assert bytes(shell.transport.wire) == b"head" + CONTENT
    assert file.bytes_read <= 48 << 10
    assert shell.drained == 1


@by(run)
async def test_a_socket_that_cannot_hold_an_answer_is_widened_once_and_some_connections_only() -> None:
    """What the kernel keeps for all of them has a bound; who ended gives his place to the next."""
    net = ScriptedNet()
    first, second = Shell(net, 100, wide_max=1), Shell(net, 100)
    second.path = TransportWriter(net, first.room, second.counters, second.transport, second._drained, second)
    for shell in (first, second):
        shell.path.send([FileRange(BytesFile(CONTENT), 0, 100)])
    assert net.widened == 0, "it fitted"
    first.path.send([FileRange(BytesFile(CONTENT), 100, 2 * MIB)])
    second.path.send([FileRange(BytesFile(CONTENT), 100, 2 * MIB)])
    assert (len(first.transport.wire), len(second.transport.wire), net.widened) == (100 + WIDE_BYTES, 100, 1)
    first.transport.take(2 * MIB)
    await first.settle()
    assert bytes(first.transport.wire) == CONTENT[: 100 + 2 * MIB]
    first.path.send([FileRange(BytesFile(CONTENT), 0, 2 * MIB)])
    assert net.widened == 1
    first.path.close()
    first.path.close()
    second.transport.take(10)
    await second.settle()
    assert net.widened == 2
    assert len(second.transport.wire) == 110 + WIDE_BYTES
    second.path.close()
    assert not first.transport.watched and not second.transport.watched


@by(run)
async def test_nothing_is_sent_on_a_connection_that_is_closing() -> None:
    """Aborted, and its loss not told yet: the socket may still have room."""
    shell = Shell(ScriptedNet(), 100)
    shell.path.send([FileRange(BytesFile(CONTENT), 0, MIB)])
    shell.transport.closed = True
    shell.transport.take(MIB)
    await shell.settle()
    assert len(shell.transport.wire) == 100 and not shell.transport.watched


@by(run)
async def test_who_shares_the_loop_has_his_turn_also_while_the_socket_is_watched() -> None:
    """A socket that fills and empties all the time is told of room in every turn: 4 MiB each, not all there is."""
    file = BytesFile(CONTENT)
    shell = Shell(ScriptedNet(), 100)
    parts: list[Part] = [FileRange(file, 0, 3 * MIB)] * 4
    shell.path.send(parts)
    assert shell.transport.watched
    shell.transport.take(1 << 30)
    await asyncio.sleep(0)
    assert 100 < len(shell.transport.wire) <= 100 + 4 * MIB + MIB
    await shell.settle()
    assert bytes(shell.transport.wire) == CONTENT * 4 and shell.drained == 1


@by(run)
async def test_a_large_buffer_is_handed_over_in_slices() -> None:
    """A peer that takes nothing makes the transport copy one slice, not ten megabytes."""
    shell = Shell(ScriptedNet(), 100)
    shell.path.send([bytes(10 * MIB)])
    assert len(shell.transport.buffered) <= MIB


@pytest.mark.parametrize("native", [True, False])
@by(run)
async def test_a_truncated_file_aborts_the_connection(native: bool) -> None:
    """The announced length cannot be kept any more: nothing else may follow on this connection."""
    file = BytesFile(CONTENT[: MIB + 5])
    shell = Shell(ScriptedNet(native), 1 << 30)
    shell.path.send([b"head", FileRange(file, 0, 3 * MIB), b"next answer"])
    await shell.settle()
    assert shell.transport.aborted
    assert shell.failures == [CloseReason.SHORT_FILE]
    assert b"next" not in shell.transport.wire
    shell.path.send([b"more"])
    assert b"more" not in shell.transport.wire


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(OSError(5, "EIO"), CloseReason.SEND_FAILED), (BrokenPipeError(), CloseReason.PEER)],
)
@by(run)
async def test_a_failed_send_aborts_and_is_named(failure: OSError, reason: CloseReason) -> None:
    """A sick disk and a peer that went are told apart."""
    net = ScriptedNet()
    shell = Shell(net, 1 << 30)
    net.failure = failure
    shell.path.send([FileRange(BytesFile(CONTENT), 0, 10)])
    assert shell.transport.aborted and shell.failures == [reason]


@by(run)
async def test_a_failed_read_aborts_too() -> None:
    """The fallback reads the file itself."""
    file = BytesFile(CONTENT)
    file.failure = OSError(5, "EIO")
    shell = Shell(ScriptedNet(native=False), 1 << 30)
    shell.path.send([FileRange(file, 0, 10)])
    assert shell.failures == [CloseReason.SEND_FAILED]


@by(run)
async def test_a_fast_peer_does_not_keep_the_loop() -> None:
    """After a few megabytes others get their turn, and the rest follows without being asked for."""
    file = BytesFile(CONTENT)
    shell = Shell(ScriptedNet(), 1 << 30)
    parts: list[Part] = [FileRange(file, 0, 3 * MIB)] * 4
    shell.path.send(parts)
    assert shell.path.busy and len(shell.transport.wire) < 6 * MIB
    shell.path.send([b"behind"])
    await shell.settle()
    assert bytes(shell.transport.wire) == CONTENT * 4 + b"behind" and shell.drained == 1


@by(run)
async def test_closed_means_silent() -> None:
    """A resume that comes after the end wakes nothing."""
    shell = Shell(ScriptedNet(), 10)
    shell.path.send([b"x" * 100, b"y" * 100_000])
    shell.path.close()
    shell.transport.take(1 << 20)
    await shell.settle()
    assert shell.path.busy and shell.drained == 0
    assert b"y" not in shell.transport.wire
