"""A long-running Java program of Apache Kafka's (a Connect worker, MirrorMaker 2), with lives that kill -9 ends.

Owns the process and its log. Always true: it is ended by its own pid when its `with` block ends.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.kafka.kafka_tools import SCRIPT, class_path

# A life is seconds: what the optimizing compiler and the collector's threads would make of it later is not needed.
_FLAGS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOG_LINES: Final = 60


@dataclass
class KafkaProgram:
    """`main` with `arguments`. `classes`: a folder with more classes."""

    folder: Path
    main: str
    arguments: tuple[str, ...]
    classes: Path | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.main.split('.')[-1]}.log"

    def log(self) -> str:
        """The end of what all lives wrote to their outputs, without stack frames."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if not line.startswith("\tat ")][-_LOG_LINES:])

    def start(self) -> None:
        """Its next life."""
        assert self._process is None
        places = [str(self.classes)] if self.classes else []
        path = ":".join([*places, str(SCRIPT.parent / "conf"), class_path()])
        with self.log_path.open("ab") as log:
            command = ["java", *_FLAGS, "-cp", path, self.main, *self.arguments]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def has_ended(self) -> bool:
        """Whether it ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def check(self) -> None:
        """AssertionError with its log when it ended by itself."""
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"{self.main} ended with {code}:\n{self.log()}"


@contextlib.contextmanager
def kafka_program(folder: Path, main: str, *arguments: str, classes: Path | None = None) -> Iterator[KafkaProgram]:
    """Started, and killed at the end; a failure inside shows its log."""
    program = KafkaProgram(folder, main, arguments, classes)
    program.start()
    try:
        yield program
    except AssertionError as failure:
        raise AssertionError(f"{failure}\n--- {main}\n{program.log()}") from None
    finally:
        program.kill()
