"""`python -m tests.campaign --minutes 5 --seed 7`: three brokers, stock clients, a nemesis, books.

With `--transactions` loops of clients consume, transform and produce, and their output is what is checked.

Exit code 1 when anything acknowledged was lost, doubled, reordered, changed or moved, when an aborted record is seen or
a transaction in part, when replicas differ, when the cluster did not heal, or when a broker ended that nobody ended.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.campaign.clients import WRITERS
from tests.campaign.run import Campaign, Plan, figures, printed
from tests.campaign.transactions.course import LIBRARIES, CopyCampaign
from tests.reliability.results import merge_rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bucket", choices=("directory", "moto", "versitygw"), default="directory")
    parser.add_argument("--per-s", type=float, default=2000.0, help="records over all writers")
    parser.add_argument("--records", type=int, default=0, help="go on until so many are acknowledged")
    parser.add_argument("--transactions", action="store_true", help="loops of clients copy in transactions")
    parser.add_argument("--only", help="kinds of harm, by commas")
    parser.add_argument("--clients", help="who writes, or whose loops copy, by commas")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a broker config")
    parser.add_argument("--secure", action="store_true", help="serve --secure: SASL_SSL, and mTLS among brokers")
    parser.add_argument("--keep", help="run in this directory and leave it")
    parser.add_argument("--record", action="store_true", help="figures go to docs/reliability/campaign.json")
    options = parser.parse_args()
    libraries = LIBRARIES if options.transactions else tuple(WRITERS)
    plan = Plan(
        seconds=60 * options.minutes,
        seed=options.seed,
        bucket=options.bucket,
        per_s=options.per_s,
        records=options.records,
        libraries=tuple(options.clients.split(",")) if options.clients else libraries,
        kinds=tuple(filter(None, (options.only or "").split(","))),
        is_secured=options.secure,
        settings=dict(text.split("=", 1) for text in options.set),
    )
    with tempfile.TemporaryDirectory(prefix="campaign-") as directory:
        course = CopyCampaign if options.transactions else Campaign
        verdict = course(Path(options.keep or directory), plan).run()
    print(printed(verdict), flush=True)
    if options.record:
        command = f"python -m tests.campaign --minutes {options.minutes:g} --seed {plan.seed} --bucket {plan.bucket}"
        name = plan.bucket
        if options.transactions:
            command, name = f"{command} --transactions --records {plan.records}", f"{name}, transactions"
        if plan.is_secured:
            command, name = f"{command} --secure", f"{name}, secured"
        merge_rows("campaign", command, "bucket", [{"bucket": name, **figures(verdict)}])
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
