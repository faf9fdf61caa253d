"""The cleaner's engine in a child process of low priority (`engine_child`), so that this process never imports numba.

The first `begin` starts the child. After a pass the child waits for a while without a map, so that the next pass does
not need a start. Then it exits by itself. Every wait has a deadline that grows with the bytes of the step. A child that
exceeds its deadline is killed. If the child was killed or died, the call raises CleanerLost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EBADF
from typing import Final, TypeVar

import msgspec

from hotstore.cleaning import engine_messages as messages
from hotstore.cleaning.engine import CleanedSegment, CleanerLost, Mapped
from logformat.compaction.rules import CleanRules, CleanStats
from seams.child_process import ChildProcess, OneCaller
from seams.files.disk import File

log = logging.getLogger(__name__)

R = TypeVar("R", bound=messages.Reply)

CHILD_MODULE: Final = "hotstore.cleaning.engine_child"
IDLE_S: Final = 60.0
# Without these variables numpy reserves memory for each CPU. The kernels use one thread.
_ENVIRONMENT: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


class Deadlines(msgspec.Struct, frozen=True):
    """Seconds after which a child counts as hung."""

    start_s: float = 180.0
    """Imports, and the kernels' compilation on the first start of a machine (some seconds of an idle CPU)."""
    step_s: float = 60.0
    bytes_per_s_min: int = 1 << 20
    """A step gets one more second for this number of bytes, because a slow disk does not mean a hung child."""

    def of(self, length: int) -> float:
        return self.step_s + length / self.bytes_per_s_min


class ProcessEngine:
    """A `CleanerEngine` over one child process. A call while another thread is in a call raises AssertionError."""

    def __init__(self, *, idle_s: float = IDLE_S, deadlines: Deadlines | None = None) -> None:
        self._idle_s = idle_s
        self.deadlines = deadlines or Deadlines()
        self._one_caller = OneCaller()
        self._child: ChildProcess | None = None
        self._is_closed = False
        self._segment_bytes = 0

    @property
    def pid(self) -> int | None:
        """Process id of the child; None if there is no child. The child may have ended by itself."""
        child = self._child
        return None if child is None else child.pid

    def begin(self, buffer_bytes: int, rules: CleanRules) -> None:
        request = messages.Begin(buffer_bytes, rules.now_ms, rules.delete_retention_ms, rules.tombstones_end)
        with self._calling():
            if self._child is not None:
                try:
                    self._begin(request, rules)
                    return
                except CleanerLost as lost:  # the usual reason is that it was idle
                    log.debug("starting another cleaner process: %s", lost)
            self._start()
            self._begin(request, rules)

    def _begin(self, request: messages.Begin, rules: CleanRules) -> None:
        aborted, last_offsets = rules.aborted, rules.last_offsets
        for at in range(0, len(aborted), messages.ABORTED_MAX):
            self._ask(messages.Aborted(aborted[at : at + messages.ABORTED_MAX]), messages.Done)
        for at in range(0, len(last_offsets), messages.LAST_OFFSETS_MAX):
            self._ask(messages.LastOffsets(last_offsets[at : at + messages.LAST_OFFSETS_MAX]), messages.Done)
        self._ask(request, messages.Done)

    def map(self, file: File, position: int, length: int) -> Mapped:
        request = messages.Map(messages.path_bytes(file.path), position, length)
        with self._calling():
            done = self._ask(request, messages.MapDone, [file], length)
        return Mapped(done.taken_bytes, done.end_offset, done.is_full)

    def begin_segment(
        self, base_offset: int, interval_bytes: int, log: File, offset_index: File, time_index: File
    ) -> None:
        first, second, third = (messages.path_bytes(file.path) for file in (log, offset_index, time_index))
        request = messages.BeginSegment(base_offset, interval_bytes, (first, second, third))
        with self._calling():
            self._segment_bytes = 0
            self._ask(request, messages.Done, [log, offset_index, time_index])

    def clean(self, file: File, position: int, length: int) -> int:
        request = messages.Clean(messages.path_bytes(file.path), position, length)
        with self._calling():
            done = self._ask(request, messages.CleanDone, [file], length)
            self._segment_bytes += done.taken_bytes
        return done.taken_bytes

    def finish_segment(self) -> CleanedSegment:
        with self._calling():
            done = self._ask(messages.FinishSegment(), messages.SegmentDone, [], self._segment_bytes)
        stats = CleanStats(**done.stats)
        return CleanedSegment(done.size, done.end_offset, done.max_timestamp, done.max_timestamp_offset, stats)

    def end(self) -> None:
        with self._calling():
            if self._child is None:
                return
            try:
                self._ask(messages.End(), messages.Done)
            except (CleanerLost, OSError) as error:
                log.info("the cleaner's process is gone at the end of a pass: %s", error)
                self._drop()

    def close(self) -> None:
        self._is_closed = True
        child = self._child
        if child is not None:
            child.kill()
        with self._one_caller.unless_inside() as is_alone:  # otherwise the thread that is in a call drops the child
            if is_alone:
                self._drop()

    def reap(self) -> None:
        """Forget a child that ended because it was idle, so that no zombie stays. The caller calls this
        periodically."""
        with self._calling():
            if self._child is not None and (not self._child.is_ours or self._child.has_ended()):
                self._drop()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        with self._one_caller:
            try:
                yield
            finally:
                if self._is_closed:
                    self._drop()

    def _start(self) -> None:
        """Start the child. Raises CleanerLost, OSError."""
        self._drop()
        self._refuse_if_closed()
        child = self._child = ChildProcess(CHILD_MODULE, [str(self._idle_s)], _ENVIRONMENT)
        self._refuse_if_closed()  # `close` may have been called before the child existed
        self._receive(child, messages.Done, self.deadlines.start_s)
        log.info("the cleaner works in process %d", child.pid)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise CleanerLost("the cleaner is closed")  # `_calling` drops the child

    def _ask(self, request: messages.Request, kind: type[R], files: Sequence[File] = (), length: int = 0) -> R:
        child = self._child
        if child is None or not child.is_ours:
            self._drop()
            raise CleanerLost("there is no cleaner process; begin another pass")
        descriptors = [_descriptor_of(file) for file in files]
        timeout_s = self.deadlines.of(length)
        try:
            child.send(messages.encode(request), descriptors, timeout_s)
        except (EOFError, TimeoutError) as error:
            raise self._lost(f"its process takes no requests: {error}") from None
        return self._receive(child, kind, timeout_s)

    def _receive(self, child: ChildProcess, kind: type[R], timeout_s: float) -> R:
        """Wait for a reply of `kind`. Raises the child's OSError or DamagedLog, and CleanerLost if the child is
        dead."""
        try:
            reply = messages.decode_reply(child.receive(timeout_s))
        except TimeoutError:
            raise self._lost(f"process {child.pid} did not answer in {timeout_s:.0f} s") from None
        except (EOFError, msgspec.MsgspecError) as error:
            raise self._lost(str(error)) from None
        except BaseException:
            self._drop()  # a late reply would be taken for that of the next request
            raise
        if isinstance(reply, messages.FileError | messages.Damage):
            raise messages.raised(reply)
        if not isinstance(reply, kind):
            raise self._lost(f"{reply}: a defect, please report it")
        return reply

    def _lost(self, why: str) -> CleanerLost:
        """Kill the child process if it still runs."""
        self._drop()
        return CleanerLost(f"the cleaner is lost: {why}")

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()


def _descriptor_of(file: File) -> int:
    descriptor = file.descriptor()
    assert descriptor is not None, f"{file.path} has no descriptor: only LocalEngine works on it"
    if descriptor < 0:
        raise OSError(EBADF, "closed", file.path)
    return descriptor
