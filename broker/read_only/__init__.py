"""`serve --read-only`: a broker on another cluster's bucket, which it never writes.

`following.py` polls `cluster.json`. `archive_image.py` (pure) makes an image in which this broker leads every
partition. `roots.py` reads manifests on demand. Groups live in memory. Requests that write are refused
(`refusals.py`).
"""
