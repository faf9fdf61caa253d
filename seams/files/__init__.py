"""Files of this machine: reading, writing and syncing them.

`disk.py` has the protocols that all other code uses, `posix_disk.py` the real disk. `syncs.py` syncs many files at
once, by workers or by the kernel (`aio.py`).
"""
