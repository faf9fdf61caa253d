"""Copies sealed segments to the bucket.

1. `copy_plan.py` (pure) picks the range: from the remote end to the end of a sealed segment that is flushed and
  committed.
2. `copier.py` uploads it under a name never used before. The range is read once: each batch's CRC is checked before its
  bytes are sent (`segment_body.py`), and the footer follows.
3. The manifest names the object by compare-and-set (`coldstore/manifest/manifest_store.py`).
4. The commit is read back and the object verified. After that `tiering/expiry/expirer.py` may delete the local copy.

A PUT that meets a damaged batch ends without an object. A failed upload leaves an orphan for garbage collection.
"""
