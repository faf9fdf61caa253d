"""Conversations about requests of transactions that are odd or refused: partitions, batches, offsets, markers."""

from __future__ import annotations

from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from tests.support.conversations import group_conversation as groups
from tests.support.conversations.transaction_asks import PRODUCE_VERSIONS, TransactionTalk
from tests.support.conversations.transaction_talk import NO_PRODUCER, STRANGER, Producer

T0, T1, FAR, GONE = ("t", 0), ("t", 1), ("t", 9), ("no-such-topic", 0)


async def partitions(t: TransactionTalk) -> None:
    """Partitions that do not exist, nothing at all, one twice; several transactions in a request of brokers."""
    await t.create("t", 2)
    a, b = await t.begun("a"), await t.begun("b")
    for v in range(4):
        await t.add(f"no such topic v{v}", "a", a, GONE, version=v)
        await t.add(f"no such partition v{v}", "a", a, T0, FAR, GONE, version=v)
        await t.add(f"a negative one v{v}", "a", a, ("t", -1), version=v)
        await t.add(f"a topic without a name v{v}", "a", a, ("", 0), T0, version=v)
        await t.add(f"nothing v{v}", "a", a, version=v)
    await t.describe("still empty", "a")
    await t.add("one twice", "a", a, T0, T0)
    await t.add("one more", "a", a, T1)
    await t.describe("both", "a")
    for v in (4, 5):  # Kafka never answers a request without transactions
        await t.add_all(f"nothing v{v}", ("a", a, False, []), version=v)
        await t.add_all(f"no such topic v{v}", ("a", a, False, [T0, GONE, FAR]), version=v)
        await t.add_all(f"verify no such topic v{v}", ("a", a, True, [T0, GONE, FAR]), version=v)
        await t.add_all(
            f"several v{v}",
            ("a", a, True, [T0]),
            ("b", b, True, [T0, T1]),
            ("c", b, True, [T0]),
            ("a", a.at(7), True, [T0]),
            version=v,
        )
        await t.add_all(f"add and verify v{v}", ("b", b, False, [T0]), ("a", a, True, [T0, T1]), version=v)
    for v in range(5):
        await t.add_offsets(f"a group without a name v{v}", "a", a, "", version=v)
    await t.describe("both transactions", "a", "b")


async def batches(t: TransactionTalk) -> None:
    """Batches that do not belong to the transaction, or are refused by their epoch and sequence."""
    await t.create("t")
    await t.create("n", 13)
    await t.create("s", 13)
    await t.create("z")
    a = await t.begun("a")
    older = a
    a = await t.init("next epoch", "a")
    for v in PRODUCE_VERSIONS:
        await t.produce(f"no such topic v{v}", "a", a, 0, GONE, version=v)
        await t.produce(f"no such partition v{v}", "a", a, 0, FAR, version=v)
        await t.produce(f"no transactional id v{v}", None, a, 0, T0, version=v)
        await t.produce(f"an empty transactional id v{v}", "", a, 0, T0, version=v)
        await t.produce(f"another transactional id v{v}", "nobody", a, 0, T0, version=v)
        await t.produce(f"another producer id v{v}", "a", Producer(STRANGER, 0), 0, T0, version=v)
        await t.produce(f"no producer id v{v}", "a", NO_PRODUCER, -1, ("n", v), version=v)
        await t.produce(f"no epoch v{v}", "a", Producer(a.id, -1), 0, T0, version=v)
        await t.produce(f"no sequence v{v}", "a", a, -1, T0, version=v)
        await t.produce(f"a control batch v{v}", "a", a, 0, T0, version=v, control=True)
        await t.produce(f"an old epoch v{v}", "a", older, 0, T0, version=v)
        await t.produce(f"a later epoch v{v}", "a", a.at(9), 0, T0, version=v)
        await t.produce(f"begins with sequence 5 v{v}", "a", a, 5, ("s", v), version=v)
    await t.describe("what joined", "a")
    await t.add("add", "a", a, T0)
    for v in (9, 12):
        await t.produce(f"the first v{v}", "a", a, 0, T0, values=[b"0", b"1"], version=v)
        await t.produce(f"a hole v{v}", "a", a, 5, T0, version=v)
        await t.produce(f"not transactional v{v}", "a", a, 2, T0, version=v, transactional=False)
        await t.produce(f"not transactional, no id v{v}", None, a, 2, T0, version=v, transactional=False)
    for sequence in range(2, 8):
        await t.produce(f"sequence {sequence}", "a", a, sequence, T0, version=11)
    for sequence in (7, 3, 2, 0):
        await t.produce(f"sequence {sequence} again", "a", a, sequence, T0, version=11)
    await t.produce("the first, other in length", "a", a, 0, T0, values=[b"0"], version=11)
    await t.fetch("all", "t", committed=False)
    await t.produce("begin elsewhere", "a", a, 0, ("z", 0))
    for v in (9, 12):  # after these Kafka takes no sequence of the producer but 0
        await t.produce(f"an old epoch in it v{v}", "a", older, 1, ("z", 0), version=v)
        await t.produce(f"a later epoch in it v{v}", "a", a.at(9), 0, ("z", 0), version=v)
    await t.produce("its own epoch after them", "a", a, 1, ("z", 0))
    a = await t.ended("a", a)
    await t.produce("goes on in the epoch of before", "a", a.at(a.epoch - 1), 8, T0)
    await t.produce("a hole in the new epoch", "a", a, 3, T0)
    await t.produce("begins anew", "a", a, 0, T0)
    await t.end("end", "a", a, again=True)


async def idempotent_batches(t: TransactionTalk) -> None:
    """A producer id without a transaction, and transactional batches of it."""
    await t.create("t")
    await t.begin("a")
    p = await t.init("init", None)
    for v in (9, 12):
        await t.produce(f"idempotent v{v}", None, p, 0, T0, version=v, transactional=False)
        await t.produce(f"idempotent with a transactional id v{v}", "a", p, 1, T0, version=v, transactional=False)
        await t.produce(f"a transaction of it v{v}", "a", p, 2, T0, version=v)
        await t.produce(f"a hole v{v}", None, p, 9, T0, version=v, transactional=False)
    await t.producers("producers", T0)


async def offsets(t: TransactionTalk) -> None:
    """Offsets in a transaction: who may commit them, and what OffsetFetch says meanwhile."""
    await t.create("t", 2)
    await t.begin("a", groups=("g", "m"))
    a = await t.begun("a")
    await t.add_offsets("add offsets", "a", a, "g")
    for v in range(6):
        await t.commit_offsets(f"no group v{v}", "a", a, "", 1, T0, version=v)
        await t.commit_offsets(f"another group v{v}", "a", a, "other", 1, T0, version=min(v, 4))
        await t.commit_offsets(f"nothing v{v}", "a", a, "g", 1, version=v)
        await t.commit_offsets(f"no such topic v{v}", "a", a, "g", 1, GONE, FAR, ("t", -1), version=v)
        await t.commit_offsets(f"too much metadata v{v}", "a", a, "g", 1, T0, metadata="m" * 4_097, version=v)
        await t.commit_offsets(f"without metadata v{v}", "a", a, "g", v, T0, metadata=None, version=v)
        await t.commit_offsets(f"a negative offset v{v}", "a", a, "g", -1, T1, version=v)
    for v in (3, 4, 5):
        await t.commit_offsets(f"a member of no group v{v}", "a", a, "g", 1, T0, member="m", version=v)
        await t.commit_offsets(f"a generation of no group v{v}", "a", a, "g", 1, T0, generation=1, version=v)
        await t.commit_offsets(f"an instance of no group v{v}", "a", a, "g", 1, T0, instance="i", version=v)
    for v in range(1, 10):
        for stable in (True, False) if v >= 7 else (False,):
            await t.offsets(f"fetch v{v} {stable}", "g", T0, T1, version=v, stable=stable)
            if v >= 2:
                await t.offsets(f"fetch everything v{v} {stable}", "g", version=v, stable=stable, everything=True)
    await t.offsets("fetch v10", "g", T0, T1, version=10)
    forget = wire.OffsetDeleteRequestTopic(t.name("t"), [wire.OffsetDeleteRequestPartition(0)])
    await t.ask("forget them", ApiKey.OFFSET_DELETE, 0, wire.OffsetDeleteRequest(t.name("g"), [forget]))
    await t.ask("delete the group", ApiKey.DELETE_GROUPS, 2, wire.DeleteGroupsRequest([t.name("g")]))
    await t.offsets("after the deletion", "g", T0, T1)
    await t.ended("a", a)
    await t.offsets("committed", "g", T0, T1)
    await t.offsets("committed v10", "g", T0, T1, version=10)
    await t.fetch("nothing in the topic", "t")


async def members(t: TransactionTalk) -> None:
    """Offsets of a group with members: generation, member id and instance are checked."""
    await t.create("t")
    await t.begin("a", groups=("g",))
    a = await t.begun("a")
    group = t.name("g")
    joined = await t.quietly(ApiKey.JOIN_GROUP, 9, groups.join(group, instance="i"))
    me = joined.member_id
    await t.add_offsets("add offsets", "a", a, "g")
    for v in (3, 4, 5):
        await t.commit_offsets(f"while it completes v{v}", "a", a, "g", 1, T0, version=v, generation=1, member=me)
    await t.quietly(ApiKey.SYNC_GROUP, 5, groups.sync(group, me, 1, (me, b""), group_instance_id="i"))
    for v in (3, 4, 5):
        how = {"version": v}
        await t.commit_offsets(f"member v{v}", "a", a, "g", 2, T0, generation=1, member=me, **how)
        await t.commit_offsets(f"instance v{v}", "a", a, "g", 2, T0, generation=1, member=me, instance="i", **how)
        await t.commit_offsets(
            f"another instance v{v}", "a", a, "g", 2, T0, generation=1, member=me, instance="j", **how
        )
        await t.commit_offsets(f"fenced v{v}", "a", a, "g", 2, T0, generation=1, member="old", instance="i", **how)
        await t.commit_offsets(f"an old generation v{v}", "a", a, "g", 2, T0, generation=0, member=me, **how)
        await t.commit_offsets(f"a later generation v{v}", "a", a, "g", 2, T0, generation=2, member=me, **how)
        await t.commit_offsets(f"no generation v{v}", "a", a, "g", 2, T0, member=me, **how)
        await t.commit_offsets(f"another member v{v}", "a", a, "g", 2, T0, generation=1, member="nobody", **how)
        await t.commit_offsets(f"no member v{v}", "a", a, "g", 2, T0, generation=1, **how)
        await t.commit_offsets(f"neither v{v}", "a", a, "g", 2, T0, **how)
    for v in (0, 1, 2):
        await t.commit_offsets(f"neither v{v}", "a", a, "g", 2, T0, version=v)
    await t.offsets("pending", "g", T0)
    await t.ended("a", a, commit=False)
    await t.offsets("aborted", "g", T0)


async def markers(t: TransactionTalk) -> None:
    """WriteTxnMarkers of an admin: what each does to the partition."""
    await t.create("t", 2)
    await t.begin("a", groups=("g",))
    stranger = Producer(STRANGER, 3)
    for v in (1, 2):
        await t.mark(f"no such topic v{v}", stranger, GONE, FAR, ("t", -1), version=v)
        await t.mark(f"nowhere v{v}", stranger, version=v)
        await t.mark(f"no producer id v{v}", NO_PRODUCER, T0, version=v)
        await t.mark(f"no epoch v{v}", Producer(STRANGER, -1), T0, version=v)
        none = wire.WriteTxnMarkersRequest()
        await t.ask(f"no marker v{v}", ApiKey.WRITE_TXN_MARKERS, v, none)
        await t.mark(f"of nobody v{v}", stranger, T0, version=v)
        await t.mark(f"of nobody, aborted v{v}", stranger, T0, commit=False, version=v)
        await t.mark(f"an old epoch of nobody v{v}", stranger.at(2), T0, version=v)
        await t.mark(f"a later epoch of nobody v{v}", stranger.at(3 + v), T0, T1, version=v)
        stranger = stranger.at(3 + v)
        await t.mark(f"a later coordinator v{v}", stranger, T0, coordinator=5 + v, version=v)
        await t.mark(f"an earlier coordinator v{v}", stranger, T0, coordinator=4, version=v)
        await t.mark(f"no coordinator v{v}", stranger, T0, coordinator=-1, version=v)
        await t.producers(f"producers v{v}", T0, T1)
    for version in (0, 1, 2, 3, -1):
        await t.mark(
            f"transaction version {version}, the same epoch", stranger, T0, coordinator=9, transaction_version=version
        )
        stranger = stranger.at(stranger.epoch + 1)
        await t.mark(
            f"transaction version {version}, the next epoch", stranger, T0, coordinator=9, transaction_version=version
        )
    await t.producers("producers at last", T0)


async def markers_in_transactions(t: TransactionTalk) -> None:
    """An admin's markers in partitions with an open transaction, which its coordinator ends later."""
    await t.create("t", 2)
    a = await t.begun("a")
    a = await t.init("next", "a")
    await t.produce("produce", "a", a, 0, T0, T1)
    for version in (0, 1, 2):
        await t.mark(f"version {version}, an earlier epoch", a.at(a.epoch - 1), T0, transaction_version=version)
    await t.mark("version 2, its own epoch", a, T0, transaction_version=2)
    await t.fetch("open still", "t")
    await t.mark("version 2, the next epoch", a.at(a.epoch + 1), T0, commit=False, transaction_version=2)
    await t.mark("version 0, its own epoch", a, T1, commit=False)
    await t.producers("after them", T0, T1)
    await t.produce("it produces on", "a", a, 1, T0, version=11)
    await t.produce("it produces on in the other", "a", a, 1, T1, version=11)
    await t.fetch("what is there", "t")
    await t.fetch("what is there in the other", "t", 1)
    await t.end("its coordinator commits it", "a", a)
    await t.completed("a")
    await t.fetch("at the end", "t")
    await t.fetch("at the end in the other", "t", 1)
    await t.producers("at the end", T0, T1)


async def deleted_topic(t: TransactionTalk) -> None:
    """A topic that is deleted, and made again, within a transaction."""
    await t.create("t")
    await t.create("s")
    a = await t.begun("a")
    await t.produce("produce", "a", a, 0, T0, ("s", 0))
    await t.quietly(ApiKey.DELETE_TOPICS, 5, wire.DeleteTopicsRequest([], [t.name("t")], 10_000))
    await t.broker.settle()
    await t.describe("described", "a")
    await t.add("add it", "a", a, T0)
    await t.produce("produce to it", "a", a, 1, T0)
    await t.producers("its producers", T0)
    await t.end("end", "a", a)
    await t.completed("a")
    await t.fetch("the other topic", "s")
