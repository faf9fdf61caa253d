"""`thermocline acl`: add, list, delete ACLs (`kafka-acls.sh`)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_bootstrap, add_json, checked, filled
from thermocline.cli.terminal.confirm import agree, require_terminal
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import json_line, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.metadata.records import Acl
    from broker.security.authorizer.acl_filter import AclFilter
    from broker.security.authorizer.kinds import Operation
    from thermocline.cli.acl.bindings import Resource, Wanted
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "acl",
        help="add, list, delete ACLs",
        example="thermocline acl add --allow-principal User:alice --producer --topic orders",
    ).add_subparsers(metavar="VERB", required=True)
    add = verbs.add_parser(
        "add",
        help="allow or deny something",
        description="Without --operation, --producer and --consumer it applies to every operation (All). A denial wins "
        "over every permission.",
        example="thermocline acl add --allow-principal User:alice --producer --topic orders\n"
        "thermocline acl add --allow-principal User:bob --consumer --topic orders --group billing\n"
        "thermocline acl add --deny-principal 'User:*' --host 10.0.0.9 --operation Read --topic pay. --prefixed",
    )
    listing = verbs.add_parser(
        "list",
        help="ACLs of resources or principals, or all",
        example="thermocline acl list\nthermocline acl list --topic orders --matching --json",
    )
    delete = verbs.add_parser(
        "delete",
        help="delete ACLs of resources, or all of a principal",
        description="Deletes the ACLs that match all flags: without a principal those of every principal, without "
        "--operation those of every operation. Shows them first, and asks.",
        example="thermocline acl delete --allow-principal User:alice --producer --topic orders --yes\n"
        "thermocline acl delete --principal User:alice --yes",
    )
    for parser, run in ((add, add_acls), (listing, list_acls), (delete, delete_acls)):
        _add_resources(parser)
        add_bootstrap(parser)
        parser.set_defaults(run=run)
    for parser in (add, delete):
        _add_entry(parser)
    pattern = listing.add_mutually_exclusive_group()
    pattern.add_argument("--prefixed", action="store_true", help="ACLs of exactly this prefix")
    pattern.add_argument(
        "--matching", action="store_true", help="all ACLs that apply to it: of its name, its prefixes, and *"
    )
    listing.add_argument("--principal", type=filled, action="append", default=[], metavar="User:NAME")
    add_json(listing)
    delete.add_argument(
        "--principal",
        type=checked(_principal),
        action="append",
        default=[],
        metavar="User:NAME",
        help="all ACLs of this principal, of every resource",
    )
    delete.add_argument("--yes", action="store_true", help="do not ask")


def _add_resources(parser: argparse.ArgumentParser) -> None:
    for flag, name in (("--topic", "T"), ("--group", "G"), ("--transactional-id", "ID")):
        parser.add_argument(
            flag, type=filled, action="append", default=[], metavar=name, help="repeatable; * stands for all names"
        )
    parser.add_argument("--cluster", action="store_true", help="the cluster itself")


def _add_entry(parser: argparse.ArgumentParser) -> None:
    for flag in ("--allow-principal", "--deny-principal"):
        parser.add_argument(flag, type=checked(_principal), action="append", default=[], metavar="User:NAME")
    parser.add_argument("--host", type=filled, action="append", default=[], metavar="ADDRESS", help="default: any")
    parser.add_argument(
        "--operation", type=checked(_operation), action="append", default=[], metavar="OP", help="such as Read"
    )
    parser.add_argument(
        "--prefixed",
        action="store_true",
        help="all names in this command are prefixes (give other names in another command)",
    )
    parser.add_argument("--producer", action="store_true", help="the operations that a producer needs on the topics")
    parser.add_argument(
        "--consumer", action="store_true", help="the operations that a consumer needs on the topics and groups"
    )
    parser.add_argument("--idempotent", action="store_true", help="with --producer: idempotent writes (older brokers)")


def _principal(text: str) -> str:
    from thermocline.cli.acl.bindings import parse_principal

    return parse_principal(text)


def _operation(text: str) -> Operation:
    from thermocline.cli.acl.bindings import parse_operation

    return parse_operation(text)


def _resources(arguments: argparse.Namespace) -> tuple[Resource, ...]:
    from broker.security.authorizer.kinds import CLUSTER_NAME, ResourceType
    from thermocline.cli.acl.bindings import Resource

    found = [Resource(ResourceType.TOPIC, name) for name in arguments.topic]
    found += [Resource(ResourceType.GROUP, name) for name in arguments.group]
    found += [Resource(ResourceType.TRANSACTIONAL_ID, name) for name in arguments.transactional_id]
    if arguments.cluster:
        found.append(Resource(ResourceType.CLUSTER, CLUSTER_NAME))
    return tuple(found)


def _wanted(arguments: argparse.Namespace) -> Wanted:
    from thermocline.cli.acl.bindings import Wanted

    resources = _resources(arguments)
    shortcut = arguments.producer or arguments.consumer
    if not resources:
        raise CommandFailed("no resource: give --topic, --group, --transactional-id or --cluster", Exit.USAGE)
    if shortcut and arguments.operation:
        raise CommandFailed("--producer and --consumer name the operations: leave out --operation", Exit.USAGE)
    if shortcut and (arguments.deny_principal or not arguments.allow_principal):
        raise CommandFailed("--producer and --consumer go with --allow-principal only", Exit.USAGE)
    if arguments.consumer and not (arguments.topic and arguments.group):
        raise CommandFailed("--consumer needs --topic and --group", Exit.USAGE)
    if arguments.producer and not arguments.topic:
        raise CommandFailed("--producer needs --topic", Exit.USAGE)
    if arguments.idempotent and not arguments.producer:
        raise CommandFailed("--idempotent needs --producer", Exit.USAGE)
    if arguments.prefixed and arguments.cluster:
        raise CommandFailed("the cluster has one name: leave out --prefixed", Exit.USAGE)
    return Wanted(
        resources,
        arguments.prefixed,
        tuple(arguments.allow_principal),
        tuple(arguments.deny_principal),
        tuple(arguments.host),
        tuple(arguments.operation),
        arguments.producer,
        arguments.consumer,
        arguments.idempotent,
    )


def add_acls(arguments: argparse.Namespace) -> int:
    from thermocline.cli.acl import requests
    from thermocline.cli.acl.bindings import bindings

    wanted = _wanted(arguments)
    if not (wanted.allowed or wanted.denied):
        raise CommandFailed("no principal: give --allow-principal or --deny-principal, such as User:alice", Exit.USAGE)
    try:
        acls = bindings(wanted)
    except ValueError as refused:
        raise CommandFailed(str(refused), Exit.USAGE) from None
    requests.create(arguments.bootstrap_server, acls)
    print(_table(acls))
    return Exit.DONE


def list_acls(arguments: argparse.Namespace) -> int:
    from broker.security.authorizer.kinds import PatternType
    from thermocline.cli.acl import requests
    from thermocline.cli.acl.bindings import filters

    pattern = PatternType.LITERAL
    if arguments.prefixed or arguments.matching:
        pattern = PatternType.PREFIXED if arguments.prefixed else PatternType.MATCH
    asked = filters(_resources(arguments), pattern, arguments.principal)
    found = requests.described(arguments.bootstrap_server, asked)
    if arguments.json:
        for acl in found:
            print(json_line(dict(zip(_NAMES, _row(acl), strict=True))))
    else:
        print(_table(found))
    return Exit.DONE


def _deleted(arguments: argparse.Namespace) -> list[AclFilter]:
    from broker.security.authorizer.kinds import PatternType
    from thermocline.cli.acl.bindings import deletions, filters

    if not arguments.principal:
        return deletions(_wanted(arguments))
    resources = ("topic", "group", "transactional_id", "cluster")
    entries = (
        "allow_principal",
        "deny_principal",
        "host",
        "operation",
        "prefixed",
        "producer",
        "consumer",
        "idempotent",
    )
    if any(getattr(arguments, name) for name in (*resources, *entries)):
        raise CommandFailed(
            "--principal stands for all ACLs of the principal: for some of them give --allow-principal or "
            "--deny-principal, and a resource",
            Exit.USAGE,
        )
    return filters((), PatternType.ANY, arguments.principal)


def delete_acls(arguments: argparse.Namespace) -> int:
    from thermocline.cli.acl import requests

    wanted = _deleted(arguments)
    if not arguments.yes:
        require_terminal()
        found = requests.described(arguments.bootstrap_server, wanted)
        if found:
            print(_table(found))
            agree(f"Delete these {len(found)}?")
    count = requests.delete(arguments.bootstrap_server, wanted)
    print(f"deleted {count} ACL{'s' * (count != 1)}")
    return Exit.DONE


_NAMES = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")


def _row(acl: Acl) -> tuple[str, ...]:
    from broker.security.authorizer.kinds import Operation, PatternType, Permission, ResourceType, kind_name

    return (
        kind_name(ResourceType, acl.resource_type),
        acl.resource_name,
        kind_name(PatternType, acl.pattern_type),
        acl.principal,
        acl.host,
        kind_name(Operation, acl.operation),
        kind_name(Permission, acl.permission),
    )


def _table(acls: Iterable[Acl]) -> str:
    header = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
    return table(header, [_row(acl) for acl in acls])
