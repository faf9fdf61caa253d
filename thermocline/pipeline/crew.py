"""Threads that read windows, and their rows on the way to whoever iterates.

Owns the hand-over. Always true: a window's rows are taken in their order, while its thread may still make more; no
more than `UNIT_BYTES_MAX` of them wait, and a batch; what a thread raises is raised behind the rows before it; a crew
that is closed has no thread left, whatever they waited for. Must not know the order of windows, nor how one is read.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

import pyarrow as pa

from thermocline.pipeline.history import History
from thermocline.pipeline.scan import SplitReader
from thermocline.pipeline.windows import OpenPiece, Window

UNIT_BYTES_MAX: Final = 24 * 1024 * 1024  # rows of one window that wait for the reader: compressed ones may be many
_WAIT_S: Final = 1.0  # a sleeper looks up this often, should whoever must wake it be gone
_JOIN_S: Final = 10.0


class Unit:
    """One window's rows on their way from the thread that decodes it to the reader."""

    def __init__(self, reader: SplitReader, opened: OpenPiece, window: Window) -> None:
        self._reader = reader
        self._opened = opened
        self._window = window
        self._changed = threading.Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._done = False
        self._dropped = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Fetch and decode, in a thread of the crew; waits while too much waits for the reader."""
        try:
            fetched = self._reader.fetch(self._opened, self._window)
            if fetched is not None:
                for batch in self._reader.rows(fetched):
                    if not self._put(batch):
                        return
        except BaseException as error:  # noqa: BLE001 - whatever it is, the reader gets it, in its place
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        with self._changed:
            while self._bytes > UNIT_BYTES_MAX and not self._dropped:
                self._changed.wait(_WAIT_S)
            if self._dropped:
                return False
            self._batches.append(batch)
            self._bytes += batch.nbytes
            self._changed.notify_all()
            return True

    def take(self) -> pa.RecordBatch | None:
        """The next batch, None behind the last one. Raises what the thread met, behind the rows before it."""
        with self._changed:
            while not self._batches and not self._done and not self._dropped:
                self._changed.wait(_WAIT_S)
            if self._batches:
                batch = self._batches.popleft()
                self._bytes -= batch.nbytes
                self._changed.notify_all()
                return batch
        if self._error is not None:
            raise self._error
        return None

    def drop(self) -> None:
        """Nobody will take any more."""
        with self._changed:
            self._dropped = True
            self._batches.clear()
            self._changed.notify_all()


class Crew:
    """The threads. They know units and each other, never the reader: a forgotten reader can be collected."""

    def __init__(self, threads: int, history: History) -> None:
        self.history = history
        self._changed = threading.Condition()
        self._waiting: deque[Unit] = deque()
        self._under_way: set[Unit] = set()
        self._closed = False
        # Daemons, so that a reader left open does not keep the process: at its end `weakref.finalize` closes the crew.
        self._threads = [threading.Thread(target=self._work, name=f"read-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def give(self, unit: Unit) -> None:
        with self._changed:
            self._waiting.append(unit)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for unit in (*self._under_way, *self._waiting):
                unit.drop()
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():  # the garbage collector runs anywhere
                thread.join(_JOIN_S)
        self.history.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait(_WAIT_S)
                if self._closed:
                    return
                unit = self._waiting.popleft()
                self._under_way.add(unit)
            unit.run()
            with self._changed:
                self._under_way.discard(unit)
            del unit
