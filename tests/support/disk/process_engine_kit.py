"""A cleaner's engine in a child process, and what a test does to its child."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

from hotstore.cleaning.engine_process import ProcessEngine

PATIENT_S = 60.0


@contextlib.contextmanager
def process_engine(*, idle_s: float = 600.0) -> Iterator[ProcessEngine]:
    engine = ProcessEngine(idle_s=idle_s)
    try:
        yield engine
    finally:
        engine.close()


def child_of(engine: ProcessEngine) -> int:
    pid = engine.pid
    assert pid is not None, "there is no child"
    return pid


def kill_child(engine: ProcessEngine) -> None:
    """As the kernel does when memory runs out."""
    os.kill(child_of(engine), signal.SIGKILL)


@contextlib.contextmanager
def stopped_child(engine: ProcessEngine) -> Iterator[None]:
    """It answers nothing meanwhile, as if its disk hung."""
    pid = child_of(engine)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def wait_for_end(pid: int) -> None:
    """Until the process has exited, reaped or not."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], PATIENT_S)[0], f"process {pid} lives on"
    finally:
        os.close(process)


def memory_mib(pid: int, field: str = "VmRSS") -> float:
    """`VmRSS` now or `VmHWM` at most."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {field}")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
