"""Pipeline: reads history in bulk from the bucket, without a broker, for Arrow, Spark, archive and scrub.

1. `history.py` reads manifests; `plan.py` (pure) cuts a range of offsets into splits.
2. `scan.py` fetches windows of whole batches ahead and checks that the offsets are covered.
3. `decode` checks CRCs, decompresses, and writes Arrow columns by numba kernels.

`read.py` runs these steps with threads. `spark` is the Spark data source, `jobs` are archive and scrub. Only `spark`
and `jobs` import pyspark, only `decode` imports numba.
"""
