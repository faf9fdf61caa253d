"""Clients that do anything, a log that holds, refuses and lies, a broker that is killed: what always holds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from broker.error_codes import ErrorCode as E
from broker.groups.machine.events import JoinReply, SyncReply
from logformat.errors import Retryable, StorageFailed
from tests.sim.world.loop import SimLoop
from tests.support.groups.group_world import GroupWorld

GROUPS = st.sampled_from(["g", "h"])
# The append's outcome is unknown to the client; everything else says that nothing was written.
UNKNOWN = {E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR}


class Commits:
    """Of one group: each commit carries the next number, so what is fetched says which it was."""

    def __init__(self) -> None:
        self.begun = 0
        self.acknowledged = 0
        self.acknowledged_generation = -1
        self.refused: set[int] = set()


class GroupsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop()
        self.world = GroupWorld(offsets_commit_timeout_ms=2_000)
        self.known: list[tuple[str, str, int]] = []
        self.commits = {"g": Commits(), "h": Commits()}
        self.asked: list[asyncio.Task[Any]] = []
        self.run(self.world.ready())

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(what)

    def ask(self, what: Coroutine[Any, Any, Any]) -> None:
        """Begin it, and let it come as far as it can without time passing."""

        async def begin() -> None:
            self.asked.append(asyncio.get_running_loop().create_task(what))
            await asyncio.sleep(0.001)

        self.run(begin())

    def one(self, pick: int) -> tuple[str, str, int]:
        return self.known[-1 - pick % len(self.known)] if self.known else ("g", "nobody", 1)

    # ---- members ---------------------------------------------------------------------------------------------------

    @rule(group=GROUPS, instance=st.sampled_from([None, None, "i"]))
    def join(self, group: str, instance: str | None) -> None:
        self.ask(self._join(group, "", instance))

    @rule(pick=st.integers(0, 9))
    def rejoin(self, pick: int) -> None:
        group, member_id, _ = self.one(pick)
        self.ask(self._join(group, member_id, None))

    async def _join(self, group: str, member_id: str, instance: str | None) -> None:
        reply = await self.world.join(group, member_id, instance_id=instance, rebalance_timeout_ms=4_000)
        assert isinstance(reply, JoinReply)
        if reply.error is E.NONE:
            self.known.append((group, reply.member_id, reply.generation))

    @rule(pick=st.integers(0, 9))
    def sync(self, pick: int) -> None:
        self.ask(self._sync(*self.one(pick)))

    async def _sync(self, group: str, member_id: str, generation: int) -> None:
        given = {member: member.encode() for _, member, _ in self.known}
        reply = await self.world.sync(group, member_id, generation, given)
        assert isinstance(reply, SyncReply)
        if reply.error is E.NONE and not member_id.startswith("i-"):
            assert reply.assignment in (b"", member_id.encode()), "another member's share"

    @rule(pick=st.integers(0, 9))
    def beat(self, pick: int) -> None:
        self.ask(self.world.beat(*self.one(pick)))

    @rule(pick=st.integers(0, 9))
    def leave(self, pick: int) -> None:
        group, member_id, _ = self.one(pick)
        self.ask(self.world.leave(group, member_id))

    # ---- offsets ---------------------------------------------------------------------------------------------------

    @rule(pick=st.integers(0, 9))
    def commit(self, pick: int) -> None:
        self.ask(self._commit(*self.one(pick)))

    @rule(group=GROUPS)
    def commit_from_outside(self, group: str) -> None:
        self.ask(self._commit(group, "", -1))

    async def _commit(self, group: str, member_id: str, generation: int) -> None:
        commits = self.commits[group]
        commits.begun += 1
        number = commits.begun
        code = await self.world.commit(group, number, member_id, generation)
        if code is E.NONE:
            assert generation < 0 or generation >= commits.acknowledged_generation, "an old generation came after"
            commits.acknowledged = max(commits.acknowledged, number)
            commits.acknowledged_generation = max(commits.acknowledged_generation, generation)
        elif code not in UNKNOWN:
            commits.refused.add(number)

    @rule(group=GROUPS)
    def fetch(self, group: str) -> None:
        self.ask(self._fetch(group))

    async def _fetch(self, group: str) -> None:
        commits = self.commits[group]
        acknowledged = commits.acknowledged
        offset = await self.world.fetch(group)
        if isinstance(offset, E):
            assert offset in {E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS}
        else:
            assert max(offset, 0) >= acknowledged, "an acknowledged commit is lost"
            assert offset <= commits.begun and offset not in commits.refused

    # ---- the world -------------------------------------------------------------------------------------------------

    @rule(delay_s=st.sampled_from([0.01, 0.5, 3, 11]))
    def wait(self, delay_s: float) -> None:
        self.run(asyncio.sleep(delay_s))

    @rule(hold=st.booleans())
    def log_holds(self, hold: bool) -> None:
        self.world.log.hold() if hold else self.world.log.release()

    @rule(after=st.booleans(), failure=st.sampled_from([Retryable("no"), StorageFailed("EIO")]))
    def log_fails(self, after: bool, failure: Exception) -> None:
        (self.world.log.fail_after if after else self.world.log.fail).append(failure)

    @rule()
    def kill(self) -> None:
        for task in self.asked:
            task.cancel()
        self.run(asyncio.sleep(0))
        self.collect()
        self.run(self.world.restart())

    @rule()
    def collect(self) -> None:
        """Whatever was asked and is answered must have been answered well."""
        for task in [task for task in self.asked if task.done()]:
            self.asked.remove(task)
            if not task.cancelled():
                task.result()

    def teardown(self) -> None:
        self.world.log.release()
        self.run(asyncio.sleep(700))
        self.collect()
        assert not self.asked, "somebody was never answered"
        for group in self.commits:
            self.run(self._fetch(group))
        assert not self.world.failures
        self.run(self.world.kill())
        self.loop.close()


class MovingMachine(GroupsMachine):
    """Leadership moves away and comes back, in a higher epoch, under whatever is on its way; the log stays."""

    def __init__(self) -> None:
        super().__init__()
        self.world.log.writes_first = True

    @rule()
    def leadership_moves(self) -> None:
        async def move() -> None:
            self.world.move_leadership()

        self.run(move())

    @rule()
    def kill(self) -> None:
        self.world.log.release()  # what a killed process left in the log is committed when it starts again
        super().kill()


TestGroups = GroupsMachine.TestCase
TestMovingGroups = MovingMachine.TestCase
TestMovingGroups.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestGroups.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
