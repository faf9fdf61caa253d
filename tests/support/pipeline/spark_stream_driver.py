"""A streaming driver to be killed: the source into a Parquet file sink, until it has read all there is.

    python -m tests.support.pipeline.spark_stream_driver OPTIONS_JSON OUT CHECKPOINT

Prints `batch N` for every finished batch.
"""

from __future__ import annotations

import json
import sys

from thermocline.pipeline.spark.session import session


def main(options: dict[str, str], out: str, checkpoint: str) -> None:
    spark = session("driver", "local[2]", {"spark.sql.session.timeZone": "UTC"})
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.format("thermocline").options(**options).load()
    writer = rows.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    told = -1
    while True:
        done = query.awaitTermination(0.05)
        for progress in query.recentProgress:
            if progress["batchId"] > told:
                told = progress["batchId"]
                print(f"batch {told}", flush=True)
        if done:
            break
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3])
