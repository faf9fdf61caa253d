"""The decisions about one transactional id: every state, request and version, as Kafka 4.3's coordinator answers."""

from __future__ import annotations

from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.transactions import machine
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.machine import Change, Expected, Reply, Step
from broker.transactions.transaction import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TV_0,
    TV_2,
    Transaction,
    TransactionState,
)

State = TransactionState
TOPIC = UUID(int=1)
A = TransactionalPartition("a", TOPIC, 0)
B = TransactionalPartition("a", TOPIC, 1)
PID, EPOCH, NEW_ID, NOW = 7, 5, 1_000, 50_000

NONE = ErrorCode.NONE
PF = ErrorCode.PRODUCER_FENCED
ITS = ErrorCode.INVALID_TXN_STATE
CT = ErrorCode.CONCURRENT_TRANSACTIONS
MAP = ErrorCode.INVALID_PRODUCER_ID_MAPPING
DECIDES = "decides"
"""The answer is a change to Prepare."""


def held(state: State, epoch: int = EPOCH, **more: object) -> Transaction:
    open_now = state is State.ONGOING or state.is_prepared
    base = Transaction(
        "tx",
        PID,
        epoch,
        60_000,
        1_000,
        state,
        previous_producer_id=PID,
        partitions=frozenset({A}) if open_now else frozenset(),
        started_ms=1_000 if state is not State.EMPTY else -1,
        client_version=TV_2,
    )
    return replace(base, **more)  # type: ignore[arg-type]


def end(
    transaction: Transaction | None,
    epoch: int,
    version: int,
    *,
    is_commit: bool,
    producer_id: int = PID,
    is_pending: bool = False,
) -> Step:
    return machine.end(
        transaction, producer_id, epoch, version, NOW, lambda: NEW_ID, is_commit=is_commit, is_pending=is_pending
    )


def answer(step: Step) -> ErrorCode | str:
    if isinstance(step, Change):
        assert step.to.state.is_prepared
        return DECIDES
    return step.error


# state: (abort of a retry, abort, commit of a retry, commit); a retry has the epoch before the current one
TV2_TABLE = {
    State.EMPTY: (PF, DECIDES, PF, ITS),
    State.ONGOING: (PF, DECIDES, PF, DECIDES),
    State.PREPARE_COMMIT: (ITS, CT, CT, CT),
    State.PREPARE_ABORT: (CT, CT, ITS, CT),
    State.COMPLETE_COMMIT: (ITS, DECIDES, NONE, ITS),
    State.COMPLETE_ABORT: (NONE, DECIDES, ITS, ITS),
}
TV1_TABLE = {
    State.EMPTY: (PF, ITS, PF, ITS),
    State.ONGOING: (PF, DECIDES, PF, DECIDES),
    State.PREPARE_COMMIT: (PF, ITS, PF, CT),
    State.PREPARE_ABORT: (PF, CT, PF, ITS),
    State.COMPLETE_COMMIT: (PF, ITS, PF, NONE),
    State.COMPLETE_ABORT: (PF, NONE, PF, ITS),
}


@pytest.mark.parametrize("state", list(TV2_TABLE), ids=lambda state: state.title)
def test_the_end_of_a_transaction_in_every_state(state: State) -> None:
    """KIP-890's table for version 2, KIP-98's before; a higher epoch is fenced as well. The epoch that the answer to
    an end named is the next transaction's: it waits for the markers (Kafka's pending state)."""
    for version, table in ((TV_2, TV2_TABLE), (TV_0, TV1_TABLE)):
        found = tuple(
            answer(end(held(state), epoch, version, is_commit=is_commit))
            for is_commit in (False, True)
            for epoch in (EPOCH - 1, EPOCH)
        )
        assert found == table[state], (version, state)
        assert answer(end(held(state), EPOCH + 1, version, is_commit=False)) is PF
        assert answer(end(held(state), EPOCH, version, is_commit=True, producer_id=8)) is MAP
    assert answer(end(None, EPOCH, TV_2, is_commit=True)) is MAP


@pytest.mark.parametrize("state", list(TV2_TABLE), ids=lambda state: state.title)
def test_an_end_that_names_a_transaction_ends_no_other(state: State) -> None:
    """A broker's abort of what a gap or a lost coordinator left open (TX10)."""
    for version in (TV_0, TV_2):
        for started_ms in (999, 1_000, 1_001):
            step = machine.end(
                held(state),
                PID,
                EPOCH,
                version,
                NOW,
                lambda: NEW_ID,
                is_commit=False,
                is_pending=False,
                started_ms=started_ms,
            )
            is_meant = state is State.ONGOING and started_ms == 1_000
            assert answer(step) == (DECIDES if is_meant else ITS)


def test_an_end_of_a_fenced_producer_is_no_retry_of_its_successors() -> None:
    """Regression: behind an end of version 1, which takes no epoch, a fenced producer of version 2 with the epoch
    before was answered as if it had ended the transaction, with its successor's epoch: two wrote into one."""
    for state in (State.PREPARE_COMMIT, State.PREPARE_ABORT, State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        for is_commit in (True, False):
            for last in (NO_PRODUCER_EPOCH, EPOCH - 1):
                found = held(state, client_version=TV_0, last_producer_epoch=last)
                assert answer(end(found, EPOCH - 1, TV_2, is_commit=is_commit)) is PF


def test_two_transactions_in_a_row_never_begin_at_the_same_time() -> None:
    """Their epoch may be the same: then the start names them."""
    for now_ms in (999, 1_000, 1_001):
        step = machine.add_partitions(held(State.COMPLETE_COMMIT), PID, EPOCH, [A], TV_0, now_ms, is_pending=False)
        assert isinstance(step, Change) and step.to.started_ms != 1_000 and 0 <= step.to.started_ms - now_ms <= 1


@pytest.mark.parametrize("state", list(TV2_TABLE), ids=lambda state: state.title)
def test_while_a_change_is_on_its_way_others_are_told_to_wait(state: State) -> None:
    """One change at a time; a fenced or unknown producer hears that first."""
    for version in (TV_0, TV_2):
        assert answer(end(held(state), EPOCH - 2, version, is_commit=True, is_pending=True)) is PF
    assert answer(end(held(State.ONGOING), EPOCH, TV_2, is_commit=True, is_pending=True)) is CT
    step = machine.init(held(state), "tx", 1, None, NOW, lambda: NEW_ID, is_pending=True)
    assert step == Reply(CT)
    step = machine.add_partitions(held(state), PID, EPOCH, [B], TV_2, NOW, is_pending=True)
    assert step == Reply(CT)


def test_an_end_of_version_2_takes_an_epoch_and_says_which() -> None:
    step = end(held(State.ONGOING), EPOCH, TV_2, is_commit=True)
    assert isinstance(step, Change)
    assert (step.to.state, step.to.producer_epoch, step.to.last_producer_epoch) == (
        State.PREPARE_COMMIT,
        EPOCH + 1,
        EPOCH,
    )
    assert step.to.partitions == {A} and step.to.started_ms == 1_000
    assert step.reply == Reply(NONE, PID, EPOCH + 1)
    done = machine.complete(step.to, NOW)
    assert (done.state, done.producer_id, done.producer_epoch) == (State.COMPLETE_COMMIT, PID, EPOCH + 1)
    assert done.partitions == frozenset()
    # The answer was lost: the retry hears the same epoch, and does not end the next transaction.
    assert end(done, EPOCH, TV_2, is_commit=True) == Reply(NONE, PID, EPOCH + 1)
    begun = machine.add_partitions(done, PID, EPOCH + 1, [B], TV_2, NOW, is_pending=False)
    assert isinstance(begun, Change)
    assert end(begun.to, EPOCH, TV_2, is_commit=True) == Reply(PF)


def test_an_end_of_version_1_keeps_the_epoch() -> None:
    step = end(held(State.ONGOING), EPOCH, TV_0, is_commit=False)
    assert isinstance(step, Change)
    assert (step.to.state, step.to.producer_epoch, step.to.client_version) == (State.PREPARE_ABORT, EPOCH, TV_0)
    assert step.reply == Reply(NONE)


def test_a_used_up_epoch_gives_a_new_producer_id_at_the_end() -> None:
    """E15. The marker takes the last epoch; the answer and its retry name the new id."""
    last = EPOCH_MAX - 1
    step = end(held(State.ONGOING, last), last, TV_2, is_commit=True)
    assert isinstance(step, Change)
    assert (step.to.producer_id, step.to.producer_epoch, step.to.next_producer_id) == (PID, EPOCH_MAX, NEW_ID)
    assert step.reply == Reply(NONE, NEW_ID, 0)
    done = machine.complete(step.to, NOW)
    assert (done.producer_id, done.producer_epoch, done.previous_producer_id) == (NEW_ID, 0, PID)
    assert end(done, last, TV_2, is_commit=True) == Reply(NONE, NEW_ID, 0)
    assert end(done, last, TV_2, is_commit=False) == Reply(ITS)
    assert answer(end(done, last - 1, TV_2, is_commit=True)) is MAP
    assert done.next_producer_id == NO_PRODUCER_ID


def test_a_fence_aborts_under_the_next_epoch_exactly() -> None:
    """TX3. What the producer still does has a lower epoch; at the last epoch a new id follows."""
    step = machine.fence(held(State.ONGOING), NOW, lambda: NEW_ID)
    assert (step.to.state, step.to.producer_epoch, step.to.partitions) == (State.PREPARE_ABORT, EPOCH + 1, {A})
    assert answer(end(step.to, EPOCH, TV_2, is_commit=True)) is ITS
    assert answer(end(step.to, EPOCH, TV_0, is_commit=True)) is PF
    again = machine.add_partitions(step.to, PID, EPOCH, [A], TV_2, NOW, is_pending=False)
    assert again == Reply(PF)
    last = machine.fence(held(State.ONGOING, EPOCH_MAX - 1), NOW, lambda: NEW_ID)
    assert (last.to.producer_epoch, last.to.next_producer_id) == (EPOCH_MAX, NEW_ID)


def init(transaction: Transaction | None, expected: Expected | None = None) -> Step:
    return machine.init(transaction, "tx", 9_000, expected, NOW, lambda: NEW_ID, is_pending=False)


def test_a_new_id_begins_at_epoch_0() -> None:
    step = init(None)
    assert isinstance(step, Change)
    assert step.reply == Reply(NONE, NEW_ID, 0) and step.to.state is State.EMPTY and step.to.timeout_ms == 9_000
    assert isinstance(init(None, Expected(3, 4)), Change)  # it recovers from UNKNOWN_PRODUCER_ID


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT], ids=lambda s: s.title)
def test_a_start_takes_the_next_epoch(state: State) -> None:
    """KIP-98, KIP-360: with the epoch that the producer has, its retry is told from another producer's start."""
    step = init(held(state))
    assert isinstance(step, Change)
    assert step.reply == Reply(NONE, PID, EPOCH + 1)
    assert (step.to.state, step.to.last_producer_epoch) == (State.EMPTY, NO_PRODUCER_EPOCH)
    assert init(step.to, Expected(PID, EPOCH)) == Reply(PF)  # another one started since

    step = init(held(state), Expected(PID, EPOCH))
    assert isinstance(step, Change) and step.reply == Reply(NONE, PID, EPOCH + 1)
    retry = init(step.to, Expected(PID, EPOCH))
    assert isinstance(retry, Change) and retry.reply == Reply(NONE, PID, EPOCH + 1)
    assert init(step.to, Expected(PID, EPOCH - 1)) == Reply(PF)
    assert init(step.to, Expected(PID + 1, EPOCH + 1)) == Reply(PF)


def test_a_start_aborts_what_is_open_first() -> None:
    step = init(held(State.ONGOING))
    assert isinstance(step, Change) and step.reply == Reply(CT) and step.to.state is State.PREPARE_ABORT
    assert init(step.to) == Reply(CT)
    assert init(held(State.PREPARE_COMMIT)) == Reply(CT)
    again = init(machine.complete(step.to, NOW))
    assert isinstance(again, Change) and again.reply == Reply(NONE, PID, EPOCH + 2)


def test_a_start_at_the_last_epoch_takes_a_new_id() -> None:
    last = EPOCH_MAX - 1
    step = init(held(State.EMPTY, last))
    assert isinstance(step, Change) and step.reply == Reply(NONE, NEW_ID, 0)
    step = init(held(State.EMPTY, last), Expected(PID, last))
    assert isinstance(step, Change) and step.to.last_producer_epoch == last
    retry = init(step.to, Expected(PID, last))
    assert isinstance(retry, Change) and retry.reply == Reply(NONE, NEW_ID, 0)
    assert init(held(State.EMPTY, last), Expected(PID, last - 1)) == Reply(PF)


def test_partitions_join_a_transaction_and_begin_one() -> None:
    for state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        step = machine.add_partitions(held(state), PID, EPOCH, [A, B], TV_0, NOW, is_pending=False)
        assert isinstance(step, Change)
        assert (step.to.state, step.to.partitions, step.to.started_ms) == (State.ONGOING, {A, B}, NOW)
    more = machine.add_partitions(held(State.ONGOING), PID, EPOCH, [B], TV_0, NOW, is_pending=False)
    assert isinstance(more, Change) and (more.to.partitions, more.to.started_ms) == ({A, B}, 1_000)
    again = machine.add_partitions(held(State.ONGOING), PID, EPOCH, [A], TV_0, NOW, is_pending=False)
    assert again == Reply(NONE)
    for state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert machine.add_partitions(held(state), PID, EPOCH, [A], TV_2, NOW, is_pending=False) == Reply(CT)
    for transaction, pid, epoch, error in (
        (None, PID, EPOCH, MAP),
        (held(State.EMPTY), 8, EPOCH, MAP),
        (held(State.EMPTY), PID, EPOCH - 1, PF),
        (held(State.EMPTY), PID, EPOCH + 1, PF),
    ):
        assert machine.add_partitions(transaction, pid, epoch, [A], TV_2, NOW, is_pending=False) == Reply(error)


def test_too_many_partitions_are_refused() -> None:
    """E17: the record of a transaction is written whole at each change."""
    many = [TransactionalPartition("a", TOPIC, index) for index in range(machine.PARTITIONS_MAX + 1)]
    step = machine.add_partitions(held(State.EMPTY), PID, EPOCH, many, TV_0, NOW, is_pending=False)
    assert step == Reply(ErrorCode.POLICY_VIOLATION)
    step = machine.add_partitions(held(State.EMPTY), PID, EPOCH, many[1:], TV_0, NOW, is_pending=False)
    assert isinstance(step, Change)


def test_only_partitions_of_the_open_transaction_verify() -> None:
    """TX4, TX39: a topic that was made again under its name is another one."""
    again = A._replace(topic_id=UUID(int=2))
    assert machine.verify(held(State.ONGOING), PID, EPOCH, [A, B, again]) == {
        A: NONE,
        B: ErrorCode.TRANSACTION_ABORTABLE,
        again: ErrorCode.TRANSACTION_ABORTABLE,
    }
    for state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        assert machine.verify(held(state), PID, EPOCH, [A]) == {A: ErrorCode.TRANSACTION_ABORTABLE}
    for state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert machine.verify(held(state), PID, EPOCH, [A]) is CT
    assert machine.verify(held(State.ONGOING), PID, EPOCH - 1, [A]) is PF
    assert machine.verify(held(State.ONGOING), 8, EPOCH, [A]) is MAP
    assert machine.verify(None, PID, EPOCH, [A]) is MAP


def test_after_a_loss_the_old_producer_id_is_unknown() -> None:
    """TX11, TX36: no request of a process from before is taken, and the next start has another id."""
    lost = held(State.COMPLETE_COMMIT, needs_fresh_id=True)
    assert answer(end(lost, EPOCH, TV_2, is_commit=False)) is MAP
    assert answer(end(lost, EPOCH - 1, TV_2, is_commit=True)) is MAP
    assert machine.verify(lost, PID, EPOCH, [A]) is MAP
    assert machine.add_partitions(lost, PID, EPOCH, [A], TV_2, NOW, is_pending=False) == Reply(MAP)
    ongoing = held(State.ONGOING, needs_fresh_id=True)
    for version in (TV_0, TV_2):  # partitions of it may be lost, so it is only aborted
        assert answer(end(ongoing, EPOCH, version, is_commit=True)) is MAP
        assert answer(end(ongoing, EPOCH, version, is_commit=False)) == DECIDES
    step = init(lost)
    assert isinstance(step, Change) and step.reply == Reply(NONE, NEW_ID, 0)
    assert init(lost, Expected(PID, EPOCH)) == Reply(PF)
    fresh = machine.fresh(lost, NEW_ID, NOW)
    assert (fresh.producer_id, fresh.producer_epoch, fresh.state) == (NEW_ID, 0, State.EMPTY)
    assert fresh.previous_producer_id == NO_PRODUCER_ID and not fresh.needs_fresh_id
    assert init(fresh, Expected(PID, EPOCH)) == Reply(PF)
    driven = machine.complete(machine.fence(held(State.ONGOING, needs_fresh_id=True), NOW, lambda: NEW_ID).to, NOW)
    assert driven.needs_fresh_id  # until the fresh id is written


def test_time() -> None:
    ongoing = held(State.ONGOING)
    assert not machine.is_timed_out(ongoing, 61_000, 0) and machine.is_timed_out(ongoing, 61_001, 0)
    assert not machine.is_timed_out(ongoing, 0, 60_000) and machine.is_timed_out(ongoing, 0, 60_001)
    assert not machine.is_timed_out(held(State.PREPARE_COMMIT), 10**9, 10**9)
    for state in TV2_TABLE:
        assert machine.is_expired(held(state), 1_000 + 500, 500) == state.is_idle
        assert not machine.is_expired(held(state), 1_000 + 499, 500)


_REQUESTS = st.one_of(
    st.tuples(st.just("init"), st.sampled_from([None, "current", "before"])),
    st.tuples(st.just("add"), st.sampled_from(["current", "before"])),
    st.tuples(st.just("end"), st.tuples(st.booleans(), st.sampled_from([TV_0, TV_2]), st.sampled_from([0, -1]))),
    st.tuples(st.just("fence"), st.none()),
    st.tuples(st.just("complete"), st.none()),
)


@given(st.lists(_REQUESTS, max_size=40), st.sampled_from([0, EPOCH_MAX - 3]))
@settings(max_examples=300, deadline=None)
def test_epochs_only_grow_and_an_outcome_stands(requests: list[tuple[str, Any]], first_epoch: int) -> None:
    """A model: (producer id, epoch) only grows in the order of ids given; a decided transaction becomes complete with
    the same outcome; no two producers get the same epoch by a start without an expected one; no epoch overflows."""
    ids = count(100)
    give = lambda: next(ids)  # noqa: E731
    current: Transaction | None = None
    started: set[tuple[int, int]] = set()
    for kind, how in requests:
        before = current
        step: Step = Reply(NONE)
        pid, epoch = (current.producer_id, current.producer_epoch) if current else (1, 0)
        match kind:
            case "init":
                expected = None if how is None else Expected(pid, epoch if how == "current" else epoch - 1)
                step = machine.init(current, "tx", 1, expected, NOW, give, is_pending=False)
                if isinstance(step, Change) and step.reply.error is NONE and how is None:
                    named = (step.reply.producer_id, step.reply.producer_epoch)
                    assert named not in started
                    started.add(named)
                if current is None and isinstance(step, Change):
                    step = Change(replace(step.to, producer_epoch=first_epoch), step.reply)
            case "add":
                at = epoch if how == "current" else epoch - 1
                step = machine.add_partitions(current, pid, at, [A], TV_2, NOW, is_pending=False)
            case "end":
                is_commit, version, delta = how
                step = machine.end(
                    current, pid, epoch + delta, version, NOW, give, is_commit=is_commit, is_pending=False
                )
            case "fence":
                if current is not None and current.state is State.ONGOING:
                    step = machine.fence(current, NOW, give)
            case "complete":
                if current is not None and current.state.is_prepared:
                    current = machine.complete(current, NOW)
        if isinstance(step, Change):
            current = step.to
        if before is None or current is None:
            continue
        if before.state.is_prepared and current is not before:
            expected_end = State.COMPLETE_COMMIT if before.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
            assert current.state is expected_end
        assert (current.producer_id, current.producer_epoch) >= (before.producer_id, before.producer_epoch)
        assert 0 <= current.producer_epoch <= EPOCH_MAX
        if current.state is State.ONGOING:
            assert current.producer_epoch < EPOCH_MAX  # so that a fence finds one
