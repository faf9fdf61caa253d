"""Reading and keeping history straight from the bucket: plain readers, Spark, and the jobs.

Nothing heavy is imported here: pyspark only under `spark/` and `jobs/`, numba only under `decode/`.
"""
