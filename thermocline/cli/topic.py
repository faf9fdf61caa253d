"""`thermocline topic`: create, list, describe, alter, delete, through the stock admin client.

Owns the sub-commands and their words. Sizes and durations in `-c` may carry units (`-c retention.ms=30d`).
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from thermocline.cli.arguments import add_bootstrap, add_json, key_value, positive
from thermocline.cli.outcome import CommandFailed, Exit
from thermocline.cli.output import json_line, note, table

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from thermocline.cli.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    """Add the command to the command line."""
    verbs = nouns.add_parser(
        "topic", help="create, list, describe, alter, delete topics", example="thermocline topic list"
    ).add_subparsers(metavar="VERB", required=True)
    _register_create(verbs)
    listing = verbs.add_parser("list", help="names and sizes of topics", example="thermocline topic list --json")
    listing.add_argument("--internal", action="store_true", help="internal topics too")
    describe = verbs.add_parser(
        "describe", help="partitions and configs of a topic", example="thermocline topic describe orders"
    )
    describe.add_argument("topic", metavar="T")
    describe.add_argument("--all", action="store_true", help="configs that are at their default too")
    for parser, run in ((listing, list_topics), (describe, describe_topic)):
        add_bootstrap(parser)
        add_json(parser)
        parser.set_defaults(run=run)
    _register_changes(verbs)


def _register_create(verbs: Subparsers[Parser]) -> None:
    create = verbs.add_parser(
        "create", help="create a topic", example="thermocline topic create orders -p 12 -c retention.ms=365d"
    )
    create.add_argument("topic", metavar="T")
    create.add_argument("-p", "--partitions", type=positive, default=3, metavar="N", help="default 3")
    create.add_argument("-r", "--replication-factor", type=positive, default=1, metavar="N", help="default 1")
    create.add_argument("-c", "--config", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    add_bootstrap(create)
    create.set_defaults(run=create_topic)


def _register_changes(verbs: Subparsers[Parser]) -> None:
    alter = verbs.add_parser(
        "alter", help="change a topic's configs", example="thermocline topic alter orders -c local.retention.ms=2h"
    )
    alter.add_argument("topic", metavar="T")
    alter.add_argument("-c", "--config", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    alter.add_argument("--reset", action="append", default=[], metavar="KEY", help="back to the default")
    delete = verbs.add_parser(
        "delete", help="delete a topic, in both tiers", example="thermocline topic delete orders --yes"
    )
    delete.add_argument("topic", metavar="T")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    for parser, run in ((alter, alter_topic), (delete, delete_topic)):
        add_bootstrap(parser)
        parser.set_defaults(run=run)


def create_topic(arguments: argparse.Namespace) -> int:
    """Create, then say when its data leaves the disk and when it leaves the bucket."""
    from thermocline.cli.clients import REQUEST_TIMEOUT_S, NewTopic, connected_admin, settled

    admin = connected_admin(arguments.bootstrap_server)
    new = NewTopic(
        arguments.topic,
        num_partitions=arguments.partitions,
        replication_factor=arguments.replication_factor,
        config=dict(_with_units(arguments.config)),
    )
    try:
        futures = admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)
    except ValueError as refused:  # librdkafka's own bounds, before anything is sent
        raise CommandFailed(f"creating topic {arguments.topic}: {refused}", Exit.USAGE) from refused
    settled(futures, lambda name: f"creating topic {name}")
    print(f"created {arguments.topic} with {arguments.partitions} partition{'s' * (arguments.partitions > 1)}")
    print(leaving(_configs(admin, arguments.topic)))
    return Exit.DONE


def list_topics(arguments: argparse.Namespace) -> int:
    """Names, sorted, with their partition counts."""
    from thermocline.cli.clients import REQUEST_TIMEOUT_S, connected_admin, failing

    admin = connected_admin(arguments.bootstrap_server)
    with failing("listing topics"):
        topics = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
    shown = [
        (name, len(topic.partitions))
        for name, topic in sorted(topics.items())
        if arguments.internal or not name.startswith("__")
    ]
    if arguments.json:
        for name, partitions in shown:
            print(json_line({"topic": name, "partitions": partitions}))
    else:
        rows = [(name, str(partitions)) for name, partitions in shown]
        print(table(("topic", "partitions"), rows, right=("partitions",)))
    return Exit.DONE


def describe_topic(arguments: argparse.Namespace) -> int:
    """Partitions, then configs: those that somebody set, or all."""
    from thermocline.cli.clients import REQUEST_TIMEOUT_S, connected_admin, failing

    admin = connected_admin(arguments.bootstrap_server)
    with failing(f"describing topic {arguments.topic}"):
        found = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics.get(arguments.topic)
    if found is None:
        raise CommandFailed(f"there is no topic {arguments.topic}; see `thermocline topic list`")
    configs = _configs(admin, arguments.topic)
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
    print(leaving(configs))
    return Exit.DONE


def alter_topic(arguments: argparse.Namespace) -> int:
    """Set and reset configs, all or none."""
    from thermocline.cli.clients import (
        REQUEST_TIMEOUT_S,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
        connected_admin,
        settled,
    )

    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in _with_units(arguments.config)
    ]
    entries += [ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in arguments.reset]
    if not entries:
        raise CommandFailed("nothing to alter: give -c KEY=VALUE or --reset KEY", Exit.USAGE)
    resource = ConfigResource(ResourceType.TOPIC, arguments.topic, incremental_configs=entries)
    admin = connected_admin(arguments.bootstrap_server)
    futures = admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
    settled({arguments.topic: futures[resource]}, lambda name: f"altering topic {name}")
    print(f"altered {arguments.topic}")
    print(leaving(_configs(admin, arguments.topic)))
    return Exit.DONE


def delete_topic(arguments: argparse.Namespace) -> int:
    """Delete, after asking; the objects in the bucket go too."""
    from thermocline.cli.clients import REQUEST_TIMEOUT_S, connected_admin, settled

    if not arguments.yes:
        if not sys.stdin.isatty():
            raise CommandFailed(f"deleting {arguments.topic} cannot be undone: say --yes", Exit.USAGE)
        print(f"Delete {arguments.topic}, on the disk and in the bucket? Type its name: ", end="", flush=True)
        if sys.stdin.readline().strip() != arguments.topic:
            raise CommandFailed("not deleted")
    admin = connected_admin(arguments.bootstrap_server)
    futures = admin.delete_topics([arguments.topic], request_timeout=REQUEST_TIMEOUT_S)
    settled(futures, lambda name: f"deleting topic {name}")
    print(f"deleted {arguments.topic}; its objects leave the bucket in the background")
    return Exit.DONE


def leaving(configs: dict[str, Any]) -> str:
    """When the data of a topic with these configs leaves the disk, and when it leaves the bucket."""
    from thermocline.cli.leaving import sentence

    return sentence({name: entry.value for name, entry in configs.items()})


def _configs(admin: AdminClient, topic: str) -> dict[str, Any]:
    from thermocline.cli.clients import REQUEST_TIMEOUT_S, ConfigResource, ResourceType, failing

    resource = ConfigResource(ResourceType.TOPIC, topic)
    with failing(f"reading the configs of topic {topic}"):
        found: dict[str, Any] = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource].result()
    return found


def _with_units(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """`retention.ms=7d` → `604800000`: the protocol carries plain numbers only. The broker refuses unknown names: it
    may be of another version than this command, so they are sent to it."""
    from broker.config.definitions import TOPIC, nearest_topic_name

    for name, _ in pairs:
        if name not in TOPIC and (near := nearest_topic_name(name)):
            note(f"thermocline: {name} is no topic config known here; the nearest is {near}")
    return [(name, TOPIC[name].with_units(value) if name in TOPIC else value) for name, value in pairs]


def _numbers(ids: list[int]) -> str:
    return ",".join(map(str, ids))
