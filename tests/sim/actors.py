"""Seeded clients: producers, readers, groups, an admin. They write what they did and saw into the history.

Always true: a producer resends with the same sequence until it is answered, in order, and never more than its window;
an operation without an answer is INFO; every wait is bounded, so that a run ends. Must not know faults.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from logformat.record_batch import check_stored
from logformat.records import Codec, Record, encode_batch, iter_records
from seams.rng import SeededRng
from tests.sim.checks.history import Batch, Commit, Delete, History, Outcome, Place, Poll, Send
from tests.sim.client import EARLIEST, LATEST, Client, Disconnected, Fetched, ServerError, produce_request
from tests.sim.world.clock import EPOCH_MS
from tests.sim.world.cluster import Cluster, Node

NO_ANSWER = (Disconnected, TimeoutError)
FATAL = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
PASSING = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""Of refusals: the next request on the same connection may be taken."""
EXPECTED = (
    *FATAL,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CORRUPT_MESSAGE,
)


@dataclass
class Stage:
    """What actors share. `leader`: the node clients are told to talk to. `errors` counts what brokers answered."""

    cluster: Cluster
    history: History
    leader: Callable[[], Node]
    stopping: asyncio.Event
    unexpected: list[str]
    errors: dict[str, int]
    acked: int = 0
    checked: int = 0
    decoded: dict[tuple[int, int], Batch] | None = None
    expected: tuple[ErrorCode, ...] = EXPECTED

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def client(self, place: Place | None = None) -> Client:
        """For requests about `place`; None: that any broker answers."""
        return Client(self.cluster.net, lambda: self.leader().address)

    def beside(self, client: Client, place: Place) -> Client:
        """What `client`, which any broker answers, uses for requests that the leader of `place` answers."""
        return client

    def in_sync(self, place: Place) -> tuple[int, ...]:
        """Who has to hold what is acknowledged now; nothing to say of one broker."""
        return ()

    def told(self, send: Send) -> None:
        """It goes into the history."""
        self.history.add(send)

    def rng(self, name: str) -> SeededRng:
        return SeededRng(f"{self.cluster.seed}/{name}")

    def answered(self, code: ErrorCode, what: str, message: str | None = "") -> None:
        """An error answer: counted; one that no fault explains is a finding."""
        self.errors[code.name] = self.errors.get(code.name, 0) + 1
        if code not in self.expected:
            self.unexpected.append(f"{what} was answered {code.name} at {self.now():.3f} s {message}".rstrip())

    async def asked(self, client: Client, ask: Callable[[], Awaitable[object]], who: str) -> bool:
        """Whether a request of `client` was answered without an error."""
        try:
            await ask()
        except ServerError as failure:
            self.answered(failure.code, who)
            client.refused(failure.code)
            return False
        except NO_ANSWER:
            client.drop()
            return False
        return True

    def batches(self, fetched: Fetched, place: Place) -> tuple[Batch, ...]:
        """Polled batches, decoded once each."""
        if self.decoded is None:
            self.decoded = {}
        found = []
        for header, data in fetched.batches:
            at = header.base_offset
            try:
                check_stored(data, 0, len(data), offset_min=0)
            except Exception as broken:  # noqa: BLE001 - whatever it says, it is the finding
                self.unexpected.append(f"{place} {at}: a batch that does not check: {broken}")
                continue
            key = (at, header.crc)
            known = self.decoded.get(key)
            digest = hashlib.sha256(data[8:12] + data[16:]).hexdigest()[:12]
            if known is None or known.digest != digest:
                values: tuple[str, ...] = ()
                if not header.is_control:
                    values = tuple((record.value or b"").split(b" ", 1)[0].decode() for record in iter_records(data))
                known = self.decoded[key] = Batch(at, header.next_offset, digest, values)
            found.append(known)
        return tuple(found)


@dataclass
class _Pending:
    sequence: int
    number: int
    values: tuple[str, ...]
    data: bytes
    invoked_s: float
    answer: asyncio.Future[Any] | None = None
    answered_s: float = -1.0
    asked: str = ""  # the process that was connected to when it was sent
    may_be_overtaken: bool = False  # by those behind it, in a log that knew nothing of the producer

    def answered(self, _: object) -> None:
        """The moment the answer came in, however late somebody looks at it."""
        self.answered_s = asyncio.get_running_loop().time()


class Producer:
    """Idempotent, acks=all, up to `window` batches in flight to one partition."""

    def __init__(self, stage: Stage, name: str, place: Place, pace_s: float) -> None:
        self._stage = stage
        self._name = name
        self._place = place
        self._pace_s = pace_s
        self._rng = stage.rng(name)
        self._client = stage.client(place)
        self._window_max = 1 + self._rng.randrange(5)
        self._pending: deque[_Pending] = deque()
        self._session, self._producer, self._sequence, self._number, self._values = 0, (-1, -1), 0, 0, 0
        self.fatal = 0
        self._connection: Any = None

    @property
    def idle(self) -> bool:
        return not self._pending

    async def run(self) -> None:
        """Until told to stop and everything was answered; cancelled when patience ends: what is left is INFO."""
        try:
            while not self._stage.stopping.is_set() or self._pending:
                try:
                    await self._step()
                except (*NO_ANSWER, ServerError) as failure:
                    if isinstance(failure, ServerError):
                        self._stage.answered(failure.code, self._name)
                    self._client.drop()
                    self._connection = None
                    await asyncio.sleep(self._rng.uniform(0.05, 0.4))
        finally:
            for batch in self._pending:
                self._record(batch, Outcome.INFO)

    async def _step(self) -> None:
        if self._producer == (-1, -1):
            self._producer = await self._client.init_producer_id()
            self._session += 1
            self._sequence = self._number = 0
        connection = await self._client.connection()
        if connection is not self._connection:
            self._connection = connection
            for batch in self._pending:
                batch.answer = None
        stopping = self._stage.stopping.is_set()
        if len(self._pending) < self._window_max and not stopping:
            self._pending.append(self._next_batch())
        if not self._pending:
            return  # told to stop while it waited for a connection: seed 1728
        for batch in self._pending:
            if batch.answer is None:
                batch.answer = connection.send(ApiKey.PRODUCE, produce_request(*self._place, batch.data))
                batch.answer.add_done_callback(batch.answered)
                batch.asked = self._stage.cluster.node_at(self._client.connected_to)
        if not stopping and self._rng.randrange(3):
            await asyncio.sleep(self._pace_s * self._rng.uniform(0.2, 1.8))
        first = self._pending[0]
        if first.answer is not None and (first.answer.done() or stopping or len(self._pending) >= self._window_max):
            async with asyncio.timeout(5.0):
                await self._settle(await first.answer)

    async def _settle(self, response: Any) -> None:
        """The oldest batch was answered."""
        answer = response.responses[0].partition_responses[0]
        first = self._pending[0]
        code = ErrorCode(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._pending.popleft()
            self._record(first, Outcome.OK, answer.base_offset if code == ErrorCode.NONE else -1)
            return
        if code in FATAL:
            # The oldest unanswered batch does not continue what the broker knows of us.
            self._stage.answered(code, self._name)
            was_overtaken = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and first.may_be_overtaken
            is_excused = was_overtaken or (
                code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._was_cleaned_before(first)
            )
            if not self._stage.cluster.losses and not is_excused:
                self._stage.unexpected.append(
                    f"{self._name} {self._place}: {code.name} to sequence {first.sequence} though nothing was lost"
                )
            self.fatal += 1
            while self._pending:
                self._record(self._pending.popleft(), Outcome.INFO)
            self._producer = (-1, -1)
            raise ServerError(code, self._name)
        if code not in self._stage.expected:
            self._stage.answered(code, self._name, answer.error_message)
        # A log that knows nothing of a producer takes any sequence (KIP-360), as Kafka's does. The refusal of the first
        # batch passed before those behind it on the connection were looked at: they are in, and it comes too late.
        is_sent_behind = len(self._pending) > 1 and self._pending[1].answer is not None
        first.may_be_overtaken |= code in PASSING and first.sequence == 0 and is_sent_behind
        # Those behind it fail with it; the whole window is sent again, in order, on a new connection.
        raise ServerError(code, self._name)

    def _was_cleaned_before(self, batch: _Pending) -> bool:
        """Whether the log that refused a resend was fetched from one that compaction had removed the batch from."""
        return False

    def _next_batch(self) -> _Pending:
        rng = self._rng
        count = 1 + rng.randrange(6)
        values = tuple(f"{self._name}.{self._session}.{self._values + i}" for i in range(count))
        self._values += count
        # Wall clocks of clients differ; values are padded so that segments fill at different speeds.
        at_ms = EPOCH_MS + int(self._stage.now() * 1000)
        padding = b" " + b"x" * rng.randrange(300)
        records = [Record(i, at_ms, self._name.encode(), value.encode() + padding) for i, value in enumerate(values)]
        codec = (Codec.NONE, Codec.NONE, Codec.GZIP, Codec.LZ4)[rng.randrange(4)]
        producer_id, epoch = self._producer
        data = encode_batch(
            records, codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=self._sequence
        )
        batch = _Pending(self._sequence, self._number, values, data, self._stage.now())
        self._sequence += count
        self._number += 1
        return batch

    def _record(self, batch: _Pending, outcome: Outcome, offset: int = -1) -> None:
        stage = self._stage
        if outcome is Outcome.OK:
            stage.acked += len(batch.values)
        session = f"{self._name}.{self._session}"
        done_s = stage.cluster.said_s(batch.asked, batch.answered_s) if outcome is Outcome.OK else stage.now()
        in_sync = stage.in_sync(self._place)
        invoked_s, values = batch.invoked_s, batch.values
        name, number = batch.asked, batch.number
        stage.told(Send(session, number, self._place, values, invoked_s, done_s, outcome, offset, name, in_sync))


class Reader:
    """Reads one partition; `again` starts over from the log start whenever it reached the end, else it tails."""

    def __init__(self, stage: Stage, name: str, place: Place, *, again: bool) -> None:
        self._stage, self._name, self._place, self._again = stage, name, place, again
        self._rng = stage.rng(name)
        self._client = stage.client(place)
        self.position = -1
        self.log_start = 0  # as last told
        self.laps = 0

    async def run(self) -> None:
        while not self._stage.stopping.is_set():
            await self.step()
            await asyncio.sleep(self._rng.uniform(0.01, 0.3))

    async def step(self) -> None:
        """One poll; no answer is no event."""
        stage = self._stage
        try:
            if self.position < 0:
                self.position = await self._client.list_offset(*self._place, EARLIEST)
            invoked_s = stage.now()
            bytes_max = 1 + self._rng.randrange(6000)
            fetched = await self._client.fetch(*self._place, self.position, bytes_max, 100 + self._rng.randrange(900))
        except ServerError as failure:
            stage.answered(failure.code, self._name)
            await asyncio.sleep(0.2)
            return
        except NO_ANSWER:
            await asyncio.sleep(0.1)
            return
        if fetched.error:
            stage.answered(ErrorCode(fetched.error), self._name)
            self._client.refused(fetched.error)
            if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.position = -1
            await asyncio.sleep(0.1)
            return
        batches = stage.batches(fetched, self._place)
        node = stage.cluster.copy_at(self._client.connected_to, self._place)
        poll = Poll(
            self._name,
            self._place,
            self.position,
            invoked_s,
            stage.now(),
            batches,
            fetched.high_watermark,
            fetched.log_start_offset,
            node,
        )
        stage.history.add(poll)
        self.log_start = poll.log_start
        if batches:
            self.position = batches[-1].end
        elif self._again and self.position >= fetched.high_watermark:
            self.position = -1
            self.laps += 1

    async def read_to(self, end: int, patience_s: float) -> bool:
        """Poll until `end`; whether it was reached in time."""
        deadline_s = self._stage.now() + patience_s
        while self.position < end and self._stage.now() < deadline_s:
            await self.step()
        return self.position >= end

    async def ends(self) -> tuple[int, int] | None:
        """(log start, log end) as the broker says, or None when it does not."""
        try:
            start = await self._client.list_offset(*self._place, EARLIEST)
            return start, await self._client.list_offset(*self._place, LATEST)
        except (*NO_ANSWER, ServerError):
            return None


class GroupMember:
    """Commits ever higher offsets of one partition for one group after the other, and reads them back."""

    def __init__(self, stage: Stage, names: Sequence[str], place: Place, metadata_chars: int = 0) -> None:
        self._stage, self.names, self._place = stage, names, place
        self._rng = stage.rng(names[0])
        self._client = stage.client()
        self._next = 1
        self._metadata_chars = metadata_chars

    async def run(self) -> None:
        pause_s = 0.8 / len(self.names) ** 0.5
        while not self._stage.stopping.is_set():
            await self.step(self.names[self._rng.randrange(len(self.names))] if len(self.names) > 1 else self.names[0])
            await asyncio.sleep(self._rng.uniform(pause_s / 8, pause_s))

    async def step(self, name: str, *, read_only: bool = False) -> bool:
        """One commit or one look; whether it was answered."""
        stage = self._stage
        invoked_s = stage.now()
        read = read_only or self._rng.randrange(3) == 0
        offset, outcome = self._next, Outcome.INFO
        try:
            await self._client.find_coordinator(name)
            invoked_s = stage.now()
            if read:
                offset = await self._client.committed_offset(name, *self._place)
            else:
                self._next += 1
                await self._client.commit_offset(name, *self._place, offset, "m" * self._metadata_chars)
            outcome = Outcome.OK
        except ServerError as failure:
            stage.answered(failure.code, name)
        except NO_ANSWER:
            pass
        finally:  # also when the run ends in the middle of it
            if outcome is Outcome.OK or not read:
                stage.history.add(Commit(name, self._place, offset, invoked_s, stage.now(), outcome, read))
        return outcome is Outcome.OK


class Admin:
    """DeleteRecords now and then; short-lived topics made, written to and deleted, and made again by the same name."""

    def __init__(self, stage: Stage, places: list[Place]) -> None:
        self._stage = stage
        self._places = places
        self._rng = stage.rng("admin")
        self._client = stage.client()
        self.deleted = 0

    async def run(self) -> None:
        while not self._stage.stopping.is_set():
            await asyncio.sleep(self._rng.uniform(0.5, 4.0))
            try:
                if self._rng.randrange(3):
                    await self._delete_records()
                else:
                    await self._churn_topic()
            except ServerError as failure:
                self._stage.answered(failure.code, "admin")
            except NO_ANSWER:
                pass

    async def _delete_records(self) -> None:
        stage, place = self._stage, self._places[self._rng.randrange(len(self._places))]
        client = stage.beside(self._client, place)
        start = await client.list_offset(*place, EARLIEST)
        end = await client.list_offset(*place, LATEST)
        offset = start + self._rng.randrange(max((end - start) // 3, 1))
        invoked_s, outcome = stage.now(), Outcome.INFO
        try:
            await client.delete_records(*place, offset)
            outcome = Outcome.OK
            self.deleted += 1
        finally:
            stage.history.add(Delete(place, offset, invoked_s, stage.now(), outcome))

    async def _churn_topic(self) -> None:
        name = f"passing{self._rng.randrange(2)}"
        if self._rng.randrange(2):
            await self._client.create_topic(name, 1, {"remote.storage.enable": "true"})
        else:
            await self._client.delete_topic(name)
