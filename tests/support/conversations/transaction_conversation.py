"""Conversations about transactions from their first request to their end: every version of every API, all going well.

Always true: the first conversation finds a broker on which no coordinator's topic exists.
"""

from __future__ import annotations

from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from tests.support.conversations.transaction_asks import PRODUCE_VERSIONS, TransactionTalk
from tests.support.conversations.transaction_talk import NO_PRODUCER, STRANGER, Producer

NOBODY = Producer(STRANGER, 0)
T0 = ("t", 0)
FETCH_VERSIONS = range(4, 19)


async def before_the_first(t: TransactionTalk) -> None:
    """Nobody asked for a coordinator yet: no id has one."""
    await t.create("t")
    for version in range(6):
        await t.init(f"init v{version}", "a", version=version)
    for version in range(4):
        await t.add(f"add v{version}", "a", NOBODY, T0, version=version)
    for version in (4, 5):
        await t.add_all(f"add v{version}", ("a", NOBODY, False, [T0]), version=version)
        await t.add_all(f"verify v{version}", ("a", NOBODY, True, [T0]), version=version)
    for version in range(6):
        await t.end(f"end v{version}", "a", NOBODY, version=version)
    await t.describe("describe", "a")
    for version in range(3):
        await t.list(f"list v{version}", version=version)
    await t.produce("produce v11", "a", NOBODY, 0, T0, version=11)
    await t.produce("produce v12", "a", NOBODY, 0, T0, version=12)
    await t.find("find, the first to ask", "a")


async def find(t: TransactionTalk) -> None:
    await t.begin("a", groups=("a",))
    for version in range(7):
        await t.find(f"find v{version}", "a", version=version)
        await t.find(f"find no id v{version}", "", version=version)
    for version in (4, 5, 6):
        await t.find(f"find several v{version}", "a", "", "a", "b", version=version)
    await t.find("find none")
    for kind in (-1, 2, 3, 127):
        for version in range(1, 7):
            await t.find(f"find kind {kind} v{version}", "a", kind=kind, version=version)


async def features(t: TransactionTalk) -> None:
    """Which version of transactions the broker has."""
    for version in range(5):
        request = wire.ApiVersionsRequest("conversation", "1")
        found = await t.quietly(ApiKey.API_VERSIONS, version, request)
        # Other APIs and features are not this conversation's.
        found.api_keys = sorted((row for row in found.api_keys if row.api_key in OURS), key=lambda row: row.api_key)
        found.supported_features = [row for row in found.supported_features if row.name == "transaction.version"]
        found.finalized_features = [row for row in found.finalized_features if row.name == "transaction.version"]
        found.finalized_features_epoch = min(found.finalized_features_epoch, 0)  # how often features changed
        t.write(f"versions v{version}", ApiKey.API_VERSIONS, version, found)


OURS = frozenset(
    {
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.END_TXN,
        ApiKey.FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.OFFSET_FETCH,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.WRITE_TXN_MARKERS,
    }
)


async def versions(t: TransactionTalk) -> None:
    """A transaction with records and offsets for each version, committed, then one that is aborted."""
    await t.create("t", 2)
    await t.begin("a", groups=("g",))
    await t.find("find", "a")
    sequence = 0
    for v in range(6):
        for commit in (True, False):
            name = f"v{v} {'commit' if commit else 'abort'}"
            p = await t.init(f"init {name}", "a", version=v, again=True)
            await t.add(f"add {name}", "a", p, T0, ("t", 1), version=min(v, 3))
            await t.produce(f"produce {name}", "a", p, 0, T0, ("t", 1), version=v + 6)
            await t.add_offsets(f"add offsets {name}", "a", p, "g", version=min(v, 4))
            await t.commit_offsets(f"commit offsets {name}", "a", p, "g", sequence + 1, T0, version=v)
            await t.offsets(f"offsets before {name}", "g", T0, version=max(7, v + 5))
            await t.offsets(f"unstable offsets before {name}", "g", T0, version=max(7, v + 5), stable=False)
            await t.describe(f"describe before {name}", "a")
            following = await t.end(f"end {name}", "a", p, commit=commit, version=v)
            await t.completed("a")
            await t.end(f"end again {name}", "a", p, commit=commit, version=v)
            await t.end(f"end otherwise {name}", "a", p, commit=not commit, version=v)
            await t.end(f"end the next {name}", "a", following, commit=True, version=v)
            await t.describe(f"describe after {name}", "a")
            await t.offsets(f"offsets after {name}", "g", T0, version=max(7, v + 5))
            await t.fetch(f"fetch {name}", "t", offset=sequence)
            sequence += 2
    await t.producers("producers", T0, ("t", 1))


async def idempotent(t: TransactionTalk) -> None:
    """Producers without a transactional id, and odd arguments."""
    for v in range(6):
        await t.init(f"init v{v}", None, version=v)
        for timeout_ms in (0, -1, 900_000_000):
            await t.init(f"init v{v}, time-out {timeout_ms}", None, version=v, timeout_ms=timeout_ms)
    for v in (3, 4, 5):
        for had in (Producer(STRANGER, 0), Producer(-1, 0), Producer(0, -1), Producer(-2, -2), NOBODY.at(32767)):
            await t.init(f"init v{v} after {had.id} {had.epoch}", None, version=v, producer=had)


async def produce_versions(t: TransactionTalk) -> None:
    """Each version of Produce in one transaction that has its partitions, then in one that has none."""
    await t.create("t")
    p = await t.begun("a")
    await t.add("add", "a", p, T0)
    for sequence, version in enumerate(PRODUCE_VERSIONS):
        await t.produce(f"added v{version}", "a", p, sequence, T0, version=version)
    p = await t.ended("a", p)
    for version in PRODUCE_VERSIONS:
        await t.produce(f"not added v{version}", "a", p, 0, T0, version=version)
    await t.describe("the last one added it", "a")
    for version in PRODUCE_VERSIONS:
        await t.produce(f"twice v{version}", "a", p, 0, T0, version=version)
    p = await t.ended("a", p, commit=False)
    for sequence, version in enumerate((12, 11)):  # an answer to acks=0 does not exist
        await t.produce(f"acks 1 v{version}", "a", p, sequence, T0, version=version, acks=1)
    await t.broker.settle()  # acks=1 did not wait until it is committed
    await t.fetch("all of it", "t", committed=False)
    await t.fetch("all of it, committed", "t")


async def readers(t: TransactionTalk) -> None:
    """Committed and aborted transactions of several producers, beside each other; each version of Fetch."""
    await t.create("t")
    a, b, c = await t.begun("a"), await t.begun("b"), await t.begun("c")
    await t.produce("a 0", "a", a, 0, T0, values=[b"a0", b"a1"])
    await t.produce("b 0", "b", b, 0, T0, values=[b"b0"])
    await t.fetch("both open", "t")
    await t.fetch("both open, uncommitted", "t", committed=False)
    for version in range(2, 12):
        await t.latest(f"both open, latest v{version}", "t", version=version)
        await t.latest(f"both open, latest uncommitted v{version}", "t", version=version, committed=False)
    a = await t.ended("a", a, commit=False)
    await t.fetch("a aborted", "t")
    await t.produce("a 1", "a", a, 0, T0, values=[b"a2"])
    await t.produce("c 0", "c", c, 0, T0, values=[b"c0"])
    b = await t.ended("b", b)
    await t.fetch("b committed", "t")
    await t.produce("nobody's", None, NO_PRODUCER, -1, T0, values=[b"n"], transactional=False)
    await t.ended("c", c, commit=False)
    await t.ended("a", a, commit=False)
    await t.produce("b 1", "b", b, 0, T0, values=[b"b1"])
    for version in FETCH_VERSIONS:
        await t.fetch(f"committed v{version}", "t", version=version)
        await t.fetch(f"uncommitted v{version}", "t", version=version, committed=False)
    for offset in range(14):
        await t.fetch(f"from {offset}", "t", offset=offset)
    await t.producers("producers", T0)
    await t.latest("latest at the end", "t")


async def mixed_versions(t: TransactionTalk) -> None:
    """A producer that changes its versions within a transaction, and between two."""
    await t.create("t", 3)
    await t.begin("a", groups=("g",))
    p = await t.begun("a")
    await t.produce("joins by producing", "a", p, 0, T0)
    await t.add("adds as before", "a", p, ("t", 1))
    await t.produce("in the added one", "a", p, 0, ("t", 1), version=11)
    await t.produce("in neither, as before", "a", p, 0, ("t", 2), version=11)
    await t.commit_offsets("offsets that join", "a", p, "g", 1, T0)
    await t.commit_offsets("offsets as before", "a", p, "g", 2, T0, version=4)
    await t.describe("all that joined", "a")
    await t.end("ends as before", "a", p, version=4)
    await t.completed("a")
    await t.describe("the epoch stays", "a")
    await t.produce("the next one, in the same epoch", "a", p, 1, T0, again=True)
    following = await t.end("aborts with an epoch", "a", p, commit=False)
    await t.completed("a")
    await t.produce("the epoch of before", "a", p, 2, T0)
    await t.produce("the new epoch", "a", following, 0, T0)
    await t.end("commits as before", "a", following, version=3)
    await t.completed("a")
    await t.end("commits again with an epoch", "a", following)
    await t.end("aborts it with an epoch", "a", following, commit=False)
    await t.completed("a")
    await t.describe("at the end", "a")
    for index in range(3):
        await t.fetch(f"all of {index}", "t", index)
    await t.producers("producers", T0, ("t", 1), ("t", 2))
    await t.offsets("offsets", "g", T0)
