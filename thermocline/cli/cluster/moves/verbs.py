"""Runs `thermocline cluster drain` and `thermocline cluster rebalance`."""

from __future__ import annotations

import argparse
from typing import Final

from thermocline.cli.clients.connections import note_token_refused
from thermocline.cli.cluster.client import unregister
from thermocline.cli.cluster.moves.executor import (
    CommandTexts,
    ask,
    cancel,
    elect_planned_leaders,
    execute,
    fail_if_refused,
    show_plan,
)
from thermocline.cli.cluster.moves.plan import Immovable, Plan, drain
from thermocline.cli.cluster.moves.rebalance_plan import rebalance
from thermocline.cli.cluster.reader import ClusterReader
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import note

_REBALANCE: Final = CommandTexts("thermocline cluster rebalance", "thermocline cluster rebalance --cancel")
_ROUNDS_MAX: Final = 5  # a topic created during a drain may have replicas on this broker


def run_drain(arguments: argparse.Namespace) -> int:
    """`cluster drain`: plan, moves, leaders, unregistration. Refuses a plan that cannot empty the broker.
    Repeatable.
    """
    node = arguments.node
    words = CommandTexts(f"thermocline cluster drain {node}", f"thermocline cluster drain {node} --cancel")
    source = ClusterReader(arguments.bootstrap_server)
    view = source.read_with_sizes()
    if view.broker(node) is None and not any(node in held.replicas for held in view.partitions):
        raise CommandFailed(f"broker {node} is not in the cluster: `thermocline cluster status` lists the brokers")
    note_token_refused("bytes of the partitions", view.seen.token_refused)
    if arguments.cancel:
        return cancel(
            source, [held for held in view.partitions if held.target and _leaves(held.replicas, held.target, node)]
        )
    plan = drain(view.places, view.partitions, node)
    _fail_if_stuck(plan.cannot, node)
    show_plan(plan, as_json=arguments.json)
    if arguments.dry_run:
        return Exit.DONE
    ask(arguments, plan, words)
    _move_all(source, plan, words, arguments)
    return _unregister(source, node)


def _leaves(replicas: tuple[int, ...], target: tuple[int, ...], node: int) -> bool:
    return node in replicas and node not in target


def _move_all(source: ClusterReader, plan: Plan, words: CommandTexts, arguments: argparse.Namespace) -> None:
    for _ in range(_ROUNDS_MAX):
        if not plan.moves and not plan.under_way:
            return
        conduct = execute(source, plan, words, arguments.at_once)
        fail_if_refused(conduct.refused)
        elect_planned_leaders(source, conduct.done.values())
        view = source.read_with_sizes()
        plan = drain(view.places, view.partitions, arguments.node)


def _fail_if_stuck(cannot: tuple[Immovable, ...], node: int) -> None:
    if cannot:
        first = cannot[0]
        count = f"{len(cannot)} partition{'s' * (len(cannot) != 1)}"
        raise CommandFailed(f"{count} cannot leave broker {node}: {first.held.name}: {first.why}; {first.do}")


def _unregister(source: ClusterReader, node: int) -> int:
    view = source.read_with_sizes()
    left = [held for held in view.partitions if node in held.replicas or node in held.target]
    if left:
        raise CommandFailed(
            f"broker {node} still holds {left[0].name}"
            + f" and {len(left) - 1} more" * (len(left) > 1)
            + f": another command moves them; run `thermocline cluster drain {node}` again"
        )
    broker = view.broker(node)
    if broker is None:
        note(f"broker {node} is not in the cluster any more")
    elif broker.active:
        note(
            f"broker {node} holds nothing: stop it soon (new partitions may be placed on it while it runs), then "
            f"`thermocline cluster forget {node}` takes it out of the cluster"
        )
    else:
        with source.connect() as client:
            unregister(client, node)
        note(f"broker {node} held nothing and has left the cluster")
    return Exit.DONE


def run_rebalance(arguments: argparse.Namespace) -> int:
    source = ClusterReader(arguments.bootstrap_server)
    view = source.read_with_sizes()
    note_token_refused("bytes of the partitions", view.seen.token_refused)
    if arguments.cancel:
        return cancel(source, [held for held in view.partitions if held.target])
    plan = rebalance(view.places, view.partitions)
    show_plan(plan, as_json=arguments.json)
    if not plan.moves and not plan.under_way:
        note("the brokers are balanced: nothing moves")
        return Exit.DONE
    if arguments.dry_run:
        return Exit.DONE
    ask(arguments, plan, _REBALANCE)
    conduct = execute(source, plan, _REBALANCE, arguments.at_once)
    elect_planned_leaders(source, conduct.done.values())
    fail_if_refused(conduct.refused)
    return Exit.DONE
