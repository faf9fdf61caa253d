"""Which row of docs/design/failures.md's faults a counted fault belongs to, and the table of counts.

Owns nothing but the names. Always true: every name that a run counts has a row; a row without a count was never struck.
"""

from __future__ import annotations

from collections.abc import Mapping

ROWS = {
    "C1 kill": ("kill -9",),
    "C2 stop": ("clean restart", "clean stop", "refused at start"),
    "C3 pause": ("pause", "replaced directory"),
    "C4 crash loop": ("crash loop",),
    "D1-D3 power cut": ("power cut",),
    "D5 fsync EIO": ("disk fault:sync",),
    "D6 disk full": ("disk fault:full", "no room to begin", "disk fault:write", "disk fault:rename"),
    "D7 flipped bits": ("a log damaged among whole ones", "a damaged log restored"),
    "D9 slow disk": ("slow fsync",),
    "D10 a refused log": (
        *("disk refuses a log", "disk fault:read", "disk fault:open", "disk fault:list"),
        *("disk fault:truncate", "disk fault:unlink"),
        "restarted for a failed log",
    ),
    "R1 lost disk": ("disk loss", "replaced by an empty directory", "all machines lost"),
    "R2 lost cluster.json": ("cluster.json", "rebuilt"),
    "O1 5xx before any effect": ("bucket before",),
    "O2 lost answers": ("bucket lost", "bucket empty_200"),
    "O3 409, 412": ("bucket conflict", "bucket refused", "bucket own_412"),
    "O4 broken bodies": ("bucket truncated", "bucket flipped"),
    "O5 late writes": ("bucket late",),
    "O6 stale lists, deletes that lie": ("bucket unlisted", "bucket ignored"),
    "O8 outage, credentials, read-only": (
        *("bucket outage", "bucket denied", "bucket read_only"),
        *("store away for one", "bucket denies one", "denied at start"),
    ),
    "N1-N3 network": ("net ", "connection cut", "partition", "a follower that lags"),
    "T1' clocks": ("wall clock jump",),
    "Z1 two brokers": ("a second broker beside it",),
    "E1 rewraps": ("rewrap",),
    "W1 late work": ("late",),
    "W2 a topic made again": ("topic deleted and made again",),
    "W3 unclean starts": ("unclean election",),
    "K1 cleaning": ("cleaning", "cold cleaning"),
    "X1 transactions": ("txn",),
    "A1 rights taken away": ("acls, ",),
    "settings": ("another min.insync.replicas", "other topic configs", "restored by", "replicas placed anew"),
    "moves": ("reassignment", "reassigned", "replicas drained", "drain", "let go, begun empty"),
    "read-only beside them": ("read-only broker",),
}


def row_of(name: str) -> str:
    """The row of a counted fault; "?" for one that nobody placed."""
    return next((row for row, names in ROWS.items() if name.startswith(names)), "?")


def table(hits: Mapping[str, int]) -> list[str]:
    """A line for each row: its sum, and what it is made of."""
    lines = []
    for row in (*ROWS, "?"):
        found = {name: count for name, count in sorted(hits.items()) if row_of(name) == row}
        if found or row != "?":
            parts = ", ".join(f"{name} {count}" for name, count in found.items())
            lines.append(f"{sum(found.values()):8}  {row:34} {parts}")
    return lines
