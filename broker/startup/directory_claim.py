"""Claims the data directory for this process: checks its identity, records the incarnation, removes the clean-shutdown
marker.

The process is recorded before any other broker can see it. The identity is recorded before logs are written. The marker
is removed last.
"""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial

from msgspec.structs import replace

from broker.config.broker_config import BrokerConfig
from broker.membership.identity import DirectoryIdentity, Verdict
from broker.membership.session import Session, StartedSession
from broker.metadata.records import Endpoint
from broker.security.sasl.credentials import first_records
from broker.startup.limits import check_tiering
from hotstore.host.data_dir import DataDir, Process
from hotstore.host.log_directories import LogDirectories
from logformat.checkpoints import MetaProperties
from seams.files.disk import is_full
from seams.loop.workers import Workers
from seams.world import World
from tiering.opening.older_copy_note import write_older_copy_note
from tiering.opening.reservation import remove_reservation

log = logging.getLogger(__name__)


async def claim_directory(
    session: Session, data_dir: DataDir, config: BrokerConfig, listeners: tuple[Endpoint, ...], world: World
) -> StartedSession:
    """Wait until this process may have a session, commit it, and record identity and process in the data directory.
    After Refused, logs and clean-shutdown marker are unchanged."""
    identity, workers = _identity(data_dir, config), world.workers
    whose = LogDirectories(data_dir, world).topic_ids
    # Bytes of an earlier process in the page cache are flushed only when their logs are opened. Until a clean stop a
    # power cut may lose them.
    this = Process(session.incarnation, config.flush_sync and not identity.is_unsynced)
    if data_dir.processes is not None:  # recorded before any broker can see this process
        await _note(data_dir, (*data_dir.processes, this), workers)
    if identity.incarnations is not None:
        # A registration whose answer was lost may have begun this process's session: the next attempt then reads it.
        identity = replace(identity, incarnations=(*identity.incarnations, this.incarnation))
    doubt = partial(workers.run, _doubt, data_dir)
    joined = await session.join(
        identity,
        config.node_id,
        listeners,
        whose,
        doubt,
        rack=config.rack,
        take_over=config.take_over,
        first_records=partial(first_records, config.first_users, workers, world.rng),
    )
    settled = joined.identity
    assert settled.cluster_id is not None and settled.directory_id is not None
    if joined.verdict is not Verdict.RESUME:
        meta = MetaProperties(settled.cluster_id, config.node_id, settled.directory_id)
        await workers.run(data_dir.format, meta)
    check_tiering(config, joined.at.image)
    await _note(data_dir, (this,), workers)
    await workers.run(data_dir.remove_clean_marker)
    return joined


async def _note(data_dir: DataDir, processes: tuple[Process, ...], workers: Workers) -> None:
    """Record the processes that write here. If a full disk prevents that, the next start treats the directory as an
    older copy: it copies from other brokers and recovers the rest from the bucket."""
    try:
        await workers.run(data_dir.note_processes, processes)
    except OSError as failure:
        if not is_full(failure):
            raise
        log.warning("this process is not recorded in %s: %s", data_dir.path, failure)


def _doubt(data_dir: DataDir) -> None:
    """Remove the reservations of a directory that is an older copy, because later offsets may have been assigned
    elsewhere. Note in each log that it is an older copy. Blocking. A log without a reservation asks the bucket before
    it assigns offsets. Records that only the newer copy held become a declared gap, as after the loss of a disk.
    """
    for place in data_dir.partitions():
        with closing(data_dir.disk.open_dir(data_dir.log_path(*place))) as directory:
            remove_reservation(directory)
            write_older_copy_note(directory)


def _identity(data_dir: DataDir, config: BrokerConfig) -> DirectoryIdentity:
    meta, logs = data_dir.meta, frozenset(data_dir.partitions())
    if meta is None:
        return DirectoryIdentity(None, None, None, bool(logs))
    processes = data_dir.processes
    # The configuration of the previous process applies. If it is not recorded, the current one is assumed.
    flushed = config.flush_sync and all(process.flushes for process in processes or ())
    incarnations = None if processes is None else tuple(process.incarnation for process in processes)
    ids = meta.cluster_id, meta.node_id, meta.directory_id
    return DirectoryIdentity(*ids, bool(logs), logs, not flushed and not data_dir.was_clean, incarnations)
