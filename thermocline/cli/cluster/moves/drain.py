"""`thermocline cluster drain NODE`: a broker gives all it holds to the others, and leaves the cluster.

Owns its order: plan, moves, leaders, then the goodbye. Always true: a plan that could not empty the broker
is refused before anything moves; typed again, it goes on where it was. Must not know where replicas go (`plan`).
"""

from __future__ import annotations

import argparse
from typing import Final

from thermocline.cli.cluster.client import unregister
from thermocline.cli.cluster.moves.drive import (
    Words,
    ask,
    cancel,
    carry_out,
    fail_if_refused,
    lead_as_planned,
    show_plan,
)
from thermocline.cli.cluster.moves.plan import Cannot, Plan, drain
from thermocline.cli.cluster.moves.source import MovesSource
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import note

_ROUNDS_MAX: Final = 5  # topics made meanwhile may lie there


def run(arguments: argparse.Namespace) -> int:
    """Show, ask, move, say goodbye."""
    node = arguments.node
    words = Words(f"thermocline cluster drain {node}", f"thermocline cluster drain {node} --cancel")
    source = MovesSource(arguments.bootstrap_server)
    view = source.read()
    if view.broker(node) is None and not any(node in held.replicas for held in view.partitions):
        raise CommandFailed(f"broker {node} is not in the cluster: `thermocline cluster status` says who is")
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
    return _say_goodbye(source, node)


def _leaves(replicas: tuple[int, ...], target: tuple[int, ...], node: int) -> bool:
    return node in replicas and node not in target


def _move_all(source: MovesSource, plan: Plan, words: Words, arguments: argparse.Namespace) -> None:
    """And what was put there meanwhile."""
    for _ in range(_ROUNDS_MAX):
        if not plan.moves and not plan.under_way:
            return
        conduct = carry_out(source, plan, words, arguments.at_once)
        fail_if_refused(conduct.refused)
        lead_as_planned(source, conduct.done.values())
        view = source.read()
        plan = drain(view.places, view.partitions, arguments.node)


def _fail_if_stuck(cannot: tuple[Cannot, ...], node: int) -> None:
    if cannot:
        first = cannot[0]
        count = f"{len(cannot)} partition{'s' * (len(cannot) != 1)}"
        raise CommandFailed(f"{count} cannot leave broker {node}: {first.held.name}: {first.why}; {first.do}")


def _say_goodbye(source: MovesSource, node: int) -> int:
    view = source.read()
    left = [held for held in view.partitions if node in held.replicas or node in held.target]
    if left:
        raise CommandFailed(
            f"broker {node} still holds {left[0].name}"
            + f" and {len(left) - 1} more" * (len(left) > 1)
            + f": somebody else moves them; `thermocline cluster drain {node}` goes on"
        )
    broker = view.broker(node)
    if broker is None:
        note(f"broker {node} is not in the cluster any more")
    elif broker.active:
        note(
            f"broker {node} holds nothing: stop it soon (what is created while it runs may be placed on it), then "
            f"`thermocline cluster forget {node}` takes it out of the cluster"
        )
    else:
        with source.connect() as client:
            unregister(client, node)
        note(f"broker {node} held nothing and has left the cluster")
    return Exit.DONE
