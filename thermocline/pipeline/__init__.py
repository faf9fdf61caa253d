"""History in bulk, straight from the bucket: Arrow batches, Spark, archive, scrub. No broker takes part.

1. `history.py` reads manifests; `plan.py` (pure) cuts a range of offsets into splits.
2. `scan.py` fetches windows of whole batches ahead and checks that the offsets are covered.
3. `decode` checks CRCs, decompresses, and writes Arrow columns by numba kernels.

`read.py` runs that with threads. `spark` is the Spark source, `jobs` are archive and scrub. pyspark is imported under
`spark` and `jobs` only, numba under `decode` only.
"""
