"""A user's Spark program: sums of a whole topic from the bucket, then the topic in an Iceberg table.

    python -m thermocline.demo.spark_replay BUCKET TOPIC WAREHOUSE TABLE OFFSET_WEIGHT

Prints a JSON line for each finished act: `java`, `workers`, `replay` (with the sums by partition), `archive`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping

from pyspark.sql import functions as F

from thermocline.pipeline.jobs.archive import archive
from thermocline.pipeline.jobs.iceberg_catalog import catalog_config
from thermocline.pipeline.spark.session import session


def main(bucket: str, topic: str, warehouse: str, table: str, offset_weight: str) -> None:
    spark = session("thermocline demo")
    print_act("java", {})
    rows = spark.read.format("thermocline").option("bucket", bucket).option("subscribe", topic).load()
    rows.head()  # starts Spark's Python workers, some seconds of imports
    print_act("workers", {})
    began = time.monotonic()
    weighed = F.crc32("value") * (F.col("offset") % int(offset_weight) + 1)
    sums = rows.groupBy("partition").agg(F.count("*"), F.min("offset"), F.max("offset"), F.sum(weighed))
    found = [list(row) for row in sums.sort("partition").collect()]
    print_act("replay", {"seconds": time.monotonic() - began, "sums": found})
    summary = archive(spark, bucket, topic, table, catalog=catalog_config(warehouse=warehouse))
    print_act("archive", summary.row())
    spark.stop()


def print_act(act: str, what: Mapping[str, object]) -> None:
    print(json.dumps({"act": act, **what}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
