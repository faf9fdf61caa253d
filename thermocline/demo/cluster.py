"""`make demo-cluster`: data movement after the loss of machines, with three real brokers and stock clients, in about a
minute.

Three brokers copy a gigabyte to a bucket. Under constant load one broker is killed with -9, its directory is deleted,
and it starts again empty. The demo draws the bytes that had to move beside the bytes that stayed. Then all three
brokers are killed and all directories are deleted. Three empty brokers restore the cluster from the bucket, and every
byte is read and compared.

Expected values are computed here, never read back. Every figure is measured in this run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from thermocline.demo import load
from thermocline.demo.clients import produce, replay
from thermocline.demo.keys import Keys, client
from thermocline.demo.load import Load
from thermocline.demo.payload import Bulk, Failed
from thermocline.demo.picture import Picture, add_secure, play, scaled
from thermocline.demo.three import NODES, DemoCluster

_MEGABYTES: Final = 1000
_SEGMENTS: Final = 60  # segments of the whole history, so that its hot tail is small
_SEGMENT_MIN, _SEGMENT_MAX = 1 << 20, 16 << 20
_MOVED: Final = "thermocline_replication_bytes_in_total"
_STAYED: Final = "thermocline_replication_bytes_skipped_total"
_LOADED_MIN: Final = 500  # records acknowledged before the kill, and again after the replacement


def run(root: Path, keys: Keys, megabytes: int, settings: Sequence[str] = ()) -> None:
    history, picture = Bulk(megabytes * 1_000_000 // Bulk.VALUE_BYTES), Picture()
    segment = min(max(history.size // _SEGMENTS, _SEGMENT_MIN), _SEGMENT_MAX)
    cluster = DemoCluster(root, keys, [f"log.segment.bytes={segment}", *settings])
    try:
        cluster.start_all()
        _create(cluster)
        picture.act("three brokers started")
        picture.say(f"three brokers, three directories, one bucket: {cluster.bucket}")
        draw = partial(picture.draw_tiers, lambda: _tiers(cluster))
        written_s = produce(cluster.bootstrap, history, 0, history.count, lambda: draw("writing   "))
        picture.act("history written, three replicas, acks=all with fsync")
        cluster.wait(
            lambda: _is_sunk(cluster, segment),
            "history is copied to the bucket",
            lambda: draw("copying   "),
        )
        local, cold = _tiers(cluster)
        picture.act("copied to the bucket")
        picture.say(
            f"{cold / 1e6:.0f} MB in the bucket; the disks hold the tails: {local / 1e6:.0f} MB of all partitions"
        )
        moved, stayed, replaced_s, steady = _replace_one(cluster, picture)
        cluster.command("tier", "seal", "--wait", "-b", cluster.bootstrap)
        picture.act("all of it sealed and copied")
        cluster.kill(*NODES)
        cluster.delete(*NODES)
        picture.act("all three killed, all directories deleted")
        picture.say("all three killed with -9, all their directories deleted; the bucket is what is left")
        began = time.monotonic()
        cluster.start_all()
        picture.act("three empty brokers started")
        cluster.command("cluster", "restore", "--bucket", f"file://{cluster.bucket}", "--yes", "-b", cluster.bootstrap)
        cluster.wait(cluster.is_whole, "the restored cluster is whole")
        restored_s = time.monotonic() - began
        picture.act("restored from the bucket")
        picture.say("three empty brokers, `thermocline cluster restore`: reading everything back from offset 0")
        sums = [0] * Bulk.PARTITIONS
        read_s = replay(cluster.bootstrap, history, history.count, lambda: picture.tick(lambda: "reading"), sums)
        if sums != history.sums():
            raise Failed("the checksums of the partitions differ from those before the restore")
        steady.check(cluster.bootstrap)
        picture.act("every byte read and compared")
        picture.say("every byte as it was written, partition by partition: " + " ".join(f"{one:08x}" for one in sums))
        print("\n" + "\n".join(scaled(("had to move", moved), ("stayed in the bucket", stayed))))
        rows = [
            ("written, three replicas, acks=all, fsync", f"{history.size / 1e6 / written_s:.0f} MB/s"),
            ("broker replaced, all replicas in sync", f"{replaced_s:.1f} s"),
            ("bytes copied between brokers for it", f"{moved / 1e6:.1f} MB"),
            ("bytes that stayed in the bucket", f"{stayed / 1e6:.1f} MB"),
            ("longest wait for an acknowledgement meanwhile", f"{steady.longest_s:.1f} s"),
            ("cluster restored from the bucket", f"{restored_s:.1f} s"),
            ("read back", f"{history.size / 1e6 / read_s:.0f} MB/s"),
            ("acknowledged records lost, changed", f"0, 0 of {history.count + len(steady.acked):,}"),
        ]
        width = max(len(name) for name, _ in rows)
        print("\n" + "\n".join(f"  {name:<{width}}  {value}" for name, value in rows))
        print(f"\nWhere the seconds went:\n{picture.seconds()}")
    finally:
        cluster.close()


def _replace_one(cluster: DemoCluster, picture: Picture) -> tuple[int, int, float, Load]:
    """Kill a broker under load, delete its directory, and start it again. Returns (bytes moved, bytes that stayed,
    seconds, the ended load).
    """
    steady = Load(cluster.bootstrap)
    steady.begin()
    try:
        cluster.wait(lambda: len(steady.acked) > _LOADED_MIN, "the load is acknowledged")
        victim = next(node for node in reversed(NODES) if node != cluster.controller())
        cluster.kill(victim)
        cluster.delete(victim)
        picture.say(f"under load: broker {victim} killed with -9, its directory deleted; starting it again, empty")
        began = time.monotonic()
        fresh = cluster.start(victim)
        cluster.wait(
            lambda: cluster.is_whole(victim), "the broker is replaced", lambda: picture.tick(lambda: "replacing")
        )
        replaced_s = time.monotonic() - began
        moved, stayed = int(fresh.metric(_MOVED)), int(fresh.metric(_STAYED))
        acked = len(steady.acked)
        cluster.wait(lambda: len(steady.acked) > acked + _LOADED_MIN, "the load goes on")
    finally:
        steady.end()
    picture.act("a broker lost with its disk under load, and replaced")
    picture.say(f"replaced after {replaced_s:.1f} s: {moved / 1e6:.1f} MB moved, {stayed / 1e6:.0f} MB did not have to")
    for line in scaled(("had to move", moved), ("did not", stayed)):
        picture.say(line)
    return moved, stayed, replaced_s, steady


def _create(cluster: DemoCluster) -> None:
    admin = AdminClient(client(cluster.bootstrap))
    wanted = [
        NewTopic(name, partitions, len(NODES), config={"min.insync.replicas": "2"})
        for name, partitions in ((Bulk.TOPIC, Bulk.PARTITIONS), (load.TOPIC, load.PARTITIONS))
    ]
    for made in admin.create_topics(wanted).values():
        made.result(30)


def _is_sunk(cluster: DemoCluster, segment: int) -> bool:
    """Everything sealed is in the bucket and gone from the disks."""
    found = cluster.leaders_of(Bulk.TOPIC)
    return all(not one["copy_lag_bytes"] and one["local_bytes"] <= segment for one in found)


def _tiers(cluster: DemoCluster) -> tuple[int, int]:
    """Bytes of the history on its leaders' disks, and in the bucket."""
    found = cluster.leaders_of(Bulk.TOPIC)
    return sum(one["local_bytes"] for one in found), sum(one["cold_bytes"] for one in found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m thermocline.demo.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=_MEGABYTES, help=f"of history (default {_MEGABYTES})")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="a config of the brokers; repeatable")
    add_secure(parser)
    arguments = parser.parse_args()
    return play(lambda root, keys: run(root, keys, arguments.megabytes, arguments.set), is_secured=arguments.secure)


if __name__ == "__main__":
    sys.exit(main())
