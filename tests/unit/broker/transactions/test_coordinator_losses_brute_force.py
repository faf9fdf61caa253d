"""As `test_coordinator_brute_force`, with a coordinator that loses its log and begins with a snapshot: no transaction
is committed that its client did not commit, and what is answered after the loss holds in every partition."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from broker.transactions.transaction import TV_2
from tests.support.transactions.ledger import ClientTransaction, Ledger
from tests.unit.broker.transactions.test_coordinator_brute_force import CoordinatorMachine


class LossyLedger(Ledger):
    """A loss may split a transaction that began before it, if no answer came after it (G16). It commits none."""

    def __init__(self) -> None:
        super().__init__()
        self.before_the_loss: set[int] = set()

    def lose(self) -> None:
        self.before_the_loss.update(of.number for of in self.transactions)

    def still_open(self) -> list[str]:
        """The partition's leader ends what a coordinator lost (`OpenEnded`), which is not here."""
        return [
            f"transaction {opened.transaction.number} is open in {at.topic}-{at.partition}"
            for at, partition in self._partitions.items()
            for opened in partition.open.values()
            if opened.transaction.number not in self.before_the_loss
        ]

    def told(self, transaction: ClientTransaction, *, is_commit: bool) -> None:
        if transaction.number in self.before_the_loss and is_commit:
            self.wrong.append(f"transaction {transaction.number} began before a loss, and its commit is answered after")
        super().told(transaction, is_commit=is_commit)

    def _check(self, transaction: ClientTransaction) -> None:
        if transaction.number not in self.before_the_loss:
            super()._check(transaction)
        elif True in transaction.ended.values() and True not in transaction.asked:
            self.wrong.append(f"transaction {transaction.number} is committed, and no client asked for it")


class LossyCoordinatorMachine(CoordinatorMachine):
    """Version 2 only: before it, the epoch does not tell a transaction from the next one (transactions.md, Limits)."""

    snapshot: tuple[int, bytes] | None = None

    @initialize(
        pauses=st.lists(st.sampled_from([0.003, 0.05, 0.3]), min_size=5, max_size=5),
        writes_first=st.booleans(),
    )
    def begin_lossy(self, pauses: list[float], writes_first: bool) -> None:
        self.run(self._begin([TV_2] * 5, pauses, writes_first))
        self.world.ledger = LossyLedger()

    def begin(self, *_: Any, **__: Any) -> None:
        """Not of this machine."""

    @rule()
    def take_snapshot(self) -> None:
        async def take() -> None:
            for shard in self.world.coordinator.log.shards():
                if shard.is_ready:
                    self.snapshot = await shard.snapshot()

        self.run(take())

    @rule(same=st.booleans())
    def lose_the_log(self, same: bool) -> None:
        world, snapshot = self.world, self.snapshot
        if snapshot is None:
            return

        async def lose() -> None:
            world.bury()
            world.coordinator.log.resign(0)
            world.ledger.lose()  # type: ignore[attr-defined]
            memory = world.memory
            memory.snapshots[0], memory.batches[0] = snapshot, []
            memory.starts[0] = memory.ends[0] = max(memory.ends[0], snapshot[0]) + 10
            world.move(same=same, late=False)

        self.snapshot = None
        self.run(lose())


LossyCoordinatorMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
test_no_transaction_is_committed_by_a_loss = LossyCoordinatorMachine.TestCase
