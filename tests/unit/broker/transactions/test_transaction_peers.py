"""The doors of partitions' leaders to coordinators: one here, one on another broker, through the wire."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.internal_topics.partitioning import partition_of
from broker.transactions.interfaces import Decision
from broker.transactions.peers import _Found, decision_of
from broker.transactions.transaction import EPOCH_MAX, TV_0, TV_2, TransactionState
from broker.wire import messages as wire
from broker.wire.message import Message
from seams.loop.turns import Turns
from tests.support.transactions.coordinator_pair import AT_1, AT_2, CoordinatorPair

NONE = ErrorCode.NONE
State = TransactionState
both = pytest.mark.parametrize("of", [AT_1, AT_2], ids=["here", "there"])


async def ready() -> CoordinatorPair:
    pair = CoordinatorPair()
    assert [partition_of(of, 2) for of in (AT_1, AT_2)] == [0, 1]
    await pair.ready()
    return pair


# ---- verification ----------------------------------------------------------------------------------------------------


@both
async def test_a_partition_is_verified_and_added(of: str) -> None:
    pair = await ready()
    held, other = pair.world.partition(0), pair.world.partition(1)
    pid, epoch = await pair.begin(of, held, TV_2)
    verify = pair.verifier.verify
    assert await verify(of, pid, epoch, [held, other], add=False) == {
        held: NONE,
        other: ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert await verify(of, pid, epoch + 1, [held], add=False) == {held: ErrorCode.PRODUCER_FENCED}
    assert await verify(of, pid + 1, epoch, [held], add=True) == {held: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert await verify(of, pid, epoch, [other], add=True) == {other: NONE}
    assert await verify(of, pid, epoch, [held, other], add=False) == dict.fromkeys([held, other], NONE)
    await pair.close()


async def test_a_verification_without_an_answer_is_a_retriable_error() -> None:
    pair = await ready()
    at = pair.world.partition(0)
    pid, epoch = await pair.begin(AT_2, at, TV_2)
    pair.lost.add(2)
    assert await pair.verifier.verify(AT_2, pid, epoch, [at], add=False) == {at: ErrorCode.NETWORK_EXCEPTION}
    pair.lost.clear()
    pair.gone.add(2)
    assert await pair.verifier.verify(AT_2, pid, epoch, [at], add=False) == {at: ErrorCode.NETWORK_EXCEPTION}
    del pair.led[1]
    missing = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await pair.verifier.verify(AT_2, pid, epoch, [at], add=True) == {at: missing}
    await pair.close()


async def test_the_next_transaction_waits_for_the_markers_and_no_longer() -> None:
    """The wait ends with the completion where the coordinator is here, by the time-out elsewhere or without one."""
    pair = await ready()
    at, loop = pair.world.partition(0), asyncio.get_running_loop()

    async def waited(of: str) -> float:
        began = loop.time()
        await pair.verifier.settled(of, 0.02)
        return loop.time() - began

    pid, epoch = await pair.begin(AT_1, at, TV_2)
    assert await waited(AT_1) == pytest.approx(0.02)  # refused all the same, it must not ask without a pause
    pair.world.held = asyncio.Event()
    assert (await pair.of(AT_1).end(AT_1, pid, epoch, TV_2, is_commit=True)).error is NONE
    assert await pair.verifier.verify(AT_1, pid, epoch + 1, [at], add=True) == {at: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert await waited(AT_1) == pytest.approx(0.02)
    assert await waited(AT_2) == pytest.approx(0.02)
    both_wait = asyncio.gather(waited(AT_1), waited(AT_1))
    await asyncio.sleep(0.003)
    pair.world.held.set()
    assert max(await both_wait) < 0.01
    assert await pair.verifier.verify(AT_1, pid, epoch + 1, [at], add=True) == {at: NONE}
    await pair.close()


async def test_a_topic_made_again_is_not_added_for_the_one_before() -> None:
    """TX39."""
    pair = await ready()
    at = pair.world.partition(0)
    pid, epoch = await pair.begin(AT_2, at, TV_2)
    before = at._replace(topic_id=pair.world.partition(0, topic=2).topic_id)
    found = await pair.verifier.verify(AT_2, pid, epoch, [before], add=True)
    assert found == {before: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    await pair.close()


# ---- outcomes --------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("version", [TV_0, TV_2])
async def test_an_ongoing_transaction_is_aborted_and_its_producer_fenced(of: str, version: int) -> None:
    pair = await ready()
    at = pair.world.partition(0)
    pid, epoch = await pair.begin(of, at, version)
    assert await pair.outcomes.decide(at, pid, epoch, aborts=False) is Decision.ONGOING
    assert pair.state(of) == "Ongoing"
    assert await pair.outcomes.decide(at, pid, epoch, aborts=True) is Decision.ABORTED
    await pair.world.settle()
    assert pair.state(of) == "CompleteAbort"
    late = await pair.of(of).end(of, pid, epoch, TV_0, is_commit=True)
    assert late.error is ErrorCode.PRODUCER_FENCED
    await pair.close()


@both
@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_decision_is_told_before_and_after_its_markers(of: str, is_commit: bool) -> None:
    pair = await ready()
    at = pair.world.partition(0)
    pid, epoch = await pair.begin(of, at, TV_2)
    pair.world.held = asyncio.Event()
    assert (await pair.of(of).end(of, pid, epoch, TV_2, is_commit=is_commit)).error is NONE
    expected = Decision.COMMITTED if is_commit else Decision.ABORTED
    assert await pair.outcomes.decide(at, pid, epoch, aborts=True) is expected
    pair.world.held.set()
    await pair.world.settle()
    assert await pair.outcomes.decide(at, pid, epoch, aborts=True) is expected
    assert await pair.outcomes.decide(at, pid, epoch - 1, aborts=True) is Decision.UNKNOWN
    assert await pair.outcomes.decide(at, pid + 77, 0, aborts=True) is Decision.UNKNOWN
    await pair.close()


async def test_without_the_answer_of_every_coordinator_nothing_is_decided() -> None:
    """TX31: what no coordinator knows is aborted, so each must have answered."""
    pair = await ready()
    at = pair.world.partition(0)
    pair.lost.add(2)
    assert await pair.outcomes.decide(at, 1, 0, aborts=True) is None
    assert not await pair.outcomes.abort_ongoing(at)
    pair.lost.clear()
    pair.gone.add(2)
    assert await pair.outcomes.decide(at, 1, 0, aborts=True) is None
    pair.gone.clear()
    assert await pair.outcomes.decide(at, 1, 0, aborts=True) is Decision.UNKNOWN
    pair.by_node[2].log.resign(1)  # the image still says that it leads
    assert await pair.outcomes.decide(at, 1, 0, aborts=True) is None
    del pair.led[1]
    assert await pair.outcomes.decide(at, 1, 0, aborts=True) is None
    await pair.close()


@both
async def test_after_a_gap_the_ongoing_ones_of_the_partition_are_aborted(of: str) -> None:
    """TX32: those that have it, and no others."""
    pair = await ready()
    at, other = pair.world.partition(0), pair.world.partition(1)
    await pair.begin(of, at, TV_2)
    spared = of + "aa"  # another id of the same coordinator
    assert pair.of(spared) is pair.of(of)
    await pair.begin(spared, other, TV_2)
    assert await pair.outcomes.abort_ongoing(at)
    await pair.world.settle()
    assert (pair.state(of), pair.state(spared)) == ("CompleteAbort", "Ongoing")
    await pair.close()


@both
@pytest.mark.parametrize("next_one", ["ongoing", "none"])
async def test_an_abort_ends_no_later_transaction(of: str, next_one: str) -> None:
    """Regression: the answer about an ongoing transaction came, its client committed it, and began the next one with
    the same epoch (version 1); the abort that was meant for the first ended the second, or took the epoch of a producer
    that had nothing open."""
    pair = await ready()
    at, coordinator = pair.world.partition(0), pair.of(of)
    pid, epoch = await pair.begin(of, at, TV_0)
    moved = asyncio.Event()

    async def move_on() -> None:
        """In one turn of the virtual clock: the starts are in the same ms as far as they can be."""
        assert (await coordinator.end(of, pid, epoch, TV_0, is_commit=True)).error is NONE
        await pair.world.settle(0.1)
        if next_one == "ongoing":
            assert await coordinator.add_partitions(of, pid, epoch, [at], TV_0) is NONE
        moved.set()

    if of == AT_2:

        async def before_the_end(request: Message) -> None:
            if isinstance(request, wire.EndTxnRequest):
                await move_on()

        pair.when_arrived = before_the_end
    else:
        ask_there = pair.outcomes._list

        async def listed(*asked: object) -> object:
            rows = await ask_there(*asked)  # type: ignore[arg-type]
            if not moved.is_set():
                await move_on()
            return rows

        pair.outcomes._list = listed  # type: ignore[method-assign,assignment]
    assert await pair.outcomes.decide(at, pid, epoch, aborts=True) is None
    pair.when_arrived = None
    await pair.world.settle()
    assert moved.is_set()
    assert pair.state(of) == ("Ongoing" if next_one == "ongoing" else "CompleteCommit")
    found = coordinator.describe(of)[1]
    assert found is not None and found.producer_epoch == epoch
    await pair.close()


async def test_a_shard_that_loads_while_ids_are_listed_is_not_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a list covered a partition of `__transaction_state` that was led since its ids were looked at; what
    became of their transactions seemed unknown, and a committed one would be aborted."""
    pair = await ready()
    local, at = pair.by_node[1], pair.world.partition(0)
    pid, epoch = await pair.begin(AT_2, at, TV_2)
    assert (await pair.of(AT_2).end(AT_2, pid, epoch, TV_2, is_commit=True)).error is NONE
    for number in range(200):
        if partition_of(f"n{number}", 2) == 0:
            assert (await local.init_producer_id(f"n{number}", 60_000, None)).error is NONE
    monkeypatch.setattr("broker.transactions.coordinator.Turns", lambda: Turns(1))
    listing = asyncio.create_task(local.listed(lambda _: True))
    await asyncio.sleep(0)
    pair.by_node[2].log.resign(1)
    local.log.lead(pair.world.memory.shard_log(1, 2))
    await local.log.wait_loaded()
    assert not listing.done(), "the list ended before: this test shows nothing"
    error, found, partitions = await listing
    assert error is NONE and AT_2 not in {one.transaction.transactional_id for one in found}
    assert partitions == [0]
    pair.led[1] = 1
    assert await pair.outcomes.decide(at, pid, epoch, aborts=True) is Decision.COMMITTED
    await pair.close()


@both
@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_decision_that_used_up_the_epochs_is_told(of: str, is_commit: bool) -> None:
    """Its completion has the next producer id: a leader that asked by the one it knows heard nothing, and aborted what
    was committed."""
    pair = await ready()
    at = pair.world.partition(0)
    pid, _ = await pair.begin(of, at, TV_2)
    shard, _ = pair.of(of).shard_of(of)
    assert shard is not None
    entry = shard.entries[of]
    assert entry.transaction is not None
    entry.transaction = replace(entry.transaction, producer_epoch=EPOCH_MAX - 1)
    reply = await pair.of(of).end(of, pid, EPOCH_MAX - 1, TV_2, is_commit=is_commit)
    assert reply.error is NONE and reply.producer_id != pid and reply.producer_epoch == 0
    await pair.world.settle()
    expected = Decision.COMMITTED if is_commit else Decision.ABORTED
    assert await pair.outcomes.decide(at, pid, EPOCH_MAX - 1, aborts=True) is expected
    assert await pair.outcomes.decide(at, pid, EPOCH_MAX - 2, aborts=True) is Decision.UNKNOWN
    await pair.close()


FOUND = _Found(1, "tx", 7, 5, State.ONGOING, TV_2, True, 1_000, -1)
C, A, ON, U = Decision.COMMITTED, Decision.ABORTED, Decision.ONGOING, Decision.UNKNOWN


@pytest.mark.parametrize(
    ("state", "version", "expected"),
    [
        # what is open in the partition has the epoch before the coordinator's, the same, the one after
        (State.EMPTY, TV_2, (U, U, U)),
        (State.ONGOING, TV_2, (U, ON, U)),
        (State.ONGOING, TV_0, (U, ON, U)),
        (State.PREPARE_COMMIT, TV_2, (C, U, U)),
        (State.PREPARE_ABORT, TV_2, (A, U, U)),
        (State.COMPLETE_COMMIT, TV_2, (C, U, U)),
        (State.COMPLETE_ABORT, TV_2, (A, U, U)),
        (State.PREPARE_COMMIT, TV_0, (U, C, U)),
        (State.PREPARE_ABORT, TV_0, (U, A, U)),
        (State.COMPLETE_COMMIT, TV_0, (U, U, U)),
        (State.COMPLETE_ABORT, TV_0, (U, U, U)),
    ],
)
def test_what_a_state_says_about_an_open_transaction(
    state: State, version: int, expected: tuple[Decision, Decision, Decision]
) -> None:
    """TX31. Without the partition only a completed one of version 2 says something: its partitions are forgotten."""
    found = FOUND._replace(state=state, client_version=version)
    assert tuple(decision_of(found, 7, epoch) for epoch in (4, 5, 6)) == expected
    without = tuple(decision_of(found._replace(has_partition=False), 7, epoch) for epoch in (4, 5, 6))
    is_complete = state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    assert without == (expected if is_complete else (U, U, U))
