"""`thermocline cluster restore`: resumes a cluster from its bucket when the machines are gone.

The plan is made from the bucket alone, and lists lost records, partitions that stay offline, and the brokers to give
up. Nothing changes without --yes or a person's confirmation.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_client_config, add_json
from thermocline.cli.terminal.confirm import can_ask, confirm
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import Cell, json_line, note, table
from thermocline.units import show_size

if TYPE_CHECKING:
    from thermocline.cli.bucket.reading import Bucket
    from thermocline.cli.clients.statuses import Partition
    from thermocline.cli.cluster.restore.bucket_state import ClusterSnapshot, StoredGroup
    from thermocline.cli.cluster.restore.executor import Ends
    from thermocline.cli.cluster.restore.plan import PartitionPlan, RestorePlan
    from thermocline.cli.terminal.arguments import Parser, Subparsers

_SHOWN_MAX = 40


def register(verbs: Subparsers[Parser]) -> None:
    restore = verbs.add_parser(
        "restore",
        help="resume a cluster from its bucket alone, when the machines are gone",
        description="Start brokers on the bucket, on empty directories, under any node ids; then run this command. It "
        "prints the outcome for each partition, and asks. It gives up each broker without a session that a "
        "partition waits for. A broker that is only switched off may hold more than the bucket: start it first. "
        "It places lost replicas on the running brokers, and waits until every partition serves. Without "
        "--yes it prints the plan only, which needs no broker. Run it again to resume. Exit code 5 when a "
        "partition stays offline.",
        example="thermocline cluster restore --bucket s3://my-bucket/log --yes",
    )
    restore.add_argument("--bucket", required=True, metavar="URL", help="the bucket of the cluster")
    restore.add_argument(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="a broker of the cluster (default: the brokers in cluster.json)",
    )
    add_client_config(restore)
    restore.add_argument("--yes", action="store_true", help="restore without asking")
    add_json(restore)
    restore.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from thermocline.cli.bucket.reading import with_bucket

    return with_bucket(arguments.bucket, lambda bucket: _run(bucket, arguments))


async def _run(bucket: Bucket, arguments: argparse.Namespace) -> int:
    import asyncio

    from thermocline.cli.cluster.restore.bucket_state import BucketState, stored_partition
    from thermocline.cli.cluster.restore.executor import LiveBrokers, RestoreRun
    from thermocline.cli.cluster.restore.plan import Outcome, plan

    source, there = BucketState(bucket), LiveBrokers(arguments.bootstrap_server)
    snapshot = await source.read()
    await asyncio.to_thread(there.check, snapshot)
    manifests = await source.manifests(snapshot.ids())
    held = {place: stored_partition(found) for place, found in manifests.items()}
    groups = await source.groups(found for found in manifests.values() if not isinstance(found, str))
    addresses = await there.answering(snapshot)
    factor = await there.default_factor(addresses)
    found = plan(
        snapshot.brokers, snapshot.partitions, held, default_factor=factor, answers=lambda node: node in addresses
    )
    _print_plan(snapshot, found, groups, bucket.world.clock.wall_ms(), as_json=arguments.json)
    if not addresses and arguments.yes:
        raise CommandFailed(
            f"{_NOBODY}: start brokers on {bucket.store.url}, on empty directories, then run this again"
        )
    if not arguments.yes:
        if not addresses or not can_ask():
            note(
                "nothing was changed: add --yes to restore"
                if addresses
                else f"{_NOBODY}; start them, then add --yes to restore"
            )
            return Exit.DONE
        confirm(f"Restore cluster {snapshot.cluster_id}? {_consequence(found)}", snapshot.cluster_id)
    damaged = {place: of.damage for place, of in held.items() if of.damage}
    agreed = {(one.node, one.broker_epoch) for one in snapshot.brokers if one.node in found.gone}
    snapshot, ends = await RestoreRun(source, there, damaged, agreed).run()
    offline = found.of(Outcome.OFFLINE)
    _print_report(snapshot, found, ends, as_json=arguments.json)
    return Exit.FINDINGS if offline else Exit.DONE


_NOBODY = "no broker of this cluster answers"


def _print_plan(
    snapshot: ClusterSnapshot, found: RestorePlan, groups: Sequence[StoredGroup], now_ms: int, *, as_json: bool
) -> None:
    ages = [(held, max(now_ms - held.newest_ms, 0)) for held in groups]
    if as_json:
        for one in snapshot.brokers:
            state, count = _state(one.node, one.given_up, found)
            print(json_line({"kind": "broker", "node": one.node, "state": state, "partitions": count}))
        for part in found.partitions:
            print(json_line({"kind": "partition", **_cells(part)}))
        for held, age_ms in ages:
            row: dict[str, Cell] = {"kind": "group", "group": held.group, "positions": held.positions}
            print(json_line({**row, "newest_ms": held.newest_ms, "age_ms": age_ms}))
        return
    print(f"cluster {snapshot.cluster_id}: {_consequence(found)}")
    for one in snapshot.brokers:
        print(f"  broker {one.node}: {_state_words(one.node, one.given_up, found)}")
    shown = sorted(found.partitions, key=lambda part: _is_internal(part.topic))[:_SHOWN_MAX]
    if rows := [_row(part) for part in shown]:
        print()
        print(table(_HEADER, rows, right=("log start", "remote end", "cold")))
        if (more := len(found.partitions) - _SHOWN_MAX) > 0:
            print(f"and {more} more (--json has all)")
    for part in found.partitions:
        if part.held is not None and part.held.damage:
            print(f"{part.topic}-{part.partition} stays offline: {part.held.damage}")
    if ages:
        youngest = min(age for _, age in ages)
        print(f"\n{len(ages)} groups come back; the newest position was committed {_age(youngest)} ago")


def _state(node: int, given_up: bool, found: RestorePlan) -> tuple[str, int]:
    if given_up:
        return "given_up", found.away.get(node, 0)
    if node in found.there:
        return "there", 0
    return ("to_give_up", found.gone[node]) if node in found.gone else ("away", found.away.get(node, 0))


def _state_words(node: int, given_up: bool, found: RestorePlan) -> str:
    from broker.metadata.rebuilt import UNKNOWN_REPLICA

    state, count = _state(node, given_up, found)
    if node == UNKNOWN_REPLICA and state == "to_give_up":
        return (
            f"is a placeholder for the unknown holders of {count} partitions, since cluster.json was rebuilt. Start "
            f"every broker that has its directory first: it reports its logs"
        )
    return {
        "there": "running",
        "given_up": "given up before",
        "to_give_up": f"not running, and {count} partitions wait for it: it will be given up. A broker that is only "
        "switched off may hold records that the bucket lacks: start it first",
        "away": f"not running; {count} partitions are assigned to it, and other brokers have complete replicas of all "
        "of them",
    }[state]


def _cells(part: PartitionPlan) -> Mapping[str, Cell]:
    held = part.held
    known = held is not None and not held.damage
    return {
        "topic": part.topic,
        "partition": part.partition,
        "fate": str(part.fate),
        "from": part.replicas,
        "to": part.to,
        "begins": part.begins,
        "hot_bytes": part.hot_bytes,
        "cold_bytes": held.cold_bytes if held is not None and known else None,
        "log_start": held.log_start if held is not None and known else None,
        "remote_end": held.remote_end if held is not None and known else None,
        "gap": part.gap,
        "why": held.damage if held is not None and held.damage else None,
    }


_HEADER = ("partition", "becomes", "log start", "remote end", "lost at most", "replicas", "then", "cold")


def _row(part: PartitionPlan) -> tuple[str, ...]:
    from thermocline.cli.cluster.restore.executor import show_replicas

    held = part.held
    known = held if held is not None and not held.damage else None
    return (
        f"{part.topic}-{part.partition}",
        str(part.fate),
        str(known.log_start) if known else "-",
        str(known.remote_end) if known else "-",
        f"[{part.gap[0]}, {part.gap[1]})" if part.gap else "-",
        show_replicas(part.replicas),
        show_replicas(part.to),
        show_size(known.cold_bytes) if known else "-",
    )


def _consequence(found: RestorePlan) -> str:
    from thermocline.cli.cluster.restore.plan import Outcome

    parts = [f"{len(found.of(Outcome.RESTORED))} of {len(found.partitions)} partitions begin from the bucket"]
    if kept := found.of(Outcome.KEPT):
        parts.append(f"{len(kept)} keep all records")
    if offline := found.of(Outcome.OFFLINE):
        parts.append(f"{len(offline)} stay offline")
    gaps = [(_is_internal(part.topic), part.gap[1] - part.gap[0]) for part in found.partitions if part.gap]
    inner, of_users = (sum(gap for internal, gap in gaps if internal is which) for which in (True, False))
    if inner or of_users:
        beside = f" and {inner} of internal topics" if inner else ""
        parts.append(
            f"at most {of_users} offsets of your topics{beside} are lost; they were reserved, and perhaps assigned"
        )
    else:
        parts.append("no offset is lost")
    return ", ".join(parts) + "."


def _is_internal(topic: str) -> bool:
    return topic.startswith("__")


def _age(age_ms: int) -> str:
    from broker.config.units import show_duration

    return show_duration(age_ms // 1000 * 1000)


def _print_report(
    snapshot: ClusterSnapshot, found: RestorePlan, ends: Mapping[Partition, Ends], *, as_json: bool
) -> None:
    from thermocline.cli.cluster.restore.executor import show_replicas
    from thermocline.cli.cluster.restore.plan import moves_held_up

    plans = {(part.topic, part.partition): part for part in found.partitions}
    served = 0
    for one in snapshot.partitions:
        place = (one.topic, one.partition)
        part, end = plans.get(place), ends.get(place)
        served += end is not None
        if as_json:
            row: dict[str, Cell] = {
                "kind": "result",
                "topic": one.topic,
                "partition": one.partition,
                "serves": end is not None,
                "leader": one.leader,
                "replicas": one.replicas,
                "log_start": end.start if end else None,
                "end": end.end if end else None,
                "gap": part.gap if part else None,
                "why": part.held.damage or None if part and part.held else None,
            }
            print(json_line(row))
        elif end is None:
            why = part.held.damage if part and part.held else ""
            print(f"{one.topic}-{one.partition} is offline: {why or 'it has no leader that answers'}")
    for (topic, index), nodes in moves_held_up(snapshot.brokers, snapshot.partitions).items():
        note(
            f"{topic}-{index} was being moved to brokers that do not run ({show_replicas(nodes)}): start them, or "
            "`thermocline cluster rebalance --cancel` cancels the moves"
        )
    note(f"{served} of {len(snapshot.partitions)} partitions serve; `thermocline tier status` lists the gaps")
