"""`python -m tests.playbooks [--walks N] [--first SEED]`: random walks of the core; exit 1 with the first finding."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.playbooks.walks import STEPS, walk

_AT_ONCE = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.playbooks", description=__doc__)
    parser.add_argument("--walks", type=int, default=100_000, metavar="N")
    parser.add_argument("--first", type=int, default=1, metavar="SEED")
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    began, did = time.monotonic(), Counter[str]()
    for first in range(asked.first, asked.first + asked.walks, _AT_ONCE):
        some, findings = walk(first, min(_AT_ONCE, asked.first + asked.walks - first), asked.steps)
        did += some
        if findings:
            finding = min(findings, key=lambda found: len(found.steps))
            print(f"seed {finding.seed}: {finding.why}\n  " + "\n  ".join(finding.steps))
            break
    else:
        findings = []
    print(", ".join(f"{count} {what}" for what, count in did.items()), f"in {time.monotonic() - began:.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
