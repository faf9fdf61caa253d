"""`thermocline cluster rebalance`: replicas, hot bytes and leaders even over the brokers, by few moves.

Owns the order: plan, moves, leaders. Must not know what even means (rebalance_plan).
"""

from __future__ import annotations

import argparse
from typing import Final

from thermocline.cli.cluster.moves.drive import (
    Words,
    ask,
    cancel,
    carry_out,
    fail_if_refused,
    lead_as_planned,
    show_plan,
)
from thermocline.cli.cluster.moves.rebalance_plan import rebalance
from thermocline.cli.cluster.moves.source import MovesSource
from thermocline.cli.terminal.outcome import Exit
from thermocline.cli.terminal.output import note

_WORDS: Final = Words("thermocline cluster rebalance", "thermocline cluster rebalance --cancel")


def run(arguments: argparse.Namespace) -> int:
    """Show, ask, move."""
    source = MovesSource(arguments.bootstrap_server)
    view = source.read()
    if arguments.cancel:
        return cancel(source, [held for held in view.partitions if held.target])
    plan = rebalance(view.places, view.partitions)
    show_plan(plan, as_json=arguments.json)
    if not plan.moves and not plan.under_way:
        note("the brokers hold alike: nothing moves")
        return Exit.DONE
    if arguments.dry_run:
        return Exit.DONE
    ask(arguments, plan, _WORDS)
    conduct = carry_out(source, plan, _WORDS, arguments.at_once)
    lead_as_planned(source, conduct.done.values())
    fail_if_refused(conduct.refused)
    return Exit.DONE
