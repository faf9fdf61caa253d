"""`thermocline group`: consumer groups through the stock admin client. Runs `list` and `delete`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.group import lag, reset
from thermocline.cli.terminal.arguments import add_bootstrap, add_json
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import json_line, table

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers

_STATES = ("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Dead")


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "group",
        help="list, describe, reset, delete consumer groups",
        example="thermocline group describe billing --watch",
    ).add_subparsers(metavar="VERB", required=True)
    listing = verbs.add_parser(
        "list",
        help="names and states of groups",
        example="thermocline group list\nthermocline group list --state Empty --json",
    )
    listing.add_argument(
        "--state", choices=_STATES, action="append", default=[], help="only groups in this state; repeatable"
    )
    add_json(listing)
    add_bootstrap(listing)
    listing.set_defaults(run=list_groups)
    lag.register(verbs)
    reset.register(verbs)
    delete = verbs.add_parser(
        "delete",
        help="delete groups and their committed positions",
        description="Delete groups without members, and every position they committed. If consumers use a group "
        "again, their auto.offset.reset decides where it begins.",
        example="thermocline group delete billing",
    )
    delete.add_argument("groups", nargs="+", metavar="G")
    add_bootstrap(delete)
    delete.set_defaults(run=delete_groups)


def list_groups(arguments: argparse.Namespace) -> int:
    from confluent_kafka import ConsumerGroupState

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, connected_admin, failing, plainly

    states = {ConsumerGroupState[_constant(state)] for state in arguments.state}
    admin = connected_admin(arguments.bootstrap_server)
    with failing("listing groups"):
        found = admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S, states=states).result()
    if found.errors:
        raise CommandFailed(plainly("listing groups", found.errors[0].args[0]))
    rows = sorted((row.group_id, lag.state_name(row.state), row.is_simple_consumer_group) for row in found.valid)
    if arguments.json:
        for group, state, simple in rows:
            print(json_line({"group": group, "state": state, "simple": simple}))
    else:
        # A simple group only commits; its consumers assign partitions themselves.
        lines = [(group, state, "positions only" if simple else "members") for group, state, simple in rows]
        print(table(("group", "state", "kind"), lines))
    return Exit.DONE


def _constant(state: str) -> str:
    """The client's name of a state: PreparingRebalance is PREPARING_REBALANCING."""
    words = "".join(f"_{letter}" if letter.isupper() else letter for letter in state).strip("_").upper()
    return words.replace("_REBALANCE", "_REBALANCING")


def delete_groups(arguments: argparse.Namespace) -> int:
    """Delete each group. If one is refused, the others are still deleted, and CommandFailed is raised."""
    from confluent_kafka import KafkaException

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, connected_admin, failing, plainly

    admin = connected_admin(arguments.bootstrap_server)
    wanted = list(dict.fromkeys(arguments.groups))
    with failing("deleting groups"):
        futures = admin.delete_consumer_groups(wanted, request_timeout=REQUEST_TIMEOUT_S)
    refused = []
    for group in wanted:
        try:
            futures[group].result()
            print(f"deleted {group} and its committed positions")
        except KafkaException as failed:
            refused.append(plainly(f"deleting group {group}", failed.args[0]))
    if refused:
        more = f"; and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise CommandFailed(f"{refused[0]}{more}")
    return Exit.DONE
