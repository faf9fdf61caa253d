"""`thermocline topic alter` and `delete`.

`alter` sets all configs or none, and adds partitions only after the broker validated both changes. Partitions cannot be
removed.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_bootstrap, filled, key_value, positive
from thermocline.cli.terminal.confirm import can_ask
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import note
from thermocline.cli.tier.diagnosis import MIN_IN_SYNC
from thermocline.cli.topic.configs import retention, topic_configs, warn_of_replicas, with_units

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from thermocline.cli.clients.stock import TopicMetadata
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(verbs: Subparsers[Parser]) -> None:
    alter = verbs.add_parser(
        "alter",
        help="change a topic's configs, add partitions",
        example="thermocline topic alter orders -c local.retention.ms=2h\nthermocline topic alter orders -p 24",
    )
    alter.add_argument("topic", type=filled, metavar="T")
    alter.add_argument(
        "-p", "--partitions", type=positive, metavar="N", help="the new total, higher than the present one"
    )
    alter.add_argument("-c", "--config", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    alter.add_argument(
        "--reset", type=filled, action="append", default=[], metavar="KEY", help="reset a config to its default"
    )
    delete = verbs.add_parser(
        "delete", help="delete a topic, in both tiers", example="thermocline topic delete orders --yes"
    )
    delete.add_argument("topic", type=filled, metavar="T")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    for parser, run in ((alter, alter_topic), (delete, delete_topic)):
        add_bootstrap(parser)
        parser.set_defaults(run=run)


def alter_topic(arguments: argparse.Namespace) -> int:
    """Set and reset all configs or none, then add partitions."""
    from thermocline.cli.clients.stock import connected_admin

    count = arguments.partitions
    if not (arguments.config or arguments.reset or count):
        raise CommandFailed("nothing to alter: give -p N, -c KEY=VALUE or --reset KEY", Exit.USAGE)
    admin = connected_admin(arguments.bootstrap_server)
    before = 0
    if count:
        before = len(_described(admin, arguments.topic).partitions)
        if count <= before:
            why = "would change nothing" if count == before else "would remove some, which no Kafka broker can"
            raise CommandFailed(
                f"topic {arguments.topic} has {before} partition{'s' * (before > 1)}: {count} {why}; "
                f"give more than {before}, or create another topic"
            )
        _grow(admin, arguments.topic, count, validate_only=True)
    if arguments.config or arguments.reset:
        _alter_configs(admin, arguments)
    if count:
        _grow(admin, arguments.topic, count, validate_only=False)
        note("records with a key may now go to another partition than earlier ones of that key")
    print(f"altered {arguments.topic}" + (f": {count} partitions, {before} before" if count else ""))
    configs = topic_configs(admin, arguments.topic)
    print(retention(configs))
    if any(name == "cleanup.policy" and "compact" in value for name, value in arguments.config):
        note("a compacted topic keeps no records without a key: the next pass of the cleaner deletes them")
    if any(name == MIN_IN_SYNC for name, _ in arguments.config):
        warn_of_replicas(arguments.topic, configs, *_in_sync(admin, arguments.topic))
    return Exit.DONE


def _described(admin: AdminClient, topic: str) -> TopicMetadata:
    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing

    with failing(f"altering topic {topic}"):
        found = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics.get(topic)
    if found is None:
        from thermocline.cli.clients.connection_properties import no_topic

        raise no_topic(topic)
    return found


def _in_sync(admin: AdminClient, topic: str) -> tuple[int, int]:
    """(in-sync replicas, replicas) of the partition with the fewest in sync."""
    return min((len(each.isrs), len(each.replicas)) for each in _described(admin, topic).partitions.values())


def _grow(admin: AdminClient, topic: str, count: int, *, validate_only: bool) -> None:
    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, NewPartitions, failing, settled

    what = f"adding partitions to topic {topic}"
    with failing(what):
        asked = [NewPartitions(topic, count)]
        futures = admin.create_partitions(asked, request_timeout=REQUEST_TIMEOUT_S, validate_only=validate_only)
    settled(futures, lambda _: what)


def _alter_configs(admin: AdminClient, arguments: argparse.Namespace) -> None:
    from thermocline.cli.clients.stock import (
        REQUEST_TIMEOUT_S,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
        failing,
        settled,
    )

    setting = with_units(arguments.config)
    what = f"altering topic {arguments.topic}"
    with failing(what):
        entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in setting] + [
            ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in arguments.reset
        ]
        resource = ConfigResource(ResourceType.TOPIC, arguments.topic, incremental_configs=entries)
        futures = admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
    settled({arguments.topic: futures[resource]}, lambda _: what)


def delete_topic(arguments: argparse.Namespace) -> int:
    """Delete after a confirmation, with the objects in the bucket."""
    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, connected_admin, failing, settled
    from thermocline.cli.topic.same_topic import confirm_for, topic_id_of

    if not arguments.yes:
        if not can_ask():
            raise CommandFailed(f"deleting {arguments.topic} cannot be undone: add --yes", Exit.USAGE)
        bootstrap, topic = arguments.bootstrap_server, arguments.topic
        question = f"Delete {topic}, on the disk and in the bucket?"
        confirm_for(topic_id_of(bootstrap, topic), question, bootstrap, topic)
    admin = connected_admin(arguments.bootstrap_server)
    what = f"deleting topic {arguments.topic}"
    with failing(what):
        futures = admin.delete_topics([arguments.topic], request_timeout=REQUEST_TIMEOUT_S)
    settled(futures, lambda _: what)
    print(f"deleted {arguments.topic}; its objects leave the bucket in the background")
    return Exit.DONE
