"""One Spark session with the stock Kafka connector beside our source: what do they say of the same topic?

    python -m tests.support.pipeline.spark_peer_driver JARS BOOTSTRAP BUCKET TOPIC DIRECTORY

Prints one JSON object. A process of its own, because jars belong to a session's start.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from thermocline.pipeline.spark.session import session


def main(jars: str, bootstrap: str, bucket: str, topic: str, directory: str) -> None:
    settings = {"spark.jars": jars, "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    spark = session("peer", "local[2]", settings)
    spark.sparkContext.setLogLevel("ERROR")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    stock = spark.read.format("kafka").options(**options).load()
    ours = spark.read.format("thermocline").options(**options, bucket=bucket).load()

    def streamed(format: str, more: dict[str, str]) -> Any:
        """Two runs over one checkpoint into files: a restart in the middle."""
        out, checkpoint = f"{directory}/{format}", f"{directory}/{format}-checkpoint"
        for limit in ("100", "1000"):
            reader = spark.readStream.format(format).options(**options, **more, startingOffsets="earliest")
            writer = reader.option("maxOffsetsPerTrigger", limit).load().writeStream.format("parquet")
            writer = writer.option("path", out).option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=limit == "1000").start() if limit == "1000" else writer.start()
            if limit == "1000":
                query.awaitTermination(120)
            else:
                while not any(progress["numInputRows"] for progress in query.recentProgress):
                    query.awaitTermination(0.1)
                query.stop()  # in the middle of whatever it does
        return spark.read.parquet(out)

    found = {
        "rows": stock.count(),
        "schema": [stock.schema.simpleString(), ours.schema.simpleString()],
        "only stock": stock.exceptAll(ours).count(),
        "only ours": ours.exceptAll(stock).count(),
    }
    for name, frame in (
        ("stock stream", streamed("kafka", {})),
        ("our stream", streamed("thermocline", {"bucket": bucket})),
    ):
        found[name] = [frame.count(), frame.exceptAll(stock).count(), stock.exceptAll(frame).count()]
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
