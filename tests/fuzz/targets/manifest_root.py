"""A manifest root from anybody's hand: Corrupt, KeyRefused where the marker of an encrypted object is at the end, or a
manifest whose books balance and that round-trips.

Input: the root's bytes. The CRC in the envelope is optional in the format, so damage passes it by leaving it out.
"""

from __future__ import annotations

import json

from coldstore.encryption.marker import MAGIC, KeyRefused
from coldstore.keys import manifest_key
from coldstore.manifest.manifest import EditRefused, Manifest
from coldstore.manifest.manifest_format import MANIFEST_FORMAT
from coldstore.manifest.manifest_reader import check_manifest_root
from coldstore.object_store import Got
from coldstore.roots.root_format import Root, RootCodec, RootTooLarge
from logformat.errors import Corrupt
from tests.support.repository import golden
from tests.support.tier.cold_values import TOPIC_ID, remote_segment

KEY = manifest_key(TOPIC_ID, 3)


def _check(root: Root[Manifest]) -> None:
    check_manifest_root(KEY, root, TOPIC_ID, 3)


CODEC = RootCodec(MANIFEST_FORMAT, _check)


def seeds() -> list[bytes]:
    sealed, plain = golden("coldstore_manifest_v1_crc.json"), golden("coldstore_manifest_v1.json")
    root = RootCodec(MANIFEST_FORMAT).decode(KEY, Got(plain, "etag", len(plain)))
    small = Manifest(topic_id=TOPIC_ID, topic="events", partition=3, leader_epoch=root.epoch)
    grown = small.add(remote_segment(0, 10, epoch=root.epoch)).add(remote_segment(10, 30, epoch=root.epoch))
    made = [CODEC.encode(root.version, root.epoch, root.ring, content) for content in (small, grown, root.content)]
    return [sealed, plain, *made, *(_without_crc(data) for data in made)]


def _without_crc(data: bytes) -> bytes:
    """The envelope's own CRC left out: what damage under no seal looks like."""
    envelope = json.loads(data)
    del envelope["crc32c"]
    return json.dumps(envelope, separators=(",", ":")).encode()


def run(data: bytes) -> None:
    try:
        root = CODEC.decode(KEY, Got(data, "etag", len(data)))
    except Corrupt:
        return
    except KeyRefused:
        assert data.endswith(MAGIC)
        return
    manifest = root.content
    assert manifest.coverage_start <= max(manifest.remote_end_offset, manifest.coverage_start)
    assert manifest.added - manifest.removed == manifest.live
    assert manifest.bucket_end_offset >= manifest.remote_end_offset and manifest.max_timestamp_ms >= -1
    CODEC.is_as_written(data)
    try:
        again = CODEC.encode(root.version, root.epoch, root.ring, manifest)
    except RootTooLarge:
        return
    assert CODEC.decode(KEY, Got(again, "etag", len(again))).content == manifest
    _edited(manifest)


def _edited(manifest: Manifest) -> None:
    """Edits refuse or give a manifest that passes its own check."""
    end = manifest.remote_end_offset
    for edit in (
        lambda: manifest.add(remote_segment(end, end + 5, epoch=manifest.leader_epoch, n=2**40)),
        lambda: manifest.set_log_start(end),
        lambda: manifest.set_log_start(end).expire(manifest.tail),
        lambda: manifest.reserve(2**62),
        lambda: manifest.release_reservation(manifest.bucket_end_offset),
    ):
        try:
            edit().check()
        except EditRefused:
            continue
