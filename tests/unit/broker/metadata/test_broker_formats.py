"""cluster.json and lease.json as a broker wrote them stay readable, and their page tells the truth."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from broker.membership.lease_watch import Lease
from broker.metadata import format_1
from broker.metadata.cluster_content import CLUSTER_FORMAT, ClusterContent, image_of
from broker.metadata.image import ClusterImage, check
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.records import Row, ScramSecret
from coldstore.object_store import Got
from coldstore.roots.root_format import RootCodec
from logformat.errors import Corrupt
from logformat.values import NewerFormat
from tests.support import repository
from tests.support.brokers.cluster_kit import registration
from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "formats" / "cluster.md"


def golden(name: str) -> Got:
    data = repository.golden(name)
    return Got(data, "etag", len(data))


def image_of_root(name: str) -> ClusterImage:
    content = RootCodec(CLUSTER_FORMAT).decode("cluster.json", golden(name)).content
    assert content.page is None
    image = image_of(content, None)
    check(image)
    return image


def test_the_golden_cluster_of_format_1_adds_up() -> None:
    """One node led everything in its own epoch: replicas and in-sync set are that node, the leader epoch is its; the
    first broker epoch lies above the producer ids it gave out."""
    root = RootCodec(CLUSTER_FORMAT).decode("cluster.json", golden("broker_cluster_v1.json"))
    image = image_of_root("broker_cluster_v1.json")
    (topic,) = image.topics.values()
    assert (topic.name, topic.partitions, topic.configs["segment.bytes"]) == ("events", 3, "16777216")
    assert set(topic.rows) == {Row((1,), 1, 0, 1, (1,), 0)}
    assert image.deleted == {}
    node = image.nodes[1]
    assert (node.broker_epoch, node.directory_id, node.active) == (1, "9IDRFFGNTfSmnKBNy4t6CQ", True)
    assert (image.next_broker_epoch, ProducerIds(node.broker_epoch).give() >= 1000) == (2, True)
    assert (root.epoch, root.version) == (1, 7)


def test_the_next_start_on_format_1_leads_above_the_nodes_epoch() -> None:
    """R14: whoever followed an epoch of before meets a higher one."""
    image = image_of_root("broker_cluster_v1.json")
    after = image.with_records(registration(image, "next"))
    check(after, image)
    (topic,) = after.topics.values()
    assert set(topic.rows) == {Row((1,), 1, 1, 2, (1,), 1)}


def test_the_golden_cluster_of_format_1_with_broker_configs_adds_up() -> None:
    """What was set on all brokers and on one; a root of before, without such records, has none."""
    image = image_of_root("broker_cluster_v1_configs.json")
    assert image.cluster_configs == {"log.retention.ms": "86400000", "message.max.bytes": "2000000"}
    assert image.node_configs == {1: {"max.connections": "500"}}
    assert image_of_root("broker_cluster_v1.json").cluster_configs == {}


def test_the_golden_cluster_adds_up() -> None:
    """The bytes of format 2 give the image they gave when they were written."""
    image = image_of_root("broker_cluster_v2.json")
    assert {topic.name: len(topic.rows) for topic in image.topics.values()} == {
        "events": 3,
        "plain": 1,
        "__consumer_offsets": 2,
    }
    assert {row for topic in image.topics.values() for row in topic.rows} == {Row((1,), 1, 1, 1, (1,), 1)}
    assert (image.nodes[1].broker_epoch, image.next_broker_epoch, image.deleted) == (2, 3, {})
    assert image.node_configs == {1: {"max.connections": "500"}}


@pytest.mark.parametrize("partitions", [0, -1, 10_001, 2**31])
def test_a_format_1_bucket_cannot_ask_for_memory(partitions: int) -> None:
    """A number stood for rows: one that no controller wrote is refused, not made."""
    records = (
        format_1.NodeStarted(1, "d", "i", "h", 1),
        format_1.TopicCreated("0793d893-8e10-4347-ba51-14e540570635", "t", partitions, {}),
    )
    with pytest.raises(Corrupt, match="impossible"):
        image_of(format_1.Content1("c", None, records), None)


def test_cluster_d53_each_kind_of_root_counts_its_formats_by_itself() -> None:
    """Software that knows a lower format refuses the root, and never writes over it; that `cluster.json` has a format 2
    makes no lease of format 2 readable."""
    bumped = golden("broker_cluster_v2.json").data.replace(b'"format_version":2', b'"format_version":3')
    with pytest.raises(NewerFormat, match="has format 3, but this version knows 2"):
        RootCodec(CLUSTER_FORMAT).decode("cluster.json", Got(bumped, "etag", len(bumped)))
    with pytest.raises(NewerFormat, match="has format 2, but this version knows 1"):
        RootCodec(format_1.Content1).decode("cluster.json", golden("broker_cluster_v2.json"))
    lease = golden("broker_lease_v1.json").data.replace(b'"format_version":1', b'"format_version":2')
    with pytest.raises(NewerFormat, match="has format 2, but this version knows 1"):
        RootCodec(Lease).decode("lease.json", Got(lease, "etag", len(lease)))


def test_metadata_of_before_a_field_is_read_without_it() -> None:
    """A root and a page that were written before the secret of SCRAM."""
    assert image_of_root("broker_cluster_v2.json").scram_secret == b""
    page = msgspec.json.decode(msgspec.json.encode(ClusterImage().with_records([ScramSecret(b"s" * 32)])))
    assert page.pop("scram_secret")
    assert msgspec.convert(page, ClusterImage) == ClusterImage()


def test_the_golden_lease_is_released() -> None:
    """A clean stop's last act is readable."""
    lease = RootCodec(Lease).decode("lease.json", golden("broker_lease_v1.json")).content
    assert lease.released
    assert (lease.controller_epoch, lease.lease_ms) == (1, 15_000)


def test_the_pages_example_is_the_golden_file() -> None:
    """What the page shows is what the broker wrote, but for the ring and white space."""
    block = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    written = json.loads(golden("broker_cluster_v2.json").data)
    del written["ring"]
    assert json.loads(block.group(1)) == written


def test_the_page_names_every_record_kind_and_field() -> None:
    """A record kind or field that is not documented fails here."""
    text = PAGE.read_text()
    kinds = msgspec.inspect.type_info(ClusterContent).fields[-1].type.item_type.types  # type: ignore[attr-defined]
    security = {"scram", "secret", "acls", "quota"}
    assert {kind.tag for kind in kinds} == security | {"node", "gone", "topic", "rows", "deleted", "purged", "config"}
    for field in msgspec.structs.fields(Row):
        assert f"| `{field.name}` |" in text, field.name
    for kind in kinds:
        assert f"| `{kind.tag}` |" in text
        for field in kind.fields:
            assert f"`{field.name}`" in text, (kind.tag, field.name)
