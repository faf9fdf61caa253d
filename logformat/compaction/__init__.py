"""Compaction of record batches: a map of keys, and batches without what newer records supersede (ADR 30).

`rules.py` and `filler.py` import no kernels. `offset_map.py` and `batch_cleaner.py` import numba: only the cleaner's
process does. Nothing here knows a file.
"""
