"""Conversations about one transactional id in each of its states: what its producer, earlier and later ones, and
strangers hear to each request in each version.

Always true: while a broker holds markers back, a transaction is decided and not complete.
"""

from __future__ import annotations

from tests.support.conversations.transaction_asks import TransactionTalk
from tests.support.conversations.transaction_talk import NO_PRODUCER, STRANGER, Producer

T0, HELD = ("t", 0), ("held", 0)


async def refused(t: TransactionTalk, label: str, tid: str, p: Producer) -> None:
    """Each request in each version of a producer that must not change anything."""
    for v in range(4):
        await t.add(f"{label}: add v{v}", tid, p, T0, version=v)
    for v in (4, 5):
        await t.add_all(f"{label}: add v{v}", (tid, p, False, [T0]), version=v)
        await t.add_all(f"{label}: verify v{v}", (tid, p, True, [T0]), version=v)
    for v in range(5):
        await t.add_offsets(f"{label}: add offsets v{v}", tid, p, "g", version=v)
    for v in range(6):
        await t.commit_offsets(f"{label}: commit offsets v{v}", tid, p, "g", 1, T0, version=v)
    for v in range(6):
        await t.end(f"{label}: commit v{v}", tid, p, version=v)
        await t.end(f"{label}: abort v{v}", tid, p, commit=False, version=v)
    for v in (10, 11, 12):
        await t.produce(f"{label}: produce v{v}", tid, p, 0, T0, version=v)


async def others(t: TransactionTalk, state: str, tid: str, p: Producer, *, old: bool = True) -> None:
    """Producers that are not the id's. `old`: the epoch before means nothing to the broker either."""
    await refused(t, f"{state}, another id", tid, Producer(STRANGER, p.epoch))
    for v in (3, 4, 5):
        await t.init(f"{state}, another id: init v{v}", tid, producer=Producer(STRANGER, p.epoch), version=v)
    await refused(t, f"{state}, a later epoch", tid, p.at(p.epoch + 1))
    if old:
        await refused(t, f"{state}, an earlier epoch", tid, p.at(p.epoch - 2))
    await t.describe(f"{state} still", tid)


async def unknown_id(t: TransactionTalk) -> None:
    """A transactional id that no producer began with, and none at all."""
    await t.create("t")
    await t.begin("a", groups=("g",))
    await refused(t, "unknown", "a", Producer(STRANGER, 0))
    await refused(t, "no id", "", Producer(STRANGER, 0))
    await refused(t, "nothing", "a", NO_PRODUCER)
    for v in range(6):
        await t.init(f"init, no id v{v}", "", version=v)
    await t.describe("describe", "a", "")


async def _aged(t: TransactionTalk, tid: str) -> Producer:
    """In its third epoch, so that there are earlier ones."""
    await t.begin(tid, groups=("g",))
    for _ in range(3):
        p = await t.init("begin", tid, again=True)
    return p


async def empty(t: TransactionTalk) -> None:
    await t.create("t")
    p = await _aged(t, "a")
    await others(t, "empty", "a", p)
    for v in range(5):
        await t.end(f"commit nothing v{v}", "a", p, version=v)
        await t.end(f"abort nothing v{v}", "a", p, commit=False, version=v)
    await t.end("commit nothing v5", "a", p)
    await t.describe("still empty", "a")
    for v in (4, 5):
        await t.add_all(f"verify v{v}", ("a", p, True, [T0]), version=v)
    for v in range(5):
        await t.commit_offsets(f"commit offsets v{v}", "a", p, "g", 1, T0, version=v)
    following = await t.end("abort nothing v5", "a", p, commit=False)
    await t.completed("a")
    await t.describe("aborted nothing", "a")
    await t.end("abort nothing again", "a", p, commit=False)
    await t.end("commit it after all", "a", p)
    await t.end("abort nothing a second time", "a", following, commit=False)


async def ongoing(t: TransactionTalk) -> None:
    await t.create("t", 2)
    p = await _aged(t, "a")
    await t.add("add", "a", p, T0)
    await others(t, "ongoing", "a", p)
    for v in range(4):
        await t.add(f"add what it has v{v}", "a", p, T0, version=v)
    for v in (4, 5):
        await t.add_all(f"verify what it has v{v}", ("a", p, True, [T0, ("t", 1)]), version=v)
        await t.add_all(f"add what it has v{v}", ("a", p, False, [T0]), version=v)
    for v in range(5):
        await t.commit_offsets(f"commit offsets that are not added v{v}", "a", p, "g", 1, T0, version=v)
    await t.describe("as before", "a")
    # The next producer ends it first.
    await t.init("the next one", "a")
    await t.completed("a")
    await t.describe("aborted for it", "a")
    for v in range(6):
        await t.end(f"the fenced one commits v{v}", "a", p, version=v)
        await t.end(f"the fenced one aborts v{v}", "a", p, commit=False, version=v)
    await t.init("the next one again", "a", again=True)


async def going_on_while_ongoing(t: TransactionTalk) -> None:
    """InitProducerId with id and epoch while a transaction is open ends it, whatever the epoch."""
    await t.create("t")
    for label, distance in (("its own", 0), ("a later", 1), ("an earlier", -1)):
        for v in (3, 4, 5):
            tid = f"{label} v{v}".replace(" ", "-")
            p = await _aged(t, tid)
            await t.add("add", tid, p, T0)
            await t.init(f"{label} epoch v{v}", tid, producer=p.at(p.epoch + distance), version=v)
            await t.completed(tid)
            await t.describe(f"{label} epoch, ended v{v}", tid)
            await t.init(f"{label} epoch, again v{v}", tid, producer=p.at(p.epoch + distance), version=v)
            await t.init(f"{label} epoch, without it v{v}", tid, version=v)


async def _decided(t: TransactionTalk, *, commit: bool, version: int) -> None:
    """Decided, without its marker: `p` did it, `following` is the producer of the next transaction."""
    await t.create("t")
    await t.create_held("held")
    p = await _aged(t, "a")
    await t.add("add", "a", p, HELD)
    await t.hold()
    following = await t.end("end", "a", p, commit=commit, version=version)
    await t.describe("decided", "a")
    for v in range(6):
        await t.end(f"the same v{v}", "a", p, commit=commit, version=v)
        await t.end(f"the other v{v}", "a", p, commit=not commit, version=v)
        await t.init(f"init v{v}", "a", version=v)
    for v in (3, 4, 5):
        await t.init(f"init, going on v{v}", "a", producer=p, version=v)
        await t.init(f"init, going on from the next v{v}", "a", producer=following, version=v)
    await refused(t, "the next transaction", "a", following)
    await others(t, "decided", "a", following, old=version < 5)
    await t.release()
    await t.completed("a")
    await t.describe("complete", "a")
    await others(t, "complete", "a", following, old=False)
    for v in range(5) if version < 5 else range(6):
        await t.end(f"complete, the same v{v}", "a", p, commit=commit, version=v)
        await t.end(f"complete, the other v{v}", "a", p, commit=not commit, version=v)
    if version < 5:  # an abort of version 5 needs no transaction
        await t.end("complete, commit v5", "a", p)
        await t.end("complete, abort v5", "a", p, commit=False)
        await t.completed("a")
        await t.describe("complete again", "a")


async def commit_1(t: TransactionTalk) -> None:
    await _decided(t, commit=True, version=4)


async def abort_1(t: TransactionTalk) -> None:
    await _decided(t, commit=False, version=4)


async def commit_2(t: TransactionTalk) -> None:
    await _decided(t, commit=True, version=5)


async def abort_2(t: TransactionTalk) -> None:
    await _decided(t, commit=False, version=5)


async def going_on(t: TransactionTalk) -> None:
    """InitProducerId with the id and epoch that a producer has (KIP-360), and odd arguments."""
    await t.begin("a")
    for v in range(6):
        for timeout_ms in (0, -1, 900_000, 900_001, 2**31 - 1, -(2**31)):
            await t.init(
                f"time-out {timeout_ms} v{v}", f"t{v}", timeout_ms=timeout_ms, version=v, again=timeout_ms == 900_000
            )
    first = await t.init("begin", "a", again=True)
    for v in (3, 4, 5):
        await t.init(f"only an id v{v}", "a", producer=Producer(first.id, -1), version=v)
        await t.init(f"only an epoch v{v}", "a", producer=Producer(-1, 0), version=v)
        await t.init(f"no epoch at all v{v}", "a", producer=Producer(first.id, -2), version=v)
        await t.init(f"both negative v{v}", "a", producer=Producer(-2, -2), version=v)
        await t.init(f"another id v{v}", "a", producer=Producer(STRANGER, 0), version=v)
        await t.init(f"a later epoch v{v}", "a", producer=first.at(1), version=v)
        await t.init(f"the last epoch v{v}", "a", producer=first.at(32767), version=v)
        await t.init(f"an id nobody has v{v}", f"new {v}", producer=Producer(STRANGER, 5), version=v, again=True)
    second = await t.init("it goes on", "a", producer=first)
    await t.init("it goes on, said again", "a", producer=first)
    third = await t.init("it goes on from there", "a", producer=second)
    await t.init("it goes on from the first", "a", producer=first)
    await t.init("another one", "a")
    await t.init("it goes on after another one", "a", producer=third)
    await t.init("with another time-out", "a", timeout_ms=5)
    await t.describe("its time-out", "a")


async def timed_out(t: TransactionTalk) -> None:
    """A transaction beyond its time-out: its producer hears of it in each version."""
    await t.create("t")
    await t.begin("a", groups=("g",))
    p = await t.init("begin", "a", timeout_ms=100, again=True)
    await t.produce("produce", "a", p, 0, T0)
    await t.completed("a")
    await t.describe("aborted", "a")
    await t.fetch("aborted", "t")
    await t.producers("producers", T0)
    await refused(t, "timed out", "a", p)
    await t.describe("aborted still", "a")
    await t.init("it goes on", "a", producer=p)
    await t.init("it goes on, said again", "a", producer=p)
