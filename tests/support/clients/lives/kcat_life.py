"""A life of kcat: `python -m tests.support.clients.lives.kcat_life ACCESS …`. It has no transactions, and does not say
what is acknowledged: `acked N` comes for all numbers when it ended well, and `sent N` before. A group of kcat's reads
TOPIC, and `read COUNT` is printed as records come.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.support.clients.access import Access
from tests.support.clients.lives.python_life import PAUSE_S, read_access, tell

_ENDS_S: Final = 120


def _flags(access: Access) -> list[str]:
    configs = {**access.confluent(), "reconnect.backoff.max.ms": 500, "log_level": 0}
    return [word for name, value in configs.items() for word in ("-X", f"{name}={value}")]


def write(access: Access, topic: str, records: int) -> None:
    flags = [
        "-P",
        "-q",
        "-t",
        topic,
        "-X",
        "enable.idempotence=true",
        "-X",
        "message.timeout.ms=120000",
        "-X",
        "acks=all",
    ]
    with subprocess.Popen(["kcat", *flags, *_flags(access)], stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        for number in range(records):
            program.stdin.write(b"%d\n" % number)
            program.stdin.flush()
            tell(f"sent {number}")
            time.sleep(PAUSE_S)
        program.stdin.close()
        assert program.wait(_ENDS_S) == 0
    for number in range(records):
        tell(f"acked {number}")


def read(access: Access, topic: str, group: str, records: int) -> None:
    """A group's member: at least once."""
    command = ["kcat", "-q", "-u", *_flags(access), "-X", "auto.offset.reset=earliest", "-G", group, topic]
    seen: set[bytes] = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            for line in program.stdout:
                seen.add(line)
                tell(f"read {len(seen)}")
                time.sleep(PAUSE_S)
                if len(seen) == records:
                    return
        finally:
            program.terminate()
    raise AssertionError(f"kcat ended after {len(seen)} records")


if __name__ == "__main__":
    file, topic, _, group, _, count = sys.argv[1:]
    write(read_access(Path(file)), topic, int(count))
    read(read_access(Path(file)), topic, group, int(count))
