"""A topic whose ACLs change in a run: its clients lose WRITE and READ, and regain them, while they work.

Owns its ACLs and who writes and reads there. Clients have no names here: the right is everybody's, of this topic alone;
all else goes on without ACLs. Always true: an answer is judged where the broker had the same ACLs when it was asked and
when it answered: it takes or gives nothing without the right, and refuses nobody who has it. A refused batch has no
effect: the history has it as failed. Must not know faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from broker.config.authorizer import ALLOWS_WITHOUT_ACLS, CLASS_NAME, STANDARD_AUTHORIZER
from broker.error_codes import ErrorCode
from broker.metadata.records import Acl
from broker.security.authorizer.kinds import Operation, PatternType, Permission, ResourceType
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    CreateAclsRequest,
    CreateAclsRequestCreation,
    DeleteAclsRequest,
    DeleteAclsRequestFilter,
)
from logformat.records import Record, encode_batch
from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER, Stage
from tests.sim.acts import Found
from tests.sim.checks.history import Outcome, Place, Poll, Send
from tests.sim.client import Client, ServerError, produce_request
from tests.sim.world.clock import EPOCH_MS

PLACE: Final[Place] = ("guarded", 0)
CONFIGS: Final = {
    "internal.segment.bytes": "2500",
    "retention.ms": "-1",
    "remote.storage.enable": "true",
    "local.retention.bytes": "3000",
}
SETTINGS: Final = (f"{CLASS_NAME}={STANDARD_AUTHORIZER}", f"{ALLOWS_WITHOUT_ACLS}=true")
WRITERS: Final = 2
FOLLOWED_S: Final = 30.0
"""In quiet times every broker decides by other ACLs within this."""

RIGHTS: Final = (Operation.WRITE, Operation.READ)
REFUSED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def is_guarded(name: str, settings: Sequence[str]) -> bool:
    """Whether the run of this name has it: each that asks ACLs of everybody, and a sixth of those without authorizer;
    drawn apart."""
    if any(setting.startswith(CLASS_NAME) for setting in settings):
        return SETTINGS[1] in settings
    return SeededRng(f"{name}/guarded").randrange(6) == 0


class Guarded:
    """Of one run. `hits` counts changes and refusals."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.hits: Counter[str] = Counter()
        self._rng = stage.rng("guarded")
        self._owner = stage.client()

    async def run(self) -> None:
        """The owner, and one who reads, until told to stop."""
        async with asyncio.TaskGroup() as acting:
            acting.create_task(self._own())
            acting.create_task(self._read())

    # --- the owner ---
    async def _own(self) -> None:
        stage, rng = self._stage, self._rng
        await self._until(lambda: self._allow(Operation.DESCRIBE, Operation.ALTER, *RIGHTS))
        while not stage.stopping.is_set():
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            right = RIGHTS[rng.randrange(3) == 0]
            await self._asked(lambda right=right: self._take(right))  # type: ignore[misc]
            await asyncio.sleep(rng.uniform(0.05, 1.2))
            await self._until(lambda right=right: self._allow(right))  # type: ignore[misc]

    async def _asked(self, ask: Callable[[], Awaitable[object]]) -> bool:
        return await self._stage.asked(self._owner, ask, "owner")

    async def _until(self, ask: Callable[[], Awaitable[object]]) -> None:
        while not await self._asked(ask):
            await asyncio.sleep(0.3)

    async def _allow(self, *operations: Operation) -> None:
        kinds = int(ResourceType.TOPIC), PLACE[0], int(PatternType.LITERAL)
        made = [
            CreateAclsRequestCreation(*kinds, "User:*", "*", int(operation), int(Permission.ALLOW))
            for operation in operations
        ]
        answer = await self._owner.call(ApiKey.CREATE_ACLS, CreateAclsRequest(made), 12.0)
        for result in answer.results:
            if result.error_code:
                raise ServerError(result.error_code, "CreateAcls")

    async def _take(self, operation: Operation) -> None:
        kinds = int(ResourceType.TOPIC), PLACE[0], int(PatternType.LITERAL)
        wanted = DeleteAclsRequestFilter(*kinds, "User:*", "*", int(operation), int(Permission.ALLOW))
        answer = await self._owner.call(ApiKey.DELETE_ACLS, DeleteAclsRequest([wanted]), 12.0)
        if code := answer.filter_results[0].error_code:
            raise ServerError(code, "DeleteAcls")
        self.hits[f"acls, {operation.name} taken away"] += 1

    # --- what a broker decides by ---
    def _known_to(self, client: Client) -> tuple[Acl, ...] | None:
        node = self._stage.cluster._node_at(client.connected_to)
        authorizer = None if node is None or node.broker is None else node.broker.clients.authorizer
        return None if authorizer is None else authorizer.acls

    def _judge(self, before: tuple[Acl, ...] | None, client: Client, operation: Operation, code: int) -> None:
        """An answer, by the ACLs of its broker."""
        if code == REFUSED:
            self.hits[f"acls, {operation.name} refused"] += 1
        if before is None or before is not self._known_to(client):
            return
        here = [acl for acl in before if (acl.resource_type, acl.resource_name) == (ResourceType.TOPIC, PLACE[0])]
        may = not here or any(acl.operation == operation for acl in here)
        if (may and code == REFUSED) or (not may and code == ErrorCode.NONE):
            said = "was refused, who has the right" if may else "was answered, who has lost the right"
            at = f"at {self._stage.now():.3f} s by {self._stage.cluster.node_at(client.connected_to)}"
            self._stage.unexpected.append(f"{operation.name} to {PLACE[0]} {said}, {at}: {here}")

    # --- who works there ---
    def writers(self) -> list[_Writer]:
        return [_Writer(self, self._stage, number) for number in range(WRITERS)]

    async def _read(self) -> None:
        stage, rng, client = self._stage, self._stage.rng("guarded reader"), self._stage.client(PLACE)
        position = 0
        while not stage.stopping.is_set():
            await asyncio.sleep(rng.uniform(0.02, 0.4))
            try:
                await client.connection()
                before, invoked_s = self._known_to(client), stage.now()
                fetched = await client.fetch(*PLACE, position, 1 + rng.randrange(6000), 100 + rng.randrange(900))
            except NO_ANSWER:
                client.drop()
                continue
            except ServerError as failure:
                stage.answered(failure.code, "guarded reader")
                continue
            self._judge(before, client, Operation.READ, fetched.error)
            if fetched.error:
                if fetched.error != REFUSED:
                    stage.answered(ErrorCode(fetched.error), "guarded reader")
                client.refused(fetched.error)
                continue
            batches = stage.batches(fetched, PLACE)
            ends = fetched.high_watermark, fetched.log_start_offset
            node = stage.cluster.copy_at(client.connected_to, PLACE)
            stage.history.add(Poll("guarded", PLACE, position, invoked_s, stage.now(), batches, *ends, node))
            position = batches[-1].end if batches else (0 if position >= fetched.high_watermark else position)

    # --- quiet times ---
    async def settle(self, found: Found) -> None:
        """Everybody loses the right to write, then has all again: soon nobody writes, soon everybody does."""
        await self._until(
            lambda: self._allow(Operation.DESCRIBE, Operation.ALTER, *RIGHTS)
        )  # faults may have hindered all
        await self._until(lambda: self._take(Operation.WRITE))
        if not await self._soon(REFUSED):
            found("acls-not-followed", f"WRITE is taken away since {FOLLOWED_S:.0f} s, and not refused")
        await self._until(lambda: self._allow(Operation.DESCRIBE, Operation.ALTER, *RIGHTS))
        if not await self._soon(ErrorCode.NONE):
            found("acls-not-followed", f"WRITE is given since {FOLLOWED_S:.0f} s, and refused")

    async def _soon(self, code: ErrorCode) -> bool:
        writer = _Writer(self, self._stage, WRITERS + (code == ErrorCode.NONE))
        deadline_s = self._stage.now() + FOLLOWED_S
        while self._stage.now() < deadline_s:
            if await writer.step() == code:
                return True
            await asyncio.sleep(0.1)
        return False


class _Writer:
    """One batch after the other, acks=all, each sent once."""

    def __init__(self, guarded: Guarded, stage: Stage, number: int) -> None:
        self._guarded, self._stage, self._number = guarded, stage, number
        self._client, self._rng = stage.client(PLACE), stage.rng(f"guarded{number}")
        self._session = self._sequence = 0

    async def run(self) -> None:
        """Until told to stop."""
        while not self._stage.stopping.is_set():
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))
            await self.step()

    async def step(self) -> int:
        """The error of a batch; -1: no answer."""
        stage, client = self._stage, self._client
        value = f"guarded{self._number}.{self._session}.{self._sequence}"
        self._sequence += 1
        padding = b" " + b"x" * self._rng.randrange(300)
        data = encode_batch([Record(0, EPOCH_MS, value.encode(), value.encode() + padding)])
        invoked_s, code, offset, node, outcome = stage.now(), -1, -1, "", Outcome.INFO
        try:
            await client.connection()
            invoked_s, before = stage.now(), self._guarded._known_to(client)
            node = stage.cluster.node_at(client.connected_to)
            answer = (await client.call(ApiKey.PRODUCE, produce_request(*PLACE, data))).responses[0]
            code, offset = answer.partition_responses[0].error_code, answer.partition_responses[0].base_offset
            self._guarded._judge(before, client, Operation.WRITE, code)
            if code == ErrorCode.NONE:
                outcome = Outcome.OK
                stage.acked += 1
            elif code == REFUSED:
                outcome = Outcome.FAIL
            else:
                stage.answered(ErrorCode(code), f"guarded{self._number}")
                client.refused(code)
        except NO_ANSWER:
            client.drop()
        finally:
            done_s = stage.cluster.said_s(node, stage.now()) if outcome is Outcome.OK else stage.now()
            session, number = f"g{self._number}.{self._session}", self._sequence
            in_sync = stage.in_sync(PLACE)
            offset = offset if outcome is Outcome.OK else -1
            stage.told(Send(session, number, PLACE, (value,), invoked_s, done_s, outcome, offset, node, in_sync))
            self._session += outcome is Outcome.INFO  # it may still land, after the next one
        return code
