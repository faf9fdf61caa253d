"""Note in a log's directory that the log is an older copy of itself: the empty file `thermocline-older-copy`.

The note stays until the log leads, or is copied again. Until then tombstones of its records may be gone in all newer
replicas.
"""

from __future__ import annotations

from typing import Final

from seams.files.disk import Directory

OLDER_COPY_FILE: Final = "thermocline-older-copy"


def write_older_copy_note(directory: Directory) -> None:
    """Write the note; it is durable when this returns. Blocking. Raises OSError."""
    directory.open(OLDER_COPY_FILE, write=True, create=True).close()
    directory.sync()  # an earlier start may have written the note without making it durable


def has_older_copy_note(directory: Directory) -> bool:
    """Blocking."""
    return directory.stat(OLDER_COPY_FILE) is not None


def remove_older_copy_note(directory: Directory) -> None:
    """Remove the note of a log that begins to lead, because other replicas copy it now. If the note returns after a
    power cut, the log is only copied again. Blocking. Raises OSError."""
    if has_older_copy_note(directory):
        directory.unlink(OLDER_COPY_FILE)
