"""What partitions hold of transactions, and what must be true of it: every transaction that has records in a partition
gets exactly one marker there, the same in all its partitions, and the one that its client was told of.

Always true: a partition takes batches and markers as a leader does (guards, epochs, the coordinator's epoch). The
transaction of a client has a number, which no log has: so a record that fell into another one is found (`wrong`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.error_codes import ErrorCode
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.transaction import TV_2
from logformat.transaction_marker import TransactionMarker


@dataclass(eq=False)
class ClientTransaction:
    """`asked`: the outcomes that its client asked for. `told`: the one that it was told is decided. `ended`: by the
    markers of partitions that had records of it."""

    number: int
    asked: set[bool] = field(default_factory=set)
    told: bool | None = None
    ended: dict[TransactionalPartition, bool] = field(default_factory=dict)


class _Open(NamedTuple):
    epoch: int
    transaction: ClientTransaction


class _Partition:
    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.coordinator_epochs: dict[int, int] = {}
        self.open: dict[int, _Open] = {}
        self.markers: dict[int, int] = defaultdict(int)  # by producer: a guard is void after one


class Ledger:
    def __init__(self) -> None:
        self.transactions: list[ClientTransaction] = []
        self.wrong: list[str] = []
        self._partitions: dict[TransactionalPartition, _Partition] = defaultdict(_Partition)

    def begin(self) -> ClientTransaction:
        self.transactions.append(ClientTransaction(len(self.transactions)))
        return self.transactions[-1]

    def told(self, transaction: ClientTransaction, *, is_commit: bool) -> None:
        transaction.told = is_commit
        self._check(transaction)

    # ---- as a leader -----------------------------------------------------------------------------------------------

    def guard(self, at: TransactionalPartition, producer_id: int) -> int:
        """Taken before the coordinator is asked."""
        return self._partitions[at].markers[producer_id]

    def has_open(self, at: TransactionalPartition, producer_id: int, epoch: int) -> bool:
        opened = self._partitions[at].open.get(producer_id)
        return opened is not None and opened.epoch == epoch

    def append(
        self, at: TransactionalPartition, producer_id: int, epoch: int, of: ClientTransaction, guard: int
    ) -> bool:
        """Whether the batch was taken."""
        partition = self._partitions[at]
        if epoch < partition.epochs.get(producer_id, -1):
            return False
        opened = partition.open.get(producer_id)
        if opened is None or opened.epoch != epoch:
            if guard != partition.markers[producer_id]:
                return False
            if at in of.ended:
                self.wrong.append(f"transaction {of.number} begins again in {at.partition}, behind its marker")
            if opened is not None:
                self.wrong.append(
                    f"transaction {of.number} begins in {at.partition} within {opened.transaction.number}"
                )
            partition.open[producer_id] = _Open(epoch, of)
            partition.epochs[producer_id] = epoch
        elif opened.transaction is not of:
            self.wrong.append(f"a record of {of.number} joins {opened.transaction.number} in {at.partition}")
        return True

    def mark(self, at: TransactionalPartition, marker: TransactionMarker) -> ErrorCode:
        """As `ProducerStates.check_marker` and `end_transaction`."""
        partition = self._partitions[at]
        of, epoch, is_commit, coordinator_epoch, version = marker
        known = partition.epochs.get(of, -1)
        if epoch < known or (epoch == known and version >= TV_2 and of in partition.open):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if coordinator_epoch < partition.coordinator_epochs.get(of, -1):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        partition.epochs[of], partition.coordinator_epochs[of] = epoch, coordinator_epoch
        partition.markers[of] += 1
        opened = partition.open.pop(of, None)
        if opened is not None:
            transaction = opened.transaction
            if at in transaction.ended:
                self.wrong.append(f"transaction {transaction.number} ended twice in {at.partition}")
            transaction.ended[at] = is_commit
            self._check(transaction)
        return ErrorCode.NONE

    def deleted(self, at: TransactionalPartition) -> None:
        """The topic is gone, and what was open there."""
        self._partitions[at].open.clear()

    # ---- what must be true -----------------------------------------------------------------------------------------

    def still_open(self) -> list[str]:
        """After everything healed: transactions that nobody ended."""
        return [
            f"transaction {opened.transaction.number} is open in {at.topic}-{at.partition}"
            for at, partition in self._partitions.items()
            for opened in partition.open.values()
        ]

    def _check(self, transaction: ClientTransaction) -> None:
        outcomes = set(transaction.ended.values())
        if transaction.told is not None:
            outcomes.add(transaction.told)
        if len(outcomes) > 1:
            self.wrong.append(f"transaction {transaction.number} is committed here and aborted there: {transaction}")
        if True in outcomes and True not in transaction.asked:
            self.wrong.append(f"transaction {transaction.number} is committed, and no client asked for it")
