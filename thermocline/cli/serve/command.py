"""`thermocline serve`: the flags of a broker. `process` runs it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import positive

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers

_LEVELS = ("debug", "info", "warning", "error")


def register(nouns: Subparsers[Parser]) -> None:
    serve = nouns.add_parser(
        "serve",
        help="run a broker",
        description="Run a broker: any Kafka client can write to it and read from it. When it serves, one line on "
        "stdout starts with 'ready'.",
        example="thermocline serve --data-dir /var/lib/thermocline\n"
        "thermocline serve --data-dir /var/lib/thermocline --bucket s3://my-bucket/log --set log.retention.ms=30d\n"
        "thermocline serve --data-dir /var/lib/thermocline --brokers 3\n"
        "thermocline serve --data-dir /var/lib/thermocline --secure --listen 0.0.0.0:9092\n"
        "thermocline serve --data-dir /var/lib/reader --bucket s3://their-bucket/log --read-only",
    )
    add = serve.add_argument
    add("--data-dir", metavar="DIR", help="the local log, and this broker's identity")
    add("--bucket", metavar="URL", help="the cold tier: file:///dir or s3://bucket/prefix (default file://DIR-bucket)")
    add("--listen", metavar="HOST:PORT", help="Kafka's address (default 127.0.0.1:9092; port 0 picks one)")
    add("--advertise", metavar="HOST:PORT", help="the address told to clients (default: that of --listen)")
    http = serve.add_mutually_exclusive_group()
    http.add_argument("--http", metavar="HOST:PORT", help="/metrics, /readyz, tier seal (default 127.0.0.1:9644)")
    http.add_argument("--no-http", action="store_true", help="no HTTP port")
    add("--node-id", metavar="N", help="this broker's number (default 1)")
    add("--rack", metavar="R", help="its rack: replicas are spread over racks")
    add("--internal", metavar="HOST:PORT", help="address for other brokers, not for clients (default 127.0.0.1:0)")
    add(
        "--brokers",
        type=_brokers,
        metavar="N|auto",
        help="number of brokers on this machine, on consecutive ports (auto: one for each core)",
    )
    add("--config", metavar="FILE", help="a file in the syntax of Kafka's server.properties")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="any config by its name; may be repeated")
    add(
        "--read-only",
        action="store_true",
        help="serve the records in the bucket of another cluster, and write nothing to it",
    )
    add("--take-over", action="store_true", help="asserts that the broker that last served this bucket is dead")
    add(
        "--secure",
        action="store_true",
        help="TLS, logins and ACLs: makes a CA, certificates and the user 'admin' at the first start",
    )
    add("--join", metavar="FILE", help="with --secure, the join.properties of a broker whose cluster this one joins")
    add("--secured-by", metavar="DIR", help=argparse.SUPPRESS)  # for one of --brokers N: the common data directory
    add("--insecure", action="store_true", help="allow addresses that other machines reach, without authentication")
    add("--log-format", choices=("text", "json"), default="text", help="format of the lines on stderr")
    add("--log-level", choices=_LEVELS, default="info", help="lowest level that is logged (default info)")
    add("--supervised", action="store_true", help=argparse.SUPPRESS)  # for one of --brokers N: stops when stdin closes
    serve.set_defaults(run=_run)


def _brokers(text: str) -> str:
    """`auto`, or a number of brokers."""
    return text if text == "auto" else str(positive(text))


def _run(arguments: argparse.Namespace) -> int:
    from thermocline.cli.serve.process import run

    return run(arguments)
