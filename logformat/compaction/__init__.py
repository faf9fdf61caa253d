"""Compaction of record batches: a map of keys, and the removal of superseded records (ADR 30).

`rules.py` and `filler.py` import no kernels. `offset_map.py` and `batch_cleaner.py` import numba, so only the cleaner's
process imports them. Nothing here does file I/O.
"""
