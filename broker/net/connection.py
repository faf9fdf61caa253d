"""One connection: the asyncio protocol that joins frame reader, dispatcher, answer queue and send path.

Owns the decision when to read and when to dispatch. Always true: frames are dispatched in order, one at a time; nothing
is dispatched while an earlier frame blocks, while too many answers are in flight, or while the peer does not take its
answers; whoever is not dispatched is not read either, as soon as it sends more. Must not know Kafka, files or limits on
who may connect.

Hot path: per frame one slice, one dispatch, one list append; per read one `send` for all answers ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from broker.net.admission import Admission
from broker.net.answers import AnswerQueue
from broker.net.buffers import ALLOWANCE, BufferPool, FrameBudget
from broker.net.counters import NetCounters
from broker.net.deadlines import DeadlineWheel
from broker.net.dispatch import CloseConnection, CloseReason, Dispatcher, Later, Part, Peer
from broker.net.frames import FrameLengthRefused, FrameReader
from broker.net.limits import NetLimits
from broker.net.send_path import SendPath
from seams.net import Net
from seams.tasks import FailureReport

log = logging.getLogger(__name__)

_COPY_MAX: Final = 4 << 10
"""Frames up to this are dispatched as a copy when much came in one read, so that one that blocks holds its own few
bytes and not the shared buffer."""

_COPY_BLOCKING_MAX: Final = 64 << 10  # the same, on a connection that had a blocking request before
_ANSWER_SMALL: Final = 4 << 10  # ready answers above this are not gathered but sent at once
_RUN_FRAMES: Final = 32  # requests that may be answered as one
_TURN_FRAMES: Final = 128  # frames of one connection before the others get the loop


@dataclass(slots=True)
class Hub:
    """What all connections of a server share."""

    net: Net
    dispatcher: Dispatcher
    limits: NetLimits
    pool: BufferPool
    budget: FrameBudget
    wheel: DeadlineWheel[Connection]
    counters: NetCounters
    report: FailureReport
    arrived: Callable[[Connection], Admission]  # on WAIT `Connection.admit` follows some time
    left: Callable[[Connection], None]
    frame_ticks: int
    idle_ticks: int
    stall_ticks: int


class Connection(asyncio.BufferedProtocol):
    """`asyncio.BufferedProtocol` for one peer; made by the server, driven by its transport."""

    __slots__ = (
        "_answers",
        "_blocking",
        "_closing",
        "_frame_tick",
        "_held_bytes",
        "_hub",
        "_keeps_frames",
        "_last_tick",
        "_paused",
        "_reader",
        "_send",
        "_stall",
        "_stopped",
        "_transport",
        "_waits_for_budget",
        "admission",
        "armed_tick",
        "peer",
    )

    def __init__(self, hub: Hub, peer: Peer) -> None:
        self._hub = hub
        self.peer = peer
        self.admission = Admission.WAIT
        self.armed_tick = 0
        self._reader = FrameReader(hub.pool, hub.budget, hub.limits.request_bytes_max)
        self._answers = AnswerQueue(hub.limits.answers_in_flight_max)
        self._blocking: asyncio.Future[list[Part] | None] | None = None
        self._held_bytes = 0  # charged for a copied frame that blocks
        self._keeps_frames = False  # this peer sends requests that block
        self._stopped = True  # no frame may be dispatched now
        self._paused = False  # the transport does not read
        self._waits_for_budget = False
        self._closing: CloseReason | None = None  # no more frames; closed once all answers left
        self._last_tick = 0  # of the last byte in; once closing, of the decision
        self._frame_tick = 0  # tick at which the incomplete frame began, 0 for none
        self._stall: tuple[int, tuple[int, int]] | None = (
            None  # since when the peer took nothing, and what it had taken
        )
        self._transport: asyncio.Transport
        self._send: SendPath

    # -- the transport's calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        hub = self._hub
        self._send = SendPath(hub.net, hub.counters, self._transport, self._advance, self._send_failed)
        address = transport.get_extra_info("peername")
        if address:
            self.peer.address = f"{address[0]}:{address[1]}"
        self.admission = hub.arrived(self)
        if self.admission is Admission.ADMIT:
            self.admit()
        elif self.admission is Admission.WAIT:
            self._pause_reading()
        else:
            self._abort(CloseReason.TOO_MANY, "too many connections")

    def admit(self) -> None:
        """Begin to serve: at once, or when the server lets a waiting connection in."""
        self.admission = Admission.ADMIT
        self._stopped = False
        wheel = self._hub.wheel
        self._last_tick = wheel.tick
        wheel.arm(self, wheel.tick + self._hub.idle_ticks)
        self._resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        hub = self._hub
        hub.counters.bytes_in += nbytes
        self._last_tick = hub.wheel.tick
        self._reader.received(nbytes)
        if self._stopped:
            self._settle(0)
        else:
            self._dispatch_frames()

    def eof_received(self) -> None:
        """The peer is done: as in Kafka, answers in flight are not waited for (the transport closes itself)."""

    def pause_writing(self) -> None:
        self._send.pause()
        hub = self._hub
        self._stall = (hub.wheel.tick, self._send.progress)
        hub.wheel.arm(self, hub.wheel.tick + hub.stall_ticks)

    def resume_writing(self) -> None:
        # Not at once: a transport that is closed or aborted within this call reports its loss twice (CPython 3.11).
        self._stall = None
        asyncio.get_running_loop().call_soon(self._send.resume)

    def connection_lost(self, exc: Exception | None) -> None:
        hub = self._hub
        self.peer.closed = True
        self._stopped = True
        hub.counters.closes[self._closing or CloseReason.PEER] += 1
        self._send.close()
        self._drop_answers()
        self._reader.close()
        self._release_held()
        if self._waits_for_budget:
            hub.budget.forget(self._budget_freed)  # if it was woken already, `_retry_budget` wakes the next one
        hub.wheel.disarm(self)
        hub.left(self)

    # -- frames in ------------------------------------------------------------------------------------------------

    def _dispatch_frames(self) -> None:
        """Dispatch what has arrived until it is used up or something says stop, send what is ready, keep the rest."""
        reader, peer, answers = self._reader, self.peer, self._answers
        take, dispatch = reader.next, self._hub.dispatcher.dispatch
        stable = reader.stable
        copy_max = -1 if stable else _COPY_BLOCKING_MAX if self._keeps_frames else _COPY_MAX
        ready: list[Part] = []
        frames = 0
        try:
            while not self._stopped and (frame := take()) is not None:
                frames += 1
                together = 0
                if peer.produce_prefix_end:
                    together, answer = self._hub.dispatcher.dispatch_run(peer, frame, reader.ahead(_RUN_FRAMES - 1))
                if together:
                    for _ in range(together - 1):
                        take()
                    frames += together - 1
                else:
                    if len(frame) <= copy_max:
                        frame = memoryview(bytearray(frame))
                    answer = dispatch(peer, frame)
                if answer is None:
                    pass
                elif isinstance(answer, Later):
                    ready += self._wait_for(answer, 0 if stable else len(frame), copy_max)
                elif answers:
                    answers.add(answer)
                    self._stopped = answers.full
                else:
                    ready += answer
                    if len(answer) != 1 or answer[0].__class__ is not bytes or len(answer[0]) > _ANSWER_SMALL:
                        self._flush(ready)
                        ready = []
                if frames >= _TURN_FRAMES and not self._stopped:
                    self._stopped = True
                    asyncio.get_running_loop().call_soon(self._advance)
        except FrameLengthRefused as refused:
            self._decide_close(CloseReason.FRAME_LENGTH, str(refused))
        except CloseConnection as refused:
            self._decide_close(CloseReason.REFUSED, refused.reason)
        except BaseException:
            self._abort(CloseReason.FAILED, "a request failed in an unforeseen way")
            raise
        if ready:
            self._flush(ready)
        self._settle(frames)

    def _settle(self, frames: int) -> None:
        """After frames were taken: keep what is incomplete, watch its deadline, read on or not."""
        hub, reader = self._hub, self._reader
        hub.counters.frames += frames
        if self._closing is not None:
            self._pause_reading()
            self._close_when_done()
            return
        fits = reader.settle(self._stopped)
        if not reader.left:
            self._frame_tick = 0
            if self._paused and not self._stopped:
                self._resume_reading()
        elif self._stopped:
            self._pause_reading()
        elif not fits:
            self._wait_for_budget()
        else:
            if frames or self._paused or not self._frame_tick:
                self._frame_tick = hub.wheel.tick
                hub.wheel.arm(self, hub.wheel.tick + hub.frame_ticks)
            self._resume_reading()

    def _advance(self) -> None:
        """Something that may have stopped this connection changed: go on if nothing else stops it."""
        if self.peer.closed:
            return
        if self._closing is not None:
            self._close_when_done()
            return
        self._stopped = self._blocking is not None or self._answers.full or self._send.busy
        if not self._stopped:
            self._dispatch_frames()

    # -- answers out ----------------------------------------------------------------------------------------------

    def _wait_for(self, later: Later, frame_bytes: int, copy_max: int) -> list[Part]:
        """Queue an answer that is not ready; parts that may leave now (it can be done already)."""
        answers, future = self._answers, later.future
        answers.add(future)
        if later.blocks and not future.done():
            self._blocking = future
            self._stopped = True
            self._keeps_frames = True
            if frame_bytes > max(copy_max, 0):
                self._reader.hold()
                self._pause_reading()
            elif frame_bytes > ALLOWANCE:
                self._held_bytes = frame_bytes
                self._hub.budget.force(frame_bytes)
            if len(answers) > 1:
                future.add_done_callback(self._progress)
        elif answers.full:
            self._stopped = True
        return self._pop_ready() if len(answers) == 1 else []

    def _pop_ready(self) -> list[Part]:
        """Parts that may leave; whatever the next one waits for will call `_progress`."""
        ready = self._answers.pop_ready()
        head = cast("asyncio.Future[list[Part] | None] | None", self._answers.head())
        if head is None:
            pass
        elif not head.done():
            head.add_done_callback(self._progress)
        else:
            self._answer_failed(head)
        return ready

    def _answer_failed(self, future: asyncio.Future[list[Part] | None]) -> None:
        """The answers before this one leave; it and those behind it never will."""
        failure = asyncio.CancelledError() if future.cancelled() else future.exception()
        self._drop_answers()
        if isinstance(failure, CloseConnection):
            self._decide_close(CloseReason.REFUSED, failure.reason)
            return
        assert failure is not None
        self._hub.report(f"answer to {self.peer.address}", failure)
        self._decide_close(CloseReason.FAILED, f"no answer: {failure!r}")

    def _progress(self, _: asyncio.Future[list[Part] | None]) -> None:
        """An answer came that others, or the next frame, waited for."""
        if self.peer.closed:
            return
        if self._blocking is not None and self._blocking.done():
            self._blocking = None
            self._release_held()
        ready = self._pop_ready()
        if ready:
            self._flush(ready)
        self._advance()

    def _flush(self, ready: list[Part]) -> None:
        self._send.send(ready)
        if self._send.busy:
            self._stopped = True

    def _drop_answers(self) -> None:
        for waiting in self._answers.drain():
            future = cast("asyncio.Future[list[Part] | None]", waiting)
            future.remove_done_callback(self._progress)  # a request that waits for minutes must not keep us
            future.add_done_callback(_retrieve)

    def _release_held(self) -> None:
        self._reader.release()
        if self._held_bytes:
            self._hub.budget.give(self, self._held_bytes, 0)
            self._held_bytes = 0

    # -- memory ---------------------------------------------------------------------------------------------------

    def _wait_for_budget(self) -> None:
        self._pause_reading()
        if not self._waits_for_budget:
            self._waits_for_budget = True
            self._hub.counters.budget_waits += 1
            self._hub.budget.wait(self._budget_freed)

    def _budget_freed(self) -> None:
        asyncio.get_running_loop().call_soon(self._retry_budget)

    def _retry_budget(self) -> None:
        self._waits_for_budget = False
        self._advance()
        self._hub.budget.wake_next()

    # -- the end --------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more frames; close when the answers in flight have left."""
        self._decide_close(CloseReason.DRAINED, "the broker stops")
        self._pause_reading()
        self._close_when_done()

    def stop(self) -> None:
        """Close now, whatever is in flight."""
        self._abort(CloseReason.STOPPED, "the broker stops, and answers did not leave in time")

    def check_deadlines(self, tick: int) -> int:
        """See `deadlines.Timed`."""
        hub = self._hub
        if self.peer.closed:
            return 0
        if self._stall is not None:
            since, taken = self._stall
            if taken != self._send.progress:
                since = tick
                self._stall = (tick, self._send.progress)
            elif tick - since >= hub.stall_ticks:
                self._abort(CloseReason.SLOW_READER, f"took nothing for {tick - since} s")
                return 0
            return since + hub.stall_ticks
        if self._closing is not None:
            if tick - self._last_tick >= hub.stall_ticks:
                self._abort(self._closing, "answers in flight did not come")
                return 0
            return self._last_tick + hub.stall_ticks
        due = []
        if self._frame_tick and not self._paused:
            due.append((self._frame_tick + hub.frame_ticks, CloseReason.FRAME_DEADLINE))
        if self._answers:
            self._last_tick = tick
        due.append((self._last_tick + hub.idle_ticks, CloseReason.IDLE))
        next_tick, reason = min(due)
        if tick >= next_tick:
            self._decide_close(reason, "deadline passed")
            self._pause_reading()
            self._close_when_done()
            return tick + hub.stall_ticks
        return next_tick

    def _decide_close(self, reason: CloseReason, detail: str) -> None:
        """No more frames from now on; `_close_when_done` does the rest."""
        self._stopped = True
        if self._closing is None:
            self._closing = reason
            self._last_tick = self._hub.wheel.tick
            self._hub.wheel.arm(self, self._last_tick + self._hub.stall_ticks)
            log.debug("closing %s: %s: %s", self.peer.address, reason.value, detail)

    def _close_when_done(self) -> None:
        if not self._answers and not self._send.busy:
            self._transport.close()

    def _abort(self, reason: CloseReason, detail: str) -> None:
        log.debug("closing %s at once: %s: %s", self.peer.address, reason.value, detail)
        self._stopped = True
        self._closing = reason
        self._transport.abort()

    def _send_failed(self, reason: CloseReason, detail: str) -> None:
        level = logging.DEBUG if reason is CloseReason.PEER else logging.WARNING
        log.log(level, "closing %s: %s: %s", self.peer.address, reason.value, detail)
        self._stopped = True
        self._closing = reason

    def _pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()


def _retrieve(future: asyncio.Future[list[Part] | None]) -> None:
    """Nobody waits for this answer any more; asyncio shall not complain about its failure."""
    if not future.cancelled():
        future.exception()
