"""The lock of a data directory stays until the last thread that may write there is over."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from broker.config.places import Launch
from broker.config.resolve import resolve
from hotstore.errors import DataDirLocked
from hotstore.host.data_dir import DataDir, Process
from seams.files.posix_disk import PosixDisk
from seams.loop.workers import ThreadWorkers
from thermocline.cli.serve.process import run_broker


def test_a_stop_while_a_slow_disk_starts_keeps_the_lock_until_the_late_write_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by reading: SIGTERM cancelled the start, and the lock was released while a thread still recorded this
    process. Another process that started meanwhile recorded itself first. The late record replaced it, and the next
    start took the directory for an older copy: each log without another copy then had a gap that was none."""
    data, seen, may_write = str(tmp_path / "data"), list[str](), threading.Event()
    note, close = DataDir.note_processes, ThreadWorkers.close

    def note_slowly(self: DataDir, processes: tuple[Process, ...]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert may_write.wait(10.0)
        note(self, processes)
        seen.append("recorded")

    def close_later(self: ThreadWorkers) -> None:
        """The broker was closed; what its threads do is not over."""
        try:
            DataDir.open(PosixDisk(), data).close()
            seen.append("another process has it")
        except DataDirLocked:
            seen.append("locked")
        may_write.set()
        close(self)

    monkeypatch.setattr(DataDir, "note_processes", note_slowly)
    monkeypatch.setattr(ThreadWorkers, "close", close_later)
    flags = {
        "log.dirs": data,
        "thermocline.bucket": (tmp_path / "bucket").as_uri(),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "thermocline.http": "",
    }
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        assert run_broker(resolve(flags, [], {}, None, Launch())) == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert seen == ["locked", "recorded"]
    DataDir.open(PosixDisk(), data).close()
