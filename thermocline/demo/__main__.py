"""`make demo`: one broker's data through both tiers in about a minute, with real processes, a stock client and Spark.

A broker on a directory bucket takes a gigabyte from confluent-kafka. Its segments are copied to the bucket and expire
locally. The broker is killed with -9 in the middle. Everything is replayed from offset 0, and every byte is compared.
A planned replacement follows: seal, stop, deletion of the data directory. A new broker on the bucket alone replays
everything again. At last that broker and its directory are removed too. Spark then reads the bucket, and makes a table
of it.

Expected values are computed here, never read back. Every figure is measured in this run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from thermocline.demo import spark_act
from thermocline.demo.broker import SETTINGS, DemoBroker, free_address
from thermocline.demo.clients import STALL_S, produce, replay
from thermocline.demo.keys import Keys
from thermocline.demo.payload import KILL_AFTER, PARTITIONS, RECORDS, VALUE_BYTES, Failed, Payload
from thermocline.demo.picture import TICK_S, Picture, add_secure, play


def run(root: Path, keys: Keys) -> None:
    payload, picture = Payload(), Picture()
    data_dir, bucket = root / "broker", root / "bucket"
    megabytes = RECORDS * VALUE_BYTES / 1e6
    broker = DemoBroker.start(data_dir, bucket, keys, free_address())
    try:
        picture.act("a broker started")
        picture.say(f"a broker on {data_dir}, its bucket the directory {bucket}")
        taken = produce(broker.kafka, payload, 0, KILL_AFTER, lambda: picture.draw(broker, "producing "))
        broker.kill()
        picture.say(f"kill -9 after {KILL_AFTER:,} acknowledged records; starting it again")
        broker = DemoBroker.start(data_dir, bucket, keys, broker.kafka)
        taken += produce(broker.kafka, payload, KILL_AFTER, RECORDS, lambda: picture.draw(broker, "producing "))
        picture.act("a gigabyte produced, with a kill -9 and a restart in the middle")
        picture.say(f"{RECORDS:,} records, {megabytes:.0f} MB, acknowledged by acks=all with fsync")
        _wait_copied(broker, picture)
        picture.act("the rest of it copied to the bucket")
        local, cold = broker.local_bytes, broker.cold_bytes
        picture.say(
            f"copied: {local / 1e6:.0f} MB left on disk, {cold / 1e6:.0f} MB in the bucket; replaying from offset 0"
        )
        cold_s = replay(broker.kafka, payload, RECORDS, lambda: picture.draw(broker, "replaying "))
        picture.act("replayed from the bucket by a consumer")
        picture.say("every byte as it was produced")
        broker.seal()
        requests = broker.metric("thermocline_store_requests_total")
        dollars = broker.metric("thermocline_estimated_dollars_per_day")
        broker.stop()
        shutil.rmtree(data_dir)
        picture.say("sealed, stopped, and the whole data directory deleted; a new broker on the bucket alone")
        began = time.monotonic()
        broker = DemoBroker.start(data_dir, bucket, keys, broker.kafka)
        replaced_s = time.monotonic() - began
        picture.act("sealed, stopped, its disk deleted, a new broker started on the bucket")
        again_s = replay(broker.kafka, payload, RECORDS, lambda: picture.draw(broker, "replaying "))
        picture.act("replayed again by a consumer")
        picture.say("every byte again, no gap; that broker stopped too, its directory deleted")
        broker.stop()
        shutil.rmtree(data_dir)
        spark_rows = spark_act.perform(root, payload, picture)
        rows = [
            ("produced, acks=all, fsync", f"{megabytes / taken:.0f} MB/s"),
            ("replayed from the bucket", f"{megabytes / cold_s:.0f} MB/s"),
            ("replayed by the replacement", f"{megabytes / again_s:.0f} MB/s"),
            *spark_rows,
            ("replacement ready after", f"{replaced_s:.1f} s"),
            ("local bytes after copying", f"{local / 1e6:.0f} MB"),
            ("bytes in the bucket", f"{cold / 1e6:.0f} MB"),
            ("store requests of the first broker since its restart", f"{requests:.0f}"),
            ("estimated cost at S3 list prices", f"${dollars:.4f} a day"),
            ("records lost, changed, doubled", "0, 0, 0"),
        ]
        width = max(len(name) for name, _ in rows)
        print("\n" + "\n".join(f"  {name:<{width}}  {value}" for name, value in rows))
        print(f"\nWhere the seconds went:\n{picture.seconds()}")
        print(
            "\nSpark's first start on a machine may take as long as all the rest: its files come from the disk,\n"
            "and the kernels that decode records are compiled once."
        )
    finally:
        if broker.process.poll() is None:
            broker.kill()


def _wait_copied(broker: DemoBroker, picture: Picture) -> None:
    """Wait until every sealed segment is in the bucket and only active segments are on disk."""
    deadline = time.monotonic() + STALL_S
    limit = PARTITIONS * SETTINGS["log.segment.bytes"]
    while any(p["copy_lag_bytes"] for p in broker.status()) or broker.local_bytes > limit:
        if time.monotonic() > deadline:
            raise Failed("segments were not copied to the bucket")
        picture.draw(broker, "copying   ")
        time.sleep(TICK_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m thermocline.demo", description=__doc__.splitlines()[0])
    add_secure(parser)
    return play(run, is_secured=parser.parse_args().secure)


if __name__ == "__main__":
    sys.exit(main())
