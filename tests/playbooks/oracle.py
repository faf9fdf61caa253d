"""What must hold after every event of the core, whatever happened: the claim of the design, and what it rests on.

Owns what was acknowledged, as a log. Always true of a core that is right: an acknowledged record is in the log of every
later clean leader, and, from the moment of its acknowledgement, flushed on every member of the committed in-sync set
whose disk is whole; nobody leaves that set below the minimum but who lost something; a high watermark never falls in a
role; nobody shows what is not committed; nobody has to go offline. Must not know which event was played.
"""

from __future__ import annotations

from broker.metadata.data_configs import effective_min
from broker.metadata.records import NO_LEADER, Row
from broker.replication.follower import Phase
from tests.playbooks.core import TOPIC, Core, Process
from tests.playbooks.disks import Record


class Broken(AssertionError):
    """The core did what it must not."""


class Oracle:
    """Of one core; `look` after each event. `lost`: acknowledged records that an unclean start went on without."""

    def __init__(self) -> None:
        self.acknowledged: tuple[Record, ...] = ()
        self.acks = self.elections = self.lost = 0
        self._epoch = -1
        self._in_sync: frozenset[int] = frozenset()
        self._marks: dict[int, tuple[object, int]] = {}

    def clone(self) -> Oracle:
        other = Oracle()
        other.__dict__.update(self.__dict__)
        other._marks = self._marks.copy()
        return other

    def look(self, core: Core) -> None:
        """Raises Broken."""
        self._look_at_set(core)
        self._look_at_election(core)
        for process in core.processes.values():
            self._look_at_acks(core, process)
        for process in core.processes.values():
            self._look_at_role(core, process)

    def _look_at_set(self, core: Core) -> None:
        """Nobody leaves below the minimum but who lacks what was acknowledged: one more loss would cost it (R4)."""
        before, row = self._in_sync, core.row
        self._in_sync = frozenset(row.in_sync)
        left = before - self._in_sync
        if core.gave_up[1] == row.partition_epoch:
            left -= {core.gave_up[0]}
        if left and len(row.in_sync) < effective_min(core.topic, row, core.image):
            raise Broken(f"{sorted(left)} left the in-sync set, of which {row.in_sync} is below the minimum")

    def _look_at_election(self, core: Core) -> None:
        """Each row that names a leader, when it is committed."""
        row = core.row
        if row.leader_epoch == self._epoch:
            return
        self._epoch = row.leader_epoch
        if row.leader == NO_LEADER:
            return
        self.elections += 1
        disk = core.disks[row.leader]
        if row.unclean_epoch == row.leader_epoch:
            self._look_at_unclean_start(core, row)
        elif core.begun_alone == row.leader_epoch:
            self._give_up(disk.log)
        elif disk.is_whole and disk.log[: core.stable_end(disk)][: len(self.acknowledged)] != self.acknowledged:
            raise Broken(f"clean leader {row.leader} has {disk.log}, acknowledged is {self.acknowledged}")

    def _look_at_unclean_start(self, core: Core, row: Row) -> None:
        """What was acknowledged is given up only where nobody has it who saw the epoch that served last."""
        who = [
            node
            for node in row.assigned
            if core.candidate(node).seen_epoch >= row.served_epoch
            and core.disks[node].log[: len(self.acknowledged)] == self.acknowledged
        ]
        before = self.lost
        self._give_up(core.disks[row.leader].log[: core.kept_end(row.leader, row)])
        if who and self.lost > before:
            raise Broken(f"{row.leader} begins without {self.lost - before} records that {who} have")

    def _give_up(self, log: tuple[Record, ...]) -> None:
        same = 0
        while same < min(len(log), len(self.acknowledged)) and log[same] == self.acknowledged[same]:
            same += 1
        self.lost += len(self.acknowledged) - same
        self.acknowledged = self.acknowledged[:same]

    def _look_at_role(self, core: Core, process: Process) -> None:
        role = process.leader or process.follower
        if role is None:
            self._marks.pop(process.node, None)
            return
        epoch = core.image_of(process.node).topics[TOPIC].rows[0].leader_epoch
        key = (process.incarnation, process.leader is None, epoch)
        known = self._marks.get(process.node)
        mark = role.high_watermark
        if known is not None and known[0] == key and mark < known[1]:
            raise Broken(f"the high watermark of {process.node} fell from {known[1]} to {mark} in epoch {epoch}")
        self._marks[process.node] = key, mark
        if process.follower is None or core.disks[process.node].seen_epoch < _began_anew(core):
            return  # of before the unclean start
        if process.follower.phase is Phase.OFFLINE:
            raise Broken(f"{process.node} is offline")
        if core.disks[process.node].log[:mark] != self.acknowledged[:mark]:
            raise Broken(f"{process.node} shows {core.disks[process.node].log[:mark]}, which is not acknowledged")

    def _look_at_acks(self, core: Core, process: Process) -> None:
        """What became visible is acknowledged: by whoever believes to lead."""
        led = process.leader
        if led is None or led.in_sync.row.leader_epoch < _began_anew(core):
            return
        disk, end = core.disks[process.node], led.high_watermark
        shorter = min(end, len(self.acknowledged))
        if disk.log[:shorter] != self.acknowledged[:shorter]:
            raise Broken(f"{process.node} acknowledges {disk.log[:end]} after {self.acknowledged}")
        if end <= len(self.acknowledged):
            return
        self.acknowledged = disk.log[:end]
        self.acks += 1
        if not led.takes_all:
            raise Broken(f"{process.node} acknowledges below the minimum: {led.in_sync.row}")
        for node in core.row.in_sync:
            other = core.disks[node]
            if other.is_whole and other.log[: core.stable_end(other)][:end] != self.acknowledged:
                raise Broken(f"{node} is in sync, has {other.log} and lacks what {process.node} acknowledges: {end}")


def _began_anew(core: Core) -> int:
    """The last leader epoch that began without all that was acknowledged."""
    return max(core.row.unclean_epoch, core.begun_alone)
