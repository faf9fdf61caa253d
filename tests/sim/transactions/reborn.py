"""A topic that is deleted and made again by its name while transactions are open on it (E13).

Owns its lives, and which of them a batch or a look belongs to. Always true: each life is a place of its own in the
history, named by its topic id; a batch is of the life whose log the broker had when it was asked and when it answered,
of an unknown one if these differ; readers ask by topic id. Must not know faults, or what becomes of a transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import MetadataRequest, MetadataRequestTopic
from tests.sim.actors import NO_ANSWER, Stage
from tests.sim.checks.history import Place
from tests.sim.checks.transactions import life_of
from tests.sim.client import LATEST, READ_COMMITTED, Client, Fetched
from tests.sim.transactions.looking import TransactionReader

BORN: Place = ("txborn", 0)
LIVES_S = ((0.2, 0.8), (0.5, 2.0), (1.0, 4.0))
CONFIGS = {"internal.segment.bytes": "1800", "retention.ms": "-1"}
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "3000"}


async def topic_id_of(stage: Stage, client: Client) -> UUID | None:
    """Of the topic that has the name now. Raises as `Client.call`."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=BORN[0])], allow_auto_topic_creation=False)
    found = (await client.call(ApiKey.METADATA, request)).topics[0]
    return found.topic_id if found.error_code == ErrorCode.NONE and found.topic_id.int else None


class Lives:
    """Makes and deletes the topic. The last life is left."""

    def __init__(self, stage: Stage, hits: Counter[str]) -> None:
        self._stage, self._hits = stage, hits
        self._rng = stage.rng("tx lives")
        self._client, self._of_leader = stage.client(), stage.client(BORN)
        self._is_open = False
        self._configs = CONFIGS | (TIERED if self._rng.randrange(2) else {})

    async def run(self) -> None:
        """Until cancelled: also in quiet times it is made, where it is missing."""
        rng = self._rng
        while True:
            await self._asked(lambda: self._client.create_topic(BORN[0], 1, self._configs))
            await asyncio.sleep(rng.uniform(*LIVES_S[rng.randrange(len(LIVES_S))]))
            if self._stage.stopping.is_set():
                continue
            await self._asked(self._look)
            if await self._asked(lambda: self._client.delete_topic(BORN[0])):
                self._hits["txn topic deleted and made again"] += 1
                self._hits["txn topic deleted with one open"] += self._is_open
            if rng.randrange(2):
                await asyncio.sleep(rng.uniform(0.0, 0.8))

    async def _look(self) -> None:
        """Whether a transaction is open there."""
        self._is_open = False
        stable = await self._of_leader.list_offset(*BORN, LATEST, isolation=READ_COMMITTED)
        self._is_open = stable < await self._of_leader.list_offset(*BORN, LATEST)

    async def _asked(self, ask: Callable[[], Awaitable[object]]) -> bool:
        return await self._stage.asked(self._client, ask, "tx lives")


class LifeReader(TransactionReader):
    """Of one life after the other, by topic id."""

    topic_id: UUID | None = None

    async def step(self) -> None:
        if self.topic_id is None:
            asking = self._stage.client()
            try:
                self.topic_id = await topic_id_of(self._stage, asking)
            except NO_ANSWER:
                pass
            finally:
                asking.drop()
            if self.topic_id is None:
                await asyncio.sleep(0.1)
                return
            self.place, self.position = life_of(BORN, self.topic_id), 0
        self.position = max(self.position, 0)
        await super().step()

    async def _fetch(self, bytes_max: int) -> Fetched:
        isolation = READ_COMMITTED if self._is_committed else 0
        fetched = await self._client.fetch(
            *BORN, self.position, bytes_max, 200, isolation=isolation, topic_id=self.topic_id
        )
        if fetched.error in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID):
            self.topic_id = None
            self._client.drop()
        return fetched

    async def read_all(self, patience_s: float) -> str:
        """Nothing is wrong where the topic is gone: a deletion that nobody waited for may land late."""
        self.topic_id = None
        stuck = await super().read_all(patience_s)
        return "" if self.topic_id is None else stuck
