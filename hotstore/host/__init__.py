"""All logs of a data directory.

`log_host.py` opens and closes them. A **place** (`place.py`) is one directory name, with its turn, its open log, and
the blocking calls in it. A **lease** (`lease.py`) is a role's right to change a log. An effect through an ended lease
is refused.
"""
