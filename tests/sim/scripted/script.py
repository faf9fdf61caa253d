"""A short scripted life of one broker: produce, roll, copy, expire, delete records, commit offsets.

Owns the script and what must hold after it was cut off and the broker was started again on what survived. The cut is
the caller's: at an effect of the disk, or in the middle of a compare-and-set. Always true: the script is the same up to
the cut, so that effects and writes can be counted in one run and cut in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from unittest import mock

from broker import app
from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from coldstore.inspection.bucket_inspection import BucketInspector
from logformat.records import Record, encode_batch
from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER, Reader, Stage
from tests.sim.checks.checker import Finding, check
from tests.sim.checks.history import Commit, Delete, Event, Final, History, Loss, Outcome, Place, Send
from tests.sim.client import Client, ServerError, produce_request
from tests.sim.nemesis import manifests
from tests.sim.run import BROKER_SETTINGS
from tests.sim.world.clock import EPOCH_MS
from tests.sim.world.cluster import Cluster, Node, Observed
from tests.sim.world.loop import SimLoop
from tests.sim.world.workers import SimWorkers

PLACE: Place = ("log", 0)
BATCHES = 24
RECORDS = 3
TOPIC = {
    "internal.segment.bytes": "1500",
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
SETTINGS = (*BROKER_SETTINGS, "thermocline.reservation.offsets=30", "thermocline.gc.grace.ms=300")


@dataclass
class Tail:
    """What the script's producer knows: enough to go on after the broker came back."""

    producer: tuple[int, int] = (-1, -1)
    sequence: int = 0
    unanswered: tuple[int, tuple[str, ...], float] | None = None  # batch number, values, when
    last: tuple[int, int] | None = None  # batch number and offset of the last acknowledged one


@dataclass
class Story:
    """A script under way: its cluster, its history so far, its producer."""

    cluster: Cluster
    history: History = field(default_factory=History)
    tail: Tail = field(default_factory=Tail)
    node: Node | None = None
    unexpected: list[str] = field(default_factory=list)
    under_way: Event | None = None  # an admin's or a group's operation, as it counts when nothing more is heard of it

    def known(self) -> list[Event]:
        """The history as it stands when everything stops now."""
        return [*self.history.events, *([] if self.under_way is None else [self.under_way])]

    def stage(self) -> Stage:
        assert self.node is not None
        return Stage(self.cluster, self.history, lambda: self.node, asyncio.Event(), self.unexpected, {})  # type: ignore[arg-type,return-value]

    def client(self) -> Client:
        return self.stage().client()

    def now(self) -> float:
        return self.cluster.loop.time()


def batch_of(tail: Tail, number: int) -> tuple[bytes, tuple[str, ...]]:
    values = tuple(f"s.{number}.{i}" for i in range(RECORDS))
    records = [Record(i, EPOCH_MS + number, b"k", value.encode() + b" " + b"x" * 150) for i, value in enumerate(values)]
    producer_id, epoch = tail.producer
    data = encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=number * RECORDS)
    return data, values


async def ready(story: Story, patience_s: float = 40.0) -> bool:
    node = story.node
    assert node is not None
    deadline_s = story.now() + patience_s
    while not node.serving and node.alive and story.now() < deadline_s:
        await asyncio.sleep(0.02)
    return node.serving


async def again(action: Callable[[], Awaitable[object]], tries: int = 40) -> bool:
    """Until it is answered; False when it never is."""
    for _ in range(tries):
        try:
            await action()
            return True
        except (*NO_ANSWER, ServerError) as failure:
            if isinstance(failure, ServerError) and failure.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return True
            await asyncio.sleep(0.1)
    return False


async def send(story: Story, number: int, client: Client) -> bool:
    """Batch `number`, acks=all; whether it was acknowledged."""
    tail = story.tail
    data, values = batch_of(tail, number)
    invoked_s = story.now()
    tail.unanswered = (number, values, invoked_s)
    response = await client.call(ApiKey.PRODUCE, produce_request(*PLACE, data))
    answer = response.responses[0].partition_responses[0]
    if answer.error_code != ErrorCode.NONE:
        raise ServerError(answer.error_code, "produce")
    node = story.node
    assert node is not None
    story.history.add(
        Send("s", number, PLACE, values, invoked_s, story.now(), Outcome.OK, answer.base_offset, node.name)
    )
    tail.unanswered, tail.last = None, (number, answer.base_offset)
    return True


async def play(story: Story) -> None:
    """The whole script; the caller's fault may strike anywhere in it."""
    story.node = story.cluster.start("a")
    if not await ready(story):
        return
    client = story.client()
    if not await again(lambda: client.create_topic(PLACE[0], 1, TOPIC)):
        return

    async def begin() -> None:
        story.tail.producer = await client.init_producer_id()

    if not await again(begin):
        return
    for number in range(BATCHES):
        if not await again(lambda number=number: send(story, number, client)):  # type: ignore[misc]
            return
        await asyncio.sleep(0.12)
        if number % 8 == 5:
            await delete_records(story, client, number)
        if number % 6 == 3:
            await commit_offset(story, client, number)
    await asyncio.sleep(2.0)


async def delete_records(story: Story, client: Client, offset: int) -> None:
    invoked_s, outcome = story.now(), Outcome.INFO
    story.under_way = Delete(PLACE, offset, invoked_s, invoked_s, outcome)
    try:
        await client.delete_records(*PLACE, offset)
        outcome = Outcome.OK
    except (*NO_ANSWER, ServerError):
        pass
    finally:
        story.under_way = None
        story.history.add(Delete(PLACE, offset, invoked_s, story.now(), outcome))


async def commit_offset(story: Story, client: Client, offset: int) -> None:
    invoked_s, outcome = story.now(), Outcome.INFO
    try:
        await client.find_coordinator("g")
        invoked_s = story.now()
        story.under_way = Commit("g", PLACE, offset, invoked_s, invoked_s, outcome)
        await client.commit_offset("g", *PLACE, offset)
        outcome = Outcome.OK
    except (*NO_ANSWER, ServerError):
        pass
    finally:
        story.under_way = None
        story.history.add(Commit("g", PLACE, offset, invoked_s, story.now(), outcome))


async def aftermath(story: Story, *, lossy: bool = False) -> list[Finding]:
    """Start again on what survived, resend what was in flight, read everything, look at the bucket."""
    before = await manifests(story.cluster)
    if lossy:
        for place, manifest in before.items():
            story.history.add(Loss(place, manifest.bucket_end_offset, story.now(), "page cache"))
        story.history.add(Loss(("*", 0), 0, story.now(), "page cache"))
    if story.node is None or not story.node.alive:
        story.node = story.cluster.start("a")
    if not await ready(story):
        return [Finding("not-ready", f"no broker: {story.cluster.exits} {story.cluster.failures}")]
    client, tail = story.client(), story.tail
    found: list[Finding] = []
    if await again(lambda: client.list_offset(*PLACE, -2), 3):
        # Before anything is sent again: a resend would put back what was lost.
        found += await _read(story)
        unanswered = () if tail.unanswered is None else (_unanswered(story, tail.unanswered),)
        found += check([*story.history.events, *unanswered])
    if tail.last is not None and not lossy:
        found += await _resend_last(story, client, tail.last)
    if tail.unanswered is not None:
        number, values, invoked_s = tail.unanswered
        if lossy:
            story.history.add(_unanswered(story, (number, values, invoked_s)))
        elif not await again(lambda: send(story, number, client)):
            found.append(Finding("writes-stuck", f"batch {number} is not taken after the restart"))
    if await again(lambda: client.list_offset(*PLACE, -2), 3):
        found += await _read(story)
    found += await _audit(story)
    found += [Finding("unexpected", text) for text in (*story.unexpected, *story.cluster.failures)]
    return list(dict.fromkeys(found + check(story.history.events)))


def _unanswered(story: Story, sent: tuple[int, tuple[str, ...], float]) -> Send:
    number, values, invoked_s = sent
    return Send("s", number, PLACE, values, invoked_s, story.now(), Outcome.INFO)


async def _resend_last(story: Story, client: Client, last: tuple[int, int]) -> list[Finding]:
    """The last acknowledged batch again: its original offset must be the answer (G4)."""
    number, offset = last
    answers: list[int] = []

    async def resend() -> None:
        data, _ = batch_of(story.tail, number)
        response = await client.call(ApiKey.PRODUCE, produce_request(*PLACE, data))
        answer = response.responses[0].partition_responses[0]
        if answer.error_code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            raise ServerError(answer.error_code, "resend")
        answers.append(answer.base_offset if answer.error_code == ErrorCode.NONE else offset)

    if not await again(resend):
        return [Finding("writes-stuck", f"the resend of batch {number} is refused")]
    return [] if answers == [offset] else [Finding("duplicate", f"batch {number} at {offset}, resent: {answers}")]


async def _read(story: Story) -> list[Finding]:
    reader = Reader(story.stage(), "final", PLACE, again=False)
    for _ in range(20):
        ends = await reader.ends()
        if ends is not None:
            start, end = ends
            reader.position = start
            if await reader.read_to(end, 40.0):
                story.history.add(Final(PLACE, start, end))
                return []
            return [Finding("unseen", f"stuck at {reader.position} of [{start}, {end})")]
        await asyncio.sleep(0.2)
    return [Finding("unreadable", "ListOffsets unanswered")]


async def _audit(story: Story) -> list[Finding]:
    assert story.node is not None
    workers = SimWorkers(story.cluster.loop, SeededRng("audit"))
    inspector = BucketInspector(story.cluster.plain_store(), workers)  # type: ignore[arg-type]
    found = []
    for topic_id, partition in await inspector.partitions():
        for finding in await inspector.verify(topic_id, partition, deep=True):
            if finding.kind.is_damage:
                found.append(Finding("bucket-damage", str(finding)))
    return found


def in_virtual_time(act: Callable[[SimLoop], Awaitable[Cluster]]) -> None:
    """Run `act` on a loop of its own; whatever its cluster leaves is buried."""
    loop = SimLoop()
    gc_was_on, hook = gc.isenabled(), sys.unraisablehook
    gc.disable()
    sys.unraisablehook = lambda _: None
    cluster: Cluster | None = None
    try:
        asyncio.set_event_loop(loop)
        with mock.patch.object(app, "Broker", Observed):
            cluster = loop.run_until_complete(act(loop))  # type: ignore[arg-type]
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if cluster is not None:
                cluster.bury()
            asyncio.set_event_loop(None)
            with contextlib.suppress(RuntimeError):
                loop.close()
            del cluster, loop
        sys.unraisablehook = hook
        if gc_was_on:
            gc.enable()


def copied(events: list[Event]) -> History:
    return History(list(events))
