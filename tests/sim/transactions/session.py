"""One producer with a transactional id, from its InitProducerId until it is fenced or given up: its requests.

Owns epochs, sequences and what a request's answer means. Always true: it commits only what was acknowledged whole; with
`transaction.version` 1 it adds partitions before it writes and takes a new epoch after every request whose effect is
unknown (a late twin may come in its next transaction otherwise: KIP-890), with 2 its leaders add them and every end
bumps the epoch; every wait is bounded. Must not know faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from logformat.records import Codec, Record, encode_batch
from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER, Stage
from tests.sim.checks.history import Outcome, Place, Send
from tests.sim.checks.transactions import Part, key_of, life_of
from tests.sim.client import OF_GROUP, OF_TRANSACTION, Client, ServerError, produce_request
from tests.sim.world.clock import EPOCH_MS

PRODUCE, END, OFFSETS = {1: 11, 2: 12}, {1: 4, 2: 5}, {1: 4, 2: 5}
"""API versions by transaction version."""
PATIENCE_S = 12.0

OVER = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
ABORTABLE = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)
WITHOUT_EFFECT = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class Over(Exception):
    """The producer can do nothing more: it was fenced, or nobody answered it for too long."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class MustAbort(Exception):
    """This transaction cannot be committed."""


class _Asked:
    """A client of one coordinator, which is looked for again after every refusal."""

    def __init__(self, client: Client, key: str, kind: int, moved: Callable[[str], None]) -> None:
        self._client, self._key, self._kind, self._moved = client, key, kind, moved
        self._is_found = False

    async def ask(self, key: ApiKey, message: Any, version: int | None) -> Any:
        if not self._is_found:
            await self._client.find_coordinator(self._key, self._kind)
            self._is_found = True
        try:
            answer = await self._client.call(key, message, 4.0, version=version)
        except BaseException:
            self.lost()
            raise
        self._moved(f"{self._client.connected_to}")
        return answer

    def lost(self) -> None:
        self._is_found = False
        self._client.drop()


@dataclass
class Transaction:
    """As far as its producer knows. `unsure`: batches whose effect is unknown, or refused. `waits`: a leader answered
    CONCURRENT_TRANSACTIONS, perhaps because its log has a gap: it aborts what lists its partition (TX32)."""

    number: int
    began_s: float
    parts: list[Part] = field(default_factory=list)
    unsure: list[Part] = field(default_factory=list)
    added: set[Place] = field(default_factory=set)
    group_offset: int = -1
    decided_s: float = float("inf")
    waits: bool = False


class Session:
    """`hits` counts what happened; `coordinator` is where its id's was last."""

    def __init__(
        self,
        stage: Stage,
        rng: SeededRng,
        line: str,
        version: int,
        timeout_ms: int,
        place_of_group: Place,
        sent_to_main: Callable[[Place], bool],
        hits: Counter[str],
        coordinators: dict[str, str],
    ) -> None:
        self.stage, self.line, self.version = stage, line, version
        self._rng, self._timeout_ms, self._hits = rng, timeout_ms, hits
        self._place_of_group, self._told_to_main = place_of_group, sent_to_main
        self._coordinators = coordinators
        self._id = _Asked(stage.client(), line, OF_TRANSACTION, self._moved)
        self._group = _Asked(stage.client(), self.group, OF_GROUP, lambda _: None)
        self._clients: dict[Place, Client] = {}
        self._sequences: Counter[Place] = Counter()
        self._batches = 0
        self.name = line
        self._ended: tuple[tuple[int, int], Counter[Place]] = (-1, -1), self._sequences
        """Id, epoch and sequences of the transaction before."""
        self.producer = (-1, -1)
        self.is_unsure = False  # some request of it may still come
        self.fenced_s: float | None = None  # when the answer to its successor came
        self.lives: frozenset[Place] = frozenset()  # places of topics that are deleted and made again
        self.keys = 0  # of compacted topics; 0: they are not compacted
        self.explains_fence = False  # it may have fenced itself: a twin of its InitProducerId

    @property
    def group(self) -> str:
        return f"g-{self.line}"

    def _moved(self, where: str) -> None:
        name = self.stage.cluster.node_at(self._id._client.connected_to) or where
        before = self._coordinators.get(self.line)
        if before is not None and before != name:
            self._hits["txn coordinator moved"] += 1
        self._coordinators[self.line] = name

    # --- one request, until it is answered for good ---
    async def _until(self, what: str, once: Callable[[], Awaitable[int]], patience_s: float = PATIENCE_S) -> bool:
        """Whether it was answered NONE at the first go: no attempt of before may still take effect. Raises Over,
        MustAbort."""
        stage, is_first = self.stage, True
        deadline_s, waited_s = stage.now() + patience_s, stage.now()
        while True:
            invoked_s = stage.now()
            try:
                code = ErrorCode(await once())
            except NO_ANSWER:
                code = ErrorCode.NETWORK_EXCEPTION
            except _Refused as refused:  # by whom it was told who coordinates
                code = refused.code
            if code is ErrorCode.NONE:
                if self.fenced_s is not None and invoked_s > self.fenced_s:
                    stage.unexpected.append(
                        f"zombie: {self.name} {self.producer} was answered {what} of {invoked_s:.3f} s; its successor "
                        f"has its producer id since {self.fenced_s:.3f} s"
                    )
                return is_first
            if code is not ErrorCode.NETWORK_EXCEPTION:
                stage.errors[code.name] = stage.errors.get(code.name, 0) + 1
            if code in OVER:
                raise Over(code.name)
            if code in ABORTABLE:
                raise MustAbort(code.name)
            if not code.retriable and code not in stage.expected and code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                stage.unexpected.append(f"{self.name} was answered {code.name} to {what} at {stage.now():.3f} s")
                raise Over(code.name)
            if code not in WITHOUT_EFFECT:
                is_first, self.is_unsure = False, True
            elif code is ErrorCode.CONCURRENT_TRANSACTIONS and stage.now() - waited_s > 1.0:
                self._hits["txn markers late"] += 1
                waited_s = float("inf")
            if stage.now() > deadline_s:
                self.is_unsure = True
                raise Over(f"{what} unanswered: {code.name}")
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))

    async def _ask(self, whom: _Asked, key: ApiKey, message: Any, version: int | None = None) -> Any:
        try:
            return await whom.ask(key, message, version)
        except ServerError as refused:
            raise _Refused(refused.code) from refused

    def _of_coordinator(self, whom: _Asked, code: int) -> int:
        if code not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS):
            whom.lost()
        return code

    # --- its life ---
    async def begin(self, *, goes_on: bool = False, patience_s: float = PATIENCE_S) -> None:
        """InitProducerId. `goes_on`: from the epoch that it has (KIP-360). Raises Over."""
        known = self.producer if goes_on else (-1, -1)

        async def once() -> int:
            request = InitProducerIdRequest(self.line, self._timeout_ms, *known)
            answer = await self._ask(self._id, ApiKey.INIT_PRODUCER_ID, request)
            if answer.error_code == ErrorCode.NONE:
                self.producer = answer.producer_id, answer.producer_epoch
            return self._of_coordinator(self._id, answer.error_code)

        try:
            self.explains_fence |= not await self._until("InitProducerId", once, patience_s)
        except MustAbort as wrong:
            raise Over(str(wrong)) from wrong
        self.is_unsure = False
        self._sequences = Counter()

    async def add(self, transaction: Transaction, place: Place) -> None:
        """AddPartitionsToTxn, of version 1. Raises Over, MustAbort."""
        if self.version == 2 or place in transaction.added:
            return

        async def once() -> int:
            topic = AddPartitionsToTxnRequestTopic(name=place[0], partitions=[place[1]])
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.line,
                v3_and_below_producer_id=self.producer[0],
                v3_and_below_producer_epoch=self.producer[1],
                v3_and_below_topics=[topic],
            )
            answer = await self._ask(self._id, ApiKey.ADD_PARTITIONS_TO_TXN, request)
            found = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
            return self._of_coordinator(self._id, found.partition_error_code)

        await self._until(f"AddPartitionsToTxn {place}", once)
        transaction.added.add(place)

    async def write(self, transaction: Transaction, place: Place, count: int) -> None:
        """A batch, acknowledged. Raises Over, MustAbort."""
        await self._write(transaction, place, count)

    async def stray(self, transaction: Transaction, place: Place) -> str:
        """A batch after the end of a transaction, sent once: what became of it. Where its marker is not written yet a
        partition takes it, as Kafka's do; after that it may not begin another transaction."""
        ended, ended_at = self._ended
        now, now_at = self.producer, self._sequences
        self.producer, self._sequences = ended, ended_at
        try:
            await self._write(transaction, place, 1, patience_s=0.0)
        except (Over, MustAbort) as refused:
            return "unanswered" if "unanswered" in str(refused) else "refused"
        finally:
            self.producer, self._sequences = now, now_at
        return "taken"

    async def _write(self, transaction: Transaction, place: Place, count: int, patience_s: float = PATIENCE_S) -> None:
        stage, rng = self.stage, self._rng
        count = 1 if self.keys else count
        values = tuple(f"{self.name}.{transaction.number}.{self._batches}.{i}" for i in range(count))
        self._batches += 1
        at_ms = EPOCH_MS + int(stage.now() * 1000)
        padding = b" " + b"x" * rng.randrange(300)
        keys = [key_of(value, self.keys) if self.keys else self.line for value in values]
        records = [
            Record(i, at_ms, key.encode(), value.encode() + padding)
            for i, (key, value) in enumerate(zip(keys, values, strict=True))
        ]
        codec = (Codec.NONE, Codec.NONE, Codec.LZ4)[rng.randrange(3)]
        producer_id, epoch = self.producer
        data = encode_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequences[place],
            transactional=True,
        )
        client = self._clients.get(place) or stage.client(place)
        self._clients[place] = client
        invoked_s, offset, asked, outcome = stage.now(), -1, "", Outcome.INFO
        life: UUID | None = None

        async def once() -> int:
            nonlocal offset, asked
            nonlocal life
            try:
                await client.connection()
                asked = stage.cluster.node_at(client.connected_to)
                before = stage.cluster.topic_id_led_at(client.connected_to, place)
                request = produce_request(*place, data, transactional_id=self.line)
                response = await client.call(ApiKey.PRODUCE, request, version=PRODUCE[self.version])
            except NO_ANSWER:
                client.drop()
                raise
            answer = response.responses[0].partition_responses[0]
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return ErrorCode.NONE
            offset = answer.base_offset
            client.refused(code)
            transaction.waits |= code is ErrorCode.CONCURRENT_TRANSACTIONS
            life = before if before == stage.cluster.topic_id_led_at(client.connected_to, place) else None
            return code

        is_sure = False
        try:
            try:
                is_sure = await self._until(f"Produce to {place}", once, patience_s)
                outcome = Outcome.OK
            except MustAbort:
                outcome = Outcome.INFO if self.is_unsure else Outcome.FAIL
                raise
            finally:
                is_known = outcome is Outcome.OK and is_sure
                at = life_of(place, life if is_known else None) if place in self.lives else place
                part = Part(at, values, offset if outcome is Outcome.OK else -1)
                (transaction.parts if outcome is Outcome.OK else transaction.unsure).append(part)
                if outcome is Outcome.OK:
                    self._sequences[place] += count
                    stage.acked += count
                if self._told_to_main(place):
                    done_s = stage.cluster.said_s(asked, stage.now()) if outcome is Outcome.OK else stage.now()
                    in_sync = stage.in_sync(place)
                    session = f"{self.name} {self.producer}"
                    send = Send(
                        session, self._batches, place, values, invoked_s, done_s, outcome, part.offset, asked, in_sync
                    )
                    stage.told(send)
        except MustAbort:
            self.is_unsure = True  # its sequence was not taken
            raise

    async def commit_offset(self, transaction: Transaction, offset: int) -> None:
        """AddOffsetsToTxn and TxnOffsetCommit. Raises Over, MustAbort."""
        if self.version == 1:
            await self._until("AddOffsetsToTxn", self._add_offsets)

        async def once() -> int:
            topic, partition = self._place_of_group
            rows = [TxnOffsetCommitRequestPartition(partition, offset, -1, "")]
            request = TxnOffsetCommitRequest(
                transactional_id=self.line,
                group_id=self.group,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                topics=[TxnOffsetCommitRequestTopic(topic, rows)],
            )
            answer = await self._ask(self._group, ApiKey.TXN_OFFSET_COMMIT, request, OFFSETS[self.version])
            return self._of_coordinator(self._group, answer.topics[0].partitions[0].error_code)

        await self._until("TxnOffsetCommit", once)
        transaction.group_offset = offset
        self._hits["txn offsets in a transaction"] += 1

    async def _add_offsets(self) -> int:
        request = AddOffsetsToTxnRequest(self.line, *self.producer, self.group)
        answer = await self._ask(self._id, ApiKey.ADD_OFFSETS_TO_TXN, request)
        return self._of_coordinator(self._id, answer.error_code)

    async def end(self, transaction: Transaction, *, is_commit: bool) -> Outcome:
        """EndTxn. OK: answered. FAIL: refused, and no attempt may have taken effect. INFO: nobody knows."""
        has_other_try = False
        self._ended = self.producer, self._sequences
        if is_commit:
            transaction.decided_s = self.stage.now()

        async def once() -> int:
            nonlocal has_other_try
            request = EndTxnRequest(self.line, *self.producer, is_commit)
            has_tried, has_other_try = has_other_try, True
            answer = await self._ask(self._id, ApiKey.END_TXN, request, END[self.version])
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.NONE and self.version == 2:
                self.producer = answer.producer_id, answer.producer_epoch
                self._sequences = Counter()
            if code in (*WITHOUT_EFFECT, *OVER, *ABORTABLE):
                has_other_try = has_tried
            return self._of_coordinator(self._id, code)

        try:
            await self._until("EndTxn", once)
        except (Over, MustAbort) as failure:
            self.over = str(failure)
            return Outcome.INFO if has_other_try else Outcome.FAIL
        return Outcome.OK


class _Refused(Exception):
    def __init__(self, code: ErrorCode) -> None:
        self.code = code
        super().__init__(code.name)
