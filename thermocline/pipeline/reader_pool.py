"""Reader threads, and the queue of rows from each of them to the iterating caller.

Rows of a window are delivered in order, while its thread may still decode more. At most `WINDOW_BYTES_WAITING_MAX`
bytes and one batch wait per window. An error of a thread is raised after the rows before it. `close` ends every thread.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

import pyarrow as pa

from thermocline.pipeline.history import History
from thermocline.pipeline.scan import SplitReader
from thermocline.pipeline.windows import OpenPiece, Window

WINDOW_BYTES_WAITING_MAX: Final = 24 * 1024 * 1024  # decoded rows of one window that wait for the reader
_WAIT_S: Final = 1.0  # a waiting thread rechecks this often, in case the notifier is gone
_JOIN_S: Final = 10.0


class WindowRows:
    """The rows of one window, from the thread that decodes it to the reader."""

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
        """Fetch and decode, in a thread of the pool. Blocks while too many rows wait for the reader."""
        try:
            fetched = self._reader.fetch(self._opened, self._window)
            if fetched is not None:
                for batch in self._reader.rows(fetched):
                    if not self._put(batch):
                        return
        except BaseException as error:  # noqa: BLE001 - the reader raises it, behind the rows before it
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        with self._changed:
            while self._bytes > WINDOW_BYTES_WAITING_MAX and not self._dropped:
                self._changed.wait(_WAIT_S)
            if self._dropped:
                return False
            self._batches.append(batch)
            self._bytes += batch.nbytes
            self._changed.notify_all()
            return True

    def take(self) -> pa.RecordBatch | None:
        """The next batch; None after the last. Raises the thread's error after the rows before it."""
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
        """The reader is closed: discard the rows and stop waiting."""
        with self._changed:
            self._dropped = True
            self._batches.clear()
            self._changed.notify_all()


class ReaderPool:
    """The threads. They refer to `WindowRows`, never to the reader, so that a forgotten reader is collected."""

    def __init__(self, threads: int, history: History) -> None:
        self.history = history
        self._changed = threading.Condition()
        self._waiting: deque[WindowRows] = deque()
        self._running: set[WindowRows] = set()
        self._closed = False
        # Daemon threads do not keep the process alive; at exit `weakref.finalize` closes the pool.
        self._threads = [threading.Thread(target=self._work, name=f"read-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, rows: WindowRows) -> None:
        with self._changed:
            self._waiting.append(rows)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for rows in (*self._running, *self._waiting):
                rows.drop()
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():  # the garbage collector may close us from a pool thread
                thread.join(_JOIN_S)
        self.history.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait(_WAIT_S)
                if self._closed:
                    return
                rows = self._waiting.popleft()
                self._running.add(rows)
            rows.run()
            with self._changed:
                self._running.discard(rows)
            del rows
