"""All logs of a data directory.

`log_host.py` opens and closes them. A **place** (`place.py`) is one directory name: its turn, its occupant, and the
blocking calls in it. A **lease** (`lease.py`) is a role's right to a log; an effect through an ended lease is
refused.
"""
