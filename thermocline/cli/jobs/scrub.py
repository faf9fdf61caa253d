"""`thermocline scrub`: reads and checks every byte of every live object in a bucket, in parallel.

Exit 5 when there is damage, 0 only when everything was read. With `--json` the last line is the summary.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.jobs.spark_job import add_spark
from thermocline.cli.terminal.arguments import add_json
from thermocline.cli.terminal.outcome import Exit
from thermocline.extras import require

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    parser = nouns.add_parser(
        "scrub",
        help="read every byte of a bucket and report damage",
        description="Read and check every live object: checksums, footers, manifests and their totals, pages, offsets "
        "without gap or overlap, orphans. It only reads, and may run beside a live broker. Exit 5 when something is "
        "damaged or missing. Needs no broker; pip install 'thermocline[spark]'.",
        example="thermocline scrub s3://my-bucket/log\n"
        "thermocline scrub s3://my-bucket/log --topic orders --master spark://host:7077 --json",
    )
    parser.add_argument("url", metavar="URL", help="URL of the bucket")
    parser.add_argument("--topic", metavar="T", help="this topic only, by name or id")
    add_spark(parser)
    parser.add_argument(
        "--journal",
        metavar="FILE",
        help="file that records the objects already read: a scrub that was killed resumes from it",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="read only roots, pages and the listing, and print how much a scrub would read",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from thermocline.cli.jobs.spark_job import job_errors, maybe_session
    from thermocline.cli.terminal.output import ProgressLine, json_line

    if not arguments.dry_run:
        require("spark", "thermocline scrub", "pyspark")
    with job_errors():
        from thermocline.pipeline.history import History
        from thermocline.pipeline.jobs.scrub.scrub import scrub
        from thermocline.pipeline.jobs.scrub.scrub_view import check_ours

        progress = ProgressLine()
        with History.open(arguments.url) as history:  # fail before Spark's start
            check_ours(history.store)
            if arguments.topic is not None:
                history.topic(arguments.topic)
        app = None if arguments.dry_run else "thermocline scrub"
        with maybe_session(app, arguments.master, progress, verbose=arguments.verbose) as spark:
            try:
                report = scrub(
                    spark,
                    arguments.url,
                    topic=arguments.topic,
                    dry_run=arguments.dry_run,
                    journal=arguments.journal,
                    progress=progress.show,
                )
            finally:
                progress.done()
    if arguments.json:
        for found in report.findings:
            print(json_line(found.row()))
        print(json_line(report.row()))
    else:
        print(report)
    return Exit.FINDINGS if report.damage else Exit.DONE
