"""One owner a replica: whatever the image says while something is under way, roles come one after the other, and a log
goes only while that is still wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from broker.metadata.image import ClusterImage, Topic
from broker.metadata.rebuilt import UNKNOWN_REPLICA, unknown_replica
from broker.metadata.records import Row
from broker.partition import replica_owner as owner_module
from broker.partition.following.follower_role import FollowerRole
from broker.partition.leading.leader_role import LeaderRole
from broker.partition.leading.publication import Publication
from broker.partition.log_failures import LogFailures
from broker.partition.replica_owner import ReplicaOwner
from logformat.errors import Fenced
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.brokers.cluster_kit import id_of

TOPIC: Final = Topic(id_of(77), "log", (Row((1, 2), 1, 3, 3, (1, 2), 3),), {}, False)


class Role:
    """A role whose last work ends when the scene says so."""

    def __init__(self, scene: Scene, kind: str) -> None:
        self.scene, self.kind = scene, kind
        self.is_over, self.is_visible, self.is_refused, self.damaged, self.partition = False, False, False, "", None
        self.leader_epoch, self.topic = 3, TOPIC
        self.may_be_over = asyncio.Event()

    def begin(self) -> None:
        assert self.scene.working is None, "the role before works on the log"
        self.scene.working = self
        self.scene.told.append(f"{self.kind} begins")

    def end(self, why: Exception | None = None) -> None:
        if not self.is_over:
            self.is_over = True
            self.scene.told.append(f"{self.kind} ends")

    async def over(self) -> None:
        assert self.is_over
        await self.may_be_over.wait()
        self.scene.working = None
        self.scene.told.append(f"{self.kind} is over")


class Leader(Role):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene, "leader")


class Follower(Role):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene, "follower")


class Scene:
    """`told`: what came about; `working`: the role that may work on the log; `moves_on`: the log may be
    closed now; `has_turn`: a removal has its turn at the name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        self.working: Role | None = None
        self.moves_on = asyncio.Event()
        self.has_turn = asyncio.Event()
        self.has_turn.set()
        self.made: list[Role] = []
        monkeypatch.setattr(owner_module, "LeaderRole", self._maker(Leader))
        monkeypatch.setattr(owner_module, "FollowerRole", self._maker(Follower))
        logs = SimpleNamespace(
            close_of=self._close,
            forget_joining=lambda *_: None,
            set_aside=self._moved("removed"),
            move_stray=self._moved("kept aside"),
            directories=SimpleNamespace(delete_set_aside=self._note("deleted")),
        )
        tiers = SimpleNamespace(drop_reported_end=lambda *_: None, forget=lambda *_: None)
        world = SimpleNamespace(rng=SeededRng(1))
        self.metadata = metadata = SimpleNamespace(image=ClusterImage())
        registry = SimpleNamespace(log_failures=LogFailures())
        roles: Any = SimpleNamespace(
            logs=logs,
            tiers=tiers,
            world=world,
            metadata=metadata,
            tasks=Tasks(),
            report=self._report,
            registry=registry,
        )
        self.owner = ReplicaOwner(roles, TOPIC, 0, lambda _: self.told.append("gone"))

    def _maker(self, kind: Callable[[Scene], Role]) -> type:
        scene = self

        class Made(Leader if kind is Leader else Follower):  # type: ignore[misc]
            def __init__(self, *_: object) -> None:
                super().__init__(scene)
                scene.made.append(self)

        return Made

    def _report(self, name: str, failure: BaseException) -> None:
        raise AssertionError(f"{name}: {failure}") from failure

    def _note(self, what: str) -> Callable[..., Any]:
        async def noted(*_: object) -> None:
            assert self.working is None, "a role works on the log"
            self.told.append(what)

        return noted

    def _moved(self, what: str) -> Callable[..., Any]:
        async def moved(
            _place: object, _topic_id: object, is_wanted: Callable[[], bool], then: Callable[[], None]
        ) -> None:
            await self.has_turn.wait()
            if is_wanted():
                await self._note(what)()
                then()

        return moved

    async def _close(self, *_: object) -> None:
        assert self.working is None, "a role works on the log"
        await self.moves_on.wait()
        self.told.append("closed")

    def lead(self) -> None:
        self.owner.lead(TOPIC, Publication("log", [0], lambda _: None))

    def say(self, what: str) -> None:
        """As the publisher does: it says that a role is over before it says what comes."""
        match what:
            case "lead":
                self.owner.rest()
                self.lead()
            case "follow":
                self.owner.rest()
                self.owner.follow(TOPIC)
            case "rest":
                self.owner.rest()
            case "drop":
                self.owner.rest()
                self.owner.drop(is_seen=True)
            case "drop unseen":
                self.owner.rest()
                self.owner.drop(is_seen=False)
            case "delete":
                self.owner.delete(lambda: True)
            case "delete forgotten":
                self.owner.delete(lambda: False)
            case "stop":
                self.owner.stop(Fenced("the broker stops"))

    def goes_on(self) -> None:
        for role in self.made:
            role.may_be_over.set()
        self.moves_on.set()


LAST: Final = {
    "lead": ["leader begins"],
    "follow": ["follower begins"],
    "rest": [],
    "drop": ["closed", "removed", "deleted", "gone"],
    "drop unseen": ["closed", "kept aside", "gone"],
    "delete": ["closed", "gone"],
    "delete forgotten": ["closed", "kept aside", "gone"],
    "stop": [],
}
"""What comes of each word once nothing is under way any more."""


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("meanwhile", ["", "lead", "follow", "rest", "drop"])
@pytest.mark.parametrize("first", ["lead", "follow"])
async def test_the_newest_word_counts_once_the_role_before_is_over(
    first: str, meanwhile: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role begins; while its last work goes on the image says one thing, then another: what lies between is never
    begun."""
    scene = Scene(monkeypatch)
    kind = {"lead": "leader", "follow": "follower"}[first]
    scene.say(first)
    await asyncio.sleep(1.0)
    assert scene.told == [f"{kind} begins"]
    if meanwhile:
        scene.say(meanwhile)
        await asyncio.sleep(1.0)
    scene.say(last)
    await asyncio.sleep(60.0)
    assert scene.told == [f"{kind} begins", f"{kind} ends"], "its last work goes on"
    scene.goes_on()
    await asyncio.sleep(1.0)
    # A stop waits for a removal that was asked for.
    comes = LAST["drop" if (meanwhile, last) == ("drop", "stop") else last]
    assert scene.told == [f"{kind} begins", f"{kind} ends", f"{kind} is over", *comes]
    await scene.owner.aim_reached()


@pytest.mark.parametrize(("last", "comes"), [("lead", "leader begins"), ("follow", "follower begins")])
@pytest.mark.parametrize("how", ["drop", "drop unseen"])
async def test_a_log_that_is_given_back_before_its_files_go_stays(
    how: str, last: str, comes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(monkeypatch)
    scene.say(how)
    await asyncio.sleep(1.0)
    scene.say(last)
    scene.goes_on()
    await asyncio.sleep(1.0)
    assert scene.told == ["closed", comes]


@pytest.mark.parametrize(("last", "comes"), [("lead", "leader begins"), ("follow", "follower begins")])
@pytest.mark.parametrize("how", ["drop", "drop unseen", "delete forgotten"])
async def test_a_log_that_is_given_back_while_its_removal_waits_for_its_turn_stays(
    how: str, last: str, comes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed by then; nothing of it is moved or removed."""
    scene = Scene(monkeypatch)
    scene.has_turn.clear()
    scene.goes_on()
    scene.say(how)
    await asyncio.sleep(1.0)
    assert scene.told == ["closed"]
    scene.say(last)
    await asyncio.sleep(1.0)
    assert scene.told == ["closed"], "the removal has not come to its turn"
    scene.has_turn.set()
    await asyncio.sleep(1.0)
    assert scene.told == ["closed", comes]
    await scene.owner.aim_reached()


async def test_a_log_that_a_rebuilt_cluster_may_need_is_kept_aside_when_its_turn_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: whether its removal was sure was asked before the turn, and the log was removed."""
    scene = Scene(monkeypatch)
    scene.has_turn.clear()
    scene.goes_on()
    scene.say("drop")
    await asyncio.sleep(1.0)
    scene.metadata.image = ClusterImage(nodes={UNKNOWN_REPLICA: unknown_replica(1)})
    scene.has_turn.set()
    await asyncio.sleep(1.0)
    assert scene.told == ["closed", "kept aside", "gone"]


async def test_a_role_that_the_bucket_ended_begins_again_with_the_next_epoch_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its root names a higher epoch than the image does."""
    scene = Scene(monkeypatch)
    scene.say("lead")
    await asyncio.sleep(1.0)
    (role,) = scene.made
    scene.goes_on()
    scene.owner._fenced(role, "epoch 3 superseded by 4")  # type: ignore[arg-type]
    await asyncio.sleep(60.0)
    assert scene.told == ["leader begins", "leader ends", "leader is over"]
    scene.say("lead")
    await asyncio.sleep(1.0)
    assert scene.told[3:] == ["leader begins"]


async def test_what_was_never_begun_keeps_nobody_waiting_for_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The creator of a topic waits until its partitions serve, or are not to be led any more."""
    scene = Scene(monkeypatch)
    scene.say("follow")
    await asyncio.sleep(1.0)
    publication = Publication("log", [0], lambda _: None)
    scene.owner.rest()
    scene.owner.lead(TOPIC, publication)
    await asyncio.sleep(1.0)
    assert not publication.over.is_set(), "the role before is not over"
    scene.say("rest")
    assert publication.over.is_set()
    scene.goes_on()
    await scene.owner.aim_reached()


@pytest.mark.parametrize("kind", ["leader", "follower"])
async def test_the_end_of_a_role_cuts_off_its_opening_and_waits_for_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real roles. An opening that asks the bucket for an hour neither goes on nor holds up the next role; what it
    does last, as it is cut off, is over before the next role has the log."""
    told: list[str] = []

    async def opening(_: object) -> None:
        try:
            await asyncio.sleep(3600.0)
            told.append("opened")
        finally:
            await asyncio.sleep(5.0)
            told.append("its last work is done")

    def report(name: str, failure: BaseException) -> None:
        raise AssertionError(f"{name}: {failure}") from failure

    monkeypatch.setattr(LeaderRole, "_attempt", opening)
    monkeypatch.setattr(FollowerRole, "_begin", opening)
    roles: Any = SimpleNamespace(
        tasks=Tasks(), world=SimpleNamespace(rng=SeededRng(1)), report=report, registry=None, watchers=[]
    )
    role: LeaderRole | FollowerRole
    if kind == "leader":
        publication = Publication("log", [0], lambda _: None)
        role = LeaderRole(roles, TOPIC, 0, publication, None, lambda *_: None)
    else:
        role = FollowerRole(roles, TOPIC, 0, 0.0)
    role.begin()
    await asyncio.sleep(1.0)
    role.end(Fenced("over")) if isinstance(role, LeaderRole) else role.end()
    over = asyncio.ensure_future(role.over())
    await asyncio.sleep(1.0)
    assert not over.done(), "it works on the log still"
    async with asyncio.timeout(60.0):
        await over
    assert told == ["its last work is done"]


@pytest.mark.parametrize("may_have_left", [True, False])
async def test_what_a_leader_reported_is_forgotten_after_an_absence_that_no_image_showed(
    monkeypatch: pytest.MonkeyPatch, *, may_have_left: bool
) -> None:
    """Regression: one image showed that the broker left and joined again. It kept the reserved end from before,
    although a leader alone may have given those offsets back (R21)."""
    scene, forgotten = Scene(monkeypatch), list[str]()
    roles: Any = scene.owner._roles
    roles.tiers.drop_reported_end = lambda *_: forgotten.append("reported end")
    roles.logs.forget_joining = lambda *_: forgotten.append("joining")
    scene.owner.rest(may_have_left=may_have_left)
    scene.owner.follow(TOPIC)
    await scene.owner.aim_reached()
    assert forgotten == (["reported end", "joining"] if may_have_left else [])
