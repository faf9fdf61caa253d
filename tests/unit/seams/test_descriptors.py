"""The limit on descriptors is raised, and new logs and connections leave a part of it free."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys

import pytest

from seams.files import descriptors
from seams.files.posix_disk import PosixDisk

RAISED = """
import resource
from seams.files.descriptors import raise_limit
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most))
"""

OPENED = """
import os, resource
from seams.files.posix_disk import PosixDisk
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
disk, opened = PosixDisk(), []
try:
    while True:
        disk.check_descriptors()
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as refused:
    print(opened[-1], refused.strerror)
"""


def said_by(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


@pytest.mark.not_fast
def test_the_limit_is_raised() -> None:
    assert said_by(RAISED) == "True"


@pytest.mark.not_fast
def test_logs_leave_a_quarter_free() -> None:
    last, _, error = said_by(OPENED).partition(" ")
    assert int(last) == 29
    assert error == (
        "75.0% of the 40 descriptors that this process may have are open, and the rest is kept for other work: raise"
        " the limit (LimitNOFILE, ulimit -n)"
    )


def test_no_limit_has_room_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: unlimited)
    PosixDisk().check_descriptors()
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (4, 4))
    with pytest.raises(OSError, match="raise the limit") as refused:
        PosixDisk().check_descriptors()
    assert refused.value.errno == errno.EMFILE
