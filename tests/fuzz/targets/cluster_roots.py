"""`cluster.json`, its snapshot page and `lease.json`, read by the broker and by the pipeline: Corrupt, or an image.

Input: which of them (one byte), then its bytes.
"""

from __future__ import annotations

import json
from uuid import UUID

import msgspec

from broker.controller.lease_watch import Lease
from broker.metadata.cluster_store import ClusterContent, check_content, decode_image
from broker.metadata.image import ClusterImage
from coldstore.keys import CLUSTER_KEY, LEASE_KEY
from coldstore.object_store import Got
from coldstore.root_format import RootCodec
from logformat.errors import Corrupt
from logformat.values import is_topic_name
from tests.fuzz.inputs import golden
from thermocline.pipeline import topics

_CLUSTER = RootCodec(ClusterContent)
_READERS_CLUSTER = RootCodec(topics.ClusterContent)
_LEASE = RootCodec(Lease)


def seeds() -> list[bytes]:
    cluster, lease = golden("broker_cluster_v1.json"), golden("broker_lease_v1.json")
    image = ClusterImage().with_records(_CLUSTER.decode(CLUSTER_KEY, _got(cluster)).content.records)
    envelope = json.loads(cluster)
    envelope.pop("crc32c", None)
    return [
        b"\0" + cluster,
        b"\0" + json.dumps(envelope, separators=(",", ":")).encode(),
        b"\0" + json.dumps(envelope, separators=(",", ":")).replace('"events"', '"../events"').encode(),
        b"\x01" + lease,
        b"\x02" + msgspec.json.encode(image),
    ]


def run(data: bytes) -> None:
    kind, body = data[:1], data[1:]
    try:
        if kind == b"\x01":
            _LEASE.decode(LEASE_KEY, _got(body))
        elif kind == b"\x02":
            image = decode_image(body, "fuzzed")
            _safe(image)
            assert decode_image(msgspec.json.encode(image), "fuzzed") == image
        else:
            content = _CLUSTER.decode(CLUSTER_KEY, _got(body)).content
            check_content(content)
            image = ClusterImage().with_records(content.records)
            _safe(image)
            # A commit that is made again after an unknown outcome applies its records twice.
            assert image.with_records(content.records[-1:]) is not image
            assert decode_image(msgspec.json.encode(image), "fuzzed") == image
    except Corrupt:
        pass
    if kind == b"\0":
        try:
            _READERS_CLUSTER.decode(CLUSTER_KEY, _got(body))
        except Corrupt:
            return


def _safe(image: ClusterImage) -> None:
    """Names that become directories, ids that become keys."""
    for topic in (*image.topics.values(), *image.deleted.values()):
        assert is_topic_name(topic.name) and str(UUID(topic.topic_id)) == topic.topic_id and topic.partitions > 0, topic


def _got(data: bytes) -> Got:
    return Got(data, "etag", len(data))
