"""Attaches a tier to an open log for one leader epoch.

`attach.py` serves a whole log at once, without asking the bucket. If the tail may be lost, `tail_recovery.py` claims
the manifest first, begins at the bucket's end (`cold_start.py`), declares the gap and reserves offsets
(`reservation.py`).
"""
