"""cluster.json and lease.json as a broker wrote them stay readable, and their page tells the truth."""

from __future__ import annotations

import json
import re

import msgspec

from broker.controller.lease_watch import Lease
from broker.metadata.cluster_store import ClusterContent
from broker.metadata.image import ClusterImage
from coldstore.object_store import Got
from coldstore.root_format import RootCodec
from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "formats" / "cluster.md"


def golden(name: str) -> Got:
    data = (ROOT / "tests" / "golden" / name).read_bytes()
    return Got(data, "etag", len(data))


def test_the_golden_cluster_adds_up() -> None:
    """The bytes of version 1 give the image they gave when they were written."""
    root = RootCodec(ClusterContent).decode("cluster.json", golden("broker_cluster_v1.json"))
    image = ClusterImage().with_records(root.content.records)
    (topic,) = image.topics.values()
    assert (topic.name, topic.partitions, topic.configs["segment.bytes"]) == ("events", 3, "16777216")
    assert image.deleted == {}
    assert (image.nodes[1].epoch, image.producer_ids_end) == (0, 1000)
    assert (root.epoch, root.version) == (1, 7)


def test_the_golden_cluster_with_broker_configs_adds_up() -> None:
    """What was set on all brokers and on one; a root of before, without such records, has none."""
    root = RootCodec(ClusterContent).decode("cluster.json", golden("broker_cluster_v1_configs.json"))
    image = ClusterImage().with_records(root.content.records)
    assert image.cluster_configs == {"log.retention.ms": "86400000", "message.max.bytes": "2000000"}
    assert image.node_configs == {1: {"max.connections": "500"}}
    before = RootCodec(ClusterContent).decode("cluster.json", golden("broker_cluster_v1.json"))
    assert ClusterImage().with_records(before.content.records).cluster_configs == {}


def test_the_golden_lease_is_released() -> None:
    """A clean stop's last act is readable."""
    lease = RootCodec(Lease).decode("lease.json", golden("broker_lease_v1.json")).content
    assert lease.released
    assert (lease.controller_epoch, lease.lease_ms) == (1, 15_000)


def test_the_pages_example_is_the_golden_file() -> None:
    """What the page shows is what the broker wrote, but for the ring and white space."""
    block = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    written = json.loads(golden("broker_cluster_v1.json").data)
    del written["ring"]
    assert json.loads(block.group(1)) == written


def test_the_page_names_every_record_kind_and_field() -> None:
    """A record kind or field that is not documented fails here."""
    text = PAGE.read_text()
    kinds = msgspec.inspect.type_info(ClusterContent).fields[-1].type.item_type.types  # type: ignore[attr-defined]
    for kind in kinds:
        assert f"| `{kind.tag}` |" in text
        for field in kind.fields:
            assert f"`{field.name}`" in text, (kind.tag, field.name)
