"""Child process of this interpreter: exchanges messages and descriptors with its parent over a socket pair, without a
port.

`ChildProcess` is the parent's end, `ParentChannel` the child's. The child inherits only its socket and stderr. It ends
with its parent: a thread waits for the socket's end and for the parent's pidfd, so a copy of the socket in a forked
process does not keep the child alive. PR_SET_PDEATHSIG would end the child with the *thread* that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock, Thread
from types import TracebackType
from typing import Final

from seams.files import syscalls

MESSAGE_BYTES_MAX: Final = 64 << 10
DESCRIPTORS_MAX: Final = 8  # per message
_REAP_S: Final = 5.0  # longest wait of `close` for a killed process, which may wait for a disk
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_IOPRIO_LOWEST: Final = 2 << 13 | 7  # best effort, lowest level: the idle class may starve while the disk is busy


class ChildProcess:
    """Runs `python -m module`; `arguments` follow the two that `ParentChannel.of_arguments` takes.

    One thread at a time sends and receives; `kill` may be called from any. In a process that was forked from this one,
    the copy of this object can only be closed."""

    def __init__(
        self, module: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        """Raises OSError: no memory, descriptor or process is left."""
        self._owner = os.getpid()
        self._ending = Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-X", "faulthandler", "-m", module, str(theirs.fileno()), str(self._owner)]
        try:
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # only the parent handles a terminal's Ctrl-C
                env={**os.environ, **(environment or {}), "PYTHONPATH": _import_path()},
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        """Whether this process started the child, and not a process from which this one was forked."""
        return os.getpid() == self._owner

    def send(self, message: bytes, descriptors: Sequence[int] = (), timeout_s: float = 60.0) -> None:
        """Raises EOFError if the child ended, TimeoutError, OSError (EBADF) for a closed descriptor."""
        self._socket.settimeout(timeout_s)
        try:
            socket.send_fds(self._socket, [message], list(descriptors))
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError(self._how_it_ended()) from None

    def receive(self, timeout_s: float) -> bytes:
        """The next message. Raises EOFError if the child ended, TimeoutError."""
        self._socket.settimeout(timeout_s)
        try:
            message = self._socket.recv(MESSAGE_BYTES_MAX)
        except ConnectionResetError:
            message = b""
        if not message:
            raise EOFError(self._how_it_ended())
        return message

    def has_ended(self) -> bool:
        """Whether the child has ended. The call also takes its exit status, so that no zombie stays."""
        with self._ending:
            return self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL, and wake a thread that waits in `receive`."""
        if not self.is_ours:
            return
        with self._ending:  # until then no thread may reap the pid, which another process could get
            self._process.kill()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Kill the child and take its exit status. Called by the thread that sends and receives, or after that thread
        ended.
        """
        self.kill()
        self._socket.close()
        if self.is_ours:
            self._wait(_REAP_S)

    def _how_it_ended(self) -> str:
        code = self._wait(_REAP_S)
        if code is None:
            return f"process {self.pid} closed its socket"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"process {self.pid} {how}"

    def _wait(self, timeout_s: float) -> int | None:
        with self._ending, contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None


class ParentChannel:
    """The child's end of the socket pair."""

    def __init__(self, descriptor: int, parent_pid: int) -> None:
        """Start to watch the parent: this process ends at once when its parent ends."""
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        Thread(target=_end_with, args=(parent_pid, descriptor), name="parent-watch", daemon=True).start()

    @classmethod
    def of_arguments(cls, arguments: Sequence[str]) -> ParentChannel:
        """The channel of the first two command-line arguments."""
        return cls(int(arguments[0]), int(arguments[1]))

    def receive(self, timeout_s: float | None) -> tuple[bytes, list[int]]:
        """The next message and its descriptors, which the caller closes. Raises EOFError, TimeoutError."""
        self._socket.settimeout(timeout_s)
        message, descriptors, _, _ = socket.recv_fds(
            self._socket, MESSAGE_BYTES_MAX, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
        )
        if not message:
            raise EOFError
        return message, descriptors

    def send(self, message: bytes) -> None:
        self._socket.settimeout(None)
        self._socket.sendall(message)


class OneCaller:
    """Refuses a second thread while one is inside: `with` raises AssertionError instead of waiting."""

    def __init__(self) -> None:
        self._lock = Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise AssertionError("another thread is inside a call: one at a time")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    @contextlib.contextmanager
    def unless_inside(self) -> Iterator[bool]:
        """Enter if no thread is inside; returns whether the calling thread entered."""
        entered = self._lock.acquire(blocking=False)
        try:
            yield entered
        finally:
            if entered:
                self._lock.release()


def lower_priority() -> None:
    """Make this process wait for others: nice 10, the lowest best-effort IO priority, and the first to be killed when
    memory runs out. A setting that the kernel or a sandbox refuses stays as it is."""
    with contextlib.suppress(OSError):
        os.nice(10)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None and syscalls.MACHINE:
        with contextlib.suppress(OSError):
            syscalls.call(number, ctypes.c_int(1), ctypes.c_int(0), ctypes.c_int(_IOPRIO_LOWEST))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")


def return_free_memory() -> None:
    """Give freed memory of the C heap back to the kernel (glibc's malloc_trim)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _end_with(parent_pid: int, descriptor: int) -> None:
    """Wait for the parent's end; then end this process without any clean-up: a step may be running."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    parent: int | None = None
    with contextlib.suppress(OSError):  # an old kernel or a sandbox has no pidfd; then only the socket is watched
        parent = os.pidfd_open(parent_pid)
        poll.register(parent, select.POLLIN)
    if os.getppid() == parent_pid:
        poll.poll()
    os._exit(0)


def _import_path() -> str:
    """PYTHONPATH with which a child in any directory imports the same modules as this process."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)
