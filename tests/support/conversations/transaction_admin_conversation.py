"""Conversations of admins about transactions: lists by each filter, descriptions, producers of a partition."""

from __future__ import annotations

from tests.support.conversations.transaction_asks import TransactionTalk
from tests.support.conversations.transaction_talk import STRANGER

T0, HELD = ("t", 0), ("held", 0)
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
PATTERNS = (
    "",
    ".*",
    "lists-ongoing",
    "ongoing",
    ".*-ongoing",
    "lists-.*g",
    "LISTS-ongoing",
    "lists-(empty|ongoing)",
    "lists-[a-e]+",
    "^lists-ongoing$",
    r"\Qlists-ongoing\E",
    r"lists\x2dongoing",
    r"\w+-ongoing",
    r"lists-\p{L}{7}",
    r"lists-[[:alpha:]]+",
    "(?i)LISTS-ongoing",
    "(?P<n>lists)-ongoing",
    "(?:lists)-ongoing",
    "lists-ongoing|nothing",
    "nothing|lists-ongoing",
    "(lists-)+ongoing",
    "lists-.*?g",
    "lists-o{1}ngoing",
    ".*.*.*ongoing",
    "(",
    ")",
    "[",
    "]",
    "*",
    "a**",
    "a{2,1}",
    "a{1001}",
    "{",
    "lists-ongoing{",
    "\\",
    r"(a)\1",
    "(?=a)",
    "(?!a)",
    "(?<=a)",
    "(?#comment)",
    "a++",
    "(?>a)",
    r"\Z",
    r"lists-ongoing\z",
    r"\y",
)

NOT_SERVED = (
    r"\Qlists-ongoing\E",
    r"lists-\p{L}{7}",
    "lists-[[:alpha:]]+",
    "(?i)LISTS-ongoing",
    "(lists-)+ongoing",
    ".*.*.*ongoing",
    r"lists-ongoing\z",
)
"""Patterns of Kafka's that Python does not know, or that would take it too long."""


async def lists(t: TransactionTalk) -> None:
    """Ids in all states at once, by each filter in each version."""
    await t.create("t")
    await t.create_held("held")
    at = {name: await t.begun(name) for name in ("empty", "ongoing", "committing", "aborting", "committed", "aborted")}
    await t.add("add", "ongoing", at["ongoing"], T0)
    for name in ("committing", "aborting"):
        await t.add(f"add {name}", name, at[name], HELD)
    for name in ("committed", "aborted"):
        await t.add(f"add {name}", name, at[name], T0)
        await t.ended(name, at[name], commit=name == "committed")
    await t.hold()
    await t.end("commit", "committing", at["committing"])
    await t.end("abort", "aborting", at["aborting"], commit=False)
    await t.describe("all of them", *at, "nobody")
    for v in range(3):
        await t.list(f"everything v{v}", version=v)
        for state in (*STATES, "ongoing", "ONGOING", "", "nonsense", "Complete_Commit"):
            await t.list(f"in {state!r} v{v}", states=[state], version=v)
        await t.list(f"in several v{v}", states=["Ongoing", "nonsense", "Empty", "also nonsense", "Empty"], version=v)
        await t.list(f"of an id v{v}", ids=[at["ongoing"].id], version=v)
        await t.list(f"of several ids v{v}", ids=[at["empty"].id, at["aborting"].id, STRANGER, -1], version=v)
        await t.list(f"of no such id v{v}", ids=[-1], version=v)
        await t.list(f"of an id in another state v{v}", ids=[at["ongoing"].id], states=["Empty"], version=v)
        await t.list(f"of an id in a state v{v}", ids=[at["ongoing"].id], states=["Ongoing"], version=v)
    for v in (1, 2):
        for duration_ms in (0, 1, -1, -2, -(2**63), 3_600_000, 2**63 - 1):
            await t.list(f"longer than {duration_ms} v{v}", duration_ms=duration_ms, version=v)
        await t.list(f"longer than 0 and empty v{v}", duration_ms=0, states=["Empty"], version=v)
    for pattern in PATTERNS:
        await t.list(f"like {pattern}", pattern=pattern)
    await t.list("like it in a state", pattern="lists-.*", states=["Ongoing", "CompleteAbort"])
    await t.list("like it, refused, in no state", pattern="(", states=["nonsense"])
    await t.release()
    await t.completed("committing")
    await t.completed("aborting")
    await t.list("at the end")


async def described(t: TransactionTalk) -> None:
    """One id through its life, and odd requests."""
    await t.create("t", 3)
    await t.create("s")
    await t.begin("a", groups=("g",))
    await t.describe("nothing")
    await t.describe("unknown", "a")
    await t.describe("no name", "")
    await t.describe("several", "a", "", "b")
    a = await t.begun("a")
    await t.describe("empty", "a")
    await t.describe("twice", "a", "a")
    await t.add("add", "a", a, ("t", 2), ("s", 0), ("t", 0))
    await t.describe("ongoing", "a")
    await t.add("add more", "a", a, ("t", 1))
    await t.describe("with one more", "a")
    a = await t.ended("a", a)
    await t.describe("committed", "a")
    await t.produce("produce", "a", a, 0, T0)
    await t.describe("ongoing again", "a")
    await t.ended("a", a, commit=False)
    await t.describe("aborted", "a")
    await t.init("begin again", "a")
    await t.describe("empty again", "a")


async def producers(t: TransactionTalk) -> None:
    """DescribeProducers of partitions with all kinds of producers."""
    await t.create("t", 2)
    await t.producers("nobody's", T0)
    await t.producers("nothing")
    await t.producers("unknown", ("no-such-topic", 0), ("t", 9), ("t", -1), ("", 0))
    await t.producers("twice", T0, T0)
    p = await t.init("idempotent", None)
    await t.produce("idempotent", None, p, 0, T0, transactional=False, values=[b"0", b"1"])
    await t.producers("idempotent", T0, ("t", 1))
    a = await t.begun("a")
    await t.add("add", "a", a, T0)
    await t.producers("added, without a record", T0)
    await t.produce("produce", "a", a, 0, T0, version=11)
    await t.producers("open", T0)
    await t.produce("produce more", "a", a, 1, T0, version=11)
    await t.producers("open, with more", T0)
    a = await t.ended("a", a)
    await t.producers("committed", T0)
    await t.produce("produce on", "a", a, 0, T0)
    await t.producers("open again", T0)
    await t.init("fenced", "a")
    await t.completed("a")
    await t.producers("aborted", T0)
