"""The two brokers of a run, each in a process of its own that can be killed at any moment.

Owns processes and their machines. Always true: of a killed process nothing runs any more, but for requests that are
under way to the bucket; a process that ended by itself let its threads finish, as a thread pool does; what was
published to a process that is down is nothing to it. Must not know rows, topics or faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextvars import copy_context
from typing import Any

from msgspec.structs import replace

from broker.following.publisher import Publisher
from broker.metadata.cluster_content import Controller
from broker.metadata.image import ClusterImage
from broker.metadata.records import NO_LEADER, MetadataRecord, RowsSet, TopicCreated, TopicDeleted
from logformat.errors import ThermoclineError
from seams.rng import SeededRng
from tests.sim.world.late import Late
from tests.sim.world.loop import Process, SimLoop, close_coroutine
from tests.support.brokers.broker_kit import Life
from tests.support.brokers.cluster_kit import cluster_root
from tests.support.brokers.shared_bucket import NOBODY, Pair

STOPS_S = 300.0  # late calls are waited for
STARTS_S = 300.0


class Brokers(Pair):
    """Brokers 1 and 2 of one run; make it on the run's loop."""

    def __init__(self, seed: str, late_chance: float, late_s: tuple[float, ...], *settings: str) -> None:
        super().__init__(*settings)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._loop = loop
        self.late = Late(loop, SeededRng(f"{seed}/late"), late_chance, late_s)
        self.processes: dict[int, Process] = {}
        self.graveyard: list[asyncio.Task[Any]] = []
        self.going: dict[int, asyncio.Task[bool]] = {}  # who starts or stops now
        self._starts_with: dict[int, frozenset[str]] = {}  # the topics that it knows, until it is up
        self.net = self.places[1].net
        self.net.late = self.late
        outside = copy_context()
        for node_id, place in self.places.items():
            place.seed = f"{seed}/{node_id}"
            place.late, place.outside = self.late, outside

    # --- processes ---
    def within(self, node_id: int, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Done by that process; never over once it is killed."""
        return self._loop.create_task(work, context=self.processes[node_id].context)

    async def over(self, node_id: int, work: Coroutine[Any, Any, Any], most_s: float, what: str) -> bool:
        """Whether it is, in a process that was not killed meanwhile."""
        process, task = self.processes[node_id], self.within(node_id, work)
        deadline_s = self._loop.time() + most_s
        while not task.done():
            if process.dead:
                return False
            assert self._loop.time() < deadline_s, f"broker {node_id} {what} for {most_s:.0f} s"
            await asyncio.sleep(0.05)
        task.result()
        return not process.dead

    async def begin(self, node_id: int) -> bool:
        """Its next process, and session; False: a fault of the machine kept it from serving, or it was killed."""
        await self._note_own(node_id)
        self._starts_with[node_id] = frozenset(self.image.topics)
        process = self.processes[node_id] = Process(f"{node_id}", str(node_id))
        try:
            return await self.over(node_id, super().start(node_id), STARTS_S, "starts")
        except (ThermoclineError, OSError):
            if not process.dead:
                self._bury(node_id)
                self.places[node_id].kill()
            return False

    async def _note_own(self, node_id: int) -> None:
        """Its own `cluster.json`, which it obeys until it is told better, knows what it is assigned: a log that it does
        not know it moves aside as it starts. Who is not alone in a row is not led to lead by it."""
        root = cluster_root(self.places[node_id].memory, f"own/{node_id}")
        loaded = await root.load()
        if loaded is None or loaded.controller is None:
            return
        who = Controller(loaded.controller.node_id, loaded.controller.incarnation)
        await root.claim(loaded.cluster_id, who, lambda own: [*self._own(node_id, own)])

    def _own(self, node_id: int, own: ClusterImage) -> Iterator[MetadataRecord]:
        other = 3 - node_id
        if other in self.image.nodes and other not in own.nodes:
            there = replace(self.image.nodes[other], broker_epoch=own.next_broker_epoch, active=True)
            yield there
            yield replace(there, active=False)
        for topic_id in own.topics.keys() - self.image.topics.keys():
            yield TopicDeleted(topic_id)
        for topic_id, topic in self.image.topics.items():
            row = topic.rows[0]
            if set(row.assigned) != {node_id}:
                in_sync = tuple(member for member in row.in_sync if member != node_id) or (other,)
                row = replace(row, leader=NO_LEADER, in_sync=in_sync)
            if topic_id in own.topics:
                yield RowsSet(topic_id, ((0, row),))
            else:
                yield TopicCreated(topic_id, topic.name, (row,), topic.configs)

    def kill(self, node_id: int, keep: float | None = None) -> None:
        """SIGKILL; `keep`: its machine loses power, and so much of what was not synced stays."""
        self._bury(node_id)
        place = self.places[node_id]
        if keep is None:
            place.kill()
        else:
            place.power_cut(keep)

    def _bury(self, node_id: int) -> None:
        process = self.processes[node_id]
        process.dead = True
        self.net.drop_process(process)
        self.graveyard += process.tasks
        self.lives.pop(node_id, None)

    async def end_cleanly(self, node_id: int) -> bool:
        """As on SIGTERM; its threads finish what they began. False: it was killed meanwhile."""
        life, process = self.lives[node_id], self.processes[node_id]
        if not await self.over(node_id, life.stop(), STOPS_S, "stops"):
            return False
        while not life.workers.is_idle and not process.dead:
            await asyncio.sleep(0.05)
        if process.dead:
            return False
        self._bury(node_id)
        return True

    def waits_in_vain(self, node_id: int) -> bool:
        """Whether it starts, and opens a topic that was deleted since: it hears of images once it is up."""
        is_starting = node_id in self.going and node_id not in self.lives
        return is_starting and not self._starts_with[node_id] <= self.image.topics.keys()

    def is_up(self, node_id: int) -> bool:
        return node_id in self.lives and node_id not in self.going

    def publish(self, *to: int) -> None:
        """Let these brokers (none named: all that are up) obey what was decided."""
        for node_id in to or (1, 2):
            life = self.lives.get(node_id)
            if life is None or life.broker.components.replicas is None:
                continue
            self.processes[node_id].context.run(self._publish, node_id, life)

    def _publish(self, node_id: int, life: Life) -> None:
        replicas, context = life.broker.components.replicas, life.context
        assert replicas is not None
        if replicas._is_closing:
            return  # it hears nothing any more
        Publisher(replicas, context.metadata, context.live, node_id).publish(self.image, NOBODY)

    # --- the end ---
    def bury_all(self) -> None:
        """Let go of what never ended: the tasks of dead processes, whose `finally` blocks run now, in a world that is
        over."""
        self._loop.over = True
        for process in self.processes.values():
            process.dead = True
            self.graveyard += process.tasks
        for task in self.graveyard:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            close_coroutine(task.get_coro())
        self.graveyard.clear()
