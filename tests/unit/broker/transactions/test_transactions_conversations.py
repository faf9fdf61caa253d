"""The same requests, the same answers: our broker against what Apache Kafka 4.3.1 answered about transactions.

`tests/golden/*transactions_kafka_4_3_1.json` hold Kafka's answers (recorded with `python -m
tests.support.conversations.record_transactions`, and `record_held_transactions`, against the peer). Each answer here
went through the codec of its version. Every field of every answer is compared. `RULES` are all the differences, each
with its reason; a rule that nothing needs any more fails the test, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.wire.apis import APIS, ApiKey
from tests.support import repository
from tests.support.conversations import record_held_transactions, record_transactions
from tests.support.conversations.our_broker import OurBroker
from tests.support.conversations.transaction_admin_conversation import NOT_SERVED
from tests.support.conversations.transaction_asks import TransactionTalk
from tests.support.conversations.transaction_conversations import HELD_CONVERSATIONS, TRANSACTION_CONVERSATIONS
from tests.support.conversations.transaction_talk import TIMESTAMP_MS, errors_of
from tests.support.fast_loop import HOUR_S, run_fast

GOLDEN: dict[str, list[tuple[str, Any]]] = {
    name: answers
    for file in (record_transactions.GOLDEN_FILE, record_held_transactions.GOLDEN_FILE)
    for name, answers in json.loads((repository.GOLDEN / file).read_text()).items()
}
CONVERSATIONS = {**TRANSACTION_CONVERSATIONS, **HELD_CONVERSATIONS}
_FIFTY, _ONE = ("offsets.topic.num.partitions=50",), ("offsets.topic.num.partitions=1",)
SETTINGS = dict.fromkeys(TRANSACTION_CONVERSATIONS, _FIFTY) | dict.fromkeys(HELD_CONVERSATIONS, _ONE)
"""Of the peer, too: transactions name partitions of the offsets' topic."""

BROUGHT_ABOUT = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.INVALID_RECORD,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_REGULAR_EXPRESSION,
)


@dataclass(frozen=True)
class Rule:
    """A difference that is meant. Conversation and label are patterns; a field is the last name on the way to it."""

    reason: str
    talk: str = ".*"
    label: str = ".*"
    api: str = ".*"
    field: str = ".*"
    ours: tuple[Any, ...] | None = None
    theirs: tuple[Any, ...] | None = None

    def names(self, of: Difference) -> bool:
        texts = ((self.talk, of.talk), (self.label, of.label), (self.api, of.api), (self.field, of.field))
        if not all(re.fullmatch(pattern, text) for pattern, text in texts):
            return False
        return (self.ours is None or of.ours in self.ours) and (self.theirs is None or of.theirs in self.theirs)


@dataclass(frozen=True)
class Difference:
    talk: str
    label: str
    api: str
    field: str
    ours: Any
    theirs: Any


RULES = (
    Rule(
        "a first FindCoordinator waits until the coordinators' topic exists; Kafka lets its client ask again",
        talk="before_the_first",
        label="find, the first to ask",
        theirs=(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, ""),
    ),
    Rule(
        "a refusal says why; Kafka often has no text, so an answer without one is the only difference",
        field="error_message",
        ours=("a text",),
        theirs=(None, ""),
    ),
    Rule(
        "the times of batches are not remembered (docs/compatibility.md)",
        api="PRODUCE",
        field="log_append_time_ms",
        ours=(-1,),
        theirs=(TIMESTAMP_MS,),
    ),
    Rule(
        "clients read it from UNKNOWN_PRODUCER_ID only, which is not answered (docs/compatibility.md)",
        api="PRODUCE",
        field="log_start_offset",
        ours=(-1,),
        theirs=(0,),
    ),
    Rule(
        "the time when a batch came, not the batch's own (docs/compatibility.md)",
        api="DESCRIBE_PRODUCERS",
        field="last_timestamp",
    ),
    Rule(
        "a transactional batch needs a producer id; Kafka appends it as one without (docs/compatibility.md)",
        label="no(thing: produce| producer id) v.*",
        api="PRODUCE",
        field="error_code",
        ours=(ErrorCode.INVALID_RECORD,),
        theirs=(ErrorCode.NONE,),
    ),
    Rule(
        "the offset of that batch",
        label="no(thing: produce| producer id) v.*",
        api="PRODUCE",
        field="base_offset",
        ours=(-1,),
    ),
    Rule(
        "a batch that no log may take is refused before its coordinator is asked (docs/compatibility.md)",
        talk="batches",
        label="(no epoch|no sequence|a control batch) v.*",
        api="PRODUCE",
        field="error_code",
        ours=(ErrorCode.INVALID_RECORD,),
    ),
    Rule(
        "what was surely appended before is a duplicate, which clients take for success (docs/compatibility.md)",
        talk="batches",
        label="sequence [20] again|the first, other in length",
        api="PRODUCE",
        field="error_code",
        ours=(ErrorCode.DUPLICATE_SEQUENCE_NUMBER,),
        theirs=(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,),
    ),
    Rule(
        "a refused epoch leaves nothing behind; in Kafka its producer cannot go on (docs/compatibility.md)",
        talk="batches",
        label="its own epoch after them",
        api="PRODUCE",
        ours=(ErrorCode.NONE, 1),
        theirs=(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
    ),
    Rule(
        "a marker that cannot be is refused by name; Kafka's append fails (docs/compatibility.md)",
        talk="markers",
        api="WRITE_TXN_MARKERS",
        field="error_code",
        ours=(ErrorCode.INVALID_REQUEST,),
        theirs=(ErrorCode.UNKNOWN_SERVER_ERROR,),
    ),
    Rule(
        "an id named twice is answered once (docs/compatibility.md)",
        talk="described",
        label="twice",
        field="transaction_states",
    ),
    Rule(
        "while markers are missing, refusals that stay are told at once (docs/compatibility.md)",
        talk="(commit|abort)_[12]",
        label="(decided, .*|the next transaction: (commit|abort)|the other) v.*",
        field="(partition_)?error_code",
        ours=(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            ErrorCode.PRODUCER_FENCED,
        ),
        theirs=(ErrorCode.CONCURRENT_TRANSACTIONS,),
    ),
    Rule(
        "clients of TxnOffsetCommit before 5 do not know CONCURRENT_TRANSACTIONS (docs/compatibility.md)",
        talk="(commit|abort)_[12]",
        label="the next transaction: commit offsets v[0-4]",
        field="error_code",
        ours=(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,),
        theirs=(ErrorCode.CONCURRENT_TRANSACTIONS,),
    ),
    Rule(
        "longer than: open transactions only, as KIP-994 says (docs/compatibility.md)",
        talk="lists",
        label="longer than [^-].*",
        field="transaction_states",
    ),
    Rule(
        "patterns that are not served (docs/transactions.md)",
        talk="lists",
        label="|".join(re.escape(f"like {pattern}") for pattern in NOT_SERVED),
        ours=(ErrorCode.INVALID_REGULAR_EXPRESSION, []),
    ),
)


def differences(talk: str, label: str, api: str, ours: Any, theirs: Any, field: str = "") -> Iterator[Difference]:
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for key, part in ours.items():
            yield from differences(talk, label, api, part, theirs[key], key)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for part, other in zip(ours, theirs, strict=True):
            yield from differences(talk, label, api, part, other, field)
    elif ours != theirs:
        yield Difference(talk, label, api, field, ours, theirs)


@cache
def converse(name: str) -> list[Any]:
    async def scenario() -> list[Any]:
        broker = await OurBroker.start(*SETTINGS[name])
        talk = TransactionTalk(broker, name)
        await talk.meet()
        await CONVERSATIONS[name](talk)
        await broker.stop()
        return talk.log

    found: list[Any] = json.loads(json.dumps(run_fast(scenario(), timeout_s=HOUR_S)))
    return found


def _differences_of(name: str) -> list[Difference]:
    return [
        found
        for (label, one), (_, other) in zip(converse(name), GOLDEN[name], strict=True)
        for found in differences(name, label, one["api"], one, other)
    ]


def rule_of(found: Difference) -> Rule | None:
    return next((rule for rule in RULES if rule.names(found)), None)


def test_every_conversation_is_recorded() -> None:
    """A conversation without Kafka's answers compares nothing."""
    assert list(GOLDEN) == list(CONVERSATIONS)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_we_answer_as_kafka_does(name: str) -> None:
    """Every field of every answer, but what a rule names."""
    assert [label for label, _ in converse(name)] == [label for label, _ in GOLDEN[name]]
    unmeant = [found for found in _differences_of(name) if rule_of(found) is None]
    assert not unmeant


def test_every_rule_is_needed() -> None:
    """A difference that is gone is no difference."""
    rules = [rule_of(found) for name in CONVERSATIONS for found in _differences_of(name)]
    used = {rule.reason for rule in rules if rule is not None}
    assert [rule.reason for rule in RULES if rule.reason not in used] == []


def test_every_version_that_kafka_advertises_was_asked() -> None:
    """Of Produce, those that are served here."""
    (newest,) = (answer for label, answer in GOLDEN["features"] if label == "versions v4")
    wanted = {
        (ApiKey(row["api_key"]).name, version)
        for row in newest["answer"]["api_keys"]
        for version in range(row["min_version"], row["max_version"] + 1)
    }
    wanted |= {("PRODUCE", version) for version in range(3, APIS[ApiKey.PRODUCE].version_max + 1)}
    assert wanted <= {(answer["api"], answer["version"]) for log in GOLDEN.values() for _, answer in log}


def test_errors_were_brought_about() -> None:
    """The answers hold each error that a client can bring about, in several versions."""
    codes = {code for log in GOLDEN.values() for _, answer in log for code in errors_of(answer["answer"])}
    assert codes >= {int(code) for code in BROUGHT_ABOUT}
