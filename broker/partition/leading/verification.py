"""Guards of the first batch of a transaction between its verification and its append (TX4, TX40). Pure.

A handler takes a guard, asks the coordinator, and appends with the guard. A marker of that producer (a fence also
writes one) or the end of the leadership invalidates the guard, because the confirmed transaction may have ended. A
batch of an open transaction needs no guard.
"""

from __future__ import annotations


class VerificationGuard:
    """The guard of one request. `adds`: the partition is added to the transaction (transaction version 2), so a
    producer that is unknown here begins at sequence 0."""

    __slots__ = ("adds", "is_void", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int, *, adds: bool) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.adds = adds
        self.is_void = False


class VerificationGuards:
    """The guards of one partition. Each request in progress has one guard."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, list[VerificationGuard]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._guards.values()))

    def begin(self, producer_id: int, producer_epoch: int, *, adds: bool) -> VerificationGuard:
        """A request asks the coordinator now. The request calls `end` in every case."""
        guard = VerificationGuard(producer_id, producer_epoch, adds=adds)
        self._guards.setdefault(producer_id, []).append(guard)
        return guard

    def end(self, guard: VerificationGuard) -> None:
        """The request appended, or gave up."""
        guard.is_void = True
        of_producer = self._guards.get(guard.producer_id)
        if of_producer is not None and guard in of_producer:
            of_producer.remove(guard)
            if not of_producer:
                del self._guards[guard.producer_id]

    def void(self, producer_id: int) -> None:
        """A marker of the producer was written."""
        for guard in self._guards.pop(producer_id, ()):
            guard.is_void = True

    def void_all(self) -> None:
        """The leadership ended."""
        for producer_id in tuple(self._guards):
            self.void(producer_id)
