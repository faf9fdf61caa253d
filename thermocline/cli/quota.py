"""`thermocline quota`: sets, lists and deletes client quotas (KIP-546).

Stock Python clients have no such requests. The command works with Apache Kafka too, and quota keys have Kafka's names.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from thermocline.cli.terminal.arguments import add_bootstrap, add_json, filled, key_value
from thermocline.cli.terminal.outcome import CommandFailed, Exit, no_right
from thermocline.cli.terminal.output import json_line, note, table

if TYPE_CHECKING:
    from broker.wire.messages import DescribeClientQuotasRequestComponent, DescribeClientQuotasResponseEntry
    from thermocline.cli.terminal.arguments import Parser, Subparsers

_TYPES: Final = {"user": "user", "client": "client-id", "ip": "ip"}
"""Kafka's type of entity by flag."""
_SIZES: Final = ("producer_byte_rate", "consumer_byte_rate")
_OF_CLIENTS: Final = (*_SIZES, "request_percentage", "controller_mutation_rate")
_KEYS: Final = (*_OF_CLIENTS, "connection_creation_rate")
_ANY: Final = "<default>"
_EXACT, _DEFAULT = 0, 1

Entity = dict[str, str | None]


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "quota", help="limit the rates of clients", example="thermocline quota list"
    ).add_subparsers(metavar="VERB", required=True)
    setting = verbs.add_parser(
        "set",
        help="set quotas of a user, a client id, both, or an address",
        description=f"Keys of users and client ids: {', '.join(_OF_CLIENTS)}. Key of addresses: "
        "connection_creation_rate. Rates are per second on each broker. Sizes may have units. "
        "Other quotas of the entity stay as they are.",
        example="thermocline quota set --user alice producer_byte_rate=10MiB\n"
        "thermocline quota set --user alice --default-client consumer_byte_rate=1MiB request_percentage=20\n"
        "thermocline quota set --default-ip connection_creation_rate=50",
    )
    setting.add_argument("quotas", type=key_value, nargs="+", metavar="KEY=VALUE")
    setting.set_defaults(run=set_quotas)
    listing = verbs.add_parser(
        "list",
        help="quotas that are set",
        description="Every entity that has quotas, or those of one user, client id or address.",
        example="thermocline quota list\nthermocline quota list --user alice --json",
    )
    add_json(listing)
    listing.set_defaults(run=list_quotas)
    deleting = verbs.add_parser(
        "delete",
        help="delete quotas",
        description="The named quotas of an entity, or all its quotas.",
        example="thermocline quota delete --user alice producer_byte_rate\n"
        "thermocline quota delete --user alice --default-client",
    )
    deleting.add_argument("keys", type=filled, nargs="*", metavar="KEY")
    deleting.set_defaults(run=delete_quotas)
    for parser in (setting, listing, deleting):
        _add_entity(parser)
        add_bootstrap(parser)


def _add_entity(parser: Parser) -> None:
    for flag, what in (("user", "user"), ("client", "client id"), ("ip", "address or host")):
        group = parser.add_mutually_exclusive_group()
        group.add_argument(f"--{flag}", type=filled, metavar=flag.upper(), help=f"the {what} of this name")
        whose = "addresses" if flag == "ip" else f"{what}s"
        group.add_argument(f"--default-{flag}", action="store_true", help=f"all {whose} without a quota of their own")


def _entity(arguments: argparse.Namespace) -> Entity:
    found: Entity = {}
    for flag, kind in _TYPES.items():
        name = getattr(arguments, flag)
        if name is not None or getattr(arguments, f"default_{flag}"):
            found[kind] = name
    return found


def _needed_entity(arguments: argparse.Namespace) -> Entity:
    entity = _entity(arguments)
    if not entity:
        raise CommandFailed("no entity: give --user, --client, --ip or one of their defaults", Exit.USAGE)
    return entity


def _value(key: str, text: str) -> float:
    from broker.config.units import parse_size

    if key not in _KEYS:
        note(f"thermocline: {key} is not a quota known here; known are {', '.join(_KEYS)}")
    if key in _SIZES:
        return float(parse_size(text))
    try:
        return float(text)
    except ValueError:
        raise CommandFailed(f"{key}={text}: {text!r} is not a number", Exit.USAGE) from None


def set_quotas(arguments: argparse.Namespace) -> int:
    entity = _needed_entity(arguments)
    quotas = {key: _value(key, text) for key, text in arguments.quotas}
    _alter(arguments.bootstrap_server, entity, dict(quotas))
    print(f"set quotas of {_shown(entity)}: {_listed(quotas)}")
    return Exit.DONE


def delete_quotas(arguments: argparse.Namespace) -> int:
    entity = _needed_entity(arguments)
    found = _described(arguments.bootstrap_server, entity, strict=True)
    has = {value.key for entry in found for value in entry.values}
    lacking = [key for key in arguments.keys if key not in has]
    if lacking or not has:
        raise CommandFailed(f"{_shown(entity)} has no quota{f' {lacking[0]}' if lacking else ''}: nothing was deleted")
    gone = arguments.keys or sorted(has)
    _alter(arguments.bootstrap_server, entity, dict.fromkeys(gone))
    print(f"deleted quotas of {_shown(entity)}: {', '.join(gone)}")
    return Exit.DONE


def list_quotas(arguments: argparse.Namespace) -> int:
    found = _described(arguments.bootstrap_server, _entity(arguments), strict=False)
    rows = [
        ({part.entity_type: part.entity_name for part in entry.entity}, {each.key: each.value for each in entry.values})
        for entry in found
    ]
    rows.sort(key=lambda row: [(kind not in row[0], row[0].get(kind) or "") for kind in _TYPES.values()])
    if arguments.json:
        for entity, quotas in rows:
            print(json_line({"entity": entity, "quotas": dict(sorted(quotas.items()))}))  # type: ignore[dict-item]
        return Exit.DONE
    cells = [[_name(entity, kind) for kind in _TYPES.values()] for entity, _ in rows]
    lines = [(*names, _listed(quotas)) for names, (_, quotas) in zip(cells, rows, strict=True)]
    print(table((*_TYPES, "quotas"), lines))
    return Exit.DONE


def _name(entity: Entity, kind: str) -> str:
    return (entity[kind] or _ANY) if kind in entity else "-"


def _shown(entity: Entity) -> str:
    flags = {kind: flag for flag, kind in _TYPES.items()}
    return " and ".join(f"{flags[kind]} {name or _ANY}" for kind, name in entity.items())


def _listed(quotas: dict[str, float]) -> str:
    return ", ".join(f"{key}={value:.15g}" for key, value in sorted(quotas.items()))


def _described(bootstrap: str, entity: Entity, *, strict: bool) -> list[DescribeClientQuotasResponseEntry]:
    from broker.error_codes import ErrorCode, error_name
    from broker.wire.apis import ApiKey
    from broker.wire.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse
    from thermocline.cli.clients.connections import connect

    request = DescribeClientQuotasRequest(
        components=[_component(kind, name) for kind, name in entity.items()], strict=strict
    )
    with connect(bootstrap) as client:
        answer = client.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, request, DescribeClientQuotasResponse)
    if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise no_right("listing quotas", "DescribeConfigs")
    if answer.error_code != ErrorCode.NONE:
        raise CommandFailed(f"listing quotas: {answer.error_message or error_name(answer.error_code)}")
    return answer.entries or []


def _component(kind: str, name: str | None) -> DescribeClientQuotasRequestComponent:
    from broker.wire.messages import DescribeClientQuotasRequestComponent

    return DescribeClientQuotasRequestComponent(kind, _DEFAULT if name is None else _EXACT, name)


def _alter(bootstrap: str, entity: Entity, quotas: dict[str, float | None]) -> None:
    """Set quotas; None deletes one."""
    from broker.error_codes import ErrorCode, error_name
    from broker.wire.apis import ApiKey
    from broker.wire.messages import (
        AlterClientQuotasRequest,
        AlterClientQuotasRequestEntity,
        AlterClientQuotasRequestEntry,
        AlterClientQuotasRequestOp,
        AlterClientQuotasResponse,
    )
    from thermocline.cli.clients.connections import connect

    entry = AlterClientQuotasRequestEntry(
        entity=[AlterClientQuotasRequestEntity(kind, name) for kind, name in entity.items()],
        ops=[AlterClientQuotasRequestOp(key, value or 0.0, value is None) for key, value in quotas.items()],
    )
    with connect(bootstrap) as client:
        answer = client.call(
            ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse
        )
    for outcome in answer.entries:
        if outcome.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise no_right(f"quotas of {_shown(entity)}", "AlterConfigs")
        if outcome.error_code != ErrorCode.NONE:
            raise CommandFailed(
                f"quotas of {_shown(entity)}: {outcome.error_message or error_name(outcome.error_code)}"
            )
