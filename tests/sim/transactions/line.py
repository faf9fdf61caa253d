"""A line of producers of one transactional id: each transaction is committed, aborted, or left in some worse way.

Owns what becomes of a transaction, drawn from the seed: its producer commits or aborts it, dies in it, sleeps beyond
its time-out, or is a zombie that goes on beside its successor. Always true: each transaction goes into the history
once, also when the run ends in the middle of it; one producer follows another, beside it only zombies act. Must not
know faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tests.sim.actors import Stage
from tests.sim.checks.history import Outcome, Place
from tests.sim.checks.transactions import STRAY, Ended
from tests.sim.transactions.session import MustAbort, Over, Session, Transaction


class Fate(Enum):
    """Of a transaction that nothing hinders."""

    COMMIT = "commit"
    ABORT = "abort"
    DIE = "dies"
    ZOMBIE = "zombie"
    SLEEP = "sleeps"


FATES = (*(Fate.COMMIT,) * 10, *(Fate.ABORT,) * 3, *(Fate.DIE,) * 2, *(Fate.ZOMBIE,) * 2, Fate.SLEEP)
CLOSES_S = 60.0
"""After the last fault every id can be initialized within this."""


@dataclass(frozen=True, slots=True)
class LineShape:
    """`version` is that of transactions. `timeout_ms`: of a transaction, as the coordinator is told. `lives`: places of
    topics that are deleted and made again meanwhile. `keys`: of compacted topics, in which each batch has one record;
    0: they are not compacted."""

    name: str
    version: int
    timeout_ms: int
    pace_s: float
    places: tuple[Place, ...]
    lives: frozenset[Place] = frozenset()
    keys: int = 0


class Line:
    """`is_judged`: whether a fence that nothing explains is a finding. `told_to_main`: places whose batches go into the
    history as those of other producers do."""

    def __init__(
        self, stage: Stage, shape: LineShape, hits: Counter[str], told_to_main: Sequence[Place], *, is_judged: bool
    ) -> None:
        self._stage, self._shape, self._hits = stage, shape, hits
        self._told_to_main = frozenset(told_to_main)
        self._is_judged = is_judged and not shape.lives  # sequences and transactions end with a topic
        self._rng = stage.rng(f"line {shape.name}")
        self._number = 0
        self._sessions = 0
        self._coordinators: dict[str, str] = {}
        self._zombies: list[asyncio.Task[None]] = []
        self._current: Session | None = None
        self._may_be_fenced = False

    @property
    def name(self) -> str:
        return self._shape.name

    def _session(self) -> Session:
        stage, shape = self._stage, self._shape
        self._sessions += 1
        session = Session(
            stage,
            stage.rng(f"session {shape.name}.{self._sessions}"),
            shape.name,
            shape.version,
            shape.timeout_ms,
            shape.places[0],
            self._told_to_main.__contains__,
            self._hits,
            self._coordinators,
        )
        session.name, session.lives, session.keys = f"{shape.name}.{self._sessions}", shape.lives, shape.keys
        return session

    async def run(self) -> None:
        """Until told to stop, and the transaction is over."""
        try:
            while not self._stage.stopping.is_set():
                session = await self._next()
                if session is not None:
                    while not self._stage.stopping.is_set() and await self._transact(session):
                        await asyncio.sleep(self._shape.pace_s * self._rng.uniform(0.2, 1.8))
        finally:
            for zombie in self._zombies:
                zombie.cancel()
            await asyncio.gather(*self._zombies, return_exceptions=True)

    async def close(self) -> bool:
        """Fence whoever was last, and with it end what is open; whether that was answered in time."""
        try:
            await self._session().begin(patience_s=CLOSES_S)
        except Over:
            return False
        return True

    async def _next(self, before: Session | None = None) -> Session | None:
        """A producer that has its id; None: nobody gave it one in time."""
        session = self._session()
        try:
            await session.begin()
        except Over:
            self._may_be_fenced = True  # what was asked for may still come
            await asyncio.sleep(self._rng.uniform(0.1, 0.5))
            return None
        self._may_be_fenced |= session.explains_fence
        for old in (self._current, before):
            if old is not None and old.fenced_s is None:
                old.fenced_s = self._stage.now()
        self._current = session
        return session

    async def _transact(self, session: Session) -> bool:
        """One transaction; whether its producer goes on."""
        rng, stage = self._rng, self._stage
        fate = FATES[rng.randrange(len(FATES))]
        self._number += 1
        transaction = Transaction(self._number, stage.now())
        outcome, how, goes_on = Outcome.FAIL, fate.value, True
        try:
            await self._fill(session, transaction, rng.randrange(4) != 0)
            match fate:
                case Fate.DIE:
                    self._hits["txn producer died"] += 1
                    if rng.randrange(3) == 0:
                        await asyncio.sleep(rng.uniform(0.0, self._shape.timeout_ms / 500))
                    return False
                case Fate.ZOMBIE:
                    self._zombies.append(asyncio.create_task(self._haunt(session, transaction)))
                    how = ""  # it tells of itself
                    await asyncio.sleep(rng.uniform(0.0, 0.3))
                    return False
                case Fate.SLEEP:
                    await asyncio.sleep(self._shape.timeout_ms / 1000 * rng.uniform(0.8, 1.6))
            outcome = await self._end(session, transaction, is_commit=fate is not Fate.ABORT)
            if outcome is not Outcome.OK:
                how, goes_on = f"{how}, {session.over}", False
                self._ended_badly(session, transaction, fate, session.over)
            if fate is Fate.ABORT and outcome is Outcome.OK:
                outcome = Outcome.FAIL
        except Over as over:
            how, goes_on = f"{how}, over: {over.why}", False
            self._ended_badly(session, transaction, fate, over.why)
        except MustAbort as why:
            how = f"{how}, must abort: {why}"
            self._hits["txn must abort"] += 1
            self._unexplained(session, transaction, str(why))
            goes_on = await self._end(session, transaction, is_commit=False) is Outcome.OK
        except asyncio.CancelledError:
            if transaction.decided_s < float("inf"):
                outcome = Outcome.INFO
            raise
        finally:
            if how:
                self._tell(transaction, outcome, how)
        return goes_on and await self._settled(session, transaction, outcome)

    async def _settled(self, session: Session, transaction: Transaction, outcome: Outcome) -> bool:
        """Ready for the next transaction: nothing of the last one may come into it."""
        rng, stage = self._rng, self._stage
        try:
            if rng.randrange(6) == 0:
                place = self._shape.places[rng.randrange(len(self._shape.places))]
                stray = Transaction(transaction.number, stage.now(), decided_s=transaction.decided_s)
                try:
                    self._hits[f"txn batch after the end {await session.stray(stray, place)}"] += 1
                finally:
                    stray.parts += stray.unsure
                    self._tell(stray, Outcome.INFO if outcome is Outcome.OK else Outcome.FAIL, STRAY)
            if self._shape.version == 1 and session.is_unsure:
                await session.begin(goes_on=True)
                self._may_be_fenced |= session.explains_fence
        except Over as over:
            self._unexplained(session, None, over.why)
            return False
        session.is_unsure = False
        return True

    async def _fill(self, session: Session, transaction: Transaction, has_offset: bool) -> None:
        """Records to some places, some to one twice, and a group's offset among them."""
        rng = self._rng
        wanted = [place for place in self._shape.places if rng.randrange(3)] or [self._shape.places[0]]
        if rng.randrange(4) == 0:
            wanted.append(wanted[0])
        offset_at = rng.randrange(len(wanted) + 1) if has_offset else -1
        for at, place in enumerate(wanted):
            if at == offset_at:
                await session.commit_offset(transaction, self._number)
            await session.add(transaction, place)
            await session.write(transaction, place, 1 + rng.randrange(4))
            if rng.randrange(3) == 0:
                await asyncio.sleep(self._shape.pace_s * rng.uniform(0.1, 0.8))
        if offset_at == len(wanted):
            await session.commit_offset(transaction, self._number)

    async def _end(self, session: Session, transaction: Transaction, *, is_commit: bool) -> Outcome:
        outcome = await session.end(transaction, is_commit=is_commit)
        if outcome is Outcome.OK:
            self._hits[f"txn {'committed' if is_commit else 'aborted'}"] += 1
        elif is_commit and outcome is Outcome.INFO:
            self._hits["txn commit unanswered"] += 1
        return outcome

    async def _haunt(self, session: Session, transaction: Transaction) -> None:
        """The transaction of a producer that does not know of its successor."""
        outcome, how = Outcome.FAIL, "zombie"
        try:
            for _ in range(self._rng.randrange(4)):
                await asyncio.sleep(self._shape.pace_s * self._rng.uniform(0.1, 1.0))
                place = self._shape.places[self._rng.randrange(len(self._shape.places))]
                await session.add(transaction, place)
                await session.write(transaction, place, 1)
            await asyncio.sleep(self._shape.pace_s * self._rng.uniform(0.0, 1.0))
            outcome = await self._end(session, transaction, is_commit=True)
            if outcome is not Outcome.OK:
                how = f"zombie, {session.over}"
                self._hits["txn zombie fenced"] += outcome is Outcome.FAIL
        except (Over, MustAbort) as refused:
            self._hits["txn zombie fenced"] += 1
            how = f"zombie, {refused}"
        except asyncio.CancelledError:
            if transaction.decided_s < float("inf"):
                outcome = Outcome.INFO
            raise
        finally:
            self._tell(transaction, outcome, how)

    def _ended_badly(self, session: Session, transaction: Transaction, fate: Fate, why: str) -> None:
        if "unanswered" not in why:
            is_late = self._is_late(transaction)
            self._hits["txn timed out" if is_late else "txn fenced"] += 1
        self._unexplained(session, transaction, why)

    def _is_late(self, transaction: Transaction) -> bool:
        return self._stage.now() - transaction.began_s > self._shape.timeout_ms / 1000

    def _unexplained(self, session: Session, transaction: Transaction | None, why: str) -> None:
        """Nobody fences, or forgets, a producer for nothing."""
        if "unanswered" in why or not self._is_judged or self._may_be_fenced or self._stage.cluster.losses:
            return
        if transaction is not None and (self._is_late(transaction) or transaction.waits):
            return
        if session.is_unsure or session.fenced_s is not None:
            return
        self._stage.unexpected.append(
            f"{session.name} {session.producer} was refused with {why} at {self._stage.now():.3f} s for nothing: "
            f"{transaction}"
        )

    def _tell(self, transaction: Transaction, outcome: Outcome, how: str) -> None:
        stage, shape = self._stage, self._shape
        parts = transaction.parts if outcome is not Outcome.FAIL else [*transaction.parts, *transaction.unsure]
        stage.history.add(
            Ended(
                shape.name,
                transaction.number,
                shape.version,
                tuple(parts),
                transaction.group_offset,
                transaction.began_s,
                transaction.decided_s,
                stage.now(),
                outcome,
                how,
            )
        )
