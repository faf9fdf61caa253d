"""The command line in front of somebody: stdin is a terminal.

Owns the pseudo terminal. Always true: the child is ended by its own pid when it outlives its time.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys


def typed(answer: str, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """`thermocline …` whose stdin is a terminal at which `answer` is typed; stdout and stderr are pipes."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())  # the terminal keeps it until the command reads
        return subprocess.run(
            [sys.executable, "-m", "thermocline", *arguments],
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
