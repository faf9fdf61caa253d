"""The cluster as a value, and as `cluster.json`: image = apply(records), folding, lost answers, other controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.metadata.cluster_store import ClusterContent, ClusterStore, check_content, decode_image
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import (
    MetadataRecord,
    NodeStarted,
    PartitionsAdded,
    ProducerIdsReserved,
    TopicConfigsSet,
    TopicCreated,
    TopicDeleted,
    TopicPurged,
)
from coldstore.keys import cluster_key
from coldstore.object_store import ObjectStore
from coldstore.root import ROOT_BYTES_MAX
from coldstore.stores.faulty import Fault, FaultPlan, FaultyStore, even_rates
from coldstore.stores.operations import Operation
from logformat.errors import Corrupt, Fenced, Retryable
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock, run_fast
from tests.support.memory_store import MemoryStore

IDS = st.sampled_from(["t1", "t2", "t3"])
CONFIGS = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"]), max_size=2)
RECORDS: st.SearchStrategy[list[MetadataRecord]] = st.lists(
    st.one_of(
        st.builds(NodeStarted, st.just(1), st.just("d"), st.sampled_from(["i1", "i2", "i3"]), st.just("h"), st.just(1)),
        IDS.flatmap(lambda i: st.builds(TopicCreated, st.just(i), st.just(f"name-{i}"), st.integers(1, 3), CONFIGS)),
        st.builds(PartitionsAdded, IDS, st.integers(1, 9)),
        st.builds(TopicConfigsSet, IDS, CONFIGS),
        st.builds(TopicDeleted, IDS),
        st.builds(ProducerIdsReserved, st.integers(0, 5000)),
    ),
    max_size=30,
)


def image_of(records: Sequence[MetadataRecord]) -> ClusterImage:
    return ClusterImage().with_records(records)


def node(incarnation: str = "i") -> NodeStarted:
    return NodeStarted(1, "dir", incarnation, "localhost", 9092)


def id_of(number: int) -> str:
    return str(UUID(int=number))


def created(number: int, **configs: str) -> TopicCreated:
    return TopicCreated(id_of(number), f"topic-{number}", 1, configs)


# --- the image ------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(RECORDS)
def test_applying_is_a_function_and_leaves_its_base_alone(records: list[MetadataRecord]) -> None:
    """Same records, same image; in pieces as at once; the image it starts from stays what it was."""
    whole = image_of(records)
    assert whole == image_of(records)
    for cut in range(0, len(records) + 1, 7):
        base = image_of(records[:cut])
        kept = image_of(records[:cut])
        assert base.with_records(records[cut:]) == whole
        assert base == kept


@settings(max_examples=40)
@given(RECORDS)
def test_the_last_record_applied_again_changes_nothing(records: list[MetadataRecord]) -> None:
    """A commit whose answer was lost is made again."""
    if records:
        assert image_of([*records, records[-1]]) == image_of(records)


@settings(max_examples=40)
@given(RECORDS)
def test_numbers_only_grow(records: list[MetadataRecord]) -> None:
    """Epochs, partition counts and the end of the producer ids never fall, whatever comes."""
    before = ClusterImage()
    for record in records:
        after = before.with_records([record])
        assert after.producer_ids_end >= before.producer_ids_end
        for node_id, known in before.nodes.items():
            assert after.nodes[node_id].epoch >= known.epoch
        for topic_id, topic in before.topics.items():
            if topic_id in after.topics:
                assert after.topics[topic_id].partitions >= topic.partitions
        before = after


def test_configs_from_a_to_b_and_back_end_at_a() -> None:
    """Order decides, not which record was seen before."""
    a, b = TopicConfigsSet(id_of(1), {"x": "a"}), TopicConfigsSet(id_of(1), {"x": "b"})
    assert image_of([created(1), a, b, a]).topics[id_of(1)].configs == {"x": "a"}


def test_a_deleted_topic_is_remembered_until_it_is_purged_and_never_comes_back() -> None:
    """Its creation, applied late, does not raise it from the dead; its name is free at once."""
    image = image_of([created(1), TopicDeleted(id_of(1)), created(1)])
    assert not image.topics
    assert image.topic_named("topic-1") is None
    assert set(image.deleted) == {id_of(1)}
    image.apply(TopicPurged(id_of(1)))
    assert not image.deleted


def test_each_start_is_a_new_epoch_and_its_repetition_is_not() -> None:
    """The leader epoch of all a node leads: one more for each incarnation."""
    image = image_of([node("i1"), node("i1"), node("i2"), node("i3"), node("i3")])
    assert image.nodes[1].epoch == 2


# --- cluster.json ---------------------------------------------------------------------------------------------------


class Bench:
    """One bucket and the stores of several controllers."""

    def __init__(self, store: ObjectStore | None = None, seed: int = 1) -> None:
        self.memory = MemoryStore()
        self.faulty = FaultyStore(self.memory, SeededRng(f"faults/{seed}"))
        self.store: ObjectStore = store or self.faulty
        self.seed = seed
        self.made = 0

    def cluster(self) -> ClusterStore:
        self.made += 1
        return ClusterStore(self.store, SeededRng(f"{self.seed}/{self.made}"), FastClock())

    async def controller(self) -> ClusterStore:
        cluster = self.cluster()
        await cluster.load()
        await cluster.claim("cluster", node(f"i{self.made}"))
        return cluster

    async def image(self) -> ClusterImage:
        loaded = await self.cluster().load()
        assert loaded is not None
        return loaded[1]

    def pages(self) -> list[str]:
        return [key for key in self.memory.objects if key.startswith("metadata/")]


def test_a_bucket_nobody_formatted_has_no_cluster() -> None:
    """And the first claim makes one, of epoch 1."""

    async def scenario() -> None:
        bench = Bench()
        cluster = bench.cluster()
        assert await cluster.load() is None
        _, image = await cluster.claim("cluster", node())
        assert (cluster.epoch, image.nodes[1].epoch) == (1, 0)
        assert await bench.image() == image

    run_fast(scenario())


def test_of_two_claims_one_wins() -> None:
    """Both saw the same root: the CAS decides, the other one is fenced and has no epoch."""

    async def scenario() -> None:
        bench = Bench()
        await bench.controller()
        rivals = [bench.cluster(), bench.cluster()]
        for rival in rivals:
            await rival.load()
        results = await asyncio.gather(
            *(rival.claim("cluster", node(f"rival-{at}")) for at, rival in enumerate(rivals)), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["Fenced", "ImageAt"]
        assert sorted(rival.epoch for rival in rivals) == [0, 2]

    run_fast(scenario())


def test_two_claims_of_an_unformatted_bucket_make_one_cluster() -> None:
    """The race to format: one is first, the other looks again."""

    async def scenario() -> None:
        bench = Bench()
        rivals = [bench.cluster(), bench.cluster()]
        assert [await rival.load() for rival in rivals] == [None, None]
        results = await asyncio.gather(
            *(rival.claim(f"cluster-{at}", node(f"i{at}")) for at, rival in enumerate(rivals)), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["Fenced", "ImageAt"]

    run_fast(scenario())


def test_a_superseded_controller_commits_nothing_and_learns_by_whom() -> None:
    """Fenced, before and after it looked; its poll names the epoch."""

    async def scenario() -> None:
        bench = Bench()
        old = await bench.controller()
        assert await old.superseded_by() is None
        new = await bench.controller()
        with pytest.raises(Fenced):
            await old.commit([created(1)])
        assert await old.superseded_by() in (2, None)  # None: the failed commit has read the root already
        await new.commit([created(2)])
        assert await old.superseded_by() == 2
        with pytest.raises(Fenced):
            await old.commit([created(1)])
        assert set((await bench.image()).topics) == {id_of(2)}

    run_fast(scenario())


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.EMPTY_200, Fault.OWN_412, Fault.REFUSED, Fault.CONFLICT])
def test_a_commit_over_any_strange_answer_is_made_once(fault: Fault) -> None:
    """The answer is lost, or wrong, or a refusal that was none: the record is in the image once, no error comes out."""

    async def scenario() -> None:
        bench = Bench()
        cluster = await bench.controller()
        for number in range(5):
            bench.faulty.script(Operation.PUT_ROOT, fault)
            _, image = await cluster.commit([created(number)])
            assert len(image.topics) == number + 1
        assert cluster.known is not None
        assert sum(isinstance(record, TopicCreated) for record in cluster.known.content.records) == 5
        assert bench.faulty.hits[fault] == 5

    run_fast(scenario())


def test_a_commit_made_again_leaves_one_record() -> None:
    """After an outcome that stays unknown for ever (C29) the edit is made again on whatever stands there."""

    async def scenario() -> None:
        bench = Bench()
        cluster = await bench.controller()
        for _ in range(3):
            await cluster.commit([created(1), created(2)])
        assert cluster.known is not None
        assert [type(record) for record in cluster.known.content.records] == [NodeStarted, TopicCreated, TopicCreated]

    run_fast(scenario())


def test_a_claim_whose_answer_was_lost_is_ours() -> None:
    """The node's epoch is counted once."""

    async def scenario() -> None:
        bench = Bench()
        await bench.controller()
        cluster = bench.cluster()
        await cluster.load()
        bench.faulty.script(Operation.PUT_ROOT, Fault.LOST)
        _, image = await cluster.claim("cluster", node("again"))
        assert (cluster.epoch, image.nodes[1].epoch) == (2, 1)

    run_fast(scenario())


def test_records_fold_into_pages_and_the_root_stays_small() -> None:
    """A hundred topics with long configs: the root below 64 KiB at every commit, one page at a time, nothing lost."""

    async def scenario() -> None:
        bench = Bench()
        cluster = await bench.controller()
        for number in range(100):
            _, image = await cluster.commit([created(number, **{"retention.ms": "1" * 2500})])
            assert len(bench.memory.objects[cluster_key()].data) <= ROOT_BYTES_MAX
            assert len(image.topics) == number + 1
            if number % 20 == 19:
                assert await bench.image() == image
                assert len(bench.pages()) == 1
        assert cluster.known is not None
        assert cluster.known.content.snapshot is not None
        assert bench.pages() == [cluster.known.content.snapshot.key]

    run_fast(scenario())


def test_a_reader_that_saw_the_root_before_a_fold_still_gets_an_image() -> None:
    """The page it was about to read was replaced and deleted meanwhile: it reads the root again."""

    async def scenario() -> None:
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
        assert len(loaded[1].topics) >= 20

    run_fast(scenario())


def test_a_damaged_page_is_refused_not_believed() -> None:
    """One flipped bit of a snapshot: Corrupt, with what to do."""

    async def scenario() -> None:
        bench = Bench()
        cluster = await bench.controller()
        for number in range(30):
            await cluster.commit([created(number, filler="x" * 2000)])
        (page,) = bench.pages()
        stored = bench.memory.objects[page]
        stored.data = stored.data[:100] + bytes([stored.data[100] ^ 1]) + stored.data[101:]
        with pytest.raises(Corrupt, match="checksum"):
            await bench.image()

    run_fast(scenario())


@pytest.mark.parametrize(
    ("topic_id", "name", "partitions"),
    [(id_of(1), "../../etc/cron.d/x", 1), (id_of(1), "..", 1), (id_of(1), "", 1), ("1", "t", 1), (id_of(1), "t", 0)],
)
def test_fuzz_a_bucket_cannot_name_a_path(topic_id: str, name: str, partitions: int) -> None:
    """Found beside the fuzz target cluster_roots: a topic's name in cluster.json or its page became a directory."""
    topic = Topic(topic_id, name, partitions, {}, internal=False)
    for image in (ClusterImage(topics={topic_id: topic}), ClusterImage(deleted={topic_id: topic})):
        with pytest.raises(Corrupt, match="impossible"):
            decode_image(msgspec.json.encode(image), "page")
    with pytest.raises(Corrupt, match="impossible"):
        check_content(ClusterContent("c", records=(TopicCreated(topic_id, name, partitions, {}),)))


@pytest.mark.parametrize("seed", range(12))
def test_any_mix_of_faults_loses_no_record_that_was_confirmed_and_doubles_none(seed: int) -> None:
    """Every fault a store commits, at 5 % each, over folds: what commit() returned for is in the image, for good."""

    async def scenario() -> None:
        bench = Bench(seed=seed)
        cluster = await bench.controller()
        bench.faulty.plan = FaultPlan(even_rates(0.05), latency_s=(0.0, 0.2), late_s=(0.1, 20.0), flips=lambda _: False)
        confirmed: set[str] = set()
        for number in range(60):
            try:
                _, image = await cluster.commit([created(number, filler="x" * 1500)])
            except Retryable:
                continue
            confirmed.add(id_of(number))
            assert confirmed <= set(image.topics)
        bench.faulty.calm()
        await bench.faulty.settle()
        image = await bench.image()
        assert confirmed <= set(image.topics)
        assert len(confirmed) > 20

    run_fast(scenario())
