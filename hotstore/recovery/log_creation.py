"""Creates a new log's directory under a staged name that is never opened, syncs it, then renames it.

After a crash there is no log, or a complete one. A complete log has its topic id and, unless it begins at 0, the epochs
and producers of its start offset. Files left under the staged name are removed like a deleted log. All calls block.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from hotstore.file_names import EPOCHS_FILE, LOG, offset_file
from hotstore.flush.durability import write_producer_files
from hotstore.log.log_config import NEVER
from hotstore.log.producer_state import Producers
from logformat.checkpoints import PARTITION_METADATA_FILE, encode_partition_metadata
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry
from seams.files.disk import Directory, Disk


class Begin(NamedTuple):
    """The start offset of a new log, and the epochs and producers of the records below it."""

    offset: int = 0
    epochs: LeaderEpochs = LeaderEpochs()
    producers: tuple[ProducerEntry, ...] = ()


def make_directory(disk: Disk, path: str, staged: str, topic_id: bytes, begin: Begin) -> None:
    """Create an empty log at the unused `path`. Durable when it returns. `staged`: a free path in the same directory.

    After an OSError files may be left at `staged`."""
    disk.make_dirs(staged)
    with closing(disk.open_dir(staged)) as directory:
        _write(directory, PARTITION_METADATA_FILE, encode_partition_metadata(topic_id))
        if begin.offset:
            _write(directory, EPOCHS_FILE, begin.epochs.to_bytes())
            if begin.producers:
                write_producer_files(directory, Producers(NEVER, begin.producers).at(begin.offset))
        directory.open(offset_file(begin.offset, LOG), write=True, create=True).close()
        directory.sync()
    disk.rename(staged, path)
    disk.sync_dir(path.rsplit("/", 1)[0] or "/")


def _write(directory: Directory, name: str, data: bytes) -> None:
    with closing(directory.open(name, write=True, create=True, exclusive=True)) as file:
        file.write_at(0, [data])
        file.sync()
