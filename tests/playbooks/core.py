"""The core of a cluster: one partition's rows, its leader, its followers, and all that may come between them.

Owns one event after the other. Always true: what is decided is decided by the broker's own machines: rows, proposals
and registrations by `broker.metadata.rows` and `broker.controller`, what an image asks of a broker by
`broker.following.changes`, ends and high watermarks by `broker.replication`; images come late, or several at once;
messages wait in bags, so that any may come next, again, or never; a process that is gone hears nothing. What must hold
is said by `oracle`. A shell's waits are left out: a role begins in the event that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from broker.controller.broker_rpc import ProposalsRequest, SessionRequest
from broker.controller.decisions.alter_partition import decide
from broker.controller.decisions.fitness import Fitness, moved
from broker.controller.decisions.reassignments import Move, over, reassign
from broker.controller.decisions.registrations import end_records, register
from broker.controller.unclean_recovery import Candidate, Chosen, begin, best
from broker.errors import ApiError
from broker.following.changes import changes
from broker.membership.identity import DirectoryIdentity
from broker.membership.lost_logs import lost_logs
from broker.metadata.image import ClusterImage, Topic, check
from broker.metadata.records import NO_EPOCH, NO_LEADER, ConfigsSet, MetadataRecord, Row, TopicCreated
from broker.metadata.rows import config_changed, elected, new_rows, rows_set
from broker.replication.follower import Cut, FetchPosition, Follower, Take
from broker.replication.in_sync import InSync, applied_row
from broker.replication.isr_policy import PartitionProposal, wanted
from broker.replication.leader import Leader, LogExtent, Report
from logformat.leader_epochs import EpochEnd, kept_end
from logformat.values import TopicPartition
from tests.playbooks.disks import Disk, Record
from tests.support.brokers.cluster_kit import CLUSTER, id_of, session

TOPIC: Final = id_of(1)
PLACE: Final = (TOPIC, 0)
NAME: Final = "t"


class Fetch(NamedTuple):
    """In a socket to node `to`, from one process."""

    node: int
    incarnation: str
    broker_epoch: int
    to: int
    position: FetchPosition


class Answer(NamedTuple):
    fetch: Fetch
    diverging: EpochEnd | None
    records: tuple[Record, ...]
    high_watermark: int


class Process:
    """A broker's: what it obeyed, and its role."""

    def __init__(self, node: int, incarnation: str) -> None:
        self.node = node
        self.incarnation = incarnation
        self.position = -1  # in Core.images; −1: it obeyed none yet
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.mark = 0  # of the log while it is in no role
        self.is_starting = False  # it leads an unclean start that is not known to be done: it serves nobody

    def clone(self) -> Process:
        other = _shallow(self)
        if self.leader is not None:
            other.leader = _leader_like(self.leader)
        if self.follower is not None:
            other.follower = _shallow(self.follower)
        return other

    @property
    def high_watermark(self) -> int:
        role = self.leader or self.follower
        return self.mark if role is None else role.high_watermark


class Core:
    """See the module. `replicas` of the one partition, the first of them leads it; `spare`: nodes that it may move to;
    `is_sync`: `thermocline.flush`."""

    def __init__(
        self,
        replicas: tuple[int, ...] = (1, 2, 3),
        *,
        minimum: int = 1,
        is_sync: bool = True,
        spare: tuple[int, ...] = (),
    ) -> None:
        everybody = sorted((*replicas, *spare))
        nodes = [session(f"{n}a", node_id=n, broker_epoch=n, directory_id=f"d{n}") for n in everybody]
        image = ClusterImage().with_records(nodes)
        rows = new_rows(image, [replicas])
        first = image.with_records([TopicCreated(TOPIC, NAME, rows, {"min.insync.replicas": str(minimum)})])
        self.is_sync = is_sync
        self.images: tuple[ClusterImage, ...] = (first,)
        self.disks = {n: Disk(f"d{n}", exists=n in replicas) for n in everybody}
        self.processes = {n: Process(n, f"{n}a") for n in everybody}
        self.fetches: list[Fetch] = []
        self.answers: list[Answer] = []
        self.proposals: list[ProposalsRequest] = []
        self.registrations: list[SessionRequest] = []
        self.incarnations = self.names = 0
        self.counts: dict[str, int] = {}
        self.begun_alone = -1  # leader epoch in which the only replica began without some of its log (C30)
        self.gave_up = (-1, -1)  # who said last that it lacks something, and the partition epoch of the row then
        for node in self.processes:
            self.obey(node)

    def clone(self) -> Core:
        other = _shallow(self)
        other.disks = {n: disk.clone() for n, disk in self.disks.items()}
        other.processes = {n: process.clone() for n, process in self.processes.items()}
        other.fetches, other.answers = self.fetches.copy(), self.answers.copy()
        other.proposals, other.registrations = self.proposals.copy(), self.registrations.copy()
        other.counts = self.counts.copy()
        return other

    # ── what the controller has ──────────────────────────────────────────────────────────────────────────────────
    @property
    def image(self) -> ClusterImage:
        return self.images[-1]

    @property
    def topic(self) -> Topic:
        return self.image.topics[TOPIC]

    @property
    def row(self) -> Row:
        return self.topic.rows[0]

    def commit(self, records: Sequence[MetadataRecord]) -> None:
        """One commit of the controller: a batch that makes an impossible image is refused before it is written."""
        if records:
            after = self.image.with_records(records)
            check(after, self.image)
            before = self.row
            self.images = (*self.images, after)
            if before.target and self.row.replicas == before.target:
                self.counts["moves over"] = self.counts.get("moves over", 0) + 1
            self.commit(over(self.image).records)

    def end_session(self, node: int) -> None:
        """Its silence, as the controller sees it; its process may live."""
        self.commit(end_records(self.image, [(node, self.image.nodes[node].broker_epoch)]))

    def hand_over(self, node: int) -> None:
        """It is about to stop."""
        self.commit(moved(self.image, {node: Fitness(unfit_all=True)}).records)

    def elect_preferred(self) -> None:
        if (row := elected(self.image, self.topic, 0)) is not None:
            self.commit(rows_set({PLACE: row}))

    def move(self, *target: int) -> bool:
        """These are to hold it, the first of them to lead; whether it became a row."""
        return self._moved(target)

    def cancel_move(self) -> bool:
        """As `move`, of those who held it before."""
        return self._moved(None)

    def _moved(self, target: tuple[int, ...] | None) -> bool:
        before = self.images
        self.commit(reassign(self.image, [Move(NAME, 0, target)]).records)
        return self.images is not before

    def set_minimum(self, minimum: int) -> None:
        config = ConfigsSet({"min.insync.replicas": str(minimum)}, topic_id=TOPIC)
        self.commit([config, *config_changed(self.image.with_records([config]), TOPIC)])

    # ── what becomes of a process ────────────────────────────────────────────────────────────────────────────────
    def image_of(self, node: int) -> ClusterImage:
        """As that broker has it."""
        position = self.processes[node].position
        return ClusterImage() if position < 0 else self.images[position]

    def obey(self, node: int, *, only_next: bool = False) -> None:
        """The newest image, or the one after its last; nothing before one that holds its session."""
        process = self.processes[node]
        before = self.image_of(node)
        positions = range(process.position + 1, len(self.images))
        if process.position < 0:
            positions = range(next(self._with_session_of(process), len(self.images)), len(self.images))
        if not positions:
            return
        process.position = positions[0] if only_next else positions[-1]
        after = self.images[process.position]
        asked = changes(before, after, node)
        if asked.resign:
            self._end_role(process)
        if asked.drop:  # removed, or moved aside: this broker has none of it
            disk = self.disks[node]
            self.disks[node] = Disk(disk.directory_id, exists=False, is_doubtful=disk.is_doubtful)
            process.mark = 0
        for share in asked.apply:
            assert process.leader is not None
            process.leader.applied(applied_row(share.topic, 0, after))
            process.is_starting &= not share.topic.rows[0].clean
        for share in asked.lead:
            self._lead(process, share.topic, after)
        for share in asked.follow:
            self._follow(process, share.topic.rows[0])

    def _with_session_of(self, process: Process) -> Iterator[int]:
        for position, image in enumerate(self.images):
            node = image.nodes[process.node]
            if node.active and node.incarnation == process.incarnation:
                yield position

    def _end_role(self, process: Process) -> None:
        process.mark = min(process.high_watermark, self.disks[process.node].end)
        process.leader = process.follower = None
        process.is_starting = False

    def _lead(self, process: Process, topic: Topic, image: ClusterImage) -> None:
        disk, row = self.disks[process.node], applied_row(topic, 0, image)
        process.is_starting = not topic.rows[0].clean
        if process.is_starting:
            disk.cut(self.kept_end(process.node, topic.rows[0]))
        epoch_start = disk.end
        process.leader = Leader(
            process.node, row, epoch_start=epoch_start, high_watermark=process.mark, own_end=self.stable_end(disk)
        )
        disk.begin_epoch(row.leader_epoch)
        disk.seen_epoch = row.leader_epoch

    def _follow(self, process: Process, row: Row) -> None:
        disk = self.disks[process.node]
        disk.exists = True
        disk.flush()  # before its first question (D65)
        process.follower = Follower(disk.lineage, disk.end, process.mark, disk.seen_epoch)
        process.follower.begin(row.leader_epoch, row.unclean_epoch)

    def stable_end(self, disk: Disk) -> int:
        """What its process reports: the page cache counts with `os`."""
        return disk.flushed if self.is_sync else disk.end

    # ── when nobody has all of it (R20) ──────────────────────────────────────────────────────────────────────────
    def candidate(self, node: int) -> Candidate:
        """What it says of its log."""
        disk = self.disks[node]
        return Candidate(disk.seen_epoch, min(self.processes[node].high_watermark, disk.end), disk.end)

    def kept_end(self, node: int, row: Row) -> int:
        """Where its log ends when it begins uncleanly."""
        return kept_end(*self.candidate(node), row.served_epoch)

    def may_begin_uncleanly(self) -> bool:
        """The set is empty, and all replicas are there to be asked."""
        return not self.row.in_sync and all(self.has_session(node) for node in self.row.assigned)

    def begin_uncleanly(self) -> None:
        """All were heard; who keeps most begins."""
        row = self.row
        node = best(row, {node: self.candidate(node) for node in row.assigned})
        self.commit(
            begin(
                self.image,
                [Chosen(PLACE, row.leader_epoch, row.partition_epoch, node, self.image.nodes[node].broker_epoch)],
            ).records
        )

    def report_done(self, node: int) -> None:
        """The start is durable: the set as it is is proposed."""
        led = self.leader_at(node)
        self.flush(node)
        self._propose_set(node, led.in_sync.row.in_sync)

    def checkpoint(self, node: int) -> None:
        """The high watermark becomes durable."""
        self.disks[node].mark = min(self.processes[node].high_watermark, self.disks[node].end)

    def restart(self, node: int, *, is_power_cut: bool = False) -> None:
        """Another process on the same directory, which asks for a session next. Its machine lost power: what was not
        flushed is gone."""
        disk = self.disks[node]
        disk.reopen(is_power_cut=is_power_cut)
        if is_power_cut and not self.is_sync:
            disk.is_doubtful, disk.is_whole = True, False
        self._start(node)

    def lose_disk(self, node: int) -> None:
        """Another process, on an empty directory."""
        self.disks[node] = Disk(f"{self.disks[node].directory_id}x", is_whole=False)
        self._start(node)

    def lose_log(self, node: int) -> None:
        """The process stopped, somebody moved the log away, the next one starts on the same directory (R18)."""
        self.disks[node] = Disk(self.disks[node].directory_id, exists=False, is_whole=False)
        self._start(node)

    def _start(self, node: int) -> None:
        self.incarnations += 1
        process = self.processes[node] = Process(node, f"{node}-{self.incarnations}")
        process.mark = self.disks[node].mark

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────
    def has_session(self, node: int) -> bool:
        """Whether the controller has one of its process."""
        known = self.image.nodes[node]
        return known.active and known.incarnation == self.processes[node].incarnation

    def wants_session(self, node: int) -> bool:
        """A new process does, and one that obeyed the image in which its session is over."""
        process = self.processes[node]
        if process.position < 0:
            return not self.has_session(node)
        return not self.images[process.position].nodes[node].active and not self.has_session(node)

    def ask_for_session(self, node: int) -> None:
        """It reads cluster.json, and asks to be registered by what stands there."""
        image, disk, process = self.image, self.disks[node], self.processes[node]
        known, lost = image.nodes[node], ()
        if process.position < 0 and disk.directory_id == known.directory_id:
            logs = frozenset((TopicPartition(NAME, 0),) if disk.exists else ())
            has = DirectoryIdentity(CLUSTER, node, disk.directory_id, bool(logs), logs, is_unsynced=disk.is_doubtful)
            lost = lost_logs(image, node, "after a power cut" if disk.is_doubtful else known.boot_id, has)
        self.registrations.append(
            SessionRequest(
                node,
                CLUSTER,
                process.incarnation,
                disk.directory_id,
                known.boot_id,
                known.listeners,
                previous_broker_epoch=known.broker_epoch,
                lost_logs=lost,
            )
        )

    def register(self, at: int = 0) -> None:
        """The controller hears a registration. A refused one is asked anew."""
        asked = self.registrations.pop(at)
        node = asked.node_id
        if self.processes[node].incarnation != asked.incarnation or self.has_session(node):
            return
        try:
            self.commit(register(self.image, asked, CLUSTER, is_live=False, is_silent=True).records)
        except ApiError:
            return
        disk = self.disks[node]
        if not disk.is_whole:
            self.gave_up = node, self.row.partition_epoch
            if self.row.replicas == self.row.in_sync == (node,):
                self.begun_alone = self.row.leader_epoch
        disk.exists, disk.is_whole, disk.is_doubtful = True, True, False

    def begin_session(self, node: int) -> None:
        """The three of them at once: asked, registered, obeyed."""
        self.ask_for_session(node)
        self.register(len(self.registrations) - 1)
        self.obey(node)

    # ── what a leader does ───────────────────────────────────────────────────────────────────────────────────────
    def append(self, node: int) -> None:
        led, disk = self.leader_at(node), self.disks[node]
        disk.append([(led.in_sync.row.leader_epoch, self.names)])
        self.names += 1
        if not self.is_sync:
            led.flushed(disk.end)

    def flush(self, node: int) -> None:
        disk, process = self.disks[node], self.processes[node]
        disk.flush()
        if process.leader is not None:
            process.leader.flushed(disk.end)
        if process.follower is not None and disk.end > process.follower.end:
            process.follower.flushed(disk.lineage, disk.end)

    def propose(self, node: int, *, end_before: int = -1) -> bool:
        """Whether there is something to propose. `end_before`: what a replica has to hold not to lag."""
        led = self.leader_at(node)
        target = wanted(led, LogExtent(end_before))
        if target is None:
            return False
        self._propose_set(node, target)
        return True

    def _propose_set(self, node: int, target: frozenset[int]) -> None:
        led, image = self.leader_at(node), self.image_of(node)
        row = led.in_sync.row
        at, epochs = led.propose(target)
        proposal = PartitionProposal(PLACE, row.leader_epoch, at, tuple(sorted(epochs.items())))
        self.proposals.append(ProposalsRequest(node, image.nodes[node].broker_epoch, (proposal,)))

    def decide(self, at: int = 0, *, stays: bool = False) -> bool:
        """The controller hears a proposal; whether it became a row. `stays`: it comes again."""
        asked = self.proposals[at] if stays else self.proposals.pop(at)
        before = self.images
        try:
            self.commit(decide(self.image, asked).records)
        except ApiError:
            return False
        return self.images is not before

    def leader_at(self, node: int) -> Leader:
        led = self.processes[node].leader
        assert led is not None, f"{node} does not lead"
        return led

    def follower_at(self, node: int) -> Follower:
        follower = self.processes[node].follower
        assert follower is not None, f"{node} does not follow"
        return follower

    # ── a copy ───────────────────────────────────────────────────────────────────────────────────────────────────
    def may_fetch(self, node: int) -> bool:
        """It asks for nothing before all that came is flushed, nor when nobody leads."""
        process, disk = self.processes[node], self.disks[node]
        return (
            process.follower is not None
            and process.follower.next_fetch() is not None
            and process.follower.end == disk.end
            and self.image_of(node).topics[TOPIC].rows[0].leader != NO_LEADER
        )

    def fetch(self, node: int) -> None:
        """A question goes to whom its broker believes to lead, in the session its image has."""
        process, image = self.processes[node], self.image_of(node)
        position = self.follower_at(node).next_fetch()
        assert position is not None
        to = image.topics[TOPIC].rows[0].leader
        known = image.nodes.get(node)
        epoch = NO_EPOCH if known is None else known.broker_epoch
        self.fetches.append(Fetch(node, process.incarnation, epoch, to, position))

    def serve(self, at: int = 0, *, stays: bool = False, records_max: int = 2) -> None:
        """A question reaches its broker (see `broker.handlers.fetch.replica_fetch`). `stays`: it comes again."""
        fetch = self.fetches[at] if stays else self.fetches.pop(at)
        led, disk, asked = self.processes[fetch.to].leader, self.disks[fetch.to], fetch.position
        if led is None or self.processes[fetch.to].is_starting or asked.leader_epoch != led.in_sync.row.leader_epoch:
            return  # FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER
        is_known = led.in_sync.row.sessions.get(fetch.node) == fetch.broker_epoch
        if asked.last_fetched_epoch >= 0:
            end = disk.lineage.end_offset_for(asked.last_fetched_epoch, disk.end)
            if end.epoch < 0:
                return  # OFFSET_OUT_OF_RANGE
            if end.epoch != asked.last_fetched_epoch or end.end_offset < asked.offset:
                if is_known:
                    self.answers.append(Answer(fetch, end, (), led.high_watermark))
                return
        elif asked.offset > disk.end:
            return  # OFFSET_OUT_OF_RANGE
        # Its own check of the session is the one that counts: a handler that forgot it must not move anything.
        led.reported(fetch.node, Report(asked.offset, fetch.broker_epoch), asked.leader_epoch)
        if is_known:
            records = disk.log[asked.offset : asked.offset + records_max]
            self.answers.append(Answer(fetch, None, records, led.high_watermark))

    def take(self, at: int = 0, *, stays: bool = False) -> None:
        """An answer reaches the process that asked. `stays`: it comes again."""
        answer = self.answers[at] if stays else self.answers.pop(at)
        fetch = answer.fetch
        process, disk = self.processes[fetch.node], self.disks[fetch.node]
        follower = process.follower
        if follower is None or process.incarnation != fetch.incarnation or follower.end != disk.end:
            return  # of a role that is over; or it does not continue the log (DivergingAppend)
        match follower.answered(fetch.position, answer.diverging, answer.high_watermark):
            case Cut(offset):
                self.counts["cuts"] = self.counts.get("cuts", 0) + 1
                disk.cut(offset)
                follower.cut(disk.lineage, disk.end)
            case Take():
                disk.seen_epoch = follower.seen_epoch
                disk.append(answer.records)
                if not self.is_sync:
                    follower.flushed(disk.lineage, disk.end)
            case None:
                pass

    def copy(self, node: int, *, times: int = 1) -> None:
        """Whole rounds: asked, answered, taken, flushed."""
        for _ in range(times):
            self.fetch(node)
            self.serve(len(self.fetches) - 1)
            if self.answers:
                self.take(len(self.answers) - 1)
            self.flush(node)

    def all_obey(self) -> None:
        for node in self.processes:
            self.obey(node)


T = TypeVar("T")


def _shallow(one: T) -> T:
    """As `copy.copy`, in a quarter of the time: conversations make a copy for each event."""
    other = object.__new__(type(one))
    other.__dict__.update(one.__dict__)
    return other


def _leader_like(leader: Leader) -> Leader:
    other = object.__new__(Leader)
    for name in Leader.__slots__:
        setattr(other, name, getattr(leader, name))
    other._reports = leader._reports.copy()
    other.in_sync = object.__new__(InSync)
    for name in InSync.__slots__:
        setattr(other.in_sync, name, getattr(leader.in_sync, name))
    other.in_sync._proposals = leader.in_sync._proposals.copy()
    return other
