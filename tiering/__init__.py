"""Tiering: copies sealed segments to the bucket, removes them from disk and bucket by retention, and routes reads to
either.

`service.py` is the tiering of one broker, `partition_tier.py` the tiering of one led partition. A roll wakes a
partition's jobs (`partition_jobs.py`): `copying`, then `expiry`. `opening` attaches a tier to a log for one leader
epoch. `reading` serves fetches from the bucket.
"""
