"""`make reliability`: run what docs/RELIABILITY.md tells of, record it, write the page.

`--quick` takes minutes and leaves out what takes hours (its last result stays on the page, with its commit); `--only`
names steps; `--render` runs nothing. Exit code 1 when a run failed: the page is written all the same, and says so.
"""

from __future__ import annotations

import argparse
import sys

from tests.reliability.page import PAGE, write_page
from tests.reliability.steps import STEPS, run_step


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="minutes instead of hours")
    parser.add_argument("--only", default="", help="steps, separated by commas: " + ", ".join(s.name for s in STEPS))
    parser.add_argument("--render", action="store_true", help="only write the page from recorded results")
    options = parser.parse_args()
    chosen = {name for name in options.only.split(",") if name}
    failed = []
    for step in STEPS if not options.render else ():
        if not chosen or step.name in chosen:
            print(f"{step.name} …", flush=True)
            if not run_step(step, not options.quick):
                failed.append(step.name)
    write_page()
    print(f"{PAGE} written" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
