"""Record batches in machine code: loads, CRC, records (numba).

Importing a module here imports numba, which takes a second and 100 MB: only processes that read in bulk do it, never
the broker's own process.
"""
