"""What happens to both brokers: steps drawn from a seed, and the sites they happen at.

Owns the draw. Always true: a seed gives the same history whatever the brokers answer; its producers, connections and
styles are its own, its partitions are those of a site that many histories share, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final, NamedTuple

from tests.differential import requests
from tests.differential.batches import NOBODY, SPOILERS, Body, Producer, batch, pool
from tests.differential.requests import Frame, Oddity, Part, Style
from tests.sim.world.clock import EPOCH_MS

CONNECTIONS: Final = 3
INTERNAL: Final = "__consumer_offsets"


class Topic(NamedTuple):
    """`configs` as CreateTopics takes them, beside those of every topic here."""

    name: str
    partitions: int
    own: dict[str, str]

    @property
    def configs(self) -> dict[str, str]:
        return {"remote.storage.enable": "false"} | self.own


@dataclass(frozen=True)
class Site:
    """What the brokers of many histories are configured with."""

    topics: Sequence[Topic]
    settings: Sequence[str]


def site(rng: Random) -> Site:
    """Topics for every rule that a partition may have; sizes so small that segments roll within a history."""
    small = str(rng.choice((200, 700, 1500, 4000)))
    interval = str(rng.choice((0, 60, 200, 1000)))
    topics = (
        Topic("plain", 6, {}),
        Topic("many", 16, {"internal.segment.bytes": "20000", "index.interval.bytes": "500"}),
        Topic("small", 3, {"internal.segment.bytes": small, "index.interval.bytes": interval}),
        Topic(
            "flushed",
            2,
            {"flush.messages": "1", "index.interval.bytes": interval, "internal.segment.bytes": "9000"},
        ),
        Topic("each", 1, {"flush.messages": "3"}),
        Topic(
            "stamped",
            2,
            {"message.timestamp.type": "LogAppendTime", "internal.segment.bytes": small, "index.interval.bytes": "0"},
        ),
        Topic(
            "tight",
            2,
            {
                "max.message.bytes": "300",
                "message.timestamp.before.max.ms": "3600000",
                "message.timestamp.after.max.ms": "3600000",
            },
        ),
        Topic("timed", 2, {"segment.ms": "1000"}),
        Topic("indexed", 2, {"segment.index.bytes": "24", "index.interval.bytes": rng.choice(("0", "100"))}),
        Topic("in-sync", 1, {"min.insync.replicas": "2"}),
        Topic("going", 2, {"internal.segment.bytes": small}),
        Topic("frail", 2, {"internal.segment.bytes": "3000"}),
    )
    settings = ["auto.create.topics.enable=false", "remote.log.manager.task.interval.ms=600000"]
    settings.append("log.retention.check.interval.ms=600000")
    if rng.randrange(3) == 0:
        settings.append("thermocline.validate.records=true")
    if rng.randrange(3) == 0:
        settings.append("thermocline.flush=os")
    return Site(topics, settings)


class Cut(Enum):
    """How the first broker is given the bytes of a burst."""

    AT_ONCE = "at once"
    BY_FRAME = "frame by frame"
    ANYWHERE = "anywhere"
    BYTES = "a byte at a time"


@dataclass(slots=True)
class Burst:
    """Frames of one connection that arrive in one moment. `turns`: the loops go on between two reads."""

    connection: int
    frames: list[Frame]
    cut: Cut
    turns: bool
    seed: int  # of the cuts


class Kind(Enum):
    """Of what else happens, to both alike."""

    PASS = "time passes"  # value: ms
    WALL = "the wall clock jumps"  # value: ms
    HOLD = "no sync ends"
    RELEASE = "syncs end"
    FULL = "the disk has so much room a file"  # value: bytes a log file may still grow
    ROOM = "there is room again"
    WRITE_FAILS = "a write fails"  # topic, index
    SYNC_FAILS = "a sync fails"  # topic, index
    HEAL = "the disk is well again"
    RESERVE = "so many offsets are left"  # topic, index, value
    RESERVED = "the bucket gave more"
    SLEEP = "the machine sleeps"  # value: ms
    PRESSURE = "the disk is over its limit"  # value: thousandths
    RELAX = "it is not any more"
    RESIGN = "a leadership ends"  # topic, index
    LEAD = "it begins again"  # topic, index
    DELETE = "a topic is deleted"  # topic
    CREATE = "it is created again"  # topic
    HANG_UP = "the peer is gone"  # value: connection


class Happening(NamedTuple):
    kind: Kind
    value: int = 0
    topic: str = ""
    index: int = 0


Step = Burst | Happening


class _Sequence:
    """Where one producer stands with one partition, should all it sent be taken."""

    def __init__(self, producer_id: int, rng: Random) -> None:
        self.id = producer_id
        self.epoch = rng.choice((0, 0, 3))
        self.next = rng.choice((0, 0, 0, 5, 2**31 - 4))
        self.sent: list[tuple[Body, int, Producer]] = []

    def take(self, body: Body, first_ms: int) -> Producer:
        producer = Producer(self.id, self.epoch, self.next)
        self.next = (self.next + body.count) & (2**31 - 1)
        self.sent.append((body, first_ms, producer))
        return producer


@dataclass
class _Client:
    """Who repeats itself: a style, targets, and whether it is an idempotent producer."""

    connection: int
    style: Style
    targets: list[tuple[str, int]]
    producer_id: int
    bodies: Sequence[Body]
    spoils: float
    sequences: dict[tuple[str, int], _Sequence] = field(default_factory=dict)


class Draw:
    """One history of `site`, from `seed`."""

    def __init__(self, site: Site, seed: int | str) -> None:
        self.rng = rng = Random(f"history/{seed}")
        self.site = site
        self._correlation = rng.choice((0, 1, 1000, 2**31 - 40))
        self._spoiled = rng.choice((0.0, 0.0, 0.02, 0.1, 0.4))
        self._odd = rng.choice((0.0, 0.0, 0.02, 0.2))
        self._others = rng.choice((0.0, 0.02, 0.1))
        self._trouble = rng.choice((0.0, 0.1, 0.3))
        self._producer_id = 1000 * (rng.randrange(10**9))
        self._targets = [(topic.name, index) for topic in site.topics for index in range(topic.partitions)]
        self._clients = [self._client() for _ in range(rng.choice((1, 1, 2, 3)))]

    def steps(self) -> list[Step]:
        rng = self.rng
        steps: list[Step] = []
        for _ in range(rng.choice((1, 2, 3, 5, 8))):
            trouble = self._trouble_around() if rng.random() < self._trouble else ()
            before, after = trouble if trouble else ((), ())
            steps += before
            # Who waits for room, offsets or the gate does so in its own turns: which of two is first, nobody promised.
            waits = any(isinstance(step, Happening) and step.kind in _MAKES_WAIT for step in before)
            bursts = 1 if waits else rng.choice((1, 1, 2))
            steps += [self._burst(reads=not trouble) for _ in range(bursts)]
            steps += after
            if rng.random() < 0.2:
                steps.append(Happening(Kind.PASS, rng.choice((1, 9, 12, 60))))
            if rng.random() < 0.05:
                steps.append(Happening(Kind.WALL, rng.choice((1, 999, 1001, 5000, -700))))
        return steps

    # ── who sends ────────────────────────────────────────────────────────────────────────────────────────────────
    def _client(self) -> _Client:
        rng = self.rng
        style = Style(
            rng.choice((3, 4, 5, 6, 7, 7, 8, 8, 9, 9, 9, 9)),
            rng.choice(("producer-1", "", None, "c" * rng.choice((1, 130, 900, 1100)))),
            rng.choice((-1, -1, 1, 1, 0)) if rng.random() > 0.03 else rng.choice((2, -2)),
            rng.choice((30_000, 30_000, 20_000)),  # what is too late is each broker's own turns and ticks to say
            "tx" if rng.random() < 0.02 else None,
        )
        if rng.random() < 0.02:
            style = style._replace(version=rng.choice((0, 2, 10, 12)))
        count = rng.choice((1, 1, 1, 1, 2, 3, 5, 8, 16))
        if rng.random() < 0.6:
            topic = rng.choice(self.site.topics).name
            of_topic = [target for target in self._targets if target[0] == topic]
            targets = rng.sample(of_topic, min(count, len(of_topic)))
        else:
            targets = rng.sample(self._targets, count)
            if rng.random() < 0.7:
                targets.sort()
        if rng.random() < 0.06:
            targets[rng.randrange(len(targets))] = rng.choice(
                (("nobody-knows", 0), ("plain", 77), ("plain", -1), (INTERNAL, 0), ("", 0), ("n" * 300, 0), targets[0])
            )
        bodies = pool()
        if rng.random() < 0.8:  # clients repeat sizes, too
            some = rng.choices(bodies[: -60 if rng.random() < 0.7 else None], k=rng.choice((1, 2, 4)))
            bodies = tuple(some)
        self._producer_id += 1
        producer_id = self._producer_id if rng.random() < 0.5 else -1
        return _Client(rng.randrange(CONNECTIONS), style, targets, producer_id, bodies, self._spoiled)

    def _burst(self, *, reads: bool) -> Burst:
        rng = self.rng
        client = rng.choice(self._clients)
        count = rng.choice((1, 1, 2, 3, 4, 6, 10, 20))
        if (
            reads and rng.random() < 0.02
        ):  # not in trouble: a run is one answer in flight, of which there are 128 at most
            count = 150
        frames: list[Frame] = []
        for at in range(count):
            draw = rng.random()
            if draw < self._others:
                name, index = rng.choice(self._targets)
                frames.append(requests.other(rng, self._next(), name, index, reads=reads and at == 0))
            elif draw < self._others + self._odd * 0.1:
                frames.append(requests.hostile(rng, self._frame(client)))
            else:
                if len(self._clients) > 1 and rng.random() < 0.1:
                    client = rng.choice(self._clients)  # another producer behind the same connection
                frames.append(self._frame(client))
        return Burst(client.connection, frames, rng.choice(_CUTS), rng.random() < 0.15, rng.getrandbits(32))

    def _frame(self, client: _Client) -> Frame:
        rng = self.rng
        targets = client.targets
        if rng.random() < self._odd * 0.3:
            targets = rng.sample(targets, rng.randrange(len(targets) + 1))
        labels: list[str] = []
        parts = [self._part(client, target, labels) for target in targets]
        oddity = requests.PLAIN
        if rng.random() < self._odd * 0.3:
            oddity = Oddity(rng.random() < 0.4, rng.choice((-1, 0, 1, 2, 3)), rng.choice((b"", b"", b"\0", b"\0" * 9)))
            labels.append(str(oddity))
        correlation_id = self._next()
        style = client.style
        data = requests.produce(style, parts, correlation_id, oddity)
        return Frame(data, "; ".join(labels), style.version, style.acks, correlation_id, parts)

    def _next(self) -> int:
        self._correlation = (self._correlation + 1) & (2**31 - 1)
        return self._correlation

    def _part(self, client: _Client, target: tuple[str, int], labels: list[str]) -> Part:
        rng = self.rng
        name, index = target
        if rng.random() < client.spoils * 0.1:
            nothing = rng.choice((None, b""))
            labels.append(f"{name}-{index} {nothing!r}")
            return Part(name, index, nothing)
        body = rng.choice(client.bodies)
        first_ms = EPOCH_MS + rng.randrange(-5000, 5000)
        producer = NOBODY
        if client.producer_id >= 0:
            sequence = client.sequences.setdefault(target, _Sequence(client.producer_id, rng))
            body, first_ms, producer = self._sequenced(sequence, body, first_ms, labels)
        made = batch(body, first_ms, producer)
        if rng.random() < client.spoils:
            spoiler = rng.choice(_SPOILERS)
            SPOILERS[spoiler](made, rng)
            labels.append(f"{name}-{index} {spoiler}")
        return Part(name, index, bytes(made))

    def _sequenced(
        self, sequence: _Sequence, body: Body, first_ms: int, labels: list[str]
    ) -> tuple[Body, int, Producer]:
        rng = self.rng
        draw = rng.random()
        if draw < 0.06 and sequence.sent:  # a resend; of what is long past a duplicate nobody remembers
            labels.append("resend")
            return sequence.sent[-min(len(sequence.sent), rng.choice((1, 1, 2, 3, 5, 6, 9)))]
        if draw < 0.08:
            labels.append("gap")
            gap = (sequence.next + rng.choice((1, 7, 2**30))) & (2**31 - 1)
            return body, first_ms, Producer(sequence.id, sequence.epoch, gap)
        if draw < 0.10:
            labels.append("old epoch")
            return body, first_ms, Producer(sequence.id, max(0, sequence.epoch - 1), sequence.next)
        if draw < 0.12:
            labels.append("new epoch")
            sequence.epoch += 1
            sequence.next = rng.choice((0, 0, 0, 3))
        return body, first_ms, sequence.take(body, first_ms)

    # ── what happens around them ─────────────────────────────────────────────────────────────────────────────────
    def _trouble_around(self) -> tuple[list[Step], list[Step]]:
        rng = self.rng
        name, index = rng.choice(rng.choice(self._clients).targets)
        if all(name != topic.name for topic in self.site.topics) or (name, index) not in self._targets:
            name, index = "plain", 0
        kind = rng.choice(_TROUBLES)
        if kind is Kind.HOLD:
            between: list[Step] = rng.choice(
                (
                    [],
                    [Happening(Kind.PASS, rng.choice((500, 2500)))],
                    [Happening(Kind.SLEEP, 60_000)],
                    [Happening(Kind.HANG_UP, rng.randrange(CONNECTIONS))],
                    [Happening(Kind.RESIGN, 0, name, index), Happening(Kind.LEAD, 0, name, index)],
                )
            )
            return [Happening(kind)], [*between, Happening(Kind.RELEASE), Happening(Kind.PASS, 3000 if between else 1)]
        if kind is Kind.FULL:
            room = rng.choice((0, 10, 100, 1000, 5000))
            return [Happening(kind, room)], [Happening(Kind.ROOM), self._burst(reads=False)]
        if kind in (Kind.WRITE_FAILS, Kind.SYNC_FAILS):
            if rng.random() < 0.8:
                name, index = "frail", rng.randrange(2)
                self._clients[0].targets[:] = [("frail", 0), ("plain", 1), ("frail", 1)][: rng.choice((1, 2, 3))]
            return [Happening(kind, 0, name, index)], [Happening(Kind.HEAL)]
        if kind is Kind.RESERVE:
            left = rng.choice((0, 1, 2, 5, 20))
            return [Happening(kind, left, name, index)], [Happening(Kind.PASS, 400), Happening(Kind.RESERVED)]
        if kind is Kind.SLEEP:
            return [Happening(kind, rng.choice((1000, 60_000)))], [Happening(Kind.PASS, 5000)]
        if kind is Kind.PRESSURE:
            return [Happening(kind, rng.choice((30, 90, 150)))], [Happening(Kind.PASS, 400), Happening(Kind.RELAX)]
        if kind is Kind.RESIGN:
            return [Happening(kind, 0, name, index)], [Happening(Kind.LEAD, 0, name, index)]
        if kind is Kind.LEAD:
            return [Happening(Kind.RESIGN, 0, name, index), Happening(Kind.LEAD, 0, name, index)], []
        if (
            kind is Kind.WALL
        ):  # producers are silent for too long; no tick in between, whose moments are each broker's own
            return [Happening(kind, 86_400_001)], [Happening(kind, -86_400_001)]
        if kind is Kind.DELETE:
            if rng.random() < 0.7:
                self._clients[0].targets[:] = [("going", 0), ("plain", 2), ("going", 1)][: rng.choice((1, 2, 3))]
            return [Happening(kind, 0, "going")], [Happening(Kind.CREATE, 0, "going")]
        return [Happening(Kind.HANG_UP, rng.randrange(CONNECTIONS))], []


_MAKES_WAIT: Final = frozenset({Kind.PRESSURE, Kind.RESERVE, Kind.SLEEP})
_CUTS: Final = (*[Cut.AT_ONCE] * 4, *[Cut.ANYWHERE] * 3, Cut.BY_FRAME, Cut.BYTES)
_SPOILERS: Final = tuple(SPOILERS)
_TROUBLES: Final = (
    *[Kind.HOLD] * 4,
    *[Kind.FULL] * 3,
    *[Kind.RESERVE] * 3,
    *[Kind.PRESSURE] * 2,
    *[Kind.RESIGN] * 2,
    *[Kind.LEAD] * 2,
    Kind.SLEEP,
    Kind.WALL,
    Kind.WRITE_FAILS,  # not SYNC_FAILS: which appends came before it depends on each broker's own turns
    Kind.DELETE,
    Kind.HANG_UP,
)


def draw(site: Site, seed: int | str) -> list[Step]:
    """The history of that seed."""
    return Draw(site, seed).steps()
