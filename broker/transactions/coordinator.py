"""The transaction coordinator of one broker: routes requests to shards, and acts on durable changes.

- A decision is answered when its record is committed (acks=all). Then its markers are sent until each is answered.
- After a leader change the next leader sends the markers of decided transactions, and aborts overdue ones (TX3).
- A completion that cannot be written is written later, by this leader or the next one.
- The services are: the marker sender, the time-outs, the expiry of ids, and the follow-up of loaded shards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from broker.config.groups import is_too_long
from broker.config.transactions import TransactionConfig
from broker.error_codes import ErrorCode
from broker.internal_topics.interfaces import InternalTopic, LogLimits
from broker.internal_topics.internal_log import InternalLog
from broker.internal_topics.led_shard import Shard
from broker.internal_topics.shard_lookup import ShardLookup
from broker.transactions import machine
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.machine import Expected, Reply, Step
from broker.transactions.marker_sender import MarkerSender
from broker.transactions.pending_markers import Ending
from broker.transactions.shard import Entry, TransactionShard
from broker.transactions.transaction import NO_TIME, TV_2, Transaction, TransactionState
from logformat.errors import Fenced, InvalidRequest, StorageFailed
from logformat.transaction_marker import TransactionMarker
from seams.clock import Clock
from seams.loop.tasks import Tasks, supervise
from seams.loop.turns import Turns, next_turn
from seams.rng import Rng

log = logging.getLogger(__name__)

TRANSACTIONS_TOPIC: Final = "__transaction_state"
_AGAIN_S: Final = 1.0
_OVERDUE_MS: Final = 60_000
_TIMED_OUT_AT_ONCE: Final = 200  # fences in one turn of the loop; each writes a record


class Listed(NamedTuple):
    transaction: Transaction
    age_ms: int


class Listing(NamedTuple):
    """The result of a search. `partitions`: the searched partitions of `__transaction_state`. A partition whose
    leadership began during the search is missing."""

    error: ErrorCode
    found: Sequence[Listed] = ()
    partitions: Sequence[int] = ()


class Metrics(NamedTuple):
    """Metrics of all shards here. Ages are in ms. `ending`: decided transactions with missing markers. `completion_s`:
    time from the request that decided to the last marker, summed over all `completed` transactions since the start.
    `overdue`: ids that hold a last stable offset for longer than any time-out allows, each with the reason.
    """

    ids: int
    ongoing: int
    oldest_ms: int
    ending: int
    markers_waiting: int
    oldest_ending_ms: int
    completed: int
    completion_s: float
    marker_requests: int
    marker_failures: int
    overdue: tuple[str, ...]


class TransactionCoordinator:
    """The coordinator of one broker. For a client's mistake a method does not raise: the reply has the error."""

    def __init__(
        self,
        topic: InternalTopic,
        clock: Clock,
        rng: Rng,
        config: TransactionConfig,
        tasks: Tasks,
        give_id: Callable[[], int],
        make_sender: Callable[[Callable[[Ending], None]], MarkerSender],
        *,
        topic_id_of: Callable[[str], UUID],
        keep_objects: Callable[[], None] = lambda: None,
        in_session: Callable[[], bool],
    ) -> None:
        """`give_id` returns a producer id that was never given before. `topic_id_of` returns the id of the topic that
        now has a name. `in_session` returns whether this broker's session excludes another coordinator (R25).
        """
        self._topic = topic
        self._clock = clock
        self._rng = rng
        self._config = config
        self._tasks = tasks
        self._give_id = give_id
        self._topic_id_of = topic_id_of
        self._in_session = in_session
        self._completed = 0
        self._completion_s = 0.0
        self._background: list[asyncio.Task[None]] = []
        self._loaded: list[TransactionShard] = []
        self._wake = asyncio.Event()
        self.log: InternalLog[TransactionShard] = InternalLog(
            TRANSACTIONS_TOPIC,
            clock,
            rng,
            LogLimits.of(config, config.request_timeout_ms),
            tasks,
            _report,
            self._make_shard,
            self._shard_loaded,
            keep_objects,
        )
        wait_s = config.request_timeout_ms / 1000
        self._lookup = ShardLookup(TRANSACTIONS_TOPIC, self.log, topic, in_session, wait_s)
        self.sender = make_sender(self._all_marked)

    # ---- start and stop --------------------------------------------------------------------------------------------

    def start(self) -> None:
        services = (
            ("transaction markers", self.sender.run),
            ("transaction time-outs", self._keep_timing_out),
            ("transaction expiry", self._keep_expiring),
            ("loaded transactions", self._keep_following_up),
        )
        for name, service in services:
            self._background.append(self._tasks.spawn(name, supervise(name, service, self._rng, _report)))

    async def close(self) -> None:
        """Refuse new requests, and wait for running appends. Snapshots are possible after this."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.log.close()

    def _make_shard(self, shard: Shard) -> TransactionShard:
        return TransactionShard(shard, self, self._topic_id_of, self._clock)

    def unloaded(self, shard: TransactionShard) -> None:
        """The shard's role ended. The next leader sends the markers."""
        self.sender.forget(shard)

    # ---- lookup ----------------------------------------------------------------------------------------------------

    async def find(self, transactional_id: str) -> ErrorCode:
        """Make sure that the id has a coordinator (FindCoordinator). The empty id also has a coordinator, which refuses
        its requests."""
        if is_too_long(transactional_id):
            return ErrorCode.INVALID_REQUEST
        return await self._lookup.find(transactional_id)

    def node_of(self, transactional_id: str) -> int:
        """The broker that coordinates the id by this broker's image; NO_LEADER if there is none."""
        return self._lookup.node_of(transactional_id)

    @property
    def partitions(self) -> int:
        """Number of partitions of `__transaction_state`."""
        return self._topic.partitions

    def coordinators(self) -> list[int] | None:
        """The brokers that lead partitions of the topic, by this broker's image. None if some partition has no leader.
        Empty if the topic does not exist."""
        return self._topic.leaders()

    def shard_of(self, transactional_id: str) -> tuple[TransactionShard | None, ErrorCode]:
        """The shard of the id, or the reason why it is not available now."""
        if not transactional_id or is_too_long(transactional_id):
            return None, ErrorCode.INVALID_REQUEST
        return self._lookup.shard_of(transactional_id)

    # ---- requests --------------------------------------------------------------------------------------------------

    async def init_producer_id(self, transactional_id: str, timeout_ms: int, expected: Expected | None) -> Reply:
        if not transactional_id or is_too_long(transactional_id):
            return Reply(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config.timeout_max_ms:
            return Reply(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        shard, error = self.shard_of(transactional_id)
        if shard is None:
            return Reply(error)
        entry = shard.entries.get(transactional_id)
        if entry is None and sum(len(one.entries) for one in self.log.all_ready()) >= self._config.ids_max:
            return Reply(ErrorCode.POLICY_VIOLATION)
        step = machine.init(
            entry.transaction if entry else None,
            transactional_id,
            timeout_ms,
            expected,
            self._clock.wall_ms(),
            self._give_id,
            is_pending=entry is not None and entry.is_pending,
        )
        return await self._perform(shard, transactional_id, step)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TransactionalPartition],
        client_version: int,
    ) -> ErrorCode:
        """Add partitions to the id's transaction. Before version 2 the client adds them itself. It waits here for the
        markers of its previous transaction, at most `add.partitions.to.txn.retry.backoff.ms`; a refused client would
        wait for the same time. In version 2 the partition's leader waits instead (`settled`), because a marker
        invalidates the leader's guard.
        """
        args = transactional_id, producer_id, producer_epoch, partitions, client_version
        error = await self._add_partitions(*args)
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and client_version < TV_2:
            await self.settled(transactional_id, self._config.add_retry_backoff_ms / 1000)
            error = await self._add_partitions(*args)
        return error

    async def settled(self, transactional_id: str, timeout_s: float) -> None:
        """Wait until the id's next transaction may begin, at most `timeout_s`. If the transaction may begin already,
        this waits for `timeout_s`, so that a refused caller does not retry without a pause."""
        shard, _ = self.shard_of(transactional_id)
        entry = None if shard is None else shard.entries.get(transactional_id)
        if entry is None or entry.is_settled:
            await asyncio.sleep(timeout_s)
        else:
            await entry.wait_settled(timeout_s)

    async def _add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TransactionalPartition],
        client_version: int,
    ) -> ErrorCode:
        shard, error = self.shard_of(transactional_id)
        if shard is None:
            return error
        if sum(one.open_partitions for one in self.log.all_ready()) + len(partitions) > self._config.partitions_max:
            return ErrorCode.POLICY_VIOLATION
        entry = shard.entries.get(transactional_id)
        step = machine.add_partitions(
            entry.transaction if entry else None,
            producer_id,
            producer_epoch,
            partitions,
            client_version,
            self._clock.wall_ms(),
            is_pending=entry is not None and entry.is_pending,
        )
        return (await self._perform(shard, transactional_id, step)).error

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TransactionalPartition],
    ) -> Mapping[TransactionalPartition, ErrorCode]:
        shard, error = self.shard_of(transactional_id)
        if shard is None:
            return dict.fromkeys(partitions, error)
        entry = shard.entries.get(transactional_id)
        found = machine.verify(entry.transaction if entry else None, producer_id, producer_epoch, partitions)
        return dict.fromkeys(partitions, found) if isinstance(found, ErrorCode) else found

    async def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        client_version: int,
        *,
        is_commit: bool,
        started_ms: int = NO_TIME,
    ) -> Reply:
        """End the id's transaction (EndTxn). `started_ms` identifies the transaction; NO_TIME stands for any ongoing
        one."""
        shard, error = self.shard_of(transactional_id)
        if shard is None:
            return Reply(error)
        entry = shard.entries.get(transactional_id)
        step = machine.end(
            entry.transaction if entry else None,
            producer_id,
            producer_epoch,
            client_version,
            self._clock.wall_ms(),
            self._give_id,
            is_commit=is_commit,
            is_pending=entry is not None and entry.is_pending,
            started_ms=started_ms,
        )
        return await self._perform(shard, transactional_id, step)

    async def abort(self, shard: TransactionShard, entry: Entry) -> ErrorCode:
        """Abort the ongoing transaction, and fence its producer (TX10)."""
        transaction = entry.transaction
        if transaction is None or transaction.state is not TransactionState.ONGOING:
            return ErrorCode.INVALID_TXN_STATE
        if entry.is_pending:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        step = machine.fence(transaction, self._clock.wall_ms(), self._give_id)
        return (await self._perform(shard, entry.transactional_id, step)).error

    def describe(self, transactional_id: str) -> tuple[ErrorCode, Transaction | None]:
        shard, error = self.shard_of(transactional_id)
        if shard is None:
            return error, None
        entry = shard.entries.get(transactional_id)
        if entry is None or entry.transaction is None:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, None
        return ErrorCode.NONE, entry.transaction

    async def listed(self, is_wanted: Callable[[Transaction], bool]) -> Listing:
        """The ids of all shards here. While a shard loads, the error is COORDINATOR_LOAD_IN_PROGRESS, because an
        incomplete list would look complete."""
        if self.log.is_loading:
            return Listing(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        now_ms, turns = self._clock.wall_ms(), Turns()
        found: list[Listed] = []
        shards = self.log.all_ready()
        for shard in shards:
            for entry in list(shard.entries.values()):
                transaction = entry.transaction
                if transaction is not None and is_wanted(transaction):
                    found.append(Listed(transaction, now_ms - transaction.started_ms))
                if turns.over():
                    await next_turn()
        if any(not shard.is_ready for shard in shards):
            return Listing(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if not self._in_session():
            return Listing(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # another broker may lead them now
        return Listing(ErrorCode.NONE, found, sorted(shard.partition for shard in shards))

    # ---- changes ---------------------------------------------------------------------------------------------------

    async def _perform(self, shard: TransactionShard, transactional_id: str, step: Step) -> Reply:
        if isinstance(step, Reply):
            return step
        entry = shard.entry(transactional_id)
        entry.began_s = self._clock.monotonic_s()
        written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._write(shard, entry, step.to, partial(_tell, written))
        try:
            async with asyncio.timeout(self._config.request_timeout_ms / 1000):
                failure = await written
        except TimeoutError:
            return Reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # the write continues
        return step.reply if failure is None else Reply(_code_of(failure))

    def _write(
        self, shard: TransactionShard, entry: Entry, to: Transaction, told: Callable[[Exception | None], None]
    ) -> None:
        def then(failure: Exception | None) -> None:
            if failure is None:
                self._applied(shard, entry)
            told(failure)

        shard.write(entry, to, then)

    def _applied(self, shard: TransactionShard, entry: Entry) -> None:
        """A state is durable: send its markers, or assign a new producer id if the state needs one. A partition may
        still ask for the outcome of a commit: such a state is marked, and keeps its producer id until the next
        InitProducerId (TX36)."""
        transaction = entry.transaction
        if transaction is None or shard.is_dropped:
            return
        if transaction.state.is_prepared:
            marker = TransactionMarker(
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.state is TransactionState.PREPARE_COMMIT,
                shard.coordinator_epoch,
                transaction.client_version,
            )
            self.sender.add(Ending(shard, entry, transaction, marker, self._clock.monotonic_s()))
        elif transaction.needs_fresh_id and not entry.is_pending:
            now_ms, to = self._clock.wall_ms(), transaction
            if transaction.state is TransactionState.ONGOING:
                to = machine.fence(transaction, now_ms, self._give_id).to
            elif not machine.keeps_outcome(transaction):
                to = machine.fresh(transaction, self._give_id(), now_ms)
            elif entry.is_marked:
                return
            self._write(shard, entry, to, partial(self._again, shard, entry))

    def _again(self, shard: TransactionShard, entry: Entry, failure: Exception | None) -> None:
        """Handle the result of a change that the coordinator began itself. A failed change is repeated later, until the
        role ends.
        """
        if failure is not None and not shard.is_dropped:
            asyncio.get_running_loop().call_later(_AGAIN_S, self._follow_up, shard, entry)

    def _follow_up(self, shard: TransactionShard, entry: Entry) -> None:
        if shard.is_ready and shard.entries.get(entry.transactional_id) is entry and not entry.is_pending:
            self._applied(shard, entry)

    def _all_marked(self, ending: Ending) -> None:
        """Write the completion: every partition has the marker."""
        shard, entry = ending.shard, ending.entry
        if not ending.is_current:
            return
        to = machine.complete(ending.decided, self._clock.wall_ms())

        def then(failure: Exception | None) -> None:
            if failure is None:
                self.sender.completed(ending)
                self._completed += 1
                self._completion_s += self._clock.monotonic_s() - entry.began_s
            elif shard.is_ready:
                # Every partition has its marker already: only the record is missing.
                log.warning("the transaction of %r is not complete yet: %s", entry.transactional_id, failure)
                asyncio.get_running_loop().call_later(_AGAIN_S, self._complete_again, ending)

        self._write(shard, entry, to, then)

    def _complete_again(self, ending: Ending) -> None:
        if ending.shard.is_ready:
            self._all_marked(ending)

    # ---- services --------------------------------------------------------------------------------------------------

    def _shard_loaded(self, shard: TransactionShard) -> None:
        self._loaded.append(shard)
        self._wake.set()

    async def _keep_following_up(self) -> None:
        """For loaded shards, send the markers of decided transactions, and assign new producer ids after a loss."""
        turns = Turns(200)
        while True:
            self._wake.clear()
            loaded, self._loaded = self._loaded, []
            for shard in loaded:
                for entry, found in [(entry, entry.transaction) for entry in shard.entries.values()]:
                    if entry.transaction is found:  # otherwise the write of the newer state has sent its markers
                        entry.began_s = self._clock.monotonic_s()
                        self._follow_up(shard, entry)
                    if turns.over():
                        await next_turn()
            if not self._loaded:
                await self._wake.wait()

    async def _keep_timing_out(self) -> None:
        while True:
            await asyncio.sleep(self._config.abort_interval_ms / 1000)
            await self.abort_timed_out()

    async def abort_timed_out(self) -> None:
        turns = Turns(_TIMED_OUT_AT_ONCE)
        for shard in self.log.all_ready():
            for entry in list(shard.ongoing.values()):
                transaction = entry.transaction
                now_ms = self._clock.wall_ms()
                if transaction is None or entry.is_pending or not shard.is_ready:
                    continue
                age_ms = int((self._clock.monotonic_s() - entry.ongoing_s) * 1000)
                if machine.is_timed_out(transaction, now_ms, age_ms):
                    log.info("transaction of %r timed out after %d ms", entry.transactional_id, transaction.timeout_ms)
                    entry.began_s = self._clock.monotonic_s()
                    self._write(shard, entry, machine.fence(transaction, now_ms, self._give_id).to, lambda _: None)
                    if turns.over():
                        await next_turn()

    async def _keep_expiring(self) -> None:
        while True:
            await asyncio.sleep(self._config.expiry_interval_ms / 1000)
            await self.expire_ids()

    async def expire_ids(self) -> None:
        """Write tombstones for ids that were idle too long (TX13)."""
        turns = Turns()
        for shard in self.log.all_ready():
            for entry in list(shard.entries.values()):
                if turns.over():
                    await next_turn()
                transaction = entry.transaction
                if transaction is None or entry.is_pending or not shard.is_ready:
                    continue
                if machine.is_expired(transaction, self._clock.wall_ms(), self._config.id_expiration_ms):
                    shard.write(entry, None, lambda _: None)

    # ---- metrics ---------------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        shards = self.log.all_ready()
        now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic_s()
        began = [
            (now_ms - entry.transaction.started_ms, entry.transactional_id)
            for shard in shards
            for entry in shard.ongoing.values()
            if entry.transaction is not None
        ]
        pending = self.sender.pending
        ages = [((now_s - ending.began_s) * 1000, ending) for ending in pending.endings()]
        late_ms = self._config.timeout_max_ms + _OVERDUE_MS
        overdue = [f"{name} (ongoing)" for age_ms, name in began if age_ms > late_ms]
        overdue += [
            f"{ending.entry.transactional_id} ({len(ending.left)} markers missing, one for "
            f"{next(iter(ending.left)).topic}-{next(iter(ending.left)).partition})"
            for age_ms, ending in ages
            if age_ms > _OVERDUE_MS and ending.left
        ]
        return Metrics(
            ids=sum(len(shard.entries) for shard in shards),
            ongoing=len(began),
            oldest_ms=max((age_ms for age_ms, _ in began), default=0),
            ending=len(pending),
            markers_waiting=pending.partitions,
            oldest_ending_ms=int(max((age_ms for age_ms, _ in ages), default=0)),
            completed=self._completed,
            completion_s=self._completion_s,
            marker_requests=self.sender.sent,
            marker_failures=self.sender.failures,
            overdue=tuple(overdue),
        )


def _tell(future: asyncio.Future[Exception | None], failure: Exception | None) -> None:
    if not future.done():
        future.set_result(failure)


def _code_of(failure: Exception) -> ErrorCode:
    """The error code for a failed append, as Kafka translates it for transactions. It makes the client look for the
    coordinator again."""
    if isinstance(failure, Fenced | StorageFailed):
        return ErrorCode.NOT_COORDINATOR
    return (
        ErrorCode.UNKNOWN_SERVER_ERROR if isinstance(failure, InvalidRequest) else ErrorCode.COORDINATOR_NOT_AVAILABLE
    )


def _report(name: str, failure: BaseException) -> None:
    log.error("%s failed and is started again: %s", name, failure, exc_info=failure)
