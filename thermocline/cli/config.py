"""`thermocline config`: lists configs and explains one. Needs no broker.

The texts come from `broker.config.api.explain`. For the values of a running broker: `thermocline topic describe --all`,
or Kafka's `kafka-configs --describe`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_json
from thermocline.cli.terminal.outcome import Exit
from thermocline.cli.terminal.output import json_line, table

if TYPE_CHECKING:
    from broker.config.api.explain import Explained
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "config", help="list and explain configs", example="thermocline config explain retention.ms"
    ).add_subparsers(metavar="VERB", required=True)
    listing = verbs.add_parser(
        "list", help="names, defaults and update modes", example="thermocline config list --topic"
    )
    scope = listing.add_mutually_exclusive_group()
    scope.add_argument("--topic", action="store_true", help="configs of topics only")
    scope.add_argument("--broker", action="store_true", help="configs of brokers only")
    listing.add_argument("--all", action="store_true", help="also Kafka's names that have no effect here")
    listing.set_defaults(run=list_configs)
    explain = verbs.add_parser(
        "explain",
        help="meaning, default and limits of a config",
        example="thermocline config explain segment.bytes",
    )
    explain.add_argument("key", metavar="KEY", help="a config of topics or brokers")
    explain.set_defaults(run=explain_config)
    for parser in (listing, explain):
        add_json(parser)


def list_configs(arguments: argparse.Namespace) -> int:
    from broker.config.api.explain import Effect, Scope, explain_all

    scopes = [scope for scope, other in ((Scope.TOPIC, arguments.broker), (Scope.BROKER, arguments.topic)) if not other]
    found = [
        entry for scope in scopes for entry in explain_all(scope) if arguments.all or entry.effect is Effect.HONOURED
    ]
    if arguments.json:
        for entry in found:
            print(json_line(_row(entry)))
        return Exit.DONE
    rows = [(e.name, e.scope.value, e.type, e.default or "-", e.changes, e.effect.value) for e in found]
    print(table(("name", "of", "type", "default", "changes", "effect"), rows))
    return Exit.DONE


def explain_config(arguments: argparse.Namespace) -> int:
    """Everything about one name, for topics and for brokers if both have it."""
    from broker.config.api.explain import explain_name

    found = explain_name(arguments.key)  # InvalidConfig is exit 2
    for at, entry in enumerate(found):
        if arguments.json:
            print(json_line(_row(entry)))
        else:
            print(("\n" if at else "") + _paragraph(entry))
    return Exit.DONE


def _row(entry: Explained) -> dict[str, str | None]:
    return {
        "name": entry.name,
        "scope": entry.scope.value,
        "type": entry.type,
        "default": entry.default,
        "valid": entry.valid,
        "changes": entry.changes,
        "effect": entry.effect.value,
        "doc": entry.doc,
        "reason": entry.reason or None,
    }


def _paragraph(entry: Explained) -> str:
    lines = [f"{entry.name} (of a {entry.scope.value}): {entry.doc}"]
    facts = [
        ("type", entry.type),
        ("default", entry.default or "empty"),
        ("because", entry.reason),
        ("valid", entry.valid),
        ("changes", entry.changes),
        ("effect", entry.effect.value),
        ("default from", ", ".join(entry.takes_from)),
        ("default of", entry.gives_to or ""),
    ]
    lines += [f"  {name + ':':<14}{value}" for name, value in facts if value]
    return "\n".join(lines)
