"""`serve --read-only`: a broker that serves another cluster's bucket and never writes to it.

`cluster_poller.py` polls `cluster.json`. `archive.py` makes an image in which this broker leads every partition.
`root_cache.py` reads manifests on demand. Groups live in memory. Requests that write are refused (`handlers.py`).
"""
