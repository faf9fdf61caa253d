"""A client's pattern of transactional ids takes little time, whatever pattern and ids a client chooses."""

from __future__ import annotations

import re
import time

import pytest

from broker.error_codes import ErrorCode
from broker.handlers.transactions.id_pattern import STEPS_MAX, IdPattern
from broker.metadata.records import Acl
from broker.net.dispatch import Peer
from broker.security.authorizer.kinds import Operation, PatternType, Permission, ResourceType
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from tests.support.brokers.broker_kit import Life, Place

STANDARD = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
HIDDEN = f"hidden-{'x' * 2000}"
OWN = f"own-{'y' * 2000}"


def peer(name: str) -> Peer:
    return Peer(1, "10.0.0.1:1", "PLAINTEXT", principal=f"User:{name}")


async def guarded() -> Life:
    life = await Place().start(STANDARD, "super.users=User:root")
    write = Acl(
        ResourceType.TRANSACTIONAL_ID, OWN, PatternType.LITERAL, "User:alice", "*", Operation.WRITE, Permission.ALLOW
    )
    await life.context.controller.create_acls([write])
    for transactional_id in (HIDDEN, OWN):
        found = wire.FindCoordinatorRequest(key=transactional_id, key_type=1)
        assert (await life.call(ApiKey.FIND_COORDINATOR, found, 1, peer("root"))).error_code == 0
        begin = wire.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        assert (await life.call(ApiKey.INIT_PRODUCER_ID, begin, 4, peer("root"))).error_code == 0
    return life


async def listed(life: Life, user: str, pattern: str) -> tuple[int, list[str]]:
    request = wire.ListTransactionsRequest(transactional_id_pattern=pattern)
    answer = await life.call(ApiKey.LIST_TRANSACTIONS, request, 2, peer(user))
    return answer.error_code, [row.transactional_id for row in answer.transaction_states]


async def test_a_pattern_with_very_many_ways_through_its_alternatives_is_refused() -> None:
    """Found by a penetration test: `(.|.)` forty times held the event loop for hours. The client needed no right, only
    an id of forty characters in the cluster."""
    life = await guarded()
    assert await listed(life, "nobody", "(.|.)" * 20 + "!") == (ErrorCode.INVALID_REGULAR_EXPRESSION, [])
    assert await listed(life, "alice", "(own|other)-(y|z).*") == (ErrorCode.NONE, [OWN])
    await life.stop()


async def test_only_ids_that_the_client_may_describe_are_matched() -> None:
    """A match of a long id takes time, and its outcome would show that the id exists."""
    life = await guarded()
    slow = ".*.*!"
    assert IdPattern(slow).steps(HIDDEN) > STEPS_MAX
    assert await listed(life, "nobody", slow) == (ErrorCode.NONE, [])
    assert await listed(life, "alice", slow) == (ErrorCode.POLICY_VIOLATION, [])
    assert await listed(life, "nobody", "hidden.*") == (ErrorCode.NONE, [])
    assert await listed(life, "root", "hidden.*") == (ErrorCode.NONE, [HIDDEN])
    await life.stop()


@pytest.mark.parametrize(
    "text",
    [
        "a*a*b",
        ".*.*" + "a" * 100 + "b",
        "a*" + "(aa|a)" * 8 + "b",
        "(a|a|a|a)(a|a|a|a)(a|a|a|a)(a|a|a|a)a*a*b",
        "a*" + "a" * 240 + "b",
        "[a(|]*[)a]*b",
        r"[]|(]*\(*a*"[:-2] + "b",
    ],
)
def test_the_longest_id_that_is_matched_takes_milliseconds(text: str) -> None:
    pattern = IdPattern(text)
    low, high = 1, 32_767
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if pattern.steps("a" * middle) <= STEPS_MAX else (low, middle - 1)
    began_s = time.process_time()
    assert not pattern.matches("a" * low)
    assert time.process_time() - began_s < 0.25, low  # some 15 ms; before it was seconds to hours


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("abc", 1),
        ("a|b|c", 3),
        ("(a|b)(c|d)", 4),
        ("(a|(b|c))x|y", 4),
        (r"\(a\|b\)", 1),
        ("[(|)]", 1),
        ("[](|)]a|b", 2),
        (r"[\](|)]", 1),
        ("(?:a|b)(?P<name>c|d)", 4),
    ],
)
def test_ways_through_a_pattern_are_counted(text: str, paths: int) -> None:
    pattern = IdPattern(text)
    assert pattern.steps("") == paths * len(pattern.source)


def test_too_many_ways_are_refused() -> None:
    IdPattern("(a|b)" * 8)
    with pytest.raises(re.error):
        IdPattern("(a|b)" * 9)


@pytest.mark.parametrize("text", ["a{,2}", r"\(?:a", "[(?:]", "[_[:digit:]]", "[^[:digit:]]"])
def test_a_pattern_that_python_would_read_otherwise_is_refused(text: str) -> None:
    """`a{,2}` matched `aa` instead of its own characters; `(?:` was replaced after a backslash and in a class, too.
    `[_[:digit:]]` matched `d]` instead of `5`."""
    with pytest.raises(re.error):
        IdPattern(text)
