"""A topic that is deleted and made again by its name while it is written to, and replicas that leave and come back.

Owns what that topic may have lost. Always true: a record is promised to the topic that the broker it was sent to knows
by that name, when it is sent and when it is acknowledged; what was acknowledged by another topic of the name went with
it, and what nobody answered may be anywhere. Must not know faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import MetadataRequest, MetadataRequestTopic
from logformat.records import Record, encode_batch
from tests.sim.actors import NO_ANSWER, Reader
from tests.sim.acts import READERS_REACH_END_S, Found
from tests.sim.checks.history import Final, Loss, Outcome, Place, Send
from tests.sim.client import Client, ServerError, produce_request
from tests.sim.several.crowd import Crowd
from tests.sim.several.fleet import Fleet
from tests.sim.world.clock import EPOCH_MS

PLACE: Place = ("reborn", 0)
CONFIGS = {"internal.segment.bytes": "2500", "remote.storage.enable": "true", "local.retention.bytes": "3000"}
COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "900", "min.cleanable.dirty.ratio": "0.0"}
LIVES_S = ((0.1, 1.0), (0.5, 3.0), (3.0, 9.0))
WRITERS = 2


class Reborn:
    """Of one run, whose topics have so many `replicas`; `hits` counts deletions that were answered."""

    def __init__(self, stage: Crowd, replicas: int, hits: Counter[str]) -> None:
        self._stage = stage
        self._hits = hits
        self._rng = stage.rng("reborn")
        self._client = stage.client()
        self._topic_id: UUID | None = None  # as last told
        self._sent: list[tuple[UUID | None, Send]] = []
        self._configs = {**CONFIGS, "min.insync.replicas": str(min(replicas, 2))}
        self._is_compacted = stage.rng("reborn compacted").randrange(2) == 0
        if self._is_compacted:  # every record has a key of its own: passes come, nothing goes
            self._configs |= COMPACTED

    async def run(self) -> None:
        async with asyncio.TaskGroup() as acting:
            acting.create_task(self._live())
            for number in range(WRITERS):
                acting.create_task(self._write(number))

    async def _live(self) -> None:
        """One life after the other; the last one is left."""
        rng = self._rng
        while True:
            if await self._asked(self._client.create_topic(PLACE[0], 1, self._configs), "made"):
                await self._look()
            await asyncio.sleep(rng.uniform(*LIVES_S[rng.randrange(3)]))
            if self._stage.stopping.is_set():
                await self._look()
                continue
            self._topic_id = None
            if await self._asked(self._client.delete_topic(PLACE[0]), "deleted"):
                self._hits["topic deleted and made again"] += 1
            if rng.randrange(2):
                await asyncio.sleep(rng.uniform(0.0, 1.5))

    async def _asked(self, request: object, what: str) -> bool:
        try:
            await request  # type: ignore[misc]
        except ServerError as refused:
            self._stage.answered(refused.code, f"reborn, {what}")
            return refused.code == ErrorCode.TOPIC_ALREADY_EXISTS
        except NO_ANSWER:
            return False
        return True

    async def _look(self) -> None:
        """Whose name it is."""
        try:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=PLACE[0])], allow_auto_topic_creation=False)
            answer = await self._client.call(ApiKey.METADATA, request)
        except NO_ANSWER:
            self._client.drop()
            return
        found = answer.topics[0]
        self._topic_id = found.topic_id if found.error_code == 0 and found.topic_id != UUID(int=0) else None

    def _known_to(self, client: Client) -> UUID | None:
        """The topic of that name in the image of the broker that this client talks to: Produce names topics, and two
        brokers may know two of one name."""
        assert isinstance(self._stage.cluster, Fleet)
        return self._stage.cluster.topic_id_at(client.connected_to, PLACE[0])

    async def _write(self, number: int) -> None:
        client, rng = self._stage.client(PLACE), self._stage.rng(f"reborn{number}")
        session = sequence = 0
        while True:
            await asyncio.sleep(rng.uniform(0.02, 0.4))
            if self._topic_id is None:
                continue
            value = f"reborn{number}.{session}.{sequence}"
            sequence += 1
            data = encode_batch(
                [Record(0, EPOCH_MS, value.encode(), value.encode() + b" " + b"x" * rng.randrange(300))]
            )
            now_s = self._stage.now()
            send = Send(f"r{number}.{session}", sequence, PLACE, (value,), now_s, now_s, Outcome.INFO)
            at = len(self._sent)
            self._sent.append((None, send))
            try:
                await client.connection()
                before = self._known_to(client)
                answer = await client.call(ApiKey.PRODUCE, produce_request(*PLACE, data))
            except NO_ANSWER:
                session += 1  # it may still land, after the next one
                client.drop()
                continue
            part = answer.responses[0].partition_responses[0]
            if part.error_code != ErrorCode.NONE:
                self._stage.answered(ErrorCode(part.error_code), "reborn")
                session += 1
                client.refused(part.error_code)
                continue
            acked = replace(send, done_s=self._stage.now(), outcome=Outcome.OK, offset=part.base_offset)
            if self._known_to(client) == before:
                self._sent[at] = before, acked

    async def read(self, found: Found) -> None:
        """All of the topic there is now; what is promised to it goes into the history."""
        stage, reader = self._stage, Reader(self._stage, "final", PLACE, again=False)
        await self._look()
        topic_id = self._topic_id
        ends = None if topic_id is None else await reader.ends()
        if ends is None:
            return  # deleted last, or by a request that landed late
        reader.position = ends[0]
        if not await reader.read_to(ends[1], READERS_REACH_END_S):
            found("unseen", f"{PLACE}: stuck at {reader.position} of {ends}")
            return
        await self._look()
        if self._topic_id != topic_id:
            return
        for of, send in self._sent:
            stage.history.add(send if of == topic_id else replace(send, outcome=Outcome.INFO, offset=-1))
            stage.acked += of == topic_id
        for loss in [event for event in stage.history.events if isinstance(event, Loss) and event.place == PLACE]:
            stage.history.add(replace(loss, start=0))  # where the bucket's part ended was another topic's, perhaps
        stage.history.add(Final(PLACE, max(ends[0], reader.log_start), ends[1], stage.now()))


class ThereAndBack:
    """Replicas are taken off a broker and given back to it within seconds, groups' too."""

    def __init__(self, stage: Crowd, hits: Counter[str]) -> None:
        assert isinstance(stage.cluster, Fleet)
        self._stage = stage
        self._fleet: Fleet = stage.cluster
        self._hits = hits
        self._rng = stage.rng("back")
        self._client = stage.client()

    async def run(self) -> None:
        while not self._stage.stopping.is_set():
            await asyncio.sleep(self._rng.uniform(1.0, 6.0))
            try:
                await self._move()
            except ServerError as refused:
                self._stage.answered(refused.code, "there and back")
            except NO_ANSWER:
                self._client.drop()

    async def _move(self) -> None:
        rng, places = self._rng, self._fleet.partitions()
        place = places[rng.randrange(len(places))] if places else PLACE
        row = self._fleet.row_of(place)
        if row is None or row.target or len(row.replicas) < 2:
            return
        replicas = [*row.replicas]
        left = [*replicas]
        del left[rng.randrange(len(left))]
        await self._client.reassign(*place, left)
        self._hits["reassigned, and back"] += 1
        await asyncio.sleep((0.0, 0.1, 0.5, 2.0)[rng.randrange(4)] * rng.uniform(0.5, 1.0))
        await self._client.reassign(*place, replicas)
