"""The cluster as a value, and as `cluster.json`: image = apply(records), pages, lost answers, other controllers."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.metadata.cluster_content import ClusterContent, ClusterPage, Controller, decode_page, image_of
from broker.metadata.cluster_root import ClusterRoot, CommitTooLarge
from broker.metadata.image import ClusterImage, Topic, check
from broker.metadata.producer_ids import PER_EPOCH, ProducerIds, first_epoch_above
from broker.metadata.records import (
    NO_LEADER,
    Acl,
    AclsChanged,
    ClientQuotas,
    ConfigsSet,
    MetadataRecord,
    Node,
    NodeGone,
    Row,
    RowsSet,
    ScramCredential,
    ScramSecret,
    TopicCreated,
    TopicDeleted,
    TopicPurged,
)
from broker.metadata.rows import new_rows, session_began
from coldstore.keys import cluster_key
from coldstore.object_store import AccessRefused, ObjectInfo, ObjectStore, StoreUnavailable, Upload
from coldstore.roots.root import ROOT_BYTES_MAX
from coldstore.stores.operations import Operation
from logformat.errors import Corrupt, Fenced, Retryable
from seams.rng import SeededRng
from tests.support.brokers.cluster_kit import claim, cluster_root, created, id_of, registration, row, session
from tests.support.store.faulty_store import Fault, FaultPlan, FaultyStore, even_rates
from tests.support.store.memory_store import MemoryStore

NUMBERS = st.integers(1, 3)
IDS = NUMBERS.map(id_of)
CONFIGS = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"]), max_size=2)
ACLS = st.lists(st.builds(lambda name: Acl(2, name, 3, "User:a", "*", 3, 3), st.sampled_from("xyz")), max_size=3)
KEYS = st.sampled_from([b"", b"k1", b"k2"])
ROWS = st.builds(lambda epoch: row(1, epoch, epoch), st.integers(0, 9))
RECORDS: st.SearchStrategy[list[MetadataRecord]] = st.lists(
    st.one_of(
        st.builds(
            lambda incarnation, epoch, active: session(incarnation, broker_epoch=epoch, active=active),
            st.sampled_from(["i1", "i2", "i3"]),
            st.integers(1, 9),
            st.booleans(),
        ),
        st.builds(NodeGone, st.just(1), st.integers(1, 9)),
        st.builds(
            lambda number, count, configs: created(number, count, **configs), NUMBERS, st.integers(1, 3), CONFIGS
        ),
        st.builds(lambda topic_id, changed: RowsSet(topic_id, ((0, changed),)), IDS, ROWS),
        st.builds(lambda configs, topic_id: ConfigsSet(configs, topic_id=topic_id), CONFIGS, IDS),
        st.builds(
            lambda configs, node_id: ConfigsSet(configs, node_id=node_id), CONFIGS, st.sampled_from([None, 1, 2])
        ),
        st.builds(TopicDeleted, IDS),
        st.builds(
            lambda user, key: ScramCredential(user, "SCRAM-SHA-256", b"s", key, key), st.sampled_from("ab"), KEYS
        ),
        st.builds(ScramSecret, KEYS),
        st.builds(lambda added, removed: AclsChanged(tuple(added), tuple(removed)), ACLS, ACLS),
        st.builds(
            lambda user, quotas: ClientQuotas((("user", user),), quotas),
            st.sampled_from(["a", None]),
            st.dictionaries(st.sampled_from(["producer_byte_rate", "consumer_byte_rate"]), st.just(1.0), max_size=2),
        ),
    ),
    max_size=30,
)


def adds_up(records: Sequence[MetadataRecord]) -> ClusterImage:
    return ClusterImage().with_records(records)


# --- the image ------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(RECORDS)
def test_applying_is_a_function_and_leaves_its_base_alone(records: list[MetadataRecord]) -> None:
    """Same records, same image; in pieces as at once; the image it starts from stays what it was."""
    whole = adds_up(records)
    assert whole == adds_up(records)
    for cut in range(0, len(records) + 1, 7):
        base = adds_up(records[:cut])
        kept = adds_up(records[:cut])
        assert base.with_records(records[cut:]) == whole
        assert base == kept


@settings(max_examples=40)
@given(RECORDS)
def test_the_last_record_applied_again_changes_nothing(records: list[MetadataRecord]) -> None:
    """A commit whose answer was lost is made again."""
    if records:
        assert adds_up([*records, records[-1]]) == adds_up(records)


@settings(max_examples=40)
@given(RECORDS)
def test_security_is_another_object_exactly_when_it_changed(records: list[MetadataRecord]) -> None:
    """Authorizer and quotas look at identity alone."""
    before = ClusterImage()
    for record in records:
        after = before.with_records([record])
        assert (after.scram is before.scram) is (after.scram == before.scram)
        assert (after.acls is before.acls) is (set(after.acls) == set(before.acls))
        assert (after.quotas is before.quotas) is (after.quotas == before.quotas)
        assert len(set(after.acls)) == len(after.acls)
        before = after


@settings(max_examples=40)
@given(RECORDS)
def test_numbers_only_grow(records: list[MetadataRecord]) -> None:
    """Epochs and partition counts never fall, whatever comes, and a session that ended stays ended."""
    before = ClusterImage()
    for record in records:
        after = before.with_records([record])
        assert after.next_broker_epoch >= before.next_broker_epoch
        for node_id, known in before.nodes.items():
            if node_id in after.nodes:
                now = after.nodes[node_id]
                assert (now.broker_epoch, not now.active) >= (known.broker_epoch, not known.active)
        for topic_id, topic in before.topics.items():
            if topic_id in after.topics:
                assert after.topics[topic_id].partitions >= topic.partitions
                for old, new in zip(topic.rows, after.topics[topic_id].rows, strict=False):
                    assert (new.partition_epoch, new.leader_epoch) >= (old.partition_epoch, old.leader_epoch)
        before = after


class Chain:
    """What a cluster of `nodes` goes through, as its controller commits it: every image passed `check`."""

    def __init__(self, nodes: int) -> None:
        self.image = ClusterImage()
        self.rows: list[MetadataRecord] = []  # every row and session there ever was
        for node_id in range(1, nodes + 1):
            self.commit([session(node_id=node_id, broker_epoch=self.image.next_broker_epoch)])

    def commit(self, records: Sequence[MetadataRecord]) -> None:
        after = self.image.with_records(records)
        check(after, self.image)
        check(after)
        assert after.with_records(records) == after
        for topic_id, topic in self.image.topics.items():
            for old, new in zip(topic.rows, after.topics.get(topic_id, topic).rows, strict=False):
                assert new is old or (new.partition_epoch == old.partition_epoch + 1)
                assert new.leader_epoch >= old.leader_epoch
        self.image = after
        self.rows += [record for record in records if isinstance(record, RowsSet | Node)]

    def new_rows(self, draw: st.DataObject) -> tuple[Row, ...]:
        replicas = st.permutations(sorted(self.image.nodes)).flatmap(
            lambda order: st.integers(1, len(order)).map(lambda count: tuple(order[:count]))
        )
        return new_rows(self.image, draw.draw(st.lists(replicas, min_size=1, max_size=4)))

    def step(self, draw: st.DataObject) -> None:
        topics = list(self.image.topics.values())
        what = draw.draw(st.sampled_from(["create", "grow", "start", "replace"]))
        if what == "create":
            self.commit([TopicCreated(id_of(len(topics) + 1), f"topic-{len(topics)}", self.new_rows(draw), {})])
        elif what == "grow" and topics:
            topic = draw.draw(st.sampled_from(topics))
            self.commit([RowsSet(topic.topic_id, tuple(enumerate(self.new_rows(draw), start=topic.partitions)))])
        elif what in ("start", "replace"):
            node_id = draw.draw(st.sampled_from(sorted(self.image.nodes)))
            began = session(node_id=node_id, broker_epoch=self.image.next_broker_epoch)
            image = self.image.with_records([began])
            self.commit([began, *session_began(image, node_id, is_other_directory=what == "replace")])


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3))
def test_old_rows_and_sessions_in_any_order_change_nothing(draw: st.DataObject, nodes: int) -> None:
    """Twice, late, backwards: an image moves by newer rows only; and what the makers of rows make always passes."""
    chain = Chain(nodes)
    for _ in range(draw.draw(st.integers(1, 12))):
        chain.step(draw)
    stale = draw.draw(st.permutations(chain.rows))
    assert chain.image.with_records(stale) == chain.image
    for record in stale:
        assert chain.image.with_records([record]) == chain.image


def test_a_start_raises_the_epoch_of_what_the_node_leads_and_nothing_else() -> None:
    """R2: leader and leader epoch change by one, also when the same node comes back; others lead on."""
    image = adds_up([session(), session(node_id=2, broker_epoch=2), created(1, 3), created(2, node_id=2)])
    after = image.with_records(registration(image, "again"))
    assert [(r.leader_epoch, r.partition_epoch, r.served_epoch) for r in after.topics[id_of(1)].rows] == [(1, 1, 1)] * 3
    assert after.topics[id_of(2)] == image.topics[id_of(2)]
    assert (after.nodes[1].broker_epoch, after.next_broker_epoch) == (3, 4)


def test_another_directory_begins_uncleanly() -> None:
    """Nothing that was acknowledged lies there: the epoch in which records may be missing is told."""
    image = adds_up([session(), created(1)])
    (rows,) = session_began(image, 1, is_other_directory=True)
    assert [(r.leader_epoch, r.unclean_epoch) for _, r in rows.rows] == [(1, 1)]
    (again,) = session_began(image.with_records([rows]), 1, is_other_directory=False)
    assert [(r.leader_epoch, r.unclean_epoch) for _, r in again.rows] == [(2, 1)]


def test_a_new_partition_is_led_by_the_first_replica_with_a_session() -> None:
    """Its in-sync set: those that have one; without any, it waits."""
    image = adds_up([session(node_id=n, broker_epoch=n, active=n != 2) for n in (1, 2, 3)])
    made = new_rows(image, [(1,), (2, 3), (3, 2, 1), (2,)])
    assert [(r.leader, r.in_sync) for r in made] == [(1, (1,)), (3, (3,)), (3, (3, 1)), (NO_LEADER, ())]


@pytest.mark.parametrize(
    "records",
    [
        [TopicCreated(id_of(1), "t", (), {})],
        [TopicCreated(id_of(1), "t", (row(2),), {})],
        [TopicCreated(id_of(1), "t", (Row((1,), 1, 0, 0, (), 0),), {})],
        [TopicCreated(id_of(1), "t", (Row((1, 1), 1, 0, 0, (1,), 0),), {})],
        [TopicCreated(id_of(1), "t", (Row((1,), 1, 0, 0, (1,), 1),), {})],
        [TopicCreated(id_of(1), "t", (Row((1,), 1, -1, 0, (1,), -1),), {})],
        [created(1), msgspec.structs.replace(created(2), name="topic-1")],
        [created(1), RowsSet(id_of(1), ((2, row()),))],
        [created(1), RowsSet(id_of(1), ((-1, row()),))],
        [created(1), RowsSet(id_of(1), ((0, row(1, 5, 5)),)), RowsSet(id_of(1), ((0, row(1, 4, 6)),))],
        [
            created(1),
            RowsSet(id_of(1), ((0, row(1, 5, 5)),)),
            [session(broker_epoch=2), RowsSet(id_of(1), ((0, row(1, 4, 6)),))],
        ],
        [created(1), session(broker_epoch=1, active=False)],
        [created(1), NodeGone(1, 1)],
    ],
)
def test_what_no_controller_can_have_made_is_refused(records: list[MetadataRecord | list[MetadataRecord]]) -> None:
    """Each breaks one rule: nobody leads who has no session, sets are subsets, epochs grow, names are unique."""
    before = adds_up([session()])
    with pytest.raises(Corrupt, match="cluster metadata"):
        for record in records:
            after = before.with_records(record if isinstance(record, list) else [record])
            check(after, before)
            before = after


def test_a_partition_may_wait_for_its_leader() -> None:
    """A session ended, its rows in the same commit: nobody leads, who was in sync still is; it returns and leads."""
    before = adds_up([session(), created(1)])
    waits = Row((1,), NO_LEADER, 1, 1, (1,), 0)
    after = before.with_records([session(broker_epoch=1, active=False), RowsSet(id_of(1), ((0, waits),))])
    check(after, before)
    back = after.with_records(registration(after, "again"))
    check(back, after)
    assert (back.topics[id_of(1)].rows[0].leader, back.topics[id_of(1)].rows[0].leader_epoch) == (1, 2)


def test_a_session_that_ended_does_not_begin_again() -> None:
    """Its start, applied late, is an old fact; the next broker epoch begins the next one. Nor does a node return that
    left, until it registers."""
    image = adds_up([session(), session(active=False), session()])
    assert not image.nodes[1].active
    assert image.with_records([session(broker_epoch=2)]).nodes[1].active
    gone = image.with_records([NodeGone(1, 1), session()])
    assert gone.nodes == {} and gone.next_broker_epoch == 2


def test_configs_from_a_to_b_and_back_end_at_a() -> None:
    """Order decides, not which record was seen before."""
    a, b = ConfigsSet({"x": "a"}, topic_id=id_of(1)), ConfigsSet({"x": "b"}, topic_id=id_of(1))
    assert adds_up([created(1), a, b, a]).topics[id_of(1)].configs == {"x": "a"}


def test_a_deleted_topic_is_remembered_until_it_is_purged_and_never_comes_back() -> None:
    """Its creation, applied late, does not raise it from the dead; its name is free at once."""
    image = adds_up([created(1), TopicDeleted(id_of(1)), created(1)])
    assert not image.topics
    assert image.topic_named("topic-1") is None
    assert set(image.deleted) == {id_of(1)}
    assert not image.with_records([TopicPurged(id_of(1))]).deleted


def test_producer_ids_are_above_all_of_earlier_sessions_and_of_before() -> None:
    """R10: they hold the committed broker epoch; the first session begins above every block that was given out."""
    first, second = ProducerIds(4), ProducerIds(5)
    given = [first.give() for _ in range(3)]
    assert given == [4 * PER_EPOCH, 4 * PER_EPOCH + 1, 4 * PER_EPOCH + 2] and second.give() > given[-1] + (1 << 35)
    for end in (0, 1, 1000, PER_EPOCH - 1, PER_EPOCH, PER_EPOCH + 1):
        assert ProducerIds(first_epoch_above(end)).give() >= end


# --- cluster.json ---------------------------------------------------------------------------------------------------


class Bench:
    """One bucket and the stores of several controllers."""

    def __init__(self, store: ObjectStore | None = None, seed: int = 1) -> None:
        self.memory = MemoryStore()
        self.faulty = FaultyStore(self.memory, SeededRng(f"faults/{seed}"))
        self.store: ObjectStore = store or self.faulty
        self.seed = seed
        self.made = 0

    def cluster(self) -> ClusterRoot:
        self.made += 1
        return cluster_root(self.store, f"{self.seed}/{self.made}")

    async def controller(self) -> ClusterRoot:
        cluster = self.cluster()
        await cluster.load()
        await claim(cluster, f"i{self.made}")
        return cluster

    async def image(self) -> ClusterImage:
        loaded = await self.cluster().load()
        assert loaded is not None
        return loaded.image

    def pages(self) -> list[str]:
        return [key for key in self.memory.objects if key.startswith("metadata/")]


async def test_a_bucket_nobody_formatted_has_no_cluster() -> None:
    """And the first claim makes one, of epoch 1."""
    bench = Bench()
    cluster = bench.cluster()
    assert await cluster.load() is None
    image = (await claim(cluster)).image
    assert (cluster.epoch, image.nodes[1].broker_epoch) == (1, 1)
    assert await bench.image() == image


async def test_of_two_claims_one_wins() -> None:
    """Both saw the same root: the CAS decides, the other one is fenced and has no epoch."""
    bench = Bench()
    await bench.controller()
    rivals = [bench.cluster(), bench.cluster()]
    for rival in rivals:
        await rival.load()
    results = await asyncio.gather(
        *(claim(rival, f"rival-{at}") for at, rival in enumerate(rivals)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Fenced", "ImageAt"]
    assert sorted(rival.epoch for rival in rivals) == [0, 2]


async def test_two_claims_of_an_unformatted_bucket_make_one_cluster() -> None:
    """The race to format: one is first, the other looks again."""
    bench = Bench()
    rivals = [bench.cluster(), bench.cluster()]
    assert [await rival.load() for rival in rivals] == [None, None]
    results = await asyncio.gather(
        *(claim(rival, f"i{at}", f"cluster-{at}") for at, rival in enumerate(rivals)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Fenced", "ImageAt"]


async def test_a_superseded_controller_commits_nothing_and_learns_by_whom() -> None:
    """Fenced, before and after it looked; its poll names the epoch."""
    bench = Bench()
    old = await bench.controller()
    assert (await old.poll()).epoch == old.epoch == 1
    new = await bench.controller()
    with pytest.raises(Fenced):
        await old.commit([created(1)])
    assert (await old.poll()).epoch == 2  # also where the failed commit has read the root already
    await new.commit([created(2)])
    assert (await old.poll()).epoch == 2
    with pytest.raises(Fenced):
        await old.commit([created(1)])
    assert set((await bench.image()).topics) == {id_of(2)}


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.EMPTY_200, Fault.OWN_412, Fault.REFUSED, Fault.CONFLICT])
async def test_a_commit_over_any_strange_answer_is_made_once(fault: Fault) -> None:
    """The answer is lost, or wrong, or a refusal that was none: the record is in the image once, no error comes out."""
    bench = Bench()
    cluster = await bench.controller()
    for number in range(5):
        bench.faulty.script(Operation.PUT_ROOT, fault)
        image = (await cluster.commit([created(number)])).image
        assert len(image.topics) == number + 1
    assert cluster.known is not None
    assert sum(isinstance(record, TopicCreated) for record in cluster.known.content.records) == 5
    assert bench.faulty.hits[fault] == 5


async def test_a_commit_made_again_leaves_one_record() -> None:
    """After an outcome that stays unknown for ever (C29) the edit is made again on whatever stands there."""
    bench = Bench()
    cluster = await bench.controller()
    for _ in range(3):
        await cluster.commit([created(1), created(2)])
    assert cluster.known is not None
    assert [type(record) for record in cluster.known.content.records] == [Node, TopicCreated, TopicCreated]


async def test_a_claim_whose_answer_was_lost_is_ours() -> None:
    """The start is counted once."""
    bench = Bench()
    await (await bench.controller()).commit([created(1)])
    cluster = bench.cluster()
    await cluster.load()
    bench.faulty.script(Operation.PUT_ROOT, Fault.LOST)
    image = (await claim(cluster, "again")).image
    assert (cluster.epoch, image.nodes[1].broker_epoch, image.topics[id_of(1)].rows[0].leader_epoch) == (2, 2, 1)


class _Overtaken(MemoryStore):
    """The next commit of `rival`'s root lands, it claims on top of that, and only then the answer is lost."""

    rival: ClusterRoot | None = None

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        etag = await super().put_root(key, data, if_match)
        rival, self.rival = self.rival, None
        if rival is not None:
            await rival.load()
            await claim(rival, "rival")
            raise StoreUnavailable(f"PUT {key}: no answer")
        return etag


@pytest.mark.parametrize("what", ["claim", "commit", "settle"])
async def test_the_image_of_whoever_overtook_a_commit_is_never_its_answer(what: str) -> None:
    """Its session has our node id, another directory and higher leader epochs: obeyed, two processes would lead in one
    epoch, and give producer ids of one broker epoch."""
    overtaken = _Overtaken()
    bench = Bench(overtaken)
    mine = bench.cluster()
    await (await bench.controller()).commit([created(1)])
    await mine.load()
    if what != "claim":
        await claim(mine, "mine")
    overtaken.rival = bench.cluster()
    with pytest.raises(Fenced):
        if what == "claim":
            await claim(mine, "mine")
        elif what == "commit":
            await mine.commit([created(2)])
        else:
            await mine.settle()
    assert (await bench.image()).nodes[1].incarnation == "rival"


async def test_records_fold_into_pages_and_the_root_stays_small() -> None:
    """A hundred topics with long configs: the root below 64 KiB at every commit, one page at a time, nothing lost."""
    bench = Bench()
    cluster = await bench.controller()
    for number in range(100):
        image = (await cluster.commit([created(number, **{"retention.ms": "1" * 2500})])).image
        assert len(bench.memory.objects[cluster_key()].data) <= ROOT_BYTES_MAX
        assert len(image.topics) == number + 1
        if number % 30 == 29:
            assert await bench.image() == image
            assert len(bench.pages()) == 1
    assert cluster.known is not None
    assert cluster.known.content.page is not None
    assert bench.pages() == [cluster.known.content.page.key]


@pytest.mark.parametrize("refusal", [StoreUnavailable("DELETE: 503"), AccessRefused("DELETE: 403")])
async def test_a_page_that_cannot_be_deleted_makes_no_commit_fail(refusal: Exception) -> None:
    """The change is a fact, its page garbage: whoever asked would be told that it failed, and a broker whose bucket
    keeps everything would not start."""

    class Keeping(MemoryStore):
        async def delete(self, keys: Sequence[str]) -> None:
            raise refusal

    bench = Bench(Keeping())
    cluster = await bench.controller()
    for number in range(3):
        await cluster.commit([created(number, 5000)])
    again = bench.cluster()
    await again.load()
    assert len((await claim(again, "again")).image.topics) == 3


async def test_cluster_d52_a_reader_that_saw_the_root_before_a_fold_still_gets_an_image() -> None:
    """The page it was about to read was replaced and deleted meanwhile: it reads the root again."""
    bench = Bench()
    cluster = await bench.controller()
    number = 0
    while not bench.pages():
        await cluster.commit([created(number, filler="x" * 2000)])
        number += 1
    first_page = bench.pages()[0]
    reader = bench.cluster()
    read_page = bench.memory.get
    folded = asyncio.Event()

    async def get(key: str, start: int = 0, length: int | None = None) -> object:
        nonlocal number
        if key == first_page and not folded.is_set():
            folded.set()
            while first_page in bench.pages() and number < 200:
                await cluster.commit([created(number, filler="x" * 2000)])
                number += 1
        return await read_page(key, start, length)

    bench.memory.get = get  # type: ignore[assignment,method-assign]
    loaded = await reader.load()
    assert folded.is_set()
    assert loaded is not None
    assert len(loaded.image.topics) >= 20


async def test_a_damaged_page_is_refused_not_believed() -> None:
    """One flipped bit of a snapshot: Corrupt, with what to do."""
    bench = Bench()
    cluster = await bench.controller()
    for number in range(30):
        await cluster.commit([created(number, filler="x" * 2000)])
    (page,) = bench.pages()
    stored = bench.memory.objects[page]
    stored.data = stored.data[:100] + bytes([stored.data[100] ^ 1]) + stored.data[101:]
    with pytest.raises(Corrupt, match="checksum"):
        await bench.image()


@pytest.mark.parametrize(
    ("topic_id", "name", "partitions"),
    [(id_of(1), "../../etc/cron.d/x", 1), (id_of(1), "..", 1), (id_of(1), "", 1), ("1", "t", 1), (id_of(1), "t", 0)],
)
def test_fuzz_a_bucket_cannot_name_a_path(topic_id: str, name: str, partitions: int) -> None:
    """Found beside the fuzz target cluster_roots: a topic's name in cluster.json or its page became a directory."""
    rows = (row(),) * partitions
    topic = Topic(topic_id, name, rows, {}, internal=False)
    nodes = {1: session()}
    for image in (ClusterImage({topic_id: topic}, nodes=nodes), ClusterImage(deleted={topic_id: topic}, nodes=nodes)):
        data = msgspec.json.encode(image)
        page = ClusterPage("page", 0, 0, len(data))
        with pytest.raises(Corrupt, match="impossible"):
            image_of(ClusterContent("c", Controller(1, "i"), page), zlib.compress(data))
    with pytest.raises(Corrupt, match="impossible"):
        records = (session(), TopicCreated(topic_id, name, rows, {}))
        image_of(ClusterContent("c", Controller(1, "i"), records=records), None)


def test_a_page_says_how_long_it_is_and_no_more_is_inflated() -> None:
    """A kilobyte that inflates to a gigabyte, or to less than it should: refused."""
    data = zlib.compress(b" " * (1 << 26))
    for said in (10, (1 << 26) - 1, 1 << 62):
        with pytest.raises(Corrupt, match="does not hold"):
            decode_page(data, ClusterPage("page", len(data), 0, said))


async def test_a_batch_that_makes_the_impossible_is_refused_before_anything_is_written() -> None:
    """check(image) runs on the result before the PUT: our own bug must not become the cluster's state."""
    bench = Bench()
    cluster = await bench.controller()
    await cluster.commit([created(1)])
    before = dict(bench.memory.objects)
    for wrong in ([created(2, node_id=7)], [session(active=False)], [RowsSet(id_of(1), ((5, row()),))]):
        with pytest.raises(Corrupt, match="cluster metadata"):
            await cluster.commit(wrong)
        assert bench.memory.objects == before
    assert set((await cluster.commit([created(2)])).image.topics) == {id_of(1), id_of(2)}


async def test_cluster_d51_a_commit_that_does_not_fit_the_root_is_two_puts() -> None:
    """R13: one new page, and a root with an empty list; the old page goes. A start of many partitions is such a one."""

    writes: list[str] = []

    class Noting(MemoryStore):
        async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
            writes.append(key)
            return await super().put_segment(key, body)

        async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
            writes.append(key)
            return await super().put_root(key, data, if_match)

    bench = Bench()
    bench.memory = bench.store = Noting()
    cluster = await bench.controller()
    await cluster.commit([created(1, 5000)])
    (first,) = bench.pages()
    again = bench.cluster()
    await again.load()
    writes.clear()
    image = (await claim(again, "again")).image
    assert [key.partition("/")[0] for key in writes] == ["metadata", "cluster.json"]
    assert {row.leader_epoch for row in image.topics[id_of(1)].rows} == {1}
    (second,) = bench.pages()
    assert second != first and again.known is not None and again.known.content.records == ()
    assert len(bench.memory.objects[second].data) < 5000 * 30 // 4
    assert await bench.image() == image


async def test_a_commit_above_a_pages_bound_is_refused_at_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a start could not read is not written."""
    bench = Bench()
    cluster = await bench.controller()
    before = dict(bench.memory.objects)
    monkeypatch.setattr("broker.metadata.cluster_root.PAGE_BYTES_MAX", 100_000)
    with pytest.raises(CommitTooLarge, match="at most 100000"):
        await cluster.commit([created(1, 5000)])
    assert bench.memory.objects == before
    await cluster.commit([created(1)])


@pytest.mark.parametrize("seed", range(12))
async def test_any_mix_of_faults_loses_no_record_that_was_confirmed_and_doubles_none(seed: int) -> None:
    """Every fault a store commits, at 5 % each, over folds: what commit() returned for is in the image, for good."""
    bench = Bench(seed=seed)
    cluster = await bench.controller()
    bench.faulty.plan = FaultPlan(even_rates(0.05), latency_s=(0.0, 0.2), late_s=(0.1, 20.0), flips=lambda _: False)
    confirmed: set[str] = set()
    for number in range(60):
        try:
            image = (await cluster.commit([created(number, filler="x" * 1500)])).image
        except Retryable:
            continue
        confirmed.add(id_of(number))
        assert confirmed <= set(image.topics)
    bench.faulty.calm()
    await bench.faulty.settle()
    image = await bench.image()
    assert confirmed <= set(image.topics)
    assert len(confirmed) > 20


def test_many_credentials_are_applied_in_one_step() -> None:
    """Found by a penetration test: each credential copied all users. AlterUserScramCredentials of 10 000 new users, a
    frame of 868 KB, held the event loop for 14 s, and so did a start with as many users."""
    users = [ScramCredential(f"u{at}", "SCRAM-SHA-512", b"s", b"k", b"k", 4096) for at in range(10_000)]
    began_s = time.process_time()
    image = ClusterImage().with_records(users)
    assert time.process_time() - began_s < 0.5  # it was 2 s
    assert list(image.scram) == [user.user for user in users]
    gone = [ScramCredential(user.user, user.mechanism) for user in users]
    assert not image.with_records(gone).scram
    assert image.with_records(users).scram is image.scram
