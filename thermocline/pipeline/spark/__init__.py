"""The Spark source `format("thermocline")`, for batch and stream.

Driver: `options.py` parses the options, `tiers.py` reads the bucket's and the cluster's offsets, `ranges.py` and
`filters.py` make offset ranges, `planning.py` makes tasks. A stream's batch is bounded by its rate limits. Worker:
cold splits are scanned as in `thermocline.pipeline`; the hot tail comes through a stock client (`tail.py`).
`projection.py` gives both Spark's columns.
"""
