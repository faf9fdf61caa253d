"""franz-go's own tests of its client (package kgo), run against brokers of ours.

Owns getting them (a Go module like any other, from the module proxy), building them, and reading what they printed.
Nothing of theirs is changed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.support.clients.go_modules import go, module, needs_go

FRANZ_GO: Final = "github.com/twmb/franz-go@v1.22.3"
_RESULT: Final = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FranzGoSuite:
    """The built tests, and the folder they expect to run in."""

    program: Path
    folder: Path

    def run(
        self,
        bootstrap: str,
        pattern: str,
        *,
        replicas: int,
        records: int,
        timeout_s: float,
        environment: Mapping[str, str] = MappingProxyType({}),
        left_out: Iterable[str] = (),
    ) -> dict[str, str]:
        """Test → PASS, FAIL or SKIP of those whose names match; a test of several writes `records` to its first topic.

        AssertionError with the end of what was printed when the program fails in another way.
        """
        done = subprocess.run(
            [
                self.program,
                "-test.v",
                "-test.run",
                pattern,
                "-test.skip",
                "|".join(f"^{name}$" for name in left_out),
                "-test.timeout",
                f"{timeout_s:.0f}s",
            ],
            cwd=self.folder,
            env={
                **os.environ,
                "KGO_SEEDS": bootstrap,
                **environment,
                "KGO_TEST_RF": str(replicas),
                "KGO_TEST_RECORDS": str(records),
            },
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s + 60,
            check=False,
        )
        results = {name: result for result, name in _RESULT.findall(done.stdout)}
        failed = [name for name, result in results.items() if result == "FAIL"]
        assert done.returncode == 0, f"{failed}\n{done.stdout[-12_000:]}\n{done.stderr[-8_000:]}"
        return results


def require_franz_go_suite(work: Path) -> FranzGoSuite:
    """Download and build in `work`; skip, saying what is missing, where that cannot be done."""
    with needs_go("franz-go's tests"):
        copy = module(work, FRANZ_GO, work / "franz-go")
        program = work / "kgo.test"
        go(copy, "test", "-c", "-o", str(program), "./pkg/kgo")
    return FranzGoSuite(program, copy / "pkg/kgo")
