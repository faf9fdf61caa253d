"""Compaction of the bucket's part of a compacted log (ADR 32).

1. `cold_plan.py` (pure): whether a pass is due, which objects become one, what it will cost.
2. `aborted.py`: the aborted transactions of its objects, whose records go.
3. `cold_rewrite.py`: an object to the scratch directory, checked; the cleaned bytes as a new object.
4. `pass_objects.py`: the objects of one pass, whole or their footers.
5. `cold_cleaner.py`: one pass of one partition, a job of its leader; `scratch.py`: what all passes of a broker share.

The map of keys is made from the bucket's records only: the bucket lacks a record only for a newer one that it holds.
"""
