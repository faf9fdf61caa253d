"""The Spark source `format("thermocline")`, for batch and stream.

Driver: `options.py` parses the options, `tiers.py` reads the bucket's and the cluster's offsets, `planning` makes
offset ranges and tasks. Worker: cold splits are scanned as in `thermocline.pipeline`; the hot tail is read by a stock
client (`tail.py`). `projection.py` has Spark's columns.
"""
