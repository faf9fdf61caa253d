"""One owner a replica: whatever the image says while something is under way, roles come one after the other, and a log
goes only while that is still wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import Row
from broker.partition import owner as owner_module
from broker.partition.owner import ReplicaOwner
from broker.partition.publication import Publication
from logformat.errors import Fenced
from seams.rng import SeededRng
from seams.tasks import Tasks
from tests.support.cluster_kit import id_of
from tests.support.fast_loop import run_fast

TOPIC: Final = Topic(id_of(77), "log", (Row((1, 2), 1, 3, 3, (1, 2), 3),), {}, False)


class Role:
    """A role whose last work ends when the scene says so."""

    def __init__(self, scene: Scene, kind: str) -> None:
        self.scene, self.kind = scene, kind
        self.is_over, self.is_visible, self.damaged, self.partition = False, False, "", None
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
    """`told`: what came about; `working`: the role that may work on the log; `moves_on`: the log may go now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        self.working: Role | None = None
        self.moves_on = asyncio.Event()
        self.made: list[Role] = []
        monkeypatch.setattr(owner_module, "LeaderRole", self._maker(Leader))
        monkeypatch.setattr(owner_module, "FollowerRole", self._maker(Follower))
        logs = SimpleNamespace(
            close_of=self._close,
            set_aside=self._note("removed"),
            move_stray=self._note("kept aside"),
            directories=SimpleNamespace(delete_set_aside=self._note("deleted")),
        )
        tiers = SimpleNamespace(let_go=lambda *_: None, forget=lambda *_: None)
        world, metadata = SimpleNamespace(rng=SeededRng(1)), SimpleNamespace(image=ClusterImage())
        roles: Any = SimpleNamespace(
            logs=logs, tiers=tiers, world=world, metadata=metadata, tasks=Tasks(), report=self._report, registry=None
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
def test_the_newest_word_counts_once_the_role_before_is_over(
    first: str, meanwhile: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role begins; while its last work goes on the image says one thing, then another: what lies between is never
    begun."""

    async def scenario() -> None:
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
        await scene.owner.settled()

    run_fast(scenario())


@pytest.mark.parametrize(("last", "comes"), [("lead", "leader begins"), ("follow", "follower begins")])
@pytest.mark.parametrize("how", ["drop", "drop unseen"])
def test_a_log_that_is_given_back_before_its_files_go_stays(
    how: str, last: str, comes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        scene = Scene(monkeypatch)
        scene.say(how)
        await asyncio.sleep(1.0)
        scene.say(last)
        scene.goes_on()
        await asyncio.sleep(1.0)
        assert scene.told == ["closed", comes]

    run_fast(scenario())


def test_a_role_that_the_bucket_ended_begins_again_with_the_next_epoch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its root names a higher epoch than the image does."""

    async def scenario() -> None:
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

    run_fast(scenario())


def test_what_was_never_begun_keeps_nobody_waiting_for_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The creator of a topic waits until its partitions serve, or are not to be led any more."""

    async def scenario() -> None:
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
        await scene.owner.settled()

    run_fast(scenario())
