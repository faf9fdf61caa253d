"""`thermocline topic`: create, list, describe; `alter` and `delete` (changes.py), `trim` (trim.py).

Sizes and durations in `-c` may have units (`-c retention.ms=30d`).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_bootstrap, add_json, filled, key_value, positive
from thermocline.cli.terminal.outcome import Exit
from thermocline.cli.terminal.output import json_line, table
from thermocline.cli.topic import changes, trim
from thermocline.cli.topic.configs import retention, topic_configs, with_units

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "topic", help="create, list, describe, alter, trim, delete topics", example="thermocline topic list"
    ).add_subparsers(metavar="VERB", required=True)
    _register_create(verbs)
    listing = verbs.add_parser(
        "list",
        help="names and sizes of topics",
        description="Each topic's partitions, bytes of log on disk and in the bucket; - or null where unknown.",
        example="thermocline topic list --json",
    )
    listing.add_argument("--internal", action="store_true", help="also internal topics")
    describe = verbs.add_parser(
        "describe", help="partitions and configs of a topic", example="thermocline topic describe orders"
    )
    describe.add_argument("topic", type=filled, metavar="T")
    describe.add_argument("--all", action="store_true", help="also configs that have their default value")
    for parser, run in ((listing, list_topics), (describe, describe_topic)):
        add_bootstrap(parser)
        add_json(parser)
        parser.set_defaults(run=run)
    changes.register(verbs)
    trim.register(verbs)


def _register_create(verbs: Subparsers[Parser]) -> None:
    create = verbs.add_parser(
        "create", help="create a topic", example="thermocline topic create orders -p 12 -c retention.ms=365d"
    )
    create.add_argument("topic", type=filled, metavar="T")
    create.add_argument("-p", "--partitions", type=positive, default=3, metavar="N", help="default 3")
    create.add_argument("-r", "--replication-factor", type=positive, default=1, metavar="N", help="default 1")
    create.add_argument("-c", "--config", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    add_bootstrap(create)
    create.set_defaults(run=create_topic)


def create_topic(arguments: argparse.Namespace) -> int:
    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, NewTopic, connected_admin, failing, settled

    admin = connected_admin(arguments.bootstrap_server)
    with failing(f"creating topic {arguments.topic}"):
        new = NewTopic(
            arguments.topic,
            num_partitions=arguments.partitions,
            replication_factor=arguments.replication_factor,
            config=dict(with_units(arguments.config)),
        )
        futures = admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)
    settled(futures, lambda name: f"creating topic {name}")
    print(f"created {arguments.topic} with {arguments.partitions} partition{'s' * (arguments.partitions > 1)}")
    configs = topic_configs(admin, arguments.topic)
    print(retention(configs))
    return Exit.DONE


def list_topics(arguments: argparse.Namespace) -> int:
    from thermocline.cli.topic import sizes

    return sizes.list_topics(arguments)


def describe_topic(arguments: argparse.Namespace) -> int:
    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, connected_admin, failing

    admin = connected_admin(arguments.bootstrap_server)
    with failing(f"describing topic {arguments.topic}"):
        found = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics.get(arguments.topic)
    if found is None:
        from thermocline.cli.clients.connection_properties import no_topic

        raise no_topic(arguments.topic)
    configs = topic_configs(admin, arguments.topic)
    partitions = [found.partitions[index] for index in sorted(found.partitions)]
    explicit = {name: entry for name, entry in configs.items() if arguments.all or not entry.is_default}
    if arguments.json:
        placed = [{"partition": p.id, "leader": p.leader, "replicas": p.replicas, "isr": p.isrs} for p in partitions]
        values = {name: entry.value for name, entry in sorted(explicit.items())}
        print(json_line({"topic": arguments.topic, "partitions": placed, "configs": values}))  # type: ignore[dict-item]
        return Exit.DONE
    rows = [(str(p.id), str(p.leader), _numbers(p.replicas), _numbers(p.isrs)) for p in partitions]
    print(table(("partition", "leader", "replicas", "in sync"), rows, right=("partition", "leader")))
    for name, entry in sorted(explicit.items()):
        print(f"{name}={entry.value}")
    print(retention(configs))
    return Exit.DONE


def _numbers(ids: list[int]) -> str:
    return ",".join(map(str, ids))
