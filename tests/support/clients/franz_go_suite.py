"""franz-go's own tests of its client (package kgo), run against brokers of ours.

Owns getting them (a Go module like any other, from the module proxy), building them, and reading what they printed.
Their clients log in in few tests only: for brokers that want a login, one line is added to the copy that is built, and
every client logs in with what `KGO_TEST_SCRAM` says. Nothing else of theirs is changed.
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
_KIP_848: Final = "the new group protocol (KIP-848) is not served yet"
_SHARE: Final = "share groups (KIP-932) are not served yet"
_PLAINTEXT: Final = "logs in without TLS, on a listener that other tests do not use"
_UNSIGNED: Final = "sends a token without a signature, to a listener that believes it"
SKIPPED: Final = {
    "Test848RegexBrokerResolves": _KIP_848,
    "TestGroupETL/range/848": _KIP_848,
    "TestGroupETL/sticky/848": _KIP_848,
    "TestGroupETL/sticky/848/static": _KIP_848,
    "TestGroupSimple/848": _KIP_848,
    "TestTxnEtl/range/848": _KIP_848,
    "TestTxnEtl/sticky/848": _KIP_848,
    "TestTxnEtl/sticky/848/static": _KIP_848,
    "TestConsumeRegexShareSkipsInternal": _SHARE,
    "TestShareGroup": _SHARE,
    "TestShareGroupAckOnClose": _SHARE,
    "TestShareGroupETL": _SHARE,
    "TestShareGroupOffsetsAdmin": _SHARE,
    "TestOAuthAuth": _UNSIGNED,
    "TestSCRAMAuth": _PLAINTEXT,
    "TestSCRAMAuthBadCredentials": _PLAINTEXT,
    "TestIssueProduceBrokerTooOldFailsRecords": "Produce 0 to 2 are advertised, as Kafka does (KAFKA-18659)",
}
"""They skip themselves."""
_CLIENTS: Final = "\t\tAlwaysRetryEOF(),\n\t)\n"
_LOG_IN: Final = "\tif saslScram != nil {\n\t\topts = append(opts, SASL(saslScram))\n\t}\n"
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


def require_franz_go_suite(work: Path, *, logs_in: bool = False) -> FranzGoSuite:
    """Download and build in `work`; skip, saying what is missing, where that cannot be done. `logs_in`: all clients."""
    with needs_go("franz-go's tests"):
        copy = module(work, FRANZ_GO, work / "franz-go")
        if logs_in:
            helpers = copy / "pkg/kgo/helpers_test.go"
            before, found, after = helpers.read_text().partition(_CLIENTS)
            assert found, "their clients are made in another way"
            helpers.write_text(before + found + _LOG_IN + after)
        program = work / "kgo.test"
        go(copy, "test", "-c", "-o", str(program), "./pkg/kgo")
    return FranzGoSuite(program, copy / "pkg/kgo")
