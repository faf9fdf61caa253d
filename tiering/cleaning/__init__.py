"""Compaction of the bucket's part of a compacted log (ADR 32).

1. `cold_plan.py` (pure): decides whether a pass is due and which objects are merged, and estimates the cost.
2. `aborted.py`: finds the aborted transactions of the objects; their records are removed.
3. `cold_rewrite.py`: downloads and checks an object in the scratch directory, and makes a new object of the cleaned
  bytes.
4. `pass_objects.py`: the objects of one pass, whole or their footers.
5. `cold_cleaner.py`: runs one pass of one partition, as a job of its leader. `scratch.py`: resources of all passes of a
  broker.

The map of keys is made from the bucket's records only, because the bucket lacks a record only if it holds a newer
record of the same key.
"""
