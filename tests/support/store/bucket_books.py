"""What a bucket's manifests name, worked out from their bytes alone: a second reading of docs/formats/manifest.md.

Owns no code of the project on purpose: `bucket gc` is compared with it.
"""

from __future__ import annotations

import io
import json
import re

import pyarrow.parquet

from tests.support.store.buckets import Bucket

_EPOCH_OF_SEGMENT = re.compile(r"/\d{20}-(\d+)-[0-9a-f-]{36}\.log$")
_EPOCH_OF_PAGE = re.compile(r"/\d{20}-\d{20}-(\d+)-[0-9a-f-]{36}\.parquet$")


def named_keys(bucket: Bucket, listing: set[str]) -> dict[str, int]:
    """Key → epoch of the root that names it, the roots themselves left out."""
    named: dict[str, int] = {}
    for key in listing:
        if key.startswith("topics/") and key.endswith("/manifest.json"):
            root = json.loads(bucket.read(key))
            prefix = key.removesuffix("manifest.json")
            for found in _of_manifest(bucket, prefix, root["content"]):
                named[found] = root["epoch"]
    return named


def orphans(bucket: Bucket) -> dict[str, str]:
    """Key → 'deletable' or 'pending', for every object below topics/ that no manifest names."""
    listing = bucket.listing()
    named = named_keys(bucket, listing)
    epochs = {
        key.removesuffix("manifest.json"): json.loads(bucket.read(key))["epoch"]
        for key in listing
        if key.endswith("/manifest.json")
    }
    found = {}
    for key in listing - set(named):
        if not key.startswith("topics/") or key.endswith("/manifest.json"):
            continue
        prefix = "/".join(key.split("/")[:3]) + "/"
        match = _EPOCH_OF_PAGE.search(key) or _EPOCH_OF_SEGMENT.search(key)
        assert match, f"a name that is not of the format: {key}"
        found[key] = "deletable" if int(match[1]) < epochs[prefix] else "pending"
    return found


def by_names(rows: list[dict]) -> dict[str, str]:
    """What `bucket gc --json` says, as far as names tell: which of the deletable it keeps, footers tell."""
    return {row["key"]: "deletable" if row["state"] == "kept" else row["state"] for row in rows}


def _of_manifest(bucket: Bucket, prefix: str, manifest: dict) -> list[str]:
    cursor = manifest.get("deletion_cursor", 0)
    keys = [_segment_key(prefix, s) for s in manifest.get("tail", [])]
    for uuid, base, epoch, _size, _since in manifest.get("replaced", []):
        keys.append(_segment_key(prefix, {"base_offset": base, "leader_epoch": epoch, "uuid": uuid}))
    for page in manifest.get("pages", []):
        keys += _of_page(bucket, prefix, page, cursor)
    snapshot = manifest.get("snapshot")
    if snapshot is not None:
        keys.append(f"{prefix}snapshots/{snapshot['end_offset']:020d}-{snapshot['epoch']}-{snapshot['uuid']}.log")
    return keys


def _of_page(bucket: Bucket, prefix: str, page: dict, cursor: int) -> list[str]:
    span = f"{page['first_offset']:020d}-{page['end_offset']:020d}"
    key = f"{prefix}pages/{span}-{page['epoch']}-{page['uuid']}.parquet"
    rows = pyarrow.parquet.read_table(io.BytesIO(bucket.read(key))).to_pylist()
    if page["level"] == 1:
        return [key, *(found for row in rows for found in _of_page(bucket, prefix, row, cursor))]
    return [key, *(_segment_key(prefix, row) for row in rows if row["end_offset"] > cursor)]


def _segment_key(prefix: str, segment: dict) -> str:
    return f"{prefix}segments/{segment['base_offset']:020d}-{segment['leader_epoch']}-{segment['uuid']}.log"
