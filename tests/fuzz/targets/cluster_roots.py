"""`cluster.json` of both formats, its page and `lease.json`, read by broker and pipeline: Corrupt, or an image.

Input: which of them (one byte), then its bytes.
"""

from __future__ import annotations

import json
import zlib
from uuid import UUID

import msgspec

from broker.membership.lease_watch import Lease
from broker.metadata.cluster_content import CLUSTER_FORMAT, ClusterContent, ClusterPage, Controller, image_of
from broker.metadata.format_1 import Content1
from broker.metadata.image import ClusterImage
from coldstore.encryption.marker import MAGIC, KeyRefused
from coldstore.keys import CLUSTER_KEY, LEASE_KEY
from coldstore.object_store import Got
from coldstore.roots.root_format import RootCodec
from logformat.errors import Corrupt
from logformat.values import is_topic_name
from tests.support.repository import golden
from thermocline.pipeline import topics

_CLUSTER = RootCodec(CLUSTER_FORMAT)
_READERS_CLUSTER = RootCodec(topics.CLUSTER_FORMAT)
_LEASE = RootCodec(Lease)
_PAGE = {ClusterContent: "page", Content1: "snapshot"}


def seeds() -> list[bytes]:
    cluster, lease = golden("broker_cluster_v1.json"), golden("broker_lease_v1.json")
    cluster_2 = golden("broker_cluster_v2.json")
    image = image_of(_CLUSTER.decode(CLUSTER_KEY, _got(cluster_2)).content, None)
    envelope = json.loads(cluster)
    envelope.pop("crc32c", None)
    return [
        b"\0" + cluster,
        b"\0" + json.dumps(envelope, separators=(",", ":")).encode(),
        b"\0" + json.dumps(envelope, separators=(",", ":")).replace('"events"', '"../events"').encode(),
        b"\0" + cluster_2,
        b"\x01" + lease,
        b"\x02" + msgspec.json.encode(image),
    ]


def run(data: bytes) -> None:
    kind, body = data[:1], data[1:]
    try:
        if kind == b"\x01":
            _LEASE.decode(LEASE_KEY, _got(body))
        elif kind == b"\x02":
            image = _through_page(body)
            _safe(image)
            assert _through_page(msgspec.json.encode(image)) == image
        else:
            content = _CLUSTER.decode(CLUSTER_KEY, _got(body)).content
            if content.page is not None:
                content = msgspec.structs.replace(content, **{_PAGE[type(content)]: None})
            image = image_of(content, None)
            _safe(image)
            if isinstance(content, ClusterContent):
                # A commit that is made again after an unknown outcome applies its records twice.
                assert image.with_records(content.records[-1:]) is not image
            assert _through_page(msgspec.json.encode(image)) == image
    except Corrupt:
        pass
    except KeyRefused:
        assert body.endswith(MAGIC)
        return
    if kind == b"\0":
        try:
            _READERS_CLUSTER.decode(CLUSTER_KEY, _got(body))
        except Corrupt:
            return


def _through_page(body: bytes) -> ClusterImage:
    data = zlib.compress(body)
    return image_of(ClusterContent("c", Controller(1, "i"), ClusterPage("fuzzed", len(data), 0, len(body))), data)


def _safe(image: ClusterImage) -> None:
    """Names that become directories, ids that become keys."""
    for topic in (*image.topics.values(), *image.deleted.values()):
        assert is_topic_name(topic.name) and str(UUID(topic.topic_id)) == topic.topic_id and topic.partitions > 0, topic


def _got(data: bytes) -> Got:
    return Got(data, "etag", len(data))
