"""A conversation about leader epochs: what a leader answers for each epoch a reader may name, as its lineage grows.

Owns what is asked, and how two brokers' answers are made comparable: epochs are told as the terms of the conversation
(the first leadership, the second, …), since one broker may skip numbers where another does not. Always true: between
two terms the broker was started anew; terms 2 and 4 left no records. Must not know who answers.
"""

from __future__ import annotations

from typing import Any, Protocol

from broker.wire.apis import ApiKey
from broker.wire.generated import messages as m
from broker.wire.message import Message
from tests.support.conversations.fetch_conversation import Talk

Json = dict[str, Any]
TOPIC = "e"
NONE = -1
FAR = 2**31 - 1


class RestartableBroker(Protocol):
    """Who is asked."""

    async def ask(self, api: ApiKey, version: int, request: Message) -> Message: ...

    async def settle(self) -> None: ...

    async def restart(self) -> None:
        """Stop it, start it again over the same data, and wait until it leads."""
        ...


class EpochTalk(Talk):
    """Asks for the ends of epochs, and fetches with a last fetched epoch."""

    def __init__(self, broker: RestartableBroker) -> None:
        super().__init__(broker, "epochs")
        self._asked = broker
        self.terms: list[int] = []

    async def new_term(self) -> None:
        """The same leader in another epoch."""
        if self.terms:
            await self._asked.restart()
        request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=self.name(TOPIC))])
        answer: Any = await self._asked.ask(ApiKey.METADATA, 9, request)
        epoch = answer.topics[0].partitions[0].leader_epoch
        assert not self.terms or epoch > self.terms[-1], (epoch, self.terms)
        self.terms.append(epoch)

    def epoch_of(self, term: int) -> int:
        """Term 6 of 5 is one above the latest epoch."""
        if term in (NONE, FAR):
            return term
        return self.terms[term - 1] if term <= len(self.terms) else self.terms[-1] + 1

    def _term_of(self, epoch: int) -> str:
        if epoch == NONE:
            return "none"
        return f"term {self.terms.index(epoch) + 1}" if epoch in self.terms else "another"

    async def end_of(self, label: str, term: int, current: int = NONE, version: int = 4) -> None:
        wanted = m.OffsetForLeaderEpochRequestPartition(
            partition=0, current_leader_epoch=self.epoch_of(current), leader_epoch=self.epoch_of(term)
        )
        topic = m.OffsetForLeaderEpochRequestTopic(topic=self.name(TOPIC), partitions=[wanted])
        request = m.OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
        answer: Any = await self._asked.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request)
        found = answer.topics[0].partitions[0]
        told: Json = {"error": found.error_code, "epoch": self._term_of(found.leader_epoch), "end": found.end_offset}
        self.log.append((f"{label}: end of {_name(term)}{_as_of(current)}", told))

    async def read(self, label: str, offset: int, last: int, current: int = NONE) -> None:
        epochs = {"last_fetched_epoch": self.epoch_of(last), "current_leader_epoch": self.epoch_of(current)}
        name = f"{label}: fetch at {offset} after {_name(last)}{_as_of(current)}"
        await self.fetch(name, (TOPIC, 0, offset, epochs), epoch=-1)

    async def warm_up(self, offset: int) -> None:
        """Read once and wait for it: a broker that has just started may have to look at its files first."""
        await self.fetch("warm", (TOPIC, 0, offset), epoch=-1, wait_ms=2_000)
        self.log.pop()

    def _partition(self, part: m.FetchResponsePartition) -> Json:
        found = super()._partition(part)
        if part.diverging_epoch is not None:
            found["diverging"] = [self._term_of(part.diverging_epoch.epoch), part.diverging_epoch.end_offset]
        return found


def _name(term: int) -> str:
    return {NONE: "no epoch", FAR: "the greatest epoch"}.get(term, f"term {term}")


def _as_of(current: int) -> str:
    return "" if current == NONE else f" as of {_name(current)}"


async def table(t: EpochTalk, label: str, offsets: tuple[int, ...]) -> None:
    """Every epoch a reader may name, at every place of the log."""
    await t.warm_up(offsets[0] + 1)
    for term in (NONE, 1, 2, 3, 4, 5, 6, FAR):
        await t.end_of(label, term)
        for offset in offsets:
            await t.read(label, offset, term)
    for current in (1, 4, 5, 6, FAR):
        for term in (NONE, 1, 2, 5, 6):
            await t.end_of(label, term, current)
            await t.read(label, offsets[-2], term, current)


async def leader_epochs(t: EpochTalk) -> None:
    """Offsets 0–3 are of term 1, 4–6 of term 3, 7 of term 5; terms 2 and 4 were led without a record."""
    await t.create(TOPIC)
    await t.new_term()
    await t.end_of("empty", 1)
    await t.read("empty", 0, 1)
    await t.read("empty", 0, 6)
    await t.produce(TOPIC, records=2)
    await t.produce(TOPIC, records=2)
    await t.new_term()
    await t.end_of("the second begins", 1)
    await t.end_of("the second begins", 2)
    await t.read("the second begins", 4, 1)
    await t.read("the second begins", 4, 2)
    await t.new_term()
    await t.produce(TOPIC, records=3)
    await t.new_term()
    await t.new_term()
    await table(t, "no record of the fifth yet", (0, 2, 4, 5, 7, 8))
    await t.produce(TOPIC)
    await table(t, "with a record of the fifth", (0, 2, 4, 5, 7, 8, 9))
    await t.delete_records(TOPIC, 0, 5)
    await table(t, "without the first", (4, 5, 7, 8, 9))
    for version in (2, 3):
        await t.end_of(f"version {version}", 3, version=version)
