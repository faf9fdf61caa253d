"""Executes a restore: sends requests to brokers that were started on a bucket, until every partition serves.

Each step follows from the current `cluster.json`, so an interrupted restore resumes. A broker that answered since the
plan was made, or had another session, is not given up. A refusal is retried. A partition with a damaged manifest does
not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.config.network.addresses import show_address
from thermocline.cli.clients.connections import connect
from thermocline.cli.clients.statuses import Partition
from thermocline.cli.clients.wire_client import (
    BROKER_RESOURCE,
    EARLIEST,
    LATEST,
    BrokerUnreachable,
    WireClient,
    by_topic,
)
from thermocline.cli.cluster.client import MOVES_MAX, MoveRefusal, alter, unregister
from thermocline.cli.cluster.reader import copied_bytes
from thermocline.cli.cluster.restore.bucket_state import BucketState, ClusterSnapshot
from thermocline.cli.cluster.restore.plan import LastSession, Replicas, Step, next_step
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import ProgressLine, note

_POLL_S: Final = 0.5
PATIENCE_S: Final = 120.0
"""Timeout without a change. A lease, expiring sessions and a resigning controller take 40 s."""
_ANSWER_S: Final = 3.0
_FACTOR: Final = "default.replication.factor"
_SHOWN_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Ends:
    """First and last offset of a partition, as its leader reports."""

    start: int
    end: int


class LiveBrokers:
    """Brokers that answer. `bootstrap`: the broker that gets the requests; None: any of them."""

    def __init__(self, bootstrap: str | None) -> None:
        self._bootstrap = bootstrap
        self._factor: int | None = None

    def check(self, snapshot: ClusterSnapshot) -> None:
        """Raises CommandFailed when `bootstrap` belongs to another cluster, BrokerUnreachable."""
        if self._bootstrap is None:
            return
        with connect(self._bootstrap) as client:
            found = client.metadata([]).cluster_id
        if found != snapshot.cluster_id:
            raise CommandFailed(
                f"{self._bootstrap} belongs to cluster {found}, the bucket belongs to {snapshot.cluster_id}", Exit.USAGE
            )

    async def answering(self, snapshot: ClusterSnapshot) -> dict[int, str]:
        """Addresses of brokers that have a session and answer, by node."""
        return await asyncio.to_thread(self._answering, snapshot)

    def _answering(self, snapshot: ClusterSnapshot) -> dict[int, str]:
        found = {}
        for one in snapshot.brokers:
            if one.active and one.host:
                try:
                    with WireClient(one.host, one.port, _ANSWER_S) as client:
                        answered = client.metadata([])
                except BrokerUnreachable:
                    continue
                if answered.cluster_id == snapshot.cluster_id:
                    found[one.node] = show_address(one.host, one.port)
        return found

    async def default_factor(self, addresses: Mapping[int, str]) -> int:
        """The default replication factor; 1 when no broker answers."""

        def ask() -> int:
            for node, address in addresses.items():
                with connect(address) as client:
                    found = client.configs(BROKER_RESOURCE, str(node), [_FACTOR])
                return int(found.get(_FACTOR) or 1)
            return 1

        if self._factor is None and addresses:
            self._factor = await asyncio.to_thread(ask)
        return self._factor or 1

    async def give_up(self, addresses: Mapping[int, str], node: int, broker_epoch: int | None = None) -> None:
        """`cluster forget`. Raises CommandFailed, also if the node had a session after that of `broker_epoch`."""

        def ask() -> None:
            with connect(self._asked(addresses)) as client:
                unregister(client, node, is_given_up=True, broker_epoch=broker_epoch)

        await asyncio.to_thread(ask)

    async def move(self, addresses: Mapping[int, str], moves: Mapping[Partition, Replicas]) -> list[str]:
        """Start reassignments. Returns the refusals. Raises CommandFailed when all are refused, or when no controller
        decided in time.
        """

        def ask(some: Sequence[Partition]) -> dict[Partition, MoveRefusal]:
            with connect(self._asked(addresses)) as client:
                return alter(client, {place: moves[place] for place in some})

        refused: dict[Partition, MoveRefusal] = {}
        places = list(moves)
        for at in range(0, len(places), MOVES_MAX):
            refused |= await asyncio.to_thread(ask, places[at : at + MOVES_MAX])
        return [f"{topic}-{index}: {refusal.why}" for (topic, index), refusal in refused.items()]

    def _asked(self, addresses: Mapping[int, str]) -> str:
        return self._bootstrap or ",".join(addresses.values())

    async def ends(
        self, addresses: Mapping[int, str], led: Mapping[int, Collection[Partition]]
    ) -> dict[Partition, Ends]:
        def ask(node: int) -> dict[Partition, Ends]:
            places = by_topic(led[node])
            with connect(addresses[node]) as client:
                starts, ends = client.offsets(places, EARLIEST), client.offsets(places, LATEST)
            return {place: Ends(starts[place], end) for place, end in ends.items() if place in starts}

        found: dict[Partition, Ends] = {}
        for node in led:
            if node in addresses:
                try:
                    found |= await asyncio.to_thread(ask, node)
                except BrokerUnreachable:
                    continue
        return found

    async def copied(self, snapshot: ClusterSnapshot, places: Collection[Partition]) -> int:
        """Bytes that new replicas of these partitions have, until they are in sync."""
        active = {one.node for one in snapshot.brokers if one.active}
        wanted: dict[int, list[Partition]] = {}
        for one in snapshot.partitions:
            if (one.topic, one.partition) in places:
                for node in active.intersection(one.target or ()).difference(one.in_sync):
                    wanted.setdefault(node, []).append((one.topic, one.partition))
        return sum((await asyncio.to_thread(copied_bytes, snapshot.brokers, wanted)).values()) if wanted else 0


class RestoreRun:
    """One run. `may_give_up`: nodes in the confirmed plan, each with the broker epoch of its last session."""

    def __init__(
        self,
        source: BucketState,
        brokers: LiveBrokers,
        damaged: Mapping[Partition, str],
        may_give_up: Collection[LastSession],
    ) -> None:
        self._may_give_up = set(may_give_up)
        self._source = source
        self._brokers = brokers
        self._damaged = damaged
        self._progress = ProgressLine()
        self._refused = ""  # the last refusal

    async def run(self) -> tuple[ClusterSnapshot, dict[Partition, Ends]]:
        """Run until every partition serves. Raises CommandFailed when nothing changes any more."""
        loop = asyncio.get_running_loop()
        before: object = None
        copied, changed_s = 0, loop.time()
        try:
            while True:
                snapshot = await self._source.read()
                addresses = await self._brokers.answering(snapshot)
                silent = sorted(one.node for one in snapshot.brokers if one.active and one.node not in addresses)
                step = await self._step(snapshot, addresses)
                ends: dict[Partition, Ends] = {}
                waits = list(step.waits)
                if addresses and not silent and not waits:
                    ends = await self._brokers.ends(addresses, _led(snapshot))
                    waits = [place for place in _wanted(snapshot, self._damaged) if place not in ends]
                if addresses and not silent and step.is_done and not waits:
                    return snapshot, ends
                state = (silent, step, len(ends))
                if state != before:
                    before, copied, changed_s = state, 0, loop.time()
                elif (by_now := await self._brokers.copied(snapshot, set(step.waits))) > copied:  # a copy is progress
                    copied, changed_s = by_now, loop.time()
                self._progress.show(self._waiting(silent, step, waits, len(snapshot.partitions)))
                if loop.time() - changed_s > PATIENCE_S:
                    why = self._waiting(silent, step, waits, 0)
                    raise CommandFailed(f"nothing changed for {PATIENCE_S:.0f} s: {why}; {_DO}")
                if addresses and not silent:
                    await self._try(step, snapshot, addresses)
                await asyncio.sleep(_POLL_S)
        finally:
            self._progress.done()

    async def _step(self, snapshot: ClusterSnapshot, addresses: Mapping[int, str]) -> Step:
        factor = await self._brokers.default_factor(addresses)
        # A broker that answers now may have acknowledged records after the plan was made.
        self._may_give_up = {(node, epoch) for node, epoch in self._may_give_up if node not in addresses}
        return next_step(
            snapshot.brokers, snapshot.partitions, self._damaged, may_give_up=self._may_give_up, default_factor=factor
        )

    async def _try(self, step: Step, snapshot: ClusterSnapshot, addresses: Mapping[int, str]) -> None:
        """Run the step. A refusal or silence is retried with the next step."""
        try:
            refused = await self._do(step, snapshot, addresses)
        except (CommandFailed, BrokerUnreachable) as failed:
            refused = str(failed)
        if refused and refused != self._refused:
            note(f"not yet: {refused}")
        self._refused = refused

    async def _do(self, step: Step, snapshot: ClusterSnapshot, addresses: Mapping[int, str]) -> str:
        """Send the step's requests. Returns the refusals as one text, which is empty if there are none."""
        epochs = {one.node: one.broker_epoch for one in snapshot.brokers}
        for node in (*step.give_up, *step.leave):
            await self._brokers.give_up(addresses, node, epochs[node])
            note(f"broker {node} {'is given up' if node in step.give_up else 'has left the cluster'}")
        if not step.move:
            return ""
        refused = await self._brokers.move(addresses, step.move)
        if placed := len(step.move) - len(refused):
            note(f"{placed} partitions are placed on running brokers")
        return "; ".join(refused[:_SHOWN_MAX])

    def _waiting(self, silent: Sequence[int], step: Step, waits: Sequence[Partition], count: int) -> str:
        if silent:
            return f"brokers that have a session and do not answer here: {', '.join(map(str, silent))}"
        words = [_unserved(waits, count)] if waits else _still_to_do(step)
        return "; ".join([*words, f"refused: {self._refused}"] if self._refused else words) or "no broker answers"


_DO: Final = "`thermocline cluster status` names the cause; remove it and run this command again to resume"


def _wanted(snapshot: ClusterSnapshot, damaged: Mapping[Partition, str]) -> list[Partition]:
    places = [(one.topic, one.partition) for one in snapshot.partitions]
    return [place for place in places if place not in damaged]


def _led(snapshot: ClusterSnapshot) -> dict[int, list[Partition]]:
    found: dict[int, list[Partition]] = {}
    for one in snapshot.partitions:
        if one.leader is not None:
            found.setdefault(one.leader, []).append((one.topic, one.partition))
    return found


def _unserved(waits: Sequence[Partition], count: int) -> str:
    shown = ", ".join(f"{topic}-{index}" for topic, index in waits[:_SHOWN_MAX])
    more = f" and {len(waits) - _SHOWN_MAX} more" if len(waits) > _SHOWN_MAX else ""
    of = f" of {count}" if count else ""
    return f"{len(waits)}{of} partitions do not serve yet: {shown}{more}"


def _still_to_do(step: Step) -> list[str]:
    words = [f"broker {node} is to be given up" for node in step.give_up]
    words += [f"{len(step.move)} partitions are to be placed on running brokers"] if step.move else []
    return [*words, *(f"broker {node} is to leave the cluster" for node in step.leave)]


def show_replicas(replicas: Replicas) -> str:
    return ",".join(map(str, replicas)) or "-"
