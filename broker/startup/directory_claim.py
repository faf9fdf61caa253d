"""The right to serve, as a data directory comes to it: what it says of itself, and what is noted in it.

Owns the order: a process is noted in the directory before anybody can learn of it, what joining settled before its
logs are written, and then the clean-shutdown marker goes. Must not know how a session comes about (membership), nor
what is served.
"""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial

from broker.config.broker_config import BrokerConfig
from broker.membership.identity import DirectoryIdentity, Verdict
from broker.membership.session import Session, StartedSession
from broker.metadata.records import Listener
from broker.startup.limits import check_tiering
from hotstore.host.data_dir import DataDir, Process
from hotstore.host.log_directories import LogDirectories
from logformat.checkpoints import MetaProperties
from seams.disk import is_full
from seams.workers import Workers
from seams.world import World
from tiering.opening.reservation import remove_reservation

log = logging.getLogger(__name__)


async def enter(
    session: Session,
    data_dir: DataDir,
    config: BrokerConfig,
    listeners: tuple[Listener, ...],
    world: World,
) -> StartedSession:
    """Wait for the right to serve, commit it, and note in the data directory what that settled: whose it is, and that
    its logs are about to be written. Raises Refused, with logs and clean-shutdown marker as they were."""
    identity, workers = _identity(data_dir, config), world.workers
    whose = LogDirectories(data_dir, world).topic_ids
    # What a process before left in the page cache is not flushed by the first who flushes, but when its logs are open:
    # until a clean stop a power cut takes it.
    this = Process(session.incarnation, config.flush_sync and not identity.is_unsynced)
    if data_dir.processes is not None:  # before anybody can learn of this process
        await _note(data_dir, (*data_dir.processes, this), workers)
    doubt = partial(workers.run, _doubt, data_dir)
    joined = await session.join(
        identity, config.node_id, listeners, whose, doubt, rack=config.rack, take_over=config.take_over
    )
    settled = joined.identity
    assert settled.cluster_id is not None and settled.directory_id is not None
    if joined.verdict is not Verdict.RESUME:
        meta = MetaProperties(settled.cluster_id, config.node_id, settled.directory_id)
        await workers.run(data_dir.format, meta)
    check_tiering(config, joined.at.image)
    await _note(data_dir, (this,), workers)
    await workers.run(data_dir.unmark)
    return joined


async def _note(data_dir: DataDir, processes: tuple[Process, ...], workers: Workers) -> None:
    """Note who writes here. Where the disk has no room for it the next start takes it for an older copy: it copies from
    others what they have too, and asks the bucket for the rest."""
    try:
        await workers.run(data_dir.note_processes, processes)
    except OSError as failure:
        if not is_full(failure):
            raise
        log.warning("this process is not noted in %s: %s", data_dir.path, failure)


def _doubt(data_dir: DataDir) -> None:
    """Blocking: an older copy of the directory, in which offsets were given since. Its logs ask the bucket before they
    give any: what only they held is a declared gap then, as where a disk is lost."""
    for place in data_dir.partitions():
        with closing(data_dir.disk.open_dir(data_dir.log_path(*place))) as directory:
            remove_reservation(directory)


def _identity(data_dir: DataDir, config: BrokerConfig) -> DirectoryIdentity:
    meta, logs = data_dir.meta, frozenset(data_dir.partitions())
    if meta is None:
        return DirectoryIdentity(None, None, None, bool(logs))
    processes = data_dir.processes
    # What counts is how the process before wrote. Where it did not say, it was configured as this one.
    flushed = config.flush_sync and all(process.flushes for process in processes or ())
    incarnations = None if processes is None else tuple(process.incarnation for process in processes)
    ids = meta.cluster_id, meta.node_id, meta.directory_id
    return DirectoryIdentity(*ids, bool(logs), logs, not flushed and not data_dir.was_clean, incarnations)
