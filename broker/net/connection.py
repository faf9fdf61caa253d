"""One connection: the asyncio protocol that joins frame reader, dispatcher, response queue and transport writer.

Frames are dispatched in order, one at a time. No frame is dispatched while an earlier frame blocks, while too many
responses are in flight, while the peer does not read its responses, or while the peer is throttled. Reading is paused
or resumed only after all received frames were dispatched.

Hot path: a run of requests costs one dispatch and one list append. All responses that are ready after a read take one
`send`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from broker.net.admission import Admission
from broker.net.buffers import ALLOWANCE
from broker.net.connection_state import NEXT, OVER, Event, State
from broker.net.dispatch import CloseConnection, CloseReason, Later, Part, Peer
from broker.net.frames import FrameLengthRefused, FrameReader
from broker.net.lifecycle import Lifecycle
from broker.net.response_queue import Outbox
from broker.net.shared import Shared
from broker.net.transport_writer import TransportWriter

if TYPE_CHECKING:
    from broker.net.server import Server

# These values are looked up once: a look-up as an attribute of the class costs 0.1 µs each time.
_READING, _MUTED, _BEHIND, _CLOSING = State.READING, State.MUTED, State.BEHIND, State.CLOSING
_MUTE, _LEFT_OVER, _CLEAR = NEXT[Event.MUTE], NEXT[Event.LEFT_OVER], NEXT[Event.CLEAR]
_THROTTLE = NEXT[Event.THROTTLE]

_COPY_MAX: Final = 4 << 10  # frames up to this size are copied after a large read
_COPY_BLOCKING_MAX: Final = 64 << 10  # the limit on a connection that had a blocking request before
_ANSWER_SMALL: Final = 4 << 10  # ready responses up to this size are joined; a larger response is sent at once
_TURN_FRAMES: Final = 128  # frames dispatched before other connections get their turn
_TURN_BYTES: Final = 32 << 10
"""Bytes of frames dispatched one by one before other connections get their turn. A frame of 3 KB can name 1 000 topics:
0.3 µs a byte."""


class Connection(asyncio.BufferedProtocol):
    """The protocol of one peer; made by the server, driven by its transport."""

    __slots__ = ("_keeps_frames", "_life", "_outbox", "_reader", "_server", "_shared", "admission", "peer")

    def __init__(self, shared: Shared, peer: Peer, server: Server) -> None:
        self._shared = shared
        self._server = server
        self.peer = peer
        self.admission = Admission.WAIT
        self._life = Lifecycle(shared, peer, self._memory_freed, self._advance)
        peer.throttle = self._life.throttle
        self._reader = FrameReader(shared.pool, shared.budget, shared.limits.request_bytes_max)
        self._keeps_frames = False  # whether this peer sends requests that block
        self._outbox: Outbox

    @property
    def state(self) -> State:
        return self._life.state

    # -- the transport's calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made, shared, life = cast(asyncio.Transport, transport), self._shared, self._life
        send = TransportWriter(shared.net, shared.wide_buffers, shared.counters, made, self._advance, life)
        self._outbox = Outbox(
            shared.limits.answers_in_flight_max, send, self._answer_ready, self._released, self._answer_failed
        )
        life.begin(made, self._outbox)
        self.peer.has_left = partial(shared.net.has_left, transport)
        address = transport.get_extra_info("peername")
        if address:
            self.peer.address = f"{address[0]}:{address[1]}"
        self.admission = self._server.arrived(self, transport)
        if self.admission is Admission.ADMIT:
            self.admit()
        elif self.admission is not Admission.REFUSE:
            life.update_reading()
            asyncio.get_running_loop().call_soon(life.pause_again)
        else:
            life.abort(CloseReason.TOO_MANY, "too many connections")

    def admit(self) -> None:
        """Begin to serve: at once, or when the server admits a waiting connection."""
        self.admission = Admission.ADMIT
        if self.peer.dispatcher is not None:
            self.peer.connection = self
            self.peer.dispatcher.admitted(self.peer)
        self._life.admitted()

    def close_delayed(self) -> None:
        """Close this connection after its delay, because its address opened connections too fast."""
        self._life.abort(CloseReason.TOO_FAST, "its address opens connections too fast")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        shared, life = self._shared, self._life
        shared.counters.bytes_in += nbytes
        if nbytes:  # zero bytes: TLS received a part of a record
            life.timeouts.heard = shared.wheel.tick
        self._reader.received(nbytes)
        if life.state is _READING:
            self._dispatch_frames()
        else:
            self._after_frames(0)

    def eof_received(self) -> None:
        """As in Kafka, responses in flight are dropped; the transport closes itself."""

    def pause_writing(self) -> None:
        self._outbox.send.pause()
        self._life.stalled()

    def resume_writing(self) -> None:
        # `resume` is called later, because a transport that is closed or aborted within this call reports its loss
        # twice (CPython 3.11).
        self._life.writable()
        asyncio.get_running_loop().call_soon(self._outbox.send.resume)

    def connection_lost(self, exc: Exception | None) -> None:
        self._life.lost()
        self.peer.throttle = self.peer.has_left = None  # breaks a reference cycle
        awaited = self._outbox.awaited
        self._outbox.close()
        self._reader.close()
        if awaited is not None:
            # Its frame stays charged while it waits. Otherwise clients that connect, send and close could hold frames
            # without bound.
            free = partial(_free, self._reader)
            awaited.when_done(free)
            awaited.when_released(free)
        self._server.left(self)

    # -- the peer's own dispatcher's calls ------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """See `ServedConnection`."""
        self._life.end(CloseReason.REFUSED, reason)

    def limit_frames(self, frame_bytes_max: int | None) -> None:
        """See `ServedConnection`."""
        self._reader.limit(frame_bytes_max or self._shared.limits.request_bytes_max)

    # -- the server's calls ---------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Read no more frames; close when the responses in flight have left."""
        self._life.end(CloseReason.DRAINED, "the broker is stopping")

    def stop(self) -> None:
        self._life.abort(CloseReason.STOPPED, "the broker is stopping, and responses were not sent in time")

    # -- TLS below ------------------------------------------------------------------------------------------------

    def refused(self, reason: CloseReason, detail: str) -> None:
        """The TLS session failed; its transport is closing."""
        self._life.cut(reason, detail)

    # -- frames in ------------------------------------------------------------------------------------------------

    def _dispatch_frames(self) -> None:
        """Dispatch received frames until no frame is left or the state changes. Send ready responses, and keep the
        other responses."""
        life, reader, peer, outbox, reading = self._life, self._reader, self.peer, self._outbox, _READING
        queue, take, dispatcher = outbox.answers, reader.next, peer.dispatcher or self._shared.dispatcher
        dispatch, dispatch_run = dispatcher.dispatch, dispatcher.dispatch_run
        ready: list[Part] = []
        frames = size = taken = copy_max = 0
        try:
            while life.state is reading and reader.pos != reader.end:
                count = 0
                if peer.produce_route is not None:
                    count, pos, answer = dispatch_run(peer, reader.view, reader.pos, reader.end)
                if count:
                    reader.advance_to(pos)
                    frames += count
                else:
                    if (frame := take()) is None:
                        break
                    frames += 1
                    size, copy_max = len(frame), self._copy_max()
                    taken += size
                    answer = dispatch(peer, memoryview(bytearray(frame)) if size <= copy_max else frame)
                if answer is None:
                    pass
                elif isinstance(answer, Later):
                    ready += outbox.wait_for(answer)
                    if outbox.awaited is not None:
                        self._wait(size, copy_max)
                    elif queue.full:
                        life.step(_MUTE)
                elif queue.entries:
                    queue.add(answer)
                    if queue.full:
                        life.step(_MUTE)
                else:
                    ready += answer
                    if len(answer) != 1 or answer[0].__class__ is not bytes or len(answer[0]) > _ANSWER_SMALL:
                        self._flush(ready)
                        ready = []
                if (frames >= _TURN_FRAMES or taken >= _TURN_BYTES) and life.state is reading:
                    life.step(_MUTE)
                    asyncio.get_running_loop().call_soon(self._advance)
        except FrameLengthRefused as refused:
            life.close(CloseReason.FRAME_LENGTH, str(refused))
        except CloseConnection as refused:
            life.close(CloseReason.REFUSED, refused.reason)
        except BaseException:
            life.abort(CloseReason.FAILED, "a request failed in an unforeseen way")
            raise
        if ready:
            self._flush(ready)
        self._after_frames(frames)

    def _copy_max(self) -> int:
        """Frames up to this size are dispatched as a copy. A frame that blocks for minutes (JoinGroup, a long poll)
        thus holds only its own few bytes instead of the whole buffer.
        """
        reader = self._reader
        if reader.stable:
            return -1
        if self._keeps_frames:
            return _COPY_BLOCKING_MAX
        return ALLOWANCE if reader.end <= ALLOWANCE else _COPY_MAX

    def _after_frames(self, frames: int) -> None:
        """After a dispatch: keep an incomplete frame, set its deadline, and pause or resume reading."""
        life, reader = self._life, self._reader
        self._shared.counters.frames += frames
        if life.state is _READING:
            fits = reader.compact()
            if reader.pos == reader.end:
                life.timeouts.frame_since = 0
                if life.reads:
                    return
            elif not fits:
                life.starve()
            elif frames or not life.reads or not life.timeouts.frame_since:
                life.frame_began()
        elif life.state is _CLOSING:
            life.close_when_done()
        else:
            reader.pause()
            if reader.left:
                life.step(_LEFT_OVER)
            else:
                life.timeouts.frame_since = 0
        life.update_reading()

    def _flush(self, ready: list[Part]) -> None:
        send = self._outbox.send
        send.send(ready)
        if send.busy:
            self._life.step(_MUTE)

    # -- answers out ----------------------------------------------------------------------------------------------

    def _wait(self, frame_bytes: int, copy_max: int) -> None:
        """The dispatched frame blocks: until its response is ready, no other frame is dispatched and its bytes are
        kept."""
        self._life.step(_MUTE)
        self._keeps_frames = True
        if self._reader.stable:
            return
        if frame_bytes > copy_max:
            self._reader.hold()
            self._life.step(_LEFT_OVER)
        elif frame_bytes > ALLOWANCE:
            self._reader.hold_copy(frame_bytes)

    def _answer_ready(self, _: Later) -> None:
        """A response that other responses or the next frame wait for is ready. Responses that become ready in the same
        turn are sent with it."""
        self._shared.afterwards.do(self._progress)

    def _released(self, _: Later) -> None:
        """The blocking request no longer blocks the next frame. Its response comes later."""
        self._shared.afterwards.do(self._go_on)

    def _go_on(self) -> None:
        if self._life.state not in OVER and self._outbox.unblock():
            self._reader.release()
            self._advance()

    def _progress(self) -> None:
        if self._life.state in OVER:
            return
        outbox = self._outbox
        if outbox.unblock():
            self._reader.release()
        ready = outbox.pop_ready()
        if ready:
            self._flush(ready)
        self._advance()

    def _answer_failed(self, reason: CloseReason, detail: str, failure: BaseException | None) -> None:
        if failure is not None:
            self._shared.report(f"answer to {self.peer.address}", failure)
        self._life.close(reason, detail)

    # -- resuming -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Dispatch again, unless another condition still blocks."""
        life, outbox = self._life, self._outbox
        state = life.state
        if state is _CLOSING:
            life.close_when_done()
        elif life.is_throttled:
            life.step(_THROTTLE)  # the connection was STARVED when the throttle began
        elif outbox.awaited is not None or outbox.answers.full or outbox.send.busy:
            life.step(_MUTE)
        elif state is _MUTED:
            life.step(_CLEAR)
        elif state is _BEHIND:
            life.step(_CLEAR)
            self._dispatch_frames()

    def _memory_freed(self) -> None:
        asyncio.get_running_loop().call_soon(self._resume_after_memory)

    def _resume_after_memory(self) -> None:
        self._life.step(NEXT[Event.MEMORY])
        self._advance()
        self._shared.budget.wake_next()


def _free(reader: FrameReader, _: Later) -> None:
    """The last request of a lost connection no longer needs its frame."""
    reader.release()
    reader.close()
