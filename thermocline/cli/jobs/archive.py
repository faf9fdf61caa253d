"""`thermocline archive`: archives a topic's history in the bucket to an Iceberg table, exactly once.

Mistakes (usage, a mistyped topic, another topic's table, a catalog that does not answer) are reported before Spark
starts. A dry run creates nothing.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from thermocline.cli.jobs.spark_job import add_spark
from thermocline.cli.terminal.arguments import add_json, checked, key_value, positive
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from thermocline.cli.terminal.arguments import Parser, Subparsers
    from thermocline.cli.terminal.output import ProgressLine
    from thermocline.pipeline.jobs.archive_summary import ArchiveSummary
    from thermocline.pipeline.jobs.compaction.compact import CompactSummary
    from thermocline.pipeline.jobs.iceberg_catalog import CatalogConfig
    from thermocline.pipeline.jobs.values import ValueSpec

_EXAMPLE = """
thermocline archive orders --bucket s3://my-bucket/log --table lake.orders --warehouse file:///srv/lake
thermocline archive orders --bucket s3://my-bucket/log --table lake.orders --catalog https://catalog.example/iceberg
thermocline archive orders --bucket s3://my-bucket/log --table lake.orders --warehouse file:///srv/lake --compact
thermocline archive orders --bucket s3://b/log --table lake.orders --catalog glue --value json --columns 'user string'
"""


def register(nouns: Subparsers[Parser]) -> None:
    parser = nouns.add_parser(
        "archive",
        help="keep a topic's history as Parquet in an Iceberg table",
        description="Archive the records of a topic that the bucket holds and the table lacks. Run it again for new "
        "records, and after it was killed at any point. Needs no broker; pip install 'thermocline[spark]'.",
        example=_EXAMPLE,
    )
    parser.add_argument("topic", metavar="TOPIC", help="name or id")
    parser.add_argument("--bucket", metavar="URL", required=True, help="URL of the bucket with the history")
    parser.add_argument("--table", metavar="NS.TABLE", required=True, help="created if it does not exist")
    parser.add_argument(
        "--catalog",
        metavar="C",
        help="sqlite:////abs/catalog.db, https://… (REST), glue, memory, or a name from .pyiceberg.yaml "
        "(default: a SQLite file in the warehouse)",
    )
    parser.add_argument("--warehouse", metavar="URL", help="file:///abs/dir or s3://bucket/prefix: where tables go")
    parser.add_argument(
        "--catalog-property",
        metavar="K=V",
        type=key_value,
        action="append",
        default=[],
        help="a property of the pyiceberg catalog; repeatable",
    )
    _add_values(parser)
    _add_run(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def _add_values(parser: Parser) -> None:
    values = parser.add_argument_group("values (given when the table is created; later runs may add columns)")
    values.add_argument(
        "--value", metavar="DECODER", help="raw (default), json, or one of the entry point group thermocline.decoders"
    )
    values.add_argument(
        "--columns",
        metavar="LIST",
        default="",
        help="columns of --value json, such as 'user string, amount double, at timestamp from created_at'",
    )
    values.add_argument("--keep-value", action="store_true", help="keep the undecoded value as a column as well")


def _add_run(parser: Parser) -> None:
    size = checked(_size)
    run_options = parser.add_argument_group("the run")
    add_spark(run_options)
    run_options.add_argument("--max-bytes", metavar="SIZE", type=size, help="bytes of log in one commit (default 4GiB)")
    run_options.add_argument("--max-commits", metavar="N", type=positive, help="stop after this many commits")
    run_options.add_argument(
        "--file-bytes", metavar="SIZE", type=size, help="bytes of log in one file (default 256MiB)"
    )
    run_options.add_argument(
        "--compact",
        action="store_true",
        help="merge the table's small files instead of archiving; the rows stay the same",
    )
    run_options.add_argument(
        "--by-day", action="store_true", help="partition a new table by the day of its rows' timestamps (UTC)"
    )
    run_options.add_argument(
        "--allow-data-loss", action="store_true", help="skip expired or damaged records, and report them"
    )
    run_options.add_argument(
        "--dry-run", action="store_true", help="print the records that would be archived, without starting Spark"
    )


def _size(text: str) -> int:
    from broker.config.units import parse_size

    return parse_size(text)


def run(arguments: argparse.Namespace) -> int:
    from thermocline.cli.jobs.spark_job import job_errors, maybe_session
    from thermocline.cli.terminal.output import ProgressLine, json_line

    require("spark", "thermocline archive", "pyiceberg", *(() if arguments.dry_run else ("pyspark", "numpy")))
    with job_errors():
        from thermocline.pipeline.jobs.archive import check_archive
        from thermocline.pipeline.jobs.iceberg_catalog import catalog_config

        progress = ProgressLine()
        catalog = catalog_config(arguments.catalog, arguments.warehouse, dict(arguments.catalog_property))
        values = _values(arguments)
        if not arguments.dry_run:  # fail before Spark's start
            place = (arguments.bucket, arguments.topic, arguments.table)
            check_archive(*place, catalog=catalog, values=values, by_day=arguments.by_day)
        app = None if arguments.dry_run else "thermocline archive"
        work = _compact if arguments.compact else _archive
        with maybe_session(app, arguments.master, progress, verbose=arguments.verbose) as spark:
            try:
                summary = work(arguments, spark, catalog, values, progress)
            finally:
                progress.done()
    print(json_line(summary.row()) if arguments.json else summary)
    return Exit.DONE


def _archive(
    arguments: argparse.Namespace,
    spark: SparkSession | None,
    catalog: CatalogConfig,
    values: ValueSpec | None,
    progress: ProgressLine,
) -> ArchiveSummary:
    from thermocline.pipeline.jobs.archive import archive
    from thermocline.pipeline.jobs.archive_plan import BYTES_MAX
    from thermocline.pipeline.plan import TARGET_BYTES

    return archive(
        spark,
        arguments.bucket,
        arguments.topic,
        arguments.table,
        catalog=catalog,
        values=values,
        bytes_max=arguments.max_bytes or BYTES_MAX,
        commits_max=arguments.max_commits,
        target_bytes=arguments.file_bytes or TARGET_BYTES,
        fail_on_data_loss=not arguments.allow_data_loss,
        dry_run=arguments.dry_run,
        by_day=arguments.by_day,
        progress=progress.show,
    )


def _compact(
    arguments: argparse.Namespace,
    spark: SparkSession | None,
    catalog: CatalogConfig,
    values: ValueSpec | None,
    progress: ProgressLine,
) -> CompactSummary:
    from thermocline.pipeline.jobs.compaction.compact import compact

    place = (arguments.bucket, arguments.topic, arguments.table)
    return compact(spark, *place, catalog=catalog, dry_run=arguments.dry_run, progress=progress.show)


_ARCHIVES: Final = (
    *("value", "columns", "keep_value", "by_day"),
    *("max_bytes", "max_commits", "file_bytes", "allow_data_loss"),
)
"""Flags of an archive that have no meaning for a compaction."""


def _values(arguments: argparse.Namespace) -> ValueSpec | None:
    from thermocline.pipeline.jobs.values import RAW, ValueSpec

    others = [f"--{name.replace('_', '-')}" for name in _ARCHIVES if getattr(arguments, name)]
    if arguments.compact and others:
        message = "--compact merges files as they are: only --dry-run can be combined with it"
        raise CommandFailed(f"{message}, not {', '.join(others)}", Exit.USAGE)
    if arguments.value is None and (arguments.columns or arguments.keep_value):
        raise CommandFailed("--columns and --keep-value belong to a --value decoder", Exit.USAGE)
    if arguments.value is None:
        return None
    return (
        ValueSpec() if arguments.value == RAW else ValueSpec(arguments.value, arguments.columns, arguments.keep_value)
    )
