"""A child process that answers over one socket pair, and never outlives its parent."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seams.child_process import ChildProcess, OneCaller
from tests.support.processes.echo_child import MODULE

pytestmark = pytest.mark.not_fast  # each starts a process

ANSWER_S = 60.0
IOPRIO_GET = 252  # x86_64


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    started = ChildProcess(MODULE)
    try:
        assert started.receive(ANSWER_S) == b"ready"
        yield started
    finally:
        started.close()


def test_messages_and_descriptors_arrive(child: ChildProcess, tmp_path: Path) -> None:
    target = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    child.send(b"hello", [target])
    os.close(target)  # the child's is a copy
    assert child.receive(ANSWER_S) == b"hello"
    assert (tmp_path / "a").read_bytes() == b"hello"


def test_a_closed_descriptor_is_refused_and_the_child_goes_on(child: ChildProcess, tmp_path: Path) -> None:
    closed = os.open(tmp_path, os.O_RDONLY)
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        child.send(b"lost", [closed])
    child.send(b"hello")
    assert child.receive(ANSWER_S) == b"hello"


def test_it_inherits_only_its_socket(tmp_path: Path) -> None:
    """Even descriptors that are marked inheritable stay here: they would keep a deleted log's blocks."""
    leaking = os.open(tmp_path / "leak", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(leaking, True)
    child = ChildProcess(MODULE)
    try:
        child.receive(ANSWER_S)
        place = f"/proc/{child.pid}/fd"
        kinds = sorted(os.readlink(f"{place}/{name}").split(":")[0] for name in os.listdir(place) if int(name) > 2)
    finally:
        child.close()
        os.close(leaking)
    assert kinds in (["anon_inode", "socket"], ["pipe", "socket"], ["socket"]), kinds  # the first is the pidfd


def test_a_killed_child_ends_the_wait(child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(EOFError, match=f"process {child.pid} was killed by signal 9"):
        child.receive(ANSWER_S)
    with pytest.raises(EOFError):
        child.send(b"hello")
    assert child.has_ended()


def test_a_child_that_cannot_start_says_how_it_ended() -> None:
    child = ChildProcess("no.such.module")
    with pytest.raises(EOFError, match=f"process {child.pid} ended with exit code 1"):
        child.receive(ANSWER_S)
    child.close()


def test_a_stopped_child_exceeds_its_deadline_and_is_killed(child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    child.send(b"hello")
    with pytest.raises(TimeoutError):
        child.receive(0.05)
    child.close()
    assert child.has_ended()


def test_it_waits_for_others(child: ChildProcess) -> None:
    assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n"
    if os.uname().machine == "x86_64":
        assert ctypes.CDLL(None).syscall(IOPRIO_GET, 1, child.pid) == 2 << 13 | 7


PARENT = f"""
import os, sys
from seams.child_process import ChildProcess
child = ChildProcess({MODULE!r})
child.receive({ANSWER_S})
if sys.argv[1] != "idle":
    child.send(b"work for minutes")
    child.receive({ANSWER_S})
copy = os.fork() if sys.argv[1] == "forked" else None
if copy == 0:
    assert not child.is_ours
    os.read(0, 1)  # holds a copy of the socket until the test ends
    os._exit(0)
print(child.pid, flush=True)
os.read(0, 1)
"""


@pytest.mark.parametrize("state", ["idle", "busy", "forked"])
def test_it_never_outlives_a_killed_parent(state: str) -> None:
    """Not even within a step, nor when a forked process keeps the socket open."""
    command = [sys.executable, "-c", PARENT, state]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            assert select.select([child], [], [], ANSWER_S)[0], "the child lives on"
        finally:
            os.close(child)


def test_a_fork_leaves_the_child_to_its_parent(child: ChildProcess) -> None:
    copy = os.fork()
    if copy == 0:
        child.close()
        os._exit(0)
    assert os.waitpid(copy, 0)[1] == 0
    child.send(b"hello")
    assert child.receive(ANSWER_S) == b"hello"


def test_a_second_caller_is_refused() -> None:
    one = OneCaller()
    with one:
        with pytest.raises(AssertionError, match="another thread"), one:
            pass
        with one.unless_inside() as alone:
            assert not alone
    with one.unless_inside() as alone:
        assert alone
    with one:
        pass
