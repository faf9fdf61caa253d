"""What a pass over the bucket costs: requests, bytes written, memory. One broker, one partition.

    bench/cold_compaction.py                    1 GiB in objects of 128 MiB, 10 % of the keys distinct
    bench/cold_compaction.py --mebibytes 256    a look
    bench/cold_compaction.py --s3               on S3 (versitygw), which is billed by the request; else a directory

First all of the bucket is dirty; then half as much is added, of half the keys, and a second pass cleans. For each:
requests to the store by operation ÷ GiB of log that the bucket held, bytes written ÷ bytes of the new objects that
stay, and the memory of the broker, and of its cleaner's process, above what it was before.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))
from bench.compaction_scale import say, watched
from bench.rows.compact import fill, set_ratio
from bench.sides import Side, Thermocline, create, metrics
from tests.support.store.s3_servers import versitygw_server

SEGMENT_BYTES: Final = 128 << 20
VALUE_BYTES: Final = 1000
RECORD_BYTES: Final = VALUE_BYTES + 24  # about, with its key
MAP_BYTES: Final = 16 << 20
WAIT_S: Final = 900.0


def manifest(bucket: Path, topic: str) -> dict:
    for path in bucket.rglob("manifest.json"):
        content: dict = json.loads(path.read_text())["content"]
        if content["topic"] == topic:
            return content
    raise RuntimeError(f"no manifest of {topic}")


def wait_copied(bucket: Path, topic: str, nbytes: int) -> dict:
    """Until all sealed segments of `nbytes` of log are in the bucket."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        found = manifest(bucket, topic)
        if found.get("added", {}).get("log_bytes", 0) >= nbytes - SEGMENT_BYTES:
            time.sleep(3)
            say(f"copied: {len(found['tail'])} objects")
            return found
        time.sleep(0.5)
    raise RuntimeError(f"{nbytes} bytes are not copied")


def counter(side: Side, name: str) -> float:
    prefix = f"thermocline_cold_cleaner_{name}_total"
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics(side.http) if line.startswith(prefix))


def measure(side: Side, bucket: Path, topic: str, what: str) -> None:
    """One pass over the bucket."""
    before, requests, written = manifest(bucket, topic), side.store_requests(), counter(side, "written_bytes")
    passes, rss_mb, began = counter(side, "passes"), side.rss_mb(), time.monotonic()
    old = {segment["uuid"] for segment in before["tail"]}
    with watched(side) as peaks:  # type: ignore[arg-type]
        set_ratio(side, topic, "0.01")
        while counter(side, "passes") == passes:
            if time.monotonic() > began + WAIT_S:
                raise RuntimeError("no pass came to its end")
            time.sleep(0.2)
        took_s = time.monotonic() - began
    spent = {name: count - requests.get(name, 0) for name, count in side.store_requests().items()}
    after = manifest(bucket, topic)
    new = [segment for segment in after["tail"] if segment["uuid"] not in old]
    gib = before["live"]["log_bytes"] / 2**30
    stays = sum(segment["object_bytes"] for segment in new)
    counts = {name: count for name, count in spent.items() if count}
    print(f"{what}: {gib:.2f} GiB in {len(old)} objects became {len(after['tail'])}, {took_s:.1f} s")
    print(f"  requests a GiB: {sum(counts.values()) / gib:.1f}  {counts}")
    print(f"  bytes written ÷ bytes that stay: {(counter(side, 'written_bytes') - written) / stays:.3f}")
    print(f"  memory: broker {peaks.broker - rss_mb:+.0f} MB ({peaks.broker:.0f}), cleaner's {peaks.cleaner:.0f} MB")
    set_ratio(side, topic, "1.0")


@contextmanager
def bucket_of(directory: Path, *, is_s3: bool) -> Iterator[tuple[str, dict[str, str]]]:
    """URL of a bucket whose files are below `directory`, and the environment of a broker that uses it."""
    if not is_s3:
        yield f"file://{directory}", {}
        return
    directory.mkdir()
    with versitygw_server(str(directory)) as server:
        yield server.bucket_url("bench"), server.environment()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--segment-mebibytes", type=int, default=SEGMENT_BYTES >> 20)
    parser.add_argument("--s3", action="store_true")
    options = parser.parse_args()
    nbytes, segment = options.mebibytes << 20, options.segment_mebibytes << 20
    keys = nbytes // RECORD_BYTES // 10
    with tempfile.TemporaryDirectory(prefix="thermocline-cold-") as root:
        bucket = Path(root) / "bucket"
        settings: dict[str, object] = {"log.cleaner.dedupe.buffer.size": MAP_BYTES, "log.cleaner.backoff.ms": 3_600_000}
        settings["thermocline.cold.compaction.bytes.per.hour"] = 1 << 50  # no throttle
        with (
            bucket_of(bucket, is_s3=options.s3) as (url, environment),
            Thermocline(Path(root), "broker", url, environment, settings).running() as side,
        ):
            configs = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "1.0", "segment_bytes": segment}
            topic = create(side, "table", 1, **configs, remote_storage_enable="true", local_retention_bytes=segment)
            fill(side, topic, VALUE_BYTES, (nbytes + segment // 2) // RECORD_BYTES, range(keys))
            wait_copied(bucket, topic, nbytes)
            measure(side, bucket, topic, "all dirty")
            fill(side, topic, VALUE_BYTES, nbytes // 2 // RECORD_BYTES, range(keys // 2, keys))
            wait_copied(bucket, topic, nbytes + nbytes // 2)
            measure(side, bucket, topic, "half as much added")


if __name__ == "__main__":
    main()
