"""The transactional ids of one partition of `__transaction_state`, while this broker leads and coordinates it.

- A shard is the state that an internal log replays. An id changes only when its record is durable, one change at a
  time.
- A restore or a gap may have lost records. Ids replayed before the loss thus need a new producer id (TX36)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec.structs import replace

from broker.internal_topics.batches import KeyValue
from broker.internal_topics.interfaces import Live
from broker.internal_topics.led_shard import Shard
from broker.transactions.records import parse, transaction_record
from broker.transactions.transaction import Transaction, TransactionState
from logformat.transaction_marker import TransactionMarker
from seams.clock import Clock

if TYPE_CHECKING:
    from broker.transactions.coordinator import TransactionCoordinator

_PARTITIONS_PER_STEP: Final = 1_000


class Entry:
    """One id. `transaction`: the transaction in its newest durable record; None before the first record. `is_marked`:
    that record says that the id needs a new producer id. `is_pending`: a change is being written to the log.
    `ongoing_s`: monotonic time since which the ongoing transaction is known here."""

    __slots__ = (
        "_waiting",
        "began_s",
        "is_marked",
        "is_pending",
        "losses",
        "ongoing_s",
        "transaction",
        "transactional_id",
    )

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.transaction: Transaction | None = None
        self.is_marked = False
        self.is_pending = False
        self.losses = 0
        self.began_s = 0.0  # monotonic time at which the end began, for the metrics
        self.ongoing_s = 0.0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_settled(self) -> bool:
        """Whether the next transaction may begin: no change is being written, and no marker is missing."""
        return not self.is_pending and (self.transaction is None or not self.transaction.state.is_prepared)

    async def wait_settled(self, timeout_s: float) -> None:
        """Wait until the next transaction may begin, at most `timeout_s`. The role may end meanwhile, so the caller
        checks again."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await waiting
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def changed(self) -> None:
        """A change ended: wake waiting callers if the next transaction may begin."""
        if self._waiting and self.is_settled:
            told, self._waiting = self._waiting, []
            for waiting in told:
                if not waiting.done():
                    waiting.set_result(None)


class TransactionShard:
    """A `ReplayedState` of one partition."""

    def __init__(
        self, shard: Shard, owner: TransactionCoordinator, topic_id_of: Callable[[str], UUID], clock: Clock
    ) -> None:
        self.partition = shard.index
        self.entries: dict[str, Entry] = {}
        self.ongoing: dict[str, Entry] = {}
        self._shard = shard
        self._owner = owner
        self._topic_id_of = topic_id_of
        self._clock = clock
        self._losses = 0
        self.open_partitions = 0

    @property
    def is_ready(self) -> bool:
        return self._shard.is_ready

    @property
    def is_dropped(self) -> bool:
        return self._shard.is_dropped

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch of the partition, which markers carry (TX2)."""
        return self._shard.leader_epoch

    # ---- as the log's state ----------------------------------------------------------------------------------------

    def apply(self, records: Sequence[KeyValue]) -> None:
        for key, value, _ in records:
            found = parse(key, value, self._topic_id_of)
            if found is None:
                continue
            transactional_id, transaction = found
            if transaction is None:
                self.entries.pop(transactional_id, None)
                continue
            entry = self.entry(transactional_id)
            entry.transaction, entry.losses = transaction, self._losses
            entry.is_marked = transaction.needs_fresh_id

    def repeated(self, records: Sequence[KeyValue]) -> None:
        self.apply(records)  # the newest record of an id replaces the older ones

    def end_transaction(self, marker: TransactionMarker) -> None:
        """Does nothing: these records are never in a transaction."""

    def lost(self) -> None:
        self._losses += 1

    def restore(self) -> Iterator[None]:
        for entry in self.entries.values():
            transaction = entry.transaction
            assert transaction is not None
            if entry.losses < self._losses and not transaction.needs_fresh_id:
                entry.transaction = transaction = replace(transaction, needs_fresh_id=True)
            self._note(entry, None)
            for _ in range(1 + len(transaction.partitions) // _PARTITIONS_PER_STEP):
                yield

    def live(self) -> Live:
        held = [(entry.transactional_id, entry.transaction) for entry in self.entries.values() if entry.transaction]
        return Live(len(held), (transaction_record(*one) for one in held))

    def live_again(self) -> Generator[KeyValue | None, None, None]:
        yield transaction_record("", None)  # a tombstone without effect: no producer may have the empty id
        for entry in list(self.entries.values()):
            if self.entries.get(entry.transactional_id) is entry and entry.transaction is not None:
                yield transaction_record(entry.transactional_id, entry.transaction)

    def unload(self) -> None:
        self._owner.unloaded(self)
        self.entries.clear()
        self.ongoing.clear()
        self.open_partitions = 0

    # ---- changes ---------------------------------------------------------------------------------------------------

    def entry(self, transactional_id: str) -> Entry:
        found = self.entries.get(transactional_id)
        if found is None:
            found = self.entries[transactional_id] = Entry(transactional_id)
        return found

    def write(self, entry: Entry, to: Transaction | None, then: Callable[[Exception | None], None]) -> None:
        """Write the id's next state; None writes a tombstone. `then` gets the failure, or None after the state was
        applied. A failed change is not applied here, but may still be in the log."""
        assert not entry.is_pending
        entry.is_pending = True

        def done(failure: Exception | None) -> None:
            entry.is_pending = False
            if failure is None and not self.is_dropped:
                before, entry.transaction = entry.transaction, to
                entry.is_marked = to is not None and to.needs_fresh_id
                self._note(entry, before)
            if entry.transaction is None and self.entries.get(entry.transactional_id) is entry:
                del self.entries[entry.transactional_id]
            then(failure)
            entry.changed()

        self._shard.submit([transaction_record(entry.transactional_id, to)], done)

    def _note(self, entry: Entry, before: Transaction | None) -> None:
        now = entry.transaction
        self.open_partitions += len(now.partitions if now else ()) - len(before.partitions if before else ())
        if now is not None and now.state is TransactionState.ONGOING:
            if before is None or before.state is not TransactionState.ONGOING:
                entry.ongoing_s = self._clock.monotonic_s()
            self.ongoing[entry.transactional_id] = entry
        else:
            self.ongoing.pop(entry.transactional_id, None)
